package systemd

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

// machine is a Debian that systemd has booted, with its own network.
type machine struct {
	root   string // its directory as seen from outside
	pid    int    // of its first process
	nspawn *proc.Process
	env    *tool.Env
	// booted is the time until everything was running.
	booted time.Duration
}

// boot unpacks the system that scripts/setup.sh made, and boots it.
func boot(t *testing.T) *machine {
	t.Helper()
	tool.NeedRoot(t)
	for _, name := range []string{"systemd-nspawn", "nsenter", "curl", "skopeo"} {
		tool.System(t, name)
	}
	archives, _ := filepath.Glob(filepath.Join(filepath.Dir(tool.Dir()), "systemd-*.tar"))
	if len(archives) == 0 {
		t.Skip("tool not installed: systemd-*.tar (scripts/setup.sh systemd makes it)")
	}
	dir := tool.ShortTempDir(t)
	m := &machine{root: filepath.Join(dir, "root"), env: tool.NewEnv(dir)}
	if err := os.Mkdir(m.root, 0o755); err != nil {
		t.Fatal(err)
	}
	m.env.Run(t, "tar", "-x", "--numeric-owner", "--exclude=./dev/*", "-C", m.root, "-f", archives[0])
	m.write(t, "/etc/dpkg/dpkg.cfg.d/quick", "force-unsafe-io\n")
	m.containerd(t)
	began := time.Now()
	m.launch(t, ownGroups(t, filepath.Base(dir)))
	m.await(t)
	m.booted = time.Since(began)
	return m
}

// launch starts systemd-nspawn and finds the machine's first process. systemd-nspawn first joins
// the groups, and makes its own groups below them.
func (m *machine) launch(t *testing.T, groups []string) {
	t.Helper()
	const script = `for g in $1; do echo $$ >$g/cgroup.procs; done
shift
exec systemd-nspawn "$@"`
	cmd := exec.Command("sh", "-ec", script, "sh", strings.Join(groups, " "), "-D", m.root, "--register=no", "--keep-unit", "--boot",
		"--console=pipe", "--private-network", "--capability=all", "--system-call-filter=@keyring", "--bind=/dev/fuse", "--bind-ro="+tool.Dir()+":/opt/tools")
	cmd.Env = m.env.Vars()
	m.nspawn = proc.Start(t, cmd, filepath.Join(m.env.Dir(), "nspawn.log"))
	t.Cleanup(func() { m.halt(t) })
	proc.Poll(t, patience, "the first process of the machine", func() bool {
		m.alive(t)
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", m.nspawn.Pid(), m.nspawn.Pid()))
		if fields := strings.Fields(string(b)); len(fields) == 1 {
			m.pid, _ = strconv.Atoi(fields[0])
		}
		if m.pid == 0 {
			return false
		}
		_, err := os.Stat(m.path("/run/systemd/private"))
		return err == nil
	})
}

// await waits until everything has started, and fails the test if anything has failed to start.
func (m *machine) await(t *testing.T) {
	t.Helper()
	state := ""
	proc.Poll(t, patience, "a machine that runs", func() bool {
		m.alive(t)
		state, _ = m.try(t.Context(), "systemctl", "is-system-running")
		return state == "running" || strings.Contains(state, "degraded")
	})
	if state != "running" {
		t.Fatalf("the machine is %s:\n%s", state, m.run(t, "systemctl", "--failed", "--no-pager"))
	}
}

// alive fails the test if the machine is gone.
func (m *machine) alive(t *testing.T) {
	t.Helper()
	select {
	case <-m.nspawn.Exited():
		t.Fatalf("the machine ended (%s):\n%s", m.nspawn.State(), m.nspawn.Log(4<<10))
	default:
	}
}

// halt shuts the machine down, and returns how long that took.
func (m *machine) halt(t *testing.T) time.Duration {
	t.Helper()
	began := time.Now()
	m.nspawn.Signal(syscall.SIGTERM)
	select {
	case <-m.nspawn.Exited():
	case <-time.After(patience):
		t.Errorf("the machine does not shut down:\n%s", m.nspawn.Log(4<<10))
		m.nspawn.Kill()
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

// path returns the path, seen from outside, of a file in the running machine.
func (m *machine) path(name string) string { return fmt.Sprintf("/proc/%d/root%s", m.pid, name) }

// write writes a file of the machine, whether it runs or not. An existing file keeps its owner and
// mode.
func (m *machine) write(t *testing.T, name, text string) {
	t.Helper()
	file := filepath.Join(m.root, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func (m *machine) inside(args ...string) []string {
	return append([]string{"-t", strconv.Itoa(m.pid), "-m", "-u", "-i", "-p", "-n", "--wdns=/root", "--", "env", "-i",
		"PATH=/opt/tools:/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C", "HOME=/root"}, args...)
}

// command returns a command of the machine that has not been started.
func (m *machine) command(args ...string) *exec.Cmd {
	cmd := exec.Command("nsenter", m.inside(args...)...)
	cmd.Env = m.env.Vars()
	return cmd
}

// run runs a command in the machine, as root; it must succeed.
func (m *machine) run(t *testing.T, args ...string) string {
	t.Helper()
	return m.env.Run(t, "nsenter", m.inside(args...)...)
}

func (m *machine) try(ctx context.Context, args ...string) (string, error) {
	out, err := m.env.Try(ctx, "nsenter", m.inside(args...)...)
	if err != nil {
		return err.Error(), err
	}
	return out, nil
}

// fails runs a command that must fail and returns what it printed.
func (m *machine) fails(t *testing.T, args ...string) string {
	t.Helper()
	return m.env.RunFailing(t, "nsenter", m.inside(args...)...)
}

// outside runs a program of the test's machine with the network of this one.
func (m *machine) outside(t *testing.T, args ...string) string {
	t.Helper()
	return m.env.Run(t, "nsenter", append([]string{"-t", strconv.Itoa(m.pid), "-n", "--"}, args...)...)
}

// show returns a property of a unit.
func (m *machine) show(t *testing.T, unit, property string) string {
	t.Helper()
	return m.run(t, "systemctl", "show", "--value", "-p", property, unit)
}

// count returns a property that is a number.
func (m *machine) count(t *testing.T, unit, property string) int {
	t.Helper()
	n, err := strconv.Atoi(m.show(t, unit, property))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// active fails the test unless units run.
func (m *machine) active(t *testing.T, units ...string) {
	t.Helper()
	for _, u := range units {
		if got := m.show(t, u, "ActiveState"); got != "active" {
			t.Fatalf("%s is %s:\n%s", u, got, m.journal(t, u))
		}
	}
}

// journal returns the end of a unit's log.
func (m *machine) journal(t *testing.T, unit string) string {
	t.Helper()
	return m.run(t, "journalctl", "--no-pager", "-n", "40", "-u", unit)
}
