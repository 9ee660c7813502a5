package ctrnode

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Limits bound a node, so that nodes which share a machine are like machines of their own. The
// zero value bounds nothing, but a node with limits counts its processor time.
type Limits struct {
	// CPUs is how many processors the node's programs and containers may use together. 0 means
	// all.
	CPUs float64
	// DiskRate is how many bytes a second the node's own disk reads, and how many it writes. 0
	// means as many as it can. It needs NewDisk, and cgroup v1: only there can writes be bound
	// that the kernel makes on behalf of programs. What a container reads or syncs itself is
	// not bound.
	DiskRate int64
}

const (
	cgroups = "/sys/fs/cgroup"
	// quotaPeriod is the kernel's usual period of a quota, in microseconds.
	quotaPeriod = 100_000
	// holds is the least share of the expected time that a check of a disk must take. The
	// kernel lets the first tenth of a second pass at once.
	holds = 0.8
)

// limit sets the node's limits. It is called before its programs start.
func (n *Node) limit() error {
	if n.o.Limits == nil {
		return nil
	}
	if err := n.MakeCgroup(); err != nil {
		return err
	}
	if cpus := n.o.Limits.CPUs; cpus > 0 {
		quota := strconv.Itoa(int(cpus * quotaPeriod))
		file := filepath.Join(cgroups, "cpu", n.Cgroup(), "cpu.cfs_quota_us")
		if unified() {
			file, quota = filepath.Join(cgroups, n.Cgroup(), "cpu.max"), fmt.Sprint(quota, " ", quotaPeriod)
		}
		if err := os.WriteFile(file, []byte(quota), 0o644); err != nil {
			return fmt.Errorf("limit processors: %w", err)
		}
	}
	if rate := n.o.Limits.DiskRate; rate > 0 {
		if !n.o.NewDisk {
			return errors.New("only a disk of its own can be limited")
		}
		if err := throttle(n.Dir, rate); err != nil {
			return fmt.Errorf("limit disk: %w", err)
		}
		return checkThrottle(n.Dir, rate)
	}
	return nil
}

// unified reports whether the machine has cgroup v2 alone.
func unified() bool {
	_, err := os.Stat(filepath.Join(cgroups, "cgroup.controllers"))
	return err == nil
}

// throttle bounds the rate of the disk that is mounted at a directory. 0 lifts the bound. The
// root group is bound, because the kernel writes cached data in its name.
func throttle(dir string, rate int64) error {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return err
	}
	rule := fmt.Appendf(nil, "%d:%d %d", unix.Major(st.Dev), unix.Minor(st.Dev), rate)
	var errs []error
	for _, way := range []string{"read", "write"} {
		// Without O_CREATE: where the file is missing, the kernel cannot bind.
		f, err := os.OpenFile(filepath.Join(cgroups, "blkio", "blkio.throttle."+way+"_bps_device"), os.O_WRONLY, 0)
		if err == nil {
			_, err = f.Write(rule)
			err = errors.Join(err, f.Close())
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// checkThrottle writes and reads what the disk may write and read in a second, and returns an
// error if either was faster than the limit.
func checkThrottle(dir string, rate int64) (err error) {
	path := filepath.Join(dir, "throttle")
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(path)) }()
	took := func(what string, do func() error) error {
		begin := time.Now()
		if err := do(); err != nil {
			return err
		}
		if took := time.Since(begin).Seconds(); took < holds {
			return fmt.Errorf("the disk's limit of %d bytes a second does not hold: as many were %s in %.2f s", rate, what, took)
		}
		return nil
	}
	if err := took("written", func() error {
		_, err := io.CopyN(f, zeros{}, rate)
		return errors.Join(err, unix.Syncfs(int(f.Fd())))
	}); err != nil {
		return err
	}
	return took("read", func() error {
		_, err := f.Seek(0, io.SeekStart)
		if err = errors.Join(err, unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)); err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, f)
		return err
	})
}

// zeros is an endless reader of zeros.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// enclose turns a command into one that runs in the node's cgroup, and so within its limit of
// processors. It stays out of the group for disks, because a limit holds only for the root group.
func (n *Node) enclose(cmd *exec.Cmd) *exec.Cmd {
	if n.o.Limits == nil {
		return cmd
	}
	const script = `for g in $1; do echo $$ >$g/cgroup.procs; done
shift
exec "$@"`
	cmd.Args = append([]string{"/bin/sh", "-ec", script, "sh", strings.Join(n.cpuGroups(), " "), cmd.Path}, cmd.Args[1:]...)
	cmd.Path = "/bin/sh"
	return cmd
}

// cpuGroups returns the directories of the node's cgroup that bound and count processor time.
func (n *Node) cpuGroups() []string {
	if unified() {
		return []string{cgroups + n.Cgroup()}
	}
	return []string{cgroups + "/cpu" + n.Cgroup(), cgroups + "/cpuacct" + n.Cgroup()}
}

// RunArgs returns the arguments of ctr run that put a container into the node's cgroup.
func (n *Node) RunArgs(id string) []string {
	if n.o.Limits == nil {
		return nil
	}
	return []string{"--cgroup", n.Cgroup() + "/" + id}
}

// CPU returns the processor time that the node's programs and containers have used. It needs
// Limits.
func (n *Node) CPU() (time.Duration, error) {
	if !unified() {
		b, err := os.ReadFile(filepath.Join(cgroups, "cpuacct", n.Cgroup(), "cpuacct.usage"))
		if err != nil {
			return 0, err
		}
		ns, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
		return time.Duration(ns), err
	}
	b, err := os.ReadFile(filepath.Join(cgroups, n.Cgroup(), "cpu.stat"))
	if err != nil {
		return 0, err
	}
	var us int64
	_, err = fmt.Sscanf(string(b), "usage_usec %d", &us)
	return time.Duration(us) * time.Microsecond, err
}

// lift removes the limit of the node's disk, whose number another disk may get.
func (n *Node) lift() error {
	if n.o.Limits == nil || n.o.Limits.DiskRate == 0 || !n.o.NewDisk {
		return nil
	}
	return throttle(n.Dir, 0)
}
