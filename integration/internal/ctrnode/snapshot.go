package ctrnode

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// collectedFor is how long to retry in case containerd's garbage collector removes a new
// snapshot before it is named. A pull causes a collection soon after it.
const collectedFor = 30 * time.Second

// Shown mounts what a container of an image would see, calls do on it, and unmounts it. The image
// is named by its chain ID. A writable mount is what a container gets; otherwise it is a view.
func (n *Node) Shown(ctx context.Context, chain string, writable bool, do func(dir string) error) (err error) {
	key, how := fmt.Sprintf("shown-%x", rand.Uint64()), "view"
	if writable {
		how = "prepare"
	}
	dir := filepath.Join(n.Dir, key)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	mount, err := n.snapshot(ctx, how, dir, key, chain)
	if err != nil {
		return err
	}
	defer func() {
		_, rmErr := n.Ctr(context.WithoutCancel(ctx), "snapshots", "--snapshotter", n.Snapshotter(), "rm", key)
		err = errors.Join(err, rmErr)
	}()
	// ctr prints a mount(8) command.
	if out, err := exec.CommandContext(ctx, "sh", "-ec", mount).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", mount, err, out)
	}
	defer func() { err = errors.Join(err, unmountBelow(dir), os.Remove(dir)) }()
	return do(dir)
}

// snapshot makes a snapshot that is not garbage collected and returns how to mount it.
func (n *Node) snapshot(ctx context.Context, how, dir, key, chain string) (mount string, err error) {
	for end := time.Now().Add(collectedFor); ; time.Sleep(20 * time.Millisecond) {
		made, err := n.Ctr(ctx, "snapshots", "--snapshotter", n.Snapshotter(), how, "--target", dir, key, chain)
		if err == nil {
			mount = made
		}
		if err == nil || strings.Contains(err.Error(), "already exists") {
			if _, err = n.Ctr(ctx, "snapshots", "--snapshotter", n.Snapshotter(), "label", key, "containerd.io/gc.root=test"); err == nil {
				return mount, nil
			}
		}
		if time.Now().After(end) {
			return "", err
		}
	}
}
