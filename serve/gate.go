package serve

import (
	"context"
	"errors"
	"net/http"
	"sync"
)

// gate counts the requests under way, so that what they use is not closed while they run.
// http.Server.Close cuts connections and waits for nobody.
type gate struct {
	// mu is read-locked by each request. shut locks it and never unlocks it.
	mu   sync.RWMutex
	once sync.Once
	done chan struct{}
}

// guard wraps a handler.
func (g *gate) guard(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !g.mu.TryRLock() {
			w.Header().Set("Connection", "close")
			http.Error(w, "the server is stopping", http.StatusServiceUnavailable)
			return
		}
		defer g.mu.RUnlock()
		h.ServeHTTP(w, r)
	})
}

// shut refuses further requests, and waits until none is under way or ctx ends. It is
// idempotent.
func (g *gate) shut(ctx context.Context) error {
	g.once.Do(func() {
		g.done = make(chan struct{})
		go func() {
			g.mu.Lock()
			close(g.done)
		}()
	})
	select {
	case <-g.done:
		return nil
	case <-ctx.Done():
		return errors.New("requests do not end although their connections are closed")
	}
}
