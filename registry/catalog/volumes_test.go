package catalog_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/catalogtest"
	"example.org/slipway/registry/catalog/volumefacts"
)

// putVolumeImage pushes a manifest and asks for its volumes.
func putVolumeImage(ctx context.Context, c *catalog.Catalog, repo, name string) (oci.Digest, error) {
	m := manifestOf(name, 0, 0, name)
	if _, err := c.PutManifest(ctx, repo, m); err != nil {
		return "", err
	}
	return m.Digest, volumefacts.New(c.DB).Queue(ctx, repo, m.Digest, false, "ext4")
}

// volumeBed is a catalogue whose clock the test moves.
type volumeBed struct {
	t   *testing.T
	c   *catalog.Catalog
	now time.Time
}

func (v *volumeBed) must(err error) {
	v.t.Helper()
	if err != nil {
		v.t.Fatal(err)
	}
}

func (v *volumeBed) image(repo, name string) volumefacts.Image {
	v.t.Helper()
	d, err := putVolumeImage(v.t.Context(), v.c, repo, name)
	v.must(err)
	list, err := volumefacts.New(v.c.DB).ImagesOf(v.t.Context(), repo, d)
	v.must(err)
	if len(list) != 1 {
		v.t.Fatalf("got %+v, want one image", list)
	}
	return list[0]
}

// removing checks which volumes are to be removed now.
func (v *volumeBed) removing(now bool, want ...string) {
	v.t.Helper()
	got, err := volumefacts.New(v.c.DB).Removing(v.t.Context(), "p", now, 10)
	v.must(err)
	if !slices.Equal(got, want) {
		v.t.Errorf("volumes to be removed: got %q, want %q", got, want)
	}
}

// TestVolumes follows volumes from a push to the removal of those that nobody needs.
func TestVolumes(t *testing.T) {
	servers.OnBoth(t, func(t *testing.T, base *catalogtest.Bed) {
		ctx := t.Context()
		v := &volumeBed{t: t, now: time.UnixMilli(1_700_000_000_000)}
		v.c = open(t, base, &catalog.Options{Clock: func() time.Time { return v.now }, Grace: time.Hour})
		one, two := v.image("r", "one"), v.image("r", "two")
		due, err := volumefacts.New(v.c.DB).Due(ctx, 10)
		v.must(err)
		if len(due) != 2 || due[0].ID != one.ID || due[0].Attempts != 0 {
			t.Fatalf("due: got %+v", due)
		}
		chain := []volumefacts.Volume{{Name: "a"}, {Name: "b", Parent: "a"}, {Name: "c", Parent: "b"}}
		v.must(volumefacts.New(v.c.DB).Intend(ctx, one.ID, "p", chain[:2]))
		v.must(volumefacts.New(v.c.DB).Record(ctx, one.ID, volumefacts.Record{Place: "p", Record: []byte("one"), Referrer: "x", Volumes: chain[:2]}))
		v.must(volumefacts.New(v.c.DB).Record(ctx, two.ID, volumefacts.Record{Place: "p", Record: []byte("two"), Referrer: "y", Volumes: chain}))
		v.must(volumefacts.New(v.c.DB).Queue(ctx, "r", one.Manifest, false, "ext4"))
		if due, err = volumefacts.New(v.c.DB).Due(ctx, 10); err != nil || len(due) != 0 {
			t.Errorf("what is built is asked for again by a push: %+v, %v", due, err)
		}
		v.must(volumefacts.New(v.c.DB).Queue(ctx, "r", one.Manifest, true, "ext4"))
		if due, err = volumefacts.New(v.c.DB).Due(ctx, 10); err != nil || len(due) != 1 || !due[0].Asked || string(due[0].Record) != "one" {
			t.Errorf("what a client asks for: %+v, %v", due, err)
		}
		v.must(volumefacts.New(v.c.DB).Defer(ctx, one.ID, "no luck", v.now.Add(time.Minute)))
		if failed, err := volumefacts.New(v.c.DB).Failed(ctx, 10); err != nil || len(failed) != 1 || failed[0].Failure != "no luck" || failed[0].Attempts != 1 {
			t.Errorf("failed: %+v, %v", failed, err)
		}
		if n, err := volumefacts.New(v.c.DB).Counts(ctx, "p"); err != nil || n != (volumefacts.Counts{Built: 2, Failed: 1, Volumes: 3}) {
			t.Errorf("counts: %+v, %v", n, err)
		}
		v.removing(true)

		// The second image is deleted. Only what it alone needs is removed, after its time.
		_, err = v.c.DeleteManifest(ctx, "r", two.Manifest, nil)
		v.must(err)
		lost, err := volumefacts.New(v.c.DB).LostImages(ctx, 0, 10)
		v.must(err)
		if len(lost) != 1 || lost[0].ID != two.ID {
			t.Fatalf("lost: got %+v", lost)
		}
		if err := volumefacts.New(v.c.DB).Intend(ctx, two.ID, "p", chain); !errors.Is(err, catalog.ErrNotFound) {
			t.Errorf("a build of what is deleted: %v", err)
		}
		if gone, err := volumefacts.New(v.c.DB).ForgetImage(ctx, two.ID); err != nil || !gone {
			t.Errorf("forget: %v, %v", gone, err)
		}
		v.removing(false)
		v.now = v.now.Add(2 * time.Hour)
		v.removing(false, "c")
		if err := volumefacts.New(v.c.DB).Intend(ctx, one.ID, "p", chain); !errors.Is(err, volumefacts.ErrRemoving) {
			t.Errorf("a build while its volume is removed: %v", err)
		}
		v.must(volumefacts.New(v.c.DB).Keep(ctx, "p", "c", v.now.Add(time.Minute)))
		v.removing(false)
		v.removing(true, "c")
		v.must(volumefacts.New(v.c.DB).Forget(ctx, "p", "c"))

		// The first image is dropped, and all volumes are removed, children first.
		if n, err := volumefacts.New(v.c.DB).Drop(ctx, "r", one.Manifest, ""); err != nil || n != 1 {
			t.Errorf("drop: %d, %v", n, err)
		}
		if used, err := volumefacts.New(v.c.DB).ReferrerUsed(ctx, "r", "x", 0); err != nil || !used {
			t.Errorf("the referrer is used: %v, %v", used, err)
		}
		if gone, err := volumefacts.New(v.c.DB).ForgetImage(ctx, one.ID); err != nil || !gone {
			t.Errorf("forget: %v, %v", gone, err)
		}
		v.removing(true, "b")
		v.must(volumefacts.New(v.c.DB).Forget(ctx, "p", "b"))
		v.removing(true, "a")
	})
}

// TestVolumesWantedAgain checks that a volume that was dropped and requested again stays and is
// built again.
func TestVolumesWantedAgain(t *testing.T) {
	v := &volumeBed{t: t, now: time.UnixMilli(1_700_000_000_000)}
	v.c = openTest(t, &catalog.Options{Clock: func() time.Time { return v.now }})
	ctx := t.Context()
	one := v.image("r", "one")
	v.must(volumefacts.New(v.c.DB).Record(ctx, one.ID, volumefacts.Record{Place: "p", Volumes: []volumefacts.Volume{{Name: "a"}}}))
	_, err := volumefacts.New(v.c.DB).Drop(ctx, "r", one.Manifest, "")
	v.must(err)
	v.must(volumefacts.New(v.c.DB).Queue(ctx, "r", one.Manifest, false, "ext4"))
	if gone, err := volumefacts.New(v.c.DB).ForgetImage(ctx, one.ID); err != nil || gone {
		t.Errorf("forget: %v, %v", gone, err)
	}
	if due, err := volumefacts.New(v.c.DB).Due(ctx, 10); err != nil || len(due) != 1 {
		t.Errorf("due: %+v, %v", due, err)
	}
	v.removing(true)
}
