package service_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"example.org/slipway/gear"
	gearregistry "example.org/slipway/gear/service"
	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog/gearfacts"
)

// numbered returns a name from which the number can be read.
func numbered(i int) (n gear.Name) {
	binary.BigEndian.PutUint64(n[:], uint64(i))
	return n
}

func numbers(names []gear.Name) []int {
	out := make([]int, len(names))
	for i, n := range names {
		out[i] = int(binary.BigEndian.Uint64(n[:]))
	}
	return out
}

func report(nums ...int) []gear.Name {
	var out []gear.Name
	for _, n := range nums {
		out = append(out, numbered(n))
	}
	return out
}

func TestProfileOrder(t *testing.T) {
	for name, test := range map[string]struct {
		reports [][]int
		want    []int
	}{
		"none":                      {nil, []int{}},
		"one":                       {[][]int{{3, 1, 2}}, []int{3, 1, 2}},
		"the average decides":       {[][]int{{1, 2, 3}, {2, 1, 3}, {2, 3, 1}}, []int{2, 1, 3}},
		"equal places by name":      {[][]int{{2, 1}, {1, 2}}, []int{1, 2}},
		"a quarter is enough":       {[][]int{{1}, {1}, {1}, {1, 2}}, []int{1, 2}},
		"less than that is not":     {[][]int{{1}, {1}, {1}, {1}, {1, 2}}, []int{1}},
		"twice in a report is once": {[][]int{{5, 5, 5, 6}, {6, 5}}, []int{5, 6}},
	} {
		t.Run(name, func(t *testing.T) {
			var p gearregistry.Profile
			for _, r := range test.reports {
				p.Add(report(r...))
			}
			if got := numbers(p.Order()); !slices.Equal(got, test.want) {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}

// TestSeenInPart merges reports of starts that were seen in part: they add what was missing,
// however many whole reports there were, and speak against nothing.
func TestSeenInPart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p gearregistry.Profile
		for range rapid.IntRange(0, 20).Draw(t, "whole reports") {
			p.Add(report(rapid.SliceOfN(rapid.IntRange(0, 9), 1, 9).Draw(t, "opened")...))
		}
		before := p.Order()
		missed := report(rapid.SliceOfNDistinct(rapid.IntRange(5, 15), 1, 9, rapid.ID).Draw(t, "missed")...)
		for range rapid.IntRange(0, 5).Draw(t, "reports in part") {
			p.AddSeen(missed)
		}
		for _, n := range before {
			if !slices.Contains(p.Order(), n) {
				t.Fatalf("%v is gone from %v", numbers([]gear.Name{n}), numbers(before))
			}
		}
		for range 6 { // a quarter of 20 and one
			p.AddSeen(missed)
		}
		for _, n := range missed {
			if !slices.Contains(p.Order(), n) {
				t.Fatalf("%v is missed again and again and not in %v", numbers([]gear.Name{n}), numbers(p.Order()))
			}
		}
		var q gearregistry.Profile
		if err := q.Decode(p.Encode()); err != nil || !slices.Equal(q.Order(), p.Order()) {
			t.Fatalf("it is another profile when it was decoded: %v", err)
		}
	})
}

// TestProfileFollows checks that the profile follows when an image is used differently.
func TestProfileFollows(t *testing.T) {
	var p gearregistry.Profile
	add := func(n int, names ...int) {
		for range n {
			p.Add(report(names...))
		}
		var again gearregistry.Profile
		if err := again.Decode(p.Encode()); err != nil {
			t.Fatalf("after %d reports of %v: %v", n, names, err)
		}
	}
	add(10*gearregistry.MaxReports, 1, 2, 3)
	add(2*gearregistry.MaxReports, 9, 8)
	if got := numbers(p.Order()); !slices.Equal(got, []int{9, 8}) {
		t.Errorf("got %v", got)
	}
	// Old files are forgotten in the end and do not affect the rest.
	add(100*gearregistry.MaxReports, 9, 8)
	if p.Len() != 2 {
		t.Errorf("%d files are kept", p.Len())
	}
}

func TestProfileBounds(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	var p gearregistry.Profile
	var often []gear.Name
	for i := range 100 {
		often = append(often, numbered(i))
	}
	p.Add(often)
	for k := range 3 {
		names := slices.Clone(often)
		for i := range gearregistry.MaxProfile {
			names = append(names, numbered(1_000_000*(k+1)+i))
		}
		p.Add(names)
		if p.Len() != gearregistry.MaxProfile {
			t.Fatalf("%d files", p.Len())
		}
	}
	if got := p.Order()[:100]; !slices.Equal(got, often) {
		t.Error("what is opened often made place for what is not")
	}
	if n := len(p.Encode()); n > 1<<20 {
		t.Errorf("%d bytes", n)
	}
}

func TestProfileEncoding(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p, q gearregistry.Profile
		for range rapid.IntRange(1, 300).Draw(t, "reports") {
			p.Add(report(rapid.SliceOfN(rapid.IntRange(0, 30), 1, 10).Draw(t, "names")...))
		}
		raw := p.Encode()
		if err := q.Decode(raw); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(q.Encode(), raw) || !slices.Equal(p.Order(), q.Order()) {
			t.Fatal("it is another profile when it was decoded")
		}
	})
}

func FuzzProfileDecode(f *testing.F) {
	var p gearregistry.Profile
	p.Add(report(1, 2, 3))
	f.Add(p.Encode())
	f.Add([]byte{})
	f.Add([]byte{1})
	f.Add([]byte{1, 0, 0, 0xc0, 0x7f}) // a count of NaN reports
	f.Fuzz(func(t *testing.T, raw []byte) {
		var p gearregistry.Profile
		if p.Decode(raw) != nil {
			return
		}
		p.Order()
		p.Add(report(7, 8))
		if p.Len() > gearregistry.MaxProfile {
			t.Errorf("%d files", p.Len())
		}
		var q gearregistry.Profile
		if err := q.Decode(p.Encode()); err != nil {
			t.Errorf("cannot decode what it encoded: %v", err)
		}
	})
}

// TestProfiles reports the use of files through a repository. Some of the names are not
// visible to it.
func TestProfiles(t *testing.T) {
	b := newBed(t, setup{})
	ctx := t.Context()
	secret := []byte("secret")
	_, l := b.push(theirs, zipped(tarOf(file{"s", secret})))
	var files []file
	for i := range 20 {
		files = append(files, file{fmt.Sprint(i), []byte(fmt.Sprint("content ", i))})
	}
	m, d := b.push(ours, zipped(tarOf(files...)))
	b.wait(d)
	b.wait(l)
	if got, err := b.svc.Profile(ctx, ours, m); len(got) != 0 || err != nil {
		t.Errorf("before any report: %v, %v", got, err)
	}
	opened := []gear.Name{name(files[7].data), name(secret), name([]byte("nothing")), name(files[3].data), name(files[5].data)}
	b.must(b.svc.ReportProfile(ctx, ours, m, opened))
	want := []gear.Name{opened[0], opened[3], opened[4]}
	if got, err := b.svc.Profile(ctx, ours, m); err != nil || !slices.Equal(got, want) {
		t.Errorf("got %x (%v), want %x", got, err, want)
	}
	// A report of foreign names only, or of no names, has no effect.
	b.must(b.svc.ReportProfile(ctx, ours, m, opened[1:3]))
	b.must(b.svc.ReportProfile(ctx, ours, m, nil))
	// Far too many names, most of them unknown.
	many := slices.Clone(want)
	for range 3 * gearregistry.MaxProfile {
		var n gear.Name
		binary.BigEndian.PutUint64(n[:], rand.Uint64())
		many = append(many, n)
	}
	b.must(b.svc.ReportProfile(ctx, ours, m, many))
	if got, err := b.svc.Profile(ctx, ours, m); err != nil || !slices.Equal(got, want) {
		t.Errorf("after many: got %x (%v)", got, err)
	}
	// A damaged profile counts as none, and the next report starts a new one.
	b.must(gearfacts.NewLayers(b.cat.DB).ChangeProfile(ctx, m, func([]byte) ([]byte, error) { return []byte("nonsense"), nil }))
	if got, err := b.svc.Profile(ctx, ours, m); len(got) != 0 || err != nil {
		t.Errorf("of a damaged one: %v, %v", got, err)
	}
	b.must(b.svc.ReportProfile(ctx, ours, m, want[1:]))
	if got, err := b.svc.Profile(ctx, ours, m); err != nil || !slices.Equal(got, want[1:]) {
		t.Errorf("anew: got %x (%v)", got, err)
	}
	// The profile is deleted with its image.
	b.must(b.reg.DeleteManifest(ctx, ours, m))
	if err := b.svc.ReportProfile(ctx, ours, m, want); !oci.HasCode(err, oci.CodeManifestUnknown) {
		t.Errorf("of a deleted image: %v", err)
	}
	b.collect()
	b.must(gearfacts.NewLayers(b.cat.DB).ChangeProfile(ctx, m, func([]byte) ([]byte, error) { return []byte("late"), nil }))
	if got, err := gearfacts.NewLayers(b.cat.DB).Profile(ctx, m); got != nil || err != nil {
		t.Errorf("a profile of an image that is gone: %q, %v", got, err)
	}
}
