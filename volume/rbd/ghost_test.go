//go:build ceph

package rbd_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"example.org/slipway/internal/backendtest"
	"example.org/slipway/volume/block"
	"example.org/slipway/volume/rbd"
)

// TestGhost kills a client while the OSD makes it a watcher of a clone. The OSD continues to list
// it, without an end: it sets one only for a client that is still connected. Such a clone can
// nevertheless be written and removed.
func TestGhost(t *testing.T) {
	o, c := options(t)
	s := open(t, o)
	ctx := soon(t)
	b := content(14, 8192)
	fill(t, s, "a", "", 8<<20, b, 0)
	n := as(t, s, issue(t, s, time.Hour, false)) // a node
	clone := func(name string) (id string) {
		v, err := s.Create(ctx, name, "a", 8<<20)
		must(t, err)
		must(t, v.Close())
		id = c.Tool(t, "rados", "-p", o.Pool, "-N", o.Clones, "get", "rbd_id."+name, "-")
		return id[strings.LastIndexAny(id, "\x00")+1:]
	}
	inUse := func(t *testing.T, f func() error) {
		t.Helper()
		want(t, f(), block.ErrInUse)
		eventually(t, f)
	}
	t.Run("trashed", func(t *testing.T) { // the killed process was removing it
		clone("c-1")
		ghost(t, c, o, trash(t, c, o.Pool, o.Clones, "c-1"))
		inUse(t, func() error { return n.Remove(ctx, "c-1") })
	})
	t.Run("written", func(t *testing.T) {
		ghost(t, c, o, clone("c-2"))
		inUse(t, func() error {
			v, err := n.OpenWriter(ctx, "c-2")
			if err == nil {
				wantBytes(t, v, 0, b)
				err = v.Close()
			}
			return err
		})
		must(t, n.Remove(ctx, "c-2"))
	})
	t.Run("removed", func(t *testing.T) {
		ghost(t, c, o, clone("c-3"))
		inUse(t, func() error { return n.Remove(ctx, "c-3") })
	})
	must(t, s.Remove(ctx, "a"))
}

// ghost makes a process open an image. It kills the process when the OSD has it as a watcher but
// has not yet written that down.
func ghost(t *testing.T, c *backendtest.Ceph, o rbd.Options, id string) {
	t.Helper()
	text, err := json.Marshal(job{Options: o, Bare: id})
	must(t, err)
	before := sockets(t, c.OSD.Pid())
	release := c.HoldCommits(t)
	defer release()
	p := exec.Command(os.Args[0])
	p.Env = append(os.Environ(), childEnv+"="+string(text))
	p.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(t, p.Start())
	kill := func() { _ = p.Process.Kill(); _ = p.Wait() }
	defer kill()
	eventually(t, func() error { return watchStarted(t, c) })
	kill()
	eventually(t, func() error {
		if n := sockets(t, c.OSD.Pid()); n > before {
			return fmt.Errorf("the OSD has %d sockets, and had %d", n, before)
		}
		return nil
	})
	release()
	eventually(t, func() error {
		list := c.Tool(t, "rados", "-p", o.Pool, "-N", o.Clones, "listwatchers", "rbd_header."+id)
		if !strings.Contains(list, "watcher=") {
			return errors.New("no watcher")
		}
		return nil
	})
}

// watchStarted fails unless the OSD is making somebody a watcher. Before it has started to, it
// drops the requests of a client that is gone.
func watchStarted(t testing.TB, c *backendtest.Ceph) error {
	t.Helper()
	text := c.Command(t, "tell", "osd.0", "dump_ops_in_flight")
	var dump struct {
		Ops []struct {
			Description string `json:"description"`
			TypeData    struct {
				FlagPoint string `json:"flag_point"`
			} `json:"type_data"`
		} `json:"ops"`
	}
	must(t, json.Unmarshal([]byte(text), &dump))
	for _, op := range dump.Ops {
		at := op.TypeData.FlagPoint
		if strings.Contains(op.Description, "watch watch") && (at == "started" || strings.HasPrefix(at, "waiting for sub")) {
			return nil
		}
	}
	return errors.New("no watch is under way: " + text)
}

// sockets counts the sockets of a process.
func sockets(t testing.TB, pid int) (n int) {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	all, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range all {
		if to, err := os.Readlink(dir + "/" + e.Name()); err == nil && strings.HasPrefix(to, "socket:") {
			n++
		}
	}
	return n
}
