package registry

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// hotSpan is the length of a span of counting. The reported counts cover the
	// last one to two spans.
	hotSpan = 10 * time.Minute
	// hotImages is how many images are counted at once. They take some 200 kB.
	hotImages = 1000
)

// Pulled is how often clients requested a manifest by a name.
type Pulled struct {
	// Repo and Ref, a tag or digest, are what the clients requested.
	Repo, Ref string
	Pulls     int64
}

// hot counts recent pulls. If there are more names than it has room for, it counts as
// Misra and Gries do (Finding repeated elements, 1982). The count of a name is then too
// low by at most 1/hotImages of all pulls, and is never too high.
type hot struct {
	mu         sync.Mutex
	now, older map[pullKey]int64
	// since is when now began, and before is when older did.
	since, before time.Time
}

func (h *hot) note(k pullKey, at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.turn(at)
	if _, ok := h.now[k]; !ok && len(h.now) >= hotImages {
		for k := range h.now {
			if h.now[k]--; h.now[k] == 0 {
				delete(h.now, k)
			}
		}
		return
	}
	h.now[k]++
}

// turn begins a new span if the last one is over. h.mu is held.
func (h *hot) turn(at time.Time) {
	age := at.Sub(h.since)
	if h.now != nil && age >= 0 && age < hotSpan {
		return
	}
	if h.older, h.before = h.now, h.since; age < 0 || age >= 2*hotSpan {
		h.older, h.before = nil, at
	}
	h.now, h.since = map[pullKey]int64{}, at
}

// list returns the names requested most often, at most n.
func (h *hot) list(n int, at time.Time) (list []Pulled, since time.Time) {
	h.mu.Lock()
	h.turn(at)
	sum := make(map[pullKey]int64, len(h.now)+len(h.older))
	for _, m := range []map[pullKey]int64{h.now, h.older} {
		for k, v := range m {
			sum[k] += v
		}
	}
	if since = h.since; h.older != nil {
		since = h.before
	}
	h.mu.Unlock()
	for k, v := range sum {
		list = append(list, Pulled{k.repo, k.ref, v})
	}
	slices.SortFunc(list, func(a, b Pulled) int {
		return cmp.Or(cmp.Compare(b.Pulls, a.Pulls), strings.Compare(a.Repo, b.Repo), strings.Compare(a.Ref, b.Ref))
	})
	return list[:min(n, len(list))], since
}

// Hot returns the manifests that clients of this replica requested most often of late, at
// most n, and the time since which they were counted.
func (r *Registry) Hot(n int) ([]Pulled, time.Time) { return r.lately.list(n, r.replica.Now()) }

// pulled notes that a manifest was requested.
func (r *Registry) pulled(repo, ref string) {
	now := r.replica.Now()
	r.pulls.note(repo, ref, now)
	r.lately.note(pullKey{repo, ref}, now)
}

type unnoticed struct{}

// Unnoticed returns a context in which requests for manifests do not count as pulls. It
// is for maintenance requests, which no client sent.
func Unnoticed(ctx context.Context) context.Context {
	return context.WithValue(ctx, unnoticed{}, true)
}

func noticed(ctx context.Context) bool { return ctx.Value(unnoticed{}) == nil }
