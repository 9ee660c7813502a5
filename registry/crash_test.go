package registry_test

import (
	"bytes"
	"context"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"example.org/slipway/registry/check"

	"example.org/slipway/registry/registrytest"

	"go.uber.org/goleak"

	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/objstore/fsstore"
	"example.org/slipway/registry/objstore/objtest"
	"example.org/slipway/registry/storage"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(withServers{m}) }

// withServers stops the servers of the package after its tests.
type withServers struct{ *testing.M }

func (m withServers) Run() int {
	defer servers.Close()
	return m.M.Run()
}

// site is a place where registries run one after the other.
type site struct {
	t     *testing.T
	root  string
	clock *registrytest.Clock
	// before and after are hooks of the store; they may be nil.
	before, after atomic.Pointer[func(op, key string) error]
	hide          bool // hides that the store can take files as they are
}

func newSite(t *testing.T) *site {
	s := &site{t: t, root: t.TempDir(), clock: registrytest.NewClock()}
	s.clock.Set(time.Now()) // the store uses the system's clock
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
	var inner objstore.Store = disk
	if s.hide {
		inner = noAdopter{disk, disk}
	}
	n := &node{s: s, store: objtest.Faulty(inner, objtest.Faults{
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

// stop ends a life in an orderly way.
func (n *node) stop() {
	n.s.t.Helper()
	if err := n.Close(context.Background()); err != nil {
		n.s.t.Errorf("close: %v", err)
	}
	n.kill()
}

var errKilled = errors.New("the process is dead")

// kill ends a life without anything that a dead process would not do. The catalogue takes no more
// changes, so the end of the background work, which the test must wait for, leaves no trace.
func (n *node) kill() {
	if err := n.cat.Close(); err != nil {
		n.s.t.Errorf("close the catalogue: %v", err)
	}
	_ = n.Close(context.Background()) // cannot save anything any more
	if err := n.store.Close(); err != nil {
		n.s.t.Errorf("close the store: %v", err)
	}
}

// files lists what is below a directory of the store, except the identity of the store.
func (s *site) files(dir string) []string {
	s.t.Helper()
	var out []string
	err := filepath.WalkDir(filepath.Join(s.root, "objects", dir), func(path string, e os.DirEntry, err error) error {
		if identity := strings.HasSuffix(path, "slipway/registry") || strings.HasSuffix(path, "slipway-registry"); err == nil && !e.IsDir() && !identity {
			out = append(out, path)
		}
		return err
	})
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		s.t.Fatal(err)
	}
	return out
}

// wantClean checks that nothing is left of uploads: no bytes, no row, and no object that the
// catalogue does not know.
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
	rep, err := check.Run(t.Context(), n.Registry, check.Options{})
	if err != nil || !rep.Clean() {
		t.Errorf("fsck: %v, %+v", err, rep.Problems)
	}
}

func sha512Of(b []byte) oci.Digest {
	sum := sha512.Sum512(b)
	return oci.Digest("sha512:" + hex.EncodeToString(sum[:]))
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

// TestKillWhilePublishing kills the process at each step between the last byte and the answer. The
// blob must be there whole or not at all, and nothing else may be there.
func TestKillWhilePublishing(t *testing.T) {
	data := registrytest.Content(1, 50_000)
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
			die := func(op, key string) error {
				if op == c.op && !storage.IsIdentity(key) && !dead.Swap(true) {
					if err := n.cat.Close(); err != nil {
						t.Error(err)
					}
				}
				// The dead process does nothing more, but the system closes its files.
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
			got, err := registrytest.ReadBlob(t.Context(), n, "a", d)
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
			// The upload may still be there, at the position that the client was told.
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

// TestLostAnswers makes the store carry out a request and report a failure. What the store holds
// must be taken back, now or at the next start.
func TestLostAnswers(t *testing.T) {
	data := registrytest.Content(1, 50_000)
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
