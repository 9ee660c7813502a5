package catalog

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/oci"
)

func gearDigest(c string) oci.Digest { return oci.Digest("sha256:" + strings.Repeat(c, 64)) }

// gearPack is a pack of contents of 10 bytes each.
func gearPack(id byte, names ...byte) NewGearPack {
	p := NewGearPack{Digest: GearName{id}, Size: 1000}
	for i, n := range names {
		p.Files = append(p.Files, GearFile{Name: GearName{n}, Size: 20, Off: int64(12 + 10*i), Stored: 10, Encoding: 1})
		p.Bytes += 10
	}
	return p
}

func gearLayer(d oci.Digest, names ...byte) *NewGearLayer {
	l := &NewGearLayer{GearLayer: GearLayer{Digest: d, Index: GearName{names[0]}, Files: int64(len(names)), Bytes: 99}}
	for _, n := range names {
		l.Names = append(l.Names, GearName{n})
	}
	return l
}

func gearStep(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestGearLayerLife checks that a layer's contents are visible where the layer is, and are removed
// with it.
func TestGearLayerLife(t *testing.T) { onBoth(t, testGearLayerLife) }

func testGearLayerLife(t *testing.T, base *bed) {
	now := time.UnixMilli(1e12)
	c := base.open(t, &Options{Clock: func() time.Time { return now }, Grace: time.Second})
	ctx := t.Context()
	a, b := gearDigest("a"), gearDigest("b")
	gearStep(t, c.putBlob(ctx, "x", Blob{Digest: a, Size: 1, Content: []byte("1")}, ""))
	gearStep(t, c.putBlob(ctx, "y", Blob{Digest: b, Size: 1, Content: []byte("1")}, ""))
	gearStep(t, c.RecordGear(ctx, GearRecord{Packs: []NewGearPack{gearPack(1, 1, 2, 3)}, Layer: gearLayer(a, 1, 2, 3)}))
	gearStep(t, c.RecordGear(ctx, GearRecord{Packs: []NewGearPack{gearPack(2, 3, 4)}, Layer: gearLayer(b, 3, 4)}))
	got, err := c.GearLayer(ctx, a)
	if diff := cmp.Diff(gearLayer(a, 1, 2, 3).GearLayer, got); diff != "" || err != nil {
		t.Errorf("layer, %v (-want +got):\n%s", err, diff)
	}
	ask := []GearName{{4}, {3}, {1}, {9}, {3}}
	for repo, want := range map[string][]bool{"x": {false, true, true, false, true}, "y": {true, true, false, false, true}, "z": {false, false, false, false, false}} {
		if got, err := c.GearVisible(ctx, repo, ask); err != nil || !slices.Equal(got, want) {
			t.Errorf("visible in %s: %v, %v, want %v", repo, got, err, want)
		}
	}
	// Content 3 is in the first pack. Its copy in the second is dead.
	packs, err := c.GearPacks(ctx, 0, 10)
	gearStep(t, err)
	if len(packs) != 2 || packs[0].LiveFiles != 3 || packs[1].LiveFiles != 1 || packs[1].LiveBytes != 10 || packs[1].Bytes != 20 {
		t.Errorf("packs %+v", packs)
	}
	if err := c.RecordGear(ctx, GearRecord{Layer: gearLayer(b, 3, 9)}); err != nil {
		t.Errorf("a layer that is known: %v", err)
	}
	gearStep(t, c.DeleteBlob(ctx, "x", a))
	now = now.Add(time.Minute)
	_, _, err = c.Collect(ctx, CollectOptions{Before: now, Keep: func(repo string, _ oci.Digest) (time.Time, bool) { return now, repo == "y" }})
	gearStep(t, err)
	if _, err := c.GearLayer(ctx, a); !errors.Is(err, ErrNotFound) {
		t.Errorf("the layer of a blob that is gone: %v", err)
	}
	for {
		n, err := c.CollectGear(ctx, 2)
		gearStep(t, err)
		if n == 0 {
			break
		}
	}
	packs, err = c.GearPacks(ctx, 0, 10)
	if err != nil || packs[0].LiveFiles != 1 || packs[0].LiveBytes != 10 {
		t.Errorf("packs %+v, %v, want only 3 alive in the first", packs, err)
	}
	if err := c.MoveGear(ctx, "", nil, []int64{packs[0].ID}, now); !errors.Is(err, ErrGearStale) {
		t.Errorf("emptying a pack with something alive: %v", err)
	}
	gearStep(t, c.MoveGear(ctx, "", []NewGearPack{gearPack(7, 3)}, []int64{packs[0].ID}, now.Add(time.Minute)))
	if f, err := c.GearFile(ctx, GearName{3}); err != nil || f.Pack != (GearName{7}) {
		t.Errorf("after the move: %+v, %v", f, err)
	}
	if gone, err := c.DeletingGear(ctx, 9); err != nil || len(gone) != 0 {
		t.Errorf("deleted before it is due: %x, %v", gone, err)
	}
	now = now.Add(time.Hour)
	gone, err := c.DeletingGear(ctx, 9)
	if err != nil || !slices.Equal(gone, []GearName{{1}}) {
		t.Errorf("due: %x, %v", gone, err)
	}
	if err := c.IntendGear(ctx, "w", GearName{1}); !errors.Is(err, ErrGearDeleting) {
		t.Errorf("intent for a pack that is being deleted: %v", err)
	}
	gearStep(t, c.ForgetGear(ctx, gone...))
	gearStep(t, c.IntendGear(ctx, "w", GearName{1}))
}

// TestGearLayerPacks checks that a layer's contents are found when its packs are recorded with it,
// wherever they are: in these packs, in others, or lost.
func TestGearLayerPacks(t *testing.T) { onBoth(t, testGearLayerPacks) }

func testGearLayerPacks(t *testing.T, base *bed) {
	c := base.open(t, nil)
	ctx := t.Context()
	a, b := gearDigest("a"), gearDigest("b")
	for _, d := range []oci.Digest{a, b} {
		gearStep(t, c.putBlob(ctx, "x", Blob{Digest: d, Size: 1, Content: []byte("1")}, ""))
	}
	gearStep(t, c.RecordGear(ctx, GearRecord{Packs: []NewGearPack{gearPack(1, 1, 2, 3, 4), gearPack(2, 11, 12)}, Layer: gearLayer(a, 1, 2)}))
	gearStep(t, c.LoseGear(ctx, GearName{1}, GearName{1}))
	gearStep(t, c.RecordGear(ctx, GearRecord{
		// In order: only new contents; two that are elsewhere and one that the layer does not hold;
		// a known pack; one that brings back lost contents.
		Packs: []NewGearPack{gearPack(3, 5, 6), gearPack(4, 3, 2, 7, 8), gearPack(2, 11, 12), gearPack(5, 1, 9)},
		Layer: gearLayer(b, 5, 6, 3, 2, 7, 11, 1, 9),
	}))
	type place struct {
		Pack byte
		Live bool
	}
	want := map[byte]place{1: {5, true}, 2: {1, true}, 3: {1, true}, 4: {1, false}, 5: {3, true}, 6: {3, true},
		7: {4, true}, 8: {4, false}, 9: {5, true}, 11: {2, true}, 12: {2, false}}
	got := map[byte]place{}
	for n := range want {
		f, err := c.GearFile(ctx, GearName{n})
		gearStep(t, err)
		got[n] = place{f.Pack[0], f.Live}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("contents (-want +got):\n%s", diff)
	}
	packs, err := c.GearPacks(ctx, 0, 10)
	gearStep(t, err)
	live := map[byte]int64{}
	for _, p := range packs {
		live[p.Digest[0]] = p.LiveFiles
		if p.LiveBytes != 10*p.LiveFiles {
			t.Errorf("pack %d: %d live contents of %d bytes", p.Digest[0], p.LiveFiles, p.LiveBytes)
		}
	}
	if diff := cmp.Diff(map[byte]int64{1: 2, 2: 1, 3: 2, 4: 1, 5: 2}, live); diff != "" {
		t.Errorf("live contents of packs (-want +got):\n%s", diff)
	}
	// The contents that only the first layer held go with it. None of the second layer's do.
	gearStep(t, c.db.write(ctx, func(t *tx) error { return t.dropGearLayer(a) }))
	for n := 1; n > 0; {
		n, err = c.CollectGear(ctx, 100)
		gearStep(t, err)
	}
	held := []byte{1, 2, 3, 5, 6, 7, 9, 11}
	for _, n := range held {
		if f, err := c.GearFile(ctx, GearName{n}); err != nil || !f.Live {
			t.Errorf("content %d of the second layer: %+v, %v", n, f, err)
		}
	}
}

func TestGearIntents(t *testing.T) { onBoth(t, testGearIntents) }

func testGearIntents(t *testing.T, base *bed) {
	c := base.open(t, nil)
	ctx := t.Context()
	gearStep(t, c.RecordGear(ctx, GearRecord{Packs: []NewGearPack{gearPack(1, 1)}}))
	for _, p := range []byte{1, 2, 3} {
		gearStep(t, c.IntendGear(ctx, "w", GearName{p}))
	}
	gearStep(t, c.IntendGear(ctx, "v", GearName{3}))
	gearStep(t, c.EndGearIntents(ctx, "w"))
	// 1 is recorded, and v still wants 3.
	if gone, err := c.DeletingGear(ctx, 9); err != nil || !slices.Equal(gone, []GearName{{2}}) {
		t.Errorf("left over: %x, %v", gone, err)
	}
	if w, err := c.GearWriters(ctx); err != nil || !slices.Equal(w, []string{"v"}) {
		t.Errorf("writers %v, %v", w, err)
	}
}

func TestGearLost(t *testing.T) { onBoth(t, testGearLost) }

func testGearLost(t *testing.T, base *bed) {
	c := base.open(t, nil)
	ctx := t.Context()
	a := gearDigest("a")
	gearStep(t, c.putBlob(ctx, "x", Blob{Digest: a, Size: 1, Content: []byte("1")}, ""))
	gearStep(t, c.RecordGear(ctx, GearRecord{Packs: []NewGearPack{gearPack(1, 1, 2)}, Layer: gearLayer(a, 1, 2)}))
	gearStep(t, c.LoseGear(ctx, GearName{1}, GearName{9})) // it is not there
	gearStep(t, c.LoseGear(ctx, GearName{2}, GearName{1}))
	if f, err := c.GearFile(ctx, GearName{2}); err != nil || f.Pack != (GearName{}) || !f.Live {
		t.Errorf("lost: %+v, %v", f, err)
	}
	if got, err := c.GearLayersOf(ctx, GearName{2}, 5); err != nil || !slices.Equal(got, []oci.Digest{a}) {
		t.Errorf("layers: %v, %v", got, err)
	}
	gearStep(t, c.RecordGear(ctx, GearRecord{Packs: []NewGearPack{gearPack(3, 1, 2)}}))
	if f, err := c.GearFile(ctx, GearName{2}); err != nil || f.Pack != (GearName{3}) || !f.Live {
		t.Errorf("made again: %+v, %v", f, err)
	}
	n, err := c.GearCounts(ctx)
	if diff := cmp.Diff(GearCounts{Packs: 2, PackBytes: 2000, LiveFiles: 2, LiveBytes: 20, Layers: 1}, n); diff != "" || err != nil {
		t.Errorf("counts, %v (-want +got):\n%s", err, diff)
	}
}

func TestGearJobs(t *testing.T) { onBoth(t, testGearJobs) }

func testGearJobs(t *testing.T, base *bed) {
	now := time.UnixMilli(1e12)
	due := now
	c := base.open(t, &Options{Clock: func() time.Time { return now }})
	ctx := t.Context()
	a, b := gearDigest("a"), gearDigest("b")
	for _, d := range []oci.Digest{a, b} {
		gearStep(t, c.putBlob(ctx, "x", Blob{Digest: d, Size: 1, Content: []byte("1")}, ""))
	}
	gearStep(t, c.QueueGear(ctx, b, gearDigest("c"), a, b)) // c does not exist
	gearStep(t, c.DeferGearJob(ctx, b, "bad luck", now.Add(time.Minute)))
	check := func(want ...GearJob) {
		t.Helper()
		got, err := c.GearJobs(ctx, 9)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("jobs, %v (-want +got):\n%s", err, diff)
		}
	}
	check(GearJob{Digest: a, Due: due, Size: 1, Repo: 1})
	now = now.Add(time.Hour)
	check(GearJob{Digest: a, Due: due, Size: 1, Repo: 1}, GearJob{Digest: b, Attempts: 1, Failure: "bad luck", Due: due.Add(time.Minute), Size: 1, Repo: 1})
	gearStep(t, c.EndGearJob(ctx, a))
	gearStep(t, c.RecordGear(ctx, GearRecord{Packs: []NewGearPack{gearPack(1, 1)}, Layer: gearLayer(a, 1)}))
	gearStep(t, c.QueueGear(ctx, a))
	check(GearJob{Digest: b, Attempts: 1, Failure: "bad luck", Due: due.Add(time.Minute), Size: 1, Repo: 1})
}

// TestGearJobsTakeTurns checks that each repository with jobs is among the next jobs as often as
// any other, with its oldest job, whatever the repositories have queued.
func TestGearJobsTakeTurns(t *testing.T) { onBoth(t, testGearJobsTakeTurns) }

func testGearJobsTakeTurns(t *testing.T, base *bed) {
	now := time.UnixMilli(1e12)
	c := base.open(t, &Options{Clock: func() time.Time { return now }})
	ctx := t.Context()
	counts := []int{40, 1, 7, 0, 12}
	for r, n := range counts {
		for i := range n {
			d := gearDigest(fmt.Sprintf("%d/%d", r, i))
			gearStep(t, c.putBlob(ctx, fmt.Sprint("repo", r), Blob{Digest: d, Size: 1, Content: []byte("1")}, ""))
			gearStep(t, c.QueueGear(ctx, d))
		}
	}
	for _, n := range []int{1, 3, 4, 8, 20, 60, 100} {
		jobs, err := c.GearJobs(ctx, n)
		gearStep(t, err)
		got := map[int64]int{}
		for _, j := range jobs {
			got[j.Repo]++
		}
		if want := min(n, 60); len(jobs) != want {
			t.Errorf("%d of %d jobs", len(jobs), want)
		}
		most := 0
		for _, k := range got {
			most = max(most, k)
		}
		id := int64(0) // of the repositories, in the order of their creation
		for r, of := range counts {
			if of == 0 {
				continue
			}
			id++
			if got[id] < min(of, most-1) {
				t.Errorf("of %d jobs repo%d has %d, another %d", n, r, got[id], most)
			}
		}
		next := map[int64]int{}
		for _, j := range jobs {
			for r := range counts {
				if j.Digest == gearDigest(fmt.Sprintf("%d/%d", r, next[j.Repo])) {
					next[j.Repo]++
					break
				}
			}
		}
		for repo, k := range next {
			if k != got[repo] {
				t.Errorf("the jobs of repository %d are not its oldest", repo)
			}
		}
	}
}

// TestGearGrantsOutliveLoss checks that the grants for files of a lost Gear layer hold again when
// the layer is back, however it comes back. They do not if the repository has dropped it meanwhile.
func TestGearGrantsOutliveLoss(t *testing.T) { onBoth(t, testGearGrantsOutliveLoss) }

func testGearGrantsOutliveLoss(t *testing.T, base *bed) {
	now := time.UnixMilli(1e12)
	c := base.open(t, &Options{Clock: func() time.Time { return now }, Grace: time.Second})
	ctx := t.Context()
	layer := Blob{Digest: gearDigest("a"), Size: 1, Content: []byte("1")}
	config := Blob{Digest: gearDigest("c"), Size: 1, Content: []byte("1")}
	granted := func(when string, want bool) {
		t.Helper()
		if got, err := c.GearGranted(ctx, "x", layer.Digest); err != nil || got != want {
			t.Errorf("%s: granted %v, %v, want %v", when, got, err, want)
		}
	}
	link := func() {
		t.Helper()
		rows, err := c.NamedBy(ctx, layer.Digest)
		gearStep(t, err)
		for _, m := range rows {
			_, err := c.LinkNamed(ctx, m, layer.Digest)
			gearStep(t, err)
		}
	}
	gearStep(t, c.putBlob(ctx, "x", layer, ""))
	gearStep(t, c.putBlob(ctx, "x", config, ""))
	manifest := NewManifest{Manifest: Manifest{Digest: gearDigest("d"), MediaType: oci.MediaTypeOCIManifest, Content: []byte("{}")},
		Blobs: []oci.Digest{layer.Digest, config.Digest}, Tags: []string{"v1"}}
	_, err := c.PutManifest(ctx, "x", manifest)
	gearStep(t, err)
	record := GearRecord{Packs: []NewGearPack{gearPack(1, 1)}, Layer: gearLayer(layer.Digest, 1)}
	record.Layer.Embedded = true
	gearStep(t, c.RecordGear(ctx, record))
	gearStep(t, c.GrantGear(ctx, "x", layer.Digest))
	granted("at first", true)
	for name, back := range map[string]func() error{
		"taken back": func() error { _, err := c.TakeBack(ctx, layer); return err },
		"healed":     func() error { _, err := c.Heal(ctx, layer); return err },
		"pushed":     func() error { return c.putBlob(ctx, "x", layer, "") },
	} {
		_, err := c.MarkAbsent(ctx, layer.Digest, true)
		gearStep(t, err)
		granted(name+", while it is lost", false)
		now = now.Add(time.Minute)
		_, _, err = c.Collect(ctx, CollectOptions{Before: now})
		gearStep(t, err)
		gearStep(t, back())
		link()
		granted(name, true)
	}
	_, err = c.MarkAbsent(ctx, layer.Digest, true)
	gearStep(t, err)
	_, err = c.DeleteManifest(ctx, "x", manifest.Digest, nil)
	gearStep(t, err)
	for range 3 {
		now = now.Add(time.Minute)
		_, _, err = c.Collect(ctx, CollectOptions{Before: now})
		gearStep(t, err)
	}
	gearStep(t, c.putBlob(ctx, "x", layer, ""))
	gearStep(t, c.RecordGear(ctx, record))
	granted("after the repository let go of it", false)
}

// TestGearDonors checks that of each kind the last donors of a repository are kept, without their
// images, and that they end with the repository.
func TestGearDonors(t *testing.T) { onBoth(t, testGearDonors) }

func testGearDonors(t *testing.T, base *bed) {
	now := time.UnixMilli(1e12)
	c := base.open(t, &Options{Clock: func() time.Time { return now }, Grace: time.Second})
	ctx := t.Context()
	blob := gearDigest("a")
	gearStep(t, c.putBlob(ctx, "x", Blob{Digest: blob, Size: 1, Content: []byte("1")}, ""))
	for i, kind := range []string{"a", "a", "b", "a", "a"} {
		now = now.Add(time.Second)
		gearStep(t, c.PutGearDonor(ctx, GearDonor{"x", gearDigest(fmt.Sprint(i)), []byte{byte(i)}}, kind, 2))
	}
	gearStep(t, c.PutGearDonor(ctx, GearDonor{"nowhere", blob, []byte{9}}, "a", 2))
	kept := func() (out []byte) {
		list, err := c.GearDonors(ctx, "x")
		gearStep(t, err)
		for _, d := range list {
			out = append(out, d.Data...)
		}
		return out
	}
	if got := kept(); !slices.Equal(got, []byte{2, 3, 4}) {
		t.Errorf("kept %v, want 2 of kind b and the last two of kind a, 3 and 4", got)
	}
	if last, err := c.LastGearDonors(ctx, 2); err != nil || len(last) != 2 || last[0].Data[0] != 4 || last[1].Data[0] != 3 {
		t.Errorf("the last two: %+v, %v", last, err)
	}
	gearStep(t, c.DeleteBlob(ctx, "x", blob))
	now = now.Add(time.Hour)
	_, _, err := c.Collect(ctx, CollectOptions{Before: now})
	gearStep(t, err)
	gearStep(t, c.putBlob(ctx, "x", Blob{Digest: gearDigest("b"), Size: 1, Content: []byte("1")}, ""))
	if got := kept(); len(got) != 0 {
		t.Errorf("a repository that is made anew has the donors %v of the one that was deleted", got)
	}
}
