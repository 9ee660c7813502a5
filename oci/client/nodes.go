package client

import (
	"context"
	"net/http"

	"example.org/slipway/oci"
	"example.org/slipway/oci/fleet"
)

// ReportNode tells a registry how much of an image of a repository this node has. Errors:
// UNSUPPORTED or NAME_UNKNOWN if the registry does not accept such reports.
func (c *Client) ReportNode(ctx context.Context, repo string, r *fleet.Report) error {
	l, err := c.report(repo, "nodes", r)
	if err != nil {
		return err
	}
	return closed(c.do(ctx, l))
}

// report returns the call that posts what a node says about a repository.
func (c *Client) report(repo, path string, says any) (call, error) {
	if err := oci.CheckName(repo); err != nil {
		return call{}, err
	}
	l := c.gearCall(http.MethodPost, repo, path)
	return l, l.setJSON(says)
}
