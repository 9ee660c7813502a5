package mirrors

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/wire"
)

const (
	chaosName = "chaos.test"
	// chaosClients is the number of clients that pull each image at the same time.
	chaosClients = 3
	// chaosImages is the number of images that are pulled at the same time.
	chaosImages = 4
	// patience is how long a client that is told to wait keeps asking. The link tells everybody to
	// wait for a second at a time.
	patience = 20 * time.Second
	// longest is how long a run on a slow machine may take until enough has happened.
	longest = time.Minute
)

// TestChaos pulls images that nobody has pulled before, with several clients each, over a
// link that delays, resets, truncates and refuses. A client must get every byte as it was
// pushed. The only error that it may see is a request to wait, which the mirror passes on
// from the upstream; after any other failure the mirror can ask the upstream again. Each
// break may cause at most one more download, which continues where the last one broke
// off.
func TestChaos(t *testing.T) {
	length, seed := 8*time.Second, uint64(time.Now().UnixNano())
	if s := os.Getenv("SLIPWAY_MIRROR_CHAOS_FOR"); s != "" {
		var err error
		if length, err = time.ParseDuration(s); err != nil {
			t.Fatal(err)
		}
	}
	if s := os.Getenv("SLIPWAY_MIRROR_CHAOS_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%s of trouble, SLIPWAY_MIRROR_CHAOS_SEED=%d", length, seed)
	up := distribution(t)
	l := newLink(t, up.addr, seed)
	mirror := slipway.Start(t, t.TempDir(), &slipway.Options{Config: fmt.Sprintf(`version: 0.1
log: {level: warn, accesslog: {disabled: true}}
proxy:
  max_bytes: 256MiB
  upstreams:
    - {name: %s, url: "http://%s", ttl: 1h, negative_ttl: 1ms, stall_timeout: 5s}
`, chaosName, l.addr)})

	c := &chaos{t: t, up: up, mirror: mirror, link: l}
	l.setCalm(false)
	c.run(seed, time.Now().Add(length))
	l.setCalm(true)

	text, faults := l.summary()
	t.Logf("%d images, %d pulls, %d waits; %s", c.images, c.pulls, c.waits, text)
	for i, f := range faults {
		if i == 10 {
			t.Errorf("and %d more", len(faults)-i)
			break
		}
		t.Error(f)
	}
	if c.images == 0 || !c.enough() {
		t.Errorf("too little happened: %d images, %s", c.images, text)
	}
	mirror.Alive()
	for deadline := time.Now().Add(time.Minute); ; <-time.After(20 * time.Millisecond) {
		left, err := filepath.Glob(filepath.Join(mirror.Root, "slipway", "mirror", "*.part"))
		if err != nil {
			t.Fatal(err)
		}
		if len(left) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Errorf("unfinished files are left: %v", left)
			break
		}
	}
	mirror.Stop()
	mirror.Run("fsck")
}

// chaos is a run of the clients.
type chaos struct {
	t      *testing.T
	up     *upstream
	mirror *slipway.Server
	link   *link

	mu                   sync.Mutex
	images, pulls, waits int
}

// run pulls one image after the other, several at the same time.
func (c *chaos) run(seed uint64, end time.Time) {
	var wg sync.WaitGroup
	for lane := range chaosImages {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, uint64(lane)+2))
			for i := 0; !c.t.Failed() && (time.Now().Before(end) || !c.enough() && time.Now().Before(end.Add(longest))); i++ {
				c.image(rnd, fmt.Sprintf("lane%d/image%d", lane, i))
			}
		})
	}
	wg.Wait()
}

// enough reports whether the faults that the test needs have happened.
func (c *chaos) enough() bool { return c.link.happened(reset) > 0 && c.link.happened(truncate) > 0 }

// image pushes an image upstream and pulls it through the mirror.
func (c *chaos) image(rnd *rand.Rand, repo string) {
	im := randomImage(rnd)
	if err := c.push(repo, im); err != nil {
		c.t.Errorf("push %s: %v", repo, err)
		return
	}
	var wg sync.WaitGroup
	for range chaosClients {
		wg.Go(func() { c.pull(repo, im) })
	}
	wg.Wait()
	c.mu.Lock()
	c.images++
	c.mu.Unlock()
}

// push is like upstream.push, for concurrent use.
func (c *chaos) push(repo string, im *imagetest.Bundle) error {
	return im.Push(c.t.Context(), c.up.client, repo, "v1")
}

// pull pulls an image as a patient client does: after an answer that tells it to wait, it
// tries again.
func (c *chaos) pull(repo string, im *imagetest.Bundle) {
	name := chaosName + "/" + repo
	m, err := retry(c, func(ctx context.Context) (*wire.Manifest, error) { return c.mirror.Client.GetManifest(ctx, name, "v1") })
	if err != nil {
		c.t.Errorf("manifest of %s: %v", name, err)
		return
	}
	if m.Digest != im.Top.Digest {
		c.t.Errorf("manifest of %s is %s, want %s", name, m.Digest, im.Top.Digest)
	}
	for _, b := range im.Blobs {
		if _, err := retry(c, func(ctx context.Context) (struct{}, error) {
			return struct{}{}, c.mirror.Client.CheckBlob(ctx, name, b.Digest, b.Size)
		}); err != nil {
			c.t.Errorf("blob of %d bytes of %s: %v", b.Size, name, err)
			return
		}
	}
	c.mu.Lock()
	c.pulls++
	c.mu.Unlock()
}

// retry repeats a request while the answer says to wait.
func retry[T any](c *chaos, ask func(ctx context.Context) (T, error)) (T, error) {
	for end := time.Now().Add(patience); ; {
		v, err := ask(c.t.Context())
		var status *wire.StatusError
		if !errors.As(err, &status) || status.Status != http.StatusTooManyRequests || time.Now().After(end) {
			return v, err
		}
		c.mu.Lock()
		c.waits++
		c.mu.Unlock()
		<-time.After(200 * time.Millisecond)
	}
}

// randomImage returns an image that never existed before: layers of up to 2 MiB, few of them large.
func randomImage(rnd *rand.Rand) *imagetest.Bundle {
	var layers []imagetest.Layer
	var seed [32]byte
	for i := range seed {
		seed[i] = byte(rnd.Uint32())
	}
	bytes := rand.NewChaCha8(seed)
	for range 1 + rnd.IntN(3) {
		size := 1 << (8 + rnd.IntN(13))
		data := make([]byte, size+rnd.IntN(size))
		_, _ = bytes.Read(data) // never fails
		layers = append(layers, imagetest.NewLayer(imagetest.File{Name: "data", Data: data}))
	}
	return &imagetest.NewImage("amd64", layers...).Bundle
}
