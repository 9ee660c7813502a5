package file_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"example.org/slipway/internal/mounttest"
	"example.org/slipway/oci/volref"
	"example.org/slipway/volume/block"
	"example.org/slipway/volume/blocktest"
	"example.org/slipway/volume/file"
)

// mainContext is the context of child processes.
var mainContext = context.Background()

func TestMain(m *testing.M) {
	if do := os.Getenv(killedEnv); do != "" {
		fmt.Fprintln(os.Stderr, untilKilled(do))
		os.Exit(1)
	}
	blocktest.Main(func(where string) (block.Store, error) { return file.Open(where, nil) })
	mounttest.Main(m)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func open(t testing.TB, dir string, o *file.Options) *file.Store {
	t.Helper()
	s, err := file.Open(dir, o)
	must(t, err)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

// places finds the directory of a store of the suite: open made it.
type places map[string]string

func (p places) where(s block.Store) string { return p[s.Place().Cluster] }

func TestStore(t *testing.T) {
	t.Parallel()
	p := places{}
	blocktest.Run(t, func(t *testing.T) block.Store {
		dir := t.TempDir()
		s := open(t, dir, nil)
		p[s.Place().Cluster] = dir
		return s
	}, &blocktest.Options{
		Where: p.where,
		Death: 5 * time.Second, // a process of this machine: at once
		Full: func(t *testing.T) (block.Store, int64) {
			return open(t, tmpfs(t, 16<<20), nil), 16 << 20
		},
	})
}

// tmpfs mounts a small file system.
func tmpfs(t testing.TB, size int) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	dir := t.TempDir()
	mount(t, "tmpfs", dir, "-t", "tmpfs", "-o", fmt.Sprintf("size=%d", size))
	return dir
}

func mount(t testing.TB, what, dir string, args ...string) {
	t.Helper()
	run(t, "mount", append(args, what, dir)...)
	t.Cleanup(func() { run(t, "umount", "-l", dir) })
}

func run(t testing.TB, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
}

// disk mounts an ext4 of the given size in bytes, which can be full and can be frozen.
func disk(t testing.TB, size int64) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	image := filepath.Join(t.TempDir(), "disk")
	must(t, os.WriteFile(image, nil, 0o600))
	must(t, os.Truncate(image, size))
	run(t, "mkfs.ext4", "-q", "-E", "lazy_itable_init=1", image)
	dir := t.TempDir()
	mount(t, image, dir, "-o", "loop")
	must(t, os.Mkdir(filepath.Join(dir, "place"), 0o700))
	return filepath.Join(dir, "place")
}

func TestIdentity(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, err := file.Open(dir, &file.Options{Existing: true}); err == nil {
		t.Error("an empty directory was taken for a place of volumes")
	}
	if _, err := file.Open(filepath.Join(dir, "missing"), nil); err == nil {
		t.Error("a missing directory was opened")
	}
	// Many concurrent calls create one.
	got := make(chan volref.Place, 8)
	for range cap(got) {
		go func() {
			s, err := file.Open(dir, nil)
			if err != nil {
				t.Error(err)
				got <- volref.Place{}
				return
			}
			got <- s.Place()
			_ = s.Close()
		}()
	}
	first := <-got
	for range cap(got) - 1 {
		if p := <-got; p != first || p.Driver != "file" || p.Cluster == "" {
			t.Errorf("got places %+v and %+v", first, p)
		}
	}
	if s := open(t, dir, &file.Options{Existing: true}); s.Place() != first {
		t.Errorf("later: got place %+v, want %+v", s.Place(), first)
	}
	if names, err := filepath.Glob(filepath.Join(dir, "place.*")); err != nil || len(names) != 1 {
		t.Errorf("left: %v, %v", names, err)
	}
	b, err := json.Marshal(map[string]any{"version": 2, "cluster": "x"})
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "place.json"), b, 0o600))
	if _, err := file.Open(dir, nil); err == nil {
		t.Error("a place of a later version was opened")
	}
}
