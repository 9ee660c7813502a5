package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"example.org/slipway/oci/peering"
)

// maxPeersAnswer is the size in bytes of the longest list of nodes that is read.
const maxPeersAnswer = 1 << 20

// AnnouncePeer tells a registry that this node uses an image of a repository, and returns
// which other nodes do. Errors: UNSUPPORTED or NAME_UNKNOWN if the registry does not
// connect nodes with each other.
func AnnouncePeer(ctx context.Context, c *Client, repo string, a *peering.Announcement) (*peering.Answer, error) {
	resp, err := c.postJSON(ctx, repo, "peers", a)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var out peering.Answer
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxPeersAnswer)).Decode(&out); err != nil {
		return nil, fmt.Errorf("read the list of nodes of %s: %w", repo, err)
	}
	return &out, nil
}
