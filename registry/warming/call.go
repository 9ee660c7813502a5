package warming

import (
	"context"
	"encoding/json"
	"net/http"

	"example.org/slipway/oci/warm"
)

// Call is a request of the extension, of a client that may make it.
type Call struct {
	Method string
	// Repo is the repository of a new order, ID the order that the request is about, or ""
	// for all. Poll says that a node asks.
	Repo, ID string
	Poll     bool
	// User is the name of the client's user. Client distinguishes clients of nodes. Sees
	// reports whether the client may pull from a repository.
	User, Client string
	Sees         func(repo string) bool
	Body         []byte
}

// Serve answers a request.
func (s *Service) Serve(ctx context.Context, c Call) (any, error) {
	switch {
	case c.Poll:
		var p warm.Poll
		if err := json.Unmarshal(c.Body, &p); err != nil {
			return nil, bad("the body is no report of a node: %v", err)
		}
		return s.Poll(ctx, c.Client, c.Sees, &p)
	case c.Repo != "":
		var q warm.Request
		if err := json.Unmarshal(c.Body, &q); err != nil {
			return nil, bad("the body is no order: %v", err)
		}
		return s.Begin(ctx, c.User, c.Repo, q)
	case c.ID == "":
		list, err := s.List(ctx)
		return map[string]any{"orders": list}, err
	case c.Method == http.MethodDelete:
		return s.Cancel(ctx, c.ID)
	}
	return s.Get(ctx, c.ID)
}
