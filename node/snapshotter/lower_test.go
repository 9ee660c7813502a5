package snapshotter_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"example.org/slipway/node/snapshotter"
)

// trees is a Lower that keeps trees on disk in the form that the kernel needs: a
// directory of names and sizes whose files point to contents by digest, and a directory
// of contents. Its whole state is on disk, so another process can continue with it.
//
//	chains/X/tree   the names, made by Claim
//	chains/X/mnt    a bind mount of it, made by Mount
//	data            contents, ab/cdef...
//	started/KEY     containers; slashes are escaped
type trees struct {
	dir   string
	files func(chain string) map[string]string // what a chain holds; nil: not claimed

	mu      sync.Mutex
	claimed []snapshotter.Layer // as they were asked for
	drop    error               // what Drop and Stopped answer
}

func newTrees(t testing.TB, dir string) *trees {
	t.Helper()
	for _, d := range []string{"chains", "data", "started"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return &trees{dir: dir, files: func(chain string) map[string]string {
		return map[string]string{"chain": chain, "etc/passwd": "root:x:0:0::/:/bin/sh\n", "empty": ""}
	}}
}

func (l *trees) chain(chain string) string { return filepath.Join(l.dir, "chains", chain) }

func (l *trees) Claim(_ context.Context, layer snapshotter.Layer) (bool, error) {
	l.mu.Lock()
	l.claimed = append(l.claimed, layer)
	l.mu.Unlock()
	files := l.files(layer.ChainID)
	if files == nil {
		return false, nil
	}
	tree := filepath.Join(l.chain(layer.ChainID), "tree")
	if _, err := os.Stat(tree); err == nil {
		return true, nil
	}
	tmp := filepath.Join(l.chain(layer.ChainID), "tmp")
	if err := errors.Join(os.RemoveAll(tmp), os.MkdirAll(tmp, 0o755)); err != nil {
		return false, err
	}
	for name, text := range files {
		if err := l.stub(filepath.Join(tmp, name), text); err != nil {
			return false, err
		}
	}
	return true, errors.Join(os.MkdirAll(filepath.Join(l.chain(layer.ChainID), "mnt"), 0o755), os.Rename(tmp, tree))
}

// stub writes a file's name and size to one place and its content to another.
func (l *trees) stub(name, text string) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	f, err := os.Create(name)
	if err != nil || text == "" {
		return errors.Join(err, f.Close())
	}
	defer f.Close()
	hex := fmt.Sprintf("%x", sha256.Sum256([]byte(text)))
	at := "/" + hex[:2] + "/" + hex[2:]
	content := filepath.Join(l.dir, "data", at)
	if err := os.MkdirAll(filepath.Dir(content), 0o755); err != nil {
		return err
	}
	return errors.Join(os.WriteFile(content, []byte(text), 0o644), f.Truncate(int64(len(text))),
		unix.Setxattr(name, "trusted.overlay.metacopy", nil, 0),
		unix.Setxattr(name, "trusted.overlay.redirect", []byte(at), 0))
}

func (l *trees) Mount(_ context.Context, chain string) (snapshotter.Layers, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	mnt := filepath.Join(l.chain(chain), "mnt")
	var here, above unix.Stat_t
	if err := errors.Join(unix.Stat(mnt, &here), unix.Stat(filepath.Join(mnt, ".."), &above)); err != nil {
		return snapshotter.Layers{}, err
	}
	if entries, err := os.ReadDir(mnt); err != nil || len(entries) == 0 {
		if err := unix.Mount(filepath.Join(l.chain(chain), "tree"), mnt, "", unix.MS_BIND, ""); err != nil {
			return snapshotter.Layers{}, err
		}
	}
	return snapshotter.Layers{Lower: []string{mnt}, Data: []string{filepath.Join(l.dir, "data")}}, nil
}

func (l *trees) startedFile(key string) string {
	return filepath.Join(l.dir, "started", strings.ReplaceAll(key, "/", "%"))
}

func (l *trees) Started(_ context.Context, c snapshotter.Container) error {
	return os.WriteFile(l.startedFile(c.Key), []byte(c.Chain), 0o644)
}

func (l *trees) Stopped(_ context.Context, container string) error {
	if err := l.dropErr(); err != nil {
		return err
	}
	if err := os.Remove(l.startedFile(container)); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

func (l *trees) Usage(_ context.Context, chain string) (sizeBytes, inodes int64, err error) {
	_, err = os.Stat(l.chain(chain))
	return int64(len(l.files(chain))) * 4096, int64(len(l.files(chain))), err
}

func (l *trees) Drop(_ context.Context, chain string) error {
	if err := l.dropErr(); err != nil {
		return err
	}
	mnt := filepath.Join(l.chain(chain), "mnt")
	if err := unix.Unmount(mnt, 0); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmount %s: %w", mnt, err)
	}
	return os.RemoveAll(l.chain(chain))
}

func (l *trees) dropErr() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.drop
}

func (l *trees) setDrop(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drop = err
}

// asked returns the chains for which Claim was called.
func (l *trees) asked() (chains []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.claimed {
		chains = append(chains, c.ChainID)
	}
	return chains
}

// known returns the chains on disk, and the containers that were started and not stopped.
func (l *trees) known(t testing.TB) (chains, containers []string) {
	t.Helper()
	list := func(dir string) (names []string) {
		entries, err := os.ReadDir(filepath.Join(l.dir, dir))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			names = append(names, strings.ReplaceAll(e.Name(), "%", "/"))
		}
		slices.Sort(names)
		return names
	}
	return list("chains"), list("started")
}

// chainOf returns the chain ID of a layer over a parent.
func chainOf(parent, diffID string) string {
	if parent == "" {
		return diffID
	}
	return digest.FromString(parent + " " + diffID).String()
}
