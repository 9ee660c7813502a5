// Package objtest is the conformance suite of object stores: [Run] checks every driver against the
// contract of [objstore.Store], [Bench] measures it, and [Faulty] makes a store fail on purpose.
// Only tests import it.
package objtest

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"

	"example.org/slipway/registry/objstore"
)

// Options are the options of Run. The zero value is good.
type Options struct {
	// Suspended is how many uploads are suspended at once in one case.
	// Default 10000; stores behind a network take fewer.
	Suspended int
	// LargeSize is the size of the large objects, in bytes. Default 5 MiB + 1:
	// two parts of a multipart upload.
	LargeSize int
	// Racers is how many goroutines do the same thing at once. Default 8.
	Racers int
}

// Run runs every case of the contract as a subtest. open returns an empty
// store, which Run closes; each case gets its own. o may be nil.
func Run(t *testing.T, open func(t *testing.T) objstore.Store, o *Options) {
	var opts Options
	if o != nil {
		opts = *o
	}
	opts.Suspended = cmp.Or(opts.Suspended, 10_000)
	opts.LargeSize = cmp.Or(opts.LargeSize, 5<<20+1)
	opts.Racers = cmp.Or(opts.Racers, 8)
	for _, c := range []struct {
		name string
		run  func(*suite)
	}{
		{"Get ranges", (*suite).getRanges},
		{"Get what is missing", (*suite).getMissing},
		{"Get while replaced and deleted", (*suite).getWhileReplaced},
		{"Get round trips", (*suite).getRoundTrips},
		{"Object after Close", (*suite).objectClosed},
		{"Put", (*suite).put},
		{"Put if absent", (*suite).putIfAbsent},
		{"Put if absent, race", (*suite).putIfAbsentRace},
		{"Put race", (*suite).putRace},
		{"Delete", (*suite).delete},
		{"Keys", (*suite).keys},
		{"Contexts", (*suite).contexts},
		{"Close", (*suite).close},
		{"List", (*suite).list},
		{"List order", (*suite).listOrder},
		{"List stops", (*suite).listStops},
		{"List during changes", (*suite).listDuringChanges},
		{"Upload append", (*suite).uploadAppend},
		{"Upload empty", (*suite).uploadEmpty},
		{"Upload size hint", (*suite).uploadSizeHint},
		{"Upload replaces", (*suite).uploadReplaces},
		{"Upload tag", (*suite).uploadTag},
		{"Upload is invisible", (*suite).uploadInvisible},
		{"Upload after its end", (*suite).uploadEnded},
		{"Upload cancel", (*suite).uploadCancel},
		{"Upload commit fails", (*suite).uploadCommitFails},
		{"Upload commit race", (*suite).uploadCommitRace},
		{"Resume", (*suite).resume},
		{"Resume shorter", (*suite).resumeShorter},
		{"Resume what is missing", (*suite).resumeMissing},
		{"Abandon", (*suite).abandon},
		{"Suspend many", (*suite).suspendMany},
		{"Commit and delete race", (*suite).commitDeleteRace},
		{"Sweep uploads", (*suite).sweep},
		{"Adopt files", (*suite).adopt},
		{"Adopt fails", (*suite).adoptFails},
		{"Adopt race", (*suite).adoptRace},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := open(t)
			t.Cleanup(func() {
				if err := s.Close(); err != nil {
					t.Errorf("Close: %v", err)
				}
			})
			c.run(&suite{T: t, s: s, opts: opts})
		})
	}
}

// suite is one case with its store.
type suite struct {
	*testing.T
	s    objstore.Store
	opts Options
}

// Content returns n bytes that look random and depend on seed only.
func Content(seed uint64, n int) []byte {
	var key [32]byte
	for i := range 8 {
		key[i] = byte(seed >> (8 * i))
	}
	b := make([]byte, n)
	_, _ = rand.NewChaCha8(key).Read(b) // never fails
	return b
}

// must fails the case if err is not nil.
func (t *suite) must(err error, what string) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// wantErr fails the case unless errors.Is(err, want).
func (t *suite) wantErr(err, want error, what string) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: got error %v, want %v", what, err, want)
	}
}

func (t *suite) mustPut(key string, data []byte) {
	t.Helper()
	t.must(t.s.Put(t.Context(), key, data, false), "Put "+key)
}

// mustUpload begins an upload and writes data to it.
func (t *suite) mustUpload(data []byte) objstore.Upload {
	t.Helper()
	u, err := t.s.NewUpload(t.Context(), -1)
	t.must(err, "NewUpload")
	t.mustWrite(u, data)
	return u
}

func (t *suite) mustWrite(u objstore.Upload, data []byte) {
	t.Helper()
	before := u.Size()
	n, err := u.Write(data)
	t.must(err, "Write")
	if n != len(data) || u.Size() != before+int64(n) {
		t.Fatalf("Write of %d bytes at %d: got %d, size %d", len(data), before, n, u.Size())
	}
}

func (t *suite) mustSuspend(u objstore.Upload) (state string) {
	t.Helper()
	state, err := u.Suspend(t.Context())
	t.must(err, "Suspend")
	if state == "" {
		t.Fatal("Suspend: state is empty")
	}
	return state
}

func (t *suite) mustResume(state string, size int64) objstore.Upload {
	t.Helper()
	u, err := t.s.Resume(t.Context(), state, size)
	t.must(err, fmt.Sprintf("Resume at %d", size))
	if u.Size() != size {
		t.Fatalf("Resume at %d: size %d", size, u.Size())
	}
	return u
}

// wantObject checks an object's bytes, read both ways, and its description from Stat.
func (t *suite) wantObject(key string, want []byte) {
	t.Helper()
	t.wantRange(key, 0, -1, want, int64(len(want)))
	info, err := t.s.Stat(t.Context(), key)
	t.must(err, "Stat "+key)
	if info.Key != key || info.Size != int64(len(want)) {
		t.Errorf("Stat %s: got %+v, want size %d", key, info, len(want))
	}
}

// wantRange checks n bytes of an object from the offset off, read with Read and with
// WriteTo, and the size of the whole object.
func (t *suite) wantRange(key string, off, n int64, want []byte, size int64) {
	t.Helper()
	for _, way := range []struct {
		name string
		read func(objstore.Object) ([]byte, error)
	}{
		{"Read", func(o objstore.Object) ([]byte, error) {
			return io.ReadAll(struct{ io.Reader }{o})
		}},
		{"WriteTo a plain writer", func(o objstore.Object) ([]byte, error) {
			var b bytes.Buffer
			n, err := o.WriteTo(struct{ io.Writer }{&b})
			if n != int64(b.Len()) {
				t.Errorf("WriteTo: got n = %d for %d bytes", n, b.Len())
			}
			return b.Bytes(), err
		}},
		{"WriteTo an io.ReaderFrom", func(o objstore.Object) ([]byte, error) {
			var b bytes.Buffer
			n, err := o.WriteTo(&b)
			if n != int64(b.Len()) {
				t.Errorf("WriteTo: got n = %d for %d bytes", n, b.Len())
			}
			return b.Bytes(), err
		}},
	} {
		o, err := t.s.Get(t.Context(), key, off, n)
		t.must(err, "Get "+key)
		got, err := way.read(o)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("Get %s, off %d, n %d by %s: got %d bytes, %v; want %d bytes (equal: %t)",
				key, off, n, way.name, len(got), err, len(want), bytes.Equal(got, want))
		}
		if info := o.Info(); info.Key != key || info.Size != size {
			t.Errorf("Get %s: got info %+v, want the whole size %d", key, info, size)
		}
		t.must(o.Close(), "Close "+key)
	}
}

// wantMissing checks that there is no object under key.
func (t *suite) wantMissing(key string) {
	t.Helper()
	_, err := t.s.Stat(t.Context(), key)
	t.wantErr(err, objstore.ErrNotExist, "Stat "+key)
	o, err := t.s.Get(t.Context(), key, 0, -1)
	if err == nil {
		t.must(o.Close(), "Close "+key)
	}
	t.wantErr(err, objstore.ErrNotExist, "Get "+key)
}
