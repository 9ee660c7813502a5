package replication

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"example.org/slipway/oci"
)

// Header names the registries through which a change came, by their ids, with commas
// between them.
const Header = "Slipway-Replicated-By"

const (
	// maxVia bounds how many registries a change can come through.
	maxVia = 32
	// maxID bounds the bytes of an id, because clients may send anything, and it is kept
	// with each change that waits. Ids of registries have 36.
	maxID = 64
)

type viaKey struct{}

func withVia(ctx context.Context, via []string) context.Context {
	return context.WithValue(ctx, viaKey{}, via)
}

// ViaFrom returns the ids of the registries through which a change came.
func ViaFrom(ctx context.Context) []string {
	via, _ := ctx.Value(viaKey{}).([]string)
	return via
}

// Receive returns a handler that puts what requests say in Header, and when they say that a
// tag was changed, into their contexts.
func Receive(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if list := r.Header.Get(Header); list != "" {
			via := slices.DeleteFunc(strings.Split(list, ","), func(id string) bool { return len(id) > maxID })
			ctx := withVia(r.Context(), via[:min(len(via), maxVia)])
			if at := parseTime(r.Header.Get(timeHeader)); !at.IsZero() {
				ctx = oci.ChangedAt(ctx, at)
			}
			r = r.WithContext(ctx)
		}
		next.ServeHTTP(w, r)
	})
}

// Transport returns a transport that puts the ids in the contexts of requests into Header.
func Transport(next http.RoundTripper) http.RoundTripper { return transport{next} }

type transport struct{ next http.RoundTripper }

var _ http.RoundTripper = transport{}

// RoundTrip implements http.RoundTripper.
func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if via := ViaFrom(r.Context()); len(via) > 0 {
		r = r.Clone(r.Context())
		r.Header.Set(Header, strings.Join(via, ","))
		if at := oci.ChangedFrom(r.Context()); !at.IsZero() {
			r.Header.Set(timeHeader, at.UTC().Format(time.RFC3339Nano))
		}
	}
	return t.next.RoundTrip(r)
}
