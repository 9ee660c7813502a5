package plan

import (
	"cmp"
	"context"
	"crypto/sha256"
	"slices"
	"time"

	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/store"
)

const (
	kindBlob     = trace.Blob
	kindManifest = trace.Manifest
)

// maxStages bounds the stages of a push.
const maxStages = 250

// configStep pushes the configuration of a manifest.
func configStep(repo string, config []byte) Step {
	sum := sha256.Sum256(config)
	return Step{Op: OpPush, Method: store.PUT, Kind: kindBlob, Repo: repo, Ask: true,
		Ref: digestName(sum), Digest: sum, Size: int64(len(config)), Body: config}
}

// session is a session that may continue.
type session struct {
	task *Task
	kind Session
	// begin and last are recorded times in microseconds.
	begin, last int64
	closed      bool
	// manifests is the stage after which layers come: after the HEAD and GET of a pull's
	// manifest, and after each manifest of a push.
	manifests uint8
	// checks reports that a push asks for its blobs before it pushes the manifest.
	checks bool
	target uint8
	// keepGaps is Options.KeepGaps.
	keepGaps bool
	// asks are HEADs that found nothing. Each upload sends its own HEAD and removes one
	// of these. The rest is sent as recorded.
	asks []Step
}

// sessioner groups requests into sessions. It hands sessions out in the order in which
// they began. A session that has ended waits for the sessions that began before it, for
// maxSession at most.
type sessioner struct {
	p       *Plan
	out     *numbered
	open    map[pair]*session // by client and repository
	queue   []*session
	clients map[store.Symbol]uint64
	gap     int64
	began   int64 // how many sessions have begun; it chooses a target
}

func (p *Plan) sessions(ctx context.Context, out *numbered) error {
	s := &sessioner{p: p, out: out, open: map[pair]*session{}, clients: map[store.Symbol]uint64{}, gap: p.o.SessionGap.Microseconds()}
	err := p.scan(ctx, s.request)
	if err != nil {
		return err
	}
	for _, q := range s.queue {
		q.closed = true
	}
	return s.drain(0)
}

// request adds a request to its session.
func (s *sessioner) request(b *store.Batch, i int) error {
	if err := s.drain(b.Time[i]); err != nil {
		return err
	}
	key := pairOf(b.Client[i], b.Repo[i])
	switch b.Kind[i] {
	case trace.Manifest:
		if b.Method[i] == store.PUT {
			return s.put(key, b, i)
		}
		if b.Method[i] != store.DELETE {
			return s.manifest(key, b, i)
		}
	case trace.Blob:
		if b.Method[i] == store.GET {
			return s.layer(key, b, i)
		}
		if b.Method[i] == store.HEAD {
			return s.ask(key, b, i)
		}
	case trace.Upload:
		return s.upload(key, b, i)
	}
	step, err := s.p.step(b, i, s.began)
	if err == nil {
		s.begin(0, Single, b, i).add(step, b.Time[i])
	}
	return err
}

// current returns the open session of a kind, if it has not ended by now.
func (s *sessioner) current(key pair, kind Session, now int64) *session {
	q := s.open[key]
	if q == nil || q.closed || q.kind != kind || now-q.last > s.gap || len(q.task.Steps) >= maxSteps {
		return nil
	}
	return q
}

// begin begins a session. A session of kind Single ends with its first request.
func (s *sessioner) begin(key pair, kind Session, b *store.Batch, i int) *session {
	q := &session{kind: kind, begin: b.Time[i], last: b.Time[i], target: s.p.target(b, i, s.began), keepGaps: s.p.o.KeepGaps}
	q.task = &Task{Client: s.p.client(s.clients, b.Client[i]), Session: kind, Parallel: uint8(s.p.o.LayersAtOnce)}
	s.began++
	if kind == Single {
		q.closed = true
	} else {
		if was := s.open[key]; was != nil {
			was.closed = true
		}
		s.open[key] = q
	}
	s.queue = append(s.queue, q)
	return q
}

func (q *session) add(step Step, now int64) {
	step.Target = q.target // a client talks to one registry during a pull
	if q.kind == Pull && q.keepGaps {
		step.After = min(time.Duration(now-q.begin)*time.Microsecond, maxSession)
	}
	q.task.Steps = append(q.task.Steps, step)
	q.last = now
}

// manifest begins a pull, or adds the GET after the HEAD of a pull.
func (s *sessioner) manifest(key pair, b *store.Batch, i int) error {
	step, err := s.p.step(b, i, s.began)
	if err != nil {
		return err
	}
	if push := s.current(key, Push, b.Time[i]); push != nil && b.Method[i] == store.HEAD {
		step.Stage = push.manifests // a client that pushes asks what the tag named before
		push.add(step, b.Time[i])
		return nil
	}
	q := s.current(key, Pull, b.Time[i])
	asked := q != nil && len(q.task.Steps) == int(q.manifests) && b.Method[i] == store.GET &&
		q.task.Steps[len(q.task.Steps)-1].Method == store.HEAD
	if !asked {
		q = s.begin(key, Pull, b, i)
	}
	step.Stage = q.manifests
	q.manifests++
	q.add(step, b.Time[i])
	return nil
}

// layer adds a layer to its client's pull, or makes a session for the layer alone.
func (s *sessioner) layer(key pair, b *store.Batch, i int) error {
	step, err := s.p.step(b, i, s.began)
	if err != nil {
		return err
	}
	q := s.current(key, Pull, b.Time[i])
	if q == nil {
		q = s.begin(0, Single, b, i)
	}
	step.Stage = q.manifests
	q.add(step, b.Time[i])
	return nil
}

// pushing returns the open push of a client, or begins one.
func (s *sessioner) pushing(key pair, b *store.Batch, i int) *session {
	q := s.current(key, Push, b.Time[i])
	if q == nil {
		q = s.begin(key, Push, b, i)
	}
	q.last = b.Time[i]
	return q
}

// ask handles a HEAD of a blob. A push begins with it.
func (s *sessioner) ask(key pair, b *store.Batch, i int) error {
	step, err := s.p.step(b, i, s.began)
	if err != nil {
		return err
	}
	q := s.pushing(key, b, i)
	if b.Status[i] == 404 && len(q.asks) < maxSteps {
		step.Target = q.target
		q.asks = append(q.asks, step)
		return nil
	}
	step.Stage = q.manifests
	if slices.ContainsFunc(q.task.Steps, func(s Step) bool { return s.Op == OpPush && s.Ref == step.Ref && s.Repo == step.Repo }) {
		step.Stage, q.checks = q.manifests+1, true // it is there once it was pushed
	}
	q.add(step, b.Time[i])
	return nil
}

// upload handles the PUT that ends an upload. What came before is a part of it.
func (s *sessioner) upload(key pair, b *store.Batch, i int) error {
	q := s.pushing(key, b, i)
	ref, whole := b.Ref[i], b.Method[i] == store.POST && b.Status[i] == 201
	if whole {
		ref = b.Digest[i]
	} else if b.Method[i] != store.PUT {
		return nil
	}
	if ref == store.None {
		return nil
	}
	step, err := s.p.push(s.p.names.repo(b.Repo[i]), ref)
	if err != nil {
		return err
	}
	if whole && b.Size[i] == 0 {
		step.MountFrom = s.p.names.repo(s.p.blob(ref).home)
	}
	if len(q.asks) > 0 {
		q.asks = q.asks[1:]
	}
	step.Stage = q.manifests
	q.add(step, b.Time[i])
	return nil
}

// put handles the manifest that ends a push.
func (s *sessioner) put(key pair, b *store.Batch, i int) error {
	step, err := s.p.step(b, i, s.began)
	if err != nil {
		return err
	}
	q := s.pushing(key, b, i)
	step.Stage = q.manifests + 1
	if q.checks {
		step.Stage++
	}
	q.add(step, b.Time[i])
	// A manifest that is put by its digest may be part of an index, which follows.
	if s.p.names.tag(b.Ref[i]) == "" && q.manifests < maxStages {
		q.manifests, q.checks = step.Stage+1, false
		return nil
	}
	q.closed = true
	delete(s.open, key)
	return nil
}

// drain passes on the sessions that have ended, up to the first that may continue.
func (s *sessioner) drain(now int64) error {
	n := 0
	for ; n < len(s.queue); n++ {
		q := s.queue[n]
		if !q.closed && now-q.last <= s.gap && now-q.begin <= maxSession.Microseconds() {
			break
		}
		q.closed = true
		q.task.Steps = append(q.asks, q.task.Steps...)
		slices.SortStableFunc(q.task.Steps, func(a, b Step) int { return cmp.Compare(a.Stage, b.Stage) })
		if len(q.task.Steps) > 0 { // none: an upload that was begun and never ended
			if err := s.out.emit(q.begin, q.task); err != nil {
				return err
			}
		}
		s.queue[n] = nil
	}
	s.queue = s.queue[n:]
	if n > 0 && s.out.id%4096 < int64(n) {
		for k, q := range s.open {
			if q.closed {
				delete(s.open, k)
			}
		}
	}
	return nil
}
