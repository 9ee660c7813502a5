package agent_test

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/node"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/tool"
)

// counting counts the bytes of answers.
type counting struct {
	http.ResponseWriter
	n *atomic.Int64
}

func (c *counting) Write(p []byte) (int, error) {
	n, err := c.ResponseWriter.Write(p)
	c.n.Add(int64(n))
	return n, err
}

// Unwrap lets an [http.ResponseController] flush.
func (c *counting) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// TestLargeFileOnce reads a large file in several ways while the agent completes it in the
// background. It counts the bytes from the network: they must be hardly more than on a node that
// only completes the file. SLIPWAY_LARGE_MIB is the file's size in MiB, default 48.
func TestLargeFileOnce(t *testing.T) {
	tool.NeedRoot(t)
	mib := 48
	if text := os.Getenv("SLIPWAY_LARGE_MIB"); text != "" {
		var err error
		if mib, err = strconv.Atoi(text); err != nil {
			t.Fatalf("SLIPWAY_LARGE_MIB: %v", err)
		}
	}
	s := slipway.Start(t, t.TempDir(), nil)
	rng := rand.NewChaCha8([32]byte{3})
	data := make([]byte, mib<<20)
	_, _ = rng.Read(data)
	for i := range data {
		if i%1024 >= 512 { // makes the file compressible
			data[i] = 'a' + byte(i%7)
		}
	}
	sum := sha256.Sum256(data)
	name := "files/" + hex.EncodeToString(sum[:])
	layer := new(imagetest.Archive).Dir("files/").Add(tar.Header{Typeflag: tar.TypeReg, Name: name}, data).Layer()
	g := behind(t, s)
	ref := g.ref(push(t, s, "team/large:v1", imagetest.Compose(runtime.GOARCH, nil, []imagetest.Layer{layer})))
	var alone int64
	for _, way := range []string{"not at all", "in order", "at random", "mixed"} {
		var came atomic.Int64
		g.set(func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
			pass.ServeHTTP(&counting{w, &came}, r)
		})
		a := node.Start(t, "fetch: {background: true, mode: lazy}\n")
		a.Allow(20 * time.Minute)
		dir := a.Mount(ref)
		readPieces(t, filepath.Join(dir, name), data, way)
		a.Complete()
		if files, failed, wrong := check(t, dir); files != 1 || failed+wrong > 0 {
			t.Errorf("read %s: %d files, %d of them failed and %d were wrong", way, files, failed, wrong)
		}
		a.Run("umount", dir)
		a.Stop()
		n := came.Load()
		if alone == 0 {
			alone = n
		}
		t.Logf("read %s: %d bytes came for a file of %d, %.4f of what comes without a reader", way, n, len(data), float64(n)/float64(alone))
		if alone > int64(len(data))*9/10 || float64(n) > 1.02*float64(alone) {
			t.Errorf("read %s: %d bytes came, and %d without a reader", way, n, alone)
		}
	}
}

// readPieces reads about half of a file.
func readPieces(t *testing.T, path string, want []byte, way string) {
	t.Helper()
	const piece = 128 << 10
	pieces := len(want) / piece
	rng := rand.New(rand.NewPCG(1, 2))
	var at []int
	switch way {
	case "in order":
		for i := range pieces / 2 {
			at = append(at, i)
		}
	case "at random":
		at = rng.Perm(pieces)[:pieces/2]
	case "mixed":
		for len(at) < pieces/2 {
			from := rng.IntN(pieces)
			for i := from; i < min(from+20, pieces); i++ {
				at = append(at, i)
			}
		}
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	buf := make([]byte, piece)
	for _, i := range at {
		if _, err := f.ReadAt(buf, int64(i*piece)); err != nil {
			t.Fatal(fmt.Errorf("at piece %d: %w", i, err))
		}
		if string(buf) != string(want[i*piece:][:piece]) {
			t.Fatalf("read %s: wrong bytes in piece %d", way, i)
		}
	}
}
