package images

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"example.org/slipway/agent/registries"
	"example.org/slipway/gear"
	"example.org/slipway/gear/rootfs"
	"example.org/slipway/node/gearfs"
	"example.org/slipway/node/snapshotter"
	"example.org/slipway/node/view"
)

// member is an entry of a layer with the description of its file.
type member struct {
	e rootfs.Entry
	f gear.File
}

func fileMember(path string, f gear.File, xattrs ...rootfs.Xattr) member {
	return member{rootfs.Entry{Path: path, Type: rootfs.File, Mode: 0o644, Size: f.Size, Xattrs: xattrs}, f}
}

func linkMember(path, target string) member {
	return member{e: rootfs.Entry{Path: path, Type: rootfs.HardLink, Link: target}}
}

func layerIndex(t *testing.T, members ...member) *gear.Index {
	t.Helper()
	b := gear.NewBuilder(nil)
	for _, m := range members {
		if err := b.Add(m.e, m.f); err != nil {
			t.Fatal(err)
		}
	}
	x, err := b.Index()
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// TestFits asks whether the upper of two layers fits. Some layers are sound, some are odd, and some
// cannot become a part of any image. The answer must agree with the image that is then made: what
// was claimed can be mounted.
func TestFits(t *testing.T) {
	small := gear.File{Name: sha256.Sum256([]byte("small")), Size: 5}
	large := gear.File{Name: sha256.Sum256([]byte("large")), Size: 5 << 20, Chunks: slices.Repeat([]gear.Name{{1}}, 5)}
	bigger, rechunked, neighbour := small, large, small
	bigger.Size++
	rechunked.Chunks = slices.Repeat([]gear.Name{{2}}, 5)
	neighbour.Name[31]++
	known := gear.File{Name: sha256.Sum256([]byte("known")), Size: 7}
	unlike := known
	unlike.Size = 8
	text := func(n int) string { return strings.Repeat("x", n) }
	for _, c := range []struct {
		name         string
		lower, upper []member
		fits         bool
	}{
		{"alike", []member{fileMember("a", small), fileMember("b", large)}, []member{fileMember("c", small), fileMember("d", large)}, true},
		{"another size", []member{fileMember("a", small)}, []member{fileMember("c", bigger)}, false},
		{"another size in place", []member{fileMember("a", small)}, []member{fileMember("a", bigger)}, false}, // the lower one is an image, too
		{"other chunks", []member{fileMember("a", large)}, []member{fileMember("c", rechunked)}, false},
		{"node of another", []member{fileMember("a", small)}, []member{fileMember("c", neighbour)}, false},
		{"link below", []member{fileMember("a", small)}, []member{linkMember("c", "a")}, true},
		{"link to nothing", []member{fileMember("a", small)}, []member{linkMember("c", "z")}, false},
		{"known", nil, []member{fileMember("c", known)}, true},
		{"unlike a known one", nil, []member{fileMember("c", unlike)}, false},
		{"unlike a known one below", []member{fileMember("c", unlike)}, []member{fileMember("a", small)}, false},
		{"attributes", nil, []member{fileMember("c", small, rootfs.Xattr{Name: "com.apple.provenance", Value: "x"}, rootfs.Xattr{Name: "system.nfs4_acl", Value: "acl"},
			rootfs.Xattr{Name: "trusted.overlay.opaque", Value: "y"}, rootfs.Xattr{Name: "user.a", Value: text(70_000)})}, true},
		{"devices", nil, []member{{e: rootfs.Entry{Path: "d", Type: rootfs.CharDevice, Major: 1 << 30, Minor: 1 << 31}}, {e: rootfs.Entry{Path: "w", Type: rootfs.CharDevice}}}, true},
		{"long link", nil, []member{{e: rootfs.Entry{Path: "l", Type: rootfs.Symlink, Link: text(4095)}}}, true},
		{"deep tree", nil, []member{{e: rootfs.Entry{Path: strings.Repeat("d/", 1500) + "e", Type: rootfs.Dir}}}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			chains := bareChains(t, t.TempDir())
			if err := chains.files.AddImage(gearfs.ImageSpec{Chain: "sha256:known", Domain: "d"}, layerIndex(t, fileMember("k", known))); err != nil {
				t.Fatal(err)
			}
			low, top := testRecord("", "a"), testRecord("", "b")
			low.Domain, top.Domain = "d", "d"
			put := func(rec *chainRecord, x *gear.Index) error {
				err := chains.fits(t.Context(), snapshotter.Layer{ChainID: rec.Chain, Parent: rec.Parent}, x, "d", nil)
				if cerr := chains.records.create(rec, encoded(t, x)); cerr != nil {
					t.Fatal(cerr)
				}
				tree, kerr := chains.know(rec.Chain, rec)
				if kerr == nil {
					_, kerr = view.Compile(t.Context(), tree, chains.trees)
				}
				if (err == nil) != (kerr == nil) {
					t.Errorf("asked before: %v; and then: %v", err, kerr)
				}
				return err
			}
			var err error
			if c.lower != nil {
				err = put(low, layerIndex(t, c.lower...))
				top.Parent = low.Chain
			}
			if err == nil {
				err = put(top, layerIndex(t, c.upper...))
			}
			if (err == nil) != c.fits {
				t.Errorf("it fits: %v, want %v: %v", err == nil, c.fits, err)
			}
			if err := chains.files.Check(gearfs.ImageSpec{Domain: "another"}, []gear.File{unlike}); err != nil {
				t.Errorf("what one domain knows is held against another: %v", err)
			}
		})
	}
}

// TestPile puts layers of random members on each other, sound and odd ones. A pile must give the
// same answer as its whole tree, and the same tree.
func TestPile(t *testing.T) {
	r := rand.New(rand.NewPCG(25, 12))
	file := func(i, size int) gear.File {
		return gear.File{Name: sha256.Sum256([]byte{byte(i)}), Size: int64(size)}
	}
	pick := func(list ...string) string { return list[r.IntN(len(list))] }
	path := func() string { return pick("a", "b", "d/a", "d/b", "d/e/a", "d/e/f/g/h/a", "d/e/f/g/h/i/j/k/l/m") }
	long := []rootfs.Xattr{{Name: "user.a", Value: strings.Repeat("x", 40_000)}, {Name: "user.b", Value: strings.Repeat("x", 25_400)}}
	odd := func() member {
		switch r.IntN(7) {
		case 0:
			return linkMember(path(), path())
		case 1:
			return fileMember(path(), file(r.IntN(3), 2)) // the others have one byte
		case 2:
			return member{e: rootfs.Entry{Path: path(), Type: rootfs.CharDevice, Minor: uint32(r.IntN(2))}}
		case 3:
			return member{e: rootfs.Entry{Path: path(), Type: rootfs.Whiteout}}
		case 4:
			return member{e: rootfs.Entry{Path: pick("d", "d/e"), Type: rootfs.Dir, Mode: 0o755, Xattrs: long[:r.IntN(3)]}}
		case 5:
			return member{e: rootfs.Entry{Path: path() + "/" + strings.Repeat("x", 250+r.IntN(10)), Type: rootfs.Fifo}}
		default:
			return member{e: rootfs.Entry{Path: pick("d", "d/e"), Type: rootfs.Opaque}}
		}
	}
	layer := func() *gear.Index {
		for {
			b := gear.NewBuilder(nil)
			for n := r.IntN(5); n >= 0; n-- {
				m := fileMember(path(), file(r.IntN(8), 1))
				if r.IntN(3) == 0 {
					m = odd()
				}
				if err := b.Add(m.e, m.f); err != nil {
					b = gear.NewBuilder(nil) // such a layer is never converted
				}
			}
			if x, err := b.Index(); err == nil {
				return x
			}
		}
	}
	piles, quick, refused := 0, 0, 0
	for range 20_000 {
		var p pile
		var layers []*gear.Index
		for range 4 {
			x := layer()
			layers = append(layers, x)
			tree, want := flatten(layers...)
			if want == nil {
				want = view.Fits(t.Context(), tree)
			}
			if want == nil {
				_, want = gearfs.FileSet{}.With(tree.Files)
			}
			var err error
			if p, err = p.with(t.Context(), x); (err == nil) != (want == nil) {
				t.Fatalf("the pile: %v, the tree: %v; layers %+v", err, want, layers)
			}
			if err != nil {
				refused++
				break
			}
			if got, err := p.tree(); err != nil || !reflect.DeepEqual(got, tree) {
				t.Fatalf("the pile's tree is %+v, error %v, want %+v", got, err, tree)
			}
			piles++
			if !p.whole {
				quick++
			}
		}
	}
	if quick < piles/10 || quick > piles*9/10 || refused < 1000 {
		t.Errorf("of %d piles %d were quick, and %d were refused: the test asks too little", piles, quick, refused)
	}
}

// TestImagesInTurns claims layers of several images, as pulls at the same time do: each layer lies
// on the layers of its own image. The trees must be those of the images.
func TestImagesInTurns(t *testing.T) {
	c := bareChains(t, t.TempDir())
	const images, layers = 3, 3
	var want [images][]*gear.Index
	var below [images]string
	claim := func(i, n int) {
		t.Helper()
		name := fmt.Sprintf("%d-%d", i, n)
		x := layerIndex(t, fileMember(name, gear.File{Name: sha256.Sum256([]byte(name)), Size: 5}))
		rec := testRecord(below[i], fmt.Sprintf("%x", i*layers+n))
		rec.Domain = "d"
		if err := c.fits(t.Context(), snapshotter.Layer{ChainID: rec.Chain, Parent: rec.Parent}, x, "d", nil); err != nil {
			t.Fatal(err)
		}
		if err := c.records.create(rec, encoded(t, x)); err != nil {
			t.Fatal(err)
		}
		below[i] = rec.Chain
		want[i] = append(want[i], x)
		tree, err := flatten(want[i]...)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := c.flat(rec.Chain); err != nil || !reflect.DeepEqual(got, tree) {
			t.Errorf("layer %d of image %d: the tree is %+v, error %v, want %+v", n, i, got, err, tree)
		}
	}
	for i := range images { // one image after the other, each up to its second layer
		claim(i, 0)
		claim(i, 1)
	}
	for i := range images {
		claim(i, 2)
	}
}

// TestUnlisted checks that a layer of an unlisted registry is not requested, and that the reason is
// given.
func TestUnlisted(t *testing.T) {
	c := bareChains(t, t.TempDir())
	c.support = &view.Support{Tier: view.Full}
	reason, err := c.claimGear(t.Context(), snapshotter.Layer{ChainID: testRecord("", "a").Chain}, registries.Reference{Host: "other.example", Repo: "app", Ref: "v1"}, nil, true)
	if err != nil || !strings.Contains(reason, "other.example") || !strings.Contains(reason, "any_registry") {
		t.Errorf("%q, error %v", reason, err)
	}
}

// TestKeyIn checks that a chain has a record for each domain that claims it, and that domains do
// not share records.
func TestKeyIn(t *testing.T) {
	c := bareChains(t, t.TempDir())
	rec := testRecord("", "c")
	if got := c.keyIn(rec.Chain, "a"); got != rec.Chain {
		t.Errorf("the first is called %s", got)
	}
	rec.Domain = "a"
	if err := c.records.create(rec, encoded(t, &gear.Index{})); err != nil {
		t.Fatal(err)
	}
	if got := c.keyIn(rec.Chain, "a"); got != rec.Chain {
		t.Errorf("the first is called %s the second time", got)
	}
	other := testRecord("", "c")
	other.Chain, other.Domain = c.keyIn(rec.Chain, "b"), "b"
	if other.Chain == rec.Chain || idOf(other.Chain) != rec.Chain || idOf(rec.Chain) != rec.Chain {
		t.Fatalf("the second is called %s", other.Chain)
	}
	if err := c.records.create(other, encoded(t, &gear.Index{})); err != nil {
		t.Fatal(err)
	}
	all, err := c.records.all(func(dir string, err error) { t.Errorf("%s: %v", dir, err) })
	if err != nil || len(all) != 2 {
		t.Errorf("%d records, error %v", len(all), err)
	}
	if err := c.records.clean(); err != nil {
		t.Error(err)
	}
	for _, claim := range []struct {
		chain, domain string
		want          error
	}{{rec.Chain, "a", nil}, {rec.Chain, "b", errOtherDomain}, {other.Chain, "b", nil}, {other.Chain, "a", errOtherDomain}, {other.Chain, "", errOtherDomain}} {
		sources := []gearfs.SourceRef{{Registry: "https://" + claim.domain, Repo: "app"}}
		if err := c.claimAgain(claim.chain, claim.domain, sources, false); !errors.Is(err, claim.want) || err != nil && claim.want == nil {
			t.Errorf("%s claimed for %q: %v", claim.chain, claim.domain, err)
		}
	}
}
