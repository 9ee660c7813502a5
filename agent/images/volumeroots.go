package images

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"example.org/slipway/config"
	"example.org/slipway/node/snapshotter"
	"example.org/slipway/oci"
	"example.org/slipway/oci/volref"
	"example.org/slipway/volume/node"
)

// lower is what the snapshotter takes the trees of images from. It also gives containers in
// mode network their roots: each has a clone of its image's volume.
type lower struct{ *claims }

var (
	_ snapshotter.Lower  = (*lower)(nil)
	_ snapshotter.Rooter = (*lower)(nil)
)

// Roots implements snapshotter.Rooter.
func (c *lower) Roots(chain string) bool {
	if c.volumes == nil || c.volumes.cfg.Mode != "network" {
		return false
	}
	rec, err := c.records.load(chain)
	return err == nil && rec.way() == config.WayVolume && rec.Volume.Record.FS == volref.Ext4
}

// Root implements snapshotter.Rooter.
func (c *lower) Root(ctx context.Context, key, chain string) (string, error) {
	rec, err := c.records.load(chain)
	if err != nil {
		return "", err
	}
	if !rec.Volume.usable() {
		return "", fmt.Errorf("chain %s is not a volume", chain)
	}
	dir, err := c.volumes.network(ctx, key, rec.Volume)
	return dir, err
}

// DropRoot implements snapshotter.Rooter.
func (c *lower) DropRoot(ctx context.Context, key string) error {
	if c.volumes == nil {
		return errNoVolumes
	}
	return c.volumes.mgr.DropNetwork(ctx, key)
}

// RootUsage implements snapshotter.Rooter. It returns by how much the clone's content exceeds
// the image's. It does not count content that replaced content of the image.
func (c *lower) RootUsage(ctx context.Context, key string) (size, inodes int64, err error) {
	if c.volumes == nil {
		return 0, 0, errNoVolumes
	}
	s, err := c.volumes.mgr.Status(ctx)
	if err != nil {
		return 0, 0, err
	}
	i := slices.IndexFunc(s.Volumes, func(u node.VolumeStatus) bool { return u.Container == key && u.Dir != "" })
	if i < 0 {
		return 0, 0, nil // it is not mounted; it is mounted when it is used
	}
	own := &s.Volumes[i]
	k := slices.IndexFunc(s.Volumes, func(u node.VolumeStatus) bool {
		return u.Container == "" && u.Volume == own.Volume && u.Place == own.Place && u.Dir != ""
	})
	size, inodes, err = usedOf(own.Dir)
	if err != nil || k < 0 {
		return size, inodes, err
	}
	below, files, err := usedOf(s.Volumes[k].Dir)
	return max(size-below, 0), max(inodes-files, 0), err
}

// usedOf returns how much a file system says that it holds.
func usedOf(dir string) (size, inodes int64, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, 0, fmt.Errorf("space used in %s: %w", dir, err)
	}
	return int64(st.Blocks-st.Bfree) * st.Bsize, int64(st.Files - st.Ffree), nil
}

// CommitRoot implements snapshotter.Rooter. The new volume is next to the container's
// clone and has the image's volume as its parent. Only this node knows it.
func (c *lower) CommitRoot(ctx context.Context, key, parent, chain string) error {
	if c.volumes == nil {
		return errNoVolumes
	}
	base, err := c.records.load(parent)
	if err != nil {
		return err
	}
	if !base.Volume.usable() {
		return fmt.Errorf("chain %s is not a volume", parent)
	}
	var random [12]byte
	rand.Read(random[:]) // never fails
	id := "c-image-" + hex.EncodeToString(random[:])
	digest := oci.SHA256([]byte(id)) // no blob has this digest
	own := *base.Volume
	own.Own = true
	own.Record.Layers = append(slices.Clone(own.Record.Layers),
		volref.RecordLayer{Digest: digest, Volume: id, Size: own.Record.Layers[len(own.Record.Layers)-1].Size})
	rec := &chainRecord{Chain: chain, Parent: parent, Digest: string(digest), Ref: base.Ref, Sources: base.Sources,
		Layers:   append(slices.Clone(base.Layers), string(digest)),
		Snapshot: true, Way: config.WayVolume, Why: []string{"volume: it was committed from a container on this node"}, Volume: &own}
	c.changing.Lock()
	// The record comes before the volume, so that the volume is found if this is
	// interrupted.
	err = c.records.create(rec, nil)
	c.changing.Unlock()
	if err != nil {
		return err
	}
	if err := c.volumes.mgr.Commit(ctx, key, id); err != nil {
		return errors.Join(err, c.Drop(context.WithoutCancel(ctx), chain))
	}
	return nil
}
