package tier_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"hash"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.org/slipway/registry/cache/tier"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/objstore/memstore"
	"example.org/slipway/registry/objstore/objtest"
)

// heap returns how much memory Go has in use.
func heap() int64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}

// TestOneFillForMany has a hundred clients request a large object that is not cached. It is fetched
// once, all get their first bytes before it has arrived, and memory use stays small.
func TestOneFillForMany(t *testing.T) {
	const clients = 100
	size := int64(1 << 30)
	if raceDetector { // the race detector takes ten times as long
		size = 128 << 20
	}
	m := newMade()
	var started sync.WaitGroup // clients that have their first bytes
	started.Add(clients)
	m.hold = func(_ string, off int64) error {
		if off >= 1<<20 {
			started.Wait()
		}
		return nil
	}
	s := open(t, m, &tier.Options{RAMBytes: 64 << 20, SSDBytes: 2 << 30, Dir: t.TempDir()})
	runtime.GC()
	before := heap()
	var most atomic.Int64
	stop := make(chan struct{})
	var watch, wg sync.WaitGroup
	watch.Go(func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			most.Store(max(most.Load(), heap()-before))
			select {
			case <-stop:
				return
			case <-tick.C:
			}
		}
	})
	key := madeKey(size, 1)
	for i := range clients {
		wg.Go(func() {
			o, err := s.Get(t.Context(), key, 0, -1)
			if err != nil {
				t.Error(err)
				started.Done()
				return
			}
			defer o.Close()
			c := &checker{seed: 1}
			first := make([]byte, 1000)
			_, err = io.ReadFull(o, first)
			started.Done()
			started.Wait() // a client that is alone and leaves ends the fetch
			if err == nil {
				_, err = c.Write(first)
			}
			if i%50 == 0 && err == nil { // some read all of it, slower than it arrives
				_, err = o.WriteTo(c)
				if err == nil && c.off != size {
					t.Errorf("got %d bytes", c.off)
				}
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	close(stop)
	watch.Wait()
	st := idle(t, s)
	if n := m.gets.Load(); n != 1 || st.Fetched != 1 || st.Shared != clients-1 {
		t.Errorf("the store inside was asked %d times, %d requests shared that; want 1, %d", n, st.Shared, clients-1)
	}
	if most.Load() > 64<<20 {
		t.Errorf("memory grew by %d MiB, want 64 at most", most.Load()>>20)
	}
	if s.Holds(key).String() != "ssd" || st.SSD.Taken != size {
		t.Errorf("the object is in %s, %d bytes are taken", s.Holds(key), st.SSD.Taken)
	}
	limits(t, s)
}

// sizes records how much each Write and ReadFrom gets.
type sizes []int64

func (s *sizes) Write(p []byte) (int, error) {
	*s = append(*s, int64(len(p)))
	return len(p), nil
}

func (s *sizes) ReadFrom(r io.Reader) (int64, error) {
	n, err := io.Copy(struct{ io.Writer }{io.Discard}, r)
	*s = append(*s, n)
	return n, err
}

// TestFirstBytesAreFew checks that each reader begins with a little, however much has arrived. The
// last of many readers must not wait for everything that the others can have.
func TestFirstBytesAreFew(t *testing.T) {
	for name, o := range map[string]tier.Options{
		"ram": {RAMBytes: 64 << 20, LargeObject: -1}, "ssd": {SSDBytes: 64 << 20}, "window": {RAMBytes: 256 << 20, LargeObject: 1},
	} {
		t.Run(name, func(t *testing.T) {
			const size, here = 4 << 20, 2 << 20 // all of it within a window
			m := newMade()
			goOn := make(chan struct{})
			m.hold = func(_ string, off int64) error {
				if off >= here {
					<-goOn
				}
				return nil
			}
			o.Dir = t.TempDir()
			s := open(t, m, &o)
			var open [2]objstore.Object
			for i := range open {
				var err error
				if open[i], err = s.Get(t.Context(), madeKey(size, 1), 0, -1); err != nil {
					t.Fatal(err)
				}
				defer open[i].Close()
			}
			if _, err := io.CopyN(io.Discard, open[0], here); err != nil {
				t.Fatal(err)
			}
			close(goOn)
			var got sizes
			if n, err := open[1].WriteTo(&got); n != size || err != nil {
				t.Fatalf("sent %d bytes, %v", n, err)
			}
			if got[0] > tier.SmallPiece {
				t.Errorf("the first piece has %d bytes, want %d at most", got[0], tier.SmallPiece)
			}
		})
	}
}

// TestWindow checks that an object which is not kept is still fetched only once for those who read
// it together, and that a slow reader does not delay the others.
func TestWindow(t *testing.T) {
	const size = 50 << 20
	m := newMade()
	var ready sync.WaitGroup
	ready.Add(5)
	m.hold = func(_ string, off int64) error {
		if off > 0 {
			ready.Wait()
		}
		return nil
	}
	s := open(t, m, &tier.Options{RAMBytes: 512 << 20, LargeObject: 1 << 20})
	var wg sync.WaitGroup
	key := madeKey(size, 1)
	fast := make(chan struct{}) // closed when the others have everything
	var others atomic.Int32
	others.Store(4)
	for i := range 5 {
		wg.Go(func() {
			o, err := s.Get(t.Context(), key, 0, -1)
			ready.Done()
			if err != nil {
				t.Error(err)
				return
			}
			defer o.Close()
			if i == 0 {
				<-fast
			}
			c := &checker{seed: 1}
			if _, err := o.WriteTo(c); err != nil || c.off != size {
				t.Errorf("got %d bytes, %v", c.off, err)
			}
			if i > 0 && others.Add(-1) == 0 {
				close(fast)
			}
		})
	}
	wg.Wait()
	// The others may have lost each other too, but not the one that went first.
	if n := m.gets.Load(); n < 2 || n > 5 {
		t.Errorf("the store inside was asked %d times; want 2, or as many as fell behind", n)
	}
	if st := idle(t, s); st.RAM.Taken != 0 || st.Bypassed != 1 {
		t.Errorf("afterwards: %+v", st)
	}
	limits(t, s)
}

// TestRangesOfAFill checks that a running fill serves ranges as they arrive. Ranges far ahead come
// from the inner store.
func TestRangesOfAFill(t *testing.T) {
	for name, o := range map[string]tier.Options{
		"ram": {RAMBytes: 256 << 20, LargeObject: -1},
		"ssd": {SSDBytes: 256 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			const size = 64 << 20
			m := newMade()
			var open1 atomic.Int64 // how far the fetch may proceed
			open1.Store(10 << 20)
			m.hold = func(_ string, off int64) error {
				for off >= open1.Load() && off < 40<<20 {
					time.Sleep(time.Millisecond)
				}
				return nil
			}
			o.Dir = t.TempDir()
			s := open(t, m, &o)
			key := madeKey(size, 3)
			whole := make(chan error, 1)
			go func() { whole <- get(context.Background(), s, key, 0, -1) }()
			for s.Holds(key).String() == "nowhere" {
				time.Sleep(time.Millisecond)
			}
			for _, r := range []struct{ off, n int64 }{{0, 10}, {5 << 20, 100_000}, {9 << 20, 1000}, {10<<20 - 500, 500}} {
				if err := get(t.Context(), s, key, r.off, r.n); err != nil {
					t.Error(err)
				}
			}
			if n := m.gets.Load(); n != 1 {
				t.Errorf("ranges of what had come asked the store inside %d times", n-1)
			}
			if err := get(t.Context(), s, key, 50<<20, 1000); err != nil {
				t.Error(err)
			}
			if n := m.gets.Load(); n != 2 {
				t.Errorf("a range far ahead asked the store inside %d times, want 1", n-1)
			}
			soon := make(chan error, 1)
			go func() { soon <- get(context.Background(), s, key, 12<<20, 1000) }()
			open1.Store(size)
			if err := <-soon; err != nil {
				t.Error(err)
			}
			if err := <-whole; err != nil {
				t.Error(err)
			}
			if n := m.gets.Load(); n != 2 {
				t.Errorf("a range just ahead asked the store inside %d times", n-2)
			}
			if err := get(t.Context(), s, key, 60<<20, -1); err != nil {
				t.Error(err)
			}
			idle(t, s)
			limits(t, s)
		})
	}
}

// TestWaitersThatLeave checks that a reader which leaves does not stop the others. When all have
// left, the fill continues only if most of the object has arrived.
func TestWaitersThatLeave(t *testing.T) {
	const size = 32 << 20
	for _, tt := range []struct {
		name string
		at   int64 // how far the fetch is when the last one leaves
		want string
	}{
		{"early", 6 << 20, "nowhere"},
		{"late", 20 << 20, "ssd"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := newMade()
			reached, goOn := make(chan struct{}), make(chan struct{})
			var once sync.Once
			m.hold = func(_ string, off int64) error {
				if off >= tt.at {
					once.Do(func() { close(reached) })
					<-goOn
				}
				return nil
			}
			s := open(t, m, &tier.Options{SSDBytes: 100 << 20, Dir: t.TempDir()})
			key := madeKey(size, 1)
			ctx, cancel := context.WithCancel(t.Context())
			first, err := s.Get(ctx, key, 0, -1)
			if err != nil {
				t.Fatal(err)
			}
			second, err := s.Get(t.Context(), key, 0, -1)
			if err != nil {
				t.Fatal(err)
			}
			<-reached
			cancel()
			if _, err := first.WriteTo(io.Discard); !errors.Is(err, context.Canceled) {
				t.Errorf("a reader whose context ended got %v", err)
			}
			if err := first.Close(); err != nil {
				t.Error(err)
			}
			b := make([]byte, 1000)
			if _, err := io.ReadFull(second, b); err != nil {
				t.Errorf("the other reader: %v", err)
			}
			if err := second.Close(); err != nil {
				t.Error(err)
			}
			close(goOn)
			idle(t, s)
			if at := s.Holds(key); at.String() != tt.want {
				t.Errorf("the object is in %s, want %s", at, tt.want)
			}
			if err := get(t.Context(), s, key, 0, -1); err != nil {
				t.Error(err)
			}
			limits(t, s)
		})
	}
}

var errBroken = errors.New("the line broke")

// TestFillBreaks checks that an interrupted fetch is continued. If it cannot be, all readers get an
// error and nothing is kept.
func TestFillBreaks(t *testing.T) {
	for _, tt := range []struct {
		name   string
		breaks int32
		ok     bool
	}{{"twice", 2, true}, {"always", 1 << 30, false}} {
		for tierName, o := range map[string]tier.Options{
			"ram": {RAMBytes: 16 << 20, LargeObject: -1}, "ssd": {SSDBytes: 16 << 20}, "window": {RAMBytes: 128 << 20, LargeObject: 1},
		} {
			t.Run(tt.name+", "+tierName, func(t *testing.T) {
				m := newMade()
				var left atomic.Int32
				left.Store(tt.breaks)
				m.hold = func(_ string, off int64) error {
					if off >= 1<<20 && left.Add(-1) >= 0 {
						return errBroken
					}
					return nil
				}
				o.Dir = t.TempDir()
				s := open(t, m, &o)
				key := madeKey(3<<20, 1)
				var wg sync.WaitGroup
				for range 8 {
					wg.Go(func() {
						err := get(t.Context(), s, key, 0, -1)
						if tt.ok && err != nil || !tt.ok && !errors.Is(err, errBroken) {
							t.Errorf("got error %v", err)
						}
					})
				}
				wg.Wait()
				st := idle(t, s)
				if !tt.ok && (s.Holds(key).String() != "nowhere" || st.RAM.Taken != 0 || st.SSD.Taken != 0 || st.FetchErrors == 0) {
					t.Errorf("something stays of what could not be fetched: %+v", st)
				}
				limits(t, s)
			})
		}
	}
}

// TestVerify checks that bytes which do not match the key are neither kept nor sent to their end.
func TestVerify(t *testing.T) {
	right := objtest.Content(1, 3<<20)
	wrong := bytes.Clone(right)
	wrong[1<<20]++
	sum := sha256.Sum256(right)
	for name, o := range map[string]tier.Options{"ram": {RAMBytes: 16 << 20, LargeObject: -1}, "ssd": {SSDBytes: 16 << 20}, "none": {RAMBytes: 1}} {
		t.Run(name, func(t *testing.T) {
			m := memstore.New(nil)
			o.Dir = t.TempDir()
			o.Verify = func(string) (hash.Hash, []byte) { return sha256.New(), sum[:] }
			s := open(t, m, &o)
			for _, tt := range []struct {
				data []byte
				ok   bool
			}{{wrong, name == "none"}, {right, true}} {
				if err := m.Put(t.Context(), "x", tt.data, false); err != nil {
					t.Fatal(err)
				}
				obj, err := s.Get(t.Context(), "x", 0, -1)
				if !tt.ok && errors.Is(err, tier.ErrCorrupt) {
					idle(t, s)
					continue // the comparison was quicker
				}
				if err != nil {
					t.Fatal(err)
				}
				got, err := io.ReadAll(obj)
				if tt.ok != (err == nil) || !tt.ok && (!errors.Is(err, tier.ErrCorrupt) || len(got) >= len(wrong)) {
					t.Errorf("got %d bytes, %v", len(got), err)
				}
				if err := obj.Close(); err != nil {
					t.Error(err)
				}
				idle(t, s)
				if kept := s.Holds("x").String() != "nowhere"; kept != (tt.ok && name != "none") {
					t.Errorf("kept: %t", kept)
				}
			}
		})
	}
}

func TestMissing(t *testing.T) {
	s := open(t, newMade(), &tier.Options{RAMBytes: 1 << 20})
	for range 2 {
		if _, err := s.Get(t.Context(), "none", 0, -1); !errors.Is(err, objstore.ErrNotExist) {
			t.Errorf("got %v, want ErrNotExist", err)
		}
	}
	if st := idle(t, s); st.FetchErrors != 0 || st.RAM.Entries != 0 {
		t.Errorf("after asking for nothing: %+v", st)
	}
}

// TestCloseEndsFills checks that readers of a running fill get an error, and not a part, when the
// cache is closed.
func TestCloseEndsFills(t *testing.T) {
	m := newMade()
	held := make(chan struct{})
	m.hold = func(_ string, off int64) error {
		if off > 0 {
			<-held
		}
		return nil
	}
	s, err := tier.New(m, &tier.Options{SSDBytes: 10 << 20, Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	o, err := s.Get(t.Context(), madeKey(2<<20, 1), 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	for {
		if err := s.Warm(t.Context(), madeKey(5, 5), -1); err != nil {
			break // closed
		}
	}
	close(held)
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if n, err := o.WriteTo(io.Discard); err == nil {
		t.Errorf("got %d bytes and no error", n)
	}
}

// TestSlowClientsHoldNothingUp checks that stalled readers of objects which are not kept leave room
// for other fetches.
func TestSlowClientsHoldNothingUp(t *testing.T) {
	s := open(t, newMade(), &tier.Options{RAMBytes: 512 << 20, LargeObject: 1 << 20, FillLimit: 1})
	for i := range uint64(3) {
		o, err := s.Get(t.Context(), madeKey(50<<20, i), 0, -1)
		if err != nil {
			t.Fatal(err)
		}
		defer o.Close()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := get(ctx, s, madeKey(1000, 1), 0, -1); err != nil {
		t.Error(err)
	}
}
