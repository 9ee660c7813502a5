package ctrnode_test

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"example.org/slipway/integration/internal/ctrnode"
	"example.org/slipway/integration/internal/tool"
)

// TestLimits runs a busy program on a node that has a quarter of a processor and a slow disk. Start
// fails if the disk's limit does not hold; the program's processor time is measured here.
func TestLimits(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("cgroups and disks need root")
	}
	if _, err := os.Stat("/sys/fs/cgroup/blkio/blkio.throttle.write_bps_device"); err != nil {
		t.Skipf("the machine cannot limit disks with cgroup v1: %v", err)
	}
	if _, err := os.Stat(filepath.Join(tool.Dir(), "containerd")); err != nil {
		t.Skipf("tool not installed: %v (scripts/setup.sh test installs it)", err)
	}
	parent, err := os.MkdirTemp("/tmp", "lim")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(parent)
	const share = 0.25
	n, err := ctrnode.Start(t.Context(), ctrnode.Options{Dir: filepath.Join(parent, "n"), NewDisk: true, DiskBytes: 1 << 30,
		Limits: &ctrnode.Limits{CPUs: share, DiskRate: 20e6}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := n.Stop(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat("/sys/fs/cgroup/cpu" + n.Cgroup()); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the node's cgroup is left: %v", err)
		}
	}()
	before, err := n.CPU()
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	p, err := n.Launch("busy", exec.Command("/bin/sh", "-c", "while :; do :; done"))
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(3 * time.Second) // what is measured is a rate
	after, err := n.CPU()
	took := time.Since(begin)
	if err != nil {
		t.Fatal(err)
	}
	p.Signal(syscall.SIGKILL)
	<-p.Exited()
	used := after - before
	t.Logf("%v of processor time in %v", used, took)
	if most := took.Seconds()*share + 0.2; used.Seconds() > most || used < 50*time.Millisecond {
		t.Errorf("used %v in %v, want at most %.2f s and not nothing", used, took, most)
	}
}
