package plan

import (
	"context"

	"example.org/slipway/workload/replay/content"
	"example.org/slipway/workload/trace/store"
)

// Tasks makes the tasks in the order of their times and calls fn with each; fn may keep
// it. Tasks before skip, which an earlier run has done, are made but not handed out.
// Tasks ends with the first error of fn.
func (p *Plan) Tasks(ctx context.Context, skip int64, fn func(*Task) error) error {
	out := &numbered{pace: newPace(&p.o), fn: fn, skip: skip}
	if p.o.Level == L2 {
		return p.sessions(ctx, out)
	}
	clients := map[store.Symbol]uint64{}
	return p.scan(ctx, func(b *store.Batch, i int) error {
		if out.id < skip {
			out.pass(b.Time[i])
			return nil
		}
		step, err := p.step(b, i, out.id)
		if err != nil {
			return err
		}
		return out.emit(b.Time[i], &Task{Client: p.client(clients, b.Client[i]), Steps: []Step{step}})
	})
}

// client returns the hash of a client's name. It does not depend on the order in which
// the trace names clients.
func (p *Plan) client(known map[store.Symbol]uint64, sym store.Symbol) uint64 {
	h, ok := known[sym]
	if !ok {
		h = content.Key(p.src.Name(store.Clients, sym))
		known[sym] = h
	}
	return h
}

// numbered gives tasks their number and time.
type numbered struct {
	pace *pace
	fn   func(*Task) error
	id   int64
	skip int64
}

func (n *numbered) pass(recorded int64) {
	n.pace.next(recorded)
	n.id++
}

func (n *numbered) emit(recorded int64, t *Task) error {
	t.ID, t.At = n.id, n.pace.next(recorded)
	n.id++
	if t.ID < n.skip {
		return nil
	}
	return n.fn(t)
}

// WarmRounds is how many rounds the warm-up has. Each round begins when the round before
// has ended.
const WarmRounds = 2

// mountsAtOnce is how many repositories get a blob at the same time.
const mountsAtOnce = 4

// WarmUp makes the tasks that put in place all that is read before the trace brings it:
// blobs in round 0, configurations and manifests in round 1. Their times are zero. It
// ends with the first error of fn.
func (p *Plan) WarmUp(round int, fn func(*Task) error) error {
	w := &warmUp{p: p, fn: fn}
	switch {
	case p.o.Level == L0:
		if round == 0 {
			return w.l0()
		}
		return nil
	case round == 0:
		return w.blobs()
	}
	return w.manifests()
}

type warmUp struct {
	p  *Plan
	fn func(*Task) error
	id int64
}

// emit sends the same steps to each target, because it is not known yet which target gets
// which request.
func (w *warmUp) emit(key uint64, steps []Step) error {
	for target := range w.p.o.Targets {
		t := &Task{ID: w.id, Client: key + uint64(target), Parallel: mountsAtOnce, Steps: make([]Step, len(steps))}
		copy(t.Steps, steps)
		for i := range t.Steps {
			t.Steps[i].Target = uint8(target)
		}
		w.id++
		if err := w.fn(t); err != nil {
			return err
		}
	}
	return nil
}

// push returns the step that puts a blob in place.
func (p *Plan) push(repo string, ref store.Symbol) (Step, error) {
	s := Step{Op: OpPush, Method: store.PUT, Kind: kindBlob, Repo: repo, Ask: true}
	return s, p.layer(&s, ref)
}

func (w *warmUp) l0() error {
	repo := w.p.names.prefix + l0Repo
	last := store.None
	for _, k := range w.p.sortedPairs() {
		ref := w.p.content(k.ref())
		if ref == last {
			continue
		}
		last = ref
		s, err := w.p.push(repo, ref)
		if err == nil {
			err = w.emit(s.Key, []Step{s})
		}
		if err != nil {
			return err
		}
	}
	sent := map[pair]bool{}
	for _, k := range sortedKeys(w.p.places) {
		l := w.p.places[k]
		if !l.warm || sent[l.content] {
			continue
		}
		sent[l.content] = true
		m := w.p.manifests[l.content]
		s := Step{Op: OpPush, Method: store.PUT, Kind: kindBlob, Repo: repo, Ask: true, Key: w.p.manifestKey(l.content, 0), Size: m.size, Digest: m.digest}
		s.Ref = digestName(s.Digest)
		if err := w.emit(s.Key, []Step{s}); err != nil {
			return err
		}
	}
	return nil
}

// blobs sends each blob once and mounts it in the other repositories.
func (w *warmUp) blobs() error {
	var steps []Step
	last := store.None
	flush := func() error {
		if len(steps) == 0 {
			return nil
		}
		err := w.emit(steps[0].Key, steps)
		steps = steps[:0]
		return err
	}
	for _, k := range w.p.sortedPairs() {
		ref := w.p.content(k.ref())
		if ref != last || len(steps) == maxSteps {
			if err := flush(); err != nil {
				return err
			}
			last = ref
		}
		s, err := w.p.push(w.p.names.repo(k.repo()), ref)
		if err != nil {
			return err
		}
		if len(steps) > 0 {
			s.Stage, s.MountFrom = 1, steps[0].Repo
		}
		steps = append(steps, s)
	}
	return flush()
}

// manifests sends the configurations of manifests that have none among their layers, and
// the manifests that are read before the trace puts them.
func (w *warmUp) manifests() error {
	for _, k := range sortedKeys(w.p.places) {
		l := w.p.places[k]
		m := w.p.manifests[l.content]
		repo := w.p.names.repo(k.repo())
		var steps []Step
		if w.p.needsConfig(k, l) {
			config, err := w.p.image(l.content, m)
			if err != nil {
				return err
			}
			steps = append(steps, configStep(repo, config))
		}
		if l.warm {
			s := Step{Stage: 1, Op: OpPutManifest, Method: store.PUT, Kind: kindManifest, Repo: repo, Ref: w.p.names.tag(k.ref())}
			if err := w.p.putManifest(&s, l.content, m, 0); err != nil {
				return err
			}
			steps = append(steps, s)
		}
		if len(steps) == 0 {
			continue
		}
		if err := w.emit(content.Key(repo), steps); err != nil {
			return err
		}
	}
	return nil
}
