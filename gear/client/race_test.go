package client_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	gearclient "example.org/slipway/gear/client"
	"example.org/slipway/oci"
)

// TestConvertAtOnce converts random images at random moments after their push, some of
// them by two clients at once or for two repositories. Each conversion must succeed, and
// equal images must give equal results.
func TestConvertAtOnce(t *testing.T) {
	b := newBed(t)
	rnd := rand.New(rand.NewPCG(1, 5))
	images := 4
	if testing.Short() {
		images = 2
	}
	for i := range images {
		layers := [][]byte{}
		for l := range 1 + rnd.IntN(3) {
			members := []member{file(fmt.Sprintf("own%d", l), noise(uint64(i*10+l), 50))}
			for f := range rnd.IntN(400) {
				members = append(members, file(fmt.Sprintf("%d/%d", l, f), noise(uint64(f%200), 1+rnd.IntN(3000))))
			}
			for f := range rnd.IntN(3) {
				members = append(members, file(fmt.Sprintf("large%d-%d", l, f), noise(uint64(1000+i*100+f), rnd.IntN(2<<20))))
			}
			layers = append(layers, layer(t, members...))
		}
		var wg sync.WaitGroup
		var mu sync.Mutex
		var got []oci.Digest
		for _, repo := range []string{"one", "two"}[:1+rnd.IntN(2)] {
			ref := fmt.Sprint("v", i)
			b.pushImage(repo, ref, "linux/amd64", layers)
			for range 1 + rnd.IntN(2) {
				after := time.Duration(rnd.IntN(4)) * 50 * time.Millisecond
				wg.Go(func() {
					time.Sleep(after)
					c, err := b.Convert(t.Context(), repo, ref, gearclient.ConvertOptions{})
					if err != nil {
						t.Errorf("image %d in %s after %v: %v", i, repo, after, err)
					}
					mu.Lock()
					defer mu.Unlock()
					got = append(got, c.Digest)
				})
			}
		}
		wg.Wait()
		for _, d := range got {
			if d != got[0] {
				t.Errorf("image %d became %s and %s", i, got[0], d)
			}
		}
	}
}
