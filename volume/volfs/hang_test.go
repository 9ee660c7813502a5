package volfs_test

import (
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"example.org/slipway/volume/loop"
)

// TestAttachHangs checks that others can make loop devices while one process hangs in making
// one, because the server of its file does not answer.
func TestAttachHangs(t *testing.T) {
	m := newMount(t)
	m.disk("c-1", 1<<20)
	m.disk("plain", 1<<20)
	cmd := m.child(mapping("w", "c-1", true, ""))
	defer func() { cmd.Process.Signal(syscall.SIGTERM); cmd.Wait() }()
	f := m.open("w", unix.O_RDWR)
	if _, err := f.WriteAt(make([]byte, 4096), 0); err != nil {
		t.Fatal(err)
	}
	cmd.Process.Signal(syscall.SIGSTOP)
	defer cmd.Process.Signal(syscall.SIGCONT)
	type result struct {
		d   *loop.Device
		err error
	}
	hangs := make(chan result, 1)
	go func() {
		d, err := loop.Attach(f, loop.Options{DirectIO: true})
		hangs <- result{d, err}
	}()
	time.Sleep(50 * time.Millisecond) // until it waits in the kernel
	d, err := loop.AttachPath(filepath.Join(m.dir, "plain"), loop.Options{ReadOnly: true})
	if err != nil {
		t.Error(err)
	} else if err := d.Close(); err != nil {
		t.Error(err)
	}
	cmd.Process.Signal(syscall.SIGCONT)
	r := <-hangs
	if r.err != nil {
		t.Error(r.err)
	} else if err := r.d.Close(); err != nil {
		t.Error(err)
	}
}
