package registry_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.org/slipway/registry/registrytest"

	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/objstore/memstore"
)

// brokenBody breaks off at its end.
type brokenBody struct{ r io.Reader }

func (b *brokenBody) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// openUpload is an upload of which a part has been sent.
type openUpload struct {
	name string
	id   string
	data []byte
	sent int
	d    oci.Digest
}

// openUploads begins uploads of all kinds: nothing sent, few bytes, many bytes, many bytes in two
// chunks, and final requests by sha256 and sha512 that broke off.
func (n *node) openUploads() []openUpload {
	t := n.s.t
	t.Helper()
	var out []openUpload
	for i, c := range []struct {
		name    string
		chunks  []int
		broken  int
		size    int
		sha512d bool
	}{
		{"nothing sent", nil, 0, 50_000, false},
		{"few bytes", []int{100}, 0, 200, false},
		{"few bytes, more to come", []int{100}, 0, 50_000, false},
		{"many bytes", []int{40_000}, 0, 50_000, false},
		{"many bytes in two chunks", []int{40_000, 5000}, 0, 50_000, false},
		{"few bytes, end broken off", []int{100}, 50, 1000, false},
		{"many bytes, end broken off", []int{40_000}, 5000, 50_000, false},
		{"sha512, end broken off", nil, 30_000, 50_000, true},
		{"few bytes of sha512, end broken off", nil, 500, 1000, true},
		{"sha512 behind chunks", []int{40_000}, 0, 50_000, true},
	} {
		u := openUpload{name: c.name, data: registrytest.Content(uint64(i), c.size)}
		u.d = oci.SHA256(u.data)
		if c.sha512d {
			u.d = sha512Of(u.data)
		}
		st, err := n.StartUpload(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		u.id = st.ID
		for _, size := range c.chunks {
			if _, err := n.AppendUpload(t.Context(), "a", u.id, int64(u.sent), int64(size), bytes.NewReader(u.data[u.sent:u.sent+size])); err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			u.sent += size
		}
		if c.broken > 0 {
			body := &brokenBody{bytes.NewReader(u.data[u.sent : u.sent+c.broken])}
			if _, err := n.CommitUpload(t.Context(), "a", u.id, int64(u.sent), int64(c.size-u.sent), body, u.d); err == nil {
				t.Fatalf("%s: got no error", c.name)
			}
			u.sent += c.broken
		}
		out = append(out, u)
	}
	return out
}

// goOn continues uploads from where they are, and finishes them.
func (n *node) goOn(list []openUpload) {
	t := n.s.t
	t.Helper()
	for _, u := range list {
		st, err := n.UploadStatus(t.Context(), "a", u.id)
		if err != nil || st.Size != int64(u.sent) {
			t.Errorf("%s: stands at %d, %v, want %d", u.name, st.Size, err, u.sent)
			continue
		}
		if _, err := n.CommitUpload(t.Context(), "a", u.id, st.Size, -1, bytes.NewReader(u.data[u.sent:]), u.d); err != nil {
			t.Errorf("%s: %v", u.name, err)
			continue
		}
		if got, err := registrytest.ReadBlob(t.Context(), n, "a", u.d); err != nil || !bytes.Equal(got, u.data) {
			t.Errorf("%s: got %d bytes, %v", u.name, len(got), err)
		}
	}
}

func TestUploadsSurviveStop(t *testing.T) {
	s := newSite(t)
	n := s.start(registry.Options{})
	list := n.openUploads()
	n.stop()
	n = s.start(registry.Options{})
	n.stop() // a life that does nothing for them
	n = s.start(registry.Options{})
	n.goOn(list)
	n.wantClean(7)
}

func TestUploadsSurviveKill(t *testing.T) {
	s := newSite(t)
	n := s.start(registry.Options{})
	list := n.openUploads()
	n.kill()
	n = s.start(registry.Options{})
	// An upload of which only the id was acknowledged may be unknown, but no other may.
	if _, err := n.UploadStatus(t.Context(), "a", list[0].id); err != nil {
		if !oci.HasCode(err, oci.CodeBlobUploadUnknown) {
			t.Errorf("%s: %v", list[0].name, err)
		}
		list = list[1:]
	}
	n.goOn(list)
}

// TestOpenUploadIsRecorded checks that uploads that stay open get a row, so that they survive a
// kill although nothing was sent. They can be used while they are being recorded.
func TestOpenUploadIsRecorded(t *testing.T) {
	s := newSite(t)
	n := s.start(registry.Options{})
	const count = 4000 // they are recorded 1,000 at a time
	ids := make([]string, count)
	for i := range ids {
		st, err := n.StartUpload(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		ids[i] = st.ID
	}
	s.clock.Add(time.Second) // they are old enough now
	recorded := func() int64 {
		c, err := n.cat.Counts(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return c.Uploads
	}
	var wg sync.WaitGroup
	var done atomic.Bool
	var used atomic.Int64
	for w := range 4 {
		wg.Go(func() {
			for i := w; !done.Load(); i = (i + 4) % count {
				if _, err := n.UploadStatus(t.Context(), "a", ids[i]); err != nil {
					t.Errorf("status of an upload that is perhaps being recorded: %v", err)
					return
				}
				used.Add(1)
			}
		})
	}
	poll(t, "all uploads are recorded", func() bool { return recorded() == count })
	done.Store(true)
	wg.Wait()
	if used.Load() == 0 {
		t.Error("none was used meanwhile")
	}
	if _, err := n.AppendUpload(t.Context(), "a", ids[7], 0, 3, bytes.NewReader([]byte("abc"))); err != nil {
		t.Error(err)
	}
	n.kill()
	n = s.start(registry.Options{})
	for i, want := range map[int]int64{0: 0, 7: 3, count - 1: 0} {
		if got, err := n.UploadStatus(t.Context(), "a", ids[i]); err != nil || got.Size != want {
			t.Errorf("after the kill: %+v, %v, want %d bytes", got, err, want)
		}
	}
}

// TestStoreLosesUpload loses the bytes of an upload. The upload must then be unknown, and stay so.
func TestStoreLosesUpload(t *testing.T) {
	for _, end := range []bool{false, true} {
		s := newSite(t)
		n := s.start(registry.Options{})
		data := registrytest.Content(1, 50_000)
		st, err := n.StartUpload(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := n.AppendUpload(t.Context(), "a", st.ID, 0, 30_000, bytes.NewReader(data[:30_000])); err != nil {
			t.Fatal(err)
		}
		for _, f := range s.files("_staging") {
			if err := os.Remove(f); err != nil {
				t.Fatal(err)
			}
		}
		if end {
			_, err = n.CommitUpload(t.Context(), "a", st.ID, 30_000, 20_000, bytes.NewReader(data[30_000:]), oci.SHA256(data))
		} else {
			_, err = n.AppendUpload(t.Context(), "a", st.ID, 30_000, 20_000, bytes.NewReader(data[30_000:]))
		}
		if !oci.HasCode(err, oci.CodeBlobUploadUnknown) {
			t.Errorf("continue (end %v): %v", end, err)
		}
		if _, err := n.UploadStatus(t.Context(), "a", st.ID); !oci.HasCode(err, oci.CodeBlobUploadUnknown) {
			t.Errorf("status (end %v): %v", end, err)
		}
		n.wantClean(0)
	}
}

// TestRefusedEndSurvives checks that a final request that is refused because of its offset does not
// lose the upload at the next start.
func TestRefusedEndSurvives(t *testing.T) {
	s := newSite(t)
	n := s.start(registry.Options{})
	data := registrytest.Content(1, 50_000)
	u := openUpload{name: "refused", data: data, sent: 30_000, d: oci.SHA256(data)}
	st, err := n.StartUpload(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	u.id = st.ID
	if _, err := n.AppendUpload(t.Context(), "a", u.id, 0, 30_000, bytes.NewReader(data[:30_000])); err != nil {
		t.Fatal(err)
	}
	if _, err := n.CommitUpload(t.Context(), "a", u.id, 40_000, 10_000, bytes.NewReader(data[40_000:]), u.d); !oci.HasCode(err, oci.CodeRangeInvalid) {
		t.Fatalf("got %v", err)
	}
	n.stop()
	n = s.start(registry.Options{})
	n.goOn([]openUpload{u})
	n.wantClean(1)
}

// TestPurge checks that uploads that nobody continues are dropped when they are old, and only then.
// Idle ones leave RAM and come back.
func TestPurge(t *testing.T) {
	s := newSite(t)
	n := s.start(registry.Options{UploadMaxAge: 24 * time.Hour})
	list := n.openUploads()
	s.clock.Add(10 * time.Minute)
	poll(t, "all uploads are recorded", func() bool {
		c, err := n.cat.Counts(t.Context())
		return err == nil && c.Uploads == int64(len(list))
	})
	if err := n.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.clock.Add(23 * time.Hour)
	if err := n.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	if staged := s.files("_staging"); len(staged) != 5 {
		t.Errorf("%d uploads have bytes in the store, want 5", len(staged))
	}
	// One of them is continued, the others get too old.
	kept := list[3]
	if _, err := n.AppendUpload(t.Context(), "a", kept.id, int64(kept.sent), 1, bytes.NewReader(kept.data[kept.sent:kept.sent+1])); err != nil {
		t.Fatal(err)
	}
	kept.sent++
	s.clock.Add(2 * time.Hour)
	if err := n.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, u := range list {
		_, err := n.UploadStatus(t.Context(), "a", u.id)
		if want := u.id == kept.id; want != (err == nil) || (err != nil && !oci.HasCode(err, oci.CodeBlobUploadUnknown)) {
			t.Errorf("%s: %v", u.name, err)
		}
	}
	n.goOn([]openUpload{kept})
	n.wantClean(1)
}

func TestMaxUploads(t *testing.T) {
	r := openPlain(t, memstore.New(nil), &registry.Options{MaxUploads: 3})
	var ids []string
	for range 3 {
		st, err := r.StartUpload(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, st.ID)
	}
	for range 2 {
		if _, err := r.StartUpload(t.Context(), "b"); !oci.HasCode(err, oci.CodeTooManyRequests) {
			t.Errorf("a fourth upload: %v", err)
		}
		if _, err := r.PushBlob(t.Context(), "b", oci.SHA256(nil), 0, nil); !oci.HasCode(err, oci.CodeTooManyRequests) {
			t.Errorf("a push in one: %v", err)
		}
	}
	for i, end := range []func(id string) error{
		func(id string) error { return r.CancelUpload(t.Context(), "a", id) },
		func(id string) error {
			_, err := r.CommitUpload(t.Context(), "a", id, 0, 0, nil, oci.SHA256(nil))
			return err
		},
		func(id string) error {
			_, err := r.CommitUpload(t.Context(), "a", id, 0, 0, nil, oci.SHA256([]byte("x")))
			if !oci.HasCode(err, oci.CodeDigestInvalid) {
				return fmt.Errorf("got %w", err)
			}
			return nil
		},
	} {
		if err := end(ids[i]); err != nil {
			t.Fatal(err)
		}
		if _, err := r.StartUpload(t.Context(), "b"); err != nil {
			t.Errorf("after one has ended: %v", err)
		}
	}
}

// TestCancelledStays checks that an upload that is cancelled while others look at it is gone for
// all of them.
func TestCancelledStays(t *testing.T) {
	s := newSite(t)
	n := s.start(registry.Options{})
	for i := range 30 {
		st, err := n.StartUpload(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := n.AppendUpload(t.Context(), "a", st.ID, 0, 10, bytes.NewReader(registrytest.Content(uint64(i), 10))); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		var done atomic.Bool
		for range 3 {
			wg.Go(func() {
				for !done.Load() {
					_, err := n.UploadStatus(t.Context(), "a", st.ID)
					if oci.HasCode(err, oci.CodeBlobUploadUnknown) {
						return
					}
				}
			})
		}
		for {
			err := n.CancelUpload(t.Context(), "a", st.ID)
			if err == nil {
				break
			}
			if !oci.HasCode(err, oci.CodeBlobUploadInvalid) {
				t.Fatal(err)
			}
		}
		if _, err := n.UploadStatus(t.Context(), "a", st.ID); !oci.HasCode(err, oci.CodeBlobUploadUnknown) {
			t.Errorf("after the cancellation: %v", err)
		}
		done.Store(true)
		wg.Wait()
	}
	n.wantClean(0)
}

// TestUploadsOfOneClient checks that a client cannot use up what is meant for all clients.
func TestUploadsOfOneClient(t *testing.T) {
	r := openPlain(t, memstore.New(nil), &registry.Options{MaxUploads: 8}) // a quarter of it each
	as := func(addr string) context.Context { return oci.WithActor(t.Context(), &oci.Actor{Addr: addr}) }
	begin := func(addr string, want bool) string {
		t.Helper()
		st, err := r.StartUpload(as(addr), "a")
		if want != (err == nil) || err != nil && !oci.HasCode(err, oci.CodeTooManyRequests) {
			t.Errorf("an upload of %s: %v", addr, err)
		}
		return st.ID
	}
	first := begin("203.0.113.1:1000", true)
	begin("203.0.113.1", true) // through a proxy
	begin("203.0.113.1:1002", false)
	begin("[::ffff:203.0.113.1]:1003", false)
	begin("203.0.113.2:1000", true)
	begin("[2001:db8::1]:1", true)
	begin("[2001:db8::2]:1", true)
	begin("[2001:db8::3]:1", false)
	begin("[2001:db8:0:1::3]:1", true)
	for range 2 { // without a known client there is no share to use up
		if _, err := r.StartUpload(t.Context(), "a"); err != nil {
			t.Error(err)
		}
	}
	begin("198.51.100.1:1", false) // now all are open
	if err := r.CancelUpload(t.Context(), "a", first); err != nil {
		t.Fatal(err)
	}
	begin("203.0.113.1:1000", true)
	begin("203.0.113.1:1000", false)
}

// TestSmallUploadsLeaveRAM checks that between requests the bytes of an upload are only in the
// catalogue, whatever was asked about it. Uploads of which only a few bytes have arrived are not
// counted, so there may be any number of them.
func TestSmallUploadsLeaveRAM(t *testing.T) {
	data := []byte("some bytes")
	d := oci.SHA256(data)
	for _, tc := range []struct {
		name string
		ask  func(ctx context.Context, r *registry.Registry, id string) error
		fail bool
	}{
		{"status", func(ctx context.Context, r *registry.Registry, id string) error {
			st, err := r.UploadStatus(ctx, "a", id)
			if err == nil && st.Size != 4 {
				err = fmt.Errorf("the upload stands at %d, want 4", st.Size)
			}
			return err
		}, false},
		{"a chunk that begins elsewhere", func(ctx context.Context, r *registry.Registry, id string) error {
			_, err := r.AppendUpload(ctx, "a", id, 7, 3, bytes.NewReader(data[7:]))
			return err
		}, true},
		{"a last chunk that begins elsewhere", func(ctx context.Context, r *registry.Registry, id string) error {
			_, err := r.CommitUpload(ctx, "a", id, 7, 3, bytes.NewReader(data[7:]), d)
			return err
		}, true},
		{"a last chunk that breaks off", func(ctx context.Context, r *registry.Registry, id string) error {
			_, err := r.CommitUpload(ctx, "a", id, 4, 6, bytes.NewReader(nil), d)
			return err
		}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := openPlain(t, memstore.New(nil), &registry.Options{})
			st, err := r.StartUpload(t.Context(), "a")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := r.AppendUpload(t.Context(), "a", st.ID, 0, 4, bytes.NewReader(data[:4])); err != nil {
				t.Fatal(err)
			}
			if err := tc.ask(t.Context(), r, st.ID); tc.fail != (err != nil) {
				t.Fatal(err)
			}
			if n := r.UploadsInRAM(); n != 0 {
				t.Errorf("got %d uploads in RAM, want none", n)
			}
			if _, err := r.CommitUpload(t.Context(), "a", st.ID, 4, 6, bytes.NewReader(data[4:]), d); err != nil {
				t.Errorf("the rest: %v", err)
			}
		})
	}
}
