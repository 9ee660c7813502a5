package gear_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/gear"
	"example.org/slipway/gear/rootfs"
)

// tarEntry returns the entry for a short form: "d a" is a directory, "f a 3" a file of
// three bytes, "l a b" a symbolic link to b, "h a b" a hard link, "p a" a fifo, "w a" a
// whiteout and "o a" an opaque directory. Files of the same size have the same content.
// The mode of an entry is its number.
func tarEntry(t testing.TB, short string, number int) (rootfs.Entry, gear.File) {
	t.Helper()
	f := strings.Fields(short)
	e := rootfs.Entry{Path: f[1], Mode: uint32(number)}
	switch f[0] {
	case "d":
		e.Type = rootfs.Dir
	case "p":
		e.Type = rootfs.Fifo
	case "w", "o":
		e.Type, e.Mode = rootfs.Whiteout, 0
		if f[0] == "o" {
			e.Type = rootfs.Opaque
		}
	case "l":
		e.Type, e.Link = rootfs.Symlink, f[2]
	case "h":
		e.Type, e.Link = rootfs.HardLink, f[2]
	case "f":
		e.Type = rootfs.File
		if _, err := fmt.Sscan(f[2], &e.Size); err != nil {
			t.Fatal(err)
		}
	}
	return e, contentOf(e.Size)
}

// layerOf builds the index of a layer from entries in the short form of tarEntry.
func layerOf(t testing.TB, entries ...string) (*gear.Index, error) {
	t.Helper()
	b := gear.NewBuilder(nil)
	for i, s := range entries {
		e, f := tarEntry(t, s, i+1)
		if err := b.Add(e, f); err != nil {
			return nil, err
		}
	}
	return b.Index()
}

// short is the reverse of tarEntry. It puts the mode before the path.
func short(x *gear.Index) (out []string) {
	for _, e := range x.Entries {
		s := string(" dflhcbpswo"[e.Type]) + fmt.Sprintf("%o ", e.Mode) + e.Path
		switch e.Type {
		case rootfs.File:
			s += fmt.Sprint(" ", e.Size)
		case rootfs.Symlink, rootfs.HardLink:
			s += " " + e.Link
		}
		out = append(out, s)
	}
	return out
}

func TestBuilder(t *testing.T) {
	for name, test := range map[string]struct{ entries, want []string }{
		"last wins":                     {[]string{"f a 1", "f a 2"}, []string{"f2 a 2"}},
		"directory again":               {[]string{"d a", "f a/b 1", "d a"}, []string{"d3 a", "f2 a/b 1"}},
		"file for directory":            {[]string{"d a", "f a/b 1", "f a 2"}, []string{"f3 a 2"}},
		"directory for file":            {[]string{"f a 1", "d a", "f a/b 1"}, []string{"d2 a", "f3 a/b 1"}},
		"there and back":                {[]string{"f a/x 1", "f a 1", "d a", "f a/y 1"}, []string{"d3 a", "f4 a/y 1"}},
		"file for parent":               {[]string{"f a/b/c 1", "p a"}, []string{"p2 a"}},
		"whiteout before":               {[]string{"w a", "f a 1"}, []string{"f2 a 1"}},
		"whiteout behind":               {[]string{"f a 1", "w a"}, []string{"f1 a 1"}},
		"whiteout and directory":        {[]string{"w a", "d a", "f a/b 1"}, []string{"d2 a", "o0 a", "f3 a/b 1"}},
		"whiteout and implied":          {[]string{"f a/b 1", "w a"}, []string{"d755 a", "o0 a", "f1 a/b 1"}},
		"whiteout and opaque":           {[]string{"w a", "o a"}, []string{"d755 a", "o0 a"}},
		"whiteouts below a file":        {[]string{"w a/b", "o a", "p a"}, []string{"p3 a"}},
		"opaque alone":                  {[]string{"o a", "f a/b 1"}, []string{"o0 a", "f2 a/b 1"}},
		"opaque root":                   {[]string{"d .", "o .", "p -"}, []string{"d1 .", "o0 .", "p3 -"}},
		"order":                         {[]string{"p a-", "p a/b", "p a.", "d a"}, []string{"d4 a", "p2 a/b", "p1 a-", "p3 a."}},
		"hard link":                     {[]string{"f b 1", "h c b", "h a c"}, []string{"f3 a 1", "h0 b a", "h0 c a"}},
		"hard link to replaced":         {[]string{"f a 1", "h b a", "f a 2"}, []string{"f3 a 2", "f2 b 1"}},
		"hard link to removed":          {[]string{"f d/a 1", "h b d/a", "p d"}, []string{"f2 b 1", "p3 d"}},
		"hard links left of three":      {[]string{"f a 1", "h c a", "h b a", "p a"}, []string{"p4 a", "f3 b 1", "h0 c b"}},
		"hard link to below":            {[]string{"h a x/y", "h b a"}, []string{"h0 a x/y", "h0 b x/y"}},
		"hard link to what follows":     {[]string{"h b a", "f a 1"}, []string{"f2 a 1", "h0 b a"}},
		"hard link to removed below":    {[]string{"h b a", "w a"}, []string{"w0 a", "h0 b a"}},
		"hard link to symlink":          {[]string{"l a x", "h b a"}, []string{"l2 a x", "h0 b a"}},
		"symlink parent":                {[]string{"l lib usr/lib", "f lib/x 1"}, []string{"l1 lib usr/lib", "f2 usr/lib/x 1"}},
		"absolute symlink parent":       {[]string{"l a/lib /b", "f a/lib/x 1"}, []string{"l1 a/lib /b", "f2 b/x 1"}},
		"symlink out of the root":       {[]string{"l a ../../b", "f a/x 1"}, []string{"l1 a ../../b", "f2 b/x 1"}},
		"symlink replaced by directory": {[]string{"l a b", "p a/x", "d a", "p a/y"}, []string{"d3 a", "p4 a/y", "p2 b/x"}},
		"whiteout through symlink":      {[]string{"l a b", "w a/x"}, []string{"l1 a b", "w0 b/x"}},
		"hard link through symlink":     {[]string{"d b", "f b/x 1", "l a b", "h c a/x"}, []string{"l3 a b", "d1 b", "f4 b/x 1", "h0 c b/x"}},
	} {
		t.Run(name, func(t *testing.T) {
			x, err := layerOf(t, test.entries...)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, short(recode(t, x))); diff != "" {
				t.Errorf("%q (-want +got):\n%s", test.entries, diff)
			}
		})
	}
}

func TestBuilderConflicts(t *testing.T) {
	for name, entries := range map[string][]string{
		"below a file":                  {"f a 1", "p a/b"},
		"below a hard link":             {"f a 1", "h b a", "p b/x"},
		"whiteout below a file":         {"f a 1", "w a/b"},
		"opaque file":                   {"f a 1", "o a"},
		"hard link to directory":        {"d a", "h b a"},
		"hard link to itself":           {"p a", "h a a"},
		"hard link to itself by detour": {"l d .", "h a d/a"},
		"hard links in a circle":        {"h a b", "h b a"},
		"hard links in a large circle":  {"h a b", "h b c", "h c a"},
		"late hard link to directory":   {"h a b", "d b"},
		"symlinks in a circle":          {"l a b", "l b a", "p a/x"},
		"symlink to itself":             {"l a a", "p a/x"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := layerOf(t, entries...); !errors.Is(err, gear.ErrConflict) {
				t.Errorf("%q: got %v", entries, err)
			}
		})
	}
	b := gear.NewBuilder(&gear.Limits{Entries: 1})
	for i, want := range []error{nil, gear.ErrTooLarge} {
		if err := b.Add(rootfs.Entry{Path: "a", Type: rootfs.Fifo}, gear.File{}); !errors.Is(err, want) {
			t.Errorf("entry %d: got %v, want %v", i, err, want)
		}
	}
}

func TestFlatten(t *testing.T) {
	for name, test := range map[string]struct {
		layers [][]string
		want   []string
	}{
		"nothing":                   {nil, nil},
		"implied parents":           {[][]string{{"p a/b/c"}}, []string{"d755 a", "d755 a/b", "p1 a/b/c"}},
		"properties of upper":       {[][]string{{"d a"}, {"p x", "d a"}}, []string{"d2 a", "p1 x"}},
		"implied keeps lower":       {[][]string{{"d a", "p a/x"}, {"p a/y"}}, []string{"d1 a", "p2 a/x", "p1 a/y"}},
		"opaque keeps properties":   {[][]string{{"d a", "p a/x"}, {"o a", "p a/y"}}, []string{"d1 a", "p2 a/y"}},
		"whiteout forgets them":     {[][]string{{"d a", "p a/x"}, {"w a"}, {"p a/y"}}, []string{"d755 a", "p1 a/y"}},
		"opaque, then implied":      {[][]string{{"d a", "p a/x"}, {"o a"}, {"p a/y"}}, []string{"d1 a", "p1 a/y"}},
		"opaque root":               {[][]string{{"d .", "p a"}, {"o .", "p b"}}, []string{"d1 .", "p2 b"}},
		"whiteout of nothing":       {[][]string{{"p a"}, {"w b", "w c/d"}}, []string{"p1 a", "d755 c"}},
		"directory for file":        {[][]string{{"p a"}, {"p a/b"}}, []string{"d755 a", "p1 a/b"}},
		"directory for symlink":     {[][]string{{"l lib usr/lib", "p usr/lib/a"}, {"p lib/b"}}, []string{"d755 lib", "p1 lib/b", "d755 usr", "d755 usr/lib", "p2 usr/lib/a"}},
		"file for directory":        {[][]string{{"d a", "p a/b"}, {"p a"}}, []string{"p1 a"}},
		"file and back":             {[][]string{{"p a/b"}, {"p a"}, {"p a/c"}}, []string{"d755 a", "p1 a/c"}},
		"middle layer":              {[][]string{{"p a/x", "p a/y"}, {"w a/x"}, {"p a/x"}}, []string{"d755 a", "p1 a/x", "p2 a/y"}},
		"link to below":             {[][]string{{"f a 1"}, {"h b a"}}, []string{"f1 a 1", "h0 b a"}},
		"link below, before":        {[][]string{{"f z 1"}, {"h b z"}}, []string{"f1 b 1", "h0 z b"}},
		"link outlives name":        {[][]string{{"f a 1", "h b a", "h c a"}, {"w a"}}, []string{"f3 b 1", "h0 c b"}},
		"link outlives replacement": {[][]string{{"f a 1", "h b a"}, {"f a 2"}}, []string{"f1 a 2", "f2 b 1"}},
		"link to link":              {[][]string{{"f a 1", "h b a"}, {"h c b"}, {"h d c"}, {"w a"}}, []string{"f2 b 1", "h0 c b", "h0 d b"}},
		"rename by link":            {[][]string{{"f a 1"}, {"h b a", "w a"}}, []string{"f1 b 1"}},
		"hidden link to nowhere":    {[][]string{{"h b a"}, {"w b"}, {"p c"}}, []string{"p1 c"}},
	} {
		t.Run(name, func(t *testing.T) {
			var layers []*gear.Index
			for _, l := range test.layers {
				x, err := layerOf(t, l...)
				if err != nil {
					t.Fatal(err)
				}
				layers = append(layers, x)
			}
			x, err := gear.Flatten(layers...)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, short(recode(t, x))); diff != "" {
				t.Errorf("%q (-want +got):\n%s", test.layers, diff)
			}
			if !x.Flat() {
				t.Error("the result is not flat")
			}
		})
	}
}

func TestFlattenRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		layers [][]string
		want   error
	}{
		"link to nowhere":    {[][]string{{"p x"}, {"h b a"}}, gear.ErrConflict},
		"link to removed":    {[][]string{{"p a"}, {"w a"}, {"h b a"}}, gear.ErrConflict},
		"link to hidden":     {[][]string{{"p d/a"}, {"o d"}, {"h b d/a"}}, gear.ErrConflict},
		"link to directory":  {[][]string{{"d a"}, {"h b a"}}, gear.ErrConflict},
		"implied everywhere": {[][]string{manyDeep()}, gear.ErrTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			var layers []*gear.Index
			for _, l := range test.layers {
				x, err := layerOf(t, l...)
				if err != nil {
					t.Fatal(err)
				}
				layers = append(layers, x)
			}
			if _, err := gear.Flatten(layers...); !errors.Is(err, test.want) {
				t.Errorf("got %v, want %v", err, test.want)
			}
		})
	}
}

// manyDeep returns the entries of a layer that implies many more directories than it has
// entries.
func manyDeep() (out []string) {
	for i := range 100 {
		out = append(out, fmt.Sprintf("p %d%s", i, strings.Repeat("/d", 200)))
	}
	return out
}

// TestBuilderBounded adds symbolic links that go back and forth in every path.
func TestBuilderBounded(t *testing.T) {
	b := gear.NewBuilder(nil)
	fro := strings.Repeat("a/../", 800)
	for i := range 40 {
		e := rootfs.Entry{Path: fmt.Sprint("l", i), Type: rootfs.Symlink, Link: fro + fmt.Sprint("l", i+1)}
		if err := b.Add(e, gear.File{}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 100_000 {
		err := b.Add(rootfs.Entry{Path: fmt.Sprint("l0/", i), Type: rootfs.Fifo}, gear.File{})
		if errors.Is(err, gear.ErrConflict) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Error("there is no bound")
}
