//go:build ceph

package rbd_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"example.org/slipway/internal/backendtest"
	"example.org/slipway/volume/block"
	"example.org/slipway/volume/rbd"
)

// TestKilled checks that everything a killed process of this machine held is free at once.
func TestKilled(t *testing.T) {
	t.Parallel()
	o, c := options(t)
	o.LeaseTime = deadLease
	s := open(t, o)
	ctx := soon(t)
	b := content(5, 8192)
	fill(t, s, "a", "", 8<<20, b, 0)
	v, err := s.Create(ctx, "c-1", "a", 8<<20)
	must(t, err)
	must(t, v.Close())

	reader := begin(t, job{Options: o, ID: "a"})
	writer := begin(t, job{Options: o, ID: "c-1", Write: true})
	if got := writer.ask(t, 1<<20); got != "ok" {
		t.Fatalf("write: %s", got)
	}
	want(t, s.Remove(ctx, "c-1"), block.ErrInUse)
	_, err = s.OpenWriter(ctx, "c-1")
	want(t, err, block.ErrInUse)
	// This is the command that docs/volumes-ceph.md shows to operators.
	if out := c.Tool(t, "rados", "-p", o.Pool, "-N", rbd.LeaseNamespace(o.Namespace), "lock", "info", "readers.a", "slipway"); !strings.Contains(out, "cookie") {
		t.Errorf("who has the volume open: %s", out)
	}

	reader.kill()
	writer.kill()
	began := time.Now()
	v, err = s.OpenWriter(ctx, "c-1")
	must(t, err)
	wantBytes(t, v, 1<<20, []byte("written by the child"))
	wantBytes(t, v, 0, b)
	must(t, v.Close())
	must(t, s.Remove(ctx, "c-1"))
	must(t, s.Remove(ctx, "a"))
	if took := time.Since(began); took > o.LeaseTime/2 {
		t.Errorf("the volumes of the dead were free after %s", took)
	}
}

// TestLapsed checks a process that stood still for longer than its leases. It answers nothing false
// and changes nothing of its successor.
func TestLapsed(t *testing.T) {
	t.Parallel()
	o, _ := options(t)
	o.Timeout, o.LeaseTime = 2*time.Second, 3*time.Second
	s := open(t, o)
	ctx := soon(t)
	b := content(6, 8192)
	fill(t, s, "a", "", 8<<20, b, 0)
	fill(t, s, "b", "", 8<<20, b, 0)
	v, err := s.Create(ctx, "c-1", "b", 8<<20)
	must(t, err)
	must(t, v.Close())
	gone, stays := begin(t, job{Options: o, ID: "a"}), begin(t, job{Options: o, ID: "b"})
	writer := begin(t, job{Options: o, ID: "c-1", Write: true})
	for _, p := range []*other{gone, stays, writer} {
		if got := p.ask(t, 0); got != "ok" {
			t.Fatalf("before: %s", got)
		}
		p.signal(syscall.SIGSTOP)
	}
	for err = block.ErrInUse; errors.Is(err, block.ErrInUse); {
		time.Sleep(50 * time.Millisecond)
		err = s.Remove(ctx, "a")
	}
	must(t, err)
	for err = block.ErrInUse; errors.Is(err, block.ErrInUse); {
		time.Sleep(50 * time.Millisecond)
		v, err = s.OpenWriter(ctx, "c-1")
	}
	must(t, err)
	_, err = v.WriteAt(b, 0)
	must(t, err)
	for _, p := range []*other{gone, stays, writer} {
		p.signal(syscall.SIGCONT)
	}
	if got := gone.ask(t, 0); !strings.Contains(got, block.ErrNotFound.Error()) {
		t.Errorf("read of a volume that was removed: %s", got)
	}
	if got := stays.ask(t, 0); got != "ok" {
		t.Errorf("read of a volume that is still there: %s", got)
	}
	if got := writer.ask(t, 0); got == "ok" {
		t.Error("who had lost the volume could write to it")
	}
	wantBytes(t, v, 0, b)
	must(t, v.Close())
}

// TestBroken checks what an interrupted creation, commit or removal leaves behind.
func TestBroken(t *testing.T) {
	t.Parallel()
	o, c := options(t)
	s := open(t, o)
	ctx := soon(t)
	b := content(7, 4096)
	name := func(id string) string { return o.Pool + "/" + o.Namespace + "/" + id }
	broken := func(id string, as error) {
		t.Helper()
		info, err := s.Stat(ctx, id)
		if err != nil || info.Committed {
			t.Fatalf("stat %s: %+v, %v", id, info, err)
		}
		all, err := s.List(ctx, id)
		if err != nil || len(all) != 1 || all[0].Committed {
			t.Fatalf("list %s: %+v, %v", id, all, err)
		}
		_, err = s.Open(ctx, id)
		want(t, err, as)
		_, err = s.Create(ctx, "child", id, 8<<20)
		want(t, err, as)
		_, err = s.Create(ctx, id, "", 8<<20)
		want(t, err, block.ErrExists)
	}

	fill(t, s, "unmarked", "", 8<<20, b, 0)
	c.Tool(t, "rbd", "image-meta", "remove", name("unmarked"), "slipway.state")
	broken("unmarked", block.ErrNotCommitted)
	must(t, s.Commit(ctx, "unmarked"))
	c.Tool(t, "rbd", "image-meta", "remove", name("unmarked"), "slipway.state")
	v, err := s.OpenWriter(ctx, "unmarked")
	must(t, err)
	_, err = v.WriteAt(b, 4096)
	must(t, err)
	must(t, v.Close())
	must(t, s.Commit(ctx, "unmarked"))
	v, err = s.Open(ctx, "unmarked")
	must(t, err)
	wantBytes(t, v, 0, b)
	wantBytes(t, v, 4096, b)
	must(t, v.Close())

	fill(t, s, "unprotected", "", 8<<20, b, 0)
	c.Tool(t, "rbd", "snap", "unprotect", name("unprotected")+"@slipway")
	v, err = s.Create(ctx, "c-1", "unprotected", 8<<20)
	must(t, err)
	wantBytes(t, v, 0, b)
	must(t, v.Close())
	want(t, s.Remove(ctx, "unprotected"), block.ErrInUse)
	must(t, s.Remove(ctx, "c-1"))

	fill(t, s, "unsnapped", "", 8<<20, b, 0)
	c.Tool(t, "rbd", "snap", "unprotect", name("unsnapped")+"@slipway")
	c.Tool(t, "rbd", "snap", "rm", "--no-progress", name("unsnapped")+"@slipway")
	broken("unsnapped", block.ErrNotCommitted)

	fill(t, s, "headless", "", 8<<20, b, 0)
	id := strings.TrimSpace(c.Tool(t, "rados", "-p", o.Pool, "-N", o.Namespace, "get", "rbd_id.headless", "-"))
	c.Tool(t, "rados", "-p", o.Pool, "-N", o.Namespace, "rm", "rbd_header."+id[strings.LastIndexAny(id, "\x00")+1:])
	broken("headless", block.ErrNotFound)

	// This is left by a removal that is killed near its end.
	fill(t, s, "name", "", 8<<20, b, 0)
	fill(t, s, "nameless", "", 8<<20, b, 0)
	id = strings.TrimSpace(c.Tool(t, "rados", "-p", o.Pool, "-N", o.Namespace, "get", "rbd_id.name", "-"))
	for _, object := range []string{"rbd_header." + id[strings.LastIndexAny(id, "\x00")+1:], "rbd_id.name"} {
		c.Tool(t, "rados", "-p", o.Pool, "-N", o.Namespace, "rm", object)
	}
	// This is left by one that is killed earlier.
	v, err = s.Create(ctx, "trashed", "", 8<<20)
	must(t, err)
	must(t, v.Close())
	trash(t, c, o.Pool, o.Namespace, "trashed")
	for _, id := range []string{"name", "trashed"} {
		info, err := s.Stat(ctx, id)
		if err != nil || info.Committed {
			t.Fatalf("stat %s: %+v, %v", id, info, err)
		}
		_, err = s.Open(ctx, id)
		want(t, err, block.ErrNotFound)
	}

	fill(t, s, "going", "", 8<<20, b, 0)
	c.Tool(t, "rbd", "image-meta", "set", name("going"), "slipway.state", "removing")
	broken("going", block.ErrNotFound)

	for _, id := range []string{"going", "unmarked", "unprotected", "unsnapped", "headless", "name", "nameless", "trashed"} {
		must(t, s.Remove(ctx, id))
		_, err = s.Stat(ctx, id)
		want(t, err, block.ErrNotFound)
	}
	if left := c.Tool(t, "rbd", "--namespace", o.Namespace, "--pool", o.Pool, "ls"); left != "" {
		t.Errorf("left in the directory: %s", left)
	}
}

// trash leaves an image as a killed removal does, because librbd deletes from the trash. It returns
// the image's ID.
func trash(t testing.TB, c *backendtest.Ceph, pool, namespace, name string) string {
	t.Helper()
	rados := func(args ...string) string {
		return c.Tool(t, "rados", append([]string{"-p", pool, "-N", namespace}, args...)...)
	}
	id := strings.TrimSpace(rados("get", "rbd_id."+name, "-"))
	id = id[strings.LastIndexAny(id, "\x00")+1:]
	c.Tool(t, "rbd", "trash", "mv", pool+"/"+namespace+"/"+name)
	entry := filepath.Join(t.TempDir(), "entry")
	rados("getomapval", "rbd_trash", "id_"+id, entry)
	text, err := os.ReadFile(entry)
	must(t, err)
	text[6] = 3 // the source "removing"
	must(t, os.WriteFile(entry, text, 0o600))
	rados("setomapval", "--input-file", entry, "rbd_trash", "id_"+id)
	return id
}

// away is the timeout of stores whose cluster is about to go away. What comes before must finish
// within it, also on a busy machine.
const away = 2 * time.Second

// within fails unless f returns ErrAway in bounded time.
func within(t testing.TB, what string, f func() error) {
	t.Helper()
	const limit = 5 * away // for three, and a busy machine
	began := time.Now()
	err := f()
	if took := time.Since(began); !errors.Is(err, block.ErrAway) || took > limit {
		t.Errorf("%s without the cluster: error %v after %s", what, err, took)
	}
}

// TestAway kills the OSD. Everything ends in time with ErrAway, and continues with the same bytes
// when the OSD is back.
func TestAway(t *testing.T) {
	o, c := options(t)
	o.Timeout, o.LeaseTime = away, time.Minute
	o.Conf = shortWatches(t, c)
	s := open(t, o)
	ctx := soon(t)
	b := content(8, 1<<20)
	fill(t, s, "a", "", 32<<20, b, 0)
	r, err := s.Open(ctx, "a")
	must(t, err)
	w, err := s.Create(ctx, "c-1", "a", 32<<20)
	must(t, err)
	_, err = w.WriteAt(b[:8192], 8<<20)
	must(t, err)

	c.KillOSD()
	var all sync.WaitGroup
	for what, f := range map[string]func() error{
		"read":   func() error { _, err := r.ReadAt(make([]byte, 4096), 0); return err },
		"write":  func() error { _, err := w.WriteAt(make([]byte, 4096), 16<<20); return err },
		"open":   func() error { _, err := s.Open(ctx, "a"); return err },
		"create": func() error { _, err := s.Create(ctx, "b", "", 1<<20); return err },
		"clone":  func() error { _, err := s.Create(ctx, "c-2", "a", 32<<20); return err },
		"commit": func() error { return s.Commit(ctx, "b") },
		"remove": func() error { return s.Remove(ctx, "x") },
		"stat":   func() error { _, err := s.Stat(ctx, "a"); return err },
		"list":   func() error { _, err := s.List(ctx, ""); return err },
		"connect": func() error {
			x, err := rbd.Open(ctx, o)
			if err == nil {
				x.Close()
			}
			return err
		},
	} {
		all.Go(func() { within(t, what, f) })
	}
	all.Wait()
	cut, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	if _, err := s.Stat(cut, "a"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("stat with a deadline: %v", err)
	}

	began := time.Now()
	c.StartOSD(t)
	eventually(t, func() error { _, err := r.ReadAt(make([]byte, 10), 0); return err })
	t.Logf("back after %s", time.Since(began))
	wantBytes(t, r, 0, b)
	eventually(t, func() error { _, err := w.WriteAt(b[:4096], 16<<20); return err })
	must(t, w.Flush())
	wantBytes(t, w, 8<<20, b[:8192])
	wantBytes(t, w, 16<<20, b[:4096])
	wantBytes(t, w, 0, b)
	must(t, r.Close())
	must(t, w.Close())
	t.Logf("closed after %s", time.Since(began))
	for _, id := range []string{"c-1", "c-2", "b", "a"} {
		eventually(t, func() error { return s.Remove(ctx, id) })
	}
}

// shortWatches makes the cluster soon forget the absent watchers of an image, until its OSD is
// restarted, because closing an image waits for them. It returns the configuration for clients that
// report often enough that they are alive.
func shortWatches(t testing.TB, c *backendtest.Ceph) string {
	t.Helper()
	c.Command(t, "tell", "osd.0", "config", "set", "osd_client_watch_timeout", "3")
	b, err := os.ReadFile(c.Conf)
	must(t, err)
	conf := filepath.Join(t.TempDir(), "ceph.conf")
	must(t, os.WriteFile(conf, append(b, "objecter_tick_interval = 0.5\n"...), 0o600))
	return conf
}

func eventually(t testing.TB, f func() error) {
	t.Helper()
	deadline := time.Now().Add(40 * time.Second)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// TestNoMonitor stops the monitor. Nobody can connect, and connected clients continue to read.
func TestNoMonitor(t *testing.T) {
	o, c := options(t)
	o.Timeout = away
	s := open(t, o)
	ctx := soon(t)
	b := content(9, 4096)
	fill(t, s, "a", "", 1<<20, b, 0)
	r, err := s.Open(ctx, "a")
	must(t, err)
	c.Mon.Signal(syscall.SIGSTOP)
	defer c.Mon.Signal(syscall.SIGCONT)
	within(t, "connect", func() error { _, err := rbd.Open(ctx, o); return err })
	within(t, "credential", func() error { _, err := s.(rbd.Issuer).Credential(ctx, time.Hour); return err })
	wantBytes(t, r, 0, b)
	v, err := s.Open(ctx, "a")
	must(t, err)
	must(t, v.Close())
	c.Mon.Signal(syscall.SIGCONT)
	must(t, r.Close())
	eventually(t, func() error {
		x, err := rbd.Open(ctx, o)
		if err != nil {
			return err
		}
		return x.Close()
	})
}

// TestFull checks that a full cluster is reported as full, loses nothing and allows removals.
func TestFull(t *testing.T) {
	o, c := options(t)
	s := open(t, o)
	ctx := soon(t)
	b := content(10, 4<<20)
	fill(t, s, "a", "", 64<<20, b, 0)
	fill(t, s, "d", "", 64<<20, b, 0)
	building, err := s.Create(ctx, "b", "", 64<<20)
	must(t, err)
	clone, err := s.Create(ctx, "c-1", "a", 64<<20)
	must(t, err)
	c.Full(t, true)
	defer c.Full(t, false)
	eventually(t, func() error { // until the map has arrived
		if _, err := clone.WriteAt(b[:8192], 32<<20); err == nil {
			return errors.New("not full")
		} else if !errors.Is(err, block.ErrFull) {
			t.Fatal(err)
		}
		return nil
	})
	_, err = building.WriteAt(b, 0)
	want(t, errors.Join(err, building.Flush()), block.ErrFull)
	_, err = s.Create(ctx, "e", "", 64<<20)
	want(t, err, block.ErrFull)
	r, err := s.Open(ctx, "a")
	must(t, err)
	wantBytes(t, r, 0, b)
	must(t, r.Close())
	must(t, s.Remove(ctx, "d"))
	c.Full(t, false)
	eventually(t, func() error { _, err := clone.WriteAt(b[:8192], 32<<20); return err })
	wantBytes(t, clone, 32<<20, b[:8192])
	must(t, clone.Close())
	want(t, building.Close(), block.ErrFull) // it is reported again that the volume is not whole
	for _, id := range []string{"b", "c-1", "a"} {
		must(t, s.Remove(ctx, id))
	}
	if all, err := s.List(ctx, ""); err != nil || len(all) > 0 {
		t.Errorf("left: %+v, %v", all, err)
	}
}
