package remote_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/objstore/fsstore"
	"example.org/slipway/registry/objstore/memstore"
	"example.org/slipway/registry/objstore/objtest"
	"example.org/slipway/registry/objstore/remote"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestSuite(t *testing.T) {
	for name, hedge := range map[string]time.Duration{"hedged": time.Nanosecond, "plain": -1} {
		t.Run(name, func(t *testing.T) {
			objtest.Run(t, func(t *testing.T) objstore.Store {
				return remote.Wrap(memstore.New(nil), &remote.Options{HedgeAfter: hedge})
			}, &objtest.Options{Suspended: 200})
		})
	}
}

// TestSuiteFlaky fails every fourth operation before it is done, and no caller may notice. It
// excludes the methods of Upload, which are not repeated, and reads of bodies. A read that
// continues finds the object replaced in the cases that replace it.
func TestSuiteFlaky(t *testing.T) {
	var n atomic.Int64
	quiet := []string{objtest.OpRead, objtest.OpWrite, objtest.OpSuspend, objtest.OpCommit, objtest.OpCancel, objtest.OpSweep}
	objtest.Run(t, func(t *testing.T) objstore.Store {
		inner := objtest.Faulty(memstore.New(nil), objtest.Faults{Before: func(op, _ string) error {
			if slices.Contains(quiet, op) {
				return nil
			}
			if n.Add(1)%4 == 0 {
				return &objstore.BusyError{Err: errors.New("said by the test")}
			}
			return nil
		}})
		return remote.Wrap(inner, &remote.Options{Retry: quick()})
	}, &objtest.Options{Suspended: 50})
}

// quick returns options that retry without much waiting and without end.
func quick() *remote.Retry {
	return remote.NewRetry(&remote.RetryOptions{First: time.Microsecond, Most: time.Microsecond, Tries: 20, Burst: 1e9})
}

// hooked is a store whose Get and Stat are functions.
type hooked struct {
	objstore.Store
	get  func(ctx context.Context, off int64) (objstore.Object, error)
	stat func(ctx context.Context) error
	list func(ctx context.Context, after string) iter.Seq2[objstore.Info, error]
}

func (h *hooked) Get(ctx context.Context, key string, off, n int64) (objstore.Object, error) {
	if h.get != nil {
		if o, err := h.get(ctx, off); o != nil || err != nil {
			return o, err
		}
	}
	return h.Store.Get(ctx, key, off, n)
}

func (h *hooked) Stat(ctx context.Context, key string) (objstore.Info, error) {
	if h.stat != nil {
		return objstore.Info{}, h.stat(ctx)
	}
	return h.Store.Stat(ctx, key)
}

func (h *hooked) List(ctx context.Context, prefix, after string) iter.Seq2[objstore.Info, error] {
	if h.list != nil {
		return h.list(ctx, after)
	}
	return h.Store.List(ctx, prefix, after)
}

// TestRetryAfter checks that pauses are as long as the store asks for, within the bound, and that
// they grow otherwise.
func TestRetryAfter(t *testing.T) {
	for _, tt := range []struct {
		name     string
		after    time.Duration
		min, max time.Duration // of all pauses
	}{
		{"asked", 2 * time.Second, 8 * time.Second, 12 * time.Second},
		{"asked for too long", time.Hour, 40 * time.Second, 40 * time.Second},
		{"not asked", 0, 750 * time.Millisecond, 2250 * time.Millisecond},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tries := 0
				s := remote.Wrap(&hooked{Store: memstore.New(nil), stat: func(context.Context) error {
					tries++
					return fmt.Errorf("stat: %w", &objstore.BusyError{RetryAfter: tt.after, Err: errors.New("x")})
				}}, nil)
				begin := time.Now()
				_, err := s.Stat(t.Context(), "a")
				var busy *objstore.BusyError
				if !errors.As(err, &busy) || tries != 5 {
					t.Errorf("Stat: got %v after %d tries, want a BusyError after 5", err, tries)
				}
				if took := time.Since(begin); took < tt.min || took > tt.max {
					t.Errorf("5 tries took %v, want %v to %v", took, tt.min, tt.max)
				}
			})
		})
	}
}

// TestDeadline checks that no pause exceeds the caller's deadline, and that the error is the
// store's.
func TestDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := remote.Wrap(&hooked{Store: memstore.New(nil), stat: func(context.Context) error {
			return &objstore.BusyError{RetryAfter: 5 * time.Second, Err: errors.New("x")}
		}}, nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begin := time.Now()
		_, err := s.Stat(ctx, "a")
		var busy *objstore.BusyError
		if !errors.As(err, &busy) || time.Since(begin) != 0 {
			t.Errorf("Stat: got %v after %v, want a BusyError at once", err, time.Since(begin))
		}
	})
}

// torn is an object whose stream breaks after a number of bytes.
type torn struct {
	objstore.Object
	left int
}

func (o *torn) Read(p []byte) (int, error) {
	if o.left == 0 {
		return 0, syscall.ECONNRESET
	}
	n, err := o.Object.Read(p[:min(len(p), o.left)])
	o.left -= n
	return n, err
}

// TestTornReads checks that a body is continued as long as each stream brings something, and given
// up when streams bring nothing.
func TestTornReads(t *testing.T) {
	inner := memstore.New(nil)
	data := objtest.Content(1, 2<<20)
	must(t, inner.Put(t.Context(), "a", data, false))
	for _, each := range []int{100 << 10, 1 << 10} {
		gets := 0
		s := remote.Wrap(&hooked{Store: inner, get: func(ctx context.Context, off int64) (objstore.Object, error) {
			gets++
			o, err := inner.Get(ctx, "a", off, -1)
			if err != nil {
				return nil, err
			}
			return &torn{Object: o, left: each}, nil
		}}, &remote.Options{Retry: quick()})
		o, err := s.Get(t.Context(), "a", 0, -1)
		must(t, err)
		got, err := io.ReadAll(o)
		must(t, o.Close())
		if each == 100<<10 {
			if err != nil || !bytes.Equal(got, data) || gets != 21 {
				t.Errorf("torn each %d bytes: %d bytes in %d reads, %v; want all of them in 21", each, len(got), gets, err)
			}
		} else if !errors.Is(err, syscall.ECONNRESET) || len(got) != 9*each {
			t.Errorf("torn each %d bytes: %d bytes, %v; want 9 streams and the reset", each, len(got), err)
		}
	}
}

// TestNoRetry checks that permanent errors are not retried.
func TestNoRetry(t *testing.T) {
	for _, want := range []error{objstore.ErrNotExist, objstore.ErrExist, objstore.ErrNoSpace, context.Canceled, errors.New("denied")} {
		tries := 0
		s := remote.Wrap(&hooked{Store: memstore.New(nil), stat: func(context.Context) error {
			tries++
			return want
		}}, nil)
		if _, err := s.Stat(t.Context(), "a"); !errors.Is(err, want) || tries != 1 {
			t.Errorf("Stat: got %v after %d tries, want %v after 1", err, tries, want)
		}
	}
}

func TestPassing(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{&objstore.BusyError{Err: errors.New("x")}, true},
		{fmt.Errorf("wrapped: %w", &objstore.BusyError{Err: errors.New("x")}), true},
		{io.ErrUnexpectedEOF, true},
		{syscall.ECONNRESET, true},
		{syscall.ECONNREFUSED, true},
		{syscall.EPIPE, true},
		{syscall.EACCES, false},
		{context.Canceled, false},
		{objstore.ErrNoSpace, false},
		{fmt.Errorf("%w: %w", objstore.ErrNoSpace, io.ErrUnexpectedEOF), false},
	} {
		if got := remote.Passing(tt.err); got != tt.want {
			t.Errorf("Passing(%v): got %t, want %t", tt.err, got, tt.want)
		}
	}
}

// TestLimit checks that operations beyond the limit wait, and are refused in the end.
func TestLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var now, most atomic.Int32
		block := make(chan struct{})
		s := remote.Wrap(&hooked{Store: memstore.New(nil), stat: func(context.Context) error {
			most.Store(max(most.Load(), now.Add(1)))
			<-block
			now.Add(-1)
			return nil
		}}, &remote.Options{Concurrent: 3, Wait: time.Second, Timeout: time.Hour})
		var wg sync.WaitGroup
		var refused atomic.Int32
		for range 10 {
			wg.Go(func() {
				_, err := s.Stat(t.Context(), "a")
				var busy *objstore.BusyError
				if errors.As(err, &busy) {
					refused.Add(1)
				} else if err != nil {
					t.Errorf("Stat: %v", err)
				}
			})
		}
		time.Sleep(2 * time.Second)
		close(block)
		wg.Wait()
		if most.Load() != 3 || refused.Load() != 7 {
			t.Errorf("%d operations at once, %d refused; want 3, 7", most.Load(), refused.Load())
		}
	})
}

// TestTimeout checks that each attempt has its timeout, and that a store which then answers is
// used.
func TestTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		s := remote.Wrap(&hooked{Store: memstore.New(nil), stat: func(ctx context.Context) error {
			if tries++; tries < 3 {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}}, &remote.Options{Timeout: time.Second})
		if _, err := s.Stat(t.Context(), "a"); err != nil || tries != 3 {
			t.Errorf("Stat: got %v after %d tries, want nil after 3", err, tries)
		}
	})
}

// TestHedgeTime checks that hedges wait for the usual time of the store, and that the loser's
// answer is closed.
func TestHedgeTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New(nil)
		must(t, mem.Put(t.Context(), "a", []byte("body"), false))
		delay, sent := 200*time.Millisecond, 0
		var open atomic.Int32
		var mu sync.Mutex
		s := remote.Wrap(&hooked{Store: mem, get: func(ctx context.Context, off int64) (objstore.Object, error) {
			mu.Lock()
			d := delay
			if sent++; delay == 0 { // the first of a race is the slow one
				d = []time.Duration{0, time.Hour, 10 * time.Millisecond}[sent]
			}
			mu.Unlock()
			select {
			case <-time.After(d):
			case <-ctx.Done():
				return nil, ctx.Err()
			}
			o, err := mem.Get(ctx, "a", off, -1)
			if err == nil {
				open.Add(1)
				o = &counted{o, &open}
			}
			return o, err
		}}, &remote.Options{Timeout: 2 * time.Hour})
		read := func() time.Duration {
			begin := time.Now()
			o, err := s.Get(t.Context(), "a", 0, -1)
			must(t, err)
			took := time.Since(begin)
			b, err := io.ReadAll(o)
			if string(b) != "body" || err != nil {
				t.Errorf("read: got %q, %v", b, err)
			}
			must(t, o.Close())
			return took
		}
		for range 32 {
			read()
		}
		mu.Lock()
		delay, sent = 0, 0
		mu.Unlock()
		if took, want := read(), 210*time.Millisecond; took != want {
			t.Errorf("hedged read took %v, want %v", took, want)
		}
		must(t, s.Close())
		if open.Load() != 0 {
			t.Errorf("%d objects are still open", open.Load())
		}
	})
}

// counted is an object that decrements a counter when it is closed.
type counted struct {
	objstore.Object
	open *atomic.Int32
}

func (c *counted) Close() error {
	c.open.Add(-1)
	return c.Object.Close()
}

// TestListGoesOn checks that an interrupted walk lists every object once.
func TestListGoesOn(t *testing.T) {
	mem := memstore.New(nil)
	var want []string
	for i := range 50 {
		key := fmt.Sprintf("k/%02d", i)
		must(t, mem.Put(t.Context(), key, nil, false))
		want = append(want, key)
	}
	s := remote.Wrap(&hooked{Store: mem, list: func(ctx context.Context, after string) iter.Seq2[objstore.Info, error] {
		return func(yield func(objstore.Info, error) bool) {
			n := 0
			for info, err := range mem.List(ctx, "k/", after) {
				if n++; n > 7 {
					yield(objstore.Info{}, &objstore.BusyError{Err: errors.New("x")})
					return
				}
				if !yield(info, err) {
					return
				}
			}
		}
	}}, &remote.Options{Retry: quick()})
	var got []string
	for info, err := range s.List(t.Context(), "k/", "") {
		must(t, err)
		got = append(got, info.Key)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("List: -want +got\n%s", diff)
	}
}

// TestAbilities checks that a wrapped store has the abilities of the inner one and no others.
func TestAbilities(t *testing.T) {
	fs, err := fsstore.New(t.TempDir(), nil)
	must(t, err)
	s := remote.Wrap(fs, nil)
	defer s.Close()
	ctx := t.Context()
	must(t, s.Put(ctx, "a", []byte("body"), false))
	mover, ok := objstore.As[objstore.Mover](s)
	if !ok {
		t.Fatal("no Mover")
	}
	must(t, mover.Move(ctx, "a", "b"))
	opener, ok := objstore.As[objstore.Opener](s)
	if !ok {
		t.Fatal("no Opener")
	}
	r, err := opener.OpenAt(ctx, "b")
	must(t, err)
	got := make([]byte, 2)
	if n, err := r.ReadAt(got, 1); n != 2 || err != nil || !bytes.Equal(got, []byte("od")) {
		t.Errorf("ReadAt: got %d, %q, %v", n, got, err)
	}
	must(t, r.Close())
	if _, err := r.ReadAt(got, 1); err == nil {
		t.Error("ReadAt after Close: got no error")
	}
	sweeper, ok := objstore.As[objstore.UploadSweeper](s)
	if !ok {
		t.Fatal("no UploadSweeper")
	}
	if n, _, err := sweeper.SweepUploads(ctx, time.Now(), func(string) bool { return false }); n != 0 || err != nil {
		t.Errorf("SweepUploads: got %d, %v", n, err)
	}
	adopter, ok := objstore.As[objstore.Adopter](s)
	if !ok {
		t.Fatal("no Adopter")
	}
	path := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(path, []byte("adopted"), 0o600))
	must(t, adopter.AdoptFile(ctx, "c", path))
	if info, err := s.Stat(ctx, "c"); err != nil || info.Size != 7 {
		t.Errorf("Stat of what was adopted: got %+v, %v", info, err)
	}
	if _, ok := objstore.As[objstore.Redirector](s); ok {
		t.Error("the file system store redirects")
	}
	if _, ok := objstore.As[objstore.KeyedUploader](s); ok {
		t.Error("the file system store is a KeyedUploader")
	}
}
