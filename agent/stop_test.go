package agent

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"example.org/slipway/agent/api"
	"example.org/slipway/node/view"
)

// TestStop checks that an agent whose files are in use refuses to stop and names the users, unless
// it must stop now. It leaves nothing, or only what is in use, and the next agent starts.
func TestStop(t *testing.T) {
	b := newVolumeBed(t, "local", "ext4", "gear, plain")
	b.end()
	img := b.push("team/app", 0, map[string]string{"a": "first", "b": "second"})
	ended := func(keeper *exec.Cmd) {
		t.Helper()
		done := make(chan error, 1)
		go func() { done <- keeper.Wait() }()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("the keeper: %v", err)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("the keeper goes on")
		}
		if _, err := b.caller.Status(t.Context()); !errors.Is(err, api.ErrNoAgent) {
			t.Errorf("after the end: %v", err)
		}
	}
	stop := func(now bool) error {
		t.Helper()
		return b.caller.Stop(t.Context(), now)
	}
	if err := stop(false); !errors.Is(err, api.ErrNoAgent) {
		t.Errorf("there is no agent: %v", err)
	}
	for i, now := range []bool{false, true, false} {
		keeper := b.startProcess()
		at := filepath.Join(b.dir, fmt.Sprint("at", i))
		if err := os.Mkdir(at, 0o755); err != nil {
			t.Fatal(err)
		}
		if _, err := b.caller.Mount(t.Context(), api.MountRequest{Image: img.ref, Dir: at}); err != nil {
			t.Fatal(err)
		}
		b.read(filepath.Join(at, "a"), "first")
		if err := stop(false); err == nil || !strings.Contains(err.Error(), at) {
			t.Fatalf("it is in use at %s: %v", at, err)
		}
		b.read(filepath.Join(at, "b"), "second") // the process continues
		if !now {
			if err := b.caller.Umount(t.Context(), at); err != nil {
				t.Fatal(err)
			}
		}
		if err := stop(now); err != nil {
			t.Fatal(err)
		}
		ended(keeper)
		_, pool, err := view.Mounted(layoutOf(b.cfg).Pool)
		if err != nil || pool != now {
			t.Errorf("the pool is mounted: %v (%v), want %v", pool, err, now)
		}
		if err := view.UnmountBelow(at); err != nil {
			t.Fatal(err)
		}
	}
}
