package agent

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"example.org/slipway/agent/api"
	"example.org/slipway/config"
)

// TestBudget reads three images through a cache that holds fewer than two of them. It uses every
// way that could keep an evicted file: mounts that stay, files that the kernel found in the cache,
// open files, a worker that was killed. The disk never holds more than the budget and one file, and
// all reads are right.
func TestBudget(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	for _, passthrough := range []bool{true, false} {
		t.Run(fmt.Sprintf("passthrough %v", passthrough), func(t *testing.T) { testBudget(t, passthrough) })
	}
}

const budgetFile, budgetFiles, budgetMax = 1 << 20, 12, 20 << 20

func testBudget(t *testing.T, passthrough bool) {
	b := newVolumeBed(t, "local", "ext4", "gear, plain")
	b.end()
	used := b.smallState(160)
	b.configure(fmt.Sprintf("cache: {max_bytes: %d}\nkernel: {passthrough: %v}\n", budgetMax, passthrough))
	b.start()
	base := used()
	check := func(when string) {
		t.Helper()
		if n := used() - base; n > budgetMax+budgetFile+2<<20 { // images' indexes and trees, the journal
			t.Errorf("%s the disk has %d MiB, the budget is %d", when, n>>20, int64(budgetMax)>>20)
		}
	}
	var open []*os.File
	var mounted []string
	for k, name := range []string{"one", "two", "three"} {
		files := map[string]string{}
		for i := range budgetFiles {
			files[fmt.Sprintf("f%02d", i)] = randomText(uint64(100*k+i), budgetFile)
		}
		img := b.push("off/"+name, 0, files)
		for _, at := range []string{name, name + "-again"} { // the second finds files in the cache
			dir := b.mountGear(img, at)
			mounted = append(mounted, dir)
			for i := range budgetFiles {
				path := filepath.Join(dir, fmt.Sprintf("f%02d", i))
				b.read(path, files[filepath.Base(path)])
				check("after a file of " + at)
				if i%5 == 0 && k == 1 {
					f, err := os.Open(path)
					if err != nil {
						t.Fatal(err)
					}
					open = append(open, f)
				}
			}
		}
		if k == 1 {
			b.kill("worker")
			b.eventually("the next worker answers", func() error { _, err := b.caller.Status(t.Context()); return err })
		}
	}
	for _, f := range open {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
	for _, dir := range mounted {
		if err := b.caller.Umount(t.Context(), dir); err != nil {
			t.Error(err)
		}
	}
	check("in the end")
}

// configure adds text to the agent's configuration.
func (b *volumeBed) configure(text string) {
	b.t.Helper()
	f, err := os.OpenFile(b.file, os.O_WRONLY|os.O_APPEND, 0)
	if err == nil {
		_, err = f.WriteString(text)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		b.t.Fatal(err)
	}
	if b.cfg, _, err = config.LoadAgent(b.file, nil); err != nil {
		b.t.Fatal(err)
	}
}

// mountGear mounts an image by files after it was converted.
func (b *volumeBed) mountGear(img *image, at string) (dir string) {
	b.t.Helper()
	dir = filepath.Join(b.dir, at)
	if err := os.Mkdir(dir, 0o755); err != nil {
		b.t.Fatal(err)
	}
	b.eventually("the mount", func() error {
		_, err := b.caller.Mount(b.t.Context(), api.MountRequest{Image: img.ref, Dir: dir, Mode: api.ModeGear})
		return err
	})
	return dir
}

// randomText returns incompressible text.
func randomText(seed uint64, n int) string {
	p := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), 1}).Read(p)
	return string(p)
}

// smallState puts the agent's directory on a separate disk. It returns a function that reports how
// much of that disk is used.
func (b *volumeBed) smallState(mib int64) (used func() int64) {
	b.t.Helper()
	image, dir := filepath.Join(b.dir, "disk"), filepath.Join(b.dir, "state")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		b.t.Fatal(err)
	}
	if err := os.Truncate(image, mib<<20); err != nil {
		b.t.Fatal(err)
	}
	if err := os.RemoveAll(dir); err != nil {
		b.t.Fatal(err)
	}
	for _, c := range [][]string{{"mkdir", dir}, {"mkfs.ext4", "-q", "-F", "-m", "0", image}, {"mount", "-o", "loop", image, dir}} {
		if out, err := exec.Command(c[0], c[1:]...).CombinedOutput(); err != nil {
			b.t.Fatalf("%s: %v: %s", c[0], err, out)
		}
	}
	b.t.Cleanup(func() {
		b.end()
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			b.t.Error(err)
		}
	})
	return func() int64 {
		b.t.Helper()
		var st unix.Statfs_t
		fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			err = unix.Syncfs(fd)
			_ = unix.Close(fd)
		}
		if err == nil {
			err = unix.Statfs(dir, &st)
		}
		if err != nil {
			b.t.Fatal(err)
		}
		return int64(st.Blocks-st.Bfree) * st.Bsize
	}
}
