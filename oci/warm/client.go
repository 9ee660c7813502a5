package warm

import (
	"context"
	"net/http"

	"example.org/slipway/oci"
)

// Path is the path of the extension, below /v2/ or the name of a repository.
const Path = "warm"

// Registry sends a request to an endpoint of an extension, of a repository or, without
// one, of the registry. client.Extensions implements it.
type Registry interface {
	Extension(ctx context.Context, method, repo, path string, scopes []string, in, out any) error
}

// scopeAdmin is the scope of a token that may manage the registry.
const scopeAdmin = "registry:admin:*"

// Begin orders an image of a repository. Errors: MANIFEST_UNKNOWN, DENIED, and UNSUPPORTED
// if the registry does not know of orders.
func Begin(ctx context.Context, r Registry, repo string, q *Request) (o Order, err error) {
	if err := oci.CheckName(repo); err != nil {
		return o, err
	}
	err = r.Extension(ctx, http.MethodPost, repo, Path, []string{"repository:" + repo + ":pull", scopeAdmin}, q, &o)
	return o, err
}

// List returns the orders of a registry, the last one first.
func List(ctx context.Context, r Registry) ([]Order, error) {
	var answer struct {
		Orders []Order `json:"orders"`
	}
	err := r.Extension(ctx, http.MethodGet, "", Path, []string{scopeAdmin}, nil, &answer)
	return answer.Orders, err
}

// Get returns an order with the progress of each node.
func Get(ctx context.Context, r Registry, id string) (o Order, err error) {
	err = r.Extension(ctx, http.MethodGet, "", Path+"/"+id, []string{scopeAdmin}, nil, &o)
	return o, err
}

// Cancel ends an order. Nodes keep what they have fetched until they need the space.
func Cancel(ctx context.Context, r Registry, id string) (o Order, err error) {
	err = r.Extension(ctx, http.MethodDelete, "", Path+"/"+id, []string{scopeAdmin}, nil, &o)
	return o, err
}

// Ask asks what a node shall fetch, and tells the registry how far it is.
func Ask(ctx context.Context, r Registry, p *Poll) (a Answer, err error) {
	err = r.Extension(ctx, http.MethodPost, "", Path+"/poll", nil, p, &a)
	return a, err
}
