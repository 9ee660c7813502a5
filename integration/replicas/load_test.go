package replicas

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"
)

// pause waits a random time around d. It returns false if ctx has ended.
func (c *client) pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(time.Duration((0.5 + c.rng.Float64()) * float64(d))):
		return true
	}
}

// ownTags are the tags that only their writer moves.
var ownTags = []string{"latest", "stable"}

// writer pushes images to its own repository and to the shared one, moves and deletes tags, and
// deletes images.
type writer struct {
	*client
	repo   string
	images []*image
	// tagged maps each tag of this writer to the digests that it may have as far as the
	// writer knows: the digest of the last acknowledged push, and the digests of all
	// pushes sent after it.
	n int
}

func ownRepo(writer int) string { return fmt.Sprintf("own/w%d", writer) }

func (w *writer) run(ctx context.Context, pace time.Duration) {
	for w.pause(ctx, pace) {
		w.n++
		switch k := w.rng.IntN(20); {
		case k < 10:
			w.push(ctx)
		case k < 15:
			w.pushImage(ctx, sharedRepo, fmt.Sprintf("t%d", w.rng.IntN(4)), w.n)
		case k < 16:
			w.deleteTag(ctx, sharedRepo, fmt.Sprintf("t%d", w.rng.IntN(4)))
		case k < 17:
			w.deleteTag(ctx, w.repo, "stable")
		default:
			w.deleteOld(ctx)
		}
	}
}

// push pushes to an own tag.
func (w *writer) push(ctx context.Context) {
	tag := ownTags[w.rng.IntN(len(ownTags))]
	if img := w.pushImage(ctx, w.repo, tag, w.n); img != nil && img.attempts == 1 {
		w.images = append(w.images, img)
	}
}

// deleteOld deletes an image whose tags have certainly moved. It only deletes images whose manifest
// was sent once. If a manifest was sent again, that request might still be under way and bring the
// image back.
func (w *writer) deleteOld(ctx context.Context) {
	const keep = 6
	for i, img := range w.images[:max(len(w.images)-keep, 0)] {
		if w.current(img) {
			continue
		}
		w.images = append(w.images[:i:i], w.images[i+1:]...)
		w.deleteImage(ctx, img)
		return
	}
}

// current reports whether a tag may point at an image.
func (w *writer) current(img *image) bool {
	for _, tag := range ownTags {
		cell := tagCell(w.repo, tag)
		for _, digest := range w.rec.Possible(cell) {
			if digest == img.digest {
				return true
			}
		}
	}
	return false
}

// read pulls images.
func (c *client) read(ctx context.Context, pace time.Duration) {
	for c.pause(ctx, pace) {
		if c.rng.IntN(3) > 0 {
			c.pullTag(ctx)
		} else if img := c.some(c.rng); img != nil {
			c.pullDigest(ctx, img)
		}
	}
}

func (c *client) pullTag(ctx context.Context) {
	at := c.tags[c.rng.IntN(len(c.tags))]
	m, _ := c.readManifest(ctx, c.rng.IntN(len(c.wires)), at[0], at[1], tagCell(at[0], at[1]))
	if m != nil && c.rng.IntN(4) == 0 {
		c.readBlobs(ctx, -1, at[0], m.Digest, blobsOf(m))
	}
}

func (c *client) pullDigest(ctx context.Context, img *image) {
	m, _ := c.readManifest(ctx, c.rng.IntN(len(c.wires)), img.repo, img.digest, manifestCell(img.repo, img.digest))
	if m != nil || !img.deleted.Load() {
		c.readBlobs(ctx, -1, img.repo, img.digest, shuffled(c.rng, img.blobs)[:1+c.rng.IntN(len(img.blobs))])
	}
}

func shuffled[T any](rng *rand.Rand, list []T) []T {
	out := append([]T(nil), list...)
	rng.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}
