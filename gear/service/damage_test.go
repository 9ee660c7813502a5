package service_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"example.org/slipway/gear"
	"example.org/slipway/gear/filestore"
	gearregistry "example.org/slipway/gear/service"
	"example.org/slipway/registry/objstore/fsstore"
	"example.org/slipway/registry/storage"
)

// damaged returns a bed on the real store and a function that damages its packs. It keeps
// no contents in RAM, which would hide the damage.
func damaged(t *testing.T) (b *bed, flip func()) {
	t.Helper()
	dir := t.TempDir()
	store, err := fsstore.New(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	b = newBed(t, setup{store: store, filest: filestore.Options{Cache: noCache{}}})
	return b, func() {
		t.Helper()
		n := 0
		err := filepath.WalkDir(filepath.Join(dir, "slipway", "gear", "packs"), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			raw, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			for i := 64; i < len(raw); i += 256 {
				raw[i] ^= 0x20
			}
			n++
			if err := os.Chmod(path, 0o600); err != nil {
				return err
			}
			return os.WriteFile(path, raw, 0o600)
		})
		if err != nil || n == 0 {
			t.Fatalf("%d packs damaged: %v", n, err)
		}
	}
}

type noCache struct{}

func (noCache) Get(gear.Name) ([]byte, bool) { return nil, false }
func (noCache) Put(gear.Name, []byte)        {}

// TestDamage flips bits of packs. Reads report it and never return wrong bytes, and the
// damaged files are made again from the layer.
func TestDamage(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	b, flip := damaged(t)
	small, large := content(1, 10_000), content(2, 5<<20)
	_, d := b.push(ours, zipped(tarOf(file{"s", small}, file{"l", large})))
	b.wait(d)
	b.quiet()
	b.readable(ours, d)
	flip()
	var corrupt *filestore.CorruptError
	if _, err := b.read(ours, name(small)); !errors.As(err, &corrupt) && !errors.Is(err, filestore.ErrLost) {
		t.Errorf("a damaged file: got %v", err)
	}
	for _, c := range [][]byte{small, large} {
		b.eventually("the file again", func() bool {
			got, err := b.read(ours, name(c))
			if err == nil && !bytes.Equal(got, c) {
				t.Fatal("wrong bytes")
			}
			return err == nil
		})
	}
	b.eventually("the index again", func() bool {
		_, err := b.index(ours, d)
		var pending *gear.PendingError
		if err != nil && (!errors.As(err, &pending) || pending.RetryAfter == 0) {
			t.Fatalf("a damaged index: got %v", err)
		}
		return err == nil
	})
	b.readable(ours, d)
	b.quiet()
	if st := b.status(); st.Waiting+st.Failed > 0 {
		t.Errorf("left over: %+v", st)
	}
	// In a batch the damaged file fails alone. A later batch is complete.
	flip()
	b.eventually("the batch again", func() bool {
		var buf bytes.Buffer
		b.must(b.svc.Fetch(t.Context(), ours, []gear.Name{name(large), name(small)}, &buf))
		r := gear.NewStreamReader(&buf)
		for {
			it, err := r.Next()
			switch {
			case errors.Is(err, gear.ErrContent), errors.Is(err, gear.ErrFormat):
				// The reader verifies the stream and asks for the file alone.
				for _, c := range [][]byte{small, large} {
					_, _ = b.read(ours, name(c))
				}
				return false
			case err != nil:
				return true
			case it.Missing:
				t.Fatal("a damaged file is missing")
			case it.Failure != "":
				return false
			}
			if _, err := it.WriteTo(new(bytes.Buffer)); err != nil {
				_, _ = b.read(ours, it.Name)
				return false
			}
		}
	})
	b.eventually("the index again", func() bool { _, err := b.index(ours, d); return err == nil })
	b.readable(ours, d)
}

// TestDamageWithoutLayer also removes the layer's object. The status says why the file
// cannot be made again. When the layer is back, the file is repaired.
func TestDamageWithoutLayer(t *testing.T) {
	b, flip := damaged(t)
	small := content(1, 30_000)
	data := zipped(tarOf(file{"s", small}))
	_, d := b.push(ours, data)
	b.wait(d)
	b.quiet()
	b.must(b.objs.Delete(t.Context(), storage.BlobKey(d)))
	flip()
	var corrupt *filestore.CorruptError
	if _, err := b.read(ours, name(small)); !errors.As(err, &corrupt) {
		t.Errorf("got %v", err)
	}
	b.eventually("the failure", func() bool { return b.status().Failed == 1 })
	b.quiet()
	if f := b.status().Failures[0]; f.Layer != d || !strings.Contains(f.Reason, "not exist") || f.Retry.IsZero() {
		t.Errorf("got %+v", f)
	}
	if _, err := b.read(ours, name(small)); !errors.Is(err, filestore.ErrLost) {
		t.Errorf("got %v, want that it is lost", err)
	}
	put(b, storage.BlobKey(d), data)
	b.pass(gearregistry.LastRetry)
	b.eventually("the file again", func() bool { _, err := b.read(ours, name(small)); return err == nil })
}

// TestDamageCutOff ends the process after a file was found damaged and before it was made
// again.
func TestDamageCutOff(t *testing.T) {
	b, flip := damaged(t)
	small := content(1, 30_000)
	_, d := b.push(ours, zipped(tarOf(file{"s", small})))
	b.wait(d)
	b.quiet()
	flip()
	b.stop()
	b.stop = func() {}
	b.svc.Close()
	if _, err := b.read(ours, name(small)); err == nil {
		t.Error("a damaged file was read")
	}
	b.restart()
	b.eventually("the file again", func() bool { _, err := b.read(ours, name(small)); return err == nil })
}

// TestDamageOfStaged damages a file that only a client uploaded, so that it cannot be
// made again. The client finds it missing, and gets it back by sending it again.
func TestDamageOfStaged(t *testing.T) {
	b, flip := damaged(t)
	small := content(1, 30_000)
	put := func() { b.must(b.svc.PutFile(t.Context(), ours, name(small), -1, bytes.NewReader(small))) }
	put()
	flip()
	if _, err := b.read(ours, name(small)); err == nil {
		t.Error("a damaged file was read")
	}
	b.eventually("a word in the log", func() bool { return strings.Contains(b.log.String(), "no layer holds it any more") })
	if missing, err := b.svc.Missing(t.Context(), ours, []gear.Name{name(small)}); err != nil || !missing[0] {
		t.Errorf("missing: got %v, %v", missing, err)
	}
	put()
	if _, err := b.read(ours, name(small)); err != nil {
		t.Errorf("sent again: %v", err)
	}
}
