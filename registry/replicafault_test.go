package registry_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/engine"
	"example.org/slipway/registry/check"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/objstore/memstore"
	"example.org/slipway/registry/objstore/objtest"
	"example.org/slipway/registry/registrytest"
	"example.org/slipway/registry/storage"
)

func asError(err error, e **oci.Error) bool { return errors.As(err, e) }

// pushTo pushes a manifest to one replica.
func pushTo(t testing.TB, r oci.Registry, repo string, doc any, tags ...string) oci.Descriptor {
	t.Helper()
	raw, err := json.Marshal(doc)
	if err == nil {
		var res oci.PutResult
		if res, err = r.PutManifest(t.Context(), repo, oci.PutManifest{Bytes: raw, Tags: tags}); err == nil {
			return res.Descriptor
		}
	}
	t.Errorf("push a manifest to %s: %v", repo, err)
	return oci.Descriptor{}
}

// icy is a store that freezes a process: until thaw, one operation does not continue, and nothing
// reaches the catalogue.
type icy struct {
	op    string
	after bool
	line  *cable
	// frozen is closed when the process is frozen. cold is open while that lasts.
	frozen, cold chan struct{}
	armed        atomic.Bool
}

func newIcy(op string, after bool, line *cable) *icy {
	return &icy{op: op, after: after, line: line, frozen: make(chan struct{}), cold: make(chan struct{})}
}

func (f *icy) hook(after bool) func(op, key string) error {
	return func(op, _ string) error {
		if after == f.after && op == f.op && f.armed.CompareAndSwap(true, false) {
			f.line.cut()
			close(f.frozen)
			<-f.cold
		}
		return nil
	}
}

func (f *icy) store(inner objstore.Store) objstore.Store {
	return objtest.Faulty(inner, objtest.Faults{Before: f.hook(false), After: f.hook(true)})
}

func (f *icy) thaw() {
	f.line.mend()
	close(f.cold)
}

const shortLease = time.Second

// TestReplicaFreezesPushing freezes a replica in the middle of a push. The next one cleans up after
// it and continues the upload, others push the same content, and the frozen replica must do no
// damage when it comes back.
func TestReplicaFreezesPushing(t *testing.T) {
	for _, c := range []struct {
		name  string
		op    string
		after bool
		again bool // the same content is pushed meanwhile
		late  bool // the push may start again and succeed
	}{
		{"while the body comes in", objtest.OpWrite, false, false, true},
		{"before the object is there", objtest.OpCommit, false, false, false},
		{"before the object is there, pushed again", objtest.OpCommit, false, true, false},
		{"when the object is there", objtest.OpCommit, true, false, false},
		{"when the object is there, pushed again", objtest.OpCommit, true, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			cl := newCluster(t, memstore.New(nil), time.Hour)
			line := cl.cable()
			ice := newIcy(c.op, c.after, line)
			o := registry.Options{Lease: shortLease}
			a, b := cl.add(o, ice.store(cl.store), line), cl.add(o, nil, nil)
			data := registrytest.Content(9, 100_000)
			d := oci.SHA256(data)
			st, err := a.StartUpload(t.Context(), "a")
			if err != nil {
				t.Fatal(err)
			}
			ice.armed.Store(true)
			var busy sync.WaitGroup
			var pushErr error
			busy.Go(func() {
				_, pushErr = a.CommitUpload(t.Context(), "a", st.ID, 0, int64(len(data)), bytes.NewReader(data), d)
			})
			<-ice.frozen
			if _, err := b.UploadStatus(t.Context(), "a", st.ID); !isConflict(err) {
				t.Errorf("while the claim lasts: got %v, want 409", err)
			}
			if c.again {
				if _, err := b.PushBlob(t.Context(), "a", d, int64(len(data)), bytes.NewReader(data)); err != nil {
					t.Fatalf("push the same at the other replica: %v", err)
				}
			}
			poll(t, "the upload is taken over", func() bool {
				purge(t, b)
				_, err := b.CommitUpload(t.Context(), "a", st.ID, 0, 5, bytes.NewReader([]byte("other")), oci.SHA256([]byte("other")))
				return oci.HasCode(err, oci.CodeBlobUploadUnknown) || err == nil
			})
			if _, err := b.cat.Blob(t.Context(), "a", d); (err == nil) != c.again {
				t.Errorf("the blob: %v, want it %v", err, c.again)
			}
			ice.thaw()
			busy.Wait()
			if pushErr == nil && !c.again && !c.late {
				t.Error("the push of the replica that had been given up succeeded")
			}
			wantWhole(t, cl, b, d, data, pushErr == nil || c.again)
		})
	}
}

// TestReplicaFreezesAppending freezes a replica that holds a chunk. The client continues at another
// replica from what was acknowledged.
func TestReplicaFreezesAppending(t *testing.T) {
	cl := newCluster(t, memstore.New(nil), time.Hour)
	line := cl.cable()
	ice := newIcy(objtest.OpResume, false, line)
	o := registry.Options{Lease: shortLease}
	a, b := cl.add(o, ice.store(cl.store), line), cl.add(o, nil, nil)
	data := registrytest.Content(3, 200_000)
	const half = 100_000
	st, err := a.StartUpload(t.Context(), "a")
	if err == nil {
		_, err = a.AppendUpload(t.Context(), "a", st.ID, 0, half, bytes.NewReader(data[:half]))
	}
	if err != nil {
		t.Fatal(err)
	}
	ice.armed.Store(true)
	var busy sync.WaitGroup
	var appendErr error
	busy.Go(func() {
		_, appendErr = a.AppendUpload(t.Context(), "a", st.ID, half, 1000, bytes.NewReader(data[half:half+1000]))
	})
	<-ice.frozen
	poll(t, "the claim has run out", func() bool {
		got, err := b.UploadStatus(t.Context(), "a", st.ID)
		if err != nil && !isConflict(err) || err == nil && got.Size != half {
			t.Fatalf("stands at %d, %v, want %d", got.Size, err, half)
		}
		return err == nil
	})
	if _, err := b.CommitUpload(t.Context(), "a", st.ID, half, -1, bytes.NewReader(data[half:]), oci.SHA256(data)); err != nil {
		t.Fatalf("go on at the other replica: %v", err)
	}
	ice.thaw()
	busy.Wait()
	if appendErr == nil {
		t.Error("the chunk of the replica that had been given up was acknowledged")
	}
	wantWhole(t, cl, b, oci.SHA256(data), data, true)
}

// TestReplicaDropsTooLate checks that a request that does not know yet that another one has its
// upload fails, and leaves what the other one acknowledged.
func TestReplicaDropsTooLate(t *testing.T) {
	cl := newCluster(t, memstore.New(nil), time.Hour)
	a, b := cl.add(registry.Options{}, nil, nil), cl.add(registry.Options{}, nil, nil)
	data := registrytest.Content(4, 10_000) // few enough to be in the row, which both can read
	const half, more = 5_000, 7_000
	st, err := a.StartUpload(t.Context(), "a")
	if err == nil {
		_, err = a.AppendUpload(t.Context(), "a", st.ID, 0, half, bytes.NewReader(data[:half]))
	}
	if err != nil {
		t.Fatal(err)
	}
	body := newBlockedBody(nil)
	var busy sync.WaitGroup
	var commitErr error
	busy.Go(func() {
		_, commitErr = a.CommitUpload(t.Context(), "a", st.ID, half, -1, io.MultiReader(bytes.NewReader(data[half:]), body), oci.SHA256([]byte("other")))
	})
	<-body.begun
	var row catalog.Upload
	poll(t, "the intent is recorded", func() bool {
		row, err = b.cat.Uploads.Get(t.Context(), "a", st.ID)
		return err != nil || row.Intent != ""
	})
	row.Until = time.UnixMilli(1) // as if the time had passed without an extension
	if err := errors.Join(err, b.cat.Uploads.Save(t.Context(), row)); err != nil {
		t.Fatal(err)
	}
	if _, err := b.AppendUpload(t.Context(), "a", st.ID, half, more-half, bytes.NewReader(data[half:more])); err != nil {
		t.Fatalf("go on at the other replica: %v", err)
	}
	close(body.let)
	busy.Wait()
	if commitErr == nil {
		t.Error("the bytes were taken for others")
	}
	if _, err := b.CommitUpload(t.Context(), "a", st.ID, more, -1, bytes.NewReader(data[more:]), oci.SHA256(data)); err != nil {
		t.Errorf("what was acknowledged is gone: %v", err)
	}
	wantWhole(t, cl, b, oci.SHA256(data), data, true)
}

// TestReplicaDiesBesidePush checks what is left of a replica that dies when its object is stored.
// The object must be recorded until it is gone, even if somebody else was about to push the same
// content.
func TestReplicaDiesBesidePush(t *testing.T) {
	cl := newCluster(t, memstore.New(nil), time.Hour)
	line := cl.cable()
	ice := newIcy(objtest.OpCommit, true, line)
	a, b := cl.add(registry.Options{Lease: shortLease}, ice.store(cl.store), line), cl.add(registry.Options{}, nil, nil)
	data := registrytest.Content(5, 100_000)
	d := oci.SHA256(data)
	ice.armed.Store(true)
	var dead, busy sync.WaitGroup
	dead.Go(func() {
		if _, err := a.PushBlob(t.Context(), "a", d, int64(len(data)), bytes.NewReader(data)); err == nil {
			t.Error("the push of the replica that had been given up succeeded")
		}
	})
	defer dead.Wait()
	<-ice.frozen
	defer ice.thaw()
	body := newBlockedBody(nil)
	busy.Go(func() {
		if _, err := b.PushBlob(t.Context(), "a", d, int64(len(data)), io.MultiReader(bytes.NewReader(data[:50_000]), body)); err == nil {
			t.Error("a push of half the bytes succeeded")
		}
	})
	<-body.begun
	poll(t, "the claim of the dead has run out", func() bool {
		now, err := b.cat.DB.Now(t.Context())
		list, listErr := b.cat.Uploads.Intents(t.Context())
		return err == nil && listErr == nil && len(list) == 2 && (list[0].Until.Before(now) || list[1].Until.Before(now))
	})
	purge(t, b)
	close(body.let)
	busy.Wait()
	wantWhole(t, cl, b, d, data, false)
}

func isConflict(err error) bool {
	e := (*oci.Error)(nil)
	return errors.As(err, &e) && e.HTTPStatus() == http.StatusConflict
}

// purge does the work of a minute. On a busy machine, a lease as short as in these tests may be
// lost, which does no harm.
func purge(t *testing.T, r *replica) {
	t.Helper()
	if err := r.Purge(t.Context()); err != nil && !errors.Is(err, engine.ErrLeaseLost) {
		t.Fatal(err)
	}
}

// wantWhole checks that a blob is there whole or not at all, and that nothing is left over once
// everything has settled.
func wantWhole(t *testing.T, c *cluster, r *replica, d oci.Digest, data []byte, there bool) {
	t.Helper()
	poll(t, "nothing is under way", func() bool {
		purge(t, r)
		left, err := r.cat.Uploads.Intents(t.Context())
		return err == nil && len(left) == 0
	})
	got, err := registrytest.ReadBlob(t.Context(), r, "a", d)
	_, stat := c.store.Stat(t.Context(), storage.BlobKey(d))
	switch {
	case there && (err != nil || !bytes.Equal(got, data)):
		t.Errorf("the blob was acknowledged: got %d bytes, %v", len(got), err)
	case !there && !oci.HasCode(err, oci.CodeBlobUnknown):
		t.Errorf("the blob was not acknowledged: got %d bytes, %v", len(got), err)
	case !there && !errors.Is(stat, objstore.ErrNotExist):
		t.Errorf("its object is left over: %v", stat)
	}
}

// TestReplicaFreezesCollecting freezes a replica while it deletes an object. A push of the same
// content waits, is answered, and must not be undone when the frozen replica comes back. Another
// replica collects the rest.
func TestReplicaFreezesCollecting(t *testing.T) {
	cl := newCluster(t, memstore.New(nil), 300*time.Millisecond)
	line := cl.cable()
	ice := newIcy(objtest.OpDelete, false, line)
	o := registry.Options{Lease: shortLease}
	a, b := cl.add(o, ice.store(cl.store), line), cl.add(o, nil, nil)
	var list [][]byte
	for i := range 5 {
		data := registrytest.Content(uint64(i), 50_000)
		list = append(list, data)
		if _, err := b.PushBlob(t.Context(), "a", oci.SHA256(data), int64(len(data)), bytes.NewReader(data)); err != nil {
			t.Fatal(err)
		}
	}
	ice.armed.Store(true)
	var busy sync.WaitGroup
	busy.Go(func() {
		for {
			select {
			case <-ice.frozen:
				return
			default:
			}
			if _, err := a.Collect(t.Context(), registry.CollectOptions{}); err == nil {
				continue
			}
			return // the lease was lost
		}
	})
	<-ice.frozen
	if rep, err := b.Collect(t.Context(), registry.CollectOptions{}); err != nil || !rep.Elsewhere {
		t.Errorf("while the other one collects: got %+v, %v", rep, err)
	}
	begun := time.Now()
	for _, data := range list {
		if _, err := b.PushBlob(t.Context(), "a", oci.SHA256(data), int64(len(data)), bytes.NewReader(data)); err != nil {
			t.Fatalf("push what is being deleted: %v", err)
		}
	}
	t.Logf("the pushes of what the dead replica was deleting took %v", time.Since(begun))
	config := []byte("{}")
	desc, err := b.PushBlob(t.Context(), "a", oci.SHA256(config), 2, bytes.NewReader(config))
	if err != nil {
		t.Fatal(err)
	}
	var layers []oci.Descriptor
	for _, data := range list {
		layers = append(layers, oci.Descriptor{MediaType: oci.MediaTypeOctetStream, Digest: oci.SHA256(data), Size: int64(len(data))})
	}
	pushTo(t, b, "a", registrytest.ImageOf(desc, layers...), "latest")
	ice.thaw()
	busy.Wait()
	poll(t, "the other replica collects", func() bool {
		rep, err := b.Collect(t.Context(), registry.CollectOptions{})
		return err == nil && !rep.Elsewhere
	})
	for _, data := range list {
		if got, err := registrytest.ReadBlob(t.Context(), b, "a", oci.SHA256(data)); err != nil || !bytes.Equal(got, data) {
			t.Errorf("a layer of an image: got %d bytes, %v", len(got), err)
		}
	}
}

// TestStoreBusy checks that a store that refuses for the moment results in a 503 with a time, and
// that nothing of the request stays.
func TestStoreBusy(t *testing.T) {
	var refuse atomic.Bool
	store := objtest.Faulty(memstore.New(nil), objtest.Faults{Before: func(op, _ string) error {
		if refuse.Load() && op != objtest.OpCancel {
			return &objstore.BusyError{RetryAfter: 7 * time.Second, Err: errors.New("slow down")}
		}
		return nil
	}})
	b := newBed(t, store, registry.Options{})
	data := registrytest.Content(1, 100_000)
	d := b.PushBytes("a", data)
	refuse.Store(true)
	_, pushErr := b.PushBlob(t.Context(), "a", oci.SHA256(data[1:]), int64(len(data)-1), bytes.NewReader(data[1:]))
	_, readErr := b.GetBlob(t.Context(), "a", d.Digest)
	for _, err := range []error{pushErr, readErr} {
		e := (*oci.Error)(nil)
		if !errors.As(err, &e) || e.HTTPStatus() != http.StatusServiceUnavailable || e.RetryAfter != 7*time.Second {
			t.Errorf("got %v, want UNAVAILABLE and 7 s", err)
		}
	}
	refuse.Store(false)
	if got, err := registrytest.ReadBlob(t.Context(), b, "a", d.Digest); err != nil || !bytes.Equal(got, data) {
		t.Errorf("afterwards: got %d bytes, %v", len(got), err)
	}
	if _, err := b.ResolveBlob(t.Context(), "a", oci.SHA256(data[1:])); !oci.HasCode(err, oci.CodeBlobUnknown) {
		t.Errorf("what was refused: got %v", err)
	}
}

// TestDatabaseUnavailable checks that a database that does not answer results in a 503 with a time,
// even if it is the events' database.
func TestDatabaseUnavailable(t *testing.T) {
	down := fmt.Errorf("connect: %w", engine.ErrUnavailable)
	b := newBed(t, memstore.New(nil), registry.Options{OnEvent: func(context.Context, registry.Event) error { return down }})
	_, eventErr := b.PushBlob(t.Context(), "a", oci.SHA256([]byte("x")), 1, bytes.NewReader([]byte("x")))
	for _, err := range []error{eventErr, storage.Unavailable(down)} {
		e := (*oci.Error)(nil)
		if !errors.As(err, &e) || e.HTTPStatus() != http.StatusServiceUnavailable || e.RetryAfter <= 0 {
			t.Errorf("got %v, want UNAVAILABLE and a time", err)
		}
	}
}

// TestCutOffPushOfWhatIsLacking cuts off a push of a content that an image lacks, when the object
// is stored. The clean-up must leave the object, and fsck must take it back.
func TestCutOffPushOfWhatIsLacking(t *testing.T) {
	var cut atomic.Bool
	store := objtest.Faulty(memstore.New(nil), objtest.Faults{After: func(op, _ string) error {
		if op == objtest.OpCommit && cut.Load() {
			return errors.New("no answer")
		}
		return nil
	}})
	cl := newCluster(t, store, time.Hour)
	r := cl.add(registry.Options{Lease: 300 * time.Millisecond}, nil, nil)
	ctx, data := t.Context(), registrytest.Content(9, 100_000)
	d := oci.SHA256(data)
	config, err := r.PushBlob(ctx, "a", oci.SHA256([]byte("{}")), 2, strings.NewReader("{}"))
	registrytest.NoError(t, err)
	layer, err := r.PushBlob(ctx, "a", d, int64(len(data)), bytes.NewReader(data))
	registrytest.NoError(t, err)
	pushTo(t, r, "a", registrytest.ImageOf(config, layer), "v1")
	registrytest.NoError(t, store.Delete(ctx, storage.BlobKey(d)))
	_, err = check.Run(ctx, r.Registry, check.Options{Repair: true}) // records that the layer is absent
	registrytest.NoError(t, err)
	cut.Store(true)
	if _, err := r.PushBlob(ctx, "a", d, int64(len(data)), bytes.NewReader(data)); err == nil {
		t.Fatal("the push succeeds")
	}
	cut.Store(false)
	poll(t, "the push is settled", func() bool {
		purge(t, r)
		left, err := r.cat.Uploads.Intents(ctx)
		return err == nil && len(left) == 0
	})
	rep, err := check.Run(ctx, r.Registry, check.Options{Repair: true})
	if err != nil || !rep.Clean() {
		t.Errorf("repair: %v, %v", registrytest.Kinds(rep), err)
	}
	if got, err := registrytest.ReadBlob(ctx, r, "a", d); err != nil || !bytes.Equal(got, data) {
		t.Errorf("the layer: %d bytes, %v", len(got), err)
	}
}
