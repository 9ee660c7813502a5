package prefetch_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"go.uber.org/goleak"

	"example.org/slipway/internal/policy"
	"example.org/slipway/oci"
	"example.org/slipway/registry/prefetch"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for something that must happen.
const patience = 20 * time.Second

// shelf is a cache whose content the test sets, and whose fetches block where a test wants them to.
type shelf struct {
	mu      sync.Mutex
	held    map[string]bool
	pinned  map[string]time.Time
	warmed  []string
	ended   []string // fetches that were cancelled
	block   map[string]chan struct{}
	failing map[string]bool
	// pinnedIsHeld makes pinned objects count as held, as in a simulation.
	pinnedIsHeld bool
}

func newShelf() *shelf {
	return &shelf{held: map[string]bool{}, pinned: map[string]time.Time{}, block: map[string]chan struct{}{}, failing: map[string]bool{}}
}

func (s *shelf) Warm(ctx context.Context, key string, _ int64) error {
	s.mu.Lock()
	s.warmed = append(s.warmed, key)
	wait, fail := s.block[key], s.failing[key]
	s.mu.Unlock()
	if wait != nil {
		select {
		case <-wait:
		case <-ctx.Done():
			s.mu.Lock()
			defer s.mu.Unlock()
			s.ended = append(s.ended, key)
			return ctx.Err()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if fail {
		return errors.New("the store is away")
	}
	s.held[key] = true
	return nil
}

func (s *shelf) Pin(key string, until time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pinned[key] = until
	return s.held[key]
}

func (s *shelf) Unpin(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, was := s.pinned[key]
	delete(s.pinned, key)
	return was
}

func (s *shelf) Holds(key string) policy.Level {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, pinned := s.pinned[key]
	if s.held[key] || s.pinnedIsHeld && pinned {
		return policy.RAM
	}
	return policy.Nowhere
}

func (s *shelf) fetched() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.warmed)
}

// clock is set by tests.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func newClock() *clock { return &clock{t: time.Unix(1_500_000_000, 0)} }

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

// bed is a prefetcher in front of a shelf.
type bed struct {
	*prefetch.Prefetcher
	t     *testing.T
	shelf *shelf
	clock *clock
	stop  func()
}

// key names objects by the last hexadecimal digits of the digest, which tests read.
func key(d oci.Digest) string { return "blob-" + d.Encoded()[:12] }

// newBed makes a prefetcher. run sets whether it fetches.
func newBed(t *testing.T, o prefetch.Options, run bool) *bed {
	t.Helper()
	b := &bed{t: t, shelf: newShelf(), clock: newClock()}
	o.Key, o.Clock = key, b.clock.now
	p, err := prefetch.New(b.shelf, o)
	if err != nil {
		t.Fatal(err)
	}
	b.Prefetcher = p
	if run {
		b.start()
	}
	return b
}

func (b *bed) start() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }()
	var once sync.Once
	b.stop = func() {
		once.Do(func() {
			cancel()
			select {
			case <-done:
			case <-time.After(patience):
				b.t.Error("Run did not end")
			}
		})
	}
	b.t.Cleanup(b.stop)
}

// by returns the context of a client's request.
func by(client string) context.Context {
	return oci.WithActor(context.Background(), &oci.Actor{Name: client, Addr: "192.0.2.1:1234"})
}

func blob(name string) oci.Digest { return digest.FromString(name) }

// layer returns the descriptor of a layer.
func layer(name string, size int64) oci.Descriptor {
	return oci.Descriptor{MediaType: "application/vnd.oci.image.layer.v1.tar", Digest: blob(name), Size: size}
}

// image returns a manifest of layers.
func image(layers ...oci.Descriptor) (oci.Digest, []byte) {
	b, err := json.Marshal(ocispec.Manifest{MediaType: oci.MediaTypeOCIManifest, Config: layer("config", 2), Layers: layers})
	if err != nil {
		panic(err)
	}
	return digest.FromBytes(b), b
}

// index returns an index of manifests for linux on some architectures.
func index(manifests map[string]oci.Digest) (oci.Digest, []byte) {
	var ix ocispec.Index
	ix.MediaType = oci.MediaTypeOCIIndex
	for _, arch := range []string{"amd64", "arm64", "unknown"} {
		if d, ok := manifests[arch]; ok {
			ix.Manifests = append(ix.Manifests, oci.Descriptor{MediaType: oci.MediaTypeOCIManifest, Digest: d, Size: 1,
				Platform: &ocispec.Platform{OS: map[bool]string{true: "unknown", false: "linux"}[arch == "unknown"], Architecture: arch}})
		}
	}
	b, err := json.Marshal(ix)
	if err != nil {
		panic(err)
	}
	return digest.FromBytes(b), b
}

func poll(t *testing.T, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !f(); <-time.After(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: it did not come to that", what)
		}
	}
}

func keys(names ...string) []string {
	var out []string
	for _, n := range names {
		out = append(out, key(blob(n)))
	}
	return out
}

// wantFetched waits until exactly these layers were fetched, in this order.
func (b *bed) wantFetched(names ...string) {
	b.t.Helper()
	want := keys(names...)
	poll(b.t, fmt.Sprintf("%v are fetched", names), func() bool { return slices.Equal(b.shelf.fetched(), want) })
}
