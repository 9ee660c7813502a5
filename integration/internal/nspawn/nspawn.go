// Package nspawn boots Debian systems with their own systemd, in systemd-nspawn. scripts/setup.sh
// systemd makes the system that each test gets a copy of. The package needs root.
package nspawn

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"example.org/slipway/integration/internal/proc"
	"example.org/slipway/integration/internal/tool"
)

// patience bounds what takes seconds, on a machine that has other work.
const patience = 3 * time.Minute

// Machine is a Debian system. Its tools are at /opt/tools.
type Machine struct {
	// Root is its directory as seen from outside.
	Root string
	// Env is the environment of the programs outside that deal with it.
	Env *tool.Env
	// PID is the id of its first process.
	PID int
	// Unified gives it control groups of version 2 only, whatever this machine has. On a machine of
	// version 1 they have no controllers, and so no limits.
	Unified bool

	process *proc.Process
}

// Unpack makes a system that has not been booted.
func Unpack(t *testing.T) *Machine {
	t.Helper()
	tool.NeedRoot(t)
	for _, name := range []string{"systemd-nspawn", "nsenter"} {
		tool.System(t, name)
	}
	archives, _ := filepath.Glob(filepath.Join(filepath.Dir(tool.Dir()), "systemd-*.tar")) // the pattern is good
	if len(archives) == 0 {
		t.Skip("tool not installed: systemd-*.tar (scripts/setup.sh systemd makes it)")
	}
	dir := tool.ShortTempDir(t)
	m := &Machine{Root: filepath.Join(dir, "root"), Env: tool.NewEnv(dir)}
	if err := os.Mkdir(m.Root, 0o755); err != nil {
		t.Fatal(err)
	}
	m.Env.Run(t, "tar", "-x", "--numeric-owner", "--exclude=./dev/*", "-C", m.Root, "-f", archives[0])
	return m
}

// Launch boots the machine with more flags of systemd-nspawn, such as those for the network, and
// finds its first process. The machine is halted at the end of the test.
func (m *Machine) Launch(t *testing.T, flags ...string) {
	t.Helper()
	// systemd-nspawn first joins the groups, and makes its own groups below them.
	const script = `for g in $1; do echo $$ >$g/cgroup.procs; done
shift
exec systemd-nspawn "$@"`
	calls := "@keyring"
	if m.Unified {
		calls += " bpf" // by which version 2 decides about devices
	}
	cmd := exec.Command("sh", append([]string{"-ec", script, "sh", strings.Join(ownGroups(t, filepath.Base(m.Env.Dir())), " "), "-D", m.Root, "--register=no", "--keep-unit", "--boot",
		"--console=pipe", "--capability=all", "--system-call-filter=" + calls, "--bind=/dev/fuse", "--bind-ro=" + tool.Dir() + ":/opt/tools"}, flags...)...)
	cmd.Env = m.Env.Vars()
	if m.Unified {
		cmd.Env = append(cmd.Env, "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1")
	}
	m.process = proc.Start(t, cmd, filepath.Join(m.Env.Dir(), "nspawn.log"))
	t.Cleanup(func() { m.Halt(t) })
	proc.Poll(t, patience, "the first process of the machine", func() bool {
		m.Alive(t)
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", m.process.Pid(), m.process.Pid()))
		if fields := strings.Fields(string(b)); len(fields) == 1 {
			m.PID, _ = strconv.Atoi(fields[0])
		}
		if m.PID == 0 {
			return false
		}
		_, err := os.Stat(m.Path("/run/systemd/private"))
		return err == nil
	})
}

// Alive fails the test if the machine is gone.
func (m *Machine) Alive(t *testing.T) {
	t.Helper()
	select {
	case <-m.process.Exited():
		t.Fatalf("the machine ended (%s):\n%s", m.process.State(), m.process.Log(4<<10))
	default:
	}
}

// Halt shuts the machine down, and returns how long that took.
func (m *Machine) Halt(t *testing.T) time.Duration {
	t.Helper()
	began := time.Now()
	m.process.Signal(syscall.SIGTERM)
	select {
	case <-m.process.Exited():
	case <-time.After(patience):
		t.Errorf("the machine does not shut down:\n%s", m.process.Log(4<<10))
		m.process.Kill()
	}
	return time.Since(began)
}

// ownGroups makes cgroups below which the machine has its own, for systemd's hierarchies of cgroup
// version 1. Two machines would otherwise share them.
func ownGroups(t *testing.T, name string) (dirs []string) {
	t.Helper()
	for _, hierarchy := range []string{"systemd", "unified"} {
		base := filepath.Join("/sys/fs/cgroup", hierarchy)
		if _, err := os.Stat(filepath.Join(base, "cgroup.procs")); err != nil {
			continue
		}
		dir := filepath.Join(base, name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		dirs = append(dirs, dir)
		t.Cleanup(func() {
			if err := removeGroups(dir); err != nil {
				t.Errorf("control groups are left: %v", err)
			}
		})
	}
	return dirs
}

// removeGroups removes a cgroup and those below it. A process that has just ended may still be in
// one.
func removeGroups(dir string) error {
	for end := time.Now().Add(time.Minute); ; <-time.After(50 * time.Millisecond) {
		var dirs []string
		err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, name)
			}
			return err
		})
		for _, d := range slices.Backward(dirs) {
			err = errors.Join(err, os.Remove(d))
		}
		if err == nil || time.Now().After(end) {
			return err
		}
	}
}

// Path returns the path, seen from outside, of a file in the running machine.
func (m *Machine) Path(name string) string { return fmt.Sprintf("/proc/%d/root%s", m.PID, name) }

// Write writes a file of the machine, whether it runs or not. An existing file keeps its owner and
// mode.
func (m *Machine) Write(t *testing.T, name, text string) {
	t.Helper()
	file := filepath.Join(m.Root, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// inside returns the arguments of nsenter that run a command in the machine, as root.
func (m *Machine) inside(args []string) []string {
	return append([]string{"-t", strconv.Itoa(m.PID), "-m", "-u", "-i", "-p", "-n", "--wdns=/root", "--", "env", "-i",
		"PATH=/usr/local/bin:/opt/tools:/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C", "HOME=/root"}, args...)
}

// Command returns a command of the machine that has not been started.
func (m *Machine) Command(args ...string) *exec.Cmd {
	cmd := exec.Command("nsenter", m.inside(args)...)
	cmd.Env = m.Env.Vars()
	return cmd
}

// Run runs a command in the machine that must succeed.
func (m *Machine) Run(t *testing.T, args ...string) string {
	t.Helper()
	return m.Env.Run(t, "nsenter", m.inside(args)...)
}

// Fails runs a command that must fail and returns what it printed.
func (m *Machine) Fails(t *testing.T, args ...string) string {
	t.Helper()
	return m.Env.RunFailing(t, "nsenter", m.inside(args)...)
}

// Try runs a command in the machine. If it fails, the text is that of the error.
func (m *Machine) Try(ctx context.Context, args ...string) (string, error) {
	out, err := m.Env.Try(ctx, "nsenter", m.inside(args)...)
	if err != nil {
		return err.Error(), err
	}
	return out, nil
}
