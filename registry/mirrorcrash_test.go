package registry_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/objstore/objtest"
	"example.org/slipway/registry/registrytest"
)

// noAdopter is a store that cannot take files as they are.
type noAdopter struct {
	objstore.Store
	objstore.UploadSweeper
}

// spooled makes a file beside the objects.
func (s *site) spooled(data []byte) (path string) {
	s.t.Helper()
	path = filepath.Join(s.root, "spool.part")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		s.t.Fatal(err)
	}
	return path
}

// TestKillWhileAdopting kills the process at each step of an adoption. The blob must be there whole
// or not at all, nothing else may be there, and the catalogue must not name the object before the
// store has said that it is durable.
func TestKillWhileAdopting(t *testing.T) {
	data := registrytest.Content(1, 50_000)
	d := oci.SHA256(data)
	for _, c := range []struct {
		name  string
		op    string
		after bool
		copy  bool // the store cannot take the file
		bytes bool // the contents are in RAM
		file  bool // the file must still be there, to be adopted again
	}{
		{"before the file is the object", objtest.OpAdopt, false, false, false, true},
		{"when the file is the object", objtest.OpAdopt, true, false, false, false},
		{"when the copy begins", objtest.OpNewUpload, false, true, false, true},
		{"while it is copied", objtest.OpWrite, false, true, false, true},
		{"before the copy is the object", objtest.OpCommit, false, true, false, true},
		{"when the copy is the object", objtest.OpCommit, true, true, false, true},
		{"before the bytes are the object", objtest.OpPut, false, false, true, false},
		{"when the bytes are the object", objtest.OpPut, true, false, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSite(t)
			s.hide = c.copy
			n := s.start(registry.Options{Partial: mirrored})
			path := s.spooled(data)
			var dead atomic.Bool
			var killer error
			kill := func(op, key string) error {
				if op == c.op && !dead.Swap(true) {
					known, err := n.cat.Garbage.Known(context.Background(), d)
					if err != nil || known {
						t.Errorf("the catalogue names the object before it is durable: %t, %v", known, err)
					}
					killer = n.cat.Close()
				}
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
				s.after.Store(&kill)
				s.before.Store(&gone)
			} else {
				s.before.Store(&kill)
			}
			var err error
			if c.bytes {
				_, err = n.AdoptBytes(t.Context(), "up/a", d, data)
			} else {
				_, err = n.AdoptBlob(t.Context(), "up/a", d, int64(len(data)), path)
			}
			s.before.Store(nil)
			s.after.Store(nil)
			if !dead.Load() || killer != nil {
				t.Fatalf("the kill did not happen: %v", killer)
			}
			if err == nil {
				t.Error("the dead process has acknowledged the blob")
			}
			if _, err := os.Stat(path); c.file && err != nil {
				t.Errorf("the file is gone: %v", err)
			}
			n.kill()

			n = s.start(registry.Options{Partial: mirrored})
			if _, err := n.ResolveBlob(t.Context(), "up/a", d); !oci.HasCode(err, oci.CodeBlobUnknown) {
				t.Errorf("the blob after a restart: %v", err)
			}
			n.wantClean(0)
			if c.file {
				_, err = n.AdoptBlob(t.Context(), "up/a", d, int64(len(data)), path)
			} else {
				_, err = n.AdoptBytes(t.Context(), "up/a", d, data)
			}
			if err != nil {
				t.Errorf("adopt again: %v", err)
			}
			if got, err := registrytest.ReadBlob(t.Context(), n, "up/a", d); err != nil || !bytes.Equal(got, data) {
				t.Errorf("read it: %d bytes, %v", len(got), err)
			}
			if _, err := os.Stat(path); c.file && !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the file after it was adopted: %v", err)
			}
			n.wantClean(1)
		})
	}
}

// TestAdoptLostAnswers makes the store carry out a request and report a failure.
func TestAdoptLostAnswers(t *testing.T) {
	data := registrytest.Content(1, 50_000)
	d := oci.SHA256(data)
	for _, deleteFails := range []bool{false, true} {
		s := newSite(t)
		n := s.start(registry.Options{Partial: mirrored})
		lost := func(op, _ string) error {
			if op == objtest.OpAdopt {
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
		if _, err := n.AdoptBlob(t.Context(), "up/a", d, int64(len(data)), s.spooled(data)); err == nil {
			t.Fatal("got no error")
		}
		s.after.Store(nil)
		s.before.Store(nil)
		if _, err := n.ResolveBlob(t.Context(), "up/a", d); !oci.HasCode(err, oci.CodeBlobUnknown) {
			t.Errorf("the blob can be seen: %v", err)
		}
		if deleteFails {
			n.kill()
			n = s.start(registry.Options{Partial: mirrored})
		}
		n.wantClean(0)
		n.stop()
	}
}
