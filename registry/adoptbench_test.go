package registry_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"example.org/slipway/registry/registrytest"

	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/objstore/fsstore"
)

// cpuTime returns the CPU time that this process has used.
func cpuTime(b *testing.B) time.Duration {
	var ru syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &ru); err != nil {
		b.Fatal(err)
	}
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}

// BenchmarkAdoptBytes runs ten clients that pull images of eight small blobs for the first time: a
// manifest, and then its blobs at once. With forget, each image is forgotten again.
func BenchmarkAdoptBytes(b *testing.B) {
	const clients, blobs = 10, 8
	for _, c := range []struct {
		size   int
		forget bool
	}{{1000, false}, {10_000, false}, {40_000, false}, {1000, true}} {
		size := c.size
		b.Run(fmt.Sprintf("%d/forget=%t", size, c.forget), func(b *testing.B) {
			dir := b.TempDir()
			store, err := fsstore.New(dir, nil)
			if err != nil {
				b.Fatal(err)
			}
			cat, err := catalog.Open(b.Context(), filepath.Join(dir, registry.CatalogFile), nil)
			if err != nil {
				b.Fatal(err)
			}
			reg, err := registry.New(b.Context(), cat, store, &registry.Options{Partial: mirrored, Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				b.Fatal(err)
			}
			defer func() {
				for _, err := range []error{reg.Close(b.Context()), cat.Close(), store.Close()} {
					if err != nil {
						b.Error(err)
					}
				}
			}()
			var images [][][]byte
			var docs [][]byte
			for i := range b.N {
				var list [][]byte
				for j := range blobs {
					list = append(list, registrytest.Content(uint64(i*blobs+j+1), size))
				}
				images = append(images, list)
				docs = append(docs, rawImage(b, list))
			}
			var next atomic.Int64
			var busy sync.WaitGroup
			before := cpuTime(b)
			b.ResetTimer()
			for range clients {
				busy.Go(func() {
					for i := next.Add(1) - 1; i < int64(b.N); i = next.Add(1) - 1 {
						repo := fmt.Sprintf("up/%d", i%100)
						if _, err := reg.PutManifest(b.Context(), repo, oci.PutManifest{Bytes: docs[i], Tags: []string{"latest"}}); err != nil {
							b.Error(err)
						}
						var all sync.WaitGroup
						for _, data := range images[i] {
							all.Go(func() {
								if _, err := reg.AdoptBytes(b.Context(), repo, oci.SHA256(data), data); err != nil {
									b.Error(err)
								}
							})
						}
						all.Wait()
						if c.forget {
							if _, err := reg.Forget(b.Context(), repo, registry.ForgetOptions{}, oci.SHA256(docs[i])); err != nil {
								b.Error(err)
							}
						}
					}
				})
			}
			busy.Wait()
			b.StopTimer()
			b.ReportMetric(float64((cpuTime(b)-before).Microseconds())/1000/float64(b.N), "cpu-ms/image")
		})
	}
}

// rawImage returns the manifest of an image of blobs. The first blob is the config.
func rawImage(t testing.TB, blobs [][]byte) []byte {
	t.Helper()
	doc := registrytest.ImageOf(describe(blobs[0]))
	for _, l := range blobs[1:] {
		doc.Layers = append(doc.Layers, describe(l))
	}
	raw, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}
