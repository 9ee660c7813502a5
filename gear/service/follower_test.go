package service_test

import (
	"bytes"
	"context"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	gearregistry "example.org/slipway/gear/service"
	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/objstore/fsstore"
	"example.org/slipway/registry/objstore/objtest"
	"example.org/slipway/registry/storage"
)

// upload is an upload in several pieces.
type upload struct {
	b        *bed
	repo, id string
	off      int64
}

func (b *bed) upload(repo string) *upload {
	b.t.Helper()
	st, err := b.reg.StartUpload(context.Background(), repo)
	b.must(err)
	return &upload{b: b, repo: repo, id: st.ID}
}

func (u *upload) append(p []byte) {
	u.b.t.Helper()
	st, err := u.b.reg.AppendUpload(context.Background(), u.repo, u.id, u.off, int64(len(p)), bytes.NewReader(p))
	u.b.must(err)
	u.off = st.Size
}

func (u *upload) commit(d oci.Digest) error {
	_, err := u.b.reg.CommitUpload(context.Background(), u.repo, u.id, u.off, 0, nil, d)
	return err
}

// TestFollow pushes layers in several ways while no worker processes the queue. A layer
// that is converted nevertheless was converted along with its upload.
func TestFollow(t *testing.T) {
	data := layer(1, 60, 50_000)
	d := oci.SHA256(data)
	sum := sha512.Sum512(data)
	d512 := oci.Digest("sha512:" + hex.EncodeToString(sum[:]))
	for name, push := range map[string]func(b *bed){
		"in one request": func(b *bed) { b.pushBlob(ours, data) },
		"of unknown size": func(b *bed) {
			_, err := b.reg.PushBlob(context.Background(), ours, d, -1, io.MultiReader(bytes.NewReader(data)))
			b.must(err)
		},
		"byte by byte at first": func(b *bed) {
			_, err := b.reg.PushBlob(context.Background(), ours, d, -1,
				io.MultiReader(strings.NewReader(string(data[:1])), bytes.NewReader(data[1:100]), bytes.NewReader(data[100:])))
			b.must(err)
		},
		"in chunks": func(b *bed) {
			u := b.upload(ours)
			for rest := data; len(rest) > 0; rest = rest[min(len(rest), 300_000):] {
				u.append(rest[:min(len(rest), 300_000)])
			}
			b.must(u.commit(d))
		},
		"slowly": func(b *bed) {
			u := b.upload(ours)
			for rest := data; len(rest) > 0; rest = rest[min(len(rest), 1_000_000):] {
				u.append(rest[:min(len(rest), 1_000_000)])
				<-time.After(5 * time.Millisecond)
			}
			b.must(u.commit(d))
		},
		"with another digest": func(b *bed) {
			u := b.upload(ours)
			u.append(data)
			b.must(u.commit(d512))
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, setup{idle: true})
			push(b)
			b.quiet()
			d := d
			if name == "with another digest" {
				d = d512
			}
			if n := b.opens(d); n != 0 {
				t.Errorf("the layer was read %d times from the store", n)
			}
			b.readable(ours, d)
			if n := b.metric("conversions_total"); n != 1 {
				t.Errorf("%d conversions", n)
			}
		})
	}
}

// TestFollowOnDisk does the same with the real store.
func TestFollowOnDisk(t *testing.T) {
	store, err := fsstore.New(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	b := newBed(t, setup{store: store, idle: true})
	data := layer(2, 20, 50_000)
	d := b.pushBlob(ours, data)
	b.quiet()
	b.readable(ours, d)
}

// TestFollowNothing checks that blobs that are no layers, and repositories that are off,
// leave no trace in the status or the log.
func TestFollowNothing(t *testing.T) {
	b := newBed(t, setup{idle: true, gear: gearregistry.Options{Mode: func(repo string) gearregistry.Mode {
		if repo == theirs {
			return gearregistry.Off
		}
		return gearregistry.Async
	}}})
	if f := b.svc.Follow(theirs, zipped(tarOf())); f != nil {
		t.Error("a layer of a repository that is off is followed")
	}
	if f := b.svc.Follow(ours, []byte("{}")); f != nil {
		t.Error("JSON is followed")
	}
	if f := b.svc.Follow(ours, nil); f != nil {
		t.Error("nothing is followed")
	}
	b.push(theirs, layer(3, 3, 30_000))
	d := b.pushBlob(ours, content(4, 100_000))
	b.pending(ours, d, "no layer")
	// This begins like a layer and is none.
	like := b.pushBlob(ours, append([]byte{0x1f, 0x8b, 8, 0}, content(5, 100_000)...))
	b.quiet()
	if st := b.status(); st.Waiting+st.Failed+st.Layers > 0 || b.log.String() != "" {
		t.Errorf("got %+v and the log %q", st, b.log)
	}
	_ = like
}

// TestFollowOverflow uploads faster than the conversion reads. The store is then read
// twice: the part that did not fit in the buffer for the index, and the whole layer for
// the files.
func TestFollowOverflow(t *testing.T) {
	b := newBed(t, setup{idle: true})
	data := layer(6, 16, 1<<20)
	d := oci.SHA256(data)
	const buffer = 8 << 20
	f := b.svc.Follow(ours, data)
	f.Write(data[:1<<20])
	f.Write(data[1<<20 : buffer+2<<20]) // more than the buffer at once
	f.Write(data[buffer+2<<20:])        // there may be room, but not in the right place
	_, err := b.cat.PutBlob(context.Background(), ours, catalog.Blob{Digest: d, Size: int64(len(data))}, "")
	b.must(err)
	put(b, storage.BlobKey(d), data)
	f.Published(d, int64(len(data)))
	b.quiet()
	if n := b.opens(d); n != 2 {
		t.Errorf("the layer was opened %d times in the store, want 2", n)
	}
	b.readable(ours, d)
}

// put stores an object.
func put(b *bed, key string, data []byte) {
	b.t.Helper()
	ctx := context.Background()
	u, err := b.objs.NewUpload(ctx, int64(len(data)))
	b.must(err)
	_, err = u.Write(data)
	b.must(err)
	b.must(u.Commit(ctx, key))
}

// TestFollowEndsEarly checks that the conversion ends and leaves nothing behind, whatever
// happens to its upload.
func TestFollowEndsEarly(t *testing.T) {
	data := layer(7, 30, 50_000)
	d := oci.SHA256(data)
	for name, test := range map[string]struct {
		o  setup
		do func(b *bed)
	}{
		"cancelled": {do: func(b *bed) {
			u := b.upload(ours)
			u.append(data[:500_000])
			b.must(b.reg.CancelUpload(context.Background(), ours, u.id))
		}},
		"of another digest": {do: func(b *bed) {
			u := b.upload(ours)
			u.append(data)
			if err := u.commit(oci.SHA256([]byte("other"))); !oci.HasCode(err, oci.CodeDigestInvalid) {
				b.t.Errorf("got %v", err)
			}
		}},
		"body broke off": {do: func(b *bed) {
			_, err := b.reg.PushBlob(context.Background(), ours, d, int64(len(data)), io.MultiReader(bytes.NewReader(data[:700_000]), errReader{}))
			if err == nil {
				b.t.Error("a body that broke off was taken")
			}
		}},
		"parked and purged": {do: func(b *bed) {
			u := b.upload(ours)
			u.append(data[:500_000])
			b.pass(24 * 8 * time.Hour)
			b.must(b.reg.Close(context.Background())) // ends the work of this minute and the followed uploads
		}},
		"closed": {do: func(b *bed) {
			u := b.upload(ours)
			u.append(data[:500_000])
			b.svc.Close()
			u.append(data[500_000:600_000])
		}},
		"too slow": {o: setup{gear: gearregistry.Options{Patience: time.Millisecond}}, do: func(b *bed) {
			u := b.upload(ours)
			u.append(data[:500_000])
			b.quiet()
			u.append(data[500_000:])
			b.must(u.commit(d))
		}},
		"no tar": {o: setup{gear: gearregistry.Options{Patience: 50 * time.Millisecond}}, do: func(b *bed) {
			u := b.upload(ours)
			u.append(zipped(content(8, 600_000)))
			b.quiet()
			u.append(content(9, 100_000)) // the conversion ended long before
		}},
		"store is full": {do: func(b *bed) {
			b.fault(func(op, key string) error {
				if op == objtest.OpCommit && strings.HasPrefix(key, "slipway/gear/") {
					return errFull
				}
				return nil
			})
			b.pushBlob(ours, data)
			b.quiet()
			b.fault(nil)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			test.o.idle = true
			b := newBed(t, test.o)
			test.do(b)
			b.quiet()
			if st := b.status(); st.Layers != 0 {
				t.Errorf("got %+v, want no layer", st)
			}
			if strings.Contains(b.log.String(), "level=ERROR") {
				t.Errorf("errors in the log:\n%s", b.log)
			}
		})
	}
}

var errFull = fmt.Errorf("write: %w", errors.New("no space left on device"))

type errReader struct{}

func (errReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// TestFollowTwice has several clients push the same layer at once, and one ask for it.
// The layer is converted once, and every client gets the index.
func TestFollowTwice(t *testing.T) {
	b := newBed(t, setup{gear: gearregistry.Options{Workers: 4}})
	for round := range 5 {
		data := layer(uint64(10+round), 25, 40_000)
		d := oci.SHA256(data)
		before := b.metric("conversions_total")
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				repo := fmt.Sprintf("team%d/app", i)
				if _, err := b.reg.PushBlob(context.Background(), repo, d, int64(len(data)), bytes.NewReader(data)); err != nil {
					t.Errorf("push: %v", err)
				}
				if err := b.svc.Queue(context.Background(), repo, []oci.Digest{d}); err != nil {
					t.Errorf("queue: %v", err)
				}
			})
		}
		wg.Wait()
		b.wait(d)
		b.quiet()
		for i := range 4 {
			b.readable(fmt.Sprintf("team%d/app", i), d)
		}
		if n := b.metric("conversions_total") - before; n != 1 {
			t.Errorf("round %d: the layer was converted %d times", round, n)
		}
		if st := b.status(); st.Waiting+st.Failed > 0 {
			t.Errorf("round %d: left in the queue: %+v", round, st)
		}
	}
}

// TestFollowSlowDoesNotHoldUp checks that a slow upload of a layer does not delay the
// conversion of the same layer for others.
func TestFollowSlowDoesNotHoldUp(t *testing.T) {
	b := newBed(t, setup{gear: gearregistry.Options{Patience: 50 * time.Millisecond}})
	data := layer(20, 40, 50_000)
	u := b.upload(theirs)
	u.append(data[:len(data)-1000]) // all but the end, and then nothing more
	_, d := b.push(ours, data)
	b.wait(d)
	b.readable(ours, d)
	b.must(b.reg.CancelUpload(context.Background(), theirs, u.id))
}

// TestFollowGone deletes the blob between its push and the end of its conversion.
func TestFollowGone(t *testing.T) {
	b := newBed(t, setup{idle: true})
	data := layer(21, 10, 50_000)
	d := oci.SHA256(data)
	hold, held := make(chan struct{}), make(chan struct{}, 8)
	b.fault(func(op, key string) error {
		if op == objtest.OpCommit && strings.HasPrefix(key, "slipway/gear/") {
			held <- struct{}{}
			<-hold
		}
		return nil
	})
	b.pushBlob(ours, data)
	<-held
	b.must(b.reg.DeleteBlob(context.Background(), ours, d))
	b.pass(2 * time.Minute)
	_, err := b.reg.Collect(context.Background(), registry.CollectOptions{Now: true})
	b.must(err)
	close(hold)
	b.quiet()
	if st := b.status(); st.Layers+st.Files+st.Waiting+st.Failed != 0 {
		t.Errorf("something is left of a layer that is gone: %+v", st)
	}
	b.fault(nil)
	b.pushBlob(ours, data)
	b.quiet()
	b.readable(ours, d)
}
