package catalog_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/catalogtest"
	"example.org/slipway/registry/catalog/engine"
	"example.org/slipway/registry/catalog/repair"
)

// testClock is a clock that tests set and several catalogues share.
type testClock struct {
	mu  sync.Mutex
	now time.Time
}

func newTestClock() *testClock { return &testClock{now: time.UnixMilli(1_700_000_000_000)} }

func (c *testClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *testClock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// replicas returns the catalogues of two processes if the database allows that, and otherwise the
// same catalogue twice.
func replicas(t *testing.T, base *catalogtest.Bed, o *catalog.Options) [2]*catalog.Catalog {
	t.Helper()
	a := open(t, base, o)
	if base.DSN == "" {
		return [2]*catalog.Catalog{a, a}
	}
	return [2]*catalog.Catalog{a, open(t, base, o)}
}

func TestLease(t *testing.T) { servers.OnBoth(t, testLease) }

func testLease(t *testing.T, base *catalogtest.Bed) {
	clock := newTestClock()
	r := replicas(t, base, &catalog.Options{Clock: clock.Now})
	take := func(i int, owner string, want bool) {
		t.Helper()
		if ok, err := r[i].DB.Lease(t.Context(), "job", owner, time.Minute); err != nil || ok != want {
			t.Errorf("lease for %s: %t, %v, want %t", owner, ok, err, want)
		}
	}
	take(0, "a", true)
	take(1, "b", false)
	clock.add(50 * time.Second)
	take(0, "a", true) // renewed
	clock.add(50 * time.Second)
	take(1, "b", false)
	clock.add(10 * time.Second)
	take(1, "b", true)
	take(0, "a", false)
	if err := r[0].DB.Unlease(t.Context(), "job", "a"); err != nil {
		t.Error(err)
	}
	take(0, "a", false) // it was not a's to end
	if err := r[1].DB.Unlease(t.Context(), "job", "b"); err != nil {
		t.Error(err)
	}
	take(0, "a", true)
}

func TestClaims(t *testing.T) { servers.OnBoth(t, testClaims) }

func testClaims(t *testing.T, base *catalogtest.Bed) {
	clock := newTestClock()
	r := replicas(t, base, &catalog.Options{Clock: clock.Now})
	ctx := t.Context()
	until := func(d time.Duration) time.Time { return clock.Now().Add(d) }
	check := func(what string, err, want error) {
		t.Helper()
		if !errors.Is(err, want) || (want == nil && err != nil) {
			t.Errorf("%s: got %v, want %v", what, err, want)
		}
	}
	check("new, claimed", r[0].Uploads.Save(ctx, catalog.Upload{ID: "u", Repo: "r", Owner: "a", Until: until(time.Minute)}), nil)
	_, err := r[1].Uploads.Claim(ctx, "r", "u", "b", time.Minute)
	check("claimed by another", err, catalog.ErrBusy)
	check("saved by another", r[1].Uploads.Save(ctx, catalog.Upload{ID: "u", Repo: "r", Owner: "b"}), catalog.ErrBusy)
	check("saved by nobody", r[1].Uploads.Save(ctx, catalog.Upload{ID: "u", Repo: "r"}), catalog.ErrBusy)
	check("kept", r[0].Uploads.Keep(ctx, "u", "a", 2*time.Minute), nil)
	check("kept by another", r[1].Uploads.Keep(ctx, "u", "b", time.Minute), catalog.ErrBusy)
	clock.add(90 * time.Second)
	_, err = r[1].Uploads.Claim(ctx, "r", "u", "b", time.Minute)
	check("claimed while kept", err, catalog.ErrBusy)
	check("released", r[0].Uploads.Save(ctx, catalog.Upload{ID: "u", Repo: "r", Owner: "a", Size: 5}), nil)
	u, err := r[1].Uploads.Claim(ctx, "r", "u", "b", time.Minute)
	if check("claimed when released", err, nil); u.Size != 5 || u.Owner != "b" || !u.Until.Equal(until(time.Minute)) {
		t.Errorf("claimed: %+v", u)
	}
	check("saved late", r[0].Uploads.Save(ctx, catalog.Upload{ID: "u", Repo: "r", Owner: "a", Size: 4}), catalog.ErrBusy)
	clock.add(2 * time.Minute)
	check("saved after the claim, with nobody in between", r[1].Uploads.Save(ctx, catalog.Upload{ID: "u", Repo: "r", Owner: "b", Size: 6}), nil)
	_, err = r[0].Uploads.Claim(ctx, "x", "u", "a", time.Minute)
	check("in another repository", err, catalog.ErrNotFound)
	_, err = r[0].Uploads.Claim(ctx, "r", "none", "a", time.Minute)
	check("none", err, catalog.ErrNotFound)
	if r[0].DB.Shared() {
		if err := r[0].Uploads.Save(ctx, catalog.Upload{ID: "i", Repo: "r", Intent: oci.SHA256(nil)}); err == nil {
			t.Error("an intent without a claim was recorded")
		}
	}
}

func TestDeleting(t *testing.T) { servers.OnBoth(t, testDeleting) }

// testDeleting checks that a push and a deletion of the same content exclude each other.
func testDeleting(t *testing.T, base *catalogtest.Bed) {
	clock := newTestClock()
	r := replicas(t, base, &catalog.Options{Clock: clock.Now})
	ctx := t.Context()
	_, d := contentOf(1)
	blob := catalog.Blob{Digest: d, Size: 1 << 20}
	intend := func(id string) error {
		return r[0].Uploads.Save(ctx, catalog.Upload{ID: id, Repo: "r", Owner: "a", Until: clock.Now().Add(time.Minute), Intent: d})
	}
	begin := func(i int, owner string, want bool) {
		t.Helper()
		granted, err := r[i].Garbage.BeginDeleting(ctx, owner, 30*time.Second, d)
		if err != nil || (len(granted) > 0) != want {
			t.Errorf("deletion by %s: %v, %v, want %t", owner, granted, err, want)
		}
	}
	check := func(what string, err, want error) {
		t.Helper()
		if !errors.Is(err, want) || (want == nil && err != nil) {
			t.Errorf("%s: got %v, want %v", what, err, want)
		}
	}
	check("intent", intend("u1"), nil)
	begin(1, "b", false) // somebody is about to publish it
	check("record", putBlob(ctx, r[0], "r", blob, "u1"), nil)
	begin(1, "b", false) // it is here

	check("intent", intend("u2"), nil)
	clock.add(2 * time.Minute) // its owner has stalled
	list, err := r[1].Uploads.ExpiredIntents(ctx, 5)
	if err != nil || len(list) != 1 || list[0].ID != "u2" || list[0].Intent != d {
		t.Errorf("expired: %+v, %v", list, err)
	}
	check("taken out", r[1].DeleteBlob(ctx, "r", d), nil)
	clock.add(2 * time.Hour)
	if out, _, err := r[1].Garbage.Collect(ctx, catalog.CollectOptions{Before: clock.Now()}); err != nil || len(out.Objects) != 1 {
		t.Errorf("collected: %+v, %v", out, err)
	}
	begin(1, "b", true)
	begin(0, "c", false) // b has it
	check("late record", putBlob(ctx, r[0], "r", blob, "u2"), catalog.ErrDeleting)
	check("new intent", intend("u3"), catalog.ErrDeleting)
	check("forget by another", r[0].Garbage.Forget(ctx, d), nil)
	if base.DSN != "" { // else both are the same
		if deleting, err := r[0].Garbage.IsDeleting(ctx, d); err != nil || !deleting {
			t.Errorf("another process has ended the deletion: %v", err)
		}
		check("forget", r[1].Garbage.Forget(ctx, d), nil)
	}
	check("late record, after the deletion", putBlob(ctx, r[0], "r", blob, "u2"), catalog.ErrBusy)
	check("late intent of the same upload", intend("u2"), catalog.ErrBusy)
	if u, err := r[1].Uploads.Claim(ctx, "r", "u2", "b", time.Minute); err != nil || u.Intent != "" {
		t.Errorf("the upload that was cut off: %+v, %v", u, err)
	}
	check("new intent", intend("u3"), nil)
	check("record", putBlob(ctx, r[0], "r", blob, "u3"), nil)

	// The rest concerns an object that no row names, and a deletion that nobody finishes.
	_, d = contentOf(2)
	begin(0, "a", true)
	clock.add(time.Minute)
	left, err := r[1].Garbage.Deleting(ctx, 5)
	if err != nil || len(left) != 1 || left[0].Digest != d {
		t.Errorf("left over: %v, %v", left, err)
	}
	begin(1, "b", true)
	check("forget, too late", r[0].Garbage.Forget(ctx, d), nil)
	if base.DSN != "" {
		if deleting, err := r[0].Garbage.IsDeleting(ctx, d); err != nil || !deleting {
			t.Errorf("who was too late has ended the deletion of another: %v", err)
		}
	}
	check("stop", r[1].Garbage.StopDeleting(ctx, "b", d), nil)
	check("intent once it is stopped", intend("u4"), nil)
}

// TestDeletingModel runs random schedules of pushes and deletions of one content on two replicas,
// with pauses in which claims and deadlines expire. A row must never say that the content is here
// while its object is missing.
func TestDeletingModel(t *testing.T) { servers.OnBoth(t, testDeletingModel) }

func testDeletingModel(t *testing.T, base *catalogtest.Bed) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	clock := newTestClock()
	r := replicas(t, base, &catalog.Options{Clock: clock.Now, Grace: time.Millisecond})
	seeds := uint64(120)
	if base.DSN != "" { // each step is a commit
		seeds = 12
	}
	for seed := range seeds {
		m := &deletingModel{t: t, r: r, clock: clock, rand: rand.New(rand.NewPCG(seed, 7)), digest: oci.SHA256(fmt.Append(nil, seed))}
		for range 80 {
			m.step()
			m.check(seed)
			if t.Failed() {
				t.Fatalf("seed %d: %s", seed, strings.Join(m.log, "; "))
			}
		}
	}
}

// deletingModel is the state of one schedule. Each actor is between two of its steps.
type deletingModel struct {
	t      *testing.T
	r      [2]*catalog.Catalog
	clock  *testClock
	rand   *rand.Rand
	digest oci.Digest
	object bool // is in the store
	n      int
	pushes [2]struct {
		id   string
		made bool // its object is in the store, as far as it knows
	}
	deletes [2]struct {
		granted bool
		by      time.Time
		done    bool
	}
	log []string
}

const modelDeadline = 30 * time.Second

func (m *deletingModel) step() {
	i := m.rand.IntN(2)
	ctx := m.t.Context()
	owner := fmt.Sprint("replica", i)
	say := func(what string, err error) {
		m.log = append(m.log, fmt.Sprintf("%s %s: %v", owner, what, err))
		if err != nil && !errors.Is(err, catalog.ErrBusy) && !errors.Is(err, catalog.ErrDeleting) && !errors.Is(err, catalog.ErrNotFound) {
			m.t.Errorf("%s: %v", what, err)
		}
	}
	p, d := &m.pushes[i], &m.deletes[i]
	switch m.rand.IntN(9) {
	case 0, 1, 2: // the next step of a push
		switch {
		case p.id == "":
			m.n++
			id := fmt.Sprint(m.digest[7:15], m.n)
			err := m.r[i].Uploads.Save(ctx, catalog.Upload{ID: id, Repo: "r", Owner: owner, Until: m.clock.Now().Add(time.Minute), Intent: m.digest})
			if err == nil {
				p.id = id
			}
			say("intends", err)
		case !p.made:
			// A replica writes to the store only within its claim.
			if u, err := m.r[i].Uploads.Get(ctx, "r", p.id); err != nil || u.Owner != owner || !u.Until.After(m.clock.Now()) {
				p.id = ""
				say("gives up", err)
				return
			}
			m.object, p.made = true, true
			say("publishes", nil)
		default:
			err := putBlob(ctx, m.r[i], "r", catalog.Blob{Digest: m.digest, Size: 1 << 20}, p.id)
			say("records", err)
			p.id, p.made = "", false
		}
	case 3, 4, 5: // the next step of a deletion
		if m.r[0] == m.r[1] && i != 0 {
			return // one process deletes one thing at a time
		}
		switch {
		case !d.granted:
			by := m.clock.Now().Add(modelDeadline)
			granted, err := m.r[i].Garbage.BeginDeleting(ctx, owner, modelDeadline, m.digest)
			d.granted, d.by = len(granted) > 0, by
			say(fmt.Sprint("may delete ", d.granted), err)
		case !d.done:
			if d.done = true; m.clock.Now().Before(d.by) {
				m.object = false
				say("deletes", nil)
			}
		default:
			say("forgets", m.r[i].Garbage.Forget(ctx, m.digest))
			d.granted, d.done = false, false
		}
	case 6: // the collector removes the content
		say("unlinks", m.r[i].DeleteBlob(ctx, "r", m.digest))
		m.clock.add(time.Second)
		_, _, err := m.r[i].Garbage.Collect(ctx, catalog.CollectOptions{Before: m.clock.Now()})
		say("collects", err)
	default:
		d := time.Duration(m.rand.IntN(100)) * time.Second
		m.clock.add(d)
		m.log = append(m.log, fmt.Sprint("pause ", d))
	}
}

func (m *deletingModel) check(seed uint64) {
	p, err := repair.New(m.r[0].DB).Presence(m.t.Context(), []oci.Digest{m.digest})
	if err != nil {
		m.t.Fatal(err)
	}
	if p[m.digest] == repair.Object && !m.object {
		m.t.Errorf("seed %d: the row says that the object is there", seed)
	}
}

// TestConcurrentWriters has two processes change the same things. Every change counts exactly once.
func TestConcurrentWriters(t *testing.T) { servers.OnBoth(t, testConcurrentWriters) }

func testConcurrentWriters(t *testing.T, base *catalogtest.Bed) {
	r := replicas(t, base, nil)
	const writers, rounds = 8, 12
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			c := r[w%2]
			for i := range rounds {
				b, d := contentOf(i)
				if err := putBlob(t.Context(), c, "shared", catalog.Blob{Digest: d, Size: int64(len(b)), Content: b}, ""); err != nil {
					t.Errorf("put: %v", err)
				}
				m := manifestOf(fmt.Sprint("m", i), i, i+1, "latest", fmt.Sprint("w", w, "-", i))
				if _, err := c.PutManifest(t.Context(), "shared", m); err != nil {
					t.Errorf("manifest: %v", err)
				}
				if err := c.DB.Write(t.Context(), count); err != nil {
					t.Errorf("count: %v", err)
				}
			}
		})
	}
	wg.Wait()
	n, err := r[1].Counts(t.Context())
	if err != nil || n.Repositories != 1 || n.Blobs != 2*rounds || n.Manifests != rounds || n.Tags != 1+writers*rounds || n.Links != rounds {
		t.Errorf("counts %+v, %v", n, err)
	}
	if got := counted(t, r[0]); got != writers*rounds {
		t.Errorf("counted to %d, want %d", got, writers*rounds)
	}
	if list, err := repair.New(r[0].DB).Dangling(t.Context(), nil, 9); err != nil || len(list) > 0 {
		t.Errorf("dangling: %v, %v", list, err)
	}
	if list, err := repair.New(r[0].DB).Leaks(t.Context(), 0, 9); err != nil || len(list) > 0 {
		t.Errorf("leaks: %v, %v", list, err)
	}
}

// count increments a number in the catalogue by reading and writing it.
func count(t *engine.Tx) error {
	var n int
	err := t.Row(`SELECT CAST(value AS INTEGER) FROM settings WHERE name = 'count'`, nil, &n)
	if err != nil && !errors.Is(err, catalog.ErrNotFound) {
		return err
	}
	_, err = t.Exec(`INSERT INTO settings (name, value) VALUES ('count', ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value`, fmt.Sprint(n+1))
	return err
}

func counted(t *testing.T, c *catalog.Catalog) (n int) {
	t.Helper()
	if err := c.DB.Row(t.Context(), `SELECT CAST(value AS INTEGER) FROM settings WHERE name = 'count'`, nil, &n); err != nil {
		t.Fatal(err)
	}
	return n
}
