package registry_test

import (
	"bytes"
	"context"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"example.org/slipway/catalog"
	"example.org/slipway/objstore"
	"example.org/slipway/objstore/fsstore"
	"example.org/slipway/objstore/memstore"
	"example.org/slipway/objstore/objtest"
	"example.org/slipway/oci"
	"example.org/slipway/registry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// site is a place where registries live one after the other.
type site struct {
	t     *testing.T
	root  string
	clock *fakeClock
	// before and after are hooks of the store; they may be nil.
	before, after atomic.Pointer[func(op, key string) error]
}

func newSite(t *testing.T) *site {
	s := &site{t: t, root: t.TempDir(), clock: newFakeClock()}
	s.clock.now = time.Now() // the store goes by the system's clock
	return s
}

// node is one life of a registry.
type node struct {
	*registry.Registry
	s     *site
	cat   *catalog.Catalog
	store objstore.Store
}

func call(hook *atomic.Pointer[func(op, key string) error], op, key string) error {
	if f := hook.Load(); f != nil {
		return (*f)(op, key)
	}
	return nil
}

func (s *site) start(o registry.Options) *node {
	s.t.Helper()
	disk, err := fsstore.New(filepath.Join(s.root, "objects"), nil)
	if err != nil {
		s.t.Fatal(err)
	}
	n := &node{s: s, store: objtest.Faulty(disk, objtest.Faults{
		Before: func(op, key string) error { return call(&s.before, op, key) },
		After:  func(op, key string) error { return call(&s.after, op, key) },
	})}
	if n.cat, err = catalog.Open(s.t.Context(), filepath.Join(s.root, registry.CatalogFile), &catalog.Options{Clock: s.clock.Now}); err != nil {
		s.t.Fatal(err)
	}
	o.Clock, o.Logger = s.clock.Now, slog.New(slog.DiscardHandler)
	if n.Registry, err = registry.New(s.t.Context(), n.cat, n.store, &o); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(n.kill)
	return n
}

// stop ends a life as it should end.
func (n *node) stop() {
	n.s.t.Helper()
	if err := n.Close(context.Background()); err != nil {
		n.s.t.Errorf("close: %v", err)
	}
	n.kill()
}

var errKilled = errors.New("the process is dead")

// kill ends it without anything that a dead process would not do: the catalogue
// takes no more changes, so that the end of the background work, which the test
// must wait for, leaves no trace.
func (n *node) kill() {
	if err := n.cat.Close(); err != nil {
		n.s.t.Errorf("close the catalogue: %v", err)
	}
	_ = n.Close(context.Background()) // cannot save anything any more
	if err := n.store.Close(); err != nil {
		n.s.t.Errorf("close the store: %v", err)
	}
}

// files lists what is below a directory of the store.
func (s *site) files(dir string) []string {
	s.t.Helper()
	var out []string
	err := filepath.WalkDir(filepath.Join(s.root, "objects", dir), func(path string, e os.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			out = append(out, path)
		}
		return err
	})
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		s.t.Fatal(err)
	}
	return out
}

// wantClean checks that nothing is left of uploads: no bytes, no row, no object
// that the catalogue does not know.
func (n *node) wantClean(objects int) {
	t := n.s.t
	t.Helper()
	if left := n.s.files("_staging"); len(left) > 0 {
		t.Errorf("left in staging: %q", left)
	}
	if got := n.s.files("docker"); len(got) != objects {
		t.Errorf("the store has %d objects, want %d: %q", len(got), objects, got)
	}
	if got := n.s.files("slipway"); len(got) > 0 {
		t.Errorf("left in the store: %q", got)
	}
	counts, err := n.cat.Counts(t.Context())
	if err != nil || counts.Uploads != 0 {
		t.Errorf("the catalogue has %d uploads, %v", counts.Uploads, err)
	}
	rep, err := n.Fsck(t.Context(), registry.FsckOptions{})
	if err != nil || !rep.Clean() {
		t.Errorf("fsck: %v, %+v", err, rep.Problems)
	}
}

func sha512Of(b []byte) oci.Digest {
	sum := sha512.Sum512(b)
	return oci.Digest("sha512:" + hex.EncodeToString(sum[:]))
}

// brokenBody breaks off at its end.
type brokenBody struct{ r io.Reader }

func (b *brokenBody) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// openUpload is an upload of which a part has been sent.
type openUpload struct {
	name string
	id   string
	data []byte
	sent int
	d    oci.Digest
}

// openUploads begins uploads of all kinds: nothing sent, few bytes, many, many in
// two chunks, and ends by sha256 and sha512 that broke off.
func (n *node) openUploads() []openUpload {
	t := n.s.t
	t.Helper()
	var out []openUpload
	for i, c := range []struct {
		name    string
		chunks  []int
		broken  int
		size    int
		sha512d bool
	}{
		{"nothing sent", nil, 0, 50_000, false},
		{"few bytes", []int{100}, 0, 200, false},
		{"few bytes, more to come", []int{100}, 0, 50_000, false},
		{"many bytes", []int{40_000}, 0, 50_000, false},
		{"many bytes in two chunks", []int{40_000, 5000}, 0, 50_000, false},
		{"few bytes, end broken off", []int{100}, 50, 1000, false},
		{"many bytes, end broken off", []int{40_000}, 5000, 50_000, false},
		{"sha512, end broken off", nil, 30_000, 50_000, true},
		{"few bytes of sha512, end broken off", nil, 500, 1000, true},
		{"sha512 behind chunks", []int{40_000}, 0, 50_000, true},
	} {
		u := openUpload{name: c.name, data: content(uint64(i), c.size)}
		u.d = oci.SHA256(u.data)
		if c.sha512d {
			u.d = sha512Of(u.data)
		}
		st, err := n.StartUpload(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		u.id = st.ID
		for _, size := range c.chunks {
			if _, err := n.AppendUpload(t.Context(), "a", u.id, int64(u.sent), int64(size), bytes.NewReader(u.data[u.sent:u.sent+size])); err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			u.sent += size
		}
		if c.broken > 0 {
			body := &brokenBody{bytes.NewReader(u.data[u.sent : u.sent+c.broken])}
			if _, err := n.CommitUpload(t.Context(), "a", u.id, int64(u.sent), int64(c.size-u.sent), body, u.d); err == nil {
				t.Fatalf("%s: got no error", c.name)
			}
			u.sent += c.broken
		}
		out = append(out, u)
	}
	return out
}

// goOn finishes uploads where they stand.
func (n *node) goOn(list []openUpload) {
	t := n.s.t
	t.Helper()
	for _, u := range list {
		st, err := n.UploadStatus(t.Context(), "a", u.id)
		if err != nil || st.Size != int64(u.sent) {
			t.Errorf("%s: stands at %d, %v, want %d", u.name, st.Size, err, u.sent)
			continue
		}
		if _, err := n.CommitUpload(t.Context(), "a", u.id, st.Size, -1, bytes.NewReader(u.data[u.sent:]), u.d); err != nil {
			t.Errorf("%s: %v", u.name, err)
			continue
		}
		if got, err := readBlob(t.Context(), n, "a", u.d); err != nil || !bytes.Equal(got, u.data) {
			t.Errorf("%s: got %d bytes, %v", u.name, len(got), err)
		}
	}
}

func TestUploadsSurviveStop(t *testing.T) {
	s := newSite(t)
	n := s.start(registry.Options{})
	list := n.openUploads()
	n.stop()
	n = s.start(registry.Options{})
	n.stop() // a life that does nothing for them
	n = s.start(registry.Options{})
	n.goOn(list)
	n.wantClean(7)
}

func TestUploadsSurviveKill(t *testing.T) {
	s := newSite(t)
	n := s.start(registry.Options{})
	list := n.openUploads()
	n.kill()
	n = s.start(registry.Options{})
	// What was never acknowledged but for its id may be unknown, but no more.
	if _, err := n.UploadStatus(t.Context(), "a", list[0].id); err != nil {
		if !oci.HasCode(err, oci.CodeBlobUploadUnknown) {
			t.Errorf("%s: %v", list[0].name, err)
		}
		list = list[1:]
	}
	n.goOn(list)
}

// TestOpenUploadIsRecorded: an upload that stays open gets a row, so that it
// survives a kill although nothing was sent. Meanwhile it can be used.
func TestOpenUploadIsRecorded(t *testing.T) {
	s := newSite(t)
	n := s.start(registry.Options{})
	const count = 300
	ids := make([]string, count)
	for i := range ids {
		st, err := n.StartUpload(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		ids[i] = st.ID
	}
	s.clock.Add(time.Second) // they are old enough now
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := w; i < count; i += 4 {
				// Being recorded is no reason to be refused.
				for j := range int64(3) {
					if _, err := n.AppendUpload(t.Context(), "a", ids[i], j, 1, bytes.NewReader([]byte("x"))); err != nil {
						t.Errorf("append to an upload that is perhaps being recorded: %v", err)
					}
					if _, err := n.UploadStatus(t.Context(), "a", ids[i]); err != nil {
						t.Errorf("status of an upload that is perhaps being recorded: %v", err)
					}
				}
			}
		})
	}
	wg.Wait()
	st, err := n.StartUpload(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	s.clock.Add(time.Second)
	poll(t, "the upload is recorded", func() bool {
		_, err := n.cat.Upload(t.Context(), "a", st.ID)
		return err == nil
	})
	n.kill()
	n = s.start(registry.Options{})
	if got, err := n.UploadStatus(t.Context(), "a", st.ID); err != nil || got.Size != 0 {
		t.Errorf("after the kill: %+v, %v", got, err)
	}
	if got, err := n.UploadStatus(t.Context(), "a", ids[7]); err != nil || got.Size != 3 {
		t.Errorf("after the kill: %+v, %v", got, err)
	}
}

// poll waits for a condition.
func poll(t *testing.T, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(20 * time.Second); !cond(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("waited 20 s in vain: %s", what)
		}
	}
}

// TestKillWhilePublishing: the process dies at each step between the last byte
// and the answer. The blob is there whole or not at all, and nothing else is.
func TestKillWhilePublishing(t *testing.T) {
	data := content(1, 50_000)
	for _, c := range []struct {
		name   string
		after  bool
		op     string
		chunks bool // the client sent a part of it before
		sha512 bool // and then asks for another digest
	}{
		{"before the object is there", false, objtest.OpCommit, false, false},
		{"when the object is there", true, objtest.OpCommit, false, false},
		{"before the object is there, chunks", false, objtest.OpCommit, true, false},
		{"when the object is there, chunks", true, objtest.OpCommit, true, false},
		{"when the upload is opened again", false, objtest.OpResume, true, false},
		{"when the upload begins", false, objtest.OpNewUpload, false, false},
		{"before the copy to be checked is there", false, objtest.OpCommit, true, true},
		{"when the copy to be checked is there", true, objtest.OpCommit, true, true},
		{"when the copy is read", true, objtest.OpGet, true, true},
		{"when the copy is removed", false, objtest.OpDelete, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSite(t)
			n := s.start(registry.Options{})
			d, sent := oci.SHA256(data), 0
			if c.sha512 {
				d = sha512Of(data)
			}
			st, err := n.StartUpload(t.Context(), "a")
			if err != nil {
				t.Fatal(err)
			}
			if c.chunks {
				sent = 30_000
				if _, err := n.AppendUpload(t.Context(), "a", st.ID, 0, int64(sent), bytes.NewReader(data[:sent])); err != nil {
					t.Fatal(err)
				}
			}
			var dead atomic.Bool
			die := func(op, _ string) error {
				if op == c.op && !dead.Swap(true) {
					if err := n.cat.Close(); err != nil {
						t.Error(err)
					}
				}
				// The dead do nothing more, but the system closes their files.
				if dead.Load() && op != objtest.OpCancel {
					return errKilled
				}
				return nil
			}
			gone := func(op, _ string) error {
				if dead.Load() && op != objtest.OpCancel {
					return errKilled
				}
				return nil
			}
			if c.after {
				s.after.Store(&die)
				s.before.Store(&gone)
			} else {
				s.before.Store(&die)
			}
			_, err = n.CommitUpload(t.Context(), "a", st.ID, int64(sent), int64(len(data)-sent), bytes.NewReader(data[sent:]), d)
			s.before.Store(nil)
			s.after.Store(nil)
			if !dead.Load() {
				t.Fatal("the kill did not happen")
			}
			acknowledged := err == nil
			n.kill()

			n = s.start(registry.Options{})
			got, err := readBlob(t.Context(), n, "a", d)
			switch {
			case err == nil && !bytes.Equal(got, data):
				t.Errorf("the blob has %d other bytes", len(got))
			case err != nil && (acknowledged || !oci.HasCode(err, oci.CodeBlobUnknown)):
				t.Errorf("acknowledged %v: %v", acknowledged, err)
			}
			objects := 0
			if err == nil {
				objects = 1
			}
			// The upload may be there still, where the client was told it stood.
			if up, err := n.UploadStatus(t.Context(), "a", st.ID); err == nil {
				if up.Size != int64(sent) || sent == 0 {
					t.Errorf("the upload stands at %d, want %d", up.Size, sent)
				}
				if _, err := n.CommitUpload(t.Context(), "a", st.ID, int64(sent), -1, bytes.NewReader(data[sent:]), d); err != nil {
					t.Errorf("go on with the upload: %v", err)
				}
				objects = 1
			}
			n.wantClean(objects)
			if _, err := n.PushBlob(t.Context(), "a", d, int64(len(data)), bytes.NewReader(data)); err != nil {
				t.Errorf("push again: %v", err)
			}
			n.wantClean(1)
		})
	}
}

// TestLostAnswers: the store did what it was asked for, and says that it failed.
// What it holds is taken back, now or at the next start.
func TestLostAnswers(t *testing.T) {
	data := content(1, 50_000)
	d := oci.SHA256(data)
	for _, deleteFails := range []bool{false, true} {
		t.Run(fmt.Sprintf("delete fails %v", deleteFails), func(t *testing.T) {
			s := newSite(t)
			n := s.start(registry.Options{})
			lost := func(op, _ string) error {
				if op == objtest.OpCommit {
					return errors.New("no answer")
				}
				return nil
			}
			refuse := func(op, _ string) error {
				if op == objtest.OpDelete && deleteFails {
					return errors.New("no delete")
				}
				return nil
			}
			s.after.Store(&lost)
			s.before.Store(&refuse)
			st, err := n.StartUpload(t.Context(), "a")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := n.CommitUpload(t.Context(), "a", st.ID, 0, int64(len(data)), bytes.NewReader(data), d); err == nil {
				t.Fatal("got no error")
			}
			s.after.Store(nil)
			s.before.Store(nil)
			if _, err := n.ResolveBlob(t.Context(), "a", d); !oci.HasCode(err, oci.CodeBlobUnknown) {
				t.Errorf("the blob can be seen: %v", err)
			}
			if _, err := n.UploadStatus(t.Context(), "a", st.ID); !oci.HasCode(err, oci.CodeBlobUploadUnknown) {
				t.Errorf("the upload can be seen: %v", err)
			}
			if deleteFails {
				n.kill()
				n = s.start(registry.Options{})
			}
			n.wantClean(0)
		})
	}
}

// TestStoreLosesUpload: the bytes of an upload are gone. It is unknown then, and
// stays so.
func TestStoreLosesUpload(t *testing.T) {
	for _, end := range []bool{false, true} {
		s := newSite(t)
		n := s.start(registry.Options{})
		data := content(1, 50_000)
		st, err := n.StartUpload(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := n.AppendUpload(t.Context(), "a", st.ID, 0, 30_000, bytes.NewReader(data[:30_000])); err != nil {
			t.Fatal(err)
		}
		for _, f := range s.files("_staging") {
			if err := os.Remove(f); err != nil {
				t.Fatal(err)
			}
		}
		if end {
			_, err = n.CommitUpload(t.Context(), "a", st.ID, 30_000, 20_000, bytes.NewReader(data[30_000:]), oci.SHA256(data))
		} else {
			_, err = n.AppendUpload(t.Context(), "a", st.ID, 30_000, 20_000, bytes.NewReader(data[30_000:]))
		}
		if !oci.HasCode(err, oci.CodeBlobUploadUnknown) {
			t.Errorf("continue (end %v): %v", end, err)
		}
		if _, err := n.UploadStatus(t.Context(), "a", st.ID); !oci.HasCode(err, oci.CodeBlobUploadUnknown) {
			t.Errorf("status (end %v): %v", end, err)
		}
		n.wantClean(0)
	}
}

// TestRefusedEndSurvives: an end that is refused because of its offset is no
// reason to lose the upload at the next start.
func TestRefusedEndSurvives(t *testing.T) {
	s := newSite(t)
	n := s.start(registry.Options{})
	data := content(1, 50_000)
	u := openUpload{name: "refused", data: data, sent: 30_000, d: oci.SHA256(data)}
	st, err := n.StartUpload(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	u.id = st.ID
	if _, err := n.AppendUpload(t.Context(), "a", u.id, 0, 30_000, bytes.NewReader(data[:30_000])); err != nil {
		t.Fatal(err)
	}
	if _, err := n.CommitUpload(t.Context(), "a", u.id, 40_000, 10_000, bytes.NewReader(data[40_000:]), u.d); !oci.HasCode(err, oci.CodeRangeInvalid) {
		t.Fatalf("got %v", err)
	}
	n.stop()
	n = s.start(registry.Options{})
	n.goOn([]openUpload{u})
	n.wantClean(1)
}

// TestPurge: uploads nobody continues are dropped when they are old, and only
// then; idle ones leave RAM and come back.
func TestPurge(t *testing.T) {
	s := newSite(t)
	n := s.start(registry.Options{UploadMaxAge: 24 * time.Hour})
	list := n.openUploads()
	s.clock.Add(10 * time.Minute)
	poll(t, "all uploads are recorded", func() bool {
		c, err := n.cat.Counts(t.Context())
		return err == nil && c.Uploads == int64(len(list))
	})
	if err := n.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.clock.Add(23 * time.Hour)
	if err := n.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	if staged := s.files("_staging"); len(staged) != 5 {
		t.Errorf("%d uploads have bytes in the store, want 5", len(staged))
	}
	// One of them is continued, the others get too old.
	kept := list[3]
	if _, err := n.AppendUpload(t.Context(), "a", kept.id, int64(kept.sent), 1, bytes.NewReader(kept.data[kept.sent:kept.sent+1])); err != nil {
		t.Fatal(err)
	}
	kept.sent++
	s.clock.Add(2 * time.Hour)
	if err := n.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, u := range list {
		_, err := n.UploadStatus(t.Context(), "a", u.id)
		if want := u.id == kept.id; want != (err == nil) || (err != nil && !oci.HasCode(err, oci.CodeBlobUploadUnknown)) {
			t.Errorf("%s: %v", u.name, err)
		}
	}
	n.goOn([]openUpload{kept})
	n.wantClean(1)
}

func TestMaxUploads(t *testing.T) {
	r := openPlain(t, memstore.New(nil), &registry.Options{MaxUploads: 3})
	var ids []string
	for range 3 {
		st, err := r.StartUpload(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, st.ID)
	}
	for range 2 {
		if _, err := r.StartUpload(t.Context(), "b"); !oci.HasCode(err, oci.CodeTooManyRequests) {
			t.Errorf("a fourth upload: %v", err)
		}
		if _, err := r.PushBlob(t.Context(), "b", oci.SHA256(nil), 0, nil); !oci.HasCode(err, oci.CodeTooManyRequests) {
			t.Errorf("a push in one: %v", err)
		}
	}
	for i, end := range []func(id string) error{
		func(id string) error { return r.CancelUpload(t.Context(), "a", id) },
		func(id string) error {
			_, err := r.CommitUpload(t.Context(), "a", id, 0, 0, nil, oci.SHA256(nil))
			return err
		},
		func(id string) error {
			_, err := r.CommitUpload(t.Context(), "a", id, 0, 0, nil, oci.SHA256([]byte("x")))
			if !oci.HasCode(err, oci.CodeDigestInvalid) {
				return fmt.Errorf("got %w", err)
			}
			return nil
		},
	} {
		if err := end(ids[i]); err != nil {
			t.Fatal(err)
		}
		if _, err := r.StartUpload(t.Context(), "b"); err != nil {
			t.Errorf("after one has ended: %v", err)
		}
	}
}

// TestCancelledStays: an upload that is cancelled while others look at it is gone
// for all of them.
func TestCancelledStays(t *testing.T) {
	s := newSite(t)
	n := s.start(registry.Options{})
	for i := range 30 {
		st, err := n.StartUpload(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := n.AppendUpload(t.Context(), "a", st.ID, 0, 10, bytes.NewReader(content(uint64(i), 10))); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		var done atomic.Bool
		for range 3 {
			wg.Go(func() {
				for !done.Load() {
					_, err := n.UploadStatus(t.Context(), "a", st.ID)
					if oci.HasCode(err, oci.CodeBlobUploadUnknown) {
						return
					}
				}
			})
		}
		for {
			err := n.CancelUpload(t.Context(), "a", st.ID)
			if err == nil {
				break
			}
			if !oci.HasCode(err, oci.CodeBlobUploadInvalid) {
				t.Fatal(err)
			}
		}
		if _, err := n.UploadStatus(t.Context(), "a", st.ID); !oci.HasCode(err, oci.CodeBlobUploadUnknown) {
			t.Errorf("after the cancellation: %v", err)
		}
		done.Store(true)
		wg.Wait()
	}
	n.wantClean(0)
}
