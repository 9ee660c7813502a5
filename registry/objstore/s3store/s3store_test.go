package s3store_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"example.org/slipway/internal/backendtest"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/objstore/objtest"
	"example.org/slipway/registry/objstore/remote"
	"example.org/slipway/registry/objstore/s3store"
)

// options returns the options of a store in a bucket of the server.
func options(srv *backendtest.S3Server, bucket string) s3store.Options {
	return s3store.Options{
		Endpoint: srv.Endpoint, Bucket: bucket, Region: srv.Region, PathStyle: true,
		AccessKey: srv.AccessKey, SecretKey: srv.SecretKey,
		PartSize: 5 << 20, // the smallest, so that tests reach several
	}
}

// open opens a store, which the test closes at its end.
func open(t testing.TB, o s3store.Options) *s3store.Store {
	t.Helper()
	s, err := s3store.New(t.Context(), o)
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

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// write begins an upload with data.
func write(t testing.TB, s objstore.Store, data []byte) objstore.Upload {
	t.Helper()
	u, err := s.NewUpload(t.Context(), -1)
	must(t, err)
	n, err := u.Write(data)
	if n != len(data) || err != nil {
		t.Fatalf("Write: got %d, %v; want %d", n, err, len(data))
	}
	return u
}

func suspend(t testing.TB, u objstore.Upload) string {
	t.Helper()
	state, err := u.Suspend(t.Context())
	must(t, err)
	return state
}

// wantObject checks an object's bytes.
func wantObject(t testing.TB, s objstore.Store, key string, want []byte) {
	t.Helper()
	o, err := s.Get(t.Context(), key, 0, -1)
	must(t, err)
	defer o.Close()
	got, err := io.ReadAll(o)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("object %s: got %d bytes, %v; want %d (equal: %t)", key, len(got), err, len(want), bytes.Equal(got, want))
	}
}

// names lists all objects of a bucket except the probe, including those whose names are not keys.
func names(t testing.TB, srv *backendtest.S3Server, bucket string) (list []string) {
	t.Helper()
	c, err := minio.New(srv.Endpoint, &minio.Options{
		Creds: credentials.NewStaticV4(srv.AccessKey, srv.SecretKey, ""), Region: srv.Region})
	must(t, err)
	for o := range c.ListObjects(t.Context(), bucket, minio.ListObjectsOptions{Recursive: true}) {
		must(t, o.Err)
		if !strings.HasSuffix(o.Key, "slipway/uploads/probe") {
			list = append(list, o.Key)
		}
	}
	for u := range c.ListIncompleteUploads(t.Context(), bucket, "", true) {
		must(t, u.Err)
		list = append(list, u.Key+"?uploads")
	}
	return list
}

func wantNames(t testing.TB, srv *backendtest.S3Server, bucket string, want ...string) {
	t.Helper()
	if got := names(t, srv, bucket); !slices.Equal(got, want) {
		t.Errorf("objects of the bucket: got %q, want %q", got, want)
	}
}

func TestSuiteVersity(t *testing.T) {
	srv := backendtest.S3(t)
	objtest.Run(t, func(t *testing.T) objstore.Store {
		return openOnce(t, options(srv, srv.Bucket(t)))
	}, &objtest.Options{Suspended: 60, LargeSize: 11<<20 + 1})
}

// TestSuiteWrapped runs the suite behind retries and hedges.
func TestSuiteWrapped(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	srv := backendtest.S3(t)
	bucket := srv.Bucket(t)
	objtest.Run(t, func(t *testing.T) objstore.Store {
		o := options(srv, bucket)
		o.Prefix = "below/" + rand.Text()
		return remote.Wrap(openOnce(t, o), &remote.Options{Driver: "s3", HedgeAfter: time.Millisecond})
	}, &objtest.Options{Suspended: 60})
}

func TestSuiteRGW(t *testing.T) {
	if testing.Short() {
		t.Skip("starts Ceph")
	}
	srv := backendtest.RGW(t)
	objtest.Run(t, func(t *testing.T) objstore.Store {
		return openOnce(t, options(srv, srv.Bucket(t)))
	}, &objtest.Options{Suspended: 20, LargeSize: 11<<20 + 1})
}

// openOnce opens a store, which the suite closes.
func openOnce(t testing.TB, o s3store.Options) *s3store.Store {
	t.Helper()
	s, err := s3store.New(context.Background(), o)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	return s
}

// TestStaged makes uploads whose key is known only at the end. They have several parts,
// are continued by another replica, and have every kind of size.
func TestStaged(t *testing.T) {
	srv := backendtest.S3(t)
	bucket := srv.Bucket(t)
	o := options(srv, bucket)
	o.Prefix = "reg"
	one, two := open(t, o), open(t, o)
	data := objtest.Content(1, 13<<20)
	for _, size := range []int64{
		0, 1, 5<<20 - 1, 5 << 20, 9 << 20, 10 << 20, 13 << 20,
	} {
		state := suspend(t, write(t, one, data))
		u, err := two.Resume(t.Context(), state, size)
		if err != nil {
			t.Fatalf("Resume at %d: %v", size, err)
		}
		if u.Size() != size {
			t.Fatalf("Resume at %d: got size %d", size, u.Size())
		}
		_, err = u.Write(data[size:])
		must(t, err)
		state = suspend(t, u) // once more, with a new list of parts
		u, err = one.Resume(t.Context(), state, int64(len(data)))
		must(t, err)
		must(t, u.Commit(t.Context(), "a/b"))
		wantObject(t, two, "a/b", data)
		wantNames(t, srv, bucket, "reg/a/b")
	}
}

// TestStagedTwoWriters has two processes that believe they own the upload. Neither changes what the
// other has written.
func TestStagedTwoWriters(t *testing.T) {
	srv := backendtest.S3(t)
	bucket := srv.Bucket(t)
	one, two := open(t, options(srv, bucket)), open(t, options(srv, bucket))
	head, a, b := objtest.Content(1, 6<<20), objtest.Content(2, 12<<20), objtest.Content(3, 12<<20)
	state := suspend(t, write(t, one, head))
	ua, err := one.Resume(t.Context(), state, int64(len(head)))
	must(t, err)
	ub, err := two.Resume(t.Context(), state, int64(len(head)))
	must(t, err)
	for i := 0; i < len(a); i += 1 << 20 {
		_, err := ua.Write(a[i : i+1<<20])
		must(t, err)
		_, err = ub.Write(b[i : i+1<<20])
		must(t, err)
	}
	stateA, stateB := suspend(t, ua), suspend(t, ub)
	ua, err = two.Resume(t.Context(), stateA, 18<<20)
	must(t, err)
	must(t, ua.Commit(t.Context(), "k/a"))
	wantObject(t, one, "k/a", append(slices.Clone(head), a...))
	// The other writer's bytes went with the upload, and its upload must say so.
	if ub, err = one.Resume(t.Context(), stateB, 18<<20); err == nil {
		err = ub.Commit(t.Context(), "k/b")
	}
	if err == nil {
		wantObject(t, one, "k/b", append(slices.Clone(head), b...))
	}
	if _, err := one.Resume(t.Context(), state, 1); !errors.Is(err, objstore.ErrNotExist) {
		t.Errorf("Resume of a committed upload: got %v, want ErrNotExist", err)
	}
}

// TestKeyed makes an upload whose key is known from the start. It is a multipart upload,
// which one replica suspends and another resumes.
func TestKeyed(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	srv := backendtest.S3(t)
	bucket := srv.Bucket(t)
	one, two := open(t, options(srv, bucket)), open(t, options(srv, bucket))
	data := objtest.Content(1, 17<<20)
	begin := func(n int) objstore.Upload {
		u, err := one.NewUploadFor(t.Context(), "a/b", -1)
		must(t, err)
		_, err = u.Write(data[:n])
		must(t, err)
		return u
	}
	for _, n := range []int{0, 100, 5 << 20, 5<<20 + 1, 17 << 20} {
		u := begin(n)
		must(t, u.Commit(t.Context(), "a/b"))
		wantObject(t, two, "a/b", data[:n])
		wantNames(t, srv, bucket, "a/b")
	}
	for _, tt := range []struct {
		name       string
		n          int
		size       int64
		impossible bool
	}{
		{"before the first part", 3 << 20, 2 << 20, false},
		{"at the end", 12 << 20, 12 << 20, false},
		{"in the tail", 12 << 20, 11 << 20, false},
		{"at a border", 12 << 20, 5 << 20, false},
		{"at nothing", 12 << 20, 0, false},
		{"in a part", 12 << 20, 7 << 20, true},
		{"beyond", 12 << 20, 13 << 20, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			state := suspend(t, begin(tt.n))
			u, err := two.Resume(t.Context(), state, tt.size)
			if tt.impossible {
				if !errors.Is(err, objstore.ErrNotExist) {
					t.Errorf("Resume: got %v, want ErrNotExist", err)
				}
				must(t, one.Abandon(t.Context(), state))
				wantNames(t, srv, bucket, "a/b")
				return
			}
			must(t, err)
			_, err = u.Write(data[tt.size:])
			must(t, err)
			must(t, u.Commit(t.Context(), "a/b"))
			wantObject(t, one, "a/b", data)
			wantNames(t, srv, bucket, "a/b")
		})
	}
	u := begin(12 << 20)
	must(t, u.Cancel(t.Context()))
	wantNames(t, srv, bucket, "a/b")
	u = begin(12 << 20)
	if err := u.Commit(t.Context(), "a/c"); err == nil {
		t.Error("Commit under another key: got no error")
	}
	wantNames(t, srv, bucket, "a/b")
}

// TestSweep finds what dead processes left behind: staged parts, states and multipart uploads.
func TestSweep(t *testing.T) {
	srv := backendtest.S3(t)
	bucket := srv.Bucket(t)
	dead, s := open(t, options(srv, bucket)), open(t, options(srv, bucket))
	ctx, data := t.Context(), objtest.Content(1, 12<<20)
	_ = write(t, dead, data) // never ended
	left, err := dead.NewUploadFor(ctx, "a/b", -1)
	must(t, err)
	_, err = left.Write(data)
	must(t, err)
	keyed, err := dead.NewUploadFor(ctx, "a/kept", -1)
	must(t, err)
	_, err = keyed.Write(data)
	must(t, err)
	kept := []string{suspend(t, keyed), suspend(t, write(t, dead, data))}
	lost := suspend(t, write(t, dead, data[:100]))
	keep := func(state string) bool { return slices.Contains(kept, state) }
	waitFor(t, func() bool { return len(names(t, srv, bucket)) == 9 })

	n, bytes, err := s.SweepUploads(ctx, time.Now().Add(-time.Hour), keep)
	if n != 0 || bytes != 0 || err != nil {
		t.Errorf("SweepUploads before their time: got %d, %d bytes, %v; want none", n, bytes, err)
	}
	n, bytes, err = s.SweepUploads(ctx, time.Now().Add(time.Hour), keep)
	if want := int64(10<<20 + 10<<20 + 100); n != 3 || bytes != want || err != nil {
		t.Errorf("SweepUploads: got %d, %d bytes, %v; want 3, %d", n, bytes, err, want)
	}
	if _, err := s.Resume(ctx, lost, 100); !errors.Is(err, objstore.ErrNotExist) {
		t.Errorf("Resume of a swept upload: got %v, want ErrNotExist", err)
	}
	for i, key := range []string{"a/kept", "a/other"} {
		u, err := s.Resume(ctx, kept[i], int64(len(data)))
		must(t, err)
		must(t, u.Commit(ctx, key))
		wantObject(t, s, key, data)
	}
	wantNames(t, srv, bucket, "a/kept", "a/other")
	// Uploads that are open here are kept however old they are.
	mine := write(t, s, data)
	n, _, err = s.SweepUploads(ctx, time.Now().Add(time.Hour), keep)
	if n != 0 || err != nil {
		t.Errorf("SweepUploads with an open upload: got %d, %v; want 0", n, err)
	}
	must(t, mine.Commit(ctx, "a/mine"))
	wantObject(t, s, "a/mine", data)
}

// waitFor waits until a condition holds.
func waitFor(t testing.TB, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatal("the condition does not come true")
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// TestKill kills the server in the middle of an upload, which continues after its restart.
func TestKill(t *testing.T) {
	srv := backendtest.S3(t)
	bucket := srv.Bucket(t)
	s := open(t, options(srv, bucket))
	data := objtest.Content(1, 30<<20)
	state := suspend(t, write(t, s, data[:8<<20]))
	u, err := s.Resume(t.Context(), state, 8<<20)
	must(t, err)
	_, err = u.Write(data[8<<20 : 12<<20])
	must(t, err)
	srv.Daemon.Kill()
	// Write fails once the parts that cannot be stored fill the buffers, and returns how far it
	// came.
	at := int64(12 << 20)
	for err == nil && at < int64(len(data)) {
		var n int
		n, err = u.Write(data[at:min(at+1<<20, int64(len(data)))])
		at += int64(n)
	}
	var busy *objstore.BusyError
	if !errors.As(err, &busy) {
		t.Fatalf("Write without a server: got %v, want a BusyError", err)
	}
	if u.Size() != at {
		t.Fatalf("size after a failed Write: got %d, want %d", u.Size(), at)
	}
	srv.Daemon.Start(srv.Ready)
	_, err = u.Write(data[at:])
	must(t, err)
	must(t, u.Commit(t.Context(), "a/b"))
	wantObject(t, s, "a/b", data)
	wantNames(t, srv, bucket, "a/b")
}

func TestOpenAt(t *testing.T) {
	srv := backendtest.S3(t)
	s := open(t, options(srv, srv.Bucket(t)))
	data := objtest.Content(1, 3<<20+17)
	must(t, s.Put(t.Context(), "a/b", data, false))
	r, err := s.OpenAt(t.Context(), "a/b")
	must(t, err)
	for _, tt := range []struct{ off, n int }{
		{0, 10}, {5, 20}, {1 << 20, 100}, {1<<20 + 50, 100}, {600 << 10, 1 << 20}, {len(data) - 5, 5}, {0, len(data)},
	} {
		got := make([]byte, tt.n)
		n, err := r.ReadAt(got, int64(tt.off))
		if n != tt.n || err != nil || !bytes.Equal(got, data[tt.off:tt.off+tt.n]) {
			t.Errorf("ReadAt of %d at %d: got %d, %v", tt.n, tt.off, n, err)
		}
	}
	got := make([]byte, 10)
	if n, err := r.ReadAt(got, int64(len(data)-4)); n != 4 || err != io.EOF || !bytes.Equal(got[:4], data[len(data)-4:]) {
		t.Errorf("ReadAt over the end: got %d, %v; want 4, EOF", n, err)
	}
	if n, err := r.ReadAt(got, int64(len(data))); n != 0 || err != io.EOF {
		t.Errorf("ReadAt behind the end: got %d, %v; want 0, EOF", n, err)
	}
	must(t, r.Close())
	if _, err := r.ReadAt(got, 0); !errors.Is(err, os.ErrClosed) {
		t.Errorf("ReadAt after Close: got %v, want ErrClosed", err)
	}
	if _, err := s.OpenAt(t.Context(), "a/none"); !errors.Is(err, objstore.ErrNotExist) {
		t.Errorf("OpenAt of nothing: got %v, want ErrNotExist", err)
	}
}

func TestMove(t *testing.T) {
	srv := backendtest.S3(t)
	bucket := srv.Bucket(t)
	s := open(t, options(srv, bucket))
	must(t, s.Put(t.Context(), "a/b", []byte("one"), false))
	must(t, s.Put(t.Context(), "c/d", []byte("two"), false))
	must(t, s.Move(t.Context(), "a/b", "c/d"))
	wantObject(t, s, "c/d", []byte("one"))
	wantNames(t, srv, bucket, "c/d")
	if err := s.Move(t.Context(), "a/b", "x"); !errors.Is(err, objstore.ErrNotExist) {
		t.Errorf("Move of nothing: got %v, want ErrNotExist", err)
	}
}

// once calls f and does not repeat it.
func once(ctx context.Context, f func(context.Context) error) error { return f(ctx) }
