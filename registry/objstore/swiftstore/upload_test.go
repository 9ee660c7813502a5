package swiftstore_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"example.org/slipway/internal/backendtest"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/objstore/objtest"
)

// future returns a time at which everything counts as old.
func future() time.Time { return time.Now().Add(time.Hour) }

// wantNames checks the objects in a container. The names of an upload's parts are shortened.
func (b *bed) wantNames(t testing.TB, container string, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, b.names(t, container), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("container: -want +got\n%s", diff)
	}
}

func testSegments(t *testing.T, b *bed) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	c := b.container()
	s := b.open(t, b.options(c))
	upload(t, s, "one/chunk", objtest.Content(1, chunk))
	b.wantNames(t, c, "one/chunk")
	data := objtest.Content(2, 2*chunk+1000)
	upload(t, s, blobKey, data)
	b.wantNames(t, c, "<d000000000000000>", "<d000000000065536>", "<d000000000131072>", "<key>", blobKey, "one/chunk")
	wantObject(t, s, blobKey, data)
	for _, r := range []struct{ off, n int64 }{
		{0, 1}, {chunk - 1, 1}, {chunk - 1, 2}, {chunk, 1}, {chunk - 10, chunk + 20}, {2*chunk - 1, 1001},
		{2*chunk + 999, 1}, {2*chunk + 999, 100}, {1, 2*chunk + 998}, {chunk, -1},
	} {
		want := data[r.off:]
		if r.n >= 0 && r.n < int64(len(want)) {
			want = want[:r.n]
		}
		if got := readRange(t, s, blobKey, r.off, r.n); !bytes.Equal(got, want) {
			t.Errorf("Get at %d, %d bytes: got %d other bytes, want %d", r.off, r.n, len(got), len(want))
		}
	}
	var infos []objstore.Info
	for info, err := range s.List(t.Context(), "", "") {
		must(t, err)
		stat, err := s.Stat(t.Context(), info.Key)
		must(t, err)
		stat.Tag = "" // List does not return it
		if diff := cmp.Diff(stat, info); diff != "" {
			t.Errorf("List differs from Stat: -stat +list\n%s", diff)
		}
		infos = append(infos, info)
	}
	if len(infos) != 2 || infos[0].Size != int64(len(data)) {
		t.Errorf("List: got %+v, want two objects, the first of %d bytes", infos, len(data))
	}
}

func testNestedManifests(t *testing.T, b *bed) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	c := b.container()
	s := b.open(t, b.options(c))
	data := objtest.Content(1, (backendtest.SwiftMaxSegments+1)*chunk+1)
	state := suspend(t, begin(t, s, data[:3*chunk]))
	u := resume(t, s, state, 2*chunk)
	write(t, u, data[2*chunk:])
	must(t, u.Commit(t.Context(), blobKey))
	wantObject(t, s, blobKey, data)
	border := int64(backendtest.SwiftMaxSegments * chunk)
	if got := readRange(t, s, blobKey, border-5, 10); !bytes.Equal(got, data[border-5:border+5]) {
		t.Error("Get across the border of two manifests: got other bytes")
	}
	names := b.names(t, c)
	if n := len(names); n != backendtest.SwiftMaxSegments+2+2+2 || !slices.Contains(names, "<m000001>") {
		t.Errorf("container: got %d objects, want %d segments, 2 manifests of them, the key and the object: %q", n, backendtest.SwiftMaxSegments+2, names)
	}
	if n, size := sweepAll(t, s); n != 0 || size != 0 {
		t.Errorf("SweepUploads: got %d, %d bytes; want 0", n, size)
	}
	wantObject(t, s, blobKey, data)
	must(t, s.Delete(t.Context(), blobKey))
	b.wantNames(t, c)

	// Two levels of manifests are the limit.
	u = begin(t, s, nil)
	piece := make([]byte, 10*chunk)
	var err error
	for err == nil && u.Size() < int64(backendtest.SwiftMaxSegments*backendtest.SwiftMaxSegments+20)*chunk {
		_, err = u.Write(piece)
	}
	if !errors.Is(err, objstore.ErrNoSpace) {
		t.Errorf("Write of too many segments: got size %d, error %v; want ErrNoSpace", u.Size(), err)
	}
	must(t, u.Cancel(t.Context()))
	b.wantNames(t, c)
}

func testResume(t *testing.T, b *bed) {
	c := b.container()
	s, other := b.open(t, b.options(c)), b.open(t, b.options(c))
	data, tail := objtest.Content(1, 3*chunk+500), objtest.Content(2, chunk)
	for _, size := range []int64{0, 1, chunk, 2*chunk + 17, 3 * chunk, 3*chunk + 1, 3*chunk + 500} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			state := suspend(t, begin(t, s, data))
			if _, err := other.Resume(t.Context(), state, int64(len(data))+1); !errors.Is(err, objstore.ErrNotExist) {
				t.Errorf("Resume beyond the size: got error %v, want ErrNotExist", err)
			}
			// A replica resumed it and died. A second one then continues, twice.
			dead := resume(t, s, state, size)
			write(t, dead, tail[:chunk/2])
			u := resume(t, other, state, size)
			write(t, u, tail[:100])
			u = resume(t, s, suspend(t, u), size+100)
			write(t, u, tail[100:])
			must(t, u.Commit(t.Context(), "r/x"))
			want := slices.Concat(data[:size], tail)
			wantObject(t, other, "r/x", want)
			if _, err := s.Resume(t.Context(), state, 0); !errors.Is(err, objstore.ErrNotExist) {
				t.Errorf("Resume after Commit: got error %v, want ErrNotExist", err)
			}
			// The replica that was thought dead comes back too late and does no harm.
			must(t, dead.Cancel(t.Context()))
			must(t, other.Abandon(t.Context(), state))
			wantObject(t, other, "r/x", want)
			if n, _ := sweepAll(t, s); n != 0 {
				t.Errorf("SweepUploads: got %d uploads, want 0", n)
			}
			wantObject(t, other, "r/x", want)
			must(t, s.Delete(t.Context(), "r/x"))
			b.wantNames(t, c)
		})
	}
}

// testOtherChunkSize continues an upload on a replica with another configuration.
func testOtherChunkSize(t *testing.T, b *bed) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	c := b.container()
	s := b.open(t, b.options(c))
	o := b.options(c)
	o.ChunkSize = 10 * chunk
	large := b.open(t, o)
	data := objtest.Content(1, 9*chunk)
	u := resume(t, s, suspend(t, begin(t, large, data)), 5*chunk+7)
	must(t, u.Commit(t.Context(), "o/x"))
	wantObject(t, s, "o/x", data[:5*chunk+7])
	if n := b.segments(t, c); n != 6 {
		t.Errorf("container has %d segments, want 6", n)
	}
	u = resume(t, large, suspend(t, begin(t, s, data)), 9*chunk)
	must(t, u.Commit(t.Context(), "o/x"))
	wantObject(t, s, "o/x", data)
	must(t, s.Delete(t.Context(), "o/x"))
	b.wantNames(t, c)
}

// testSmallPieces checks that many small requests make no more segments than few large ones.
func testSmallPieces(t *testing.T, b *bed) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	c := b.container()
	s := b.open(t, b.options(c))
	data := objtest.Content(1, 3*chunk)
	const piece = chunk / 16
	u := begin(t, s, data[:piece])
	for n := int64(piece); n < int64(len(data)); n += piece {
		u = resume(t, s, suspend(t, u), n)
		write(t, u, data[n:n+piece])
	}
	state := suspend(t, u)
	// All but the last hold at least a quarter of a chunk.
	if n := b.segments(t, c); n > 12 {
		t.Errorf("container has %d segments, want 12 at most", n)
	}
	must(t, resume(t, s, state, int64(len(data))).Commit(t.Context(), "p/x"))
	wantObject(t, s, "p/x", data)
	must(t, s.Delete(t.Context(), "p/x"))
	b.wantNames(t, c)

	// An upload that fits into one segment becomes a plain object without being sent twice.
	state = suspend(t, begin(t, s, data[:chunk/2]))
	must(t, resume(t, s, state, chunk/2).Commit(t.Context(), "p/y"))
	b.wantNames(t, c, "p/y")
	wantObject(t, s, "p/y", data[:chunk/2])
}

func testDeleteFrees(t *testing.T, b *bed) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	c := b.container()
	s := b.open(t, b.options(c))
	upload(t, s, "a", objtest.Content(1, 5*chunk))
	upload(t, s, "b", objtest.Content(1, 5*chunk))
	if n := b.segments(t, c); n != 10 {
		t.Fatalf("container has %d segments, want 10", n)
	}
	must(t, s.Delete(t.Context(), "a"))
	if n := b.segments(t, c); n != 5 {
		t.Errorf("after Delete of one: container has %d segments, want 5", n)
	}
	wantMissing(t, s, "a")
	wantObject(t, s, "b", objtest.Content(1, 5*chunk))
	must(t, s.Delete(t.Context(), "b"))
	b.wantNames(t, c)
}

// testForeignLargeObject uses large objects that another program uploaded in its own way.
func testForeignLargeObject(t *testing.T, b *bed) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	c := b.container()
	s := b.open(t, b.options(c))
	for i, text := range []string{"hello ", "world"} {
		if resp, _ := b.request(t, http.MethodPut, fmt.Sprintf("%s/parts/%d", c, i), nil, text); resp.StatusCode != http.StatusCreated {
			t.Fatalf("PUT of a segment: %s", resp.Status)
		}
	}
	manifest := fmt.Sprintf(`[{"path":"/%s/parts/0"},{"path":"/%s/parts/1"}]`, c, c)
	for _, key := range []string{"f/x", "f/y"} {
		if resp, text := b.request(t, http.MethodPut, c+"/"+key+"?multipart-manifest=put", nil, manifest); resp.StatusCode != http.StatusCreated {
			t.Fatalf("PUT of a manifest: %s %s", resp.Status, text)
		}
	}
	wantObject(t, s, "f/x", []byte("hello world"))
	must(t, s.Move(t.Context(), "f/x", "f/z"))
	wantObject(t, s, "f/z", []byte("hello world"))
	wantMissing(t, s, "f/x")
	must(t, s.Delete(t.Context(), "f/z"))
	b.wantNames(t, c, "f/y") // the manifest whose segments it shared
	must(t, s.Delete(t.Context(), "f/y"))
	b.wantNames(t, c)
}

func testReplaced(t *testing.T, b *bed) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	c := b.container()
	s := b.open(t, b.options(c))
	old, young := objtest.Content(1, 4*chunk), objtest.Content(2, 2*chunk)
	upload(t, s, "r/x", old)
	upload(t, s, "r/x", young)
	wantObject(t, s, "r/x", young)
	b.wantNames(t, c, "<d000000000000000>", "<d000000000065536>", "<key>", "r/x")
	must(t, s.Put(t.Context(), "r/x", []byte("small"), false))
	if n, size, err := s.SweepUploads(t.Context(), time.Now().Add(-time.Hour), func(string) bool { return false }); n != 0 || size != 0 || err != nil {
		t.Errorf("SweepUploads of young ones: got %d, %d bytes, %v; want 0", n, size, err)
	}
	if n, size := sweepAll(t, s); n != 1 || size != 2*chunk {
		t.Errorf("SweepUploads: got %d, %d bytes; want 1, %d", n, size, 2*chunk)
	}
	b.wantNames(t, c, "r/x")
	wantObject(t, s, "r/x", []byte("small"))
}

func testMove(t *testing.T, b *bed) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	c := b.container()
	s := b.open(t, b.options(c))
	ctx := t.Context()
	data := objtest.Content(1, 3*chunk)
	if err := s.Move(ctx, "m/none", "m/x"); !errors.Is(err, objstore.ErrNotExist) {
		t.Errorf("Move of nothing: got error %v, want ErrNotExist", err)
	}
	upload(t, s, "m/a", data)
	upload(t, s, "m/b", objtest.Content(2, 2*chunk)) // replaced
	must(t, s.Move(ctx, "m/a", "m/b"))
	must(t, s.Move(ctx, "m/b", "m/b"))
	must(t, s.Move(ctx, "m/b", "m/c"))
	must(t, s.Move(ctx, "m/c", "m/a")) // to a key where it was before
	must(t, s.Move(ctx, "m/a", "m/c"))
	if got := listed(t, s); !slices.Equal(got, []string{"m/c"}) {
		t.Errorf("after Move: got objects %q, want m/c", got)
	}
	if n := b.segments(t, c); n != 3 {
		t.Errorf("container has %d segments, want 3", n)
	}
	if n, _ := sweepAll(t, s); n != 0 {
		t.Errorf("SweepUploads: got %d, want 0", n)
	}
	wantObject(t, s, "m/c", data)
	must(t, s.Delete(ctx, "m/c"))
	b.wantNames(t, c)

	must(t, s.Put(ctx, "m/small", []byte("small"), false))
	must(t, s.Move(ctx, "m/small", "m/other"))
	wantObject(t, s, "m/other", []byte("small"))
	b.wantNames(t, c, "m/other")
}

func testSweepLeavesTheLiving(t *testing.T, b *bed) {
	c := b.container()
	s := b.open(t, b.options(c))
	data := objtest.Content(1, 2*chunk+10)
	upload(t, s, "s/large", data)
	upload(t, s, "s/small", data[:10])
	kept := suspend(t, begin(t, s, data))
	lost := suspend(t, begin(t, s, data[:chunk+5]))
	dead := begin(t, s, data) // its process dies: nobody ends it
	// They are stored in the background.
	for end := time.Now().Add(time.Minute); b.segments(t, c) < 3+3+2+2; {
		if time.Now().After(end) {
			t.Fatalf("container has %d segments, want 10", b.segments(t, c))
		}
	}
	if n, size, err := s.SweepUploads(t.Context(), time.Now().Add(-time.Hour), func(string) bool { return false }); n != 0 || size != 0 || err != nil {
		t.Errorf("SweepUploads before their time: got %d, %d bytes, %v; want 0", n, size, err)
	}
	if n, size := sweepAll(t, s, kept); n != 2 || size != chunk+5+2*chunk {
		t.Errorf("SweepUploads: got %d, %d bytes; want 2, %d", n, size, chunk+5+2*chunk)
	}
	if _, err := s.Resume(t.Context(), lost, 0); !errors.Is(err, objstore.ErrNotExist) {
		t.Errorf("Resume of a swept upload: got error %v, want ErrNotExist", err)
	}
	// The upload was not dead. The upload was in fact still running. Its object can no longer
	// be made, and no part of the object may appear.
	if err := dead.Commit(t.Context(), "s/dead"); !errors.Is(err, objstore.ErrNotExist) {
		t.Errorf("Commit of an upload that was swept: got error %v, want ErrNotExist", err)
	}
	wantMissing(t, s, "s/dead")
	must(t, resume(t, s, kept, int64(len(data))).Commit(t.Context(), "s/kept"))
	for _, key := range []string{"s/large", "s/kept"} {
		wantObject(t, s, key, data)
	}
	wantObject(t, s, "s/small", data[:10])
	if n, size := sweepAll(t, s); n != 0 || size != 0 {
		t.Errorf("second SweepUploads: got %d, %d bytes; want 0", n, size)
	}
	if n := b.segments(t, c); n != 6 {
		t.Errorf("container has %d segments, want 6", n)
	}
}

// testSweepTidies checks that unused segments beside those of an object are removed, and that
// objects which only look like an upload stay.
func testSweepTidies(t *testing.T, b *bed) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	c := b.container()
	s := b.open(t, b.options(c))
	data := objtest.Content(1, 2*chunk+10)
	u := begin(t, s, data)
	state := suspend(t, u)
	must(t, resume(t, s, state, int64(len(data))).Commit(t.Context(), "t/x"))
	dir := c + "/slipway/segments/"
	for _, name := range []string{state + "/state", state + "/d000000000000000-AAAAAAAAAAAAAAAAAAAAAAAAAA", "not-an-upload/d", "loose"} {
		if resp, _ := b.request(t, http.MethodPut, dir+name, nil, strings.Repeat("x", 100)); resp.StatusCode != http.StatusCreated {
			t.Fatalf("PUT: %s", resp.Status)
		}
	}
	if n, size := sweepAll(t, s); n != 0 || size != 0 {
		t.Errorf("SweepUploads: got %d, %d bytes; want 0", n, size)
	}
	b.wantNames(t, c, "<>", "<d000000000000000>", "<d000000000065536>", "<d000000000131072>", "<d>", "<key>", "t/x")
	wantObject(t, s, "t/x", data)
	if got := listed(t, s); !slices.Equal(got, []string{"t/x"}) {
		t.Errorf("List: got %q, want t/x", got)
	}
}
