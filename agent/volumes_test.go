package agent

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/proxy"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"example.org/slipway/agent/api"
	"example.org/slipway/config"
	"example.org/slipway/node/view"
	"example.org/slipway/oci"
	"example.org/slipway/oci/client"
	"example.org/slipway/serve"
)

// volumeBed is a registry that builds volumes in a directory, and an agent on the same machine that
// is connected to it.
type volumeBed struct {
	t      *testing.T
	dir    string
	store  string
	host   string
	reg    *client.Client
	cfg    *config.Agent
	file   string // with cfg
	caller *api.Caller
	end    func()
}

func newVolumeBed(t *testing.T, mode, fs, choice string) *volumeBed {
	t.Helper()
	return newBedOn(t, mode, fs, choice, func(dir string) (registry, agent string) {
		registry = fmt.Sprintf("driver: file, file: {dir: %s}", dir)
		return registry, fmt.Sprintf("file: {dir: %s}", dir)
	})
}

// newBedOn is like newVolumeBed, with other storage than a directory. storage returns its
// configuration for the registry and for the agent.
func newBedOn(t *testing.T, mode, fs, choice string, storage func(dir string) (registry, agent string)) *volumeBed {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: it mounts")
	}
	dir, err := os.MkdirTemp("/tmp", "swv") // names of sockets must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	b := &volumeBed{t: t, dir: dir, store: filepath.Join(dir, "store")}
	registry, agent := storage(b.store)
	b.startRegistry(fs, registry)
	b.file = filepath.Join(dir, "agent.yml")
	text := fmt.Sprintf("root: %s/state\nregistries: [{host: %q, urls: [%q], username: node, password: node-secret}]\n"+
		"volumes: {mode: %s, outage: 20s, %s}\nchoice: {default: [%s]}\nfetch: {background: false}\n", dir, b.host, "http://"+b.host, mode, agent, choice)
	if err := os.WriteFile(b.file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if b.cfg, _, err = config.LoadAgent(b.file, nil); err != nil {
		t.Fatal(err)
	}
	b.start()
	t.Cleanup(func() { b.end() })
	return b
}

func (b *volumeBed) startRegistry(fs, storage string) {
	b.t.Helper()
	if err := os.Mkdir(b.store, 0o700); err != nil {
		b.t.Fatal(err)
	}
	users := filepath.Join(b.dir, "htpasswd")
	if err := os.WriteFile(users, []byte("node:$2y$04$7aWgrmzguyWGABDcwlExruy1kLO9/SCFKPCTzBQ5XVAImPC0Pfa/i\n"), 0o600); err != nil { // node-secret
		b.t.Fatal(err)
	}
	yaml := fmt.Sprintf("version: 0.1\nlog: {level: error, accesslog: {disabled: true}}\nvolumes: {%s, build: push, fs: %s, rules: [{repositories: [off/**], build: off}]}\n"+
		"auth:\n  htpasswd: {path: %s}\n  access:\n    - {repositories: ['**'], subjects: [anonymous, node], actions: [pull, push, delete]}\n"+
		"    - {repositories: ['**'], subjects: [node], actions: [volume, clone]}\n", storage, fs, users)
	cfg, _, err := config.Parse(strings.NewReader(yaml), &config.Options{Overrides: []config.Override{
		{Key: "storage.filesystem.rootdirectory", Value: filepath.Join(b.dir, "registry")}, {Key: "http.addr", Value: "127.0.0.1:0"}}})
	if err != nil {
		b.t.Fatal(err)
	}
	s, err := serve.New(b.t.Context(), cfg, &serve.Options{Logger: slog.New(slog.NewTextHandler(b.t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))})
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	b.t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-done, s.Close()); err != nil {
			b.t.Errorf("stop the registry: %v", err)
		}
	})
	b.host = s.Addr().String()
	if b.reg, err = client.New("http://"+b.host, nil); err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { b.reg.Close() })
}

// start runs the keeper of an agent with its child processes, and waits for it. b.end ends it.
func (b *volumeBed) start() {
	b.t.Helper()
	process := func(what string) *exec.Cmd {
		cmd := exec.Command("/proc/self/exe")
		// The race detector sleeps for a second at the end of a process by default.
		cmd.Env = append(os.Environ(), asProcess+"="+what, withConfig+"="+b.file, "GORACE=atexit_sleep_ms=0 "+os.Getenv("GORACE"))
		cmd.Stdout, cmd.Stderr = b.t.Output(), b.t.Output()
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		return cmd
	}
	ctx, cancel := context.WithCancel(context.Background())
	stop, now := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- Keep(ctx, stop, b.cfg, func(sockets []string) *exec.Cmd {
			cmd := process("worker")
			cmd.Env = append(cmd.Env, withSocks+"="+strings.Join(sockets, ","))
			return cmd
		}, func() *exec.Cmd { return process("volume-worker") }, slog.New(slog.NewTextHandler(b.t.Output(), nil)))
	}()
	ended := false
	b.end = func() {
		if ended {
			return
		}
		ended = true
		cancel()
		now()
		if err := <-done; err != nil {
			b.t.Errorf("the keeper: %v", err)
		}
	}
	b.caller = api.NewCaller(b.cfg)
	b.eventually("an agent", func() error { _, err := b.caller.Status(b.t.Context()); return err })
}

func (b *volumeBed) eventually(what string, try func() error) {
	b.t.Helper()
	began := time.Now()
	defer func() {
		if took := time.Since(began); took > 2*time.Second {
			b.t.Logf("%s took %s", what, took)
		}
	}()
	var err error
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if err = try(); err == nil {
			return
		}
	}
	b.t.Fatalf("waited for %s: %v", what, err)
}

// image is a pushed image.
type image struct {
	ref      string
	manifest oci.Digest
	layers   []oci.Digest
	diffIDs  []string
}

// chainID names a layer together with the layers below it.
func chainID(parent, diffID string) string {
	if parent == "" {
		return diffID
	}
	return identity.ChainID([]digest.Digest{digest.Digest(parent), digest.Digest(diffID)}).String()
}

func (i *image) chain() (chain string) {
	for _, d := range i.diffIDs {
		chain = chainID(chain, d)
	}
	return chain
}

// labels returns the labels with which containerd prepares a layer.
func (i *image) labels(layer int, chain string) map[string]string {
	var digests []string
	for _, d := range i.layers {
		digests = append(digests, string(d))
	}
	return map[string]string{
		snapshots.LabelSnapshotRef: chain, snapshots.LabelSnapshotDiffID: i.diffIDs[layer], "containerd.io/snapshot/cri.image-ref": i.ref,
		"containerd.io/snapshot/cri.manifest-digest": string(i.manifest), "containerd.io/snapshot/cri.layer-digest": digests[layer],
		"containerd.io/snapshot/cri.image-layers": strings.Join(digests[layer:], ","),
	}
}

// pushLayers pushes an image of layers, of which nobody knows yet whether they are archives.
func (b *volumeBed) pushLayers(repo string, layers ...[]byte) *image {
	b.t.Helper()
	img := &image{ref: b.host + "/" + repo + ":v1"}
	put := func(content []byte) oci.Descriptor {
		d, err := b.reg.PushBlob(b.t.Context(), repo, oci.SHA256(content), int64(len(content)), bytes.NewReader(content))
		if err != nil {
			b.t.Fatal(err)
		}
		return d
	}
	type blob struct {
		MediaType string     `json:"mediaType"`
		Digest    oci.Digest `json:"digest"`
		Size      int64      `json:"size"`
	}
	var blobs []blob
	for _, text := range layers {
		d := put(text)
		blobs = append(blobs, blob{"application/vnd.oci.image.layer.v1.tar", d.Digest, int64(len(text))})
		img.layers, img.diffIDs = append(img.layers, d.Digest), append(img.diffIDs, string(d.Digest))
	}
	cfg, err := json.Marshal(map[string]any{"architecture": "amd64", "os": "linux", "config": map[string]any{"Cmd": []string{"/bin/true"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": img.diffIDs}})
	if err != nil {
		b.t.Fatal(err)
	}
	c := put(cfg)
	m, err := json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
		"config": blob{"application/vnd.oci.image.config.v1+json", c.Digest, int64(len(cfg))}, "layers": blobs})
	if err != nil {
		b.t.Fatal(err)
	}
	res, err := b.reg.PutManifest(b.t.Context(), repo, oci.PutManifest{MediaType: "application/vnd.oci.image.manifest.v1+json", Bytes: m, Tags: []string{"v1"}})
	if err != nil {
		b.t.Fatal(err)
	}
	img.manifest = res.Descriptor.Digest
	return img
}

// push pushes an image of layers of files. It waits for the image's volumes if it should have any.
func (b *volumeBed) push(repo string, records int, layers ...map[string]string) *image {
	b.t.Helper()
	var texts [][]byte
	for _, files := range layers {
		texts = append(texts, tarOf(b.t, files))
	}
	img := b.pushLayers(repo, texts...)
	b.eventually("volumes of "+repo, func() error {
		if records == 0 {
			return nil
		}
		st, err := b.reg.Volumes(b.t.Context(), repo, img.manifest)
		if err == nil && len(st.Records) < records {
			err = fmt.Errorf("%+v", st)
		}
		return err
	})
	b.eventually("indexes of "+repo, func() error {
		for _, d := range img.layers {
			r, _, err := b.reg.GearLayer(b.t.Context(), repo, d)
			if err != nil {
				return err
			}
			_ = r.Close()
		}
		return nil
	})
	return img
}

func tarOf(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	var names []string
	for name := range files {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(files[name])), ModTime: time.Unix(1, 0)}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(files[name])); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// snapshots returns the agent as containerd sees it.
func (b *volumeBed) snapshots() (context.Context, snapshots.Snapshotter) {
	b.t.Helper()
	conn, err := grpc.NewClient("unix://"+b.cfg.Address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = conn.Close() })
	return namespaces.WithNamespace(b.t.Context(), "default"), proxy.NewSnapshotter(snapshotsapi.NewSnapshotsClient(conn), "slipway")
}

// pull prepares the layers of an image as containerd does. All must be claimed.
func (b *volumeBed) pull(ctx context.Context, sn snapshots.Snapshotter, img *image) (chain string) {
	b.t.Helper()
	return b.pullFrom(ctx, sn, img, 0)
}

// pullFrom is like pull, without the layers below first, which are already there.
func (b *volumeBed) pullFrom(ctx context.Context, sn snapshots.Snapshotter, img *image, first int) (chain string) {
	b.t.Helper()
	for i, diff := range img.diffIDs {
		parent := chain
		chain = chainID(parent, diff)
		if i < first {
			continue
		}
		_, err := sn.Prepare(ctx, "extract "+chain, parent, snapshots.WithLabels(img.labels(i, chain)))
		if !errdefs.IsAlreadyExists(err) {
			b.t.Fatalf("layer %d is not claimed: %v", i, err)
		}
	}
	return chain
}

// in mounts a snapshot, calls f with the directory and unmounts it.
func (b *volumeBed) in(mounts []mount.Mount, f func(dir string)) {
	b.t.Helper()
	dir, err := os.MkdirTemp(b.dir, "at")
	if err == nil {
		err = mount.All(mounts, dir)
	}
	if err != nil {
		b.t.Fatalf("mount %v: %v", mounts, err)
	}
	defer func() {
		if err := unix.Unmount(dir, 0); err != nil {
			b.t.Error(err)
		}
	}()
	f(dir)
}

func (b *volumeBed) read(name, want string) {
	b.t.Helper()
	if got, err := os.ReadFile(name); err != nil || string(got) != want {
		b.t.Errorf("%s holds %.60q (error %v), want %.60q", name, got, err, want)
	}
}

// noUse waits until nothing of volumes is left on this node.
func (b *volumeBed) noUse() {
	b.t.Helper()
	b.eventually("no volume in use", func() error {
		s, err := b.caller.Status(b.t.Context())
		if err != nil {
			return err
		}
		// A request of a killed worker may still arrive. The agent looks for its result until it
		// cannot arrive any more.
		left := slices.DeleteFunc(s.Volumes.Volumes, func(u api.VolumeUse) bool { return strings.HasPrefix(u.Name, "late-") && u.Dir == "" })
		if len(left) > 0 {
			err = fmt.Errorf("%+v", left)
		}
		if list, merr := view.Mounts(layoutOf(b.cfg).VolumeMounts); err == nil && (merr != nil || len(list) > 0) {
			err = fmt.Errorf("still mounted: %v, error %v", list, merr)
		}
		return err
	})
}

// explain returns the explanation for an image after the agent has prepared it.
func (b *volumeBed) explain(name string) string {
	b.t.Helper()
	var x api.Explanation
	b.eventually("an explanation of "+name, func() (err error) {
		x, err = b.caller.Explain(b.t.Context(), name)
		return err
	})
	return strings.Join(x.Lines, "\n")
}

func (b *volumeBed) remove(ctx context.Context, sn snapshots.Snapshotter, keys ...string) {
	b.t.Helper()
	for _, key := range keys {
		if err := sn.Remove(ctx, key); err != nil {
			b.t.Fatal(err)
		}
	}
	if err := sn.(snapshots.Cleaner).Cleanup(ctx); err != nil {
		b.t.Fatal(err)
	}
}

// children returns the processes of the agent whose command has a word in its environment.
func children(t *testing.T, what string) (pids []int) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		_, rest, _ := strings.Cut(string(stat), ") ")
		f := strings.Fields(rest)
		if err != nil || len(f) < 2 || f[1] != strconv.Itoa(os.Getpid()) {
			continue
		}
		env, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		if bytes.Contains(env, []byte(asProcess+"="+what+"\x00")) {
			pids = append(pids, pid)
		}
	}
	return pids
}

func (b *volumeBed) kill(what string) {
	b.t.Helper()
	pids := children(b.t, what)
	if len(pids) != 1 {
		b.t.Fatalf("%s: processes %v, want one", what, pids)
	}
	if err := syscall.Kill(pids[0], syscall.SIGKILL); err != nil {
		b.t.Fatal(err)
	}
	b.eventually("the next "+what, func() error {
		if now := children(b.t, what); len(now) != 1 || now[0] == pids[0] {
			return fmt.Errorf("processes %v", now)
		}
		return nil
	})
}

var big = strings.Repeat("0123456789abcdef", 64<<10/16)

// TestVolumesLocal pulls an image that is a volume, runs containers on it, kills both processes,
// and removes everything.
func TestVolumesLocal(t *testing.T) {
	for _, fs := range []string{"ext4", "erofs"} {
		t.Run(fs, func(t *testing.T) {
			b := newVolumeBed(t, "local", fs, "volume, gear, plain")
			img := b.push("team/app", 1, map[string]string{"base": "of the first", "big": big}, map[string]string{"top": "of the second", "base": "changed"})
			ctx, sn := b.snapshots()
			chain := b.pull(ctx, sn, img)
			for _, key := range []string{"one", "two"} {
				m, err := sn.Prepare(ctx, key, chain)
				if err != nil {
					t.Fatal(err)
				}
				b.in(m, func(dir string) {
					b.read(filepath.Join(dir, "base"), "changed")
					if err := os.WriteFile(filepath.Join(dir, "mine"), []byte(key), 0o644); err != nil {
						t.Error(err)
					}
				})
			}
			if x := b.explain(img.ref); !strings.Contains(x, "volume: used") || !strings.Contains(x, "with "+fs) {
				t.Errorf("it is explained by %q", x)
			}
			b.kill("volume-worker")
			b.kill("worker")
			for _, key := range []string{"one", "two"} {
				b.eventually("the mounts of "+key, func() error { _, err := sn.Mounts(ctx, key); return err })
				m, err := sn.Mounts(ctx, key)
				if err != nil {
					t.Fatal(err)
				}
				b.in(m, func(dir string) {
					b.read(filepath.Join(dir, "mine"), key)
					b.read(filepath.Join(dir, "big"), big)
				})
			}
			b.eventually("an explanation of the container", func() error { _, err := b.caller.Explain(ctx, "one"); return err })
			b.remove(ctx, sn, "one", "two", img.chain(), chainID("", img.diffIDs[0]))
			b.end()
			b.start()
			b.noUse()
		})
	}
}

// TestVolumesNetwork gives clones to containers, and makes an image of a clone.
func TestVolumesNetwork(t *testing.T) {
	b := newVolumeBed(t, "network", "ext4", "volume")
	img := b.push("team/app", 1, map[string]string{"base": "of the first", "big": big}, map[string]string{"top": "of the second"})
	ctx, sn := b.snapshots()
	chain := b.pull(ctx, sn, img)
	m, err := sn.Prepare(ctx, "one", chain)
	if err != nil {
		t.Fatal(err)
	}
	if m[0].Type != "bind" {
		t.Errorf("a clone is mounted by %v", m)
	}
	b.in(m, func(dir string) {
		b.read(filepath.Join(dir, "top"), "of the second")
		if err := os.WriteFile(filepath.Join(dir, "mine"), []byte("written"), 0o644); err != nil {
			t.Error(err)
		}
		if err := sn.Remove(ctx, "one"); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("removed while it is mounted: %v", err)
		}
	})
	if u, err := sn.Usage(ctx, "one"); err != nil || u.Inodes < 1 {
		t.Errorf("usage %+v, error %v", u, err)
	}
	b.kill("worker")
	b.eventually("mounts", func() error { _, err := sn.Mounts(ctx, "one"); return err })
	b.end() // as before a restart of the machine: nothing stays mounted
	if list, err := view.Mounts(b.cfg.Run); err != nil || len(list) > 0 {
		t.Errorf("an agent that ended leaves mounts %v, error %v", list, err)
	}
	b.start()
	ctx, sn = b.snapshots()
	if m, err = sn.Mounts(ctx, "one"); err != nil {
		t.Fatal(err)
	}
	b.in(m, func(dir string) { b.read(filepath.Join(dir, "mine"), "written") })
	if err := sn.Commit(ctx, "committed", "one"); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"two", "three"} {
		if m, err = sn.Prepare(ctx, key, "committed"); err != nil {
			t.Fatal(err)
		}
		b.in(m, func(dir string) {
			b.read(filepath.Join(dir, "mine"), "written")
			b.read(filepath.Join(dir, "big"), big)
			if err := os.WriteFile(filepath.Join(dir, "mine"), []byte(key), 0o644); err != nil {
				t.Error(err)
			}
		})
	}
	if m, err = sn.View(ctx, "look", "committed"); err != nil {
		t.Fatal(err)
	}
	b.in(m, func(dir string) { b.read(filepath.Join(dir, "mine"), "written") })
	b.remove(ctx, sn, "two", "three", "look", "committed", chain, chainID("", img.diffIDs[0]))
	b.end()
	b.start()
	b.noUse()
	left, err := filepath.Glob(filepath.Join(b.store, "*", "c-*"))
	if more, _ := filepath.Glob(filepath.Join(b.store, "c-*")); err != nil || len(left)+len(more) > 0 {
		t.Errorf("clones are left in the storage: %v %v, error %v", left, more, err)
	}
}

// TestVolumeChoice checks that images are provided in the ways that are available, and that the
// reason for the choice is given.
func TestVolumeChoice(t *testing.T) {
	b := newVolumeBed(t, "local", "ext4", "volume, gear, plain")
	none := b.push("off/app", 0, map[string]string{"a": "without a volume"})
	ctx, sn := b.snapshots()
	b.pull(ctx, sn, none)
	if x := b.explain(none.ref); !strings.Contains(x, "volume: no record in the registry") || !strings.Contains(x, "gear: used") {
		t.Errorf("it is explained by %q", x)
	}
	// The storage has lost what the registry believes to be there.
	lost := b.push("team/lost", 1, map[string]string{"a": "lost"})
	entries, err := os.ReadDir(b.store)
	if err != nil {
		t.Fatal(err)
	}
	away := b.store + ".away"
	if err := os.Mkdir(away, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if err := os.Rename(filepath.Join(b.store, e.Name()), filepath.Join(away, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	chain := b.pull(ctx, sn, lost)
	if x := b.explain(lost.ref); !strings.Contains(x, "gear: used") || strings.Contains(x, "volume: used") {
		t.Errorf("it is explained by %q", x)
	}
	m, err := sn.Prepare(ctx, "one", chain)
	if err != nil {
		t.Fatal(err)
	}
	b.in(m, func(dir string) { b.read(filepath.Join(dir, "a"), "lost") })
	b.remove(ctx, sn, "one")
}

// TestVolumesShareLayers uses images that arrive in different ways and share layers, in either
// order.
func TestVolumesShareLayers(t *testing.T) {
	for _, fs := range []string{"ext4", "erofs"} {
		b := newVolumeBed(t, "local", fs, "volume, gear")
		low := map[string]string{"low": "of both"}
		a := b.push("team/a", 1, low, map[string]string{"a": "a"})
		g := b.push("off/g", 0, low, map[string]string{"g": "g"})
		lone := b.push("off/low", 0, low)
		ctx, sn := b.snapshots()
		for _, img := range []*image{a, g, lone} {
			first := 1 // containerd asks for what is missing
			if img == a {
				first = 0
			}
			var chain string
			if img == lone {
				chain = chainID("", lone.diffIDs[0])
			} else {
				chain = b.pullFrom(ctx, sn, img, first)
			}
			m, err := sn.Prepare(ctx, "of "+img.ref, chain)
			if err != nil {
				t.Fatalf("%s, %s: %v", fs, img.ref, err)
			}
			b.in(m, func(dir string) { b.read(filepath.Join(dir, "low"), "of both") })
		}
		if x := b.explain(g.ref); !strings.Contains(x, "gear: used") {
			t.Errorf("%s: it is explained by %q", fs, x)
		}
		b.remove(ctx, sn, "of "+a.ref, "of "+g.ref, "of "+lone.ref, a.chain(), g.chain(), lone.chain())
		b.noUse()
		b.end()
	}
}

// TestVolumesKilled kills the worker while containers come and go. Nothing of them may be left.
func TestVolumesKilled(t *testing.T) {
	rounds := 3
	if n, err := strconv.Atoi(os.Getenv("SLIPWAY_VOLUMES_ROUNDS")); err == nil {
		rounds = n
	}
	b := newVolumeBed(t, "network", "ext4", "volume")
	img := b.push("team/app", 1, map[string]string{"a": "first"}, map[string]string{"b": "second"})
	ctx, sn := b.snapshots()
	chain := ""
	for i := range rounds {
		key := fmt.Sprintf("c%d", i)
		done := make(chan error, 1)
		go func() {
			chain = b.pullRetrying(ctx, sn, img)
			_, err := sn.Prepare(ctx, key, chain)
			for end := time.Now().Add(30 * time.Second); err != nil && !errdefs.IsAlreadyExists(err) && time.Now().Before(end); {
				time.Sleep(10 * time.Millisecond)
				_, err = sn.Prepare(ctx, key, chain)
			}
			if errdefs.IsAlreadyExists(err) {
				err = nil
			}
			done <- err
		}()
		time.Sleep(time.Duration(7*(i%8)) * time.Millisecond)
		b.kill([]string{"worker", "worker", "volume-worker"}[i%3])
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		b.eventually("mounts", func() error { _, err := sn.Mounts(ctx, key); return err })
		m, err := sn.Mounts(ctx, key)
		if err != nil {
			t.Fatal(err)
		}
		b.in(m, func(dir string) { b.read(filepath.Join(dir, "b"), "second") })
		b.remove(ctx, sn, key, chain, chainID("", img.diffIDs[0]))
	}
	b.noUse()
}

// pullRetrying is like pull, for an agent that may die during it.
func (b *volumeBed) pullRetrying(ctx context.Context, sn snapshots.Snapshotter, img *image) (chain string) {
	for i, diff := range img.diffIDs {
		parent := chain
		chain = chainID(parent, diff)
		for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			_, err := sn.Prepare(ctx, "extract "+chain, parent, snapshots.WithLabels(img.labels(i, chain)))
			if errdefs.IsAlreadyExists(err) {
				break
			}
		}
	}
	return chain
}

// TestVolumeAway checks that the error of a container whose storage is gone says so, and says how
// to continue.
func TestVolumeAway(t *testing.T) {
	b := newVolumeBed(t, "local", "ext4", "volume")
	img := b.push("team/app", 1, map[string]string{"a": "first"})
	ctx, sn := b.snapshots()
	chain := b.pull(ctx, sn, img)
	if _, err := sn.Prepare(ctx, "one", chain); err != nil {
		t.Fatal(err)
	}
	if _, err := b.caller.MapVolume(t.Context(), api.MapRequest{Image: img.ref}); err != nil {
		t.Fatal(err)
	}
	b.end()
	away := b.store + ".away"
	if err := os.Rename(b.store, away); err != nil {
		t.Fatal(err)
	}
	b.start()
	ctx, sn = b.snapshots()
	_, err := sn.Mounts(ctx, "one")
	if err == nil || !strings.Contains(err.Error(), "volume") {
		t.Errorf("mounted without its storage: %v", err)
	}
	if _, err := b.caller.MapVolume(t.Context(), api.MapRequest{Image: img.ref}); err == nil {
		t.Error("mapped without its storage")
	}
	if err := os.Rename(away, b.store); err != nil {
		t.Fatal(err)
	}
	b.eventually("mounts", func() error { _, err := sn.Mounts(ctx, "one"); return err })
	if err := b.caller.UnmapVolume(t.Context(), img.ref); err != nil {
		t.Errorf("what was mapped before its storage was away is no more: %v", err)
	}
	b.remove(ctx, sn, "one", chain)
}

// mountsOnceBuilt mounts an image before it is a volume, which fails, and again as soon as it is
// one.
func (b *volumeBed) mountsOnceBuilt() {
	b.t.Helper()
	img := b.push("off/late", 0, map[string]string{"a": "first"})
	at := filepath.Join(b.dir, "late")
	if err := os.Mkdir(at, 0o755); err != nil {
		b.t.Fatal(err)
	}
	req := api.MountRequest{Image: img.ref, Dir: at, Mode: api.ModeLocal}
	if _, err := b.caller.Mount(b.t.Context(), req); err == nil || !strings.Contains(err.Error(), "no record") {
		b.t.Errorf("an image without a volume is mounted: %v", err)
	}
	if x, err := b.caller.Explain(b.t.Context(), img.ref); err == nil {
		b.t.Errorf("what was not mounted is explained by %q", x.Lines)
	}
	if err := b.reg.BuildVolume(b.t.Context(), "off/late", img.manifest, "ext4"); err != nil {
		b.t.Fatal(err)
	}
	b.eventually("the volume", func() error {
		st, err := b.reg.Volumes(b.t.Context(), "off/late", img.manifest)
		if err == nil && len(st.Records) == 0 {
			err = fmt.Errorf("%+v", st)
		}
		return err
	})
	if _, err := b.caller.Mount(b.t.Context(), req); err != nil {
		b.t.Fatalf("once it is built: %v", err)
	}
	if err := b.caller.Umount(b.t.Context(), at); err != nil {
		b.t.Error(err)
	}
}

// TestVolumeMounts mounts without containerd, in every mode.
func TestVolumeMounts(t *testing.T) {
	b := newVolumeBed(t, "local", "ext4", "gear, plain")
	b.mountsOnceBuilt()
	img := b.push("team/app", 1, map[string]string{"a": "first"}, map[string]string{"b": "second"})
	for _, mode := range []string{api.ModeGear, api.ModeLocal, api.ModeNetwork} {
		at := filepath.Join(b.dir, mode)
		if err := os.Mkdir(at, 0o755); err != nil {
			t.Fatal(err)
		}
		m, err := b.caller.Mount(t.Context(), api.MountRequest{Image: img.ref, Dir: at, Mode: mode})
		if err != nil {
			t.Fatalf("%s: %v", mode, err)
		}
		if want := map[string]string{api.ModeGear: "gear: used", api.ModeLocal: "volume: used", api.ModeNetwork: "volume: used"}[mode]; !slices.Contains(m.Why, want) {
			t.Errorf("%s came by %v, want %s", mode, m.Why, want)
		}
		b.read(filepath.Join(at, "a"), "first")
		b.read(filepath.Join(at, "b"), "second")
		err = os.WriteFile(filepath.Join(at, "c"), []byte("mine"), 0o644)
		if (err == nil) != (mode == api.ModeNetwork) {
			t.Errorf("%s: writing is answered by %v", mode, err)
		}
	}
	a, err := b.caller.MapVolume(t.Context(), api.MapRequest{Image: img.ref})
	if err != nil {
		t.Fatal(err)
	}
	b.read(filepath.Join(a.Dir, "b"), "second")
	if st, err := os.Stat(a.File); err != nil || st.Size() == 0 {
		t.Errorf("the volume is file %s: %v, error %v", a.File, st, err)
	}
	if _, err := b.caller.Mount(t.Context(), api.MountRequest{Image: img.ref, Dir: b.dir, Mode: "far"}); err == nil || !strings.Contains(err.Error(), "volume-local") {
		t.Errorf("an unknown mode is answered by %v", err)
	}
	for _, mode := range []string{api.ModeGear, api.ModeLocal, api.ModeNetwork} {
		if err := b.caller.Umount(t.Context(), filepath.Join(b.dir, mode)); err != nil {
			t.Error(err)
		}
	}
	if err := b.caller.UnmapVolume(t.Context(), img.ref); err != nil {
		t.Error(err)
	}
	if err := b.caller.UnmapVolume(t.Context(), img.ref); err == nil || !strings.Contains(err.Error(), "not mapped") {
		t.Errorf("unmapped twice: %v", err)
	}
	b.end()
	b.start()
	b.noUse()
}
