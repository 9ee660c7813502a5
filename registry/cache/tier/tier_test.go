package tier_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"example.org/slipway/internal/mounttest"
	"example.org/slipway/registry/cache/tier"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/objstore/fsstore"
	"example.org/slipway/registry/objstore/memstore"
	"example.org/slipway/registry/objstore/objtest"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(killDir); dir != "" {
		fillUntilKilled(dir)
		return
	}
	mounttest.Main(m)
}

// made is a store whose objects are made on request: gen/<size>/<seed>. It counts the requests.
type made struct {
	objstore.Store
	gets atomic.Int64
	// hold, if not nil, is called before each Read with its offset.
	hold func(key string, off int64) error
}

func newMade() *made { return &made{Store: memstore.New(nil)} }

func madeKey(size int64, seed uint64) string { return fmt.Sprintf("gen/%d/%d", size, seed) }

func parseMade(key string) (size int64, seed uint64, ok bool) {
	parts := strings.Split(key, "/")
	if len(parts) != 3 || parts[0] != "gen" {
		return 0, 0, false
	}
	size, err := strconv.ParseInt(parts[1], 10, 64)
	seed, err2 := strconv.ParseUint(parts[2], 10, 64)
	return size, seed, err == nil && err2 == nil
}

func (m *made) Get(ctx context.Context, key string, off, n int64) (objstore.Object, error) {
	size, seed, ok := parseMade(key)
	if !ok {
		return m.Store.Get(ctx, key, off, n)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	m.gets.Add(1)
	off = min(off, size)
	if n < 0 || n > size-off {
		n = size - off
	}
	return &madeObject{m: m, ctx: ctx, seed: seed, off: off, end: off + n,
		info: objstore.Info{Key: key, Size: size, ModTime: time.Unix(1e9, 5)}}, nil
}

type madeObject struct {
	m        *made
	ctx      context.Context
	seed     uint64
	off, end int64
	info     objstore.Info
}

func (o *madeObject) Info() objstore.Info { return o.info }
func (o *madeObject) Close() error        { return nil }
func (o *madeObject) WriteTo(w io.Writer) (int64, error) {
	return io.Copy(w, struct{ io.Reader }{o})
}

func (o *madeObject) Read(p []byte) (int, error) {
	if err := o.ctx.Err(); err != nil {
		return 0, err
	}
	if o.off >= o.end {
		return 0, io.EOF
	}
	if o.m.hold != nil {
		if err := o.m.hold(o.info.Key, o.off); err != nil {
			return 0, err
		}
	}
	p = p[:min(int64(len(p)), o.end-o.off)]
	madeBytes(p, o.seed, o.off)
	o.off += int64(len(p))
	return len(p), nil
}

// pattern is the repeated content of made objects. Its length is odd, so that wrong offsets show.
var pattern = objtest.Content(1, 1<<20-3)

// eachPiece calls do with pieces of n bytes of a made object, beginning at off.
func eachPiece(n int, seed uint64, off int64, do func(at int, want []byte) bool) bool {
	for at := 0; at < n; {
		from := int((uint64(off) + uint64(at) + seed*104_729) % uint64(len(pattern)))
		want := pattern[from:min(len(pattern), from+n-at)]
		if !do(at, want) {
			return false
		}
		at += len(want)
	}
	return true
}

// madeBytes fills p with the bytes of a made object from off on.
func madeBytes(p []byte, seed uint64, off int64) {
	eachPiece(len(p), seed, off, func(at int, want []byte) bool {
		copy(p[at:], want)
		return true
	})
}

// checker fails if the bytes written to it are not those of an object from off on.
type checker struct {
	seed uint64
	off  int64
}

func (c *checker) Write(p []byte) (int, error) {
	ok := eachPiece(len(p), c.seed, c.off, func(at int, want []byte) bool {
		return bytes.Equal(p[at:at+len(want)], want)
	})
	if !ok {
		return 0, fmt.Errorf("wrong bytes within %d of %d", len(p), c.off)
	}
	c.off += int64(len(p))
	return len(p), nil
}

// get reads a range of a made object and checks it.
func get(ctx context.Context, s objstore.Store, key string, off, n int64) error {
	size, seed, _ := parseMade(key)
	o, err := s.Get(ctx, key, off, n)
	if err != nil {
		return err
	}
	defer o.Close()
	if i := o.Info(); i.Key != key || i.Size != size {
		return fmt.Errorf("object %s has info %+v", key, i)
	}
	end := size
	if n >= 0 && off+n < size {
		end = off + n
	}
	c := &checker{seed: seed, off: off}
	if _, err := o.WriteTo(c); err != nil {
		return err
	}
	if c.off != end {
		return fmt.Errorf("object %s from %d ends at %d instead of %d", key, off, c.off, end)
	}
	return nil
}

func mustGet(t testing.TB, s objstore.Store, key string) {
	t.Helper()
	if err := get(t.Context(), s, key, 0, -1); err != nil {
		t.Fatalf("Get %s: %v", key, err)
	}
}

// idle waits until nothing is being fetched or written.
func idle(t testing.TB, s *tier.Store) tier.Status {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for i := 0; ; i++ {
		st := s.Status()
		if st.Fills == 0 && st.Demotions == 0 && st.Promotions == 0 {
			return st
		}
		if time.Now().After(deadline) {
			t.Fatalf("the cache does not come to rest: %+v", st)
		}
		if i > 100 {
			time.Sleep(50 * time.Microsecond)
		}
	}
}

func open(t testing.TB, inner objstore.Store, o *tier.Options) *tier.Store {
	t.Helper()
	s, err := tier.New(inner, o)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

// swept shows the inner store's sweeper, as objstore.As finds it.
type swept struct {
	*tier.Store
	objstore.UploadSweeper
}

func TestConformance(t *testing.T) {
	inner := map[string]func(t *testing.T) objstore.Store{
		"memstore": func(*testing.T) objstore.Store { return memstore.New(nil) },
		"fsstore": func(t *testing.T) objstore.Store {
			s, err := fsstore.New(t.TempDir(), nil)
			if err != nil {
				t.Fatal(err)
			}
			return s
		},
	}
	for name, o := range map[string]tier.Options{
		"ram":           {RAMBytes: 16 << 20, LargeObject: -1},
		"ssd":           {SSDBytes: 16 << 20},
		"both":          {RAMBytes: 200 << 10, SSDBytes: 16 << 20, LargeObject: 100 << 10},
		"write-through": {RAMBytes: 4 << 20, SSDBytes: 16 << 20, LargeObject: 100 << 10, WriteThrough: true},
		"tiny":          {RAMBytes: 1000, SSDBytes: 100 << 10, LargeObject: -1, WriteThrough: true},
	} {
		for in, newInner := range inner {
			if in == "fsstore" && name != "write-through" {
				continue
			}
			t.Run(name+" over "+in, func(t *testing.T) {
				if testing.Short() && name != "both" {
					t.Skip("heavy, and other sizes say as much about what happens at once")
				}
				objtest.Run(t, func(t *testing.T) objstore.Store {
					o := o
					o.Dir = t.TempDir()
					s, err := tier.New(newInner(t), &o)
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { limits(t, s) })
					sw, _ := objstore.As[objstore.UploadSweeper](s)
					return swept{s, sw}
				}, &objtest.Options{Suspended: 500})
			})
		}
	}
}

// limits checks that no limit was ever exceeded and that the counts agree.
func limits(t testing.TB, s *tier.Store) {
	t.Helper()
	st := s.Status()
	for name, tr := range map[string]tier.TierStatus{"RAM": st.RAM, "SSD": st.SSD} {
		if tr.Most > tr.Limit || tr.Taken < 0 || tr.Bytes > tr.Capacity {
			t.Errorf("%s: %+v passes its limit", name, tr)
		}
	}
}

// diskBytes returns the bytes in the files of a cache, without the footers.
func diskBytes(t testing.TB, dir string) (bytes int64, files int) {
	t.Helper()
	for _, path := range cacheFiles(t, dir) {
		if fi, err := os.Stat(path); err == nil {
			bytes += fi.Size() - 48
			files++
		}
	}
	return bytes, files
}

func cacheFiles(t testing.TB, dir string) []string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(dir, "[0-9a-f][0-9a-f]", "*"))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestWhereObjectsGo(t *testing.T) {
	m := newMade()
	dir := t.TempDir()
	s := open(t, m, &tier.Options{RAMBytes: 100_000, SSDBytes: 10 << 20, LargeObject: 50_000, Dir: dir, RAMPolicy: "lru"})
	small, large, huge := madeKey(40_000, 1), madeKey(60_000, 2), madeKey(20<<20, 3)
	for _, key := range []string{small, large, huge, small, large, huge} {
		mustGet(t, s, key)
		idle(t, s)
	}
	if got := []any{s.Holds(small).String(), s.Holds(large).String(), s.Holds(huge).String()}; fmt.Sprint(got) != "[ram ssd nowhere]" {
		t.Errorf("got %v, want ram, ssd and nowhere", got)
	}
	if n := m.gets.Load(); n != 4 {
		t.Errorf("the store inside was asked %d times, want 4: once for each, twice for what is too large", n)
	}
	// Two more objects push small down. A hit brings it up again.
	mustGet(t, s, madeKey(40_000, 4))
	mustGet(t, s, madeKey(40_001, 5))
	idle(t, s)
	if at := s.Holds(small); at.String() != "ssd" {
		t.Fatalf("what was not asked for is in %s, want ssd", at)
	}
	mustGet(t, s, small)
	st := idle(t, s)
	if at := s.Holds(small); at.String() != "ram" || m.gets.Load() != 6 {
		t.Errorf("after a hit on the SSD it is in %s and %d were fetched; want ram and 6", at, m.gets.Load())
	}
	mustGet(t, s, small)
	// The object moved up to RAM. Its room on the SSD is given back when its file is closed,
	// a moment later.
	for deadline := time.Now().Add(20 * time.Second); st.SSD.Taken != st.SSD.Bytes && time.Now().Before(deadline); st = idle(t, s) {
		time.Sleep(time.Millisecond)
	}
	if n, files := diskBytes(t, dir); n != st.SSD.Bytes || n != st.SSD.Taken || files != st.SSD.Entries {
		t.Errorf("files: %d of %d bytes; the status says %+v", files, n, st.SSD)
	}
	if n := s.DropAll(); n != 4 {
		t.Errorf("DropAll dropped %d, want 4", n)
	}
	if n, files := diskBytes(t, dir); n != 0 || files != 0 || s.Status().RAM.Taken != 0 {
		t.Errorf("after DropAll: %d files of %d bytes, %+v", files, n, s.Status().RAM)
	}
	limits(t, s)
}

func TestCacheableOnly(t *testing.T) {
	m := newMade()
	s := open(t, m, &tier.Options{RAMBytes: 1 << 20, Cacheable: func(key string) bool { return key == madeKey(10, 1) }})
	for range 3 {
		mustGet(t, s, madeKey(10, 1))
		mustGet(t, s, madeKey(10, 2))
		idle(t, s)
	}
	if n := m.gets.Load(); n != 4 {
		t.Errorf("the store inside was asked %d times, want 4", n)
	}
}

func TestPin(t *testing.T) {
	m := newMade()
	now := time.Unix(1e9, 0)
	var clock atomic.Int64
	s := open(t, m, &tier.Options{RAMBytes: 100, RAMPolicy: "lru", LargeObject: -1,
		Clock: func() time.Time { return now.Add(time.Duration(clock.Load())) }})
	key := madeKey(40, 1)
	if s.Pin(key, time.Time{}) || s.Unpin(key) {
		t.Error("what is not here was pinned")
	}
	mustGet(t, s, key)
	if !s.Pin(key, now.Add(time.Minute)) {
		t.Error("what is here was not pinned")
	}
	for i := range uint64(5) {
		mustGet(t, s, madeKey(50, 10+i))
	}
	if s.Holds(key).String() != "ram" || s.Status().RAM.PinnedBytes != 40 {
		t.Error("what was pinned is gone")
	}
	clock.Store(int64(2 * time.Minute))
	for i := range uint64(5) {
		mustGet(t, s, madeKey(50, 20+i))
	}
	if s.Holds(key).String() != "nowhere" {
		t.Error("a pin did not end")
	}
}

// TestPinsLeaveRoom checks that the room for requested objects is kept, whatever is pinned.
func TestPinsLeaveRoom(t *testing.T) {
	for name, o := range map[string]tier.Options{"ram": {RAMBytes: 100_000, LargeObject: -1}, "ssd": {SSDBytes: 100_000}} {
		t.Run(name, func(t *testing.T) {
			o.Dir = t.TempDir()
			s := open(t, newMade(), &o)
			for i := range uint64(9) {
				key := madeKey(10_000, i)
				mustGet(t, s, key)
				idle(t, s)
				if got, want := s.Pin(key, time.Time{}), i < 4; got != want {
					t.Errorf("object %d pinned: %t, want %t", i, got, want)
				}
			}
			if !s.Pin(madeKey(10_000, 0), time.Time{}) {
				t.Error("what is pinned was not pinned again")
			}
			if st := s.Status(); st.RAM.PinnedBytes+st.SSD.PinnedBytes != 40_000 {
				t.Errorf("pinned: %d in RAM, %d on the SSD", st.RAM.PinnedBytes, st.SSD.PinnedBytes)
			}
			limits(t, s)
		})
	}
}

func TestWarm(t *testing.T) {
	m := newMade()
	s := open(t, m, &tier.Options{RAMBytes: 1 << 20, LargeObject: -1})
	key := madeKey(1000, 1)
	if err := s.Warm(t.Context(), key, 1000); err != nil {
		t.Fatal(err)
	}
	mustGet(t, s, key)
	if n := m.gets.Load(); n != 1 {
		t.Errorf("the store inside was asked %d times, want 1", n)
	}
	if err := s.Warm(t.Context(), key, -1); err != nil {
		t.Errorf("Warm of what is here: %v", err)
	}
	if err := s.Warm(t.Context(), madeKey(2<<20, 1), 2<<20); !errors.Is(err, tier.ErrNotKept) {
		t.Errorf("Warm of what is too large: %v", err)
	}
	if err := s.Warm(t.Context(), madeKey(2<<20, 2), -1); !errors.Is(err, tier.ErrNotKept) {
		t.Errorf("Warm of what proves too large: %v", err)
	}
	if err := s.Warm(t.Context(), "none", -1); !errors.Is(err, objstore.ErrNotExist) {
		t.Errorf("Warm of nothing: %v", err)
	}
}

func TestOpenOutlivesEviction(t *testing.T) {
	// An open object stays readable and counted after it was evicted.
	m := newMade()
	s := open(t, m, &tier.Options{RAMBytes: 100_000, RAMPolicy: "lru", LargeObject: -1})
	key := madeKey(60_000, 1)
	mustGet(t, s, key)
	o, err := s.Get(t.Context(), key, 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	mustGet(t, s, madeKey(90_000, 2)) // has no room
	idle(t, s)
	if st := s.Status().RAM; st.Taken != 60_000 {
		t.Errorf("with a reader of what was given up: %+v", st)
	}
	got, err := io.ReadAll(o)
	if err != nil || len(got) != 60_000 {
		t.Fatalf("read %d bytes, %v", len(got), err)
	}
	if _, err := (&checker{seed: 1}).Write(got); err != nil {
		t.Error(err)
	}
	if err := o.Close(); err != nil {
		t.Error(err)
	}
	if st := s.Status().RAM; st.Taken != 0 {
		t.Errorf("after the reader has gone: %+v", st)
	}
	limits(t, s)
}

func rnd(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 1)) }

func TestMetrics(t *testing.T) {
	s := open(t, newMade(), &tier.Options{RAMBytes: 1 << 20, SSDBytes: 10 << 20, Dir: t.TempDir()})
	for range 3 {
		mustGet(t, s, madeKey(1000, 1))
		idle(t, s)
	}
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(s.Metrics()...)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			got[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	for name, want := range map[string]float64{
		"slipway_cache_tier_hits_total ram": 2, "slipway_cache_tier_hits_total ssd": 0, "slipway_cache_tier_misses_total ssd": 1,
		"slipway_cache_tier_bytes ram": 1000, "slipway_cache_tier_limit_bytes ssd": 10 << 20, "slipway_cache_fills_total": 1,
		"slipway_cache_ssd_usable": 1, "slipway_cache_ssd_budget_bytes": -1,
	} {
		if v, ok := got[name]; !ok || v != want {
			t.Errorf("%s is %v (there: %t), want %v", name, v, ok, want)
		}
	}
}

// TestWriteBudget checks that the SSD is not written to beyond the budget.
func TestWriteBudget(t *testing.T) {
	m := newMade()
	s := open(t, m, &tier.Options{SSDBytes: 10 << 20, Dir: t.TempDir(), SSDWritePerDay: 86_400, SSDWriteBurst: 250_000,
		Clock: func() time.Time { return time.Unix(1e9, 0) }})
	for i := range uint64(4) {
		mustGet(t, s, madeKey(100_000, i))
	}
	if st := idle(t, s); st.SSD.Entries != 2 || st.SSDWritten != 200_000 || st.SSDBudget != 50_000 || st.Bypassed != 2 {
		t.Errorf("with a budget for two: %+v", st)
	}
}
