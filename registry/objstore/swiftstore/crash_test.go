package swiftstore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/objstore/objtest"
	"example.org/slipway/registry/objstore/swiftstore"
)

// crash runs do repeatedly, and the process dies one request later each time, until do succeeds.
// check examines what is left with the store of another process. It must leave the container empty.
func (b *bed) crash(t *testing.T, prepare func(t *testing.T, s *swiftstore.Store) (do func(context.Context) error), check func(t *testing.T, s *swiftstore.Store, container string, err error)) {
	w := &wire{}
	o := b.options(b.container())
	other := b.open(t, o)
	o.Transport = w
	s := b.open(t, o)
	for n, done := 0, false; !done; n++ {
		ok := t.Run(fmt.Sprintf("after %d requests", n), func(t *testing.T) {
			do := prepare(t, s)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			passed := w.cutAfter(n, cancel)
			err := do(ctx)
			w.set(nil, nil)
			if done = passed() <= n; done && err != nil {
				t.Fatalf("without a crash: %v", err)
			}
			check(t, other, o.Container, err)
			b.wantNames(t, o.Container)
		})
		done = done || !ok
	}
}

func testCommitCrash(t *testing.T, b *bed) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	old, young := objtest.Content(1, chunk+3), objtest.Content(2, 3*chunk+5)
	for _, kind := range []struct {
		name  string
		begin func(t *testing.T, s *swiftstore.Store) objstore.Upload
		want  []byte
	}{
		{"large", func(t *testing.T, s *swiftstore.Store) objstore.Upload {
			u := resume(t, s, suspend(t, begin(t, s, slices.Concat(young[:2*chunk+7], old))), 2*chunk+7)
			write(t, u, young[2*chunk+7:])
			return u
		}, young},
		{"copied", func(t *testing.T, s *swiftstore.Store) objstore.Upload {
			return resume(t, s, suspend(t, begin(t, s, young[:chunk/2])), chunk/2)
		}, young[:chunk/2]},
		{"small", func(t *testing.T, s *swiftstore.Store) objstore.Upload { return begin(t, s, young[:100]) }, young[:100]},
	} {
		t.Run(kind.name, func(t *testing.T) {
			b.crash(t, func(t *testing.T, s *swiftstore.Store) func(context.Context) error {
				upload(t, s, blobKey, old)
				u := kind.begin(t, s)
				return func(ctx context.Context) error { return u.Commit(ctx, blobKey) }
			}, func(t *testing.T, s *swiftstore.Store, container string, err error) {
				got := read(t, s, blobKey)
				isNew := bytes.Equal(got, kind.want)
				if !isNew && (err == nil || !bytes.Equal(got, old)) {
					t.Fatalf("after Commit with error %v: got an object of %d bytes that is neither the old nor the new one", err, len(got))
				}
				sweepAll(t, s)
				wantObject(t, s, blobKey, got)
				segments := (len(got) - 1) / chunk
				if segments > 0 {
					segments++
				}
				names := b.names(t, container)
				stored := 0
				for _, name := range names {
					if strings.HasPrefix(name, "<d") {
						stored++
					}
				}
				if stored != segments || slices.Contains(names, "<state>") {
					t.Errorf("after the sweep of an object of %d bytes: got %q, want %d segments and no state", len(got), names, segments)
				}
				if n, size := sweepAll(t, s); n != 0 || size != 0 {
					t.Errorf("second SweepUploads: got %d, %d bytes; want 0", n, size)
				}
				must(t, s.Delete(t.Context(), blobKey))
			})
		})
	}
}

func testDeleteCrash(t *testing.T, b *bed) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	data := objtest.Content(1, chunk+3)
	b.crash(t, func(t *testing.T, s *swiftstore.Store) func(context.Context) error {
		upload(t, s, blobKey, data)
		upload(t, s, "other", data)
		return func(ctx context.Context) error { return s.Delete(ctx, blobKey) }
	}, func(t *testing.T, s *swiftstore.Store, _ string, err error) {
		_, statErr := s.Stat(t.Context(), blobKey)
		gone := errors.Is(statErr, objstore.ErrNotExist)
		if err == nil && !gone {
			t.Errorf("after Delete: got error %v, want ErrNotExist", statErr)
		}
		sweepAll(t, s)
		if !gone {
			wantObject(t, s, blobKey, data)
			must(t, s.Delete(t.Context(), blobKey))
		}
		wantObject(t, s, "other", data)
		must(t, s.Delete(t.Context(), "other"))
	})
}

func testMoveCrash(t *testing.T, b *bed) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	data, old := objtest.Content(1, chunk+3), objtest.Content(2, 2*chunk)
	b.crash(t, func(t *testing.T, s *swiftstore.Store) func(context.Context) error {
		upload(t, s, "from", data)
		upload(t, s, "to", old)
		return func(ctx context.Context) error { return s.Move(ctx, "from", "to") }
	}, func(t *testing.T, s *swiftstore.Store, _ string, err error) {
		sweepAll(t, s)
		there := listed(t, s)
		moved := bytes.Equal(read(t, s, "to"), data)
		switch {
		case slices.Contains(there, "from"):
			wantObject(t, s, "from", data)
			if err == nil {
				t.Error("after Move the old key is still there")
			}
		case !moved:
			t.Errorf("after Move with error %v the object is under neither key", err)
		}
		if !moved {
			wantObject(t, s, "to", old)
		}
		// The keys are deleted one after the other, so the segments that they share must outlive
		// the first.
		must(t, s.Delete(t.Context(), "from"))
		if moved {
			wantObject(t, s, "to", data)
		}
		must(t, s.Delete(t.Context(), "to"))
	})
}

// testCommitFailsForNow checks that a temporary refusal costs nobody an upload.
func testCommitFailsForNow(t *testing.T, b *bed) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	w := &wire{}
	o := b.options(b.container())
	o.Transport = w
	s := b.open(t, o)
	data := objtest.Content(1, 2*chunk+3)
	for n := 0; ; n++ {
		u := resume(t, s, suspend(t, begin(t, s, data)), int64(len(data)))
		var mu sync.Mutex
		passed := 0
		w.set(func(req *http.Request) (*http.Response, error) {
			mu.Lock()
			defer mu.Unlock()
			if passed++; passed == n+1 {
				return answer(req, http.StatusServiceUnavailable, nil), nil
			}
			return nil, nil
		}, nil)
		err := u.Commit(t.Context(), "f/x")
		w.set(nil, nil)
		if err != nil {
			t.Fatalf("Commit with one 503 as answer %d: %v", n, err)
		}
		wantObject(t, s, "f/x", data)
		if passed <= n {
			break
		}
	}

	u := resume(t, s, suspend(t, begin(t, s, data)), int64(len(data)))
	w.set(func(req *http.Request) (*http.Response, error) {
		if strings.Contains(req.URL.RawQuery, "multipart-manifest=put") {
			return answer(req, http.StatusServiceUnavailable, map[string]string{"Retry-After": "1"}), nil
		}
		return nil, nil
	}, nil)
	err := u.Commit(t.Context(), "f/y")
	w.set(nil, nil)
	var busy *objstore.BusyError
	if !errors.As(err, &busy) || busy.RetryAfter != time.Second {
		t.Errorf("Commit that is refused for good: got error %v (%+v), want a BusyError with 1 s", err, busy)
	}
	wantMissing(t, s, "f/y")
}

// testCommitUndecided loses the answer after the manifest was written. The process lives on and
// tidies up, but must not remove what the object needs.
func testCommitUndecided(t *testing.T, b *bed) {
	w := &wire{}
	o := b.options(b.container())
	o.Transport = w
	s := b.open(t, o)
	data := objtest.Content(1, 2*chunk+3)
	state := suspend(t, begin(t, s, data))
	for _, key := range []string{"u/resumed", "u/new"} {
		var u objstore.Upload
		if key == "u/resumed" {
			u = resume(t, s, state, int64(len(data)))
		} else {
			u = begin(t, s, data)
		}
		w.set(nil, func(resp *http.Response) (*http.Response, error) {
			if strings.Contains(resp.Request.URL.RawQuery, "multipart-manifest=put") {
				resp.Body.Close()
				return nil, errCut
			}
			return resp, nil
		})
		var busy *objstore.BusyError
		if err := u.Commit(t.Context(), key); !errors.As(err, &busy) {
			t.Errorf("Commit of %s without an answer: got error %v, want a BusyError", key, err)
		}
		must(t, u.Cancel(t.Context()))
		w.set(nil, nil)
		must(t, s.Abandon(t.Context(), state))
		wantObject(t, s, key, data)
		sweepAll(t, s)
		wantObject(t, s, key, data)
		must(t, s.Delete(t.Context(), key))
		b.wantNames(t, o.Container)
	}
	if _, err := s.Resume(t.Context(), state, 0); !errors.Is(err, objstore.ErrNotExist) {
		t.Errorf("Resume after a failed Commit: got error %v, want ErrNotExist", err)
	}
}

// testSweepDoubts checks an object that seems to be gone while the listing shows it. It may only be
// unreachable.
func testSweepDoubts(t *testing.T, b *bed) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	w := &wire{}
	o := b.options(b.container())
	o.Transport = w
	s := b.open(t, o)
	data := objtest.Content(1, 2*chunk+3)
	upload(t, s, "d/x", objtest.Content(2, 2*chunk))
	upload(t, s, "d/x", data)
	for name, path := range map[string]string{"object": "d/x", "key": "/key-0"} {
		w.set(func(req *http.Request) (*http.Response, error) {
			if strings.HasSuffix(req.URL.Path, path) {
				return answer(req, http.StatusNotFound, nil), nil
			}
			return nil, nil
		}, nil)
		if n, size := sweepAll(t, s); n != 0 || size != 0 {
			t.Errorf("SweepUploads while the %s is out of reach: got %d, %d bytes; want 0", name, n, size)
		}
	}
	// An outdated replica has another manifest.
	w.set(nil, func(resp *http.Response) (*http.Response, error) {
		if resp.Request.Method == http.MethodHead && strings.HasSuffix(resp.Request.URL.Path, "d/x") {
			resp.Header.Set("X-Object-Meta-Slipway-Upload", strings.Repeat("A", 26))
			resp.Header.Set("X-Timestamp", "1000000000.00000")
		}
		return resp, nil
	})
	if n, size := sweepAll(t, s); n != 0 || size != 0 {
		t.Errorf("SweepUploads that reads an old replica: got %d, %d bytes; want 0", n, size)
	}
	w.set(nil, nil)
	wantObject(t, s, "d/x", data)
}

// testWriteFails checks that what Write could not store is still in the upload.
func testWriteFails(t *testing.T, b *bed) {
	w := &wire{}
	c := b.container()
	o := b.options(c)
	o.Transport = w
	s := b.open(t, o)
	data := objtest.Content(1, 5*chunk)
	u := begin(t, s, data[:chunk/2])
	w.set(func(req *http.Request) (*http.Response, error) {
		if req.Method == http.MethodPut {
			return answer(req, 498, nil), nil
		}
		return nil, nil
	}, nil)
	var err error
	for err == nil && u.Size() < int64(len(data)) {
		before := u.Size()
		var n int
		n, err = u.Write(data[before:min(before+1000, int64(len(data)))])
		if u.Size() != before+int64(n) {
			t.Fatalf("Write at %d: got %d, size %d", before, n, u.Size())
		}
	}
	var busy *objstore.BusyError
	if !errors.As(err, &busy) {
		t.Fatalf("Write while the store refuses: got error %v at %d, want a BusyError", err, u.Size())
	}
	if u.Size() > 2*chunk {
		t.Errorf("upload has taken %d bytes and stored none, want two chunks at most", u.Size())
	}
	w.set(nil, nil)
	write(t, u, data[u.Size():])
	must(t, u.Commit(t.Context(), "w/x"))
	wantObject(t, s, "w/x", data)

	// An upload that was suspended before can still be resumed unchanged.
	state := suspend(t, begin(t, s, data[:2*chunk]))
	u = resume(t, s, state, 2*chunk)
	write(t, u, data[2*chunk:2*chunk+10])
	w.set(func(req *http.Request) (*http.Response, error) { return nil, errCut }, nil)
	if _, err := u.Suspend(t.Context()); !errors.As(err, &busy) {
		t.Errorf("Suspend while the store is away: got error %v, want a BusyError", err)
	}
	w.set(nil, nil)
	u = resume(t, s, state, 2*chunk)
	must(t, u.Commit(t.Context(), "w/y"))
	wantObject(t, s, "w/y", data[:2*chunk])
}
