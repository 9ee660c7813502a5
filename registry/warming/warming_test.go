package warming_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/oci/warm"
	"example.org/slipway/registry/catalog/catalogtest"
	"example.org/slipway/registry/catalog/engine"
	"example.org/slipway/registry/warming"
)

var servers catalogtest.Servers

func TestMain(m *testing.M) { servers.Main(m) }

// bed is a database with a clock.
type bed struct {
	t    *testing.T
	base *catalogtest.Bed
	now  atomic.Int64
}

func newBed(t *testing.T, base *catalogtest.Bed) *bed {
	b := &bed{t: t, base: base}
	b.now.Store(time.Now().UnixNano())
	return b
}

func (b *bed) clock() time.Time        { return time.Unix(0, b.now.Load()) }
func (b *bed) advance(d time.Duration) { b.now.Add(int64(d)) }

// open opens the orders as a process would. end does what the end of the process does.
func (b *bed) open(o warming.Options) (s *warming.Service, end func()) {
	b.t.Helper()
	var db *engine.DB
	var err error
	if b.base.DSN != "" {
		db, err = engine.OpenPostgres(b.t.Context(), b.base.DSN, nil)
	} else {
		db, err = engine.Open(b.t.Context(), b.base.Path, nil)
	}
	if err != nil {
		b.t.Fatal(err)
	}
	if o.Resolve == nil {
		o.Resolve = resolve
	}
	if o.Ready == nil {
		o.Ready = func(context.Context, string, oci.Digest, func(warm.Progress)) error { return nil }
	}
	o.Clock, o.Tick = b.clock, 10*time.Millisecond
	s = warming.New(db, o)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Run(ctx) }()
	end = sync.OnceFunc(func() {
		cancel()
		<-done
		if err := db.Close(); err != nil {
			b.t.Error(err)
		}
	})
	b.t.Cleanup(end)
	return s, end
}

func resolve(_ context.Context, repo, ref string) (oci.Digest, error) {
	if ref == "unknown" {
		return "", oci.Errorf(oci.CodeManifestUnknown, "%s has no %s", repo, ref)
	}
	return oci.SHA256([]byte(repo + ref)), nil
}

func everything(string) bool { return true }

func nodes(s string) *string { return &s }

// poll asks as a node, which has to succeed.
func (b *bed) poll(s *warming.Service, node, zone string, tasks map[string]warm.Progress) warm.Answer {
	b.t.Helper()
	a, err := s.Poll(b.t.Context(), "client", everything, &warm.Poll{Node: node, Labels: map[string]string{"zone": zone}, Tasks: tasks})
	if err != nil {
		b.t.Fatal(err)
	}
	return a
}

func (b *bed) get(s *warming.Service, id string) warm.Order {
	b.t.Helper()
	o, err := s.Get(b.t.Context(), id)
	if err != nil {
		b.t.Fatal(err)
	}
	return o
}

// until waits until an order is in a state.
func (b *bed) until(s *warming.Service, id string, what string, is func(o warm.Order) bool) {
	b.t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		o := b.get(s, id)
		if is(o) {
			return
		}
		if time.Now().After(end) {
			b.t.Fatalf("%s: the order is still %+v", what, o)
		}
	}
}

// TestOrder follows an order from its beginning over its progress, seen by two servers of one
// database, and over a restart, until it has expired.
func TestOrder(t *testing.T) {
	servers.OnBoth(t, func(t *testing.T, base *catalogtest.Bed) {
		ctx, b := t.Context(), newBed(t, base)
		s, end := b.open(warming.Options{})
		b.poll(s, "n1", "a", nil) // it is known before the order is made
		b.advance(time.Second)
		o, err := s.Begin(ctx, "alice", "team/app", warm.Request{Reference: "v1", Nodes: nodes("zone=a"), All: true, Seconds: 3600})
		if err != nil {
			t.Fatal(err)
		}
		if o.Digest != oci.SHA256([]byte("team/appv1")) || o.By != "alice" || o.Matching != 1 || o.Counts[warm.Waiting] != 1 || o.State.Ended() {
			t.Errorf("the order is %+v", o)
		}
		b.until(s, o.ID, "the registry's own part", func(o warm.Order) bool { return o.Registry.State == warm.Done })
		if a := b.poll(s, "n2", "b", nil); len(a.Tasks) != 0 {
			t.Errorf("a node of another zone gets %+v", a)
		}
		a := b.poll(s, "n1", "a", nil)
		if len(a.Tasks) != 1 || a.Tasks[0].ID != o.ID || a.Tasks[0].Digest != o.Digest || !a.Tasks[0].All || a.Again != 2 {
			t.Fatalf("the node gets %+v", a)
		}
		other := s
		if base.DSN != "" { // another server that shares the database
			other, _ = b.open(warming.Options{})
			b.advance(2 * time.Second)
		}
		half := warm.Progress{State: warm.Running, Files: 5, FilesTotal: 10, Bytes: 50, BytesTotal: 100}
		b.poll(other, "n1", "a", map[string]warm.Progress{o.ID: half})
		if got := b.get(s, o.ID); got.State != warm.Running || len(got.Progress) != 1 || got.Progress[0].Progress != half || got.Progress[0].Away {
			t.Errorf("half done: %+v", got)
		}
		b.advance(10 * time.Minute)
		if got := b.get(s, o.ID); !got.Progress[0].Away || got.State.Ended() && got.State != warm.Done {
			t.Errorf("the node is away: %+v", got)
		}
		end()
		s, _ = b.open(warming.Options{})
		if got := b.get(s, o.ID); len(got.Progress) != 1 || got.Progress[0].Files != 5 || got.Registry.State != warm.Done {
			t.Errorf("after a restart: %+v", got)
		}
		full := warm.Progress{State: warm.Done, Files: 10, FilesTotal: 10, Bytes: 100, BytesTotal: 100}
		if a := b.poll(s, "n1", "a", map[string]warm.Progress{o.ID: full}); len(a.Tasks) != 1 || a.Again != 5 {
			t.Errorf("a node that is done gets %+v", a)
		}
		b.advance(30 * time.Second) // another server may know further nodes
		if got := b.get(s, o.ID); got.State != warm.Done || got.Counts[warm.Done] != 1 {
			t.Errorf("done: %+v", got)
		}
		b.advance(time.Hour)
		if a := b.poll(s, "n1", "a", nil); len(a.Tasks) != 0 {
			t.Errorf("after the end, a node gets %+v", a)
		}
		if got := b.get(s, o.ID); got.State != warm.Expired {
			t.Errorf("at the end: %+v", got)
		}
		b.advance(48 * time.Hour)
		for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
			if list, err := s.List(ctx); err != nil || time.Now().After(end) {
				t.Fatalf("an old order stays: %+v, %v", list, err)
			} else if len(list) == 0 {
				break
			}
		}
	})
}

// TestRefusals checks what cannot be ordered, and what a node cannot say.
func TestRefusals(t *testing.T) {
	t.Parallel()
	ctx, b := t.Context(), newBed(t, catalogtest.SQLite(t))
	s, _ := b.open(warming.Options{})
	for what, q := range map[string]warm.Request{
		"unknown image": {Reference: "unknown"}, "bad tag": {Reference: "a b"}, "bad digest": {Reference: "sha256:1"}, "selector": {Nodes: nodes("a b")},
		"negative": {Seconds: -1}, "too long": {Seconds: 1 << 40},
	} {
		var e *oci.Error
		if _, err := s.Begin(ctx, "alice", "team/app", q); !errors.As(err, &e) || e.HTTPStatus() < 400 || e.HTTPStatus() >= 500 {
			t.Errorf("%s: %v", what, err)
		}
	}
	if list, err := s.List(ctx); err != nil || len(list) != 0 {
		t.Errorf("a refused order is kept: %+v, %v", list, err)
	}
	for _, id := range []string{"nosuch", "", "../x"} {
		if _, err := s.Get(ctx, id); !oci.HasCode(err, oci.CodeNameUnknown) {
			t.Errorf("order %q: %v", id, err)
		}
		if _, err := s.Cancel(ctx, id); !oci.HasCode(err, oci.CodeNameUnknown) {
			t.Errorf("cancel %q: %v", id, err)
		}
	}
	for _, body := range []string{"", "x", "[]", "{}", `{"node":"n","tasks":{"x":{"state":"eaten"}}}`} {
		if _, err := s.Serve(ctx, warming.Call{Poll: true, Method: http.MethodPost, Client: "c", Sees: everything, Body: []byte(body)}); err == nil {
			t.Errorf("a node may say %q", body)
		}
	}
	b.poll(s, "n1", "a", nil)
	theft := &warm.Poll{Node: "n1"}
	if _, err := s.Poll(ctx, "another client", everything, theft); err == nil {
		t.Error("another client asks as the same node")
	}
	b.advance(time.Hour)
	if _, err := s.Poll(ctx, "another client", everything, theft); err != nil {
		t.Errorf("a name that nobody uses any more is not free: %v", err)
	}
}

// TestManyPushes pushes more tags than can be ordered. The last ones are, nobody fills the room of
// all others, and requests still find some.
func TestManyPushes(t *testing.T) {
	t.Parallel()
	ctx, b := t.Context(), newBed(t, catalogtest.SQLite(t))
	s, _ := b.open(warming.Options{Logger: slog.New(slog.DiscardHandler),
		Rules: []warming.Rule{{Matches: func(string, string) bool { return true }, Request: warm.Request{Nodes: nodes("")}}}})
	hold := func() (by map[string]int, last map[string]string, all int) {
		list, err := s.List(ctx)
		if err != nil {
			t.Fatal(err)
		}
		by, last = map[string]int{}, map[string]string{}
		for _, o := range list {
			if o.State == warm.Cancelled {
				continue
			}
			all++
			if by[o.Repository]++; last[o.Repository] == "" {
				last[o.Repository] = o.Reference
			}
		}
		return by, last, all
	}
	wait := func(what string, is func(by map[string]int, last map[string]string, all int) bool) {
		t.Helper()
		for end := time.Now().Add(2 * time.Minute); ; time.Sleep(5 * time.Millisecond) {
			by, last, all := hold()
			if is(by, last, all) {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%s is not ordered: %v, %v", what, by, last)
			}
		}
	}
	for n := range 110 {
		tag := fmt.Sprint("v", n)
		s.Pushed(ctx, "busy", tag)
		wait(tag, func(by map[string]int, last map[string]string, _ int) bool { return last["busy"] == tag })
		b.advance(time.Millisecond)
	}
	if by, _, _ := hold(); by["busy"] != 100 {
		t.Errorf("of 110 tags of a repository, %d are ordered, not 100", by["busy"])
	}
	for i := range 6 {
		repo := fmt.Sprint("team", i)
		for tag := range 90 {
			s.Pushed(ctx, repo, fmt.Sprint("v", tag))
		}
		wait(repo, func(by map[string]int, _ map[string]string, all int) bool { return by[repo] == 90 || all >= 500 })
	}
	if _, err := s.Begin(ctx, "alice", "mine", warm.Request{}); err != nil {
		t.Errorf("after many pushes nothing can be ordered: %v", err)
	}
	if by, _, all := hold(); all > 501 || by["mine"] != 1 || by["busy"] != 100 {
		t.Errorf("%d orders hold: %v", all, by)
	}
}

// TestRights checks that a node hears of no order for a repository that it may not pull from,
// and that such a node does not hold up the order.
func TestRights(t *testing.T) {
	t.Parallel()
	ctx, b := t.Context(), newBed(t, catalogtest.SQLite(t))
	s, _ := b.open(warming.Options{})
	stranger := func() warm.Answer {
		t.Helper()
		a, err := s.Poll(ctx, "stranger", func(repo string) bool { return repo == "public" }, &warm.Poll{Node: "s", Labels: map[string]string{"zone": "a"}})
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	stranger()
	b.advance(time.Second)
	secret, err := s.Begin(ctx, "", "secret", warm.Request{Nodes: nodes("")})
	if err != nil {
		t.Fatal(err)
	}
	public, err := s.Begin(ctx, "", "public", warm.Request{Nodes: nodes("")})
	if err != nil {
		t.Fatal(err)
	}
	if a := stranger(); len(a.Tasks) != 1 || a.Tasks[0].ID != public.ID {
		t.Errorf("the stranger gets %+v", a)
	}
	b.poll(s, "n1", "a", map[string]warm.Progress{secret.ID: {State: warm.Done}, public.ID: {State: warm.Failed, Reason: "full"}})
	b.until(s, secret.ID, "the order is done without the stranger", func(o warm.Order) bool { return o.State == warm.Done && len(o.Progress) == 1 })
	if got := b.get(s, public.ID); got.State != warm.Running || got.Counts[warm.Failed] != 1 || got.Counts[warm.Waiting] != 1 {
		t.Errorf("one failed, one waits: %+v", got)
	}
}

// TestCancel cancels an order while the registry gets the image ready.
func TestCancel(t *testing.T) {
	t.Parallel()
	ctx, b := t.Context(), newBed(t, catalogtest.SQLite(t))
	began, ended := make(chan struct{}), make(chan struct{})
	s, _ := b.open(warming.Options{Ready: func(ctx context.Context, _ string, _ oci.Digest, progress func(warm.Progress)) error {
		progress(warm.Progress{Bytes: 7, BytesTotal: 9})
		close(began)
		<-ctx.Done()
		close(ended)
		return ctx.Err()
	}})
	o, err := s.Begin(ctx, "", "team/app", warm.Request{Nodes: nodes("")})
	if err != nil {
		t.Fatal(err)
	}
	<-began
	if got := b.get(s, o.ID); got.Registry.Bytes != 7 || got.Registry.State != warm.Running {
		t.Errorf("in the middle: %+v", got.Registry)
	}
	if a := b.poll(s, "n1", "a", nil); len(a.Tasks) != 1 {
		t.Errorf("the node gets %+v", a)
	}
	if got, err := s.Cancel(ctx, o.ID); err != nil || got.State != warm.Cancelled {
		t.Errorf("cancelled: %+v, %v", got, err)
	}
	<-ended
	if a := b.poll(s, "n1", "a", nil); len(a.Tasks) != 0 {
		t.Errorf("after it was cancelled, a node gets %+v", a)
	}
	if _, err := s.Cancel(ctx, o.ID); err != nil {
		t.Errorf("cancelled twice: %v", err)
	}
}

// TestReady checks that what fails for the moment is tried again, and that what the registry
// refuses is not.
func TestReady(t *testing.T) {
	t.Parallel()
	ctx, b := t.Context(), newBed(t, catalogtest.SQLite(t))
	var tries atomic.Int64
	s, _ := b.open(warming.Options{Ready: func(_ context.Context, repo string, _ oci.Digest, _ func(warm.Progress)) error {
		if repo == "refused" {
			return oci.Errorf(oci.CodeDenied, "no")
		}
		if tries.Add(1) < 3 {
			return errors.New("the upstream is away")
		}
		return nil
	}})
	refused, err := s.Begin(ctx, "", "refused", warm.Request{})
	if err != nil {
		t.Fatal(err)
	}
	b.until(s, refused.ID, "a refusal is final", func(o warm.Order) bool { return o.State == warm.Failed && o.Registry.Reason != "" })
	o, err := s.Begin(ctx, "", "team/app", warm.Request{})
	if err != nil {
		t.Fatal(err)
	}
	for i := int64(1); i < 3; i++ {
		b.until(s, o.ID, "a try that fails", func(o warm.Order) bool {
			return tries.Load() == i && o.Registry.Reason != "" && o.State == warm.Running
		})
		b.advance(time.Minute)
	}
	b.until(s, o.ID, "the last try", func(o warm.Order) bool {
		b.advance(time.Second) // the pause may have begun after the minute
		return o.State == warm.Done && o.Registry.Reason == ""
	})
}

// TestPushed checks that a rule orders what is pushed, and that the next push of the tag takes
// the place of the order.
func TestPushed(t *testing.T) {
	t.Parallel()
	ctx, b := t.Context(), newBed(t, catalogtest.SQLite(t))
	var version atomic.Int64
	s, _ := b.open(warming.Options{
		Resolve: func(_ context.Context, repo, ref string) (oci.Digest, error) {
			return oci.SHA256(fmt.Append(nil, repo, ref, version.Load())), nil
		},
		Rules: []warming.Rule{{Matches: func(repo, tag string) bool { return repo == "team/app" && tag == "stable" }, Request: warm.Request{Nodes: nodes("zone=a")}}},
	})
	s.Pushed(ctx, "team/app", "other")
	s.Pushed(ctx, "other", "stable")
	for v := range int64(3) {
		version.Store(v)
		s.Pushed(oci.WithActor(ctx, &oci.Actor{Name: "ci"}), "team/app", "stable")
		want := oci.SHA256(fmt.Append(nil, "team/app", "stable", v))
		for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
			a := b.poll(s, "n1", "a", nil)
			if len(a.Tasks) == 1 && a.Tasks[0].Digest == want {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("push %d: the node gets %+v", v, a)
			}
		}
	}
	list, err := s.List(ctx)
	if err != nil || len(list) != 3 {
		t.Fatalf("there are %+v, %v", list, err)
	}
	holds := 0
	for _, o := range list {
		if o.State != warm.Cancelled {
			holds++
		}
		if o.By != "ci" || o.Cause != "push" {
			t.Errorf("an order is %+v", o)
		}
	}
	if holds != 1 {
		t.Errorf("%d orders hold, want the last one", holds)
	}
}

// TestSerialised checks that an answer has what the reference documents.
func TestSerialised(t *testing.T) {
	t.Parallel()
	b := newBed(t, catalogtest.SQLite(t))
	s, _ := b.open(warming.Options{})
	v, err := s.Serve(t.Context(), warming.Call{Method: http.MethodPost, Repo: "team/app", User: "alice", Body: []byte(`{"reference":"v1","nodes":""}`)})
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(v)
	var o map[string]any
	if err = errors.Join(err, json.Unmarshal(text, &o)); err != nil || o["nodes"] != "" || o["state"] != "waiting" || o["by"] != "alice" {
		t.Errorf("%s: %v", text, err)
	}
	for _, c := range []warming.Call{{Method: http.MethodGet}, {Method: http.MethodGet, ID: fmt.Sprint(o["id"])}, {Method: http.MethodDelete, ID: fmt.Sprint(o["id"])}} {
		if _, err := s.Serve(t.Context(), c); err != nil {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
