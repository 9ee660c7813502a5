// Package gate counts what a server has under way, and can stop it: [Requests] stops
// requests before what they use is closed, and [Writes] stops writes while the catalogue
// is moved.
package gate

import (
	"context"
	"errors"
	"net/http"
	"sync"
)

// Requests counts the requests under way, so that what they use is not closed while they run.
// http.Server.Close cuts connections and waits for nobody. The zero value lets everything pass.
type Requests struct {
	// mu is read-locked by each request. Shut locks it and never unlocks it.
	mu   sync.RWMutex
	once sync.Once
	done chan struct{}
}

// Guard wraps a handler.
func (g *Requests) Guard(h http.Handler) http.Handler {
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

// Shut refuses further requests, and waits until none is under way or ctx ends. It is
// idempotent.
func (g *Requests) Shut(ctx context.Context) error {
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
