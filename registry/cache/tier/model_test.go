package tier_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.org/slipway/internal/policy"
	"example.org/slipway/registry/cache/tier"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/objstore/memstore"
	"example.org/slipway/registry/objstore/objtest"
)

var errFault = errors.New("the store fails")

// worker is one of the concurrent users of a store. Each has its own keys, which only it changes,
// and some that nobody changes.
type worker struct {
	t      *testing.T
	s      *tier.Store
	r      *rand.Rand
	id     int
	faults *atomic.Bool
	has    map[string][]byte
}

// TestModel checks after any operation that the bytes are those of the inner store. An error is
// allowed only if the inner store fails.
func TestModel(t *testing.T) {
	seeds := uint64(12)
	if testing.Short() {
		seeds = 3
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			var faults atomic.Bool
			r := rnd(seed)
			m := memstore.New(nil)
			var n atomic.Uint64
			fail := func(op, _ string) error {
				if faults.Load() && (op == objtest.OpGet || op == objtest.OpRead) && n.Add(1)%13 == 0 {
					return errFault
				}
				return nil
			}
			inner := objtest.Faulty(m, objtest.Faults{Before: fail, After: fail})
			s := open(t, inner, &tier.Options{
				RAMBytes: 5000 + r.Int64N(50_000), SSDBytes: r.Int64N(2) * (20_000 + r.Int64N(100_000)), Dir: t.TempDir(),
				RAMPolicy: policy.Names()[r.IntN(len(policy.Names()))], LargeObject: []int64{-1, 1000, 8000}[r.IntN(3)],
				Admission: policy.Admission(r.IntN(3)), SSDWritePerDay: r.Int64N(2) << 40, SSDWriteBurst: 1 << 20,
				WriteThrough: r.IntN(2) == 0, FillLimit: 1 + r.IntN(8), Seed: seed,
			})
			var wg sync.WaitGroup
			for id := range 4 {
				w := &worker{t: t, s: s, r: rnd(seed*100 + uint64(id)), id: id, faults: &faults, has: map[string][]byte{}}
				wg.Go(func() {
					for range 400 {
						w.step()
					}
				})
			}
			wg.Wait()
			faults.Store(false)
			s.DropAll()
			st := idle(t, s)
			for deadline := time.Now().Add(20 * time.Second); st.RAM.Taken != 0 || st.SSD.Taken != 0; st = idle(t, s) {
				if time.Now().After(deadline) { // dropped objects are removed in the background
					t.Fatalf("bytes are taken by nothing: %+v", st)
				}
				time.Sleep(time.Millisecond)
			}
			limits(t, s)
		})
	}
}

// size returns a size, which is mostly small.
func (w *worker) size() int {
	if w.r.IntN(10) == 0 {
		return w.r.IntN(60_000)
	}
	return w.r.IntN(6000)
}

func (w *worker) key() string { return fmt.Sprintf("w%d/%d", w.id, w.r.IntN(12)) }

func (w *worker) step() {
	ctx, key := w.t.Context(), w.key()
	switch w.r.IntN(14) {
	case 0:
		data := objtest.Content(w.r.Uint64(), w.size())
		if err := w.s.Put(ctx, key, data, false); err != nil {
			w.t.Errorf("Put: %v", err)
		}
		w.has[key] = data
	case 1:
		w.upload(key)
	case 2:
		if err := w.s.Delete(ctx, key); err != nil {
			w.t.Errorf("Delete: %v", err)
		}
		delete(w.has, key)
	case 3:
		err := w.s.Warm(ctx, key, -1)
		if want := w.has[key]; err != nil && want != nil && !errors.Is(err, tier.ErrNotKept) && !errors.Is(err, errFault) {
			w.t.Errorf("Warm: %v", err)
		}
	case 4:
		w.s.Pin(key, time.Now().Add(time.Duration(w.r.IntN(2000))*time.Microsecond))
	case 5:
		w.s.Unpin(key)
	case 6:
		w.s.Drop(key)
	case 7:
		w.faults.Store(w.r.IntN(2) == 0)
	case 8: // a reader that leaves
		ctx, cancel := context.WithCancel(ctx)
		o, err := w.s.Get(ctx, key, 0, -1)
		cancel()
		if err == nil {
			_, _ = o.Read(make([]byte, 100)) // with an error or without
			_ = o.Close()
		}
	default:
		w.get(key)
	}
}

func (w *worker) upload(key string) {
	ctx, data := w.t.Context(), objtest.Content(w.r.Uint64(), w.size())
	u, err := w.s.NewUpload(ctx, -1)
	for from := 0; err == nil && from < len(data); {
		n := min(1+w.r.IntN(5000), len(data)-from)
		if _, err = u.Write(data[from : from+n]); err != nil {
			break
		}
		from += n
		if w.r.IntN(3) == 0 {
			var state string
			if state, err = u.Suspend(ctx); err == nil {
				u, err = w.s.Resume(ctx, state, int64(from))
			}
		}
	}
	if err == nil {
		err = u.Commit(ctx, key)
	}
	if err != nil {
		w.t.Errorf("upload: %v", err)
		return
	}
	w.has[key] = data
}

func (w *worker) get(key string) {
	want, there := w.has[key]
	off, n := int64(0), int64(-1)
	if w.r.IntN(2) == 0 {
		off, n = w.r.Int64N(int64(len(want))+10), w.r.Int64N(int64(len(want))+10)-1
	}
	o, err := w.s.Get(w.t.Context(), key, off, n)
	if err != nil {
		if !errors.Is(err, errFault) && (there || !errors.Is(err, objstore.ErrNotExist)) {
			w.t.Errorf("Get: %v", err)
		}
		return
	}
	defer o.Close()
	var b bytes.Buffer
	if w.r.IntN(2) == 0 {
		_, err = o.WriteTo(&b)
	} else {
		_, err = io.Copy(&b, struct{ io.Reader }{o})
	}
	rest := want[min(off, int64(len(want))):]
	if n >= 0 && n < int64(len(rest)) {
		rest = rest[:n]
	}
	switch {
	case !there:
		w.t.Errorf("Get of what was deleted: %d bytes", b.Len())
	case err != nil && !errors.Is(err, errFault):
		w.t.Errorf("read %s: %v", key, err)
	case !bytes.HasPrefix(rest, b.Bytes()), err == nil && b.Len() != len(rest):
		w.t.Errorf("read %s from %d: %d other bytes, %v; want %d", key, off, b.Len(), err, len(rest))
	}
}
