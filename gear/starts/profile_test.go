package starts_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"example.org/slipway/gear"
	"example.org/slipway/gear/profile"
	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog/gearfacts"
)

// TestProfiles reports the use of files through a repository. Some of the names are not
// visible to it.
func TestProfiles(t *testing.T) {
	b := newBed(t, nil)
	ctx := t.Context()
	secret := []byte("secret")
	b.pushImage(theirs, nil, file{"s", secret})
	var files []file
	for i := range 20 {
		files = append(files, file{fmt.Sprint(i), []byte(fmt.Sprint("content ", i))})
	}
	m := b.pushImage(ours, nil, files...)
	if got, err := b.book.Profile(ctx, ours, m); len(got) != 0 || err != nil {
		t.Errorf("before any report: %v, %v", got, err)
	}
	opened := []gear.Name{name(files[7].data), name(secret), name([]byte("nothing")), name(files[3].data), name(files[5].data)}
	b.must(b.book.ReportProfile(ctx, ours, m, opened))
	want := []gear.Name{opened[0], opened[3], opened[4]}
	if got, err := b.book.Profile(ctx, ours, m); err != nil || !slices.Equal(got, want) {
		t.Errorf("got %x (%v), want %x", got, err, want)
	}
	// A report of foreign names only, or of no names, has no effect.
	b.must(b.book.ReportProfile(ctx, ours, m, opened[1:3]))
	b.must(b.book.ReportProfile(ctx, ours, m, nil))
	// Far too many names, most of them unknown.
	many := slices.Clone(want)
	for range 3 * profile.MaxFiles {
		var n gear.Name
		binary.BigEndian.PutUint64(n[:], rand.Uint64())
		many = append(many, n)
	}
	b.must(b.book.ReportProfile(ctx, ours, m, many))
	if got, err := b.book.Profile(ctx, ours, m); err != nil || !slices.Equal(got, want) {
		t.Errorf("after many: got %x (%v)", got, err)
	}
	// A damaged profile counts as none, and the next report starts a new one.
	b.must(gearfacts.NewLayers(b.cat.DB).ChangeProfile(ctx, m, func([]byte) ([]byte, error) { return []byte("nonsense"), nil }))
	if got, err := b.book.Profile(ctx, ours, m); len(got) != 0 || err != nil {
		t.Errorf("of a damaged one: %v, %v", got, err)
	}
	b.must(b.book.ReportProfile(ctx, ours, m, want[1:]))
	if got, err := b.book.Profile(ctx, ours, m); err != nil || !slices.Equal(got, want[1:]) {
		t.Errorf("anew: got %x (%v)", got, err)
	}
	// The profile is deleted with its image.
	b.must(b.reg.DeleteManifest(ctx, ours, m))
	if err := b.book.ReportProfile(ctx, ours, m, want); !oci.HasCode(err, oci.CodeManifestUnknown) {
		t.Errorf("of a deleted image: %v", err)
	}
	b.collect()
	b.must(gearfacts.NewLayers(b.cat.DB).ChangeProfile(ctx, m, func([]byte) ([]byte, error) { return []byte("late"), nil }))
	if got, err := gearfacts.NewLayers(b.cat.DB).Profile(ctx, m); got != nil || err != nil {
		t.Errorf("a profile of an image that is gone: %q, %v", got, err)
	}
}
