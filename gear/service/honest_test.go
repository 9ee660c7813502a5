package service_test

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"testing"

	"example.org/slipway/gear"
	"example.org/slipway/gear/rootfs"
	"example.org/slipway/oci"
)

// fileOf returns what an honest index says about a content.
func fileOf(b []byte) gear.File {
	f := gear.File{Name: name(b), Size: int64(len(b))}
	for at := 0; len(b) >= gear.LargeFile && at < len(b); at += gear.ChunkSize {
		f.Chunks = append(f.Chunks, sha256.Sum256(b[at:min(at+gear.ChunkSize, len(b))]))
	}
	return f
}

// imageOf returns the layer of a Gear image whose index has these files.
func imageOf(t testing.TB, files ...gear.File) []byte {
	t.Helper()
	build := gear.NewBuilder(nil)
	for i, f := range files {
		e := rootfs.Entry{Path: fmt.Sprintf("f%03d", i), Type: rootfs.File, Size: f.Size, Mode: 0o644}
		if err := build.Add(e, f); err != nil {
			t.Fatal(err)
		}
	}
	x, err := build.Index()
	if err != nil {
		t.Fatal(err)
	}
	out, err := gear.ImageLayer(x)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestLyingIndex pushes Gear images whose index states something false about a file that
// the repository holds, in every way that an index can. None is accepted, and the error
// says which file is wrong and why. An honest image beside them is accepted.
func TestLyingIndex(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	small, large := content(1, 5000), content(2, 5<<20+17)
	truth := []gear.File{fileOf(small), fileOf(large)}
	resized := func(f gear.File, size int64) gear.File {
		if f.Size = size; size < gear.LargeFile {
			f.Chunks = nil
			return f
		}
		f.Chunks = append(slices.Clone(f.Chunks), make([]gear.Name, gear.ChunkCount(size))...)[:gear.ChunkCount(size)]
		return f
	}
	rechunked := func(f gear.File, change func([]gear.Name)) gear.File {
		f.Chunks = slices.Clone(f.Chunks)
		change(f.Chunks)
		return f
	}
	lies := map[string][]gear.File{
		"shorter":            {resized(truth[0], 4999), truth[1]},
		"longer":             {resized(truth[0], 5001), truth[1]},
		"small made large":   {resized(truth[0], 9<<20), truth[1]},
		"large made small":   {truth[0], resized(truth[1], 1)},
		"a byte less":        {truth[0], resized(truth[1], truth[1].Size-1)},
		"a chunk more":       {truth[0], resized(truth[1], truth[1].Size+gear.ChunkSize)},
		"another chunk":      {truth[0], rechunked(truth[1], func(c []gear.Name) { c[5][31]++ })},
		"chunks in disorder": {truth[0], rechunked(truth[1], func(c []gear.Name) { c[0], c[1] = c[1], c[0] })},
	}
	b := newBed(t, setup{})
	_, l := b.push(ours, zipped(tarOf(file{"a", small}, file{"b", large})))
	b.wait(l)
	for what, files := range lies {
		_, d := b.push(ours, imageOf(t, files...))
		b.eventually(what+" is judged", func() bool { return b.svc.Wait(t.Context(), d) != nil })
		b.quiet()
		b.pending(ours, d, "the index of the Gear image")
	}
	image := imageOf(t, truth...)
	b.push(ours, image)
	b.wait(oci.SHA256(image))
	b.quiet()
	b.readable(ours, oci.SHA256(image))
}
