package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"example.org/slipway/agent/api"
)

// umount calls umount(2) again while the directory is busy. When a file is read for the first time
// and closed, the kernel is not yet done with it when close returns.
func umount(t *testing.T, dir string, flags int) {
	t.Helper()
	err := unix.Unmount(dir, flags)
	for n := 0; errors.Is(err, unix.EBUSY) && n < 100; n++ {
		time.Sleep(time.Millisecond)
		err = unix.Unmount(dir, flags)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestMountPowers mounts an image in every way that a request can ask for. The mount has the powers
// that were requested, and by default none.
func TestMountPowers(t *testing.T) {
	b := newVolumeBed(t, "local", "ext4", "gear, plain")
	b.mountsOnceBuilt()
	img := b.push("team/app", 1, map[string]string{"a": "first"})
	n := 0
	for _, mode := range []string{api.ModeAuto, api.ModeGear, api.ModeLocal, api.ModeNetwork} {
		for _, rw := range []bool{false, true} {
			if rw && mode == api.ModeNetwork {
				continue // a clone accepts writes
			}
			for powers := range 4 {
				n++
				at := filepath.Join(b.dir, fmt.Sprint("powers", n))
				if err := os.Mkdir(at, 0o755); err != nil {
					t.Fatal(err)
				}
				req := api.MountRequest{Image: img.ref, Dir: at, Mode: mode, Suid: powers&1 != 0, Dev: powers&2 != 0}
				if rw {
					req.Upper = at + ".upper"
				}
				if _, err := b.caller.Mount(t.Context(), req); err != nil {
					t.Fatalf("%+v: %v", req, err)
				}
				var st unix.Statfs_t
				if err := unix.Statfs(at, &st); err != nil {
					t.Fatal(err)
				}
				if suid, dev := st.Flags&unix.ST_NOSUID == 0, st.Flags&unix.ST_NODEV == 0; suid != req.Suid || dev != req.Dev {
					t.Errorf("mode %s, upper %q: set-user-id programs work %v and devices %v, want %v and %v", mode, req.Upper, suid, dev, req.Suid, req.Dev)
				}
				b.read(filepath.Join(at, "a"), "first")
				if err := b.caller.Umount(t.Context(), at); err != nil {
					t.Error(err)
				}
			}
		}
	}
}

// TestPlainUmount checks that a mount of any kind that somebody removed with umount(8) is gone for
// the agent, too. It can be made again, also in another way, and nothing counts as running that is
// not.
func TestPlainUmount(t *testing.T) {
	b := newVolumeBed(t, "local", "ext4", "gear, plain")
	b.mountsOnceBuilt()
	img := b.push("team/app", 1, map[string]string{"a": "first"})
	modes := []string{api.ModeGear, api.ModeLocal, api.ModeNetwork, api.ModeGear}
	for i, mode := range modes {
		for n, flags := range []int{0, unix.MNT_DETACH} {
			at := filepath.Join(b.dir, "at")
			if err := os.MkdirAll(at, 0o755); err != nil {
				t.Fatal(err)
			}
			req := api.MountRequest{Image: img.ref, Dir: at, Mode: mode}
			if mode != api.ModeNetwork && (i+n)%2 == 0 {
				req.Upper = at + ".upper"
			}
			if _, err := b.caller.Mount(t.Context(), req); err != nil {
				t.Fatalf("%+v: %v", req, err)
			}
			b.read(filepath.Join(at, "a"), "first")
			if _, err := b.caller.Mount(t.Context(), req); err == nil {
				t.Errorf("%+v is mounted twice", req)
			}
			umount(t, at, flags)
		}
	}
	other := filepath.Join(b.dir, "other")
	if err := os.Mkdir(other, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := b.caller.Mount(t.Context(), api.MountRequest{Image: img.ref, Dir: other}); err != nil {
		t.Fatal(err)
	}
	s, err := b.caller.Status(t.Context())
	if err != nil || len(s.Mounts) != 1 || len(s.Containers) != 1 {
		t.Errorf("one mount is there, and %+v and containers %+v are known (%v)", s.Mounts, s.Containers, err)
	}
	if err := b.caller.Umount(t.Context(), other); err != nil {
		t.Error(err)
	}
	b.noUse()
}
