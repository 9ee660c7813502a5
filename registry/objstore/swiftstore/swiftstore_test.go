package swiftstore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"example.org/slipway/internal/backendtest"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/objstore/objtest"
	"example.org/slipway/registry/objstore/swiftstore"
)

const blobKey = "docker/registry/v2/blobs/sha256/ab/abcdef/data"

// chunk is the chunk size of most tests.
const chunk = 64 << 10

// bed is the Swift cluster that all tests share, with the containers they make.
type bed struct {
	*backendtest.SwiftServer
	made  atomic.Int32
	token atomic.Value // of the test's own requests
}

// container returns the name of an unused container.
func (b *bed) container() string { return fmt.Sprintf("c%d", b.made.Add(1)) }

func (b *bed) options(container string) swiftstore.Options {
	return swiftstore.Options{AuthURL: b.AuthURL, Username: b.User, Password: b.Key, Container: container, ChunkSize: chunk}
}

func (b *bed) open(t testing.TB, o swiftstore.Options) *swiftstore.Store {
	t.Helper()
	s, err := swiftstore.New(t.Context(), o)
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

// testCase is a part of TestSwift.
type testCase struct {
	name string
	run  func(*testing.T, *bed)
}

// TestSwift runs all tests that need a cluster on a single one.
func TestSwift(t *testing.T) {
	b := &bed{SwiftServer: backendtest.Swift(t)}
	t.Run("Together", func(t *testing.T) { b.together(t) })
	// These tests change what all share, or cannot run beside load.
	for _, c := range []testCase{
		{"TempURLKeys", testTempURLKeys},
		{"Token", testToken},
		{"Silent", testSilent},
		{"ObjectServerKilled", testObjectServerKilled},
		{"Restart", testRestart}, // the last one
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, b) })
	}
}

// together runs the cases that have their own containers at the same time.
func (b *bed) together(t *testing.T) {
	for _, c := range []testCase{
		{"Conformance", testConformance},
		{"DefaultChunk", testDefaultChunk},
		{"Containers", testContainers},
		{"Prefixes", testPrefixes},
		{"Segments", testSegments},
		{"NestedManifests", testNestedManifests},
		{"Resume", testResume},
		{"OtherChunkSize", testOtherChunkSize},
		{"SmallPieces", testSmallPieces},
		{"DeleteFrees", testDeleteFrees},
		{"ForeignLargeObject", testForeignLargeObject},
		{"Replaced", testReplaced},
		{"Move", testMove},
		{"SweepLeavesTheLiving", testSweepLeavesTheLiving},
		{"SweepTidies", testSweepTidies},
		{"CommitCrash", testCommitCrash},
		{"DeleteCrash", testDeleteCrash},
		{"MoveCrash", testMoveCrash},
		{"CommitFailsForNow", testCommitFailsForNow},
		{"CommitUndecided", testCommitUndecided},
		{"SweepDoubts", testSweepDoubts},
		{"WriteFails", testWriteFails},
		{"TempURL", testTempURL},
		{"Errors", testErrors},
		{"Liar", testLiar},
		{"Truncated", testTruncated},
		{"Quota", testQuota},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.run(t, b)
		})
	}
}

// testConformance uses objects of one segment and of many, in a container that is not the store's
// alone.
func testConformance(t *testing.T, b *bed) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	c := b.container()
	var stores atomic.Int32
	objtest.Run(t, func(t *testing.T) objstore.Store {
		o := b.options(c)
		o.ChunkSize, o.Prefix = 100_000, fmt.Sprintf("some/where/%d", stores.Add(1))
		o.TempURLKey = "spares looking for one"
		s := b.open(t, o)
		swiftstore.SetPageSize(s, "19")
		return s
	}, &objtest.Options{Suspended: 8, LargeSize: 350_001})
}

// testDefaultChunk checks that an object below the default chunk size is one plain object, however
// many pieces and requests bring it.
func testDefaultChunk(t *testing.T, b *bed) {
	c := b.container()
	o := b.options(c)
	o.ChunkSize = 0
	s := b.open(t, o)
	data := objtest.Content(1, 5<<20+1)
	half := int64(3 << 20)
	u := begin(t, s, nil)
	for rest := data[:half]; len(rest) > 0; {
		n := min(len(rest), 300_000)
		write(t, u, rest[:n])
		rest = rest[n:]
	}
	u = resume(t, s, suspend(t, u), half)
	write(t, u, data[half:])
	must(t, u.Commit(t.Context(), blobKey))
	wantObject(t, s, blobKey, data)
	b.wantNames(t, c, blobKey)
	if got := readRange(t, s, blobKey, half-5, 10); !bytes.Equal(got, data[half-5:half+5]) {
		t.Error("Get of a range: got other bytes")
	}
}

func BenchmarkSwift(b *testing.B) {
	bd := &bed{SwiftServer: backendtest.Swift(b)}
	o := bd.options(bd.container())
	o.ChunkSize = 0
	s := bd.open(b, o)
	const size = 256 << 20
	buf := objtest.Content(1, 256<<10)
	b.Run("Upload/256MiB", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			u, err := s.NewUpload(b.Context(), size)
			for err == nil && u.Size() < size {
				_, err = u.Write(buf)
			}
			if err == nil {
				err = u.Commit(b.Context(), blobKey)
			}
			if err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("Get/256MiB", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			o, err := s.Get(b.Context(), blobKey, 0, -1)
			must(b, err)
			n, err := o.WriteTo(io.Discard)
			must(b, err)
			if n != size {
				b.Fatalf("Get: got %d bytes, want %d", n, size)
			}
			must(b, o.Close())
		}
	})
	small := buf[:4<<10]
	b.Run("Put/4KiB", func(b *testing.B) {
		for b.Loop() {
			must(b, s.Put(b.Context(), "small/data", small, false))
		}
	})
	b.Run("Get/4KiB", func(b *testing.B) {
		for b.Loop() {
			if got := read(b, s, "small/data"); len(got) != len(small) {
				b.Fatalf("Get: got %d bytes", len(got))
			}
		}
	})
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// begin begins an upload with data.
func begin(t testing.TB, s objstore.Store, data []byte) objstore.Upload {
	t.Helper()
	u, err := s.NewUpload(t.Context(), -1)
	must(t, err)
	write(t, u, data)
	return u
}

func write(t testing.TB, u objstore.Upload, data []byte) {
	t.Helper()
	if n, err := u.Write(data); n != len(data) || err != nil {
		t.Fatalf("Write of %d bytes: got %d, %v", len(data), n, err)
	}
}

func suspend(t testing.TB, u objstore.Upload) string {
	t.Helper()
	state, err := u.Suspend(t.Context())
	must(t, err)
	return state
}

func resume(t testing.TB, s objstore.Store, state string, size int64) objstore.Upload {
	t.Helper()
	u, err := s.Resume(t.Context(), state, size)
	must(t, err)
	if u.Size() != size {
		t.Fatalf("Resume at %d: got size %d", size, u.Size())
	}
	return u
}

// upload writes an object with an upload.
func upload(t testing.TB, s objstore.Store, key string, data []byte) {
	t.Helper()
	must(t, begin(t, s, data).Commit(t.Context(), key))
}

// read returns an object's bytes.
func read(t testing.TB, s objstore.Store, key string) []byte {
	t.Helper()
	return readRange(t, s, key, 0, -1)
}

func readRange(t testing.TB, s objstore.Store, key string, off, n int64) []byte {
	t.Helper()
	o, err := s.Get(t.Context(), key, off, n)
	must(t, err)
	defer o.Close()
	b, err := io.ReadAll(o)
	must(t, err)
	return b
}

func wantObject(t testing.TB, s objstore.Store, key string, want []byte) {
	t.Helper()
	if got := read(t, s, key); !bytes.Equal(got, want) {
		t.Errorf("object %s: got %d bytes, want %d (equal: false)", key, len(got), len(want))
	}
}

func wantMissing(t testing.TB, s objstore.Store, key string) {
	t.Helper()
	if _, err := s.Stat(t.Context(), key); !errors.Is(err, objstore.ErrNotExist) {
		t.Errorf("Stat of %s: got error %v, want ErrNotExist", key, err)
	}
}

// request sends one of the test's own requests to the account.
func (b *bed) request(t testing.TB, method, path string, header map[string]string, body string) (*http.Response, string) {
	t.Helper()
	for {
		token, known := b.token.Load().(string)
		if !known {
			token = b.authenticate(t)
			b.token.Store(token)
		}
		req, err := http.NewRequestWithContext(t.Context(), method, b.StorageURL+"/"+path, strings.NewReader(body))
		must(t, err)
		req.Close = method == http.MethodHead
		req.Header.Set("X-Auth-Token", token)
		for k, v := range header {
			req.Header.Set(k, v)
		}
		resp, err := http.DefaultClient.Do(req)
		must(t, err)
		text, err := io.ReadAll(resp.Body)
		must(t, errors.Join(err, resp.Body.Close()))
		if resp.StatusCode != http.StatusUnauthorized || !known {
			return resp, string(text)
		}
		b.token.CompareAndSwap(token, b.authenticate(t)) // it was revoked
	}
}

func (b *bed) authenticate(t testing.TB) (token string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, b.AuthURL, nil)
	must(t, err)
	req.Header.Set("X-Auth-User", b.User)
	req.Header.Set("X-Auth-Key", b.Key)
	resp, err := http.DefaultClient.Do(req)
	must(t, err)
	resp.Body.Close()
	return resp.Header.Get("X-Auth-Token")
}

// names lists the objects of a container. The IDs and tags of uploads are cut off.
func (b *bed) names(t testing.TB, container string) []string {
	t.Helper()
	resp, text := b.request(t, http.MethodGet, container, nil, "") // no test has more than one page
	if resp.StatusCode/100 != 2 {
		t.Fatalf("list %s: %s", container, resp.Status)
	}
	var names []string
	if text != "" {
		names = strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	}
	for i, name := range names {
		if _, rest, ok := strings.Cut(name, "slipway/segments/"); ok {
			_, kind, _ := strings.Cut(rest, "/")
			kind, _, _ = strings.Cut(kind, "-")
			names[i] = "<" + kind + ">"
		}
	}
	slices.Sort(names)
	return names
}

// segments returns how many segments a container has.
func (b *bed) segments(t testing.TB, container string) (n int) {
	t.Helper()
	for _, name := range b.names(t, container) {
		if strings.HasPrefix(name, "<d") {
			n++
		}
	}
	return n
}

// wire is a transport that a test can manipulate.
type wire struct {
	inner  http.RoundTripper // default: http.DefaultTransport
	mu     sync.Mutex
	before func(*http.Request) (*http.Response, error) // in place of the request, unless both are nil
	after  func(*http.Response) (*http.Response, error)
	seen   []string // requests: method, path and query
}

func (w *wire) set(before func(*http.Request) (*http.Response, error), after func(*http.Response) (*http.Response, error)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.before, w.after, w.seen = before, after, nil
}

func (w *wire) requests() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.seen)
}

func (w *wire) RoundTrip(req *http.Request) (*http.Response, error) {
	w.mu.Lock()
	before, after := w.before, w.after
	w.seen = append(w.seen, req.Method+" "+req.URL.RequestURI())
	w.mu.Unlock()
	if before != nil {
		if resp, err := before(req); resp != nil || err != nil {
			if req.Body != nil {
				req.Body.Close()
			}
			return resp, err
		}
	}
	inner := w.inner
	if inner == nil {
		inner = http.DefaultTransport
	}
	resp, err := inner.RoundTrip(req)
	if err == nil && after != nil {
		return after(resp)
	}
	return resp, err
}

// answer makes an artificial answer.
func answer(req *http.Request, status int, header map[string]string) *http.Response {
	h := http.Header{}
	for k, v := range header {
		h.Set(k, v)
	}
	return &http.Response{Status: http.StatusText(status), StatusCode: status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: h, Body: http.NoBody, Request: req}
}

var errCut = errors.New("the wire was cut")

// cutAfter lets n requests pass and none after them: to the cluster, the process has died. died is
// called then. count returns how many requests there were.
func (w *wire) cutAfter(n int, died func()) (count func() int) {
	var passed atomic.Int64
	w.set(func(*http.Request) (*http.Response, error) {
		if passed.Add(1) > int64(n) {
			died()
			return nil, errCut
		}
		return nil, nil
	}, nil)
	return func() int { return int(passed.Load()) }
}

// sweepAll sweeps as if everything were old.
func sweepAll(t testing.TB, s *swiftstore.Store, keep ...string) (n int, size int64) {
	t.Helper()
	n, size, err := s.SweepUploads(t.Context(), future(), func(state string) bool { return slices.Contains(keep, state) })
	must(t, err)
	return n, size
}

// listed returns the keys of a store.
func listed(t testing.TB, s objstore.Store) []string {
	t.Helper()
	var keys []string
	for info, err := range s.List(context.WithoutCancel(t.Context()), "", "") {
		must(t, err)
		keys = append(keys, info.Key)
	}
	return keys
}
