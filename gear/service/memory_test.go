package service_test

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"example.org/slipway/gear/filestore"
	gearregistry "example.org/slipway/gear/service"
	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/objstore/fsstore"
)

// made is a layer that is generated while it is read. It has files of 1 MiB and a large
// one, all of them zeros or all incompressible.
type made struct {
	seed  byte
	zeros bool
}

const madeFiles, madeLarge = 60, 80 << 20

func (m made) writeTo(out io.Writer) error {
	w := tar.NewWriter(out)
	var src io.Reader = rand.NewChaCha8([32]byte{m.seed})
	if m.zeros {
		src = zeros{}
	}
	for i := range madeFiles + 1 {
		size := int64(1 << 20)
		if i == madeFiles {
			size = madeLarge
		}
		if err := w.WriteHeader(&tar.Header{Name: fmt.Sprint(m.seed, "/", i), Mode: 0o644, Size: size}); err != nil {
			return err
		}
		if _, err := io.CopyN(w, src, size); err != nil {
			return err
		}
	}
	return w.Close()
}

func (m made) open() io.ReadCloser {
	r, w := io.Pipe()
	go func() { w.CloseWithError(m.writeTo(w)) }()
	return r
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

type counted int64

func (c *counted) Write(p []byte) (int, error) { *c += counted(len(p)); return len(p), nil }

// madeBlobs opens layers that are generated while they are read.
type madeBlobs struct {
	layers map[oci.Digest]made
	sizes  map[oci.Digest]int64
}

func (b madeBlobs) OpenBlob(_ context.Context, d oci.Digest, _ int64) (io.ReadCloser, int64, error) {
	return b.layers[d].open(), b.sizes[d], nil
}

// TestMemory converts four layers of 147 MB at once. The memory that the process holds
// from the system must stay below 256 MB.
func TestMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("converts 590 MB")
	}
	const bound = 256 << 20
	cat, err := catalog.Open(t.Context(), t.TempDir()+"/catalog.db", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer cat.Close()
	objs, err := fsstore.New(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer objs.Close()
	files, err := filestore.New(cat, objs, nil)
	if err != nil {
		t.Fatal(err)
	}
	blobs := madeBlobs{map[oci.Digest]made{}, map[oci.Digest]int64{}}
	var layers []oci.Digest
	for i := range 4 {
		m := made{byte(i), i%2 == 1}
		sum, size := sha256.New(), counted(0)
		if err := m.writeTo(io.MultiWriter(sum, &size)); err != nil {
			t.Fatal(err)
		}
		d := oci.Digest("sha256:" + hex.EncodeToString(sum.Sum(nil)))
		blobs.layers[d], blobs.sizes[d] = m, int64(size)
		layers = append(layers, d)
		if _, err := cat.PutBlob(t.Context(), ours, catalog.Blob{Digest: d, Size: int64(size)}, ""); err != nil {
			t.Fatal(err)
		}
	}
	debug.FreeOSMemory()
	s := gearregistry.New(cat, blobs, files, &gearregistry.Options{Workers: len(layers), TempDir: t.TempDir()})
	defer s.Close()
	if err := s.Queue(t.Context(), ours, layers); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- s.Run(ctx) }()
	defer func() { cancel(); <-ran }()
	done := make(chan error, 1)
	go func() {
		for _, d := range layers {
			if err := s.Wait(ctx, d); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	var worst runtime.MemStats
	var peak, active uint64
	for tick := time.NewTicker(20 * time.Millisecond); ; {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		if m.Sys-m.HeapReleased > peak {
			worst = m
		}
		peak, active = max(peak, m.Sys-m.HeapReleased), max(active, uint64(s.SlotsTaken()))
		select {
		case err := <-done:
			tick.Stop()
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("peak %d MB (heap in use %d, live at the next collection %d, idle %d) with %d conversions at once", peak>>20,
				worst.HeapInuse>>20, worst.NextGC>>20, (worst.HeapIdle-worst.HeapReleased)>>20, active)
			if peak > bound {
				t.Errorf("the peak is %d MB, more than %d", peak>>20, bound>>20)
			}
			if active != uint64(len(layers)) {
				t.Errorf("at most %d conversions ran at once", active)
			}
			return
		case <-tick.C:
		}
	}
}
