package service_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"example.org/slipway/gear"
	"example.org/slipway/gear/profile"
	gearregistry "example.org/slipway/gear/service"
	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/gearfacts"
	"example.org/slipway/registry/objstore/objtest"
	"example.org/slipway/registry/storage"
)

// heldPacks keeps every pack from becoming an object until release is called. It closes
// reached when the first one waits.
func heldPacks(b *bed) (reached <-chan struct{}, release func()) {
	at, gate := make(chan struct{}), make(chan struct{})
	first := true
	b.fault(func(op, key string) error {
		if op == objtest.OpCommit && strings.Contains(key, "gear/packs") {
			if first {
				first = false
				close(at)
			}
			<-gate
		}
		return nil
	})
	return at, func() { b.fault(nil); close(gate) }
}

// arriving starts the conversion of a layer and returns when its index exists and its
// files do not. The files come when release is called.
func arriving(b *bed, seed uint64) (d oci.Digest, x *gear.Index, release func()) {
	reached, release := heldPacks(b)
	data := layer(seed, 10, 600_000)
	d = oci.SHA256(data)
	ctx := context.Background()
	_, err := b.cat.PutBlob(ctx, ours, catalog.Blob{Digest: d, Size: int64(len(data))}, "")
	b.must(err)
	put(b, storage.BlobKey(d), data)
	b.must(b.svc.Queue(ctx, ours, []oci.Digest{d}))
	<-reached
	x, err = b.index(ours, d)
	b.must(err)
	return d, x, release
}

// TestIndexBeforeFiles checks that the index of a layer is served while its files are
// still being stored. A request for one of these files waits for it, and no other request
// does.
func TestIndexBeforeFiles(t *testing.T) {
	b := newBed(t, setup{})
	ctx := context.Background()
	d, x, release := arriving(b, 1)
	early, err := b.svc.Layer(ctx, ours, d)
	b.must(err)
	if _, err := gearfacts.NewLayers(b.cat.DB).Layer(ctx, d); !errors.Is(err, catalog.ErrNotFound) {
		t.Fatalf("the layer is recorded: %v", err)
	}
	if len(x.Files) != 10 || early.Size() == 0 {
		t.Fatalf("an index of %d files, %d bytes", len(x.Files), early.Size())
	}
	if _, err := b.svc.File(ctx, theirs, x.Files[0].Name); err == nil {
		t.Error("a repository without the layer was given a file")
	}
	stopped, stop := context.WithCancel(ctx)
	stop()
	if _, err := b.svc.File(stopped, ours, x.Files[0].Name); err == nil {
		t.Error("a file that is not stored was given out")
	}
	type result struct {
		name gear.Name
		err  error
	}
	results := make(chan result)
	for _, f := range x.Files {
		go func() {
			_, err := b.read(ours, f.Name)
			results <- result{f.Name, err}
		}()
	}
	select {
	case r := <-results:
		t.Errorf("file %x was there before it was stored: %v", r.name, r.err)
	default:
	}
	release()
	for range x.Files {
		if r := <-results; r.err != nil {
			t.Errorf("file %x: %v", r.name, r.err)
		}
	}
	b.quiet()
	stored, err := b.svc.Layer(ctx, ours, d)
	b.must(err)
	if stored.Name() != early.Name() || stored.DiffID() != early.DiffID() {
		t.Errorf("the index became %x, and was %x", stored.Name(), early.Name())
	}
	if n := b.opens(d); n != 2 {
		t.Errorf("the layer was opened %d times, want 2", n)
	}
	b.readable(ours, d)
}

// TestLookProfile checks that LookProfile does not wait for files that are being stored,
// and leaves them out.
func TestLookProfile(t *testing.T) {
	b := newBed(t, setup{})
	small := []byte("small")
	m, stored := b.push(ours, zipped(tarOf(file{"s", small})))
	b.wait(stored)
	ctx := context.Background()
	_, x, release := arriving(b, 4)
	all := []gear.Name{name(small), x.Files[0].Name}
	var p profile.Profile
	p.Add(all)
	b.must(gearfacts.NewLayers(b.cat.DB).ChangeProfile(ctx, m, func([]byte) ([]byte, error) { return p.Encode(), nil }))
	brief, end := context.WithTimeout(ctx, 10*time.Second) // a third of the time that Profile waits
	defer end()
	got, err := b.svc.LookProfile(brief, ours, m)
	release()
	if diff := cmp.Diff(all[:1], got); diff != "" || err != nil {
		t.Errorf("while the files are stored, %v (-want +got):\n%s", err, diff)
	}
	b.quiet()
	got, err = b.svc.LookProfile(ctx, ours, m)
	if diff := cmp.Diff(all, got); diff != "" || err != nil {
		t.Errorf("afterwards, %v (-want +got):\n%s", err, diff)
	}
}

// TestCrashBeforeFiles ends the process after the index is stored and before the files
// are.
func TestCrashBeforeFiles(t *testing.T) {
	b := newBed(t, setup{})
	failing := errors.New("the process is about to end")
	at := make(chan struct{}, 100)
	b.fault(func(op, key string) error {
		if op == objtest.OpCommit && strings.Contains(key, "gear/packs") {
			at <- struct{}{}
			return failing
		}
		return nil
	})
	data := layer(2, 10, 600_000)
	d := oci.SHA256(data)
	ctx := context.Background()
	_, err := b.cat.PutBlob(ctx, ours, catalog.Blob{Digest: d, Size: int64(len(data))}, "")
	b.must(err)
	put(b, storage.BlobKey(d), data)
	b.must(b.svc.Queue(ctx, ours, []oci.Digest{d}))
	<-at
	b.quiet()
	// Without its files the layer has no index either.
	b.pending(ours, d, "may pass")
	b.close()
	b.fault(nil)
	b.open()
	b.must(gearfacts.NewLayers(b.cat.DB).Requeue(ctx, d))
	b.svc.Wake()
	b.eventually("the layer", func() bool { _, err := gearfacts.NewLayers(b.cat.DB).Layer(ctx, d); return err == nil })
	b.readable(ours, d)
}

// TestLargestFirst checks that the largest of the layers that were pushed just now comes
// first, and that no small layer waits for long.
func TestLargestFirst(t *testing.T) {
	now := time.Unix(1000, 0)
	cat, err := catalog.Open(t.Context(), filepath.Join(t.TempDir(), "catalog.db"), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cat.Close() })
	s := gearregistry.New(cat, nil, nil, &gearregistry.Options{Clock: func() time.Time { return now }})
	t.Cleanup(s.Close)
	job := func(name string, size int64, age time.Duration, attempts int) gearfacts.Job {
		return gearfacts.Job{Digest: oci.Digest(name), Size: size, Due: now.Add(-age), Attempts: attempts}
	}
	jobs := []gearfacts.Job{
		job("old and small", 1, gearregistry.EarlyFor, 0), job("failed", 2, time.Second, 1),
		job("small", 3, 2*time.Second, 0), job("large", 9, time.Second, 0), job("as large", 9, time.Second, 0), job("larger", 10, 0, 0),
	}
	s.IndexesFirst(jobs)
	var got []string
	for _, j := range jobs {
		got = append(got, string(j.Digest))
	}
	if diff := cmp.Diff([]string{"old and small", "failed", "larger", "large", "as large", "small"}, got); diff != "" {
		t.Errorf("order of the queue (-want +got):\n%s", diff)
	}
}

// TestTurns draws any queue and any running conversions. The next job must be of a
// repository that has had the fewest turns. The jobs of one repository must come in the
// order that the queue would have without the others.
func TestTurns(t *testing.T) {
	cat := newBed(t, setup{idle: true}).cat
	rapid.Check(t, func(rt *rapid.T) {
		now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
		s := gearregistry.New(cat, nil, nil, &gearregistry.Options{Clock: func() time.Time { return now }})
		n := rapid.IntRange(0, 40).Draw(rt, "jobs")
		var jobs []gearfacts.Job
		active := map[oci.Digest]bool{}
		for i := range n {
			j := gearfacts.Job{Digest: oci.SHA256([]byte{byte(i)}), Repo: rapid.Int64Range(0, 4).Draw(rt, "repo"), Attempts: rapid.IntRange(0, 1).Draw(rt, "attempts"),
				Size: rapid.Int64Range(0, 3).Draw(rt, "size"), Due: now.Add(-time.Duration(rapid.IntRange(0, 2).Draw(rt, "age")) * gearregistry.EarlyFor)}
			jobs = append(jobs, j)
			if rapid.IntRange(0, 5).Draw(rt, "active") == 0 {
				active[j.Digest] = true
				s.Start(j.Digest)
			}
		}
		alone := map[int64][]oci.Digest{} // the queue that each repository would have alone
		for repo := range int64(5) {
			var own []gearfacts.Job
			for _, j := range jobs {
				if j.Repo == repo {
					own = append(own, j)
				}
			}
			s.IndexesFirst(own)
			for _, j := range own {
				if !active[j.Digest] {
					alone[repo] = append(alone[repo], j.Digest)
				}
			}
		}
		had := map[int64]int{}
		for _, j := range jobs {
			if active[j.Digest] {
				had[j.Repo]++
			}
		}
		s.IndexesFirst(jobs)
		for _, j := range jobs {
			if active[j.Digest] {
				continue
			}
			for repo, rest := range alone {
				if len(rest) > 0 && had[repo] < had[j.Repo] {
					rt.Fatalf("repository %d has had %d turns and is given another before %d, which has had %d", j.Repo, had[j.Repo], repo, had[repo])
				}
			}
			if alone[j.Repo][0] != j.Digest {
				rt.Fatalf("a job of repository %d is passed over by another of the same", j.Repo)
			}
			had[j.Repo], alone[j.Repo] = had[j.Repo]+1, alone[j.Repo][1:]
		}
	})
}
