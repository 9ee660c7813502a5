package workload

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/wire"
)

// Trees keeps the pushed images with their files, so that a test can ask a registry for
// each of these files. Its methods may be called concurrently.
type Trees struct {
	// Dense makes contents that hardly compress, and so layers that are large enough to be dropped.
	Dense bool

	mu     sync.Mutex
	images []*Tree
}

// Tree is an image and the files that it must hold.
type Tree struct {
	Repo, Tag string
	// files holds the digests of the regular files, by path.
	files map[string]string
	// acked says that the push was acknowledged.
	acked bool
}

// Name returns "repository:tag".
func (i *Tree) Name() string { return i.Repo + ":" + i.Tag }

// PushTrees makes workers push images of files until ctx ends or a request fails. The seed
// determines the files; half of them come from a pool that all seeds share. PushTrees returns when
// all workers have ended, with the first error of each.
func (l *Trees) PushTrees(ctx context.Context, client *wire.Client, prefix string, workers int, seed uint64) error {
	var wg sync.WaitGroup
	errs := make([]error, workers)
	for w := range workers {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(seed, uint64(w)))
			for n := 0; ctx.Err() == nil && errs[w] == nil; n++ {
				errs[w] = l.push(ctx, client, fmt.Sprintf("%s/w%d", prefix, w), fmt.Sprintf("t%d", n), random)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (l *Trees) push(ctx context.Context, client *wire.Client, repo, tag string, random *rand.Rand) error {
	image := &Tree{Repo: repo, Tag: tag, files: map[string]string{}}
	var layers []imagetest.Layer
	for range 1 + random.IntN(3) {
		layers = append(layers, image.layer(random, l.Dense))
	}
	forms := 4
	if l.Dense {
		forms = 2 // the other two are never dropped
	}
	b := imagetest.Compose("amd64", nil, layers, imagetest.Compression(random.IntN(forms)))
	l.mu.Lock()
	l.images = append(l.images, image)
	l.mu.Unlock()
	for _, x := range b.Blobs {
		chunk := 0
		if random.IntN(3) == 0 {
			chunk = 1 + random.IntN(len(x.Data))
		}
		if _, err := client.PushBlobChunked(ctx, repo, x.Data, chunk); err != nil {
			return err
		}
	}
	if _, err := client.PutManifest(ctx, repo, tag, b.Top.MediaType, b.Top.Data); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	image.acked = true
	return nil
}

// layer makes a layer and applies it to the files of the image.
func (i *Tree) layer(random *rand.Rand, dense bool) imagetest.Layer {
	a := new(imagetest.Archive)
	added := map[string]bool{} // a whiteout affects only the layers below
	files := 5 + random.IntN(40)
	switch {
	case dense:
		files += 10 // the catalogue keeps small blobs, and no recipes of them
	case random.IntN(6) == 0: // a layer whose conversion takes a while
		files = 400
	}
	for n := range files {
		name := fmt.Sprintf("d%d/f%d", random.IntN(8), random.IntN(60))
		if n%7 == 6 && len(i.files) > 0 {
			gone := slices.Sorted(maps.Keys(i.files))[random.IntN(len(i.files))]
			if !added[gone] {
				a.File(path.Dir(gone)+"/.wh."+path.Base(gone), "")
				delete(i.files, gone)
			}
			continue
		}
		data := content(random, dense)
		a.File(name, data)
		added[name] = true
		i.files[name] = wire.Digest([]byte(data))
	}
	return a.Layer()
}

// content returns a text of up to 20 KB, or now and then a text that is stored in chunks.
// Every other text is one of a few that all workers share.
func content(random *rand.Rand, dense bool) string {
	id := random.Uint64()
	if random.IntN(2) == 0 {
		id %= 200
	}
	size := 1 + int(id%20_000)
	if dense {
		return digits(id, size)
	}
	if id%150 == 0 {
		size = 5 << 20
	}
	line := fmt.Sprintf("the content number %d\n", id)
	return strings.Repeat(line, 1+size/len(line))
}

// digits returns hexadecimal digits, which compress to half of their size.
func digits(id uint64, size int) string {
	random, text := rand.New(rand.NewPCG(id, 0)), make([]byte, 0, size+16)
	for len(text) < size {
		text = fmt.Appendf(text, "%016x", random.Uint64())
	}
	return string(text[:size])
}

// Acknowledged returns the images that must be in the registry.
func (l *Trees) Acknowledged() []*Tree {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []*Tree
	for _, i := range l.images {
		if i.acked {
			out = append(out, i)
		}
	}
	return out
}

// Settle finds out which interrupted pushes have happened after all. Their images must stay from
// then on; the others are forgotten. No PushTrees may be running.
func (l *Trees) Settle(ctx context.Context, client *wire.Client) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var kept []*Tree
	for _, i := range l.images {
		if !i.acked {
			_, err := client.GetManifest(ctx, i.Repo, i.Tag)
			if wire.StatusOf(err) == http.StatusNotFound {
				continue
			}
			if err != nil {
				return err
			}
			i.acked = true
		}
		kept = append(kept, i)
	}
	l.images = kept
	return nil
}

// Delete deletes all but the newest keep images. No PushTrees may be running.
func (l *Trees) Delete(ctx context.Context, client *wire.Client, keep int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.images) > keep {
		i := l.images[0]
		m, err := client.GetManifest(ctx, i.Repo, i.Tag)
		if err == nil {
			err = client.DeleteManifest(ctx, i.Repo, m.Digest)
		}
		if err != nil {
			return err
		}
		l.images = l.images[1:]
	}
	return nil
}

// Check compares an exported image with what was pushed.
func (i *Tree) Check(dir string) error {
	got := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		h := sha256.New()
		if _, err := io.Copy(h, f); err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		got[rel] = "sha256:" + hex.EncodeToString(h.Sum(nil))
		return err
	})
	if err != nil {
		return err
	}
	if !maps.Equal(got, i.files) {
		a, errA := json.MarshalIndent(i.files, "", " ")
		b, errB := json.MarshalIndent(got, "", " ")
		return errors.Join(errA, errB, fmt.Errorf("%s holds other files: %s", i.Name(), diff(a, b)))
	}
	return nil
}

// diff returns the lines that only one of two texts has.
func diff(want, got []byte) string {
	var out strings.Builder
	in := func(text []byte) map[string]bool {
		m := map[string]bool{}
		for line := range bytes.Lines(text) {
			m[string(line)] = true
		}
		return m
	}
	w, g := in(want), in(got)
	for _, line := range slices.Sorted(maps.Keys(w)) {
		if !g[line] {
			out.WriteString("- " + line)
		}
	}
	for _, line := range slices.Sorted(maps.Keys(g)) {
		if !w[line] {
			out.WriteString("+ " + line)
		}
	}
	return out.String()
}
