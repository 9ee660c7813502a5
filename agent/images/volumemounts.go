package images

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"example.org/slipway/agent/api"
	"example.org/slipway/config"
	"example.org/slipway/oci/volref"
)

// modeOf returns which ways a request allows, or nil if the configuration decides. It
// also returns which file system a volume must have.
func (m *Set) modeOf(req *api.MountRequest) (use []string, fs string, err error) {
	switch cmp.Or(req.Mode, api.ModeAuto) {
	case api.ModeAuto:
		return nil, "", nil
	case api.ModeGear:
		return []string{config.WayGear}, "", nil
	case api.ModeLocal:
		return []string{config.WayVolume}, "", nil
	case api.ModeNetwork:
		if req.Upper != "" {
			return nil, "", errors.New("a clone takes what is written, so there is no directory for it: leave --rw away")
		}
		return []string{config.WayVolume}, volref.Ext4, nil
	case api.ModePlain:
		return nil, "", errors.New("unpacking in the ordinary way is containerd's; slipway export writes an image's tree into a directory")
	}
	return nil, "", fmt.Errorf("mode %q is none of auto, gear, volume-local, volume-network", req.Mode)
}

// clone mounts a clone of the image's volume at the directory of a record.
func (m *Set) clone(ctx context.Context, r *mountRecord, attrs uint64) (err error) {
	if err := m.save(r); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.lower.DropRoot(context.WithoutCancel(ctx), r.key()))
		}
	}()
	dir, err := m.lower.Root(ctx, r.key(), r.Chain)
	if err != nil {
		return err
	}
	if err := bindTo(dir, r.Dir, attrs); err != nil {
		return err
	}
	return m.chains.adopt(r)
}

// attributesOf returns the attributes of a mount for a request.
func attributesOf(r *api.MountRequest) (attrs uint64) {
	if !r.Suid {
		attrs |= unix.MOUNT_ATTR_NOSUID
	}
	if !r.Dev {
		attrs |= unix.MOUNT_ATTR_NODEV
	}
	return attrs
}

// bindTo mounts a directory at another path as well, with more attributes there. The
// mount has the attributes before anybody can see it.
func bindTo(dir, at string, attrs uint64) error {
	fd, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err == nil {
		defer unix.Close(fd)
		err = unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: attrs})
	}
	if err == nil {
		err = unix.MoveMount(fd, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH)
	}
	if err != nil {
		return fmt.Errorf("mount %s at %s: %w", dir, at, err)
	}
	return nil
}

// mapped returns the name of a mapped image among the mounts.
func mapped(image string) string { return "volume:" + image }

// MapVolume maps and mounts an image as a volume.
func (m *Set) MapVolume(ctx context.Context, req api.MapRequest) (*api.MapAnswer, error) {
	r, fresh, err := m.reserveMap(ctx, &req)
	if err != nil {
		return nil, err
	}
	rec, err := m.chains.records.load(r.Chain)
	var dir string
	if err == nil {
		dir, err = m.chains.volumes.local(ctx, rec.Volume)
	}
	if err != nil && !fresh {
		return nil, err // it stays mapped, and is mounted when the storage answers
	}
	if err == nil && fresh {
		err = m.save(r)
	}
	if err != nil {
		m.mu.Lock()
		delete(m.all, r.Dir)
		m.mu.Unlock()
		return nil, errors.Join(err, m.forget(r))
	}
	a := &api.MapAnswer{Image: req.Image, Volume: rec.Volume.Record.Volume(), FS: rec.Volume.Record.FS, Place: rec.Volume.Record.Place, Dir: dir}
	s, err := m.chains.volumes.mgr.Status(ctx)
	for i := range s.Volumes {
		if s.Volumes[i].Dir == dir {
			a.File = s.Volumes[i].File
		}
	}
	return a, err
}

// reserveMap is like reserve, for an image that is to be mapped. An image that is already
// mapped stays, and fresh is false.
func (m *Set) reserveMap(ctx context.Context, req *api.MapRequest) (r *mountRecord, fresh bool, err error) {
	m.mu.Lock()
	r = m.all[mapped(req.Image)]
	m.mu.Unlock()
	if r != nil {
		return r, false, nil
	}
	_, _, r, err = m.reserve(ctx, &api.MountRequest{Image: req.Image, Dir: mapped(req.Image), Platform: req.Platform}, []string{config.WayVolume}, "")
	if err != nil {
		return nil, false, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	r.Mapped = true
	delete(m.making, r.Dir)
	return r, true, nil
}

// UnmapVolume releases a mapped image.
func (m *Set) UnmapVolume(image string) error {
	m.mu.Lock()
	r := m.all[mapped(image)]
	delete(m.all, mapped(image))
	m.mu.Unlock()
	if r == nil {
		return absent(image + " is not mapped by slipway volume map")
	}
	return m.forget(r)
}
