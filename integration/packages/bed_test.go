package packages

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"example.org/slipway/integration/internal/proc"
	made "example.org/slipway/integration/internal/release"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/tool"
)

// Two versions are made from the same sources.
const (
	version = "0.2.0"
	newer   = "0.2.1"
)

// builds holds what release has already made, by its arguments.
var builds struct {
	sync.Mutex
	dir  string
	made map[string]error
}

// TestMain makes a key with which releases are signed.
func TestMain(m *testing.M) {
	key, err := os.CreateTemp("", "slipway-key")
	if err != nil {
		panic(err)
	}
	if out, err := exec.Command("openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", key.Name()).CombinedOutput(); err != nil {
		panic(fmt.Sprint(err, string(out)))
	}
	os.Setenv("RELEASE_KEY", key.Name())
	status := m.Run()
	_ = os.Remove(key.Name())
	if builds.dir != "" {
		_ = os.RemoveAll(builds.dir)
	}
	os.Exit(status)
}

// release makes packages of a version with the binary under test, once for all tests. It returns
// their directory.
func release(t *testing.T, version string, kinds ...string) string {
	t.Helper()
	builds.Lock()
	defer builds.Unlock()
	if builds.dir == "" {
		dir, err := os.MkdirTemp("", "slipway-packages")
		if err != nil {
			t.Fatal(err)
		}
		builds.dir, builds.made = dir, map[string]error{}
	}
	key := version + "-" + strings.Join(kinds, "-")
	out := filepath.Join(builds.dir, key)
	if _, ok := builds.made[key]; !ok {
		builds.made[key] = made.Make(t.Context(), slipway.Binary(t), version, out, kinds...)
	}
	if err := builds.made[key]; err != nil {
		t.Fatal(err)
	}
	return out
}

// debian is a Debian system without systemd, with its own mounts, processes and network.
type debian struct {
	// root is its directory as seen from outside, without anything that is mounted in it.
	root string
	pid  int // of its first process
	env  *tool.Env
}

// startDebian unpacks the system that scripts/setup.sh made and starts its first process.
func startDebian(t *testing.T) *debian {
	t.Helper()
	tool.NeedRoot(t)
	for _, name := range []string{"unshare", "nsenter", "curl", "skopeo"} {
		tool.System(t, name)
	}
	archives, _ := filepath.Glob(filepath.Join(filepath.Dir(tool.Dir()), "debian-*.tar"))
	if len(archives) == 0 {
		t.Skip("tool not installed: debian-*.tar (scripts/setup.sh test makes it)")
	}
	dir := tool.ShortTempDir(t)
	d := &debian{root: filepath.Join(dir, "root"), env: tool.NewEnv(dir)}
	if err := os.Mkdir(d.root, 0o755); err != nil {
		t.Fatal(err)
	}
	d.env.Run(t, "tar", "-x", "--numeric-owner", "--exclude=./dev/*", "-C", d.root, "-f", archives[0])
	// What a power cut would leave of the system does not matter.
	if err := os.WriteFile(filepath.Join(d.root, "etc/dpkg/dpkg.cfg.d/quick"), []byte("force-unsafe-io\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	// The shell that becomes the first process waits, and so reaps orphaned processes.
	const first = `set -e
cd "$1"
mount --bind . . && cd "$1"
mount -t proc proc proc
mount -t tmpfs run run
mount --rbind /dev dev && mount --make-rprivate dev
mkdir -p mnt/old
pivot_root . mnt/old && umount -l mnt/old
ip link set lo up 2>/dev/null || true
: > /run/ready
sleep infinity & wait`
	cmd := exec.Command("unshare", "--mount", "--pid", "--net", "--fork", "--kill-child", "--propagation", "private", "sh", "-c", first, "sh", d.root)
	cmd.Env = d.env.Vars()
	p := proc.Start(t, cmd, filepath.Join(dir, "first.log"))
	proc.Poll(t, time.Minute, "the first process of the Debian system", func() bool {
		select {
		case <-p.Exited():
			t.Fatalf("it ended (%s):\n%s", p.State(), p.Log(4<<10))
		default:
		}
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", p.Pid(), p.Pid()))
		if fields := strings.Fields(string(b)); len(fields) == 1 {
			d.pid, _ = strconv.Atoi(fields[0])
		}
		if d.pid == 0 {
			return false
		}
		_, err := os.Stat(d.path("/run/ready"))
		return err == nil
	})
	d.env.Run(t, "nsenter", "-t", strconv.Itoa(d.pid), "-n", "ip", "link", "set", "lo", "up")
	return d
}

// path returns the path, seen from outside, of a file in the system.
func (d *debian) path(name string) string { return fmt.Sprintf("/proc/%d/root%s", d.pid, name) }

func (d *debian) inside(args ...string) []string {
	return append([]string{"-t", strconv.Itoa(d.pid), "-m", "-p", "-n", "--wdns=/", "--", "env", "-i",
		"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C", "HOME=/root"}, args...)
}

// run runs a command in the system; it must succeed.
func (d *debian) run(t *testing.T, args ...string) string {
	t.Helper()
	return d.env.Run(t, "nsenter", d.inside(args...)...)
}

// outside runs a program of this machine with the network of the system.
func (d *debian) outside(t *testing.T, args ...string) string {
	t.Helper()
	return d.env.Run(t, "nsenter", append([]string{"-t", strconv.Itoa(d.pid), "-n", "--"}, args...)...)
}

// start starts a daemon by hand, because nothing else would, and records its process id.
func (d *debian) start(t *testing.T, name, command string) *proc.Process {
	t.Helper()
	cmd := exec.Command("nsenter", d.inside("sh", "-c", "echo $$ > /run/"+name+".pid; exec "+command)...)
	cmd.Env = d.env.Vars()
	return proc.Start(t, cmd, filepath.Join(d.env.Dir(), name+".log"))
}

// stop ends a daemon with SIGTERM and waits for it.
func (d *debian) stop(t *testing.T, name string, p *proc.Process) {
	t.Helper()
	d.run(t, "sh", "-c", "kill $(cat /run/"+name+".pid)")
	select {
	case <-p.Exited():
	case <-time.After(time.Minute):
		t.Fatalf("%s does not end:\n%s", name, p.Log(4<<10))
	}
}

// install installs a package of a version as an administrator does. For the first version,
// SLIPWAY_UPGRADE_FROM may name a package made from other sources.
func (d *debian) install(t *testing.T, v string) string {
	t.Helper()
	name := made.Deb(v)
	from := os.Getenv("SLIPWAY_UPGRADE_FROM")
	if from == "" || v != version {
		from = filepath.Join(release(t, v, debs(v)...), name)
	}
	data, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(d.path("/tmp/"+name), data, 0o644); err != nil {
		t.Fatal(err)
	}
	return d.run(t, "apt-get", "install", "-q", "-y", "--no-install-recommends", "/tmp/"+name)
}

// debs returns the kinds of packages made of a version. For the first version that is everything,
// so that it is made only once.
func debs(v string) []string {
	if v == version {
		return everything
	}
	return []string{"deb"}
}

// everything is made by one run, with its checksums.
var everything = []string{"tarball", "deb", "image", "sbom", "sums"}

// program reports whether a process of the system runs the installed file, and not one that an
// upgrade replaced.
func (d *debian) program(t *testing.T, pid string) bool {
	t.Helper()
	a, b := d.run(t, "stat", "-L", "-c", "%d:%i", "/proc/"+pid+"/exe"), d.run(t, "stat", "-c", "%d:%i", "/usr/bin/slipway")
	return a == b
}
