package agent

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"example.org/slipway/agent/api"
	"example.org/slipway/config"
)

// TestStates checks that the error of a call to an agent that does not answer names the agent's
// state, and does not blame the registry.
func TestStates(t *testing.T) {
	dir, err := os.MkdirTemp("/tmp", "sws") // names of sockets must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	file := filepath.Join(dir, "agent.yml")
	if err := os.WriteFile(file, []byte("root: "+dir+"/state\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, _, err := config.LoadAgent(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := api.NewCaller(cfg)
	ask := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		return c.Ready(ctx)
	}
	told := func(state, want string) {
		t.Helper()
		if err := ask(); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "registry") {
			t.Errorf("%s: got %v, want %q", state, err, want)
		}
	}
	told("no agent", api.ErrNoAgent.Error())

	// One worker never starts, and one ends when it is called.
	ctx, end := context.WithCancel(context.Background())
	done := make(chan error, 1)
	run := func(worker *exec.Cmd) {
		ctx, end = context.WithCancel(context.Background())
		go func() {
			done <- Keep(ctx, ctx, cfg, func([]string) *exec.Cmd { return exec.Command(worker.Path, worker.Args[1:]...) }, nil, slog.New(slog.DiscardHandler))
		}()
	}
	stop := func() {
		end()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	run(exec.Command("false"))
	for end := time.Now().Add(10 * time.Second); errors.Is(ask(), api.ErrNoAgent) && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
	}
	told("a worker that does not start", "does not answer")
	stop()
	told("after the end", api.ErrNoAgent.Error())

	b := newVolumeBed(t, "local", "ext4", "gear, plain")
	b.end()
	img := b.push("team/app", 0, map[string]string{"a": "first"})
	b.startProcess()
	st, err := b.caller.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(st.PID, unix.SIGSTOP); err != nil { // so that the call is running
		t.Fatal(err)
	}
	time.AfterFunc(200*time.Millisecond, func() { _ = unix.Kill(st.PID, unix.SIGKILL) })
	at := filepath.Join(b.dir, "at")
	if err := os.Mkdir(at, 0o755); err != nil {
		t.Fatal(err)
	}
	_, err = b.caller.Mount(t.Context(), api.MountRequest{Image: img.ref, Dir: at})
	if err == nil || !strings.Contains(err.Error(), "worker ended") {
		t.Errorf("a worker that was killed: %v", err)
	}
	b.eventually("the next worker", func() error { _, err := b.caller.Status(t.Context()); return err })
}
