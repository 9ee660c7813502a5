// Package route tells registries that mirror one another when a question has come back.
//
// Each mirror puts a name of its own into the requests that it sends to its upstreams,
// behind the names that came with the request it is answering. A mirror that finds its own
// name in a request answers from what it has. Without that, two registries that mirror
// each other would wait for each other.
package route

import (
	"context"
	"crypto/rand"
	"net/http"
	"slices"
	"strings"
)

// Header names the mirrors through which a request came, with commas between them.
const Header = "Slipway-Mirrored-By"

const (
	// maxHops bounds the mirrors that a request may come through.
	maxHops = 16
	// maxName bounds the bytes of a name, because clients may send anything.
	maxName = 64
)

// Self is the name of one mirror.
type Self string

// New returns a name that no other mirror has. It says nothing about the mirror, because
// upstreams of strangers see it.
func New() Self { return Self(rand.Text()) }

// Way is the names of the mirrors through which a request came.
type Way []string

// trip is what a context holds: the way of the request that is being answered, and the
// mirror that asks in order to answer it.
type trip struct {
	way  Way
	self Self
}

type key struct{}

func of(ctx context.Context) trip {
	t, _ := ctx.Value(key{}).(trip)
	return t
}

// From returns the way of the request of ctx.
func From(ctx context.Context) Way { return of(ctx).way }

// Back reports whether the request of ctx has come through this mirror before, or through
// so many that it probably goes round among others.
func (s Self) Back(ctx context.Context) bool {
	w := From(ctx)
	return len(w) >= maxHops || slices.Contains(w, string(s))
}

// On returns ctx for the questions that this mirror asks to answer a request that came on
// a way.
func (s Self) On(ctx context.Context, w Way) context.Context {
	return context.WithValue(ctx, key{}, trip{w, s})
}

// Set puts the way of a question into its header. It does nothing unless ctx is of On.
func Set(ctx context.Context, h http.Header) {
	if t := of(ctx); t.self != "" {
		h.Set(Header, strings.Join(append(slices.Clone(t.way), string(t.self)), ","))
	}
}

// Receive returns a handler that puts what requests say in Header into their contexts.
func Receive(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if list := r.Header.Get(Header); list != "" {
			names := slices.DeleteFunc(strings.Split(list, ","), func(n string) bool { return len(n) > maxName })
			r = r.WithContext(context.WithValue(r.Context(), key{}, trip{way: names[:min(len(names), maxHops)]}))
		}
		next.ServeHTTP(w, r)
	})
}
