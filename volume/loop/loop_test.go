package loop_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"example.org/slipway/internal/mounttest"
	"example.org/slipway/volume/loop"
)

func TestMain(m *testing.M) { mounttest.Main(m) }

// image makes a file of the given size in which every 4,096 bytes differ.
func image(t *testing.T, size int) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("loop devices need root")
	}
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(i >> 12)
	}
	path := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func attach(t *testing.T, path string, o loop.Options) *loop.Device {
	t.Helper()
	d, err := loop.AttachPath(path, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// freed waits until no device uses a file.
func freed(t *testing.T, path string) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		found, err := mounttest.LoopDevices(path)
		if err != nil {
			t.Fatal(err)
		}
		if len(found) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("devices of %s are left: %v", path, found)
		}
	}
}

func TestAttach(t *testing.T) {
	path := image(t, 1<<20)
	for _, o := range []loop.Options{{}, {ReadOnly: true}, {DirectIO: true}, {ReadOnly: true, DirectIO: true, Offset: 8192}} {
		d := attach(t, path, o)
		found, err := mounttest.LoopDevices(path)
		if err != nil || len(found) != 1 || found[0] != d.Path() {
			t.Errorf("%+v: found %v, %v, want %s", o, found, err, d.Path())
		}
		f, err := os.OpenFile(d.Path(), os.O_RDONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 4096)
		if _, err := f.ReadAt(b, 4096); err != nil || b[0] != byte((4096+o.Offset)>>12) {
			t.Errorf("%+v: block 1 has %d, %v", o, b[0], err)
		}
		f.Close()
		f, err = os.OpenFile(d.Path(), os.O_RDWR, 0)
		if err == nil {
			_, err = f.WriteAt(b, 0)
			f.Close()
		}
		if (err != nil) != o.ReadOnly {
			t.Errorf("%+v: a write: %v", o, err)
		}
		dio, err := os.ReadFile(filepath.Join("/sys/block", filepath.Base(d.Path()), "loop/dio"))
		if err != nil || o.DirectIO && strings.TrimSpace(string(dio)) != "1" {
			t.Logf("%+v: the file system of %s has no direct I/O: %q, %v", o, path, dio, err)
		}
		for range 2 {
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		}
		freed(t, path)
	}
}

// TestParallel checks that concurrent calls each get their own device.
func TestParallel(t *testing.T) {
	path := image(t, 1<<20)
	const n = 12
	devices := make([]*loop.Device, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			var err error
			if devices[i], err = loop.AttachPath(path, loop.Options{ReadOnly: true}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	seen := map[string]bool{}
	for _, d := range devices {
		if d == nil {
			continue
		}
		if seen[d.Path()] {
			t.Errorf("%s twice", d.Path())
		}
		seen[d.Path()] = true
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
	freed(t, path)
}

// TestMounted checks that a mounted device stays when its maker is gone, and is removed with the
// mount.
func TestMounted(t *testing.T) {
	path := image(t, 16<<20)
	mkfs, err := exec.LookPath("mkfs.ext4")
	if err != nil {
		t.Skip("no mkfs.ext4: ", err)
	}
	if out, err := exec.Command(mkfs, "-q", "-F", path).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	d := attach(t, path, loop.Options{DirectIO: true})
	dir := t.TempDir()
	if err := unix.Mount(d.Path(), dir, "ext4", 0, ""); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	want := bytes.Repeat([]byte("slipway "), 10_000)
	if err := os.WriteFile(filepath.Join(dir, "file"), want, 0o600); err != nil {
		t.Fatal(err)
	}
	found, err := mounttest.LoopDevices(path)
	if err != nil || len(found) != 1 {
		t.Fatalf("found %v, %v, want one", found, err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "file")); err != nil || !bytes.Equal(got, want) {
		t.Errorf("got %d bytes, %v, want %d", len(got), err, len(want))
	}
	if err := unix.Unmount(dir, 0); err != nil {
		t.Fatal(err)
	}
	freed(t, path)
}

func TestRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("loop devices need root")
	}
	if _, err := loop.AttachPath(filepath.Join(t.TempDir(), "none"), loop.Options{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no such file: %v", err)
	}
	if _, err := loop.AttachPath(t.TempDir(), loop.Options{ReadOnly: true}); err == nil {
		t.Error("a directory became a device")
	}
}
