package snapshotter_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/containerd/v2/pkg/archive"
	"github.com/containerd/continuity/fs"
	"golang.org/x/sys/unix"

	"example.org/slipway/integration/internal/blockfs"
	"example.org/slipway/node/snapshotter"
)

// registryLower claims every layer that a registry gives it: it unpacks the
// tree of the whole chain into a directory, and mounts that.
//
//	X/tree  the flattened tree of chain X
//	X/mnt   a bind mount of it
type registryLower struct {
	dir   string
	claim func(l snapshotter.Layer) bool // nil claims everything

	mu      sync.Mutex
	running map[string]string // from container to chain
	dropped []string
}

func newLower(t testing.TB) *registryLower {
	t.Helper()
	dir := t.TempDir()
	t.Cleanup(func() { blockfs.UnmountBelow(t, dir) })
	return &registryLower{dir: dir, running: map[string]string{}}
}

func (l *registryLower) chain(chain string) string { return filepath.Join(l.dir, chain) }

func (l *registryLower) Claim(ctx context.Context, layer snapshotter.Layer) (bool, error) {
	if l.claim != nil && !l.claim(layer) {
		return false, nil
	}
	tree := filepath.Join(l.chain(layer.ChainID), "tree")
	if _, err := os.Stat(tree); err == nil {
		return true, nil
	}
	tmp := filepath.Join(l.chain(layer.ChainID), "tmp")
	if err := os.MkdirAll(tmp, 0o755); err != nil {
		return false, err
	}
	if layer.Parent != "" {
		if err := fs.CopyDir(tmp, filepath.Join(l.chain(layer.Parent), "tree")); err != nil {
			return false, err
		}
	}
	if err := unpack(ctx, layer, tmp); err != nil {
		return false, err
	}
	if err := os.Mkdir(filepath.Join(l.chain(layer.ChainID), "mnt"), 0o755); err != nil {
		return false, err
	}
	return true, os.Rename(tmp, tree)
}

// unpack fetches a layer according to its labels, and unpacks it.
func unpack(ctx context.Context, layer snapshotter.Layer, dir string) error {
	host, rest, _ := strings.Cut(layer.ImageRef, "/")
	repo, _, _ := strings.Cut(rest, ":")
	url := fmt.Sprintf("http://%s/v2/%s/blobs/%s", host, repo, layer.Digest)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s", url, resp.Status)
	}
	r, err := gzip.NewReader(resp.Body)
	if err != nil {
		return err
	}
	_, err = archive.Apply(ctx, dir, r)
	return err
}

func (l *registryLower) Mount(_ context.Context, chain string) (snapshotter.Layers, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	mnt, tree := filepath.Join(l.chain(chain), "mnt"), filepath.Join(l.chain(chain), "tree")
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return snapshotter.Layers{}, err
	}
	if !bytes.Contains(table, []byte(" "+mnt+" ")) {
		if err := unix.Mount(tree, mnt, "", unix.MS_BIND, ""); err != nil {
			return snapshotter.Layers{}, fmt.Errorf("mount %s: %w", tree, err)
		}
	}
	// This directory of contents is not needed, but makes the overlays complete.
	data := filepath.Join(l.dir, "data")
	return snapshotter.Layers{Lower: []string{mnt}, Data: []string{data}}, os.MkdirAll(data, 0o700)
}

func (l *registryLower) Started(_ context.Context, c snapshotter.Container) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running[c.Key] = c.Chain
	return nil
}

func (l *registryLower) Stopped(_ context.Context, container string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.running, container)
	return nil
}

func (l *registryLower) Usage(ctx context.Context, chain string) (sizeBytes, inodes int64, err error) {
	u, err := fs.DiskUsage(ctx, filepath.Join(l.chain(chain), "tree"))
	return u.Size, u.Inodes, err
}

func (l *registryLower) Drop(_ context.Context, chain string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := unix.Unmount(filepath.Join(l.chain(chain), "mnt"), 0); err != nil && err != unix.EINVAL && err != unix.ENOENT {
		return err
	}
	l.dropped = append(l.dropped, chain)
	return os.RemoveAll(l.chain(chain))
}

// containers returns the number of containers that were started and not stopped.
func (l *registryLower) containers() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.running)
}
