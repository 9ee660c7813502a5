package profile_test

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"example.org/slipway/gear"
	"example.org/slipway/gear/profile"
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

func TestOrder(t *testing.T) {
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
			var p profile.Profile
			for _, r := range test.reports {
				p.Add(report(r...))
			}
			if got := numbers(p.Order()); !slices.Equal(got, test.want) {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}

// TestSeenInPart merges reports of starts of which only a part was seen. They add files
// that were missing, however many whole reports there were, and never count against a
// file.
func TestSeenInPart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p profile.Profile
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
		var q profile.Profile
		if err := q.Decode(p.Encode()); err != nil || !slices.Equal(q.Order(), p.Order()) {
			t.Fatalf("it is another profile when it was decoded: %v", err)
		}
	})
}

// TestProfileFollows checks that the profile follows when an image is used differently.
func TestFollows(t *testing.T) {
	var p profile.Profile
	add := func(n int, names ...int) {
		for range n {
			p.Add(report(names...))
		}
		var again profile.Profile
		if err := again.Decode(p.Encode()); err != nil {
			t.Fatalf("after %d reports of %v: %v", n, names, err)
		}
	}
	add(10*profile.MaxReports, 1, 2, 3)
	add(2*profile.MaxReports, 9, 8)
	if got := numbers(p.Order()); !slices.Equal(got, []int{9, 8}) {
		t.Errorf("got %v", got)
	}
	// Old files are forgotten in the end and do not affect the rest.
	add(100*profile.MaxReports, 9, 8)
	if p.Len() != 2 {
		t.Errorf("%d files are kept", p.Len())
	}
}

func TestBounds(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	var p profile.Profile
	var often []gear.Name
	for i := range 100 {
		often = append(often, numbered(i))
	}
	p.Add(often)
	for k := range 3 {
		names := slices.Clone(often)
		for i := range profile.MaxFiles {
			names = append(names, numbered(1_000_000*(k+1)+i))
		}
		p.Add(names)
		if p.Len() != profile.MaxFiles {
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

func TestEncoding(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p, q profile.Profile
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

func FuzzDecode(f *testing.F) {
	var p profile.Profile
	p.Add(report(1, 2, 3))
	f.Add(p.Encode())
	f.Add([]byte{})
	f.Add([]byte{1})
	f.Add([]byte{1, 0, 0, 0xc0, 0x7f}) // a count of NaN reports
	f.Fuzz(func(t *testing.T, raw []byte) {
		var p profile.Profile
		if p.Decode(raw) != nil {
			return
		}
		p.Order()
		p.Add(report(7, 8))
		if p.Len() > profile.MaxFiles {
			t.Errorf("%d files", p.Len())
		}
		var q profile.Profile
		if err := q.Decode(p.Encode()); err != nil {
			t.Errorf("cannot decode what it encoded: %v", err)
		}
	})
}

// TestFalseReport adds one report of all files of a large image to a few honest ones.
func TestFalseReport(t *testing.T) {
	for _, honest := range []int{1, 2, 3, 10} {
		var p profile.Profile
		var opened, all []gear.Name
		for i := range 20_000 {
			if all = append(all, numbered(i)); i < 100 {
				opened = append(opened, numbered(i))
			}
		}
		for range honest {
			p.Add(opened)
		}
		p.Add(all)
		if got := p.Order(); len(got) > 1600 || !slices.Equal(got[:100], opened) {
			t.Errorf("%d honest reports and a false one: %d files", honest, len(got))
		}
	}
}
