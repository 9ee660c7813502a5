package send

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"example.org/slipway/workload/replay/content"
	"example.org/slipway/workload/replay/plan"
	"example.org/slipway/workload/replay/result"
	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/store"
)

// Options are the options of a Sender. The zero value is usable.
type Options struct {
	// Maker makes the layers. It must be the Maker of the plan.
	Maker content.Maker
	// Timeout bounds each request, 0 means 5 minutes.
	Timeout time.Duration
	// UserAgent defaults to "slipway-replay".
	UserAgent string
	// Clients tells targets which client sent each request: an address made from the
	// task's client, in X-Forwarded-For.
	Clients bool
	// Log gets a few of the errors, at most one in noteEvery. nil discards them.
	Log *slog.Logger
}

// Sender sends tasks. It is safe for concurrent use.
type Sender struct {
	o       Options
	targets []*target
	start   time.Time
	bufs    sync.Pool
	uploads *uploads
	turns   *turns

	mu    sync.Mutex
	noted time.Time
}

type target struct {
	Target
	base      *url.URL
	transport *http.Transport
	auth      *authority
}

// New returns a sender to targets. Times of samples count from start. The caller
// closes it.
func New(targets []Target, start time.Time, o Options) (*Sender, error) {
	if o.Timeout == 0 {
		o.Timeout = 5 * time.Minute
	}
	if o.UserAgent == "" {
		o.UserAgent = "slipway-replay"
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &Sender{o: o, start: start, uploads: newUploads(), turns: newTurns()}
	s.bufs.New = func() any { b := make([]byte, 64<<10); return &b }
	for i := range targets {
		t := &target{Target: targets[i]}
		var err error
		if t.base, err = t.parse(); err != nil {
			return nil, err
		}
		if t.transport, err = t.Target.transport(); err != nil {
			return nil, err
		}
		t.auth = &authority{target: &t.Target, base: t.base, via: t.transport}
		s.targets = append(s.targets, t)
	}
	return s, nil
}

// Close cancels the uploads that were begun and never ended, for some seconds at most,
// and closes the connections.
func (s *Sender) Close() error {
	s.cancelUploads()
	for _, t := range s.targets {
		t.transport.CloseIdleConnections()
	}
	return nil
}

// SetStart sets the time from which times count. It must not be called while a task runs.
func (s *Sender) SetStart(start time.Time) { s.start = start }

// now returns the time in microseconds since the start.
func (s *Sender) now() int64 { return time.Since(s.start).Microseconds() }

// noteEvery is how long no error is logged after one. The first error says what is wrong,
// and the samples say how often.
const noteEvery = 10 * time.Second

// note logs an error, unless one was logged just now. It ignores errors of a run that is
// being ended.
func (s *Sender) note(ctx context.Context, err error) {
	if errors.Is(err, context.Canceled) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.noted) < noteEvery {
		return
	}
	s.noted = time.Now()
	s.o.Log.WarnContext(ctx, "a request failed", "err", err)
}

// Run does a task. intended and wait are as in [result.Sample]. It calls emit with each
// sample, not concurrently; the last sample is marked as such. A task is always done to
// its end: when ctx ends, its requests fail.
func (s *Sender) Run(ctx context.Context, t *plan.Task, intended, wait int64, emit func(result.Sample)) {
	if s.o.Clients {
		ctx = context.WithValue(ctx, clientKey{}, t.Client)
	}
	if w := s.turn(t); w != nil {
		asked := s.now()
		w.await(ctx)
		wait += s.now() - asked // its client would not have sent it any sooner
		defer s.endTurn(t)
	}
	if t.Alone() {
		samples, _ := s.step(ctx, t, 0, intended, wait)
		samples[len(samples)-1].Last = true
		for _, sm := range samples {
			emit(sm)
		}
		return
	}
	begin := s.now()
	var mu sync.Mutex
	total := whole(t)
	total.Intended, total.Sent, total.Wait = intended, begin, wait
	collect := func(samples []result.Sample) {
		mu.Lock()
		defer mu.Unlock()
		for _, sm := range samples {
			total.Bytes += sm.Bytes
			if total.First == 0 {
				total.First = sm.First
			}
			if sm.Outcome != result.OK && total.Outcome == result.OK {
				total.Outcome, total.Status = sm.Outcome, sm.Status
			}
			emit(sm)
		}
	}
	for from := 0; from < len(t.Steps); {
		to := from
		for to < len(t.Steps) && t.Steps[to].Stage == t.Steps[from].Stage {
			to++
		}
		if total.Outcome != result.OK {
			collect(s.skipped(t, from))
			break
		}
		s.stage(ctx, t, from, to, begin, intended, wait, collect)
		from, wait = to, 0
		intended = s.now()
	}
	total.End = s.now()
	if total.First == 0 {
		total.First = total.End
	}
	emit(total)
}

// stage does the steps from one to another, some at once. begin is when the task began.
func (s *Sender) stage(ctx context.Context, t *plan.Task, from, to int, begin, intended, wait int64, collect func([]result.Sample)) {
	n := min(max(1, int(t.Parallel)), to-from)
	if n == 1 && to-from == 1 {
		samples, _ := s.step(ctx, t, from, s.await(ctx, begin, intended, t.Steps[from].After), wait)
		collect(samples)
		return
	}
	next := make(chan int)
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			due, wait := intended, wait // a worker's first step was due when the stage began
			for i := range next {
				samples, _ := s.step(ctx, t, i, s.await(ctx, begin, due, t.Steps[i].After), wait)
				collect(samples)
				due, wait = s.now(), 0
			}
		})
	}
	for i := from; i < to; i++ {
		next <- i
	}
	close(next)
	wg.Wait()
}

// await waits until a step is due, but not beyond the end of ctx. It returns when the
// step was due. That is at due, but not before the duration after has passed since the
// task's beginning.
func (s *Sender) await(ctx context.Context, begin, due int64, after time.Duration) int64 {
	if after == 0 {
		return due
	}
	due = max(due, begin+after.Microseconds())
	if d := time.Duration(due-s.now()) * time.Microsecond; d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
		}
	}
	return due
}

// whole returns the sample of a whole session, without its times.
func whole(t *plan.Task) result.Sample {
	s := result.Sample{Task: t.ID, Step: -1, Last: true, Method: t.Steps[0].Method, Object: result.PullSession, Target: t.Steps[0].Target}
	if t.Session != plan.Pull {
		s.Object = result.PushSession
	}
	return s
}

// unsent returns the sample of a step that is not made.
func unsent(t *plan.Task, i int, outcome result.Outcome) result.Sample {
	st := &t.Steps[i]
	return result.Sample{Task: t.ID, Step: int32(i), Target: st.Target, Method: st.Method, Object: result.Object(st.Kind), Outcome: outcome}
}

// Unsent returns the samples of a task that was not run, or not to its end. done are the
// steps that have their samples already. Times are in microseconds, as in
// [result.Sample].
func Unsent(t *plan.Task, outcome result.Outcome, intended, now, wait int64, done []int32) []result.Sample {
	var out []result.Sample
	for i := range t.Steps {
		if t.Alone() || !slices.Contains(done, int32(i)) { // a single step has no sample yet, except perhaps for the beginning of its upload
			out = append(out, unsent(t, i, outcome))
		}
	}
	if !t.Alone() {
		s := whole(t)
		s.Outcome = outcome
		out = append(out, s)
	}
	for i := range out {
		out[i].Intended, out[i].Sent, out[i].First, out[i].End, out[i].Wait = intended, intended, intended, max(now, intended), wait
		out[i].Last = i == len(out)-1
	}
	return out
}

// skipped returns the samples of steps that are not made because an earlier one failed.
func (s *Sender) skipped(t *plan.Task, from int) []result.Sample {
	var out []result.Sample
	now := s.now()
	for i := from; i < len(t.Steps); i++ {
		sm := unsent(t, i, result.Failed)
		sm.Intended, sm.Sent, sm.First, sm.End = now, now, now, now
		out = append(out, sm)
	}
	return out
}

// step does one step and returns a sample for each of its requests.
func (s *Sender) step(ctx context.Context, t *plan.Task, i int, intended, wait int64) ([]result.Sample, bool) {
	st := &t.Steps[i]
	if int(st.Target) >= len(s.targets) {
		out := s.skipped(t, i)[:1]
		return out, false
	}
	r := &run{s: s, task: t, step: i, Step: st, target: s.targets[st.Target], index: st.Target, due: intended, wait: wait}
	switch st.Op {
	case plan.OpRequest:
		r.request(ctx)
	case plan.OpPutManifest:
		r.putManifest(ctx)
	case plan.OpOpen:
		r.open(ctx)
	case plan.OpPatch:
		r.patch(ctx)
	case plan.OpClose:
		r.close(ctx)
	case plan.OpPush:
		r.push(ctx)
	}
	ok := r.samples[len(r.samples)-1].Outcome == result.OK
	return r.samples, ok
}

// run is a step under way.
type run struct {
	*plan.Step
	s         *Sender
	task      *plan.Task
	step      int
	target    *target
	index     uint8 // of the target
	due, wait int64
	extra     bool
	samples   []result.Sample
}

// do makes one request of the step and notes its sample.
func (r *run) do(ctx context.Context, x *exchange) bool {
	sample := result.Sample{Task: r.task.ID, Step: int32(r.step), Part: uint8(len(r.samples)), Target: r.index,
		Intended: r.due, Wait: r.wait, Sent: r.s.now(), Extra: r.extra}
	r.s.do(ctx, r.target, x, &sample)
	r.samples = append(r.samples, sample)
	r.due, r.wait = r.s.now(), 0
	return x.outcome == result.OK
}

// url returns the URL of a path below /v2/.
func (r *run) url(parts ...string) *url.URL {
	u := *r.target.base
	u.Path += "/v2/" + strings.Join(parts, "/")
	return &u
}

// indexType is the media type of an index.
const indexType = "application/vnd.oci.image.index.v1+json"

// manifestTypes are the media types that are accepted for a manifest.
const manifestTypes = "application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json, " +
	"application/vnd.docker.distribution.manifest.v2+json, application/vnd.docker.distribution.manifest.list.v2+json"

// request sends a request without a body.
func (r *run) request(ctx context.Context) {
	x := &exchange{method: r.Method, object: result.Object(r.Kind), header: http.Header{}, fine: r.fine, scope: scope(r.Repo, r.Method == store.DELETE)}
	switch r.Kind {
	case trace.Ping:
		x.url = r.url()
		if r.Bare {
			x.url.Path = strings.TrimSuffix(x.url.Path, "/")
		}
	case trace.Catalog:
		x.url = r.url("_catalog")
	case trace.Tags:
		x.url = r.url(r.Repo, "tags", "list")
	case trace.Referrers:
		x.url = r.url(r.Repo, "referrers", r.Ref)
	case trace.Manifest:
		x.url = r.url(r.Repo, "manifests", r.Ref)
		x.header.Set("Accept", manifestTypes)
		if r.Method == store.GET {
			x.check = &headerCheck{Hash: sha256.New(), want: r.Digest}
		}
	case trace.Upload: // only a DELETE, of an upload that nobody knows any more
		x.url = r.url(r.Repo, "blobs", "uploads", r.Ref)
	default:
		r.blob(x)
	}
	r.do(ctx, x)
}

// blob prepares a request for a blob.
func (r *run) blob(x *exchange) {
	x.url = r.url(r.Repo, "blobs", r.Ref)
	switch {
	case r.Method == store.HEAD:
		x.check = lengthCheck{strconv.FormatInt(r.Size, 10)}
	case r.Method == store.GET && r.To > r.From && r.From > 0:
		x.header.Set("Range", fmt.Sprintf("bytes=%d-%d", r.From, r.To-1))
		x.check = &rangeCheck{r: r.s.o.Maker.Reader(r.Key, r.From, r.To), buf: make([]byte, 16<<10),
			whole: newDigestCheck(r.Digest, r.Size), part: r.To - r.From}
	case r.Method == store.GET:
		x.check = newDigestCheck(r.Digest, r.Size)
	}
}

// fine reports whether an error is the recorded answer.
func (r *run) fine(status int) bool { return status == int(r.Status) }

func (r *run) putManifest(ctx context.Context) {
	ref := r.Ref
	if ref == "" {
		ref = digestName(r.Digest)
	}
	r.do(ctx, &exchange{method: store.PUT, object: result.Object(trace.Manifest), url: r.url(r.Repo, "manifests", ref),
		header: http.Header{"Content-Type": {r.MediaType}}, scope: scope(r.Repo, true), size: int64(len(r.Body)), body: r.bytes, fine: r.fine})
}

// bytes reads Body.
func (r *run) bytes() io.Reader { return strings.NewReader(string(r.Body)) }

// digestName writes a SHA-256 as the protocol does.
func digestName(d [32]byte) string {
	b := make([]byte, 7+64)
	copy(b, "sha256:")
	hex.Encode(b[7:], d[:])
	return string(b)
}
