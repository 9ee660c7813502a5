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
	if err := oci.CheckName(repo); err != nil {
		return err
	}
	report, err := json.Marshal(r)
	if err != nil {
		return err
	}
	b, err := bytesBody(report)
	if err != nil {
		return err
	}
	l := c.gearCall(http.MethodPost, repo, "nodes")
	l.body, l.header = b, http.Header{"Content-Type": {"application/json"}}
	resp, err := c.do(ctx, l)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}
