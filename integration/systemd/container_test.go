package systemd

import (
	"archive/tar"
	"bufio"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/proc"
	"example.org/slipway/integration/internal/tool"
)

const (
	registry = "127.0.0.1:5000"
	image    = registry + "/team/app:1"
	// files is the number of files in the image, more than a container under load opens in a run.
	files = 4000
	// absent is the number of those files that the containers under load do not touch.
	absent = 100
)

// containerd installs containerd as a service of a machine that has not booted yet. runc also gets
// the cgroup hierarchies that systemd-nspawn mounts read-only.
func (m *machine) containerd(t *testing.T) {
	t.Helper()
	for _, name := range []string{"containerd", "containerd-shim-runc-v2", "ctr", "runc"} {
		tool.Built(t, name)
	}
	m.Write(t, "/etc/containerd/config.toml", `version = 3
imports = ["/etc/containerd/conf.d/*.toml"]
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime", "io.containerd.nri.v1.nri"]
`)
	m.Write(t, "/etc/systemd/system/containerd.service", `[Service]
Type=notify
Environment=PATH=/opt/tools:/usr/sbin:/usr/bin:/sbin:/bin
ExecStartPre=/bin/sh -c 'for d in /sys/fs/cgroup/*/; do mount -o remount,rw,bind $$d || true; done'
ExecStart=/opt/tools/containerd
Delegate=yes
KillMode=process

[Install]
WantedBy=multi-user.target
`)
	wants := filepath.Join(m.Root, "etc/systemd/system/multi-user.target.wants")
	if err := os.MkdirAll(wants, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/systemd/system/containerd.service", filepath.Join(wants, "containerd.service")); err != nil {
		t.Fatal(err)
	}
}

// push pushes an image of busybox and files from outside, waits until it is converted, and
// returns the SHA-256 of the files.
func (m *machine) push(t *testing.T) (sums []string) {
	t.Helper()
	busybox, err := os.ReadFile(tool.System(t, "busybox"))
	if err != nil {
		t.Fatal(err)
	}
	a := new(imagetest.Archive).Dir("./").Dir("bin/").Dir("files/").Add(tar.Header{Typeflag: tar.TypeReg, Name: "bin/busybox", Mode: 0o755}, busybox)
	rng := rand.NewChaCha8([32]byte{1})
	data := make([]byte, 4<<10)
	for i := range files {
		_, _ = rng.Read(data)
		sums = append(sums, fmt.Sprintf("%x", sha256.Sum256(data)))
		a.Add(tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprintf("files/%d", i), Mode: 0o644}, data)
	}
	b := imagetest.Compose(runtime.GOARCH, map[string]any{"Entrypoint": []string{"/bin/busybox", "sh"}}, []imagetest.Layer{a.Layer()})
	dir := filepath.Join(m.Env.Dir(), "layout")
	b.WriteLayout(t, dir, "1")
	m.outside(t, "skopeo", "--insecure-policy", "copy", "-q", "--dest-tls-verify=false", "oci:"+dir+":1", "docker://"+image)
	proc.Poll(t, patience, "the end of the conversion", func() bool {
		var st struct {
			Layers, Waiting int64
			Active          []any
		}
		out := m.Run(t, "slipway", "status", "--json")
		if err := json.Unmarshal([]byte(out), &st); err != nil {
			t.Fatalf("slipway status: %v\n%s", err, out)
		}
		return st.Layers > 0 && st.Waiting == 0 && len(st.Active) == 0
	})
	return sums
}

// digest returns the digest that the registry has under the image's name.
func (m *machine) digest(t *testing.T) string {
	t.Helper()
	return m.outside(t, "skopeo", "inspect", "--tls-verify=false", "--format", "{{.Digest}}", "docker://"+image)
}

// ctrLog is the file for ctr's own messages, and for containers' standard error.
const ctrLog = "/run/ctr.log"

// ctr returns a command that runs a container of the image with the agent's snapshots. The name is
// unique to this test, because the cgroups of containers are this machine's. It has no share of the
// processor, for which a machine of cgroup version 2 would need a controller ([nspawn.Machine]).
func (m *machine) ctr(name string, args ...string) *exec.Cmd {
	return m.Command(append([]string{"sh", "-c", `exec "$@" 2>>` + ctrLog, "sh", "ctr", "run", "--rm", "--cpu-shares", "0", "--snapshotter", "slipway", image, filepath.Base(m.Env.Dir()) + "-" + name, "/bin/busybox", "sh"}, args...)...)
}

// load is a container that keeps opening one file after another.
type load struct {
	m    *machine
	p    *proc.Process
	log  string
	sums []string
	seen int // number of log lines already checked
}

func (m *machine) startLoad(t *testing.T, sums []string) *load {
	t.Helper()
	l := &load{m: m, log: filepath.Join(m.Env.Dir(), "load.log"), sums: sums}
	l.p = proc.Start(t, m.ctr("load", "-c", fmt.Sprintf(`while :; do
	i=%d
	while [ $i -lt %d ]; do
		/bin/busybox sha256sum /files/$i || exit 1
		i=$((i+1))
		/bin/busybox usleep 50000
	done
done`, absent, files)), l.log)
	return l
}

// check checks what the container has read since the last call, and waits until it reads again. It
// returns the number of files that it read.
func (l *load) check(t *testing.T) int {
	t.Helper()
	before := l.seen
	l.verify(t)
	begin := l.seen
	proc.Poll(t, patience, "more files that the container reads", func() bool {
		select {
		case <-l.p.Exited():
			t.Fatalf("the container ended (%s):\n%s%s", l.p.State(), l.p.Log(2<<10), l.m.Run(t, "tail", "-n", "5", ctrLog))
		default:
		}
		l.verify(t)
		return l.seen >= begin+5
	})
	return l.seen - before
}

// verify compares what the container printed with the files' content.
func (l *load) verify(t *testing.T) {
	t.Helper()
	b, err := os.ReadFile(l.log)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(string(b), "\n")
	for _, line := range lines[l.seen:] {
		if !strings.HasSuffix(line, "\n") {
			return
		}
		var sum string
		var i int
		if n, err := fmt.Sscanf(line, "%s /files/%d\n", &sum, &i); n != 2 || err != nil {
			t.Fatalf("the container says: %s", line)
		}
		if sum != l.sums[i] {
			t.Fatalf("the container reads %s in file %d, want %s", sum, i, l.sums[i])
		}
		l.seen++
	}
}

func (l *load) end(t *testing.T) {
	t.Helper()
	l.verify(t)
	l.m.Run(t, "ctr", "task", "kill", "-s", "KILL", filepath.Base(l.m.Env.Dir())+"-load")
	select {
	case <-l.p.Exited():
	case <-time.After(patience):
		t.Fatal("the container does not end")
	}
}

// shell is a container that carries out commands.
type shell struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func (m *machine) startShell(t *testing.T) *shell {
	t.Helper()
	cmd := m.ctr("shell")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return &shell{cmd, in, bufio.NewReader(out)}
}

// read makes the container read a file, and returns its answer: the SHA-256, or the reason of a
// failure.
func (s *shell) read(t *testing.T, file int) string {
	t.Helper()
	watchdog := time.AfterFunc(patience, func() { _ = s.cmd.Process.Kill() })
	defer watchdog.Stop()
	if _, err := fmt.Fprintf(s.in, "/bin/busybox sha256sum /files/%d 2>&1\n", file); err != nil {
		t.Fatal(err)
	}
	line, err := s.out.ReadString('\n')
	if err != nil {
		t.Fatalf("the container is gone, or waits for ever: %v", err)
	}
	sum, rest, _ := strings.Cut(line, " ")
	if strings.TrimSpace(rest) == fmt.Sprintf("/files/%d", file) {
		return sum
	}
	return line
}

func (s *shell) end(t *testing.T) {
	t.Helper()
	_, _ = fmt.Fprintln(s.in, "exit 0") // whatever it could not read
	_ = s.in.Close()
	if err := s.cmd.Wait(); err != nil {
		t.Errorf("the container ended with %v", err)
	}
}
