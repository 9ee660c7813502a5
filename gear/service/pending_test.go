package service_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"example.org/slipway/gear"
	gearregistry "example.org/slipway/gear/service"
	"example.org/slipway/oci"
)

// awaitIndex reads the index of a layer as a client does: it asks again while the answer
// says so. It fails on an answer that ends the wait.
func (b *bed) awaitIndex(repo string, d oci.Digest) *gear.Index {
	b.t.Helper()
	for end := time.Now().Add(patience); ; {
		x, err := b.index(repo, d)
		if err == nil {
			return x
		}
		var p *gear.PendingError
		if !errors.As(err, &p) || p.RetryAfter == 0 || time.Now().After(end) {
			b.t.Fatalf("%s of %s: %v", d, repo, err)
		}
	}
}

// TestGearImageWhileConverting makes Gear images of random images as soon as their
// indexes are served, which may be before their files are stored. Each Gear image is
// accepted in each repository that pushed its layers. No layer is read more often than
// without the Gear image.
func TestGearImageWhileConverting(t *testing.T) {
	seeds := uint64(8)
	if testing.Short() {
		seeds = 3
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			b := newBed(t, setup{gear: gearregistry.Options{Workers: 1 + rnd.IntN(2)}})
			repos := []string{ours, theirs}[:1+rnd.IntN(2)]
			var layers [][]byte
			for i := range 1 + rnd.IntN(3) {
				files := []file{{fmt.Sprintf("own%d", i), content(seed<<8+uint64(i), 100)}}
				for j := range rnd.IntN(200) {
					files = append(files, file{fmt.Sprintf("small%d", j), content(seed<<16+uint64(i<<8+j%150), 1+rnd.IntN(3000))})
				}
				for j := range rnd.IntN(3) { // from 4 MiB on, the index of a layer comes before its files
					files = append(files, file{fmt.Sprintf("large%d", j), content(seed<<24+uint64(i<<8+j), rnd.IntN(8<<20))})
				}
				layers = append(layers, zipped(tarOf(files...)))
			}
			image := map[string]oci.Digest{}
			var made []byte
			for _, repo := range repos {
				var digests []oci.Digest
				for _, l := range layers {
					digests = append(digests, b.pushBlob(repo, l))
				}
				b.pushManifest(repo, digests...)
				time.Sleep(time.Duration(rnd.IntN(3)) * 10 * time.Millisecond)
				var indexes []*gear.Index
				for _, d := range digests {
					indexes = append(indexes, b.awaitIndex(repo, d))
				}
				x, err := gear.Flatten(indexes...)
				b.must(err)
				made, err = gear.ImageLayer(x)
				b.must(err)
				if rnd.IntN(2) == 0 { // too large for the catalogue, so it is converted along with its upload
					made = zippedLong(made)
				}
				image[repo] = b.pushBlob(repo, made)
				b.pushManifest(repo, image[repo])
			}
			for repo, d := range image {
				b.awaitIndex(repo, d)
				b.readable(repo, d)
			}
			b.quiet()
			for _, l := range layers {
				if n := b.opens(oci.SHA256(l)); n > 3 { // once along with the upload, once for the index, once for the files
					t.Errorf("a layer was opened %d times", n)
				}
			}
		})
	}
}

// TestGearImageBeforeFiles checks that a Gear image waits while the files of a layer are
// held back. When they are stored, the image is accepted, and an image of unknown files
// is refused. If they fail to be stored, both are refused until they are.
func TestGearImageBeforeFiles(t *testing.T) {
	for _, fails := range []bool{false, true} {
		t.Run(fmt.Sprintf("fails %v", fails), func(t *testing.T) {
			b := newBed(t, setup{})
			d, x, release := arriving(b, 7)
			b.pushManifest(ours, d)
			image, err := gear.ImageLayer(x)
			b.must(err)
			good, bad := b.pushBlob(ours, image), b.pushBlob(ours, gearImage(t, []byte("is nowhere")))
			b.pushManifest(ours, good)
			b.pushManifest(ours, bad)
			b.pending(ours, good, "")
			b.pending(ours, bad, "")
			if st := b.status(); st.Failed > 0 {
				t.Errorf("%d conversions have failed, and none is over", st.Failed)
			}
			release()
			if fails {
				b.fault(func(string, string) error { return errors.New("the store is away") })
			}
			b.eventuallyRefused(ours, bad)
			if fails {
				b.fault(nil)
				b.eventually("the Gear image", func() bool {
					b.pass(gearregistry.FirstRetry)
					_, err := b.svc.Layer(t.Context(), ours, good)
					return err == nil
				})
			}
			b.awaitIndex(ours, good)
			b.readable(ours, good)
			b.eventuallyRefused(ours, bad)
		})
	}
}

func (b *bed) eventuallyRefused(repo string, d oci.Digest) {
	b.t.Helper()
	b.eventually("a refusal", func() bool {
		_, err := b.svc.Layer(context.Background(), repo, d)
		var p *gear.PendingError
		return errors.As(err, &p) && p.RetryAfter == 0
	})
}

// TestGearImageFirst has the queue reach a Gear image before the layer that holds its
// files, as after a restart.
func TestGearImageFirst(t *testing.T) {
	b := newBed(t, setup{idle: true, gear: gearregistry.Options{Workers: 1}})
	small, large := zipped(tarOf(file{"f", bytes.Repeat([]byte("a"), 100)})), zippedLong(gearImage(t, bytes.Repeat([]byte("a"), 100)))
	_, l := b.push(ours, small)
	d := b.pushBlob(ours, large) // the larger one comes first
	b.pushManifest(ours, d)
	b.quiet()
	b.run()
	b.awaitIndex(ours, d)
	b.readable(ours, d)
	b.readable(ours, l)
}
