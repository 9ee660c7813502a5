package registry

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"example.org/slipway/integration/bench/measure"
	"example.org/slipway/integration/bench/rival"
	"example.org/slipway/integration/internal/wire"
)

func caseStore(blobs int) string { return fmt.Sprintf("%d blobs in the store", blobs) }

// runGC collects the same garbage in a small store and in a large one.
func runGC(b *bench, ctx context.Context, sc *scenario) error {
	for _, sp := range b.available(sc) {
		if err := b.collectGarbage(ctx, sc, sp); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) collectGarbage(ctx context.Context, sc *scenario, sp *rival.Spec) (err error) {
	var servers []*server
	defer func() { b.stop(servers...) }()
	for _, n := range b.results.Run.Scale.StoreBlobs {
		b.Logf("%s: making a store of %d blobs", sp.Name, n)
		s, err := makeStore(ctx, sp, b.NewDir(), n)
		if s != nil {
			servers = append(servers, s)
		}
		if err != nil {
			return err
		}
	}
	for round := 1; round <= b.Run.Rounds; round++ {
		for i := range servers {
			if round%2 == 0 {
				i = len(servers) - 1 - i
			}
			sample, err := b.timeCollection(ctx, servers[i])
			if ctx.Err() != nil {
				return ctx.Err()
			}
			b.record(sc, caseStore(b.results.Run.Scale.StoreBlobs[i]), sp.Name, round, sample, err)
		}
	}
	return nil
}

// garbageSize is larger than what Slipway keeps in its catalogue, so that each blob is an object to
// delete.
const garbageSize = 32 << 10

// timeCollection pushes blobs that no manifest names, and collects them.
func (b *bench) timeCollection(ctx context.Context, s *server) (Sample, error) {
	n := b.results.Run.Scale.GarbageEach
	set := uint64(b.Serial())
	push := measure.Clients{N: pushers, Limit: n, Do: func(ctx context.Context, _ *measure.Worker, i int) (int64, error) {
		return 0, s.pushBlob(ctx, "bench/garbage", newBlob(noise(set, uint64(i), garbageSize)), pushMode{single: true})
	}}
	if _, err := push.Run(ctx); err != nil {
		return Sample{}, err
	}
	syscall.Sync()
	m, err := measure.StartMeter(s.Process.Pid())
	if err != nil {
		return Sample{}, err
	}
	rep, err := s.collect(ctx)
	if err != nil {
		return Sample{}, err
	}
	u, err := m.Stop()
	if err != nil {
		return Sample{}, err
	}
	if rep.Contents != n {
		return Sample{}, fmt.Errorf("%d contents were deleted, want %d", rep.Contents, n)
	}
	sample := usageSample(u)
	sample.Ops, sample.Seconds = 1, rep.Took.Seconds()
	sample.RSS, sample.PeakRSS, err = measure.Memory(m.PIDs)
	return sample, err
}

// collection is what slipway gc reports.
type collection struct {
	Examined, Contents int
	Took               time.Duration
}

// collect makes the running server collect all garbage.
func (s *server) collect(ctx context.Context) (collection, error) {
	cmd := exec.CommandContext(ctx, s.Binary, "gc", "--now", "--json", "--root", filepath.Join(s.Dir, "root"))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return collection{}, fmt.Errorf("slipway gc: %w: %s", err, stderr.Bytes())
	}
	var rep collection
	if err := json.Unmarshal(out, &rep); err != nil {
		return collection{}, fmt.Errorf("parse the report of slipway gc: %w", err)
	}
	return rep, nil
}

// objectShare makes every tenth blob of a generated store a file. The others are in the
// catalogue, as small blobs are. Making and removing millions of files would take longer
// than everything else.
const objectShare = 10

// blobsPerManifest is the number of layers in each image of a generated store.
const blobsPerManifest = 1000

// makeStore starts a server on a new store of n blobs, all named by manifests, with nothing left to
// collect. It may return a server even with an error.
func makeStore(ctx context.Context, sp *rival.Spec, dir string, n int) (*server, error) {
	root := filepath.Join(dir, "root")
	objects := n / objectShare
	if err := writeObjects(ctx, root, objects); err != nil {
		return nil, err
	}
	if out, err := exec.CommandContext(ctx, sp.Binary, "import", "--in-place", root).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("import the store: %w: %s", err, out)
	}
	s, err := startServer(ctx, sp, dir)
	if err != nil {
		return nil, err
	}
	if err := s.pushBlob(ctx, storeRepo, storeConfig(), pushMode{single: true}); err != nil {
		return s, err
	}
	push := measure.Clients{N: 2 * pushers, Limit: n - objects, Do: func(ctx context.Context, _ *measure.Worker, i int) (int64, error) {
		return 0, s.pushBlob(ctx, storeRepo, storeBlob(objects+i), pushMode{single: true})
	}}
	if _, err := push.Run(ctx); err != nil {
		return s, err
	}
	for first := objects; first < n; first += blobsPerManifest {
		m := storeManifest(first, min(first+blobsPerManifest, n))
		if err := s.putManifest(ctx, storeRepo, tagName(first), manifestType, m.data); err != nil {
			return s, err
		}
	}
	// Everything that was stored counts as changed.
	_, err = s.collect(ctx)
	return s, err
}

const storeRepo = "bench/store"

func storeBlob(i int) blob { return newBlob(fmt.Appendf(nil, "blob %d of a large store", i)) }

func storeConfig() blob { return newBlob([]byte("{}")) }

// storeManifest returns the manifest of an image. Its layers are the blobs of the store
// whose numbers are at least from and less than to.
func storeManifest(from, to int) blob {
	config := storeConfig()
	doc := wire.Document{SchemaVersion: 2, MediaType: manifestType,
		Config: &wire.Descriptor{MediaType: configType, Digest: config.digest, Size: int64(len(config.data))}}
	for i := from; i < to; i++ {
		b := storeBlob(i)
		doc.Layers = append(doc.Layers, wire.Descriptor{MediaType: layerType, Digest: b.digest, Size: int64(len(b.data))})
	}
	return newBlob(mustJSON(doc))
}

// writeObjects writes the first n blobs of the store as a Distribution storage, for `slipway import
// --in-place`.
func writeObjects(ctx context.Context, root string, n int) error {
	base := filepath.Join(root, "docker", "registry", "v2")
	put := func(data []byte, parts ...string) error {
		path := filepath.Join(append([]string{base}, parts...)...)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		return os.WriteFile(path, data, 0o600)
	}
	store := func(b blob, link ...string) error {
		hex := strings.TrimPrefix(b.digest, "sha256:")
		if err := put(b.data, "blobs", "sha256", hex[:2], hex, "data"); err != nil {
			return err
		}
		return put([]byte(b.digest), append(append([]string{"repositories", storeRepo}, link...), "sha256", hex, "link")...)
	}
	if err := store(storeConfig(), "_layers"); err != nil {
		return err
	}
	for first := 0; first < n; first += blobsPerManifest {
		to := min(first+blobsPerManifest, n)
		for i := first; i < to; i++ {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := store(storeBlob(i), "_layers"); err != nil {
				return err
			}
		}
		m := storeManifest(first, to)
		if err := store(m, "_manifests", "revisions"); err != nil {
			return err
		}
		if err := put([]byte(m.digest), "repositories", storeRepo, "_manifests", "tags", tagName(first), "current", "link"); err != nil {
			return err
		}
	}
	return nil
}
