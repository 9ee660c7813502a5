//go:build ceph

package rbd_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/ceph/go-ceph/rados"
	ceph "github.com/ceph/go-ceph/rbd"

	"example.org/slipway/volume/block"
	"example.org/slipway/volume/rbd"
)

// childEnv holds the job of a child process of this test binary.
const childEnv = "SLIPWAY_RBD_CHILD"

// job is the work of a child: it opens a volume. For each line of the input it then reads or writes
// 4 KiB at that offset, and answers with "ok" or the error.
type job struct {
	Options rbd.Options
	ID      string
	Write   bool
	// Bare, unless empty, is the ID of a clone that is opened for writing without a lease, as the
	// kernel or a tool of Ceph would open it. Nothing else happens.
	Bare string
}

// child does the job and reports whether there was one.
func child() bool {
	text := os.Getenv(childEnv)
	if text == "" {
		return false
	}
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		panic(err)
	}
	if j.Bare != "" {
		openBare(j)
		return true
	}
	s, err := rbd.Open(context.Background(), j.Options)
	var v block.Volume
	if err == nil {
		if j.Write {
			v, err = s.OpenWriter(context.Background(), j.ID)
		} else {
			v, err = s.Open(context.Background(), j.ID)
		}
	}
	tell(err)
	if err != nil {
		return true
	}
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		var off int64
		fmt.Sscan(in.Text(), &off)
		b := make([]byte, 4096)
		if j.Write {
			copy(b, "written by the child")
			if _, err = v.WriteAt(b, off); err == nil {
				err = v.Flush()
			}
		} else if _, err = v.ReadAt(b, off); err == nil && string(b) == string(make([]byte, len(b))) {
			err = fmt.Errorf("WRONG BYTES: zeros at %d", off)
		}
		tell(err)
	}
	return true
}

// openBare opens the clone until the process ends.
func openBare(j job) {
	conn, err := rados.NewConnWithUser("admin")
	if err == nil {
		err = errors.Join(conn.ReadConfigFile(j.Options.Conf), conn.Connect())
	}
	var at *rados.IOContext
	if err == nil {
		at, err = conn.OpenIOContext(j.Options.Pool)
	}
	if err == nil {
		at.SetNamespace(j.Options.Clones)
		_, err = ceph.OpenImageById(at, j.Bare, ceph.NoSnapshot)
	}
	tell(err)
	if err == nil {
		select {}
	}
}

func tell(err error) {
	if err == nil {
		fmt.Println("ok")
		return
	}
	fmt.Println(strings.ReplaceAll(err.Error(), "\n", " "))
}

// other is a process with a volume open.
type other struct {
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Reader
}

func begin(t testing.TB, j job) *other {
	t.Helper()
	text, err := json.Marshal(j)
	must(t, err)
	p := &other{cmd: exec.Command(os.Args[0])}
	p.cmd.Env = append(os.Environ(), childEnv+"="+string(text))
	p.cmd.Stderr = os.Stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p.in, err = p.cmd.StdinPipe()
	must(t, err)
	out, err := p.cmd.StdoutPipe()
	must(t, err)
	p.out = bufio.NewReader(out)
	must(t, p.cmd.Start())
	t.Cleanup(p.kill)
	if got := p.hear(t); got != "ok" {
		t.Fatalf("the other process: %s", got)
	}
	return p
}

func (p *other) hear(t testing.TB) string {
	t.Helper()
	line, err := p.out.ReadString('\n')
	must(t, err)
	return strings.TrimSpace(line)
}

// ask makes it read or write, and returns "ok" or the error.
func (p *other) ask(t testing.TB, off int64) string {
	t.Helper()
	_, err := fmt.Fprintln(p.in, off)
	must(t, err)
	return p.hear(t)
}

func (p *other) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

func (p *other) kill() {
	if p.cmd.ProcessState == nil {
		p.signal(syscall.SIGKILL)
		_ = p.cmd.Wait()
	}
}
