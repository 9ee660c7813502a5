package catalog_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/catalogtest"
	"example.org/slipway/registry/catalog/engine"
	"example.org/slipway/registry/catalog/gearfacts"
	"example.org/slipway/registry/catalog/repair"
)

func gearDigest(c string) oci.Digest { return oci.Digest("sha256:" + strings.Repeat(c, 64)) }

// gearPack is a pack of contents of 10 bytes each.
func gearPack(id byte, names ...byte) gearfacts.NewPack {
	p := gearfacts.NewPack{Digest: gearfacts.Name{id}, Size: 1000}
	for i, n := range names {
		p.Files = append(p.Files, gearfacts.File{Name: gearfacts.Name{n}, Size: 20, Off: int64(12 + 10*i), Stored: 10, Encoding: 1})
		p.Bytes += 10
	}
	return p
}

func gearLayer(d oci.Digest, names ...byte) *gearfacts.NewLayer {
	l := &gearfacts.NewLayer{Layer: gearfacts.Layer{Digest: d, Index: gearfacts.Name{names[0]}, Files: int64(len(names)), Bytes: 99}}
	for _, n := range names {
		l.Names = append(l.Names, gearfacts.Name{n})
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
func TestGearLayerLife(t *testing.T) { servers.OnBoth(t, testGearLayerLife) }

func testGearLayerLife(t *testing.T, base *catalogtest.Bed) {
	now := time.UnixMilli(1e12)
	c := open(t, base, &catalog.Options{Clock: func() time.Time { return now }, Grace: time.Second})
	ctx := t.Context()
	a, b := gearDigest("a"), gearDigest("b")
	gearStep(t, putBlob(ctx, c, "x", catalog.Blob{Digest: a, Size: 1, Content: []byte("1")}, ""))
	gearStep(t, putBlob(ctx, c, "y", catalog.Blob{Digest: b, Size: 1, Content: []byte("1")}, ""))
	gearStep(t, gearfacts.NewFiles(c.DB).Record(ctx, gearfacts.Record{Packs: []gearfacts.NewPack{gearPack(1, 1, 2, 3)}, Layer: gearLayer(a, 1, 2, 3)}))
	gearStep(t, gearfacts.NewFiles(c.DB).Record(ctx, gearfacts.Record{Packs: []gearfacts.NewPack{gearPack(2, 3, 4)}, Layer: gearLayer(b, 3, 4)}))
	got, err := gearfacts.NewLayers(c.DB).Layer(ctx, a)
	if diff := cmp.Diff(gearLayer(a, 1, 2, 3).Layer, got); diff != "" || err != nil {
		t.Errorf("layer, %v (-want +got):\n%s", err, diff)
	}
	ask := []gearfacts.Name{{4}, {3}, {1}, {9}, {3}}
	for repo, want := range map[string][]bool{"x": {false, true, true, false, true}, "y": {true, true, false, false, true}, "z": {false, false, false, false, false}} {
		if got, err := gearfacts.NewFiles(c.DB).Visible(ctx, repo, ask); err != nil || !slices.Equal(got, want) {
			t.Errorf("visible in %s: %v, %v, want %v", repo, got, err, want)
		}
	}
	// Content 3 is in the first pack. Its copy in the second is dead.
	packs, err := gearfacts.NewFiles(c.DB).Packs(ctx, 0, 10)
	gearStep(t, err)
	if len(packs) != 2 || packs[0].LiveFiles != 3 || packs[1].LiveFiles != 1 || packs[1].LiveBytes != 10 || packs[1].Bytes != 20 {
		t.Errorf("packs %+v", packs)
	}
	if err := gearfacts.NewFiles(c.DB).Record(ctx, gearfacts.Record{Layer: gearLayer(b, 3, 9)}); err != nil {
		t.Errorf("a layer that is known: %v", err)
	}
	gearStep(t, c.DeleteBlob(ctx, "x", a))
	now = now.Add(time.Minute)
	_, _, err = c.Garbage.Collect(ctx, catalog.CollectOptions{Before: now, Keep: func(repo string, _ oci.Digest) (time.Time, bool) { return now, repo == "y" }})
	gearStep(t, err)
	if _, err := gearfacts.NewLayers(c.DB).Layer(ctx, a); !errors.Is(err, catalog.ErrNotFound) {
		t.Errorf("the layer of a blob that is gone: %v", err)
	}
	for {
		n, err := gearfacts.NewFiles(c.DB).Collect(ctx, 2)
		gearStep(t, err)
		if n == 0 {
			break
		}
	}
	packs, err = gearfacts.NewFiles(c.DB).Packs(ctx, 0, 10)
	if err != nil || packs[0].LiveFiles != 1 || packs[0].LiveBytes != 10 {
		t.Errorf("packs %+v, %v, want only 3 alive in the first", packs, err)
	}
	if err := gearfacts.NewFiles(c.DB).Move(ctx, gearfacts.Replacement{Old: []int64{packs[0].ID}, Due: now}); !errors.Is(err, gearfacts.ErrStale) {
		t.Errorf("emptying a pack with something alive: %v", err)
	}
	gearStep(t, gearfacts.NewFiles(c.DB).Move(ctx, gearfacts.Replacement{Packs: []gearfacts.NewPack{gearPack(7, 3)}, Old: []int64{packs[0].ID}, Due: now.Add(time.Minute)}))
	if f, err := gearfacts.NewFiles(c.DB).File(ctx, gearfacts.Name{3}); err != nil || f.Pack != (gearfacts.Name{7}) {
		t.Errorf("after the move: %+v, %v", f, err)
	}
	if gone, err := gearfacts.NewFiles(c.DB).Deleting(ctx, 9); err != nil || len(gone) != 0 {
		t.Errorf("deleted before it is due: %x, %v", gone, err)
	}
	now = now.Add(time.Hour)
	gone, err := gearfacts.NewFiles(c.DB).Deleting(ctx, 9)
	if err != nil || !slices.Equal(gone, []gearfacts.Name{{1}}) {
		t.Errorf("due: %x, %v", gone, err)
	}
	if err := gearfacts.NewFiles(c.DB).Intend(ctx, "w", gearfacts.Name{1}); !errors.Is(err, gearfacts.ErrDeleting) {
		t.Errorf("intent for a pack that is being deleted: %v", err)
	}
	gearStep(t, gearfacts.NewFiles(c.DB).Forget(ctx, gone...))
	gearStep(t, gearfacts.NewFiles(c.DB).Intend(ctx, "w", gearfacts.Name{1}))
}

// TestGearLayerPacks checks that a layer's contents are found when its packs are recorded with it,
// wherever they are: in these packs, in others, or lost.
func TestGearLayerPacks(t *testing.T) { servers.OnBoth(t, testGearLayerPacks) }

func testGearLayerPacks(t *testing.T, base *catalogtest.Bed) {
	c := open(t, base, nil)
	ctx := t.Context()
	a, b := gearDigest("a"), gearDigest("b")
	for _, d := range []oci.Digest{a, b} {
		gearStep(t, putBlob(ctx, c, "x", catalog.Blob{Digest: d, Size: 1, Content: []byte("1")}, ""))
	}
	gearStep(t, gearfacts.NewFiles(c.DB).Record(ctx, gearfacts.Record{Packs: []gearfacts.NewPack{gearPack(1, 1, 2, 3, 4), gearPack(2, 11, 12)}, Layer: gearLayer(a, 1, 2)}))
	gearStep(t, gearfacts.NewFiles(c.DB).Lose(ctx, gearfacts.Name{1}, gearfacts.Name{1}))
	gearStep(t, gearfacts.NewFiles(c.DB).Record(ctx, gearfacts.Record{
		// The packs are, in order: one with only new contents; one with two contents that
		// are elsewhere and one that the layer does not hold; a known pack; and one that
		// brings back lost contents.
		Packs: []gearfacts.NewPack{gearPack(3, 5, 6), gearPack(4, 3, 2, 7, 8), gearPack(2, 11, 12), gearPack(5, 1, 9)},
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
		f, err := gearfacts.NewFiles(c.DB).File(ctx, gearfacts.Name{n})
		gearStep(t, err)
		got[n] = place{f.Pack[0], f.Live}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("contents (-want +got):\n%s", diff)
	}
	packs, err := gearfacts.NewFiles(c.DB).Packs(ctx, 0, 10)
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
	gearStep(t, c.DB.Write(ctx, func(t *engine.Tx) error {
		_, err := t.Exec(`UPDATE gear_layers SET digest = NULL, blob_id = 0 WHERE digest = ?`, string(a))
		return err
	}))
	for n := 1; n > 0; {
		n, err = gearfacts.NewFiles(c.DB).Collect(ctx, 100)
		gearStep(t, err)
	}
	held := []byte{1, 2, 3, 5, 6, 7, 9, 11}
	for _, n := range held {
		if f, err := gearfacts.NewFiles(c.DB).File(ctx, gearfacts.Name{n}); err != nil || !f.Live {
			t.Errorf("content %d of the second layer: %+v, %v", n, f, err)
		}
	}
}

func TestGearIntents(t *testing.T) { servers.OnBoth(t, testGearIntents) }

func testGearIntents(t *testing.T, base *catalogtest.Bed) {
	c := open(t, base, nil)
	ctx := t.Context()
	gearStep(t, gearfacts.NewFiles(c.DB).Record(ctx, gearfacts.Record{Packs: []gearfacts.NewPack{gearPack(1, 1)}}))
	for _, p := range []byte{1, 2, 3} {
		gearStep(t, gearfacts.NewFiles(c.DB).Intend(ctx, "w", gearfacts.Name{p}))
	}
	gearStep(t, gearfacts.NewFiles(c.DB).Intend(ctx, "v", gearfacts.Name{3}))
	gearStep(t, gearfacts.NewFiles(c.DB).EndIntents(ctx, "w"))
	// 1 is recorded, and v still wants 3.
	if gone, err := gearfacts.NewFiles(c.DB).Deleting(ctx, 9); err != nil || !slices.Equal(gone, []gearfacts.Name{{2}}) {
		t.Errorf("left over: %x, %v", gone, err)
	}
	if w, err := gearfacts.NewFiles(c.DB).Writers(ctx); err != nil || !slices.Equal(w, []string{"v"}) {
		t.Errorf("writers %v, %v", w, err)
	}
}

func TestGearLost(t *testing.T) { servers.OnBoth(t, testGearLost) }

func testGearLost(t *testing.T, base *catalogtest.Bed) {
	c := open(t, base, nil)
	ctx := t.Context()
	a := gearDigest("a")
	gearStep(t, putBlob(ctx, c, "x", catalog.Blob{Digest: a, Size: 1, Content: []byte("1")}, ""))
	gearStep(t, gearfacts.NewFiles(c.DB).Record(ctx, gearfacts.Record{Packs: []gearfacts.NewPack{gearPack(1, 1, 2)}, Layer: gearLayer(a, 1, 2)}))
	gearStep(t, gearfacts.NewFiles(c.DB).Lose(ctx, gearfacts.Name{1}, gearfacts.Name{9})) // it is not there
	gearStep(t, gearfacts.NewFiles(c.DB).Lose(ctx, gearfacts.Name{2}, gearfacts.Name{1}))
	if f, err := gearfacts.NewFiles(c.DB).File(ctx, gearfacts.Name{2}); err != nil || f.Pack != (gearfacts.Name{}) || !f.Live {
		t.Errorf("lost: %+v, %v", f, err)
	}
	if got, err := gearfacts.NewLayers(c.DB).LayersOf(ctx, gearfacts.Name{2}, 5); err != nil || !slices.Equal(got, []oci.Digest{a}) {
		t.Errorf("layers: %v, %v", got, err)
	}
	gearStep(t, gearfacts.NewFiles(c.DB).Record(ctx, gearfacts.Record{Packs: []gearfacts.NewPack{gearPack(3, 1, 2)}}))
	if f, err := gearfacts.NewFiles(c.DB).File(ctx, gearfacts.Name{2}); err != nil || f.Pack != (gearfacts.Name{3}) || !f.Live {
		t.Errorf("made again: %+v, %v", f, err)
	}
	n, err := gearfacts.NewFiles(c.DB).Counts(ctx)
	if diff := cmp.Diff(gearfacts.Counts{Packs: 2, PackBytes: 2000, LiveFiles: 2, LiveBytes: 20, Layers: 1}, n); diff != "" || err != nil {
		t.Errorf("counts, %v (-want +got):\n%s", err, diff)
	}
}

func TestGearJobs(t *testing.T) { servers.OnBoth(t, testGearJobs) }

func testGearJobs(t *testing.T, base *catalogtest.Bed) {
	now := time.UnixMilli(1e12)
	due := now
	c := open(t, base, &catalog.Options{Clock: func() time.Time { return now }})
	ctx := t.Context()
	a, b := gearDigest("a"), gearDigest("b")
	for _, d := range []oci.Digest{a, b} {
		gearStep(t, putBlob(ctx, c, "x", catalog.Blob{Digest: d, Size: 1, Content: []byte("1")}, ""))
	}
	gearStep(t, gearfacts.NewLayers(c.DB).Queue(ctx, b, gearDigest("c"), a, b)) // c does not exist
	gearStep(t, gearfacts.NewLayers(c.DB).DeferJob(ctx, b, "bad luck", now.Add(time.Minute)))
	check := func(want ...gearfacts.Job) {
		t.Helper()
		got, err := gearfacts.NewLayers(c.DB).Jobs(ctx, 9)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("jobs, %v (-want +got):\n%s", err, diff)
		}
	}
	check(gearfacts.Job{Digest: a, Due: due, Size: 1, Repo: 1})
	now = now.Add(time.Hour)
	check(gearfacts.Job{Digest: a, Due: due, Size: 1, Repo: 1}, gearfacts.Job{Digest: b, Attempts: 1, Failure: "bad luck", Due: due.Add(time.Minute), Size: 1, Repo: 1})
	gearStep(t, gearfacts.NewLayers(c.DB).EndJob(ctx, a))
	gearStep(t, gearfacts.NewFiles(c.DB).Record(ctx, gearfacts.Record{Packs: []gearfacts.NewPack{gearPack(1, 1)}, Layer: gearLayer(a, 1)}))
	gearStep(t, gearfacts.NewLayers(c.DB).Queue(ctx, a))
	check(gearfacts.Job{Digest: b, Attempts: 1, Failure: "bad luck", Due: due.Add(time.Minute), Size: 1, Repo: 1})
}

// TestGearJobsTakeTurns checks that each repository with jobs is among the next jobs as often as
// any other, with its oldest job, whatever the repositories have queued.
func TestGearJobsTakeTurns(t *testing.T) { servers.OnBoth(t, testGearJobsTakeTurns) }

func testGearJobsTakeTurns(t *testing.T, base *catalogtest.Bed) {
	now := time.UnixMilli(1e12)
	c := open(t, base, &catalog.Options{Clock: func() time.Time { return now }})
	ctx := t.Context()
	counts := []int{40, 1, 7, 0, 12}
	for r, n := range counts {
		for i := range n {
			d := gearDigest(fmt.Sprintf("%d/%d", r, i))
			gearStep(t, putBlob(ctx, c, fmt.Sprint("repo", r), catalog.Blob{Digest: d, Size: 1, Content: []byte("1")}, ""))
			gearStep(t, gearfacts.NewLayers(c.DB).Queue(ctx, d))
		}
	}
	for _, n := range []int{1, 3, 4, 8, 20, 60, 100} {
		jobs, err := gearfacts.NewLayers(c.DB).Jobs(ctx, n)
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
func TestGearGrantsOutliveLoss(t *testing.T) { servers.OnBoth(t, testGearGrantsOutliveLoss) }

func testGearGrantsOutliveLoss(t *testing.T, base *catalogtest.Bed) {
	now := time.UnixMilli(1e12)
	c := open(t, base, &catalog.Options{Clock: func() time.Time { return now }, Grace: time.Second})
	ctx := t.Context()
	layer := catalog.Blob{Digest: gearDigest("a"), Size: 1, Content: []byte("1")}
	config := catalog.Blob{Digest: gearDigest("c"), Size: 1, Content: []byte("1")}
	granted := func(when string, want bool) {
		t.Helper()
		if got, err := gearfacts.NewLayers(c.DB).Granted(ctx, "x", layer.Digest); err != nil || got != want {
			t.Errorf("%s: granted %v, %v, want %v", when, got, err, want)
		}
	}
	link := func() {
		t.Helper()
		rows, err := repair.New(c.DB).NamedBy(ctx, layer.Digest)
		gearStep(t, err)
		for _, m := range rows {
			_, err := repair.New(c.DB).LinkNamed(ctx, m, layer.Digest)
			gearStep(t, err)
		}
	}
	gearStep(t, putBlob(ctx, c, "x", layer, ""))
	gearStep(t, putBlob(ctx, c, "x", config, ""))
	manifest := catalog.NewManifest{Manifest: catalog.Manifest{Digest: gearDigest("d"), MediaType: oci.MediaTypeOCIManifest, Content: []byte("{}")},
		Blobs: []oci.Digest{layer.Digest, config.Digest}, Tags: []string{"v1"}}
	_, err := c.PutManifest(ctx, "x", manifest)
	gearStep(t, err)
	record := gearfacts.Record{Packs: []gearfacts.NewPack{gearPack(1, 1)}, Layer: gearLayer(layer.Digest, 1)}
	record.Layer.Embedded = true
	gearStep(t, gearfacts.NewFiles(c.DB).Record(ctx, record))
	gearStep(t, gearfacts.NewLayers(c.DB).Grant(ctx, "x", layer.Digest))
	granted("at first", true)
	for name, back := range map[string]func() error{
		"taken back": func() error { _, err := repair.New(c.DB).TakeBack(ctx, layer); return err },
		"healed":     func() error { _, err := repair.New(c.DB).Heal(ctx, layer); return err },
		"pushed":     func() error { return putBlob(ctx, c, "x", layer, "") },
	} {
		_, err := repair.New(c.DB).MarkAbsent(ctx, layer.Digest, true)
		gearStep(t, err)
		granted(name+", while it is lost", false)
		now = now.Add(time.Minute)
		_, _, err = c.Garbage.Collect(ctx, catalog.CollectOptions{Before: now})
		gearStep(t, err)
		gearStep(t, back())
		link()
		granted(name, true)
	}
	_, err = repair.New(c.DB).MarkAbsent(ctx, layer.Digest, true)
	gearStep(t, err)
	_, err = c.DeleteManifest(ctx, "x", manifest.Digest, nil)
	gearStep(t, err)
	for range 3 {
		now = now.Add(time.Minute)
		_, _, err = c.Garbage.Collect(ctx, catalog.CollectOptions{Before: now})
		gearStep(t, err)
	}
	gearStep(t, putBlob(ctx, c, "x", layer, ""))
	gearStep(t, gearfacts.NewFiles(c.DB).Record(ctx, record))
	granted("after the repository let go of it", false)
}

// TestGearDonors checks that of each kind the last donors of a repository are kept, without their
// images, and that they end with the repository.
func TestGearDonors(t *testing.T) { servers.OnBoth(t, testGearDonors) }

func testGearDonors(t *testing.T, base *catalogtest.Bed) {
	now := time.UnixMilli(1e12)
	c := open(t, base, &catalog.Options{Clock: func() time.Time { return now }, Grace: time.Second})
	ctx := t.Context()
	blob := gearDigest("a")
	gearStep(t, putBlob(ctx, c, "x", catalog.Blob{Digest: blob, Size: 1, Content: []byte("1")}, ""))
	for i, kind := range []string{"a", "a", "b", "a", "a"} {
		now = now.Add(time.Second)
		gearStep(t, gearfacts.NewLayers(c.DB).PutDonor(ctx, gearfacts.Donor{Repo: "x", Manifest: gearDigest(fmt.Sprint(i)), Data: []byte{byte(i)}}, kind, 2))
	}
	gearStep(t, gearfacts.NewLayers(c.DB).PutDonor(ctx, gearfacts.Donor{Repo: "nowhere", Manifest: blob, Data: []byte{9}}, "a", 2))
	kept := func() (out []byte) {
		list, err := gearfacts.NewLayers(c.DB).Donors(ctx, "x")
		gearStep(t, err)
		for _, d := range list {
			out = append(out, d.Data...)
		}
		return out
	}
	if got := kept(); !slices.Equal(got, []byte{2, 3, 4}) {
		t.Errorf("kept %v, want 2 of kind b and the last two of kind a, 3 and 4", got)
	}
	if last, err := gearfacts.NewLayers(c.DB).LastDonors(ctx, 2); err != nil || len(last) != 2 || last[0].Data[0] != 4 || last[1].Data[0] != 3 {
		t.Errorf("the last two: %+v, %v", last, err)
	}
	gearStep(t, c.DeleteBlob(ctx, "x", blob))
	now = now.Add(time.Hour)
	_, _, err := c.Garbage.Collect(ctx, catalog.CollectOptions{Before: now})
	gearStep(t, err)
	gearStep(t, putBlob(ctx, c, "x", catalog.Blob{Digest: gearDigest("b"), Size: 1, Content: []byte("1")}, ""))
	if got := kept(); len(got) != 0 {
		t.Errorf("a repository that is made anew has the donors %v of the one that was deleted", got)
	}
}
