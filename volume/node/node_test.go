package node_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"example.org/slipway/internal/mounttest"
	"example.org/slipway/node/fuse"
	"example.org/slipway/node/view"
	"example.org/slipway/oci/volref"
	"example.org/slipway/volume/block"
	"example.org/slipway/volume/node"
)

var tree = map[string]string{"etc/motd": "hello\n", "bin/tool": strings.Repeat("0123456789abcdef", 20_000)}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestLocal(t *testing.T) {
	t.Parallel()
	for _, fsType := range []string{volref.Ext4, volref.EROFS} {
		t.Run(fsType, func(t *testing.T) {
			b, ctx := newBed(t), context.Background()
			img := b.image("a", fsType, tree)
			m := b.open()
			var wait sync.WaitGroup
			dirs := make([]string, 8)
			for i := range dirs {
				wait.Go(func() {
					var err error
					if dirs[i], err = m.Local(ctx, img); err != nil {
						t.Error(err)
					}
				})
			}
			wait.Wait()
			for _, d := range dirs {
				if d != dirs[0] || d == "" {
					t.Fatalf("directories %q", dirs)
				}
			}
			for path, text := range tree {
				b.want(dirs[0], path, text)
			}
			loops := 0
			if fsType == volref.Ext4 {
				loops = 1
			}
			if got, want := b.counts(), (counts{Mounts: 1, Loops: loops, Mapped: 1, Records: 1, Dirs: 1}); got != want {
				t.Errorf("in use: %+v, want %+v", got, want)
			}
			found, err := mounttest.LoopDevices(b.mnt + "/" + b.mappings()[0])
			ok(t, err)
			ahead := "/sys/class/bdi/erofs-*/read_ahead_kb"
			if len(found) > 0 {
				ahead = "/sys/block/" + filepath.Base(found[0]) + "/queue/read_ahead_kb"
			}
			if kb := readFiles(t, ahead); !slices.Contains(kb, "512\n") {
				t.Errorf("%s: %q", ahead, kb)
			}
			var st unix.Statfs_t
			ok(t, unix.Statfs(dirs[0], &st))
			if st.Flags&unix.ST_RDONLY == 0 || st.Flags&(unix.ST_NOSUID|unix.ST_NODEV|unix.ST_NOEXEC) != 0 {
				t.Errorf("flags of the mount: %#x", st.Flags)
			}
			ok(t, m.DropLocal(ctx, img.Record.Volume()))
			ok(t, m.DropLocal(ctx, img.Record.Volume()))
			b.nothing()
		})
	}
}

// readFiles reads the files of a pattern that still exist when it reaches them.
func readFiles(t *testing.T, pattern string) (all []string) {
	t.Helper()
	paths, err := filepath.Glob(pattern)
	ok(t, err)
	for _, p := range paths {
		if b, err := os.ReadFile(p); err == nil {
			all = append(all, string(b))
		}
	}
	return all
}

// TestDropLocalInUse checks that a volume below an overlay is removed only after the overlay.
func TestDropLocalInUse(t *testing.T) {
	t.Parallel()
	for _, fsType := range []string{volref.Ext4, volref.EROFS} {
		t.Run(fsType, func(t *testing.T) {
			b, ctx := newBed(t), context.Background()
			img := b.image("a", fsType, tree)
			m := b.open()
			dir, err := m.Local(ctx, img)
			ok(t, err)
			merged, empty := filepath.Join(b.base, "merged"), filepath.Join(b.base, "empty")
			ok(t, errors.Join(os.Mkdir(merged, 0o755), os.Mkdir(empty, 0o755)))
			ok(t, view.Overlay(merged, view.OverlayOptions{Lower: []string{empty, dir}, ReadOnly: true}))
			t.Cleanup(func() { view.UnmountBelow(merged) })
			if err := m.DropLocal(ctx, img.Record.Volume()); !errors.Is(err, block.ErrInUse) {
				t.Fatalf("drop under an overlay: %v, want %v", err, block.ErrInUse)
			}
			b.want(merged, "etc/motd", "hello\n")
			// The volume may be used again meanwhile.
			dir, err = m.Local(ctx, img)
			ok(t, err)
			b.want(dir, "etc/motd", "hello\n")
			b.want(merged, "bin/tool", tree["bin/tool"])
			if err := m.DropLocal(ctx, img.Record.Volume()); !errors.Is(err, block.ErrInUse) {
				t.Fatalf("drop under an overlay: %v, want %v", err, block.ErrInUse)
			}
			ok(t, view.UnmountBelow(merged))
			m.Sweep()
			b.nothing()
		})
	}
}

func TestNetwork(t *testing.T) {
	t.Parallel()
	b, ctx := newBed(t), context.Background()
	img := b.image("a", volref.Ext4, tree)
	other := b.image("b", volref.Ext4, tree)
	m := b.open()
	const n = 4
	dirs := make([]string, n)
	var wait sync.WaitGroup
	for i := range n {
		wait.Go(func() {
			var err error
			if dirs[i], err = m.Network(ctx, fmt.Sprint("container", i), img); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	if t.Failed() {
		return
	}
	for i, dir := range dirs {
		b.want(dir, "bin/tool", tree["bin/tool"])
		ok(t, os.WriteFile(filepath.Join(dir, "mine"), []byte(fmt.Sprint(i)), 0o644))
	}
	for i, dir := range dirs {
		b.want(dir, "mine", fmt.Sprint(i))
	}
	if got, want := b.counts(), (counts{n, n, n, n, n, n}); got != want {
		t.Errorf("in use: %+v, want %+v", got, want)
	}
	if dir, err := m.Network(ctx, "container0", img); err != nil || dir != dirs[0] {
		t.Errorf("again: %q, %v, want %q", dir, err, dirs[0])
	}
	if _, err := m.Network(ctx, "container0", other); err == nil {
		t.Error("a container got the copy of another image")
	}
	if _, err := m.Network(ctx, "x", b.imageOf("v-a", volref.EROFS)); err == nil {
		t.Error("EROFS was cloned to be written")
	}
	// An open one stays, and is removed by itself later.
	f, err := os.Open(filepath.Join(dirs[0], "mine"))
	ok(t, err)
	if err := m.DropNetwork(ctx, "container0"); !errors.Is(err, block.ErrInUse) {
		t.Errorf("drop while open: %v, want %v", err, block.ErrInUse)
	}
	f.Close()
	m.Sweep()
	for i := 1; i < n; i++ {
		ok(t, m.DropNetwork(ctx, fmt.Sprint("container", i)))
	}
	ok(t, m.DropNetwork(ctx, "never seen"))
	b.nothing()
}

// TestTakeOver checks that the next Manager has what was mounted without mounting again, and that
// after a restart of the machine everything is mounted at its next use.
func TestTakeOver(t *testing.T) {
	t.Parallel()
	b, ctx := newBed(t), context.Background()
	ext4, erofs := b.image("a", volref.Ext4, tree), b.image("b", volref.EROFS, tree)
	m := b.open()
	use := func(m *node.Manager) (dirs [3]string) {
		t.Helper()
		var errs [3]error
		dirs[0], errs[0] = m.Local(ctx, ext4)
		dirs[1], errs[1] = m.Local(ctx, erofs)
		dirs[2], errs[2] = m.Network(ctx, "c", ext4)
		ok(t, errors.Join(errs[:]...))
		return dirs
	}
	before := use(m)
	ok(t, os.WriteFile(filepath.Join(before[2], "mine"), []byte("kept"), 0o644))
	ok(t, m.Close())
	if _, err := m.Local(ctx, ext4); !errors.Is(err, node.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	count := b.counts()
	m = b.open(func(o *node.Options) { o.SetStep(func(s string) { t.Errorf("step %q was taken again", s) }) })
	if after := use(m); after != before {
		t.Errorf("directories were %q and are %q", before, after)
	}
	if got := b.counts(); got != count {
		t.Errorf("were %+v, are %+v", count, got)
	}
	ok(t, m.Close())

	// The machine restarts.
	ok(t, view.UnmountBelow(b.run))
	ok(t, os.RemoveAll(b.run))
	ok(t, fuse.Teardown(b.mnt))
	b.dev.Close()
	b.kill()
	ok(t, os.Remove(b.state))
	b.connect()
	m = b.open()
	after := use(m)
	b.want(after[0], "etc/motd", "hello\n")
	b.want(after[1], "etc/motd", "hello\n")
	b.want(after[2], "mine", "kept")
	if got := b.counts(); got != count {
		t.Errorf("were %+v, are %+v", count, got)
	}
	ok(t, errors.Join(m.DropLocal(ctx, "v-a"), m.DropLocal(ctx, "v-b"), m.DropNetwork(ctx, "c")))
	b.nothing()
}

// TestStale checks that mounts of a lost connection are mounted again elsewhere.
func TestStale(t *testing.T) {
	t.Parallel()
	b, ctx := newBed(t), context.Background()
	img := b.image("a", volref.Ext4, tree)
	m := b.open()
	old, err := m.Local(ctx, img)
	ok(t, err)
	held, err := os.Open(old) // as an overlay does
	ok(t, err)
	defer held.Close()
	ok(t, fuse.Teardown(b.mnt))
	b.dev.Close()
	b.kill()
	ok(t, os.Remove(b.state))
	b.connect()
	dir, err := m.Local(ctx, img)
	ok(t, err)
	if dir == old {
		t.Errorf("mounted again at %s", dir)
	}
	b.want(dir, "bin/tool", tree["bin/tool"])
	ok(t, m.DropLocal(ctx, "v-a"))
	held.Close()
	b.nothing()
}

// TestServerKilled checks that the process that serves the volumes may be killed at any time.
func TestServerKilled(t *testing.T) {
	t.Parallel()
	b, ctx := newBed(t), context.Background()
	img := b.image("a", volref.Ext4, tree)
	m := b.open()
	dir, err := m.Network(ctx, "c", img)
	ok(t, err)
	local, err := m.Local(ctx, img)
	ok(t, err)
	flat, err := m.Local(ctx, b.image("b", volref.EROFS, tree))
	ok(t, err)
	b.kill()
	done := make(chan error, 1)
	go func() { done <- os.WriteFile(filepath.Join(dir, "mine"), []byte("kept"), 0o644) }()
	b.serve()
	ok(t, <-done)
	b.want(local, "bin/tool", tree["bin/tool"])
	b.want(flat, "bin/tool", tree["bin/tool"])
	b.want(dir, "mine", "kept")
	ok(t, errors.Join(m.DropNetwork(ctx, "c"), m.DropLocal(ctx, "v-a"), m.DropLocal(ctx, "v-b")))
	b.nothing()
}

// TestHanging checks that others continue while storage does not answer for one image.
func TestHanging(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	ctx := context.Background()
	a, other := b.image("a", volref.Ext4, tree), b.image("b", volref.Ext4, tree)
	m := b.open()
	dir, err := m.Local(ctx, other)
	ok(t, err)
	// Nobody serves. A caller that maps gets an error, and a caller that reads waits.
	ok(t, b.child.Process.Signal(unix.SIGSTOP))
	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	begin := time.Now()
	if _, err := m.Local(short, a); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("without storage: %v", err)
	}
	if d, err := m.Local(ctx, other); err != nil || d != dir {
		t.Errorf("the other image: %q, %v", d, err)
	}
	if took := time.Since(begin); took > 2*time.Second {
		t.Errorf("it took %v", took)
	}
	ok(t, b.child.Process.Signal(unix.SIGCONT))
	d, err := m.Local(ctx, a) // the earlier call
	ok(t, err)
	b.want(d, "etc/motd", "hello\n")
	ok(t, errors.Join(m.DropLocal(ctx, "v-a"), m.DropLocal(ctx, "v-b")))
	b.nothing()
}

func TestRefused(t *testing.T) {
	t.Parallel()
	b, ctx := newBed(t), context.Background()
	m := b.open()
	good := b.image("a", volref.Ext4, tree)
	for name, change := range map[string]func(*node.Image){
		"version":     func(i *node.Image) { i.Record.Version = 2 },
		"file system": func(i *node.Image) { i.Record.FS = "ntfs" },
		"features":    func(i *node.Image) { i.Record.Features = []string{"holograms"} },
		"volume":      func(i *node.Image) { i.Volume = "v-other" },
		"no layers":   func(i *node.Image) { i.Record.Layers = nil },
		"missing":     func(i *node.Image) { i.Record = b.imageOf("v-missing", volref.Ext4).Record },
		"wrong fs":    func(i *node.Image) { i.Record.FS = volref.EROFS },
		"credential":  func(i *node.Image) { i.Record.Place.Driver = "rbd" },
	} {
		img := good
		change(&img)
		if _, err := m.Local(ctx, img); err == nil {
			t.Errorf("%s: it was mounted", name)
		} else if name == "missing" && !errors.Is(err, block.ErrNotFound) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := m.Network(ctx, "c", img); err == nil {
			t.Errorf("%s: it was cloned", name)
		}
	}
	b.nothing()
}

// TestRenew checks that credentials are replaced while they are valid.
func TestRenew(t *testing.T) {
	t.Parallel()
	b, ctx := newBed(t), context.Background()
	ok(t, os.WriteFile(b.dir+".denied", []byte("good"), 0o600))
	var mu sync.Mutex
	key, asked := "bad", 0
	b.credential = func(context.Context, bool) (volref.Credential, error) {
		mu.Lock()
		defer mu.Unlock()
		asked++
		return volref.Credential{Key: key, Expires: time.Now().Add(200 * time.Millisecond)}, nil
	}
	img := b.image("a", volref.Ext4, tree)
	m := b.open()
	if _, err := m.Local(ctx, img); !errors.Is(err, block.ErrDenied) {
		t.Fatalf("with a bad credential: %v, want %v", err, block.ErrDenied)
	}
	mu.Lock()
	key = "good"
	mu.Unlock()
	_, err := m.Local(ctx, img)
	ok(t, err)
	st, err := m.Status(ctx)
	ok(t, err)
	if len(st.Volumes) != 1 || st.Volumes[0].State != "mounted" {
		t.Fatalf("status: %+v", st)
	}
	first := st.Volumes[0].Expires
	b.eventually("it is renewed", func() bool {
		m.Sweep()
		st, err := m.Status(ctx)
		return err == nil && st.Volumes[0].Expires.After(first)
	})
	ok(t, m.DropLocal(ctx, "v-a"))
	b.nothing()
}

// TestRevoked checks that a credential which is revoked early is replaced when the storage refuses
// it. What waits for the volume continues.
func TestRevoked(t *testing.T) {
	t.Parallel()
	b, ctx := newBed(t), context.Background()
	accept := func(key string) { ok(t, os.WriteFile(b.dir+".denied", []byte(key), 0o600)) }
	var key atomic.Value
	var asked atomic.Int32
	b.credential = func(context.Context, bool) (volref.Credential, error) {
		asked.Add(1)
		return volref.Credential{Key: key.Load().(string), Expires: time.Now().Add(24 * time.Hour)}, nil
	}
	accept("good")
	key.Store("good")
	img := b.image("a", volref.Ext4, tree)
	m := b.open()
	local, err := m.Local(ctx, img)
	ok(t, err)
	var clones []string
	for _, c := range []string{"c", "d"} {
		dir, err := m.Network(ctx, c, img)
		ok(t, err)
		clones = append(clones, dir)
	}
	had := asked.Load()
	b.kill()
	accept("better")
	key.Store("better")
	b.serve() // opens everything anew on request
	for _, dir := range append(clones, local) {
		b.want(dir, "bin/tool", tree["bin/tool"])
	}
	if n := asked.Load() - had; n != 2 { // one to read, one for clones
		t.Errorf("%d credentials were got for three mounts, want 2", n)
	}
	ok(t, errors.Join(m.DropNetwork(ctx, "c"), m.DropNetwork(ctx, "d"), m.DropLocal(ctx, "v-a")))
	b.nothing()
}

// TestDropWithoutImage checks that a clone can be removed after its image is gone. It may use the
// credential of another image of the place.
func TestDropWithoutImage(t *testing.T) {
	t.Parallel()
	b, ctx := newBed(t), context.Background()
	b.credential = func(context.Context, bool) (volref.Credential, error) { return volref.Credential{User: "u"}, nil }
	img, other := b.image("a", volref.Ext4, tree), b.image("b", volref.EROFS, tree)
	for _, r := range []*volref.Record{&img.Record, &other.Record} {
		r.Place.Driver, r.Place.Pool = "rbd", "pool"
	}
	m := b.open()
	_, err := m.Network(ctx, "c", img)
	ok(t, err)
	ok(t, m.Close())
	m = b.open()
	if err := m.DropNetwork(ctx, "c"); err == nil {
		t.Error("dropped without a credential")
	}
	if got, want := b.counts(), (counts{Clones: 1, Records: 1}); got != want {
		t.Errorf("left: %+v, want %+v", got, want)
	}
	_, err = m.Local(ctx, other)
	ok(t, err)
	ok(t, m.DropNetwork(ctx, "c"))
	ok(t, m.DropLocal(ctx, "v-b"))
	b.nothing()
}
