package ceph_test

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"example.org/slipway/integration/internal/ceph"
	"example.org/slipway/integration/internal/tool"
)

// TestCluster kills the daemons of a cluster. Data written before must still be there afterwards.
func TestCluster(t *testing.T) {
	if name := ceph.Missing(); name != "" {
		t.Skipf("tool not installed: %s (scripts/setup.sh test installs it)", name)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	began := time.Now()
	c, err := ceph.Start(ctx, tool.ShortTempDir(t), &ceph.Options{Namespaces: []string{"one", "two"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	}()
	t.Logf("started in %v", time.Since(began))
	content := strings.Repeat("slipway ", 1<<17)
	file := c.Dir + "/in"
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) string {
		t.Helper()
		out, err := c.Run(ctx, args[0], args[1:]...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	before, err := c.Traffic()
	if err != nil {
		t.Fatal(err)
	}
	run("rbd", "--no-progress", "import", file, "rbd/one/image")
	if got, err := c.Images(ctx, "one"); err != nil || !slices.Equal(got, []string{"image"}) {
		t.Errorf("images %q, error %v", got, err)
	}
	if got, err := c.Images(ctx, "two"); err != nil || len(got) != 0 {
		t.Errorf("images of the other namespace %q, error %v", got, err)
	}
	after, err := c.Traffic()
	if err != nil || after.WrittenBytes-before.WrittenBytes < int64(len(content)) || after.StoredBytes-before.StoredBytes < int64(len(content)) {
		t.Errorf("traffic %+v before and %+v after, error %v; want %d bytes more written and stored", before, after, err, len(content))
	}
	c.KillOSD()
	if err := c.StartOSD(ctx); err != nil {
		t.Fatal(err)
	}
	c.KillMon()
	if err := c.StartMon(ctx); err != nil {
		t.Fatal(err)
	}
	run("rbd", "--no-progress", "export", "rbd/one/image", c.Dir+"/out")
	if out, err := os.ReadFile(c.Dir + "/out"); err != nil || string(out) != content {
		t.Errorf("after the kills %d bytes were read, error %v; want what was written", len(out), err)
	}
	if now, err := c.Traffic(); err != nil || now.ReadBytes < int64(len(content)) {
		t.Errorf("traffic %+v, error %v, want %d bytes read", now, err, len(content))
	}
	if w, err := c.Watchers(ctx, "one"); err != nil || len(w) != 0 {
		t.Errorf("watchers %q, error %v", w, err)
	}
	if _, err := c.NewUser(ctx, "client.slipway-x", "mon", "profile rbd"); err != nil {
		t.Error(err)
	}
	if u, err := c.Users(ctx, "client.slipway-"); err != nil || len(u) != 1 {
		t.Errorf("users %q, error %v", u, err)
	}
	t.Logf("done after %v", time.Since(began))
	began = time.Now()
	if err := c.SetFull(ctx, true); err != nil {
		t.Fatal(err)
	}
	t.Logf("full after %v", time.Since(began))
	began = time.Now()
	short, stop := context.WithTimeout(ctx, 5*time.Second)
	_, err = c.Run(short, "rbd", "--no-progress", "import", file, "rbd/one/another")
	stop()
	t.Logf("import into a full cluster: %v after %v", err, time.Since(began))
	if err == nil {
		t.Error("a full cluster takes an image")
	}
	if err := c.SetFull(ctx, false); err != nil {
		t.Fatal(err)
	}
	run("rbd", "--no-progress", "import", file, "rbd/one/third")
}
