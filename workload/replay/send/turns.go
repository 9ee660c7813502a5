package send

import (
	"context"
	"sync"

	"example.org/slipway/workload/replay/content"
	"example.org/slipway/workload/replay/plan"
	"example.org/slipway/workload/trace"
)

// turns makes requests wait for the requests that their client would have waited for: the
// parts of an upload go one after another, a manifest follows what it names, and a HEAD
// that finds a content follows its push. A task waits only for tasks that were announced
// before it. So no two tasks wait for each other, however many tasks may run at once.
type turns struct {
	mu    sync.Mutex
	tasks map[int64]*turn    // the tasks that were announced and have not ended
	under map[uint64][]*turn // the same tasks, by what others wait for
}

// turn is the turn of a task.
type turn struct {
	keys  []uint64
	after []*turn
	ended chan struct{}
	// up is the upload that the task begins; its lock is held.
	up *upload
}

func newTurns() *turns { return &turns{tasks: map[int64]*turn{}, under: map[uint64][]*turn{}} }

// Announce announces a task that will be run or dropped. Tasks are announced in their
// order, and not concurrently.
func (s *Sender) Announce(t *plan.Task) {
	var gives, needs []uint64
	for i := range t.Steps {
		g, n := keys(t, &t.Steps[i])
		gives, needs = append(gives, g...), append(needs, n...)
	}
	st := &t.Steps[0]
	if len(gives)+len(needs) == 0 && st.Op != plan.OpOpen || int(st.Target) >= len(s.targets) {
		return
	}
	w := &turn{keys: gives, ended: make(chan struct{})}
	if st.Op == plan.OpOpen {
		w.up = &upload{target: s.targets[st.Target], index: st.Target, repo: st.Repo}
		w.up.busy.Lock() // what comes next waits for the answer
		s.uploads.keep(clientKeyOf(t, st), w.up)
	}
	s.turns.mu.Lock()
	defer s.turns.mu.Unlock()
	for _, k := range needs {
		w.after = append(w.after, s.turns.under[k]...)
	}
	for _, k := range gives {
		s.turns.under[k] = append(s.turns.under[k], w)
	}
	s.turns.tasks[t.ID] = w
}

// Drop says that an announced task is not run.
func (s *Sender) Drop(t *plan.Task) { s.endTurn(t) }

// turn returns the turn of a task, or nil if the task was not announced.
func (s *Sender) turn(t *plan.Task) *turn {
	s.turns.mu.Lock()
	defer s.turns.mu.Unlock()
	return s.turns.tasks[t.ID]
}

// begun takes over the upload of a task that begins one. It returns nil if the task was
// not announced.
func (s *Sender) begun(t *plan.Task) (up *upload) {
	s.turns.mu.Lock()
	defer s.turns.mu.Unlock()
	if w := s.turns.tasks[t.ID]; w != nil {
		up, w.up = w.up, nil
	}
	return up
}

// endTurn ends the turn of a task and wakes the requests that wait for it.
func (s *Sender) endTurn(t *plan.Task) {
	s.turns.mu.Lock()
	defer s.turns.mu.Unlock()
	w := s.turns.tasks[t.ID]
	if w == nil {
		return
	}
	delete(s.turns.tasks, t.ID)
	for _, k := range w.keys {
		s.turns.remove(k, w)
	}
	if w.up != nil { // its request was never made
		w.up.busy.Unlock()
	}
	close(w.ended)
}

// remove removes a turn from the list of a key. The caller holds mu.
func (q *turns) remove(key uint64, w *turn) {
	list := q.under[key]
	for i := range list {
		if list[i] == w {
			list = append(list[:i:i], list[i+1:]...) // a new one: others go through the old one
			break
		}
	}
	if len(list) == 0 {
		delete(q.under, key)
	} else {
		q.under[key] = list
	}
}

// await returns when the tasks before this turn have ended, or ctx has ended.
func (w *turn) await(ctx context.Context) {
	for _, before := range w.after {
		select {
		case <-before.ended:
		case <-ctx.Done():
			return
		}
	}
	w.after = nil
}

// clientKeyOf returns the key of a client and a repository.
func clientKeyOf(t *plan.Task, st *plan.Step) uint64 {
	return t.Client ^ content.Key(st.Repo) ^ uint64(st.Target)
}

// These are salts of keys.
const (
	saltUpload   = 0x9e3779b97f4a7c15
	saltManifest = 0xc2b2ae3d27d4eb4f
)

// keys returns the keys that others may wait for until a step has ended, and the keys
// that the step waits for. The steps of a session have their own order, so they wait only
// for what others push.
func keys(t *plan.Task, st *plan.Step) (gives, needs []uint64) {
	by := clientKeyOf(t, st)
	of := func(ref string) uint64 { return by ^ content.Key(ref) }
	switch st.Op {
	case plan.OpPatch:
		return []uint64{st.Upload ^ saltUpload}, []uint64{st.Upload ^ saltUpload}
	case plan.OpClose:
		return []uint64{st.Upload ^ saltUpload, by, of(st.Ref)}, []uint64{st.Upload ^ saltUpload}
	case plan.OpPush:
		if st.MountFrom != "" {
			needs = []uint64{t.Client ^ content.Key(st.MountFrom) ^ uint64(st.Target) ^ content.Key(st.Ref)}
		}
		return []uint64{by, of(st.Ref)}, needs
	case plan.OpPutManifest:
		gives, needs = []uint64{of(st.Ref), of(digestName(st.Digest))}, []uint64{by}
		if !t.Alone() {
			return gives, nil
		}
		if st.MediaType == indexType {
			return gives, append(needs, by^saltManifest)
		}
		return append(gives, by^saltManifest), needs
	case plan.OpRequest:
		if st.Status < 400 && (st.Kind == trace.Blob || st.Kind == trace.Manifest) {
			return nil, []uint64{of(st.Ref)}
		}
	}
	return nil, nil
}
