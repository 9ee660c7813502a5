package images

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/proxy"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/plugins/snapshots/overlay"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"example.org/slipway/agent/registries"
	"example.org/slipway/config"
	"example.org/slipway/gear"
	"example.org/slipway/gear/rootfs"
	"example.org/slipway/node/cachedir"
	"example.org/slipway/node/gearfs"
	"example.org/slipway/node/snapshotter"
	"example.org/slipway/node/view"
)

const (
	// benchFiles and benchLayers are the numbers of an image of an interpreter.
	benchFiles, benchLayers = 13_000, 6
)

// BenchmarkStart makes and mounts the root file system of a container, alternately with
// containerd's overlayfs snapshotter and with ours, when everything is local. Ours is called over a
// socket, as containerd does it. If SLIPWAY_CONTAINERD names a containerd, both are called through
// it, as by programs that start containers.
func BenchmarkStart(b *testing.B) {
	if os.Geteuid() != 0 {
		b.Skip("needs root: it mounts")
	}
	dir := b.TempDir()
	b.Cleanup(func() { _ = view.UnmountBelow(dir) })
	socket, chain, labels := ownNode(b, filepath.Join(dir, "own"))
	var plain, ours snapshots.Snapshotter
	if program := os.Getenv("SLIPWAY_CONTAINERD"); program != "" {
		conn := startContainerd(b, program, filepath.Join(dir, "cd"), socket)
		plain, ours = snapshotterAt(conn, "overlayfs"), snapshotterAt(conn, "slipway")
	} else {
		sn, err := overlay.NewSnapshotter(filepath.Join(dir, "plain"), overlay.AsynchronousRemove)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = sn.Close() })
		plain, ours = sn, snapshotterAt(dial(b, socket), "slipway")
	}
	if _, err := ours.Prepare(inNamespace(b), "extract", "", snapshots.WithLabels(labels)); !errdefs.IsAlreadyExists(err) {
		b.Fatalf("the layer is not claimed: %v", err)
	}
	plainChain := plainLayers(b, plain)
	took := [2][]float64{}
	turn := 0
	for b.Loop() {
		for k := range 2 {
			i := (turn + k) % 2
			sn, parent := plain, plainChain
			if i == 1 {
				sn, parent = ours, chain
			}
			took[i] = append(took[i], startOnce(b, sn, parent, filepath.Join(dir, fmt.Sprintf("at%d", turn)), fmt.Sprintf("c%d", turn)).Seconds()*1e3)
		}
		turn++
	}
	for i, name := range []string{"plain", "own"} {
		slices.Sort(took[i])
		n := len(took[i])
		b.ReportMetric(took[i][n/2], name+"-ms")
		b.ReportMetric(took[i][n/10], name+"-p10-ms")
		b.ReportMetric(took[i][n*9/10], name+"-p90-ms")
	}
	b.ReportMetric(took[1][len(took[1])/2]/took[0][len(took[0])/2], "ratio")
}

// startOnce measures Prepare and the mount, and removes both again.
func startOnce(b *testing.B, sn snapshots.Snapshotter, parent, at, key string) time.Duration {
	b.Helper()
	ctx := inNamespace(b)
	// Without the label containerd's garbage collection removes it.
	root := snapshots.WithLabels(map[string]string{"containerd.io/gc.root": "1"})
	began := time.Now()
	mounts, err := sn.Prepare(ctx, key, parent, root)
	if err == nil {
		err = os.Mkdir(at, 0o755)
	}
	if err == nil {
		err = mount.All(mounts, at)
	}
	took := time.Since(began)
	if err == nil {
		err = unix.Unmount(at, 0)
	}
	if err := errors.Join(err, os.Remove(at), sn.Remove(ctx, key)); err != nil {
		b.Fatal(err)
	}
	if c, ok := sn.(snapshots.Cleaner); ok && os.Getenv("SLIPWAY_CONTAINERD") == "" {
		if err := c.Cleanup(ctx); err != nil {
			b.Fatal(err)
		}
	}
	return took
}

func inNamespace(b *testing.B) context.Context {
	return namespaces.WithNamespace(b.Context(), "default")
}

func dial(b *testing.B, socket string) *grpc.ClientConn {
	b.Helper()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = conn.Close() })
	return conn
}

func snapshotterAt(conn *grpc.ClientConn, name string) snapshots.Snapshotter {
	return proxy.NewSnapshotter(snapshotsapi.NewSnapshotsClient(conn), name)
}

// startContainerd starts a containerd that has our snapshotter besides its own.
func startContainerd(b *testing.B, program, dir, socket string) *grpc.ClientConn {
	b.Helper()
	config := fmt.Sprintf("version = 2\nroot = %q\nstate = %q\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n[grpc]\n  address = %q\n[ttrpc]\n  address = %q\n"+
		"[proxy_plugins.slipway]\n  type = \"snapshot\"\n  address = %q\n", dir+"/root", dir+"/state", dir+"/c.sock", dir+"/t.sock", socket)
	file := filepath.Join(dir, "config.toml")
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(file, []byte(config), 0o600)); err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(program, "--config", file)
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		b.Fatal(err)
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
	})
	conn := dial(b, dir+"/c.sock")
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		_, err := snapshotterAt(conn, "slipway").Stat(inNamespace(b), "none")
		if errdefs.IsNotFound(err) {
			return conn
		}
		if time.Now().After(end) {
			text, _ := os.ReadFile(filepath.Join(dir, "log"))
			b.Fatalf("containerd does not answer: %v\n%s", err, text)
		}
	}
}

// plainLayers makes the layers of an image.
func plainLayers(b *testing.B, sn snapshots.Snapshotter) (chain string) {
	b.Helper()
	root := snapshots.WithLabels(map[string]string{"containerd.io/gc.root": "1"})
	for i := range benchLayers {
		key, name := fmt.Sprintf("extract%d", i), fmt.Sprintf("layer%d", i)
		_, err := sn.Prepare(inNamespace(b), key, chain, root)
		if err == nil {
			err = sn.Commit(inNamespace(b), name, key, root)
		}
		if err != nil {
			b.Fatal(err)
		}
		chain = name
	}
	return chain
}

// ownNode serves our snapshotter over the agent's chains, with a local image. It returns the labels
// with which the image's layer is prepared.
func ownNode(b *testing.B, dir string) (socket, chain string, labels map[string]string) {
	b.Helper()
	c := benchChains(b, dir)
	x, names := benchIndex(b, c.cache)
	const host = "127.0.0.1:1" // nobody listens there
	manifest := "sha256:" + fmt.Sprintf("%064x", 3)
	diff := "sha256:" + fmt.Sprintf("%064x", 4)
	reg, err := c.regs.Of(registries.Reference{Host: host, Repo: "app", Ref: "v1"})
	if err != nil {
		b.Fatal(err)
	}
	sources := reg.Sources(registries.Reference{Host: host, Repo: "app", Ref: "v1"}, manifest)
	rec := &chainRecord{Chain: diff, Digest: diff, Ref: host + "/app:v1", Domain: c.regs.Domain(host), Snapshot: true, Sources: sources, Layers: []string{diff}}
	if err := c.records.create(rec, encoded(b, x)); err != nil {
		b.Fatal(err)
	}
	if _, err := c.know(diff, rec); err != nil {
		b.Fatal(err)
	}
	if err := c.files.SetProfile(diff, names[:400]); err != nil {
		b.Fatal(err)
	}
	data, err := c.files.Data(diff, c.pool) // nobody mounts the pool
	if err != nil {
		b.Fatal(err)
	}
	for _, dir := range data {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			b.Fatal(err)
		}
	}
	s, err := snapshotter.New(filepath.Join(dir, "snapshots"), c, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = s.Close() })
	socket = filepath.Join(dir, "s.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		b.Fatal(err)
	}
	go func() { _ = s.Serve(l) }()
	return socket, diff, map[string]string{
		snapshots.LabelSnapshotRef: diff, snapshots.LabelSnapshotDiffID: diff, "containerd.io/snapshot/cri.image-ref": rec.Ref, "containerd.io/gc.root": "1",
		"containerd.io/snapshot/cri.manifest-digest": manifest, "containerd.io/snapshot/cri.layer-digest": diff, "containerd.io/snapshot/cri.image-layers": diff,
	}
}

// benchChains returns chains on an empty directory.
func benchChains(b *testing.B, dir string) *lower {
	b.Helper()
	c := bareChains(b, dir)
	if err := os.Mkdir(filepath.Join(dir, "probe"), 0o700); err != nil {
		b.Fatal(err)
	}
	var err error
	if c.support, err = view.Probe(b.Context(), filepath.Join(dir, "probe"), view.Auto); err != nil {
		b.Fatal(err)
	}
	return c
}

// bareChains returns chains that do not know what the kernel can do.
func bareChains(b testing.TB, dir string) *lower {
	b.Helper()
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, name := range []string{"chains", "trees", "views", "pool"} {
		if err := os.MkdirAll(at(name), 0o700); err != nil {
			b.Fatal(err)
		}
	}
	log := slog.New(slog.DiscardHandler)
	cache, err := cachedir.Open(at("cache"), &cachedir.Options{MaxBytes: 1 << 30})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = cache.Close() })
	keys, err := registries.OpenKeychain(at("keys.json"))
	if err != nil {
		b.Fatal(err)
	}
	regs := registries.New(&config.Agent{}, keys, log)
	files, err := gearfs.New(at("images"), cache, regs.Dial, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = files.Close() })
	ctx, cancel := context.WithCancel(b.Context())
	c := &lower{&claims{chains: &chains{
		records: &records{dir: at("chains")}, trees: at("trees"), mounts: at("views"), pool: at("pool"), files: files, cache: cache, regs: regs,
		log: log, ctx: ctx, opts: chainOptions{record: true}, mounted: map[string]mountedTree{}, later: map[string]*time.Timer{},
		inUse: func(string) bool { return false },
	}, choice: config.AgentChoice{Default: []string{config.WayGear}}}}
	b.Cleanup(func() { cancel(); c.close() })
	return c
}

// benchIndex returns an image's index whose files are in the cache.
func benchIndex(b *testing.B, cache *cachedir.Dir) (*gear.Index, []gear.Name) {
	b.Helper()
	build := gear.NewBuilder(nil)
	random := rand.New(rand.NewPCG(1, 2))
	var names []gear.Name
	for i := range benchFiles {
		content := binary.LittleEndian.AppendUint64(make([]byte, 0, 16), random.Uint64())
		f := gear.File{Name: sha256.Sum256(content), Size: int64(len(content))}
		names = append(names, f.Name)
		err := build.Add(rootfs.Entry{Path: fmt.Sprintf("dir%d/file%d", i%700, i), Type: rootfs.File, Mode: 0o644, Size: f.Size, Sec: int64(1000 + i)}, f)
		if err != nil {
			b.Fatal(err)
		}
		w, err := cache.Create(f)
		if err == nil {
			_, err = w.Write(content)
		}
		if err == nil {
			err = w.Commit()
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	x, err := build.Index()
	if err != nil {
		b.Fatal(err)
	}
	return x, names
}
