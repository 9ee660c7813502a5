//go:build ceph

package rbd_test

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"

	"example.org/slipway/volume/block"
	"example.org/slipway/volume/rbd"
)

// TestMapped checks that an image counts as in use if somebody without a lease has mapped it.
func TestMapped(t *testing.T) {
	t.Parallel()
	o, c := options(t)
	s := open(t, o)
	ctx := soon(t)
	fill(t, s, "a", "", 8<<20, content(12, 4096), 0)
	v, err := s.Create(ctx, "c-1", "a", 8<<20)
	must(t, err)
	must(t, v.Close())
	bench := exec.Command("rbd", "-c", c.Conf, "bench", "--io-type", "write", "--io-total", "100G", "--io-threads", "1",
		o.Pool+"/"+o.Clones+"/c-1")
	bench.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(t, bench.Start())
	ended := make(chan struct{})
	go func() { _ = bench.Wait(); close(ended) }()
	end := func() { _ = bench.Process.Kill(); <-ended }
	defer end()
	eventually(t, func() error {
		out := c.Tool(t, "rbd", "status", o.Pool+"/"+o.Clones+"/c-1")
		if !strings.Contains(out, "watcher=") {
			return errors.New(out)
		}
		return nil
	})
	want(t, s.Remove(ctx, "c-1"), block.ErrInUse)
	want(t, s.Commit(ctx, "c-1"), block.ErrInUse)
	_, err = s.OpenWriter(ctx, "c-1")
	want(t, err, block.ErrInUse)
	select {
	case <-ended:
		t.Error("who had it mapped has been ended")
	default:
	}
	end()
	eventually(t, func() error { return s.Remove(ctx, "c-1") })
	must(t, s.Remove(ctx, "a"))
}

// TestMany clones, reads and removes concurrently, and counts what is left.
func TestMany(t *testing.T) {
	t.Parallel()
	o, c := options(t)
	s := open(t, o)
	ctx := soon(t)
	b := content(11, 1<<20)
	fill(t, s, "a", "", 32<<20, b, 0)
	var all sync.WaitGroup
	for i := range 10 {
		all.Go(func() {
			id := fmt.Sprintf("c-%d", i)
			v, err := s.Create(ctx, id, "a", 32<<20)
			if err != nil {
				t.Error(err)
				return
			}
			got := make([]byte, len(b))
			_, err = v.ReadAt(got, 0)
			if err != nil || !bytes.Equal(got, b) {
				t.Errorf("read %s: %v", id, err)
			}
			if _, err := v.WriteAt(b, int64(i)<<20); err != nil {
				t.Error(err)
			}
			if err := v.Close(); err != nil {
				t.Error(err)
			}
			if err := s.Remove(ctx, "a"); !errors.Is(err, block.ErrInUse) {
				t.Errorf("remove the parent: %v", err)
			}
			if err := s.Remove(ctx, id); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	must(t, s.Remove(ctx, "a"))
	for _, ns := range []string{o.Namespace, o.Clones, rbd.LeaseNamespace(o.Namespace)} {
		for _, name := range strings.Fields(c.Tool(t, "rados", "-p", o.Pool, "-N", ns, "ls")) {
			if name != "rbd_directory" && name != "rbd_trash" {
				t.Errorf("left in %s: %s", ns, name)
			}
		}
	}
}
