package warming

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"example.org/slipway/oci/warm"
	"example.org/slipway/registry/catalog/warmfacts"
)

// Get returns an order with the progress of each node. Errors: NAME_UNKNOWN.
func (s *Service) Get(ctx context.Context, id string) (warm.Order, error) {
	all, err := s.known(ctx)
	if err != nil {
		return warm.Order{}, err
	}
	for _, o := range all {
		if o.ID != id {
			continue
		}
		rows, err := s.facts.Progress(ctx, id)
		if err != nil {
			return warm.Order{}, fmt.Errorf("read the progress of an order: %w", err)
		}
		return s.shown(o, rows), nil
	}
	return warm.Order{}, unknown(id)
}

// List returns all orders without the progress of each node, the last one first.
func (s *Service) List(ctx context.Context) ([]warm.Order, error) {
	all, err := s.known(ctx)
	if err != nil {
		return nil, err
	}
	rows, err := s.facts.Progress(ctx, "")
	if err != nil {
		return nil, fmt.Errorf("read the progress of orders: %w", err)
	}
	by := map[string][]warmfacts.Progress{}
	for _, r := range rows {
		by[r.Order] = append(by[r.Order], r)
	}
	list := make([]warm.Order, 0, len(all))
	for _, o := range all {
		shown := s.shown(o, by[o.ID])
		shown.Progress = nil
		list = append(list, shown)
	}
	return list, nil
}

// shown returns an order as clients see it. rows is what the catalogue has about its
// progress.
func (s *Service) shown(o *order, rows []warmfacts.Progress) warm.Order {
	out, now := o.Order, s.o.Clock()
	out.Counts = map[warm.State]int{}
	out.Registry = warm.Progress{State: warm.Waiting}
	seen := map[string]bool{}
	for _, r := range rows {
		var p warm.Progress
		if json.Unmarshal([]byte(r.State), &p) != nil {
			continue
		}
		if r.Node == "" {
			out.Registry = p
			continue
		}
		seen[r.Node] = true
		out.Progress = append(out.Progress, warm.NodeProgress{Node: r.Node, Seen: r.Seen, Away: !p.State.Ended() && now.Sub(r.Seen) > away, Progress: p})
	}
	if p, here := s.readying(o.ID); here { // the catalogue is behind
		out.Registry = p
	}
	for _, n := range s.unheard(o, seen, now) {
		out.Progress = append(out.Progress, warm.NodeProgress{Node: n, Progress: warm.Progress{State: warm.Waiting}})
	}
	slices.SortFunc(out.Progress, func(a, b warm.NodeProgress) int { return cmp.Compare(a.Node, b.Node) })
	out.Matching = s.matching(o)
	for i := range out.Progress {
		out.Counts[out.Progress[i].State]++
	}
	out.State = s.stateOf(o, &out, now)
	return out
}

// unheard returns the nodes that an order selects and that have not asked since it was
// made. Nodes that asked and are not seen may not pull the image.
func (s *Service) unheard(o *order, seen map[string]bool, now time.Time) (names []string) {
	if o.Nodes == nil || o.cancelled || !now.Before(o.Expires) {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, n := range s.nodes {
		if !seen[name] && now.Sub(n.asked) <= away && n.asked.Before(o.Created) && o.selector.Selects(name, n.labels) {
			names = append(names, name)
		}
	}
	return names
}

// matching counts the nodes that asked lately and that an order selects.
func (s *Service) matching(o *order) (n int) {
	if o.Nodes == nil {
		return 0
	}
	now := s.o.Clock()
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, node := range s.nodes {
		if now.Sub(node.asked) <= away && o.selector.Selects(name, node.labels) {
			n++
		}
	}
	return n
}

// stateOf returns the state of an order as a whole.
func (s *Service) stateOf(o *order, shown *warm.Order, now time.Time) warm.State {
	switch {
	case o.cancelled:
		return warm.Cancelled
	case !now.Before(o.Expires):
		return warm.Expired
	}
	failed := shown.Registry.State == warm.Failed || shown.Counts[warm.Failed] > 0
	pending := !shown.Registry.State.Ended()
	for i := range shown.Progress {
		pending = pending || !shown.Progress[i].State.Ended() && !shown.Progress[i].Away
	}
	// Nodes that ask another server are known only once they have asked.
	early := s.db.Shared() && now.Sub(o.Created) < 2*s.again(false)
	switch {
	case o.Nodes != nil && len(shown.Progress) == 0 && !failed:
		return warm.Waiting
	case pending || o.Nodes != nil && early:
		return warm.Running
	case failed:
		return warm.Failed
	}
	return warm.Done
}
