package objtest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"example.org/slipway/registry/objstore"
)

const blobKey = "docker/registry/v2/blobs/sha256/ab/abcdef/data"

func (t *suite) getRanges() {
	data := Content(1, 1000)
	t.mustPut("r/object", data)
	t.mustPut("r/empty", nil)
	for _, tt := range []struct{ off, n, from, to int64 }{
		{0, -1, 0, 1000},
		{0, 1000, 0, 1000},
		{0, 1, 0, 1},
		{0, 0, 0, 0},
		{10, 20, 10, 30},
		{999, 1, 999, 1000},
		{500, -1, 500, 1000},
		{990, 100, 990, 1000}, // cut
		{0, 1 << 62, 0, 1000},
		{5, 1<<63 - 1, 5, 1000}, // off+n does not fit
		{1000, -1, 0, 0},        // behind the end
		{1000, 10, 0, 0},
		{5000, 10, 0, 0},
		{1<<63 - 1, -1, 0, 0},
		{1<<63 - 1, 1<<63 - 1, 0, 0},
	} {
		t.wantRange("r/object", tt.off, tt.n, data[tt.from:tt.to], 1000)
	}
	t.wantRange("r/empty", 0, -1, nil, 0)
	t.wantRange("r/empty", 0, 10, nil, 0)
	t.wantRange("r/empty", 10, 10, nil, 0)
	if o, err := t.s.Get(t.Context(), "r/object", -1, 10); err == nil {
		t.Error("Get at -1: got no error")
		t.must(o.Close(), "Close")
	}
}

func (t *suite) getMissing() {
	t.mustPut("m/a/b", []byte("x"))
	for _, key := range []string{"m", "m/a", "m/a/c", "m/a/b2", "n", blobKey} {
		t.wantMissing(key)
	}
}

func (t *suite) getWhileReplaced() {
	old, young := Content(1, 300_000), Content(2, 200_000)
	t.mustPut("g/x", old)
	o, err := t.s.Get(t.Context(), "g/x", 0, -1)
	t.must(err, "Get")
	defer o.Close()
	head := make([]byte, 1000)
	_, err = io.ReadFull(o, head)
	t.must(err, "Read")
	t.mustPut("g/x", young)
	t.must(t.s.Delete(t.Context(), "g/x"), "Delete")
	// It depends on the store whether the object can still be read. Mixed bytes are wrong.
	tail, err := io.ReadAll(o)
	if got := append(head, tail...); !bytes.HasPrefix(old, got) || err == nil && len(got) != len(old) {
		t.Errorf("reading an object that was replaced: got %d other bytes, %v", len(got), err)
	}
}

func (t *suite) getRoundTrips() {
	for _, n := range []int{0, 1, 4095, 4096, 65_536, 65_537, 1 << 20, 1<<20 + 1, t.opts.LargeSize} {
		data := Content(uint64(n), n)
		t.mustPut("t/put", data)
		t.wantObject("t/put", data)
		t.must(t.mustUpload(data).Commit(t.Context(), "t/upload"), "Commit")
		t.wantObject("t/upload", data)
	}
	data := Content(uint64(t.opts.LargeSize), t.opts.LargeSize)
	size := int64(len(data))
	t.wantRange("t/upload", 1, size-2, data[1:size-1], size)
	t.wantRange("t/upload", size/2, -1, data[size/2:], size)
}

func (t *suite) objectClosed() {
	t.mustPut("c/x", Content(1, 100))
	o, err := t.s.Get(t.Context(), "c/x", 0, -1)
	t.must(err, "Get")
	t.must(o.Close(), "Close")
	t.must(o.Close(), "second Close")
	if n, err := o.Read(make([]byte, 1)); n != 0 || err == nil || err == io.EOF {
		t.Errorf("Read after Close: got %d, %v; want an error", n, err)
	}
	if n, err := o.WriteTo(io.Discard); n != 0 || err == nil {
		t.Errorf("WriteTo after Close: got %d, %v; want an error", n, err)
	}
}

func (t *suite) put() {
	before := time.Now().Add(-time.Minute) // the clocks of other machines differ
	for i, key := range []string{"a", "p/a", "p/b/c", "p/b=+._-/D", blobKey} {
		t.mustPut(key, Content(uint64(i), 100+i))
		t.wantObject(key, Content(uint64(i), 100+i))
	}
	info, err := t.s.Stat(t.Context(), "a")
	t.must(err, "Stat")
	if info.ModTime.Before(before) || info.ModTime.After(time.Now().Add(time.Minute)) {
		t.Errorf("Stat: got modification time %v at %v", info.ModTime, time.Now())
	}
	data := Content(9, 50)
	t.mustPut("p/a", data)
	clear(data) // the store must have its own copy
	t.wantObject("p/a", Content(9, 50))
	t.mustPut("p/a", nil)
	t.wantObject("p/a", nil)
}

func (t *suite) putIfAbsent() {
	t.must(t.s.Put(t.Context(), "i/x", []byte("one"), true), "first Put")
	t.wantErr(t.s.Put(t.Context(), "i/x", []byte("two"), true), objstore.ErrExist, "second Put")
	t.wantObject("i/x", []byte("one"))
	t.must(t.s.Delete(t.Context(), "i/x"), "Delete")
	t.must(t.s.Put(t.Context(), "i/x", []byte("three"), true), "Put after Delete")
	t.wantObject("i/x", []byte("three"))
}

// race runs f in goroutines that begin at the same time.
func (t *suite) race(f func(i int)) {
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range t.opts.Racers {
		wg.Go(func() {
			<-start
			f(i)
		})
	}
	close(start)
	wg.Wait()
}

func (t *suite) putIfAbsentRace() {
	for _, key := range []string{"i/race/1", "i/race/2", "i/race/deep/3"} {
		var won atomic.Int32
		winner := make([]bool, t.opts.Racers)
		t.race(func(i int) {
			err := t.s.Put(t.Context(), key, Content(uint64(i), 500), true)
			if err == nil {
				won.Add(1)
				winner[i] = true
			} else if !errors.Is(err, objstore.ErrExist) {
				t.Errorf("Put: got error %v, want nil or ErrExist", err)
			}
		})
		if won.Load() != 1 {
			t.Fatalf("Put if absent by %d at once: %d won, want 1", t.opts.Racers, won.Load())
		}
		for i, w := range winner {
			if w {
				t.wantObject(key, Content(uint64(i), 500))
			}
		}
	}
}

func (t *suite) putRace() {
	t.race(func(i int) {
		for range 5 {
			if err := t.s.Put(t.Context(), "race/x", Content(uint64(i), 1000+i), false); err != nil {
				t.Errorf("Put: %v", err)
			}
			t.wantOneOf("race/x", func(i int) []byte { return Content(uint64(i), 1000+i) })
		}
	})
}

// wantOneOf checks that an object is whole: that it has the content which one racer i would have
// written. It may run in any goroutine.
func (t *suite) wantOneOf(key string, content func(i int) []byte) {
	o, err := t.s.Get(t.Context(), key, 0, -1)
	if err != nil {
		t.Errorf("Get: %v", err)
		return
	}
	defer o.Close()
	got, err := io.ReadAll(o)
	if err != nil || int64(len(got)) != o.Info().Size {
		t.Errorf("read %s: got %d bytes, %v; want %d", key, len(got), err, o.Info().Size)
	}
	for i := range t.opts.Racers {
		if bytes.Equal(got, content(i)) {
			return
		}
	}
	t.Errorf("object %s of %d bytes is none of those written", key, len(got))
}

func (t *suite) delete() {
	ctx := t.Context()
	t.must(t.s.Delete(ctx, "d/none"), "Delete of nothing")
	t.mustPut("d/a/x", []byte("1"))
	t.mustPut("d/a/y", []byte("2"))
	t.must(t.s.Delete(ctx, "d"), "Delete of a prefix")
	t.must(t.s.Delete(ctx, "d/a"), "Delete of a prefix")
	t.must(t.s.Delete(ctx, "d/a/x/z"), "Delete below an object")
	t.wantObject("d/a/x", []byte("1"))
	t.must(t.s.Delete(ctx, "d/a/x"), "Delete")
	t.wantMissing("d/a/x")
	t.must(t.s.Delete(ctx, "d/a/x"), "second Delete")
	t.wantObject("d/a/y", []byte("2"))
	t.must(t.s.Delete(ctx, "d/a/y"), "Delete")
	t.wantKeys("", "", nil)
	t.mustPut("d/a/x", []byte("3"))
	t.wantObject("d/a/x", []byte("3"))
	// A prefix without objects can be used as a key.
	t.must(t.s.Delete(ctx, "d/a/x"), "Delete")
	t.mustPut("d/a", []byte("4"))
	t.wantObject("d/a", []byte("4"))
}

func (t *suite) keys() {
	ctx := t.Context()
	long := strings.Repeat("k", objstore.MaxSegmentLength)
	for _, key := range []string{"k", "...", "a..b", "-", long + "/" + long[1:] + "/k"} {
		t.mustPut(key, []byte(key))
		t.wantObject(key, []byte(key))
	}
	for _, key := range []string{
		"", "/", "/k", "k/", "k//k", ".", "..", "../k", "k/..", "k/../k", "./k", "a/./b", "../../../../etc/passwd",
		"k\x00", "k\n", `k\k`, "k k", "k%2f..", "ä", long + "k", long + "/" + long + "/k",
	} {
		check := func(what string, err error) {
			t.Helper()
			if err == nil || errors.Is(err, objstore.ErrNotExist) || errors.Is(err, objstore.ErrExist) {
				t.Errorf("%s of key %q: got error %v, want one about the key", what, key, err)
			}
		}
		_, err := t.s.Get(ctx, key, 0, -1)
		check("Get", err)
		_, err = t.s.Stat(ctx, key)
		check("Stat", err)
		check("Put", t.s.Put(ctx, key, []byte("x"), false))
		check("Put", t.s.Put(ctx, key, []byte("x"), true))
		check("Delete", t.s.Delete(ctx, key))
		check("Commit", t.mustUpload([]byte("x")).Commit(ctx, key))
	}
	for _, prefix := range []string{"/", "../", "k//", `k\`, "\x00", "a/../"} {
		t.wantKeys(prefix, "", nil)
	}
}

func (t *suite) contexts() {
	t.mustPut("x/there", []byte("1"))
	state := t.mustSuspend(t.mustUpload([]byte("2")))
	u, cancelled := t.mustUpload([]byte("3")), t.mustUpload([]byte("4"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, op := range []struct {
		name string
		do   func() error
	}{
		{"Get", func() error { _, err := t.s.Get(ctx, "x/there", 0, -1); return err }},
		{"Stat", func() error { _, err := t.s.Stat(ctx, "x/there"); return err }},
		{"Put", func() error { return t.s.Put(ctx, "x/new", nil, false) }},
		{"Delete", func() error { return t.s.Delete(ctx, "x/there") }},
		{"NewUpload", func() error { _, err := t.s.NewUpload(ctx, -1); return err }},
		{"Resume", func() error { _, err := t.s.Resume(ctx, state, 1); return err }},
		{"Abandon", func() error { return t.s.Abandon(ctx, state) }},
		{"Commit", func() error { return u.Commit(ctx, "x/new") }},
		{"List", func() error {
			for _, err := range t.s.List(ctx, "", "") {
				return err
			}
			return nil
		}},
	} {
		t.wantErr(op.do(), context.Canceled, op.name+" with a cancelled context")
	}
	t.must(cancelled.Cancel(ctx), "Cancel with a cancelled context")
	t.wantKeys("", "", []string{"x/there"})
	u = t.mustResume(state, 1)
	t.must(u.Commit(t.Context(), "x/new"), "Commit")
	t.wantObject("x/new", []byte("2"))
}

func (t *suite) close() {
	t.mustPut("c/x", []byte("1"))
	t.must(t.s.Close(), "Close")
	t.must(t.s.Close(), "second Close")
	if _, err := t.s.Stat(t.Context(), "c/x"); err == nil || errors.Is(err, objstore.ErrNotExist) {
		t.Errorf("Stat after Close: got error %v, want one about the closed store", err)
	}
	if err := t.s.Put(t.Context(), "c/y", nil, false); err == nil {
		t.Error("Put after Close: got no error")
	}
}
