package warming

import (
	"context"
	"encoding/json"
	"maps"
	"time"

	"example.org/slipway/oci/warm"
	"example.org/slipway/registry/catalog/warmfacts"
)

// Poll notes what a node of a client says, and returns what the node shall fetch. sees
// reports whether the client may pull from a repository.
func (s *Service) Poll(ctx context.Context, client string, sees func(repo string) bool, p *warm.Poll) (warm.Answer, error) {
	a := warm.Answer{Tasks: []warm.Task{}}
	if err := p.Check(); err != nil {
		return a, bad("%v", err)
	}
	now := s.o.Clock()
	if err := s.noteNode(client, p, now); err != nil {
		return a, err
	}
	active, err := s.active(ctx)
	if err != nil {
		return a, err
	}
	var changed []warmfacts.Progress
	busy := false
	for _, o := range active {
		if len(a.Tasks) == warm.MaxTasks {
			break
		}
		if o.Nodes == nil || !o.selector.Selects(p.Node, p.Labels) || !sees(o.Repository) {
			continue
		}
		a.Tasks = append(a.Tasks, warm.Task{ID: o.ID, Repository: o.Repository, Reference: o.Reference, Digest: o.Digest, All: o.All, Expires: o.Expires})
		state, reported := p.Tasks[o.ID]
		busy = busy || !reported || !state.State.Ended()
		if c, ok := s.change(o.ID, p.Node, state, reported, now); ok {
			changed = append(changed, c)
		}
	}
	s.note(ctx, changed)
	a.Again = s.again(busy).Seconds()
	return a, nil
}

// noteNode remembers a node. It returns an error if the node is another client's, or if
// there are too many.
func (s *Service) noteNode(client string, p *warm.Poll, now time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[p.Node]
	if n == nil && (len(s.nodes) >= maxNodes || s.shares[client] >= maxNodes/maxShare) || n != nil && n.client != client {
		s.forget(now)
		n = s.nodes[p.Node]
	}
	switch {
	case n != nil && n.client != client:
		return bad("node %.40q asks as another client", p.Node)
	case n == nil && (len(s.nodes) >= maxNodes || s.shares[client] >= maxNodes/maxShare):
		return bad("there is no room for more: %d nodes ask already", len(s.nodes))
	case n == nil:
		n = &node{client: client}
		s.nodes[p.Node] = n
		s.shares[client]++
	}
	n.labels, n.asked = maps.Clone(p.Labels), now
	return nil
}

// forget drops nodes that have not asked for long. The caller holds mu.
func (s *Service) forget(now time.Time) {
	for name, n := range s.nodes {
		if now.Sub(n.asked) > lifetime {
			delete(s.nodes, name)
			if s.shares[n.client]--; s.shares[n.client] == 0 {
				delete(s.shares, n.client)
			}
		}
	}
}

// change returns what has to be recorded about a node, if that is not recorded yet. A node
// that does not mention an order has not begun, or has forgotten that it did.
func (s *Service) change(id, name string, p warm.Progress, reported bool, now time.Time) (c warmfacts.Progress, ok bool) {
	if !reported {
		p = warm.Progress{State: warm.Waiting}
	}
	state, err := json.Marshal(p)
	if err != nil {
		return c, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if was, known := s.noted[notedKey{id, name}]; known && was.state == string(state) && now.Sub(was.at) < refresh {
		return c, false
	}
	return warmfacts.Progress{Order: id, Node: name, State: string(state), Seen: now}, true
}

// note records progress. What cannot be recorded now is reported again.
func (s *Service) note(ctx context.Context, list []warmfacts.Progress) {
	if len(list) == 0 {
		return
	}
	leave, err := s.o.Enter()
	if err == nil {
		err = s.facts.Note(ctx, list)
		leave()
	}
	if err != nil {
		s.log.Debug("the progress of nodes is not recorded", "err", err)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range list {
		s.noted[notedKey{p.Order, p.Node}] = noted{p.State, p.Seen}
	}
}

// again returns when a node is to ask again. The more nodes there are, the later.
func (s *Service) again(busy bool) time.Duration {
	s.mu.Lock()
	n := len(s.nodes)
	s.mu.Unlock()
	if busy {
		return max(s.o.Busy, min(time.Duration(n)*time.Second/nodesPerSecond, mostIdle/2))
	}
	return max(s.o.Idle, min(time.Duration(n)*time.Second/nodesPerSecond, mostIdle))
}
