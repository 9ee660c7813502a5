package mirror_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/mirror"
)

// TestFullSpool checks that a blob which cannot be written still reaches its readers, verified, and
// is not kept anywhere.
func TestFullSpool(t *testing.T) {
	b := newBed(t, settings{})
	data := random(1, sizeLarge)
	d := b.o.push("app", data)
	file := filepath.Join(b.dir, "sha256-"+d.Digest.Encoded()+".part")
	fill := func() {
		if err := os.Symlink("/dev/full", file); err != nil {
			t.Fatal(err)
		}
	}
	fill()
	b.wantBlob("origin/app", data)
	b.settled()
	fill()
	got, err := read(b.GetBlobRange(t.Context(), "origin/app", d.Digest, 1000, 5000))
	if err != nil || !bytes.Equal(got, data[1000:6000]) {
		t.Errorf("range: %d bytes, %v", len(got), err)
	}
	b.settled()
	if _, err := b.store.ResolveBlob(t.Context(), "origin/app", d.Digest); !oci.HasCode(err, oci.CodeBlobUnknown) {
		t.Errorf("in the store: %v, want BLOB_UNKNOWN", err)
	}
	b.o.on(func(r *http.Request) *fault { return &fault{flip: isBlob(r, d.Digest), flipAt: 100} })
	fill()
	if got, err := b.get("origin/app", d.Digest); err == nil || len(got) >= sizeLarge {
		t.Errorf("wrong bytes past a full spool: %d bytes, %v", len(got), err)
	}
	b.settled()
	b.o.on(nil)
	b.wantBlob("origin/app", data)
	b.settled()
	if _, err := b.store.ResolveBlob(t.Context(), "origin/app", d.Digest); err != nil {
		t.Errorf("not stored when there is room again: %v", err)
	}
}

// TestSpoolBecomesFull fills the disk in the middle of a blob that many clients are reading.
func TestSpoolBecomesFull(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root may mount a small disk")
	}
	t.Run("to the last byte", func(t *testing.T) { spoolBecomesFull(t, 2<<20, 0) })
	t.Run("but for what is kept", func(t *testing.T) { spoolBecomesFull(t, 6<<20, 4<<20) })
}

func spoolBecomesFull(t *testing.T, size, keep int64) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprint("size=", size)); err != nil {
		t.Skipf("no tmpfs can be mounted: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	b := newBed(t, settings{options: func(o *mirror.Options) { o.Dir, o.KeepFree = dir, keep }})
	t.Cleanup(func() { b.shut(b.Registry) }) // before the disk is removed
	least, stop := make(chan int64), make(chan struct{})
	go func() {
		left := size
		for {
			var st syscall.Statfs_t
			if syscall.Statfs(dir, &st) == nil {
				left = min(left, int64(st.Bavail)*st.Bsize)
			}
			select {
			case <-stop:
				least <- left
				return
			default:
				time.Sleep(100 * time.Microsecond)
			}
		}
	}()
	data, fits := random(1, sizeLarge), random(2, 3<<19)
	b.o.push("app", data)
	b.o.push("app", fits)
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() { b.wantBlob("origin/app", data) })
	}
	wg.Wait()
	b.settled()
	list, err := os.ReadDir(dir)
	if err != nil || len(list) > 0 {
		t.Errorf("left on the full disk: %v, %v", list, err)
	}
	b.wantBlob("origin/app", fits) // is copied, because the store is on another file system
	b.settled()
	if _, err := b.store.ResolveBlob(t.Context(), "origin/app", oci.SHA256(fits)); err != nil {
		t.Errorf("what fits was not stored: %v", err)
	}
	close(stop)
	if left := <-least; left < keep-2<<20 { // the mirror checks once a MiB
		t.Errorf("%d bytes were left free, want %d", left, keep)
	}
}

// failing is a store that accepts nothing.
type failing struct {
	mirror.Store
}

var errFull = &oci.Error{Code: oci.CodeUnknown, Status: http.StatusInsufficientStorage, Message: "full"}

func (f *failing) AdoptBlob(ctx context.Context, repo string, d oci.Digest, size int64, path string) (oci.Descriptor, error) {
	return oci.Descriptor{}, errFull
}

func (f *failing) AdoptBytes(ctx context.Context, repo string, d oci.Digest, content []byte) (oci.Descriptor, error) {
	return oci.Descriptor{}, errFull
}

func (f *failing) PutManifest(ctx context.Context, repo string, m oci.PutManifest) (oci.PutResult, error) {
	return oci.PutResult{}, errFull
}

// TestFullStore checks that a blob which cannot be stored is served. A large blob is stored later
// without being fetched again.
func TestFullStore(t *testing.T) {
	b := newBed(t, settings{wrap: func(s mirror.Store) mirror.Store { return &failing{s} }})
	small, large := random(1, sizeTiny), random(2, sizeLarge)
	d, _ := b.o.image("app", "v1", `{}`, small, large)
	for range 2 {
		b.wantManifest("origin/app", "v1", d.Digest)
		b.wantBlob("origin/app", small)
		b.wantBlob("origin/app", large)
		b.settled()
	}
	if got := b.o.sentOf(oci.SHA256(large)); got != sizeLarge {
		t.Errorf("%d bytes were fetched of a blob of %d", got, sizeLarge)
	}
	b.shut(b.Registry)
	b.open(settings{})
	b.wantBlob("origin/app", large)
	b.settled()
	if _, err := b.store.ResolveBlob(t.Context(), "origin/app", oci.SHA256(large)); err != nil {
		t.Errorf("not stored when there is room again: %v", err)
	}
	if got := b.o.sentOf(oci.SHA256(large)); got != sizeLarge {
		t.Errorf("%d bytes were fetched of a blob of %d", got, sizeLarge)
	}
}

// TestLoad checks that a load makes a whole image available, in all platforms.
func TestLoad(t *testing.T) {
	b := newBed(t, settings{})
	index, images := b.multi("app", "v1", "linux/amd64", "linux/arm64")
	var last mirror.Progress
	load := func() {
		t.Helper()
		if err := b.Load(t.Context(), "origin/app:v1", &mirror.LoadOptions{Progress: func(p mirror.Progress) { last = p }}); err != nil {
			t.Fatal(err)
		}
		if last.Blobs != 4 || last.Total != 4 || last.Bytes != last.TotalBytes || last.Bytes < 2*sizeTiny {
			t.Errorf("progress in the end: %+v", last)
		}
	}
	load()
	b.o.on(failAll(500))
	load() // nothing is missing
	for _, d := range append(images, index) {
		b.wantManifest("origin/app", string(d.Digest), d.Digest)
	}
	b.wantBlob("origin/app", random(1, sizeTiny))
	if err := b.Load(t.Context(), "origin/app:v2", nil); err == nil {
		t.Error("an absent image was loaded")
	}
	if err := b.Load(t.Context(), "ours:v2", nil); err == nil {
		t.Error("an image of no upstream was loaded")
	}
}

// TestLoadOfPlatforms checks that a load of an index succeeds only if it brings an image; an
// attestation of a build does not count as one.
func TestLoadOfPlatforms(t *testing.T) {
	b := newBed(t, settings{})
	amd64, s390x := oci.Platform{OS: "linux", Architecture: "amd64"}, oci.Platform{OS: "linux", Architecture: "s390x"}
	for name, c := range map[string]struct {
		there, wanted []string
		platforms     []oci.Platform
	}{
		"all":                        {there: []string{"linux/amd64", "unknown/unknown"}, wanted: []string{"linux/amd64", "unknown/unknown"}},
		"one":                        {there: []string{"linux/amd64", "linux/arm64"}, platforms: []oci.Platform{amd64}, wanted: []string{"linux/amd64"}},
		"one-of-two":                 {there: []string{"linux/amd64"}, platforms: []oci.Platform{amd64, s390x}, wanted: []string{"linux/amd64"}},
		"none":                       {there: []string{"linux/amd64"}, platforms: []oci.Platform{s390x}},
		"none-beside-an-attestation": {there: []string{"linux/amd64", "unknown/unknown"}, platforms: []oci.Platform{s390x}},
		"attestations-alone":         {there: []string{"unknown/unknown"}, wanted: []string{"unknown/unknown"}},
	} {
		_, images := b.multi(name, "v1", c.there...)
		err := b.Load(t.Context(), "origin/"+name+":v1", &mirror.LoadOptions{Platforms: c.platforms})
		if (err == nil) != (len(c.wanted) > 0) {
			t.Errorf("%s: got error %v", name, err)
		}
		for i, d := range images {
			_, err := b.store.ResolveManifest(t.Context(), "origin/"+name, string(d.Digest))
			if want := slices.Contains(c.wanted, c.there[i]); want && err != nil {
				t.Errorf("%s: the manifest for %s: %v", name, c.there[i], err)
			}
		}
	}
	b.o.image("lost", "v1", `{}`)
	b.o.on(func(r *http.Request) *fault {
		return &fault{status: 200, header: map[string]string{"Content-Type": oci.MediaTypeDockerManifestV1S}, body: `{"schemaVersion":1}`}
	})
	if err := b.Load(t.Context(), "origin/lost:v1", nil); err == nil {
		t.Error("a manifest was loaded that is not kept")
	}
}

// TestForget checks that forgotten content is gone at once and returns when it is asked for. Shared
// content stays, and running reads continue.
func TestForget(t *testing.T) {
	b := newBed(t, settings{})
	shared, own := random(1, sizeLarge), random(2, sizeLarge)
	d, _ := b.o.image("app", "v1", `{"n":1}`, shared, own)
	b.o.image("other", "v1", `{"n":2}`, shared)
	for _, ref := range []string{"origin/app:v1", "origin/other:v1"} {
		if err := b.Load(t.Context(), ref, nil); err != nil {
			t.Fatal(err)
		}
	}
	c, err := b.GetBlob(t.Context(), "origin/app", oci.SHA256(own))
	if err != nil {
		t.Fatal(err)
	}
	if err := b.DeleteManifest(t.Context(), "origin/app", d.Digest); err != nil {
		t.Fatal(err)
	}
	if got, err := read(c, nil); err != nil || !bytes.Equal(got, own) {
		t.Errorf("a reader of a forgotten blob got %d bytes, %v", len(got), err)
	}
	for data, want := range map[*[]byte]bool{&shared: true, &own: false} {
		if _, ok, err := b.store.Stored(t.Context(), oci.SHA256(*data)); err != nil || ok != want {
			t.Errorf("stored: %v, %v, want %v", ok, err, want)
		}
	}
	err = b.DeleteManifest(t.Context(), "origin/app", d.Digest)
	wantCode(t, "forget it twice", err, oci.CodeManifestUnknown)
	b.wantManifest("origin/app", "v1", d.Digest)
	b.wantBlob("origin/app", own)
	b.settled()
	if got, err := b.Forget(t.Context(), "origin/app"); err != nil || got.Manifests != 1 {
		t.Errorf("forget a repository: %+v, %v", got, err)
	}
	b.wantManifest("origin/other", "v1", mustResolve(t, b, "other", "v1"))
}

func mustResolve(t *testing.T, b *bed, repo, tag string) oci.Digest {
	t.Helper()
	d, err := b.o.ResolveManifest(t.Context(), repo, tag)
	if err != nil {
		t.Fatal(err)
	}
	return d.Digest
}

// TestForgetWhilePulling checks that a client gets right bytes even while the image it pulls is
// forgotten again and again.
func TestForgetWhilePulling(t *testing.T) {
	b := newBed(t, settings{})
	layers := [][]byte{random(1, sizeTiny), random(2, sizeSmall), random(3, 2<<20)}
	d, _ := b.o.image("app", "v1", `{}`, layers...)
	stop := make(chan struct{})
	var pruner, pullers sync.WaitGroup
	pruner.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if err := b.DeleteManifest(t.Context(), "origin/app", d.Digest); err != nil && !oci.HasCode(err, oci.CodeManifestUnknown) {
				t.Errorf("forget: %v", err)
				return
			}
		}
	})
	for range 4 {
		pullers.Go(func() {
			for range 10 {
				b.wantManifest("origin/app", "v1", d.Digest)
				for _, l := range layers {
					b.wantBlob("origin/app", l)
				}
			}
		})
	}
	pullers.Wait()
	close(stop)
	pruner.Wait()
	b.settled()
}

// TestPrune prunes by age, by use, by name and by size.
func TestPrune(t *testing.T) {
	b := newBed(t, settings{})
	load := func(repo string, seed uint64) {
		t.Helper()
		b.o.image(repo, "v1", fmt.Sprintf(`{"n":%d}`, seed), random(seed, sizeLarge))
		if err := b.Load(t.Context(), "origin/"+repo+":v1", nil); err != nil {
			t.Fatal(err)
		}
	}
	load("a", 1)
	b.clock.Add(10 * 24 * time.Hour)
	load("b", 2)
	load("team/c", 3)
	b.clock.Add(24 * time.Hour)
	has := func() (names string) { // by their tags, because asking for a manifest counts as a pull
		t.Helper()
		for _, repo := range []string{"a", "b", "team/c"} {
			if tags, _, err := b.store.Tags(t.Context(), "origin/"+repo, "", 1); err == nil && len(tags) == 1 {
				names += repo + " "
			}
		}
		return names
	}
	prune := func(o mirror.PruneOptions, images int, left string) {
		t.Helper()
		got, err := b.Prune(t.Context(), o)
		if err != nil || got.Images != images || (images > 0 && got.Bytes < sizeLarge) {
			t.Errorf("prune %+v: %+v, %v, want %d images", o, got, err, images)
		}
		if now := has(); now != left {
			t.Errorf("prune %+v leaves %q, want %q", o, now, left)
		}
	}
	const all = "a b team/c "
	prune(mirror.PruneOptions{}, 0, all)
	prune(mirror.PruneOptions{NotPulledSince: 5 * 24 * time.Hour, DryRun: true}, 1, all)
	prune(mirror.PruneOptions{Pattern: "other/**"}, 0, all)
	b.wantManifest("origin/a", "v1", mustResolve(t, b, "a", "v1")) // is used again
	prune(mirror.PruneOptions{NotPulledSince: 5 * 24 * time.Hour}, 0, all)
	prune(mirror.PruneOptions{OlderThan: 20 * 24 * time.Hour}, 0, all)
	prune(mirror.PruneOptions{MaxBytes: 10 * sizeLarge}, 0, all)
	b.clock.Add(24 * time.Hour)
	b.wantManifest("origin/b", "v1", mustResolve(t, b, "b", "v1"))
	prune(mirror.PruneOptions{MaxBytes: 2*sizeLarge + sizeLarge/2}, 1, "a b ")
	prune(mirror.PruneOptions{OlderThan: 10 * 24 * time.Hour, Pattern: "origin/*"}, 1, "b ")
	prune(mirror.PruneOptions{Pattern: "origin/**"}, 1, "")
}

// TestMaxBytes checks that the least recently used images are removed to free space.
func TestMaxBytes(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	b := newBed(t, settings{options: func(o *mirror.Options) { o.MaxBytes = 2 * sizeLarge }})
	for i := range 4 {
		b.o.image("app", fmt.Sprint("v", i), fmt.Sprintf(`{"n":%d}`, i), random(uint64(i), sizeLarge))
		if err := b.Load(t.Context(), fmt.Sprint("origin/app:v", i), nil); err != nil {
			t.Fatal(err)
		}
		b.clock.Add(24 * time.Hour)
	}
	b.shut(b.Registry)
	b.open(settings{}) // it checks at once
	until(t, "there is room", func() bool {
		u, err := b.store.MirrorUsage(t.Context(), "origin/")
		return err == nil && u.OnlyBytes <= 2*sizeLarge
	})
	if _, err := b.store.ResolveManifest(t.Context(), "origin/app", "v3"); err != nil {
		t.Errorf("the newest image: %v", err)
	}
}
