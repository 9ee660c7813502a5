package serve_test

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/adopt"
	"example.org/slipway/serve/dataroot"
)

// distribution is a Distribution storage that a test writes, together with what a naive reader finds in
// it.
type distribution struct {
	t    *testing.T
	root string
	rnd  *rand.Rand
	// images holds all tagged images. whole holds those that can be pulled in full.
	images, whole map[string]storedImage
}

type storedImage struct {
	repo, tag, manifest string
	blobs               []string
}

func (s *distribution) write(content string, key ...string) string {
	s.t.Helper()
	path := filepath.Join(append([]string{s.root, "docker/registry/v2"}, key...)...)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		s.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		s.t.Fatal(err)
	}
	return path
}

// blob writes a blob and returns its file.
func (s *distribution) blob(content string) string {
	hex := strings.TrimPrefix(digestOf(content), "sha256:")
	return s.write(content, "blobs/sha256", hex[:2], hex, "data")
}

func (s *distribution) link(repo, place, digest string) string {
	return s.write(digest, "repositories", repo, place, "link")
}

// harms lists the kinds of damage to a storage, besides none at all. Each gets an image's layer or
// a file of its links.
var harms = []func(s *distribution, layer, tagLink, manifest string){
	func(s *distribution, layer, _, _ string) { s.cut(layer, 0) },
	func(s *distribution, layer, _, _ string) { s.cut(layer, 7) },
	func(s *distribution, layer, _, _ string) { s.append(layer) },
	func(s *distribution, layer, _, _ string) { s.remove(layer) },
	func(s *distribution, _, tagLink, _ string) { s.cut(tagLink, 0) },
	func(s *distribution, _, tagLink, _ string) { s.cut(tagLink, 20) },
	func(s *distribution, _, tagLink, _ string) { s.remove(tagLink) },
	func(s *distribution, _, _, manifest string) { s.remove(manifest) },
	func(s *distribution, _, _, manifest string) { s.cut(manifest, 0) },
	func(s *distribution, _, _, manifest string) { s.cut(manifest, 40) },
}

func (s *distribution) cut(path string, size int64) {
	if st, err := os.Stat(path); err != nil || st.Size() <= size {
		return // harmed already
	}
	if err := os.Truncate(path, size); err != nil {
		s.t.Fatal(err)
	}
}

func (s *distribution) append(path string) {
	b, err := os.ReadFile(path)
	if err != nil {
		return
	}
	if err := os.WriteFile(path, append(b, "and more"...), 0o644); err != nil {
		s.t.Fatal(err)
	}
}

func (s *distribution) remove(path string) { _ = os.Remove(path) }

// image writes an image of some layers. Other images may share them.
func (s *distribution) image(repo, tag string, harmed bool) {
	var layers []oci.Descriptor
	var files, digests []string
	for range 1 + s.rnd.IntN(3) {
		c := strings.Repeat(fmt.Sprintf("layer %d ", s.rnd.IntN(12)), 40)
		if s.rnd.IntN(4) == 0 {
			c = contentOf(s.rnd.IntN(1<<16), 20_000) // too large for the catalogue
		}
		files = append(files, s.blob(c))
		size := int64(len(c))
		if s.rnd.IntN(10) == 0 {
			size++ // the pusher stated a wrong size, and Distribution accepted it
		}
		d := digestOf(c)
		digests = append(digests, d)
		layers = append(layers, oci.Descriptor{MediaType: "application/vnd.example.text", Digest: oci.Digest(d), Size: size})
		s.link(repo, "_layers/sha256/"+d[7:], d)
	}
	b, err := json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": oci.MediaTypeOCIManifest, "config": layers[0], "layers": layers,
		"annotations": map[string]string{"name": repo + ":" + tag}})
	if err != nil {
		s.t.Fatal(err)
	}
	d := digestOf(string(b))
	manifest := s.blob(string(b))
	s.link(repo, "_manifests/revisions/sha256/"+d[7:], d)
	s.link(repo, "_manifests/tags/"+tag+"/index/sha256/"+d[7:], d)
	tagLink := s.link(repo, "_manifests/tags/"+tag+"/current", d)
	if harmed {
		harms[s.rnd.IntN(len(harms))](s, files[s.rnd.IntN(len(files))], tagLink, manifest)
	}
	s.images[repo+":"+tag] = storedImage{repo, tag, string(b), digests}
}

// read reads the storage naively and records which images are whole.
func (s *distribution) read() {
	has := func(d string) bool {
		b, err := os.ReadFile(filepath.Join(s.root, "docker/registry/v2/blobs/sha256", d[7:9], d[7:], "data"))
		return err == nil && digestOf(string(b)) == d
	}
	for name, img := range s.images {
		link, err := os.ReadFile(filepath.Join(s.root, "docker/registry/v2/repositories", img.repo, "_manifests/tags", img.tag, "current/link"))
		whole := err == nil && string(link) == digestOf(img.manifest) && has(digestOf(img.manifest))
		for _, d := range img.blobs {
			whole = whole && has(d)
		}
		if whole {
			s.whole[name] = img
		}
	}
}

// TestAdoptRandom adopts random storages, some of them damaged, and compares the result with a
// naive reader. Whole images are served, and nothing else. Damage is reported. The dry run predicts
// what the run does, also when the storage is adopted a second time.
func TestAdoptRandom(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			s := &distribution{t: t, root: t.TempDir(), rnd: rand.New(rand.NewPCG(seed, 0)), images: map[string]storedImage{}, whole: map[string]storedImage{}}
			for i := range 12 {
				s.image(fmt.Sprintf("team/app%d", s.rnd.IntN(4)), fmt.Sprint("v", i), seed%3 != 0 && s.rnd.IntN(3) == 0)
			}
			s.read()
			damaged := len(s.whole) < len(s.images)
			first := s.adopt()
			if got := len(first.Lacks()) > 0; got != damaged {
				t.Errorf("%d of %d images are whole, and what is lacking is said to be %v; notes %+v", len(s.whole), len(s.images), first.Lacks(), first.Notes)
			}
			s.check()

			s.image("team/new", "v1", false)
			clear(s.whole)
			s.read()
			s.adopt()
			s.check()
		})
	}
}

// adopt adopts the storage after a dry run.
func (s *distribution) adopt() adopt.Report {
	s.t.Helper()
	var reps [2]adopt.Report
	for i := range reps {
		var err error
		reps[i], err = dataroot.AdoptInPlace(s.t.Context(), configure(s.t, setup{root: s.root}), i == 0, adopt.Options{Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			s.t.Fatal(err)
		}
		reps[i].Took = 0
	}
	if diff := cmp.Diff(reps[0], reps[1]); diff != "" {
		s.t.Errorf("the dry run told something else (-dry +run):\n%s", diff)
	}
	return reps[1]
}

// check compares the contents of a server with what a naive reader found.
func (s *distribution) check() {
	s.t.Helper()
	srv := start(s.t, setup{root: s.root})
	for name, img := range s.images {
		pulled := true
		m := srv.do("GET", "/v2/"+img.repo+"/manifests/"+img.tag, "")
		pulled = m.status == http.StatusOK
		if pulled && m.body != img.manifest {
			s.t.Errorf("%s: the manifest has other bytes", name)
		}
		for _, d := range img.blobs {
			b := srv.do("GET", "/v2/"+img.repo+"/blobs/"+d, "")
			pulled = pulled && b.status == http.StatusOK
			if b.status == http.StatusOK && digestOf(b.body) != d {
				s.t.Errorf("%s: blob %s has wrong bytes", name, d)
			}
			if b.status != http.StatusOK && b.status != http.StatusNotFound {
				s.t.Errorf("%s: blob %s: status %d", name, d, b.status)
			}
		}
		if _, whole := s.whole[name]; pulled != whole {
			s.t.Errorf("%s: pulled %v, whole %v", name, pulled, whole)
		}
	}
	if err := srv.stop(); err != nil {
		s.t.Errorf("stop: %v", err)
	}
}

// parts writes a storage with one image. It returns the storage and the paths of all its
// directories and files, relative to its root.
func parts(t *testing.T) (s *distribution, paths []string) {
	t.Helper()
	s = &distribution{t: t, root: t.TempDir(), rnd: rand.New(rand.NewPCG(1, 1)), images: map[string]storedImage{}}
	s.image("team/app", "v1", false)
	err := filepath.WalkDir(filepath.Join(s.root, "docker"), func(path string, _ fs.DirEntry, err error) error {
		rel, relErr := filepath.Rel(s.root, path)
		paths = append(paths, rel)
		if err == nil {
			err = relErr
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return s, paths
}

// refused adopts the storage and wants an error that contains says, and no catalogue left behind.
func (s *distribution) refused(what, says string) {
	s.t.Helper()
	_, err := dataroot.AdoptInPlace(s.t.Context(), configure(s.t, setup{root: s.root}), false, adopt.Options{Logger: slog.New(slog.DiscardHandler)})
	if err == nil || !strings.Contains(err.Error(), says) {
		s.t.Errorf("%s: got %v", what, err)
	}
	if _, err := os.Stat(filepath.Join(s.root, registry.CatalogFile)); err == nil {
		s.t.Errorf("%s: a catalogue was made", what)
	}
}

// TestAdoptUnreadable wants an import to name and refuse anything in a storage that its user may
// not read, and to adopt nothing.
func TestAdoptUnreadable(t *testing.T) {
	_, paths := parts(t)
	for _, part := range paths {
		s, _ := parts(t)
		path := filepath.Join(s.root, part)
		st, err := os.Stat(path)
		for _, dir := range []string{s.root, filepath.Dir(s.root)} {
			if err == nil {
				err = os.Chmod(dir, 0o755)
			}
		}
		if err == nil {
			err = os.Chmod(path, 0)
		}
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
			if os.Geteuid() == 0 {
				if _, err := unix.SetfsuidRetUid(65534); err != nil {
					t.Error(err)
				}
			}
			s.refused(part, path)
		}()
		<-done
		if err := os.Chmod(path, st.Mode()); err != nil {
			t.Error(err)
		}
	}
}

// TestAdoptLinks wants an import to name and refuse a symbolic link anywhere in a storage, and to
// adopt nothing.
func TestAdoptLinks(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	_, paths := parts(t)
	for _, part := range paths {
		for _, to := range []string{"outside", "inside", "loop"} {
			s, _ := parts(t)
			path := filepath.Join(s.root, part)
			target := map[string]string{"outside": filepath.Join(t.TempDir(), "x"), "inside": filepath.Join(s.root, "aside"), "loop": path + ".moved"}[to]
			if err := os.Rename(path, target); err != nil {
				t.Fatal(err)
			}
			if to == "loop" {
				target = path
			}
			if err := os.Symlink(target, path); err != nil {
				t.Fatal(err)
			}
			s.refused(part+", "+to, path+" is a symbolic link")
		}
	}
}

// TestAdoptLostLinks checks that a storage of blobs without repositories does not count as empty.
func TestAdoptLostLinks(t *testing.T) {
	t.Parallel()
	s := &distribution{t: t, root: t.TempDir(), rnd: rand.New(rand.NewPCG(1, 1)), images: map[string]storedImage{}}
	s.image("team/app", "v1", false)
	if err := os.RemoveAll(filepath.Join(s.root, "docker/registry/v2/repositories")); err != nil {
		t.Fatal(err)
	}
	_, err := dataroot.AdoptInPlace(t.Context(), configure(t, setup{root: s.root}), false, adopt.Options{Logger: slog.New(slog.DiscardHandler)})
	if err == nil || !strings.Contains(err.Error(), "no repository") {
		t.Errorf("got %v", err)
	}
}
