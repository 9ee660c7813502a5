package client

import (
	"context"
	"encoding/json"
	"net/http"

	"example.org/slipway/oci"
)

// Extensions sends requests of extensions that have packages of their own.
type Extensions struct{ Client *Client }

// Extension sends a request to an endpoint below _slipway, of a repository or, if repo is
// empty, of the registry. in is sent as JSON unless it is nil; out receives the answer.
// Errors: UNSUPPORTED if the registry does not know the endpoint.
func (e Extensions) Extension(ctx context.Context, method, repo, path string, scopes []string, in, out any) error {
	c := e.Client
	l := call{method: method, scopes: scopes, retry: retryStatus, notFound: oci.CodeUnsupported,
		url: c.url(oci.Request{Kind: oci.KindExtension, Repo: repo, Ref: "_slipway/" + path}, nil)}
	if in != nil {
		if err := l.setJSON(in); err != nil {
			return err
		}
	}
	_, err := c.getJSON(ctx, l, maxListBody, out)
	return err
}

// setJSON sets the body of a call to a value.
func (l *call) setJSON(v any) error {
	b, err := json.Marshal(v)
	if err == nil {
		l.body, err = bytesBody(b)
	}
	l.header = http.Header{"Content-Type": {"application/json"}}
	return err
}
