package agent

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"example.org/slipway/agent/api"
	"example.org/slipway/node/poolfs"
	"example.org/slipway/node/view"
)

// startProcess runs the keeper in a separate process, which may be killed.
func (b *volumeBed) startProcess(change ...func(*exec.Cmd)) *exec.Cmd {
	b.t.Helper()
	cmd := testProcess("keeper", b.file)
	cmd.Stdout, cmd.Stderr = b.t.Output(), b.t.Output()
	for _, do := range change {
		do(cmd)
	}
	if err := cmd.Start(); err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		_ = view.UnmountBelow(b.dir) // continues while files are in use
		_ = cmd.Process.Signal(unix.SIGTERM)
		_ = cmd.Wait() // or it was killed
	})
	b.caller = api.NewCaller(b.cfg)
	b.eventually("an agent", func() error { _, err := b.caller.Status(b.t.Context()); return err })
	return cmd
}

// killAgent kills a keeper and its worker, so that nothing holds the pool any more.
func (b *volumeBed) killAgent(keeper *exec.Cmd) {
	b.t.Helper()
	if err := keeper.Process.Kill(); err != nil {
		b.t.Fatal(err)
	}
	_ = keeper.Wait()
	b.eventually("the end of the worker", func() error {
		if _, err := b.caller.Status(b.t.Context()); err == nil {
			return errors.New("it answers")
		}
		return nil
	})
}

// TestKeeperKilled checks that everything that was read of an image, by anybody, can be opened
// again when an agent runs after its keeper was killed. Nobody drops the kernel's caches. What is
// not here fails at once, and is available where the image is mounted anew.
func TestKeeperKilled(t *testing.T) {
	b := newVolumeBed(t, "local", "ext4", "gear, plain")
	b.end()
	files := map[string]string{}
	for i := range 6 {
		files[fmt.Sprintf("dir/small%d", i)] = strings.Repeat(fmt.Sprint(i), 100_000)
	}
	for i := range 2 {
		files[fmt.Sprintf("large%d", i)] = strings.Repeat(fmt.Sprintf("large %d", i), 1<<20)
	}
	img := b.push("team/app", 0, files)
	keeper := b.startProcess()
	ctx, sn := b.snapshots()
	chain := b.pull(ctx, sn, img)
	if _, err := sn.Prepare(ctx, "container", chain); err != nil {
		t.Fatal(err)
	}
	found, err := filepath.Glob(filepath.Join(b.cfg.Root, "snapshots/snapshots/*/mnt"))
	if err != nil || len(found) != 1 {
		t.Fatalf("the container is mounted at %v (%v)", found, err)
	}
	places := map[string]string{"a container": found[0]}
	for _, how := range []string{"read-only", "busy", "writable"} {
		at := filepath.Join(b.dir, how)
		if err := os.Mkdir(at, 0o755); err != nil {
			t.Fatal(err)
		}
		req := api.MountRequest{Image: img.ref, Dir: at}
		if how == "writable" {
			req.Upper = at + ".upper"
		}
		if _, err := b.caller.Mount(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		places[how] = at
	}
	seen := func(name string) bool { return strings.HasSuffix(name, "0") || strings.HasSuffix(name, "1") }
	for _, at := range places {
		for name, want := range files {
			if seen(name) {
				b.read(filepath.Join(at, name), want)
			}
		}
	}
	open, err := os.Open(filepath.Join(places["busy"], "dir/small0"))
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()

	b.killAgent(keeper)
	b.startProcess()
	if got, err := io.ReadAll(open); err != nil || string(got) != files["dir/small0"] {
		t.Errorf("a file that was open: %d bytes, %v", len(got), err)
	}
	for where, at := range places {
		for name, want := range files {
			inUse := where == "busy" && name == "dir/small0"
			if seen(name) && !inUse {
				b.read(filepath.Join(at, name), want)
			}
		}
	}
	began := time.Now()
	got, err := os.ReadFile(filepath.Join(places["busy"], "dir/small5"))
	// Other files of the directory may have been fetched ahead.
	here := err == nil && string(got) == files["dir/small5"]
	if !here && !errors.Is(err, unix.ENOTCONN) || time.Since(began) > 5*time.Second {
		t.Errorf("a file that is not here: %v after %v", err, time.Since(began))
	}
	if err := b.caller.Umount(t.Context(), places["read-only"]); err != nil {
		t.Error(err)
	}
	if _, err := b.caller.Mount(t.Context(), api.MountRequest{Image: img.ref, Dir: places["read-only"]}); err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		b.read(filepath.Join(places["read-only"], name), want)
	}
	if err := open.Close(); err != nil {
		t.Fatal(err)
	}
	b.eventually("a file that was in use", func() error {
		_, err := os.ReadFile(filepath.Join(places["busy"], "dir/small0"))
		return err
	})
}

// TestKeeperOutlives checks that a keeper whose files are in use, and with it the pool, ends only
// when the keeper itself is killed. Signals, the end of the reader of its log, and the end of
// workers do not.
func TestKeeperOutlives(t *testing.T) {
	b := newVolumeBed(t, "local", "ext4", "gear, plain")
	b.end()
	files := map[string]string{}
	for i := range 12 {
		files[fmt.Sprint(i)] = fmt.Sprintf("content %d", i)
	}
	img := b.push("team/app", 0, files)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	keeper := b.startProcess(func(cmd *exec.Cmd) { cmd.Stdout, cmd.Stderr = w, w })
	if err := errors.Join(w.Close(), r.Close()); err != nil {
		t.Fatal(err)
	}
	at := filepath.Join(b.dir, "at")
	if err := os.Mkdir(at, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := b.caller.Mount(t.Context(), api.MountRequest{Image: img.ref, Dir: at}); err != nil {
		t.Fatal(err)
	}
	n := 0
	next := func(after string) {
		t.Helper()
		if got, err := os.ReadFile(filepath.Join(at, fmt.Sprint(n))); err != nil || string(got) != files[fmt.Sprint(n)] {
			t.Fatalf("after %s a file that is not here: %q, %v", after, got, err)
		}
		n++
	}
	next("the start")
	for _, sig := range []unix.Signal{unix.SIGHUP, unix.SIGPIPE, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2, unix.SIGTERM} {
		if err := keeper.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond)
		next(sig.String())
	}
	for range 3 {
		st, err := b.caller.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Kill(st.PID, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		next("a kill of the worker")
		b.eventually("the next worker", func() error {
			again, err := b.caller.Status(t.Context())
			if err == nil && again.PID == st.PID {
				err = errors.New("the old one answers")
			}
			return err
		})
	}
	spared, own := "-999", score(t, os.Getpid())
	if os.WriteFile(fmt.Sprintf(oomScoreAdj, "self"), []byte("-999"), 0) != nil {
		spared = own // this machine does not let root do that
	} else if err := os.WriteFile(fmt.Sprintf(oomScoreAdj, "self"), []byte(own), 0); err != nil {
		t.Error(err)
	}
	for pid, want := range map[int]string{keeper.Process.Pid: spared, pidOf(t, b): own} {
		if got := score(t, pid); got != want {
			t.Errorf("process %d has %s in oom_score_adj, want %s", pid, got, want)
		}
	}
	if err := b.caller.Umount(t.Context(), at); err != nil {
		t.Error(err)
	}
	_ = keeper.Wait() // it was asked to stop
}

func pidOf(t *testing.T, b *volumeBed) int {
	t.Helper()
	st, err := b.caller.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return st.PID
}

func score(t *testing.T, pid int) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf(oomScoreAdj, fmt.Sprint(pid)))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

// TestPoolTakenAway checks that unmounting the pool, or aborting its connection, does not end the
// agent, and that local files can be opened.
func TestPoolTakenAway(t *testing.T) {
	b := newVolumeBed(t, "local", "ext4", "gear, plain")
	b.end()
	img := b.push("team/app", 0, map[string]string{"a": "first", "b": "second", "c": "third"})
	b.startProcess()
	pool := layoutOf(b.cfg).Pool
	for i, take := range []func() error{
		func() error { return unix.Unmount(pool, 0) },
		func() error { return unix.Unmount(pool, unix.MNT_DETACH) },
		func() error { return poolfs.Teardown(pool) },
	} {
		before := pidOf(t, b)
		at := filepath.Join(b.dir, fmt.Sprint("at", i))
		if err := os.Mkdir(at, 0o755); err != nil {
			t.Fatal(err)
		}
		aborted := i == 2
		if aborted { // in use
			if _, err := b.caller.Mount(t.Context(), api.MountRequest{Image: img.ref, Dir: at}); err != nil {
				t.Fatal(err)
			}
			b.read(filepath.Join(at, "a"), "first")
		}
		if err := take(); err != nil {
			t.Fatal(err)
		}
		b.eventually("the next worker", func() error {
			st, err := b.caller.Status(t.Context())
			if err == nil && st.PID == before {
				err = errors.New("the old one answers")
			}
			return err
		})
		if aborted {
			b.read(filepath.Join(at, "a"), "first")
			if err := b.caller.Umount(t.Context(), at); err != nil {
				t.Error(err)
			}
		}
		if _, err := b.caller.Mount(t.Context(), api.MountRequest{Image: img.ref, Dir: at}); err != nil {
			t.Fatal(err)
		}
		b.read(filepath.Join(at, []string{"b", "c", "a"}[i]), []string{"second", "third", "first"}[i])
		if err := b.caller.Umount(t.Context(), at); err != nil {
			t.Error(err)
		}
	}
}
