package integration

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"

	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/slipway"
)

// filesLayer is a layer of the files numbered from first to last, of some kilobytes each, and of
// one file that is stored in chunks.
func filesLayer(first, last int) imagetest.Layer {
	a := base()
	for i := first; i < last; i++ {
		a.File(fmt.Sprintf("d%d/f%d", i%50, i), noise(i, 500+i%5000))
	}
	a.File("large", noise(-1, 6<<20))
	return a.Layer()
}

// noise returns content that does not compress; number selects which.
func noise(number, size int) string {
	b := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{byte(number), byte(number >> 8), 9}).Read(b) // never fails
	return string(b)
}

// atOnce calls a function for each number, all at the same time.
func atOnce(t *testing.T, n int, do func(i int) error) {
	t.Helper()
	var wg sync.WaitGroup
	begin := make(chan struct{})
	errs := make([]error, n)
	for i := range n {
		wg.Go(func() {
			<-begin
			errs[i] = do(i)
		})
	}
	close(begin)
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// TestGearSameLayerAtOnce pushes one layer to several repositories at the same time. The server
// must store it once, as if it had been pushed once.
func TestGearSameLayerAtOnce(t *testing.T) {
	const pushes = 4
	layer := filesLayer(0, 800)
	im := imagetest.Compose(runtime.GOARCH, nil, []imagetest.Layer{layer})
	alone := slipway.Start(t, t.TempDir(), &slipway.Options{Config: restingConfig})
	pushed(t, alone.Client, "alone", "v1", im)
	want := alone.Converted()

	s := slipway.Start(t, t.TempDir(), &slipway.Options{Config: restingConfig})
	atOnce(t, pushes, func(i int) error {
		return im.Push(t.Context(), s.Client, fmt.Sprintf("at-once/r%d", i), "v1")
	})
	got := s.Converted()
	// The conversions may share the work, each with its own pack, but no content may be in two
	// packs. A pack takes 60 bytes beside its contents and their table.
	once := want.PackBytes + 60*(got.Packs-want.Packs)
	if got.Layers != 1 || got.Files != want.Files || got.StoredBytes != want.StoredBytes || got.PackBytes != once || got.Packs > pushes {
		t.Errorf("pushed %d times at once it takes %+v, pushed once %+v", pushes, got, want)
	}
	if objects := len(s.PackObjects()); int64(objects) != got.Packs {
		t.Errorf("there are %d packs, and %d in the catalogue", objects, got.Packs)
	}
	tree := alone.Export("alone:v1")
	for i := range pushes {
		equalTrees(t, fmt.Sprintf("the export from repository %d", i), tree, s.Export(fmt.Sprintf("at-once/r%d:v1", i)))
	}
	for _, x := range []*slipway.Server{alone, s} {
		x.Stop()
		x.Run("fsck")
	}
}

// TestGearConversionsRace converts different layers that share most of their files at the same
// time, with one worker for each. At the same time it makes Gear images of one image several times.
func TestGearConversionsRace(t *testing.T) {
	const layers, files, own = 4, 600, 60
	images := map[string]*imagetest.Bundle{}
	for i := range layers {
		images[fmt.Sprintf("race/r%d", i)] = imagetest.Compose(runtime.GOARCH, nil, []imagetest.Layer{filesLayer(i*own, files+i*own)})
	}
	names := slices.Sorted(maps.Keys(images))
	config := restingConfig + "  workers: 4\n"
	inTurn := slipway.Start(t, t.TempDir(), &slipway.Options{Config: config})
	for _, repo := range names {
		pushed(t, inTurn.Client, repo, "v1", images[repo])
		inTurn.Converted()
	}
	s := slipway.Start(t, t.TempDir(), &slipway.Options{Config: config})
	atOnce(t, layers, func(i int) error { return images[names[i]].Push(t.Context(), s.Client, names[i], "v1") })
	want, got := inTurn.Converted(), s.Converted()
	if got.Files != want.Files || got.StoredBytes != want.StoredBytes {
		t.Errorf("converted at once there are %d contents in %d bytes, in turn %d in %d", got.Files, got.StoredBytes, want.Files, want.StoredBytes)
	}
	// Each content is stored once; packs hold their tables beside it.
	if got.PackBytes > got.StoredBytes*101/100+49*got.Files {
		t.Errorf("packs take %d bytes for contents of %d", got.PackBytes, got.StoredBytes)
	}
	if objects := len(s.PackObjects()); int64(objects) != got.Packs {
		t.Errorf("there are %d packs, and %d in the catalogue", objects, got.Packs)
	}
	for _, repo := range names {
		equalTrees(t, "the export from "+repo, inTurn.Export(repo+":v1"), s.Export(repo+":v1"))
	}
	atOnce(t, 4, func(i int) error {
		_, err := slipway.Program(t.Context(), t, "convert", s.Addr+"/race/r0:v1", fmt.Sprintf("--tag=gear%d", i))
		return err
	})
	var digests []string
	for i := range 4 {
		m, err := s.Client.GetManifest(t.Context(), "race/r0", fmt.Sprintf("gear%d", i))
		if err != nil {
			t.Fatal(err)
		}
		digests = append(digests, m.Digest)
	}
	if len(slices.Compact(digests)) != 1 {
		t.Errorf("made at the same time, one image's Gear images are %v", digests)
	}
	for _, x := range []*slipway.Server{inTurn, s} {
		x.Stop()
		x.Run("fsck")
	}
}
