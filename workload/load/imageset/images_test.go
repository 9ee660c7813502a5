package imageset_test

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/oci"
	"example.org/slipway/workload/load/imageset"
	"example.org/slipway/workload/replay/content"
)

func generate(t testing.TB, o *imageset.Options) *imageset.Set {
	t.Helper()
	s, err := imageset.Generate(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func sizes(t testing.TB, s string) imageset.Sizes {
	t.Helper()
	z, err := imageset.ParseSizes(s)
	if err != nil {
		t.Fatal(err)
	}
	return z
}

// TestGenerateIsDeterministic checks that equal options give equal images. A larger set
// begins with the images of a smaller one, except for the batch in their names.
func TestGenerateIsDeterministic(t *testing.T) {
	o := &imageset.Options{Images: 30, Batches: 3, Sizes: sizes(t, "1KiB-64KiB"), Maker: content.Maker{Seed: 7}}
	a, b := generate(t, o), generate(t, o)
	if diff := cmp.Diff(a.Images, b.Images); diff != "" {
		t.Errorf("the same options made other images:\n%s", diff)
	}
	other := *o
	other.Maker.Seed = 8
	c := generate(t, &other)
	digests := map[oci.Digest]string{}
	for _, m := range append(a.Images, c.Images...) {
		for _, p := range append(m.Manifests, m.Blobs...) {
			if was, ok := digests[p.Digest]; ok {
				t.Errorf("%s of %s is in %s too", p.Digest, m.Name(), was)
			}
			digests[p.Digest] = m.Name()
		}
	}
}

func TestGenerateShape(t *testing.T) {
	s := generate(t, &imageset.Options{Images: 20, Batches: 4, Blobs: 3, Prefix: "a/b/"})
	name := regexp.MustCompile(`^a/b/[a-z][a-z0-9]{9}-[a-z][a-z0-9]{9}-000[1-4]:v\d{1,3}\.\d{1,3}$`)
	for _, m := range s.Images {
		if !name.MatchString(m.Name()) || !oci.ValidName(m.Repo) || !oci.ValidTag(m.Tag) {
			t.Errorf("an image is called %s", m.Name())
		}
		if len(m.Manifests) != 2 || len(m.Blobs) != 4 {
			t.Errorf("%s has %d manifests and %d blobs, want an index, a manifest, a configuration and 3 layers", m.Name(), len(m.Manifests), len(m.Blobs))
		}
		for _, b := range m.Blobs[1:] {
			if b.Size != 2048 {
				t.Errorf("%s has a layer of %d bytes, want 2048", m.Name(), b.Size)
			}
		}
	}
}

// TestPatternsAreDisjoint checks that each image is in one batch, and that the sizes of
// batches differ by one at most.
func TestPatternsAreDisjoint(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		o := &imageset.Options{Images: 1 + rnd.IntN(300), Batches: 1 + rnd.IntN(20), Blobs: 1, Maker: content.Maker{Seed: rnd.Uint64()}}
		s := generate(t, o)
		var long, short []string
		for b := range s.Batches() {
			long = append(long, s.BatchPattern(b+1))
			short = append(short, fmt.Sprintf("-%04d", b+1)) // as the arguments of Ociregistry's driver
		}
		for _, patterns := range [][]string{long, short} {
			sets, overlap, err := imageset.Select(s.Images, patterns)
			if err != nil || overlap != nil {
				t.Fatalf("%d images in %d batches: %v, overlap %v", o.Images, o.Batches, err, overlap)
			}
			total := 0
			for i, set := range sets {
				total += len(set)
				if want := o.Images / s.Batches(); len(set) < want || len(set) > want+1 {
					t.Errorf("batch %d of %d has %d of %d images", i+1, s.Batches(), len(set), o.Images)
				}
			}
			if total != o.Images {
				t.Errorf("the patterns select %d of %d images", total, o.Images)
			}
		}
	}
}

func TestSelect(t *testing.T) {
	images := []*imageset.Image{{Repo: "a", Tag: "1"}, {Repo: "b", Tag: "1"}}
	if _, overlap, err := imageset.Select(images, []string{"^a", ":1$"}); err != nil || overlap != images[0] {
		t.Errorf("got overlap %v and %v, want the first image", overlap, err)
	}
	if _, _, err := imageset.Select(images, []string{"^a", "^c"}); err == nil || !strings.Contains(err.Error(), `"^c"`) {
		t.Errorf("got %v, want an error that names the pattern", err)
	}
	if _, _, err := imageset.Select(images, []string{"("}); err == nil {
		t.Error("a malformed pattern was taken")
	}
}

func TestBadSets(t *testing.T) {
	for name, o := range map[string]imageset.Options{
		"negative":    {Images: -1},
		"too many":    {Images: 1 << 30},
		"no layers":   {Blobs: -1},
		"bad prefix":  {Prefix: "Load/"},
		"bad content": {Maker: content.Maker{Compressible: 2}},
	} {
		if _, err := imageset.Generate(t.Context(), &o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestSizes(t *testing.T) {
	for text, want := range map[string][]int64{
		"":                           {2048, 2048, 2048},
		"100":                        {2048, 2048, 2048},
		"4KiB":                       {4096, 4096, 4096},
		"4KB":                        {4096, 4096, 4096},
		"4097":                       {4608, 4608, 4608},
		"4KiB,1MiB":                  {4096, 1 << 20, 4096},
		"lognormal:1MiB,0":           {1 << 20, 1 << 20, 1 << 20},
		"lognormal:1MiB,0.5,2KiB":    {2048, 2048, 2048},
		"8192-8192":                  {8192, 8192, 8192},
		"1.5K":                       {2048, 2048, 2048},
		"lognormal:1G,0,1.5MB":       {1500160, 1500160, 1500160},
		"2KiB, 4KiB , 8KiB":          {2048, 4096, 8192},
		"lognormal:2048,0,100000000": {2048, 2048, 2048},
	} {
		s := generate(t, &imageset.Options{Images: 1, Blobs: 3, Sizes: sizes(t, text)})
		var got []int64
		for _, b := range s.Images[0].Blobs[1:] {
			got = append(got, b.Size)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q: %s", text, diff)
		}
		if text != "" && sizes(t, text).String() != text {
			t.Errorf("%q is written as %q", text, sizes(t, text))
		}
	}
	for _, text := range []string{"x", "-5", "5-", "2MiB-1MiB", "9GiB", "lognormal:1", "lognormal:0,1", "lognormal:0.5,1", "lognormal:1KiB,-1", "lognormal:1KiB,x", "1KiB,,2KiB", "1e400", "NaN", "lognormal:1K,1,1,1"} {
		if _, err := imageset.ParseSizes(text); err == nil {
			t.Errorf("%q was taken", text)
		}
	}
}

// TestSizesSpread checks that sizes are drawn evenly by order of magnitude.
func TestSizesSpread(t *testing.T) {
	s := generate(t, &imageset.Options{Images: 200, Sizes: sizes(t, "2KiB-128KiB")})
	below, n := 0, 0
	for _, m := range s.Images {
		for _, b := range m.Blobs[1:] {
			if b.Size < 2048 || b.Size > 128<<10 || b.Size%512 != 0 {
				t.Fatalf("a layer has %d bytes", b.Size)
			}
			if n++; b.Size <= 16<<10 {
				below++
			}
		}
	}
	if share := float64(below) / float64(n); share < 0.42 || share > 0.58 {
		t.Errorf("%.2f of the layers are below the middle, want half", share)
	}
}

func FuzzParseSizes(f *testing.F) {
	for _, s := range []string{"", "2KiB", "1K,2K", "1KiB-1MiB", "lognormal:64KiB,2,1MiB"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		z, err := imageset.ParseSizes(s)
		if err != nil {
			return
		}
		again, err := imageset.ParseSizes(z.String())
		if err != nil || again.String() != z.String() {
			t.Errorf("%q was taken, and what it is written as, %q, is not: %v", s, z, err)
		}
	})
}
