package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"example.org/slipway/agent/api"
	"example.org/slipway/config"
	"example.org/slipway/node/view"
)

// withoutDevices gives the rest of a test and its child processes a /dev with only what every
// program needs.
func withoutDevices(t *testing.T) {
	t.Helper()
	if err := unix.Mount("dev", "/dev", "tmpfs", 0, "mode=755"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount("/dev", unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	for minor, name := range map[int]string{3: "null", 5: "zero", 9: "urandom"} {
		if err := unix.Mknod("/dev/"+name, unix.S_IFCHR|0o666, int(unix.Mkdev(1, uint32(minor)))); err != nil {
			t.Fatal(err)
		}
	}
}

// again ends the agent and starts it with additional configuration.
func (b *volumeBed) again(more string) {
	b.t.Helper()
	b.end()
	text, err := os.ReadFile(b.file)
	if err == nil {
		err = os.WriteFile(b.file, append(text, more...), 0o600)
	}
	if err == nil {
		b.cfg, _, err = config.LoadAgent(b.file, nil)
	}
	if err != nil {
		b.t.Fatal(err)
	}
	b.start()
}

// TestUnpacked runs an agent on machines that cannot mount images lazily, for each possible reason.
// The agent stays up and mounts images that it unpacks. It leaves the layers of pulls to
// containerd. The containers of images that were claimed before also start.
func TestUnpacked(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	for _, c := range []struct {
		name, config string
		devices      bool
	}{
		{"no FUSE", "", false},
		{"no FUSE, and a way that needs it", "kernel: {tier: full}\n", false},
		{"no loop devices, and a way that needs them", "kernel: {tier: loop}\n", true},
		{"as configured", "kernel: {tier: plain}\n", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newVolumeBed(t, "local", "ext4", "gear, plain")
			claimed := b.push("team/claimed", 0, map[string]string{"bin/a": "first", "b": ""}, map[string]string{"c": "second"})
			other := b.push("team/other", 0, map[string]string{"d": "third"})
			ctx, sn := b.snapshots()
			chain := b.pull(ctx, sn, claimed)
			b.end()
			switch {
			case !c.devices:
				withoutDevices(t)
			case strings.Contains(c.config, "loop"):
				if err := unix.Mount("/dev/null", "/dev/loop-control", "", unix.MS_BIND, ""); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = unix.Unmount("/dev/loop-control", unix.MNT_DETACH) })
			}
			b.again(c.config)
			before, err := b.caller.Status(t.Context())
			if err != nil || before.Tier != view.Plain.String() || len(before.Reasons) == 0 {
				t.Fatalf("images are mounted in the way %q, %v (%v)", before.Tier, before.Reasons, err)
			}

			ctx, sn = b.snapshots()
			key := "extract"
			if _, err := sn.Prepare(ctx, key, "", snapshots.WithLabels(other.labels(0, other.chain()))); err != nil {
				t.Errorf("a layer that containerd is to unpack: %v", err)
			}
			if _, err := sn.Stat(ctx, other.chain()); !errdefs.IsNotFound(err) {
				t.Errorf("the layer is there before it was unpacked: %v", err)
			}
			mounts, err := sn.Prepare(ctx, "container", chain)
			if err != nil {
				t.Fatalf("a container of what was claimed before: %v", err)
			}
			b.in(mounts, func(dir string) {
				b.read(filepath.Join(dir, "bin/a"), "first")
				b.read(filepath.Join(dir, "c"), "second")
				if err := os.WriteFile(filepath.Join(dir, "c"), []byte("changed"), 0o600); err != nil {
					t.Error(err)
				}
			})
			for n, rw := range []bool{false, true, false} {
				at := filepath.Join(b.dir, fmt.Sprint("m", n))
				if err := os.Mkdir(at, 0o755); err != nil {
					t.Fatal(err)
				}
				req := api.MountRequest{Image: other.ref, Dir: at}
				if rw {
					req.Upper = at + ".upper"
				}
				m, err := b.caller.Mount(t.Context(), req)
				if err != nil {
					t.Fatal(err)
				}
				if got := strings.Join(m.Why, "; "); !strings.Contains(got, "unpacked by the agent") {
					t.Errorf("the way it came: %s", got)
				}
				b.read(filepath.Join(at, "d"), "third")
				if err := os.WriteFile(filepath.Join(at, "new"), nil, 0o600); (err == nil) != rw {
					t.Errorf("writing to a mount, %v: %v", rw, err)
				}
				if n == 2 {
					continue // stays over the next start
				}
				f, err := os.Open(filepath.Join(at, "d"))
				if err != nil {
					t.Fatal(err)
				}
				if err := b.caller.Umount(t.Context(), at); err == nil {
					t.Error("a mount in use was taken away")
				}
				b.read(filepath.Join(at, "d"), "third")
				if err := f.Close(); err != nil {
					t.Error(err)
				}
				if err := b.caller.Umount(t.Context(), at); err != nil {
					t.Error(err)
				}
			}
			if !c.devices { // it has nothing to do with the registry
				_, err := b.caller.Mount(t.Context(), api.MountRequest{Image: other.ref, Dir: b.dir, Mode: api.ModeLocal})
				if err == nil || !strings.Contains(err.Error(), "FUSE") || strings.Contains(err.Error(), "registry") {
					t.Errorf("a volume: %v", err)
				}
			}
			time.Sleep(time.Second) // a worker that dies early is restarted within that time
			after, err := b.caller.Status(t.Context())
			if err != nil || after.PID != before.PID {
				t.Errorf("the worker was %d and is %d (%v)", before.PID, after.PID, err)
			}
			b.again("")
			b.read(filepath.Join(b.dir, "m2/d"), "third")
			if err := b.caller.Umount(t.Context(), filepath.Join(b.dir, "m2")); err != nil {
				t.Error(err)
			}
			ctx, sn = b.snapshots()
			b.remove(ctx, sn, "container", key)
			if err := sn.Remove(ctx, chain); err != nil {
				t.Error(err)
			}
		})
	}
}
