package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"example.org/slipway/oci"
	"example.org/slipway/oci/peering"
)

// maxPeersAnswer is the size in bytes of the longest list of nodes that is read.
const maxPeersAnswer = 1 << 20

// AnnouncePeer tells a registry that this node uses an image of a repository, and returns
// which other nodes do. Errors: UNSUPPORTED or NAME_UNKNOWN if the registry does not
// connect nodes with each other.
func (c *Client) AnnouncePeer(ctx context.Context, repo string, a *peering.Announcement) (*peering.Answer, error) {
	if err := oci.CheckName(repo); err != nil {
		return nil, err
	}
	announcement, err := json.Marshal(a)
	if err != nil {
		return nil, err
	}
	b, err := bytesBody(announcement)
	if err != nil {
		return nil, err
	}
	l := c.gearCall(http.MethodPost, repo, "peers")
	l.body, l.header = b, http.Header{"Content-Type": {"application/json"}}
	resp, err := c.do(ctx, l)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var out peering.Answer
	if err := json.NewDecoder(http.MaxBytesReader(nil, resp.Body, maxPeersAnswer)).Decode(&out); err != nil {
		return nil, fmt.Errorf("read the list of nodes of %s: %w", repo, err)
	}
	return &out, nil
}
