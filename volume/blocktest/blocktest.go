// Package blocktest is the conformance suite of stores of volumes: [Run] checks every driver
// against the contract of [block.Store]. Only tests import it.
package blocktest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"example.org/slipway/volume/block"
)

// Options are the options of Run. The zero value is good.
type Options struct {
	// Where returns how another process opens the place of a store. It is passed to the
	// function with which [Main] was called. If Where is nil, the cases with other
	// processes are skipped.
	Where func(block.Store) string
	// Death is how long after the death of a process its leases and locks may last.
	// Default 30 s.
	Death time.Duration
	// Full returns an empty store with room for some MiB only, and a number of bytes that certainly
	// exceeds the room. If Full is nil, the case is skipped.
	Full func(t *testing.T) (block.Store, int64)
	// Rounds is how often the random cases run. Default 1.
	Rounds int
}

// Run runs every case of the contract as a subtest. open returns an empty store,
// which Run closes; each case gets its own. o may be nil.
func Run(t *testing.T, open func(t *testing.T) block.Store, o *Options) {
	var opts Options
	if o != nil {
		opts = *o
	}
	opts.Death = cmp.Or(opts.Death, 30*time.Second)
	opts.Rounds = cmp.Or(opts.Rounds, 1)
	for _, c := range []struct {
		name string
		run  func(*suite)
	}{
		{"Names and sizes", (*suite).names},
		{"Life of a volume", (*suite).life},
		{"Remove", (*suite).remove},
		{"Parents", (*suite).parents},
		{"Bytes", (*suite).bytes},
		{"Ends", (*suite).ends},
		{"Concurrent I/O", (*suite).concurrent},
		{"List", (*suite).list},
		{"Create race", (*suite).createRace},
		{"Commit and remove race", (*suite).commitRace},
		{"Contexts", (*suite).contexts},
		{"Build", (*suite).build},
		{"Builders race", (*suite).buildRace},
		{"Reader of another process", (*suite).otherReader},
		{"Writer of another process", (*suite).otherWriter},
		{"Builder killed", (*suite).builderKilled},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := open(t)
			c.run(&suite{t, s, opts})
			if err := s.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
		})
	}
	t.Run("Full storage", func(t *testing.T) {
		if opts.Full == nil {
			t.Log("no full storage to be had")
			return
		}
		s, room := opts.Full(t)
		(&suite{t, s, opts}).full(room)
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
}

// suite is a running case.
type suite struct {
	*testing.T
	s    block.Store
	opts Options
}

func (t *suite) must(err error, what string) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// wants checks an error.
func (t *suite) wants(err, want error, what string) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: got error %v, want %v", what, err, want)
	}
}

// size is the size of most volumes.
const size = 4 << 20

// create makes a volume and returns it open.
func (t *suite) create(id, parent string, size int64) block.Volume {
	t.Helper()
	v, err := t.s.Create(t.Context(), id, parent, size)
	t.must(err, "Create "+id)
	return v
}

func (t *suite) close(v block.Volume) {
	t.Helper()
	t.must(v.Close(), "Close of a volume")
}

// commit closes a volume and commits it.
func (t *suite) commit(id string, v block.Volume) {
	t.Helper()
	t.must(v.Flush(), "Flush")
	t.close(v)
	t.must(t.s.Commit(t.Context(), id), "Commit "+id)
}

// made makes a committed volume with b at off.
func (t *suite) made(id, parent string, size, off int64, b []byte) {
	t.Helper()
	v := t.create(id, parent, size)
	t.write(v, b, off)
	t.commit(id, v)
}

func (t *suite) open(id string) block.Volume {
	t.Helper()
	v, err := t.s.Open(t.Context(), id)
	t.must(err, "Open "+id)
	return v
}

func (t *suite) write(v block.Volume, b []byte, off int64) {
	t.Helper()
	if n, err := v.WriteAt(b, off); n != len(b) || err != nil {
		t.Fatalf("WriteAt of %d bytes at %d: %d, %v", len(b), off, n, err)
	}
}

// wantBytes checks the bytes at off of an open volume.
func (t *suite) wantBytes(v io.ReaderAt, want []byte, off int64) {
	t.Helper()
	got := make([]byte, len(want))
	if n, err := v.ReadAt(got, off); n != len(got) || err != nil && err != io.EOF {
		t.Fatalf("ReadAt of %d bytes at %d: %d, %v", len(got), off, n, err)
	}
	if !bytes.Equal(got, want) {
		for i := range got {
			if got[i] != want[i] {
				t.Fatalf("at %d, the first of %d: got %d, want %d", off+int64(i), len(got), got[i], want[i])
			}
		}
	}
}

// wantVolume checks the whole content of a committed volume.
func (t *suite) wantVolume(id string, want []byte) {
	t.Helper()
	v := t.open(id)
	if v.Size() != int64(len(want)) {
		t.Errorf("%s: got size %d, want %d", id, v.Size(), len(want))
	}
	t.wantBytes(v, want, 0)
	t.close(v)
}

// Content returns n bytes that depend on the seed. None of them is zero.
func Content(seed uint64, n int) []byte {
	b := make([]byte, n)
	rnd := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16), 1})
	_, _ = rnd.Read(b) // it never fails
	for i := range b {
		b[i] |= 1
	}
	return b
}

// eventually calls do until it succeeds. It fails the case after the given time.
func (t *suite) eventually(within time.Duration, what string, do func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := do()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s: not within %v: %v", what, within, err)
		}
	}
}

// badNames returns names that are not valid.
func badNames() []string {
	long := bytes.Repeat([]byte{'a'}, 101)
	return []string{"", ".", "..", "a/b", "A", "1a", "-a", "a b", "ä", "a\x00", "../a", string(long)}
}

func (t *suite) names() {
	ctx := t.Context()
	for _, id := range badNames() {
		if _, err := t.s.Create(ctx, id, "", size); err == nil {
			t.Errorf("Create %q: got no error", id)
		}
		if _, err := t.s.Open(ctx, id); err == nil {
			t.Errorf("Open %q: got no error", id)
		}
		if _, err := t.s.Create(ctx, "child", id, size); id != "" && err == nil {
			t.Errorf("Create with parent %q: got no error", id)
		}
		if err := t.s.Remove(ctx, id); err == nil {
			t.Errorf("Remove %q: got no error", id)
		}
	}
	for _, n := range []int64{0, -4096, 1, 4095, 4097, 1<<63 - 1} {
		if v, err := t.s.Create(ctx, "sized", "", n); err == nil {
			t.Errorf("Create of %d bytes: got no error", n)
			t.close(v)
		}
	}
	long := "a" + string(bytes.Repeat([]byte{'z'}, 99))
	for _, id := range []string{"a", "a-b.c_9", long} {
		t.made(id, "", 4096, 0, Content(1, 4096))
		t.wantVolume(id, Content(1, 4096))
	}
	p := t.s.Place()
	if p.Driver == "" || p.Cluster == "" {
		t.Errorf("Place: got %+v", p)
	}
	info, err := t.s.Stat(ctx, long)
	if err != nil || info.ID != long || info.Parent != "" || info.Size != 4096 || !info.Committed {
		t.Errorf("Stat: got %+v, %v", info, err)
	}
	t.Logf("stores %d bytes for 4096", info.Used)
}

func (t *suite) list() {
	for _, id := range []string{"b", "a2", "a1", "ab"} {
		t.made(id, "", 4096, 0, nil)
	}
	t.close(t.create("a3", "a2", 8192))
	for prefix, want := range map[string]string{"": "[a1 a2 a3< ab b]", "a": "[a1 a2 a3< ab]", "a3": "[a3<]", "x": "[]"} {
		infos, err := t.s.List(t.Context(), prefix)
		got := []string{}
		for _, i := range infos {
			if i.Parent == "a2" && !i.Committed && i.Size == 8192 {
				i.ID += "<"
			}
			got = append(got, i.ID)
		}
		if err != nil || fmt.Sprint(got) != want {
			t.Errorf("List %q: got %v, %v, want %s", prefix, got, err, want)
		}
	}
}

func (t *suite) contexts() {
	t.made("a", "", 4096, 0, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := t.s.Create(ctx, "b", "", 4096)
	t.wants(err, context.Canceled, "Create")
	_, err = t.s.Open(ctx, "a")
	t.wants(err, context.Canceled, "Open")
	t.wants(t.s.Remove(ctx, "a"), context.Canceled, "Remove")
	_, err = t.s.List(ctx, "")
	t.wants(err, context.Canceled, "List")
	t.wantVolume("a", make([]byte, 4096))
}
