package agent

import (
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"example.org/slipway/config"
	"example.org/slipway/node/poolfs"
)

// TestNoVolumeWorker checks a machine on which no volume worker can be started. A caller that reads
// a volume gets an error after the tolerated outage, and does not wait for ever.
func TestNoVolumeWorker(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: mounts")
	}
	dir := t.TempDir()
	cfg := &config.Agent{Root: filepath.Join(dir, "root"), Run: filepath.Join(dir, "run")}
	cfg.Volumes.File.Dir, cfg.Volumes.Outage = dir, time.Second
	k, err := keepVolumes(cfg, false, func() *exec.Cmd { return exec.Command("false") }, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	volumes := layoutOf(cfg).Volumes
	t.Cleanup(func() {
		if err := poolfs.Teardown(volumes); err != nil {
			t.Error(err)
		}
		if err := k.close(); err != nil {
			t.Error(err)
		}
	})
	done := make(chan error, 1)
	go func() {
		f, err := os.Open(filepath.Join(volumes, "none"))
		if err == nil {
			_, err = f.Read(make([]byte, 1))
			f.Close()
		}
		done <- err
	}()
	select {
	case err := <-done:
		if err == nil || err == io.EOF {
			t.Errorf("a volume that nobody serves is read: %v", err)
		}
	case <-time.After(30 * time.Second):
		t.Error("who looks at a volume that nobody serves waits for ever")
	}
}
