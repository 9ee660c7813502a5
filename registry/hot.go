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
	// hotSpan is after how long pulls begin to be forgotten: what is told is of one to two
	// such spans.
	hotSpan = 10 * time.Minute
	// hotImages is how many images are counted at once; some 200 kB.
	hotImages = 1000
)

// Pulled is how often a manifest was asked for by a name.
type Pulled struct {
	// Repo and Ref, a tag or digest, are what was asked for.
	Repo, Ref string
	Pulls     int64
}

// hot counts pulls of late. Where there are more names than it has room for, it counts as
// Misra and Gries do (Finding repeated elements, 1982): a name is told with at most
// 1/hotImages of all pulls too few, and never with too many.
type hot struct {
	mu         sync.Mutex
	now, older map[pullKey]int64
	// since is when now began, before when older did.
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

// turn begins a new span when the last is over. h.mu is held.
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

// list returns the names asked for most, at most n.
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

// Hot returns the manifests that this replica was asked for most often of late, at most n,
// and since when they were counted.
func (r *Registry) Hot(n int) ([]Pulled, time.Time) { return r.lately.list(n, r.now()) }

// pulled notes that a manifest was asked for.
func (r *Registry) pulled(repo, ref string) {
	now := r.now()
	r.pulls.note(repo, ref, now)
	r.lately.note(pullKey{repo, ref}, now)
}

type unnoticed struct{}

// Unnoticed returns a context whose requests for manifests count as no pulls: those of
// maintenance, which no client sent.
func Unnoticed(ctx context.Context) context.Context {
	return context.WithValue(ctx, unnoticed{}, true)
}

func noticed(ctx context.Context) bool { return ctx.Value(unnoticed{}) == nil }
