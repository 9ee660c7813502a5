package registry_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/oci/ocitest"
	"example.org/slipway/registry"
	"example.org/slipway/registry/check"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/objstore/memstore"
	"example.org/slipway/registry/registrytest"
	"example.org/slipway/registry/storage"
)

// TestReplicasConform checks that two replicas are one registry to a client whose requests
// alternate between them.
func TestReplicasConform(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	ocitest.Run(t, func(t *testing.T) oci.Registry {
		c := newCluster(t, memstore.New(nil), time.Hour)
		return &hopping{t: t, list: []*replica{c.add(registry.Options{}, nil, nil), c.add(registry.Options{}, nil, nil)}}
	}, nil)
}

// TestReplicasOpenUploads checks that an upload continues at any replica, wherever it was begun,
// interrupted or ended.
func TestReplicasOpenUploads(t *testing.T) {
	c := newCluster(t, memstore.New(nil), time.Hour)
	a, b := c.add(registry.Options{}, nil, nil), c.add(registry.Options{}, nil, nil)
	hop := &hopping{t: t, list: []*replica{a, b}}
	for i, size := range []int{0, 1, 1000, 16 << 10, 16<<10 + 1, 300_000, 2 << 20} {
		data := registrytest.Content(uint64(i), size)
		st, err := hop.StartUpload(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		at := 0
		for _, part := range []int{size / 5, size / 2, size / 7} {
			got, err := hop.AppendUpload(t.Context(), "a", st.ID, int64(at), int64(part), bytes.NewReader(data[at:at+part]))
			if at += part; err != nil || got.Size != int64(at) {
				t.Fatalf("%d bytes: a part of %d: stands at %d, %v, want %d", size, part, got.Size, err, at)
			}
			if got, err = hop.UploadStatus(t.Context(), "a", st.ID); err != nil || got.Size != int64(at) {
				t.Fatalf("%d bytes: the other replica says %d, %v, want %d", size, got.Size, err, at)
			}
			if _, err := hop.AppendUpload(t.Context(), "a", st.ID, int64(at+1), 1, bytes.NewReader([]byte("x"))); !oci.HasCode(err, oci.CodeRangeInvalid) {
				t.Fatalf("%d bytes: a part from elsewhere: got %v", size, err)
			}
		}
		body := &brokenBody{bytes.NewReader(data[at : at+(size-at)/2])}
		if _, err := hop.CommitUpload(t.Context(), "a", st.ID, int64(at), int64(size-at), body, oci.SHA256(data)); err == nil && size > 0 {
			t.Fatalf("%d bytes: an end that broke off: got no error", size)
		} else if err == nil {
			continue
		}
		at += (size - at) / 2
		if _, err := hop.CommitUpload(t.Context(), "a", st.ID, int64(at), -1, bytes.NewReader(data[at:]), oci.SHA256(data)); err != nil {
			t.Fatalf("%d bytes: end: %v", size, err)
		}
		for _, r := range []*replica{a, b} {
			if got, err := registrytest.ReadBlob(t.Context(), r, "a", oci.SHA256(data)); err != nil || !bytes.Equal(got, data) {
				t.Errorf("%d bytes: got %d, %v", size, len(got), err)
			}
			if _, err := r.UploadStatus(t.Context(), "a", st.ID); !oci.HasCode(err, oci.CodeBlobUploadUnknown) {
				t.Errorf("%d bytes: the upload that ended: got %v", size, err)
			}
		}
	}
	if n, err := a.cat.Counts(t.Context()); err != nil || n.Uploads != 0 {
		t.Errorf("%d uploads are left, %v", n.Uploads, err)
	}
}

// blockedBody announces that it is being read, and continues when it is allowed to.
type blockedBody struct {
	begun, let chan struct{}
	r          io.Reader
	once       sync.Once
}

func newBlockedBody(data []byte) *blockedBody {
	return &blockedBody{begun: make(chan struct{}), let: make(chan struct{}), r: bytes.NewReader(data)}
}

func (b *blockedBody) Read(p []byte) (int, error) {
	b.once.Do(func() {
		close(b.begun)
		<-b.let
	})
	return b.r.Read(p)
}

// TestReplicasUploadBusy checks that while one request uses an upload, however long, all others are
// told so, at every replica.
func TestReplicasUploadBusy(t *testing.T) {
	c := newCluster(t, memstore.New(nil), time.Hour)
	o := registry.Options{Lease: 3 * time.Second} // of which a busy machine may take some
	a, b := c.add(o, nil, nil), c.add(o, nil, nil)
	st, err := a.StartUpload(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	data := registrytest.Content(1, 100_000)
	body := newBlockedBody(data)
	var busy sync.WaitGroup
	busy.Go(func() {
		if _, err := a.AppendUpload(t.Context(), "a", st.ID, 0, -1, body); err != nil {
			t.Errorf("the request that has the upload: %v", err)
		}
	})
	<-body.begun
	wantBusy := func(r *replica) {
		t.Helper()
		_, appendErr := r.AppendUpload(t.Context(), "a", st.ID, 0, 1, bytes.NewReader(data[:1]))
		_, statusErr := r.UploadStatus(t.Context(), "a", st.ID)
		for _, err := range []error{appendErr, statusErr, r.CancelUpload(t.Context(), "a", st.ID)} {
			if e := (*oci.Error)(nil); !asError(err, &e) || e.HTTPStatus() != http.StatusConflict {
				t.Errorf("a second request: got %v, want 409", err)
			}
		}
	}
	for end := time.Now().Add(o.Lease * 4 / 3); time.Now().Before(end); {
		wantBusy(a)
		wantBusy(b)
	}
	close(body.let)
	busy.Wait()
	if _, err := b.CommitUpload(t.Context(), "a", st.ID, int64(len(data)), 0, nil, oci.SHA256(data)); err != nil {
		t.Errorf("the next request: %v", err)
	}
}

// TestReplicasTags checks that a client that has moved a tag sees the change everywhere: at once
// with StrictTags, otherwise within the bound that DESIGN.md states.
func TestReplicasTags(t *testing.T) {
	c := newCluster(t, memstore.New(nil), time.Hour)
	a, b := c.add(registry.Options{}, nil, nil), c.add(registry.Options{}, nil, nil)
	strict := c.add(registry.Options{StrictTags: true}, nil, nil)
	config := oci.Descriptor{}
	put := func(n int) oci.Digest {
		if n == 0 {
			data := []byte("{}")
			var err error
			if config, err = a.PushBlob(t.Context(), "a", oci.SHA256(data), 2, bytes.NewReader(data)); err != nil {
				t.Fatal(err)
			}
		}
		img := registrytest.ImageOf(config)
		img.Annotations = map[string]string{"n": fmt.Sprint(n)}
		return pushTo(t, a, "a", img, "latest").Digest
	}
	for n := range 30 {
		want := put(n)
		if m, err := strict.GetManifest(t.Context(), "a", "latest"); err != nil || m.Digest != want {
			t.Fatalf("push %d: a strict replica has %v, %v, want %s", n, m, err, want)
		}
		pushed := time.Now()
		for {
			m, err := b.GetManifest(t.Context(), "a", "latest")
			if err == nil && m.Digest == want {
				break
			}
			if time.Since(pushed) > 4*time.Second {
				t.Fatalf("push %d: after %v the other replica still has %v, %v", n, time.Since(pushed), m, err)
			}
		}
	}
	for _, change := range []func() error{
		func() error { return a.DeleteTag(t.Context(), "a", "latest") },
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		if err := b.cat.DB.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := b.GetManifest(t.Context(), "a", "latest"); !oci.HasCode(err, oci.CodeManifestUnknown) {
			t.Errorf("a tag that another replica has deleted: got %v", err)
		}
	}
}

// TestReplicasLost checks that a replica that does not learn of changes serves no tags from RAM,
// and reports that it cannot serve them if the database does not answer.
func TestReplicasLost(t *testing.T) {
	c := newCluster(t, memstore.New(nil), time.Hour)
	line := c.cable()
	a, b := c.add(registry.Options{}, nil, nil), c.add(registry.Options{}, nil, line)
	push := func(seed uint64) oci.Digest {
		data := registrytest.Content(seed, 100)
		d, err := a.PushBlob(t.Context(), "a", oci.SHA256(data), 100, bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		return pushTo(t, a, "a", registrytest.ImageOf(d), "latest").Digest
	}
	old := push(1)
	if err := b.cat.DB.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time from RAM
		if m, err := b.GetManifest(t.Context(), "a", "latest"); err != nil || m.Digest != old {
			t.Fatalf("got %v, %v", m, err)
		}
	}
	line.cut()
	renewed := push(2)
	pushed := time.Now()
	for {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		m, err := b.GetManifest(ctx, "a", "latest")
		cancel()
		if err != nil {
			break // it asked the catalogue
		}
		if m.Digest != old {
			t.Fatalf("got %s through a line that is cut", m.Digest)
		}
		if time.Since(pushed) > 6*time.Second {
			t.Fatalf("%v after a change the old tag is still served", time.Since(pushed))
		}
	}
	// By digest the manifest is still served for a while.
	if m, err := b.GetManifest(t.Context(), "a", string(old)); err != nil || m.Digest != old {
		t.Errorf("by digest: got %v, %v", m, err)
	}
	line.mend()
	poll(t, "the replica is back", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		m, err := b.GetManifest(ctx, "a", "latest")
		if err == nil && m.Digest == old {
			t.Errorf("the old tag is served after the line was mended")
		}
		return err == nil && m.Digest == renewed
	})
}

// TestReplicasOneTag makes two replicas move one tag at once. They must agree in the end.
func TestReplicasOneTag(t *testing.T) {
	c := newCluster(t, memstore.New(nil), time.Hour)
	list := []*replica{c.add(registry.Options{}, nil, nil), c.add(registry.Options{}, nil, nil)}
	data := []byte("{}")
	config, err := list[0].PushBlob(t.Context(), "a", oci.SHA256(data), 2, bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	for round := range 20 {
		var busy sync.WaitGroup
		var pushed [2]oci.Digest
		for i, r := range list {
			busy.Go(func() {
				img := registrytest.ImageOf(config)
				img.Annotations = map[string]string{"by": fmt.Sprint(i, round)}
				pushed[i] = pushTo(t, r, "a", img, "latest").Digest
			})
		}
		busy.Wait()
		var got [2]oci.Digest
		for i, r := range list {
			if err := r.cat.DB.Sync(t.Context()); err != nil {
				t.Fatal(err)
			}
			m, err := r.GetManifest(t.Context(), "a", "latest")
			if err != nil {
				t.Fatal(err)
			}
			got[i] = m.Digest
		}
		if got[0] != got[1] || !slices.Contains(pushed[:], got[0]) {
			t.Fatalf("round %d: the replicas say %v of %v", round, got, pushed)
		}
	}
}

// TestReplicasClocks checks that a replica whose clock is hours off collects nothing early, and
// holds nothing longer than another.
func TestReplicasClocks(t *testing.T) {
	for _, skew := range []time.Duration{-3 * time.Hour, 3 * time.Hour} {
		t.Run(skew.String(), func(t *testing.T) {
			c := newCluster(t, memstore.New(nil), 2*time.Second)
			a := c.add(registry.Options{}, nil, nil)
			off := c.add(registry.Options{Clock: func() time.Time { return time.Now().Add(skew) }, UploadMaxAge: 3 * time.Second}, nil, nil)
			data := registrytest.Content(uint64(skew), 50_000)
			d := oci.SHA256(data)
			begun := time.Now()
			if _, err := a.PushBlob(t.Context(), "a", d, int64(len(data)), bytes.NewReader(data)); err != nil {
				t.Fatal(err)
			}
			st, err := a.StartUpload(t.Context(), "a")
			if err != nil {
				t.Fatal(err)
			}
			wait := func(what string, least, most time.Duration, gone func() bool) {
				t.Helper()
				for !gone() {
					if time.Since(begun) > most {
						t.Fatalf("%s is still there after %v", what, time.Since(begun))
					}
					if _, err := off.Collect(t.Context(), registry.CollectOptions{}); err != nil {
						t.Fatal(err)
					}
					if err := off.Purge(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				if took := time.Since(begun); took < least {
					t.Errorf("%s went after %v, want %v", what, took, least)
				}
			}
			wait("the blob", 2*time.Second, 20*time.Second, func() bool {
				_, err := a.cat.Blob(t.Context(), "a", d)
				return err != nil
			})
			wait("the upload", 3*time.Second, 20*time.Second, func() bool {
				_, err := a.cat.Uploads.Get(t.Context(), "a", st.ID)
				return err != nil
			})
		})
	}
}

// TestReplicasPromise checks that what one replica has told a client exists is not collected by
// another one for half a grace period, and that what another one has collected is not promised from
// RAM.
func TestReplicasPromise(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	c := newCluster(t, memstore.New(nil), 2*time.Second)
	a, b := c.add(registry.Options{}, nil, nil), c.add(registry.Options{}, nil, nil)
	rng := rand.New(rand.NewPCG(1, 2))
	gone := 0
	for i := range 40 {
		data := registrytest.Content(uint64(i), 1+i*1000)
		d := oci.SHA256(data)
		if _, err := b.PushBlob(t.Context(), "a", d, int64(len(data)), bytes.NewReader(data)); err != nil {
			t.Fatal(err)
		}
		if _, err := a.ResolveBlob(t.Context(), "a", d); err != nil {
			t.Fatal(err)
		}
		deadline := time.Now().Add(time.Duration(rng.Int64N(int64(3 * time.Second / 40))))
		for time.Now().Before(deadline) {
			if _, err := b.Collect(t.Context(), registry.CollectOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		for j := range i {
			old := oci.SHA256(registrytest.Content(uint64(j), 1+j*1000))
			asked := time.Now()
			_, err := a.ResolveBlob(t.Context(), "a", old)
			if oci.HasCode(err, oci.CodeBlobUnknown) {
				gone++
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			if rng.IntN(4) > 0 {
				continue
			}
			if _, err := b.Collect(t.Context(), registry.CollectOptions{}); err != nil {
				t.Fatal(err)
			}
			if _, err := b.cat.Blob(t.Context(), "a", old); err != nil && time.Since(asked) < time.Second {
				t.Fatalf("a blob went %v after a client was told it is there: %v", time.Since(asked), err)
			}
		}
	}
	// Nobody asks any more, so all of it goes.
	poll(t, "the rest is collected", func() bool {
		if _, err := b.Collect(t.Context(), registry.CollectOptions{}); err != nil {
			t.Fatal(err)
		}
		n, err := b.cat.Counts(t.Context())
		return err == nil && n.Blobs == 0
	})
	for j := range 40 {
		if _, err := a.ResolveBlob(t.Context(), "a", oci.SHA256(registrytest.Content(uint64(j), 1+j*1000))); !oci.HasCode(err, oci.CodeBlobUnknown) {
			t.Errorf("a blob that is gone: got %v", err)
		}
	}
}

// TestReplicasFsck checks that a repairing check at one replica neither reports as a problem, nor
// removes, what others do meanwhile.
func TestReplicasFsck(t *testing.T) {
	c := newCluster(t, memstore.New(nil), 300*time.Millisecond)
	a, b := c.add(registry.Options{}, nil, nil), c.add(registry.Options{}, nil, nil)
	config := []byte("{}")
	desc, err := a.PushBlob(t.Context(), "a", oci.SHA256(config), 2, bytes.NewReader(config))
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var busy sync.WaitGroup
	var kept []oci.Descriptor
	busy.Go(func() {
		for i := uint64(0); ; i++ {
			data := registrytest.Content(i%7, 30_000) // some of them come back
			layer, err := a.PushBlob(t.Context(), "a", oci.SHA256(data), int64(len(data)), bytes.NewReader(data))
			if err != nil {
				t.Errorf("push: %v", err)
				return
			}
			img := registrytest.ImageOf(desc, layer)
			img.Annotations = map[string]string{"n": fmt.Sprint(i)}
			m := pushTo(t, a, "a", img)
			if i%3 == 0 {
				kept = append(kept, layer)
			} else if err := a.DeleteManifest(t.Context(), "a", m.Digest); err != nil {
				t.Errorf("delete: %v", err)
			}
			if _, err := a.Collect(t.Context(), registry.CollectOptions{}); err != nil {
				t.Errorf("collect: %v", err)
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	})
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); {
		rep, err := check.Run(t.Context(), b.Registry, check.Options{Repair: true})
		if err != nil {
			t.Fatal(err)
		}
		if len(rep.Problems) > 0 {
			t.Fatalf("found %+v", rep.Problems)
		}
	}
	close(stop)
	busy.Wait()
	for _, l := range kept {
		if _, err := registrytest.ReadBlob(t.Context(), b, "a", l.Digest); err != nil {
			t.Errorf("layer %s: %v", l.Digest, err)
		}
	}
	// Unknown objects are repaired here too.
	orphan := storage.BlobKey(oci.SHA256([]byte("orphan")))
	if err := c.store.Put(t.Context(), orphan, []byte("orphan"), false); err != nil {
		t.Fatal(err)
	}
	poll(t, "the orphan is removed", func() bool {
		rep, err := check.Run(t.Context(), b.Registry, check.Options{Repair: true})
		return err == nil && rep.Repaired[check.ProblemOrphan] == 1
	})
	if _, err := c.store.Stat(t.Context(), orphan); !errors.Is(err, objstore.ErrNotExist) {
		t.Errorf("the orphan: %v", err)
	}
}
