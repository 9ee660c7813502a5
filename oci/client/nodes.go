package client

import (
	"context"
	"encoding/json"
	"net/http"

	"example.org/slipway/oci"
	"example.org/slipway/oci/fleet"
)

// ReportNode tells a registry how much of an image of a repository this node has. Errors:
// UNSUPPORTED or NAME_UNKNOWN if the registry does not accept such reports.
func (c *Client) ReportNode(ctx context.Context, repo string, r *fleet.Report) error {
	resp, err := c.postJSON(ctx, repo, "nodes", r)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// postJSON posts what a node says about a repository.
func (c *Client) postJSON(ctx context.Context, repo, path string, says any) (*http.Response, error) {
	if err := oci.CheckName(repo); err != nil {
		return nil, err
	}
	text, err := json.Marshal(says)
	if err != nil {
		return nil, err
	}
	b, err := bytesBody(text)
	if err != nil {
		return nil, err
	}
	l := c.gearCall(http.MethodPost, repo, path)
	l.body, l.header = b, http.Header{"Content-Type": {"application/json"}}
	return c.do(ctx, l)
}
