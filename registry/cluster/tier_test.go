package cluster_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"sync"
	"testing"
	"time"

	"example.org/slipway/registry/cache/tier"
	"example.org/slipway/registry/cluster"
)

// TestOneReadForAll uses the caches of real replicas. A blob that clients of all replicas request
// at once is read from the store once.
func TestOneReadForAll(t *testing.T) {
	b := newBed(t)
	patient := &cluster.Options{HedgeAfter: time.Minute, AnswerTimeout: 2 * time.Minute, StallTimeout: 2 * time.Minute, MinRate: 1, Lease: 20 * time.Second}
	var caches []*tier.Store
	for i := range 3 {
		b.join(fmt.Sprint("r", i), patient, func(s *cluster.Store) cluster.Source {
			c, err := tier.New(s, &tier.Options{RAMBytes: 64 << 20, SSDBytes: 256 << 20, Dir: t.TempDir(),
				Cacheable: func(key string) bool { _, ok := digestOf(key); return ok },
				Verify: func(key string) (hash.Hash, []byte) {
					d, _ := digestOf(key)
					want, err := hex.DecodeString(d.Encoded())
					if err != nil {
						t.Error(err)
					}
					return sha256.New(), want
				}})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			caches = append(caches, c)
			return c
		})
	}
	b.meet(3)
	for _, r := range b.replicas {
		r.inner.delay = 5 * time.Millisecond
	}
	blobs := 30
	if testing.Short() {
		blobs = 10
	}
	for i := range blobs {
		key, data := b.blob(fmt.Sprint("r", i%3), 200_000+100_000*i)
		var wg sync.WaitGroup
		for _, c := range caches {
			for range 4 {
				wg.Go(func() {
					obj, err := c.Get(t.Context(), key, 0, -1)
					if err != nil {
						t.Error(err)
						return
					}
					defer obj.Close()
					if got, err := io.ReadAll(obj); err != nil || !bytes.Equal(got, data) {
						t.Errorf("blob %d: %d of %d bytes, %v", i, len(got), len(data), err)
					}
				})
			}
		}
		wg.Wait()
		reads := 0
		for _, r := range b.replicas {
			reads += r.inner.count(key)
		}
		if reads != 1 {
			t.Errorf("blob %d of %d bytes was read %d times from the store", i, len(data), reads)
		}
	}
}
