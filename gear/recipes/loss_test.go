package recipes

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"path/filepath"
	"testing"
	"time"

	"example.org/slipway/gear/filestore"
	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/catalog/gearfacts"
	"example.org/slipway/registry/storage"
)

// filesOf returns the contents of an archive.
func filesOf(t testing.TB, archive []byte) map[gearfacts.Name]int64 {
	t.Helper()
	out := map[gearfacts.Name]int64{}
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := r.Next()
		if err == io.EOF {
			return out
		}
		sum := sha256.New()
		if err == nil {
			_, err = io.Copy(sum, r)
		}
		if err != nil {
			t.Fatal(err)
		}
		out[gearfacts.Name(sum.Sum(nil))] = h.Size
	}
}

// damageShared flips a bit of a stored content that both archives have.
func (b *bed) damageShared(one, other []byte) {
	b.t.Helper()
	in := filesOf(b.t, other)
	for name, size := range filesOf(b.t, one) {
		if _, shared := in[name]; !shared || size < 1000 {
			continue
		}
		f, err := gearfacts.NewFiles(b.cat.DB).File(b.t.Context(), name)
		b.must(err)
		b.harm(filepath.Join(b.dir, storage.PackPrefix, fmt.Sprintf("%x", f.Pack)), func(p []byte) []byte {
			p[f.Off+f.Stored/2] ^= 1
			return p
		})
		return
	}
	b.t.Fatal("the archives have no content in common")
}

// eventually waits until a condition holds.
func (b *bed) eventually(what string, holds func() bool) {
	b.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(5 * time.Minute); !holds(); <-tick.C {
		if time.Now().After(end) {
			b.t.Fatalf("%s: not within 5 min", what)
		}
	}
}

// TestSourceDeleted deletes the layer from which a damaged file of a dropped layer is to be
// made again, before that happens. The blob must stay until the file is there again.
func TestSourceDeleted(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	b := newBed(t)
	one, other := archive(1, 12), archive(2, 12)
	layer, source := compressed(6, one), compressed(1, other)
	b.push(layer)
	b.drop()
	b.settle()
	b.pass(time.Hour)
	b.must(b.files.Housekeep(t.Context()))
	b.putManifest(layer) // which stays
	d := b.push(source)
	b.damageShared(one, other)
	b.restart() // nothing is remembered
	b.stop()    // so that nothing is converted
	b.stop = func() {}
	if _, err := b.read(oci.SHA256(layer)); err == nil {
		t.Fatal("a layer with a damaged file was rebuilt")
	}
	waiting := 0
	_, err := b.files.Verify(t.Context(), filestore.VerifyOptions{Found: func(p filestore.Problem) {
		if p.Awaited {
			waiting++
		}
	}})
	if err != nil || waiting != 1 {
		t.Errorf("a check says nothing of the file that the dropped layer lacks: %d problems, %v", waiting, err)
	}
	b.must(b.reg.DeleteBlob(t.Context(), repo, d))
	collect := func() {
		t.Helper()
		b.pass(3 * time.Hour)
		for _, now := range []bool{false, true} {
			_, err := b.reg.Collect(t.Context(), registry.CollectOptions{Now: now})
			b.must(err)
		}
	}
	collect()
	if !b.stored(d) {
		t.Fatal("the blob that has the last copy of a file was deleted")
	}
	b.restart()
	b.eventually("the file is made again", func() bool {
		got, err := b.read(oci.SHA256(layer))
		return err == nil && bytes.Equal(got, layer)
	})
	collect()
	if b.stored(d) {
		t.Error("the blob stays although nothing needs it any more")
	}
	b.check("in the end", layer)
}
