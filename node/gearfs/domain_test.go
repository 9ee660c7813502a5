package gearfs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/node/gearfs"
	"example.org/slipway/node/poolfs"
)

// addTo adds an image of a domain.
func (n *node) addTo(domain, chain string, x *gear.Index, registry string) error {
	return n.AddImage(gearfs.ImageSpec{Chain: chain, Domain: domain, Sources: []gearfs.SourceRef{{Registry: registry, Repo: "repo"}}}, x)
}

// in returns the key that the pool asks for when a container of a domain opens a file.
func in(t *testing.T, domain string, f gear.File) poolfs.Key {
	t.Helper()
	view, err := strconv.ParseUint(gearfs.DomainID(domain), 16, 64)
	must(t, err)
	return poolfs.Key{View: view, Name: f.Name}
}

// readIn opens a file as the pool does for a domain, and reads all of it.
func readIn(ctx context.Context, n *node, k poolfs.Key, size int64) ([]byte, error) {
	c, err := n.Open(ctx, k)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	b := make([]byte, size)
	for off := 0; off < len(b); {
		m, err := c.ReadAt(ctx, b[off:min(off+128<<10, len(b))], int64(off))
		if off += m; err != nil && !(errors.Is(err, io.EOF) && off == len(b)) {
			return nil, err
		}
	}
	return b, nil
}

// path returns where a container of an image finds a file before it asks the pool.
func (n *node) path(chain string, f gear.File) string {
	n.t.Helper()
	data, err := n.Data(chain, "/pool")
	must(n.t, err)
	return filepath.Join(data[0], fmt.Sprintf("%x/%x", f.Name[:1], f.Name[1:]))
}

// TestForeignFile uses an image of one domain that names a file which another domain has fetched,
// fully or in part, or is fetching. The image gets the file only from its own registry. It does not
// get the file if that registry lacks it or sends something else, nor after a restart. If that
// registry has the file, both domains share one copy.
func TestForeignFile(t *testing.T) {
	sizes := map[string]int{"small": 5000, "large": 5<<20 + 3, "in ranges": 20<<20 + 5}
	if testing.Short() {
		delete(sizes, "in ranges")
	}
	for size, bytesOf := range sizes {
		for _, victim := range []string{"not here", "cached", "in part", "on its way"} {
			for _, registry := range []string{"lacks it", "sends other bytes", "has half of it", "has it"} {
				t.Run(fmt.Sprintf("%s %s, registry %s", size, victim, registry), func(t *testing.T) {
					t.Parallel()
					testForeignFile(t, content(9, bytesOf), victim, registry)
				})
			}
		}
	}
}

func testForeignFile(t *testing.T, secret []byte, victim, registry string) {
	tr := makeTree(t, secret, content(2, 100))
	f := tr.files[0]
	good, evil := newSource(tr), newSource(tr)
	held := make(chan struct{})
	var whole atomic.Bool
	switch victim {
	case "in part":
		good.hook = func(_ gear.File, r io.Reader) (io.Reader, error) {
			if whole.Load() {
				return r, nil
			}
			return io.MultiReader(io.LimitReader(r, 3<<20), failing{}), nil
		}
	case "on its way":
		good.hook = func(_ gear.File, r io.Reader) (io.Reader, error) {
			<-held
			return r, nil
		}
	}
	switch registry {
	case "lacks it":
		delete(evil.body, f.Name)
	case "sends other bytes":
		evil.body[f.Name] = content(10, len(secret))
	case "has half of it":
		evil.body[f.Name] = secret[:len(secret)/2]
	}
	bound := 150 * time.Millisecond
	if registry == "has it" {
		bound = 20 * time.Second
	}
	n := newNode(t, gearfs.Options{Bound: bound}, map[string]gearfs.Source{"good": good, "evil": evil})
	must(t, n.addTo("victim", "sha256:v", tr.index, "good"), n.addTo("thief", "sha256:t", tr.index, "evil"))
	done := make(chan struct{})
	if victim != "not here" {
		go func() {
			defer close(done)
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			_, _ = readIn(ctx, n, in(t, "victim", f), f.Size)
		}()
	} else {
		close(done)
	}
	if victim != "on its way" {
		<-done
	}
	steal := func(when string) {
		t.Helper()
		b, err := readIn(t.Context(), n, in(t, "thief", f), f.Size)
		has := registry == "has it"
		if has != (err == nil) || has != bytes.Equal(b, secret) {
			t.Errorf("%s: %d bytes, error %v", when, len(b), err)
		}
		if _, err := os.Lstat(n.path("sha256:t", f)); !has && !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: the file lies where the kernel finds it: %v", when, err)
		}
	}
	steal("at once")
	close(held)
	<-done
	whole.Store(true)
	steal("later")
	must(t, n.Close(), n.cache.Close())
	n.start()
	steal("after a restart")
	eventually(t, "the victim reads its file", func() bool {
		b, err := readIn(t.Context(), n, in(t, "victim", f), f.Size)
		return err == nil && bytes.Equal(b, secret)
	})
	steal("at last")
	if registry != "has it" {
		return
	}
	eventually(t, "both share one file", func() bool {
		a, err1 := os.Stat(n.path("sha256:v", f))
		b, err2 := os.Stat(n.path("sha256:t", f))
		return err1 == nil && err2 == nil && os.SameFile(a, b)
	})
}

// failing is a connection that breaks.
type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("connection reset") }

// TestForeignLies uses an image of one domain that makes a false statement about a file of another
// domain, before and after the other domain has the file. Neither image is refused for it. The
// lying image gets nothing, and the other's file is unchanged.
func TestForeignLies(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	for i, body := range [][]byte{content(1, 1000), content(2, 5<<20)} {
		for _, first := range []bool{false, true} {
			tr := makeTree(t, body)
			honest := tr.files[0]
			lie := honest
			lie.Size += 7
			lie.Chunks = slices.Clone(honest.Chunks)
			if len(lie.Chunks) > 0 {
				lie.Chunks = append(lie.Chunks, gear.Name{1})
				lie.Chunks[0], lie.Chunks[1] = lie.Chunks[1], lie.Chunks[0]
			}
			b := gear.NewBuilder(nil)
			must(t, b.Add(entry("x", lie.Size), lie))
			x, err := b.Index()
			must(t, err)
			n := newNode(t, gearfs.Options{Bound: 100 * time.Millisecond}, map[string]gearfs.Source{"good": newSource(tr), "evil": newSource(tr)})
			if first {
				must(t, n.addTo("thief", "sha256:t", x, "evil"))
				_, _ = readIn(t.Context(), n, in(t, "thief", lie), lie.Size)
			}
			must(t, n.addTo("victim", "sha256:v", tr.index, "good"))
			if !first {
				must(t, n.addTo("thief", "sha256:t", x, "evil"))
			}
			for range 2 {
				if b, err := readIn(t.Context(), n, in(t, "thief", lie), lie.Size); err == nil {
					t.Errorf("file %d: the liar reads %d bytes", i, len(b))
				}
				got, err := readIn(t.Context(), n, in(t, "victim", honest), honest.Size)
				must(t, err)
				if !bytes.Equal(got, body) || !n.HasImage("sha256:v") {
					t.Errorf("file %d: the victim reads something else", i)
				}
			}
		}
	}
}

// TestForeignSource checks that a file is never fetched for one domain from the sources of another,
// and that images of one domain share theirs.
func TestForeignSource(t *testing.T) {
	tr := makeTree(t, manyFiles(1, 20)...)
	full, empty := newSource(tr), newSource()
	n := newNode(t, gearfs.Options{Bound: 100 * time.Millisecond}, map[string]gearfs.Source{"full": full, "empty": empty})
	must(t, n.addTo("a", "sha256:a", tr.index, "full"), n.addTo("b", "sha256:b", tr.index, "empty"))
	for _, f := range tr.files {
		if _, err := readIn(t.Context(), n, in(t, "b", f), f.Size); err == nil {
			t.Fatal("read from a source of another domain")
		}
	}
	if full.requests.Load() != 0 {
		t.Error("a source of another domain was asked")
	}
	must(t, n.addTo("a", "sha256:a2", tr.index, "empty"))
	for _, f := range tr.files {
		b, err := readIn(t.Context(), n, in(t, "a", f), f.Size)
		must(t, err)
		if !bytes.Equal(b, tr.body[f.Name]) {
			t.Fatal("other bytes")
		}
		if _, err := os.Lstat(n.path("sha256:a2", f)); err != nil {
			t.Error(err)
		}
	}
}

// TestForeignOpens checks that the profile of a domain's container contains no opens of another
// domain's.
func TestForeignOpens(t *testing.T) {
	tr := makeTree(t, manyFiles(1, 5)...)
	good, evil := newSource(tr), newSource(tr)
	n := newNode(t, gearfs.Options{}, map[string]gearfs.Source{"good": good, "evil": evil})
	must(t, n.addTo("victim", "sha256:v", tr.index, "good"), n.addTo("thief", "sha256:t", tr.index, "evil"))
	must(t, n.ContainerStarted("v", "sha256:v", ""), n.ContainerStarted("t", "sha256:t", ""))
	f := tr.files[3]
	_, err := readIn(t.Context(), n, in(t, "victim", f), f.Size)
	must(t, err)
	n.ContainerStopped("v")
	n.ContainerStopped("t")
	eventually(t, "the opens are reported", func() bool { return len(good.report()) == 1 })
	if got := evil.report(); len(got) != 0 {
		t.Errorf("the other registry is told of %d opens", len(got))
	}
}

// TestForgottenViews checks that the views of forgotten images are still reported, even
// after a restart. The pool holds files of these images, and learns by their views which
// files to release.
func TestForgottenViews(t *testing.T) {
	t.Parallel()
	tr := makeTree(t, content(1, 1000))
	n := newNode(t, gearfs.Options{}, map[string]gearfs.Source{"a": newSource(tr)})
	must(t, n.addTo("one", "sha256:1", tr.index, "a"), n.addTo("two", "sha256:2", tr.index, "a"))
	must(t, n.RemoveImage("sha256:1"), n.RemoveImage("sha256:2"))
	for _, when := range []string{"at once", "after a restart"} {
		for _, domain := range []string{"one", "two"} {
			if view := in(t, domain, tr.files[0]).View; !slices.Contains(n.Views(), view) {
				t.Errorf("%s: view %d of domain %s is not among %d", when, view, domain, n.Views())
			}
		}
		n.stop()
		n.start()
	}
}
