package gearfs_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"example.org/slipway/gear"
	"example.org/slipway/node/gearfs"
	"example.org/slipway/node/poolfs"
)

// counted counts the bytes that are read from a source.
type counted struct {
	r io.Reader
	n *atomic.Int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n.Add(int64(n))
	return n, err
}

// TestOnlyOnce reads large files in every way while the rest of the image is fetched in the
// background. The reader is ahead of the fetch, beside it and behind it. It closes halfway and
// opens again, over a restart and with a source that breaks off. Each byte is fetched once, and the
// files are complete in the end.
func TestOnlyOnce(t *testing.T) {
	sizes := []int{5 << 20, 14<<20 + 1, 24 << 20}
	if testing.Short() {
		sizes = sizes[:1]
	}
	for _, size := range sizes {
		body := content(uint64(size), size)
		for _, way := range []string{"in order", "backwards", "at random", "mixed", "two readers", "not at all"} {
			for _, when := range []string{"before", "beside", "behind", "restarted", "profile"} {
				t.Run(fmt.Sprintf("%d MiB %s, background %s", size>>20, way, when), func(t *testing.T) {
					t.Parallel()
					once(t, body, way, when)
				})
			}
		}
	}
}

func once(t *testing.T, body []byte, way, when string) {
	tr := makeTree(t, body, content(77, 3000))
	src := newSource(tr)
	var came atomic.Int64
	src.hook = func(f gear.File, r io.Reader) (io.Reader, error) {
		if f.Name == tr.files[0].Name {
			r = &counted{r, &came}
		}
		time.Sleep(time.Millisecond)
		return r, nil
	}
	if when == "profile" { // a profile brings files of some sizes as a whole
		src.profile = []gear.Name{tr.files[0].Name}
	}
	n := newNode(t, gearfs.Options{Mode: gearfs.Lazy}, map[string]gearfs.Source{"a": src})
	n.add("sha256:1", tr, "a")
	var readers sync.WaitGroup
	background := func() { must(t, n.Background("sha256:1", true)) }
	switch when {
	case "before":
		background()
		time.Sleep(5 * time.Millisecond)
	case "profile":
		_, err := n.Prefetch(t.Context(), "sha256:1", nil)
		must(t, err)
	}
	offsets := readAt(len(body), way)
	for k := range offsets {
		readers.Go(func() { readPieces(t, n, tr.files[0], body, offsets[k]) })
	}
	if when == "beside" {
		background()
	}
	readers.Wait()
	if when == "restarted" {
		n.stop()
		n.start()
	}
	background()
	eventually(t, "the image is complete", func() bool { return n.Status().Images[0].Complete })
	n.check(tr, tr.files[0])
	if got := came.Load(); got != int64(len(body)) {
		t.Errorf("%d bytes came for a file of %d: %v", got, len(body), src.spans)
	}
}

// readAt returns where each reader reads its pieces, in order. No reader reads everything.
func readAt(size int, way string) [][]int64 {
	const piece = 128 << 10
	rng := rand.New(rand.NewPCG(1, uint64(size)))
	pieces := size / piece
	var in, back, random, mixed []int64
	for i := range pieces * 3 / 4 {
		in = append(in, int64(i)*piece)
		back = append(back, int64(pieces-1-i)*piece)
	}
	for range 12 {
		at := rng.IntN(pieces)
		random = append(random, int64(at)*piece)
		for j := at; j < min(at+20, pieces); j++ {
			mixed = append(mixed, int64(j)*piece)
		}
	}
	return map[string][][]int64{
		"in order": {in}, "backwards": {back}, "at random": {random}, "mixed": {mixed}, "two readers": {in, random}, "not at all": nil,
	}[way]
}

// readPieces opens a file and reads half of the pieces, and the others after opening it again.
func readPieces(t *testing.T, n *node, f gear.File, body []byte, at []int64) {
	for _, part := range [][]int64{at[:len(at)/2], at[len(at)/2:]} {
		c, err := n.Open(t.Context(), poolfs.Key{Name: f.Name})
		if err != nil {
			t.Error(err)
			return
		}
		for _, off := range part {
			b := make([]byte, min(128<<10, f.Size-off))
			if _, err := c.ReadAt(t.Context(), b, off); err != nil && !errors.Is(err, io.EOF) {
				t.Errorf("read at %d: %v", off, err)
			} else if !bytes.Equal(b, body[off:][:len(b)]) {
				t.Errorf("other bytes at %d", off)
			}
		}
		must(t, c.Close())
	}
}

// TestLargerThanDisk reads a file through a disk that cannot hold it.
func TestLargerThanDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting a small file system needs root")
	}
	dir := t.TempDir()
	must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=20m"))
	t.Cleanup(func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	body := content(5, 36<<20)
	tr := makeTree(t, body, content(6, 9<<20), content(7, 50_000))
	src := newSource(tr)
	n := &node{t: t, dir: dir, opts: gearfs.Options{Mode: gearfs.Lazy, Bound: 20 * time.Second}, src: map[string]gearfs.Source{"a": src}}
	n.start()
	t.Cleanup(n.stop)
	n.add("sha256:1", tr, "a")
	for range 2 {
		for _, f := range tr.files {
			n.check(tr, f)
		}
	}
	for _, way := range []string{"backwards", "at random"} {
		for _, at := range readAt(len(body), way) {
			readPieces(t, n, tr.files[0], body, at)
		}
	}
	n.check(tr, tr.files[2])
}
