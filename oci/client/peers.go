package client

import (
	"context"

	"example.org/slipway/oci/peering"
)

// maxPeersAnswer is the size in bytes of the longest list of nodes that is read.
const maxPeersAnswer = 1 << 20

// AnnouncePeer tells a registry that this node uses an image of a repository, and returns
// which other nodes do. Errors: UNSUPPORTED or NAME_UNKNOWN if the registry does not
// connect nodes with each other.
func AnnouncePeer(ctx context.Context, c *Client, repo string, a *peering.Announcement) (*peering.Answer, error) {
	l, err := c.report(repo, "peers", a)
	if err != nil {
		return nil, err
	}
	var out peering.Answer
	_, err = c.getJSON(ctx, l, maxPeersAnswer, &out)
	return &out, err
}
