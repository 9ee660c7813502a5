package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"

	"example.org/slipway/config"
	"example.org/slipway/node/poolfs"
	"example.org/slipway/node/view"
	"example.org/slipway/volume/volfs"
)

// These are the names under which systemd keeps the descriptors.
const (
	poolName    = "pool"
	volumesName = "volumes"
)

// fuseMount is a file system that the agent serves, the pool or the volumes.
type fuseMount struct {
	name, dir string
	state     string // of its server
	mount     func(dir string) (*os.File, error)
	// replaced and notStored are what the log says when the mount replaces one whose
	// process is gone, and when systemd does not keep its descriptor.
	replaced, notStored string
}

func (l *layout) poolMount() *fuseMount {
	return &fuseMount{
		name: poolName, dir: l.Pool, state: l.state, mount: func(dir string) (*os.File, error) { return poolfs.Mount(dir, nil) },
		replaced:  "the pool of an agent that is gone is replaced; containers that were running then must be started again to fetch further files",
		notStored: "systemd does not keep the pool; a container that waits for a file when the agent dies gets an error (FileDescriptorStoreMax= in the unit)",
	}
}

func (l *layout) volumesMount() *fuseMount {
	return &fuseMount{
		name: volumesName, dir: l.Volumes, state: l.volumeState, mount: volfs.Mount,
		replaced:  "the volumes of an agent that is gone are replaced; containers that were running on them then must be started again",
		notStored: "systemd does not keep the volumes; containers on them get errors when the agent dies (FileDescriptorStoreMax= in the unit)",
	}
}

// open mounts the file system and returns its descriptor. It replaces a file system whose
// process is gone. If the descriptor is stored, systemd keeps it. If systemd already has
// a descriptor from an earlier process, that one is returned.
func (m *fuseMount) open(stored bool, log *slog.Logger) (*os.File, error) {
	if stored {
		if dev, err := poolfs.Inherited(m.name); !errors.Is(err, fs.ErrNotExist) {
			return dev, err
		}
	}
	if _, there, err := view.Mounted(m.dir); err != nil {
		return nil, err
	} else if there {
		log.Warn(m.replaced, m.name, m.dir)
		if err := poolfs.Teardown(m.dir); err != nil {
			return nil, fmt.Errorf("take away the %s of an agent that is gone: %w", m.name, err)
		}
	}
	if err := os.Remove(m.state); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	dev, err := m.mount(m.dir)
	if err != nil {
		return nil, fmt.Errorf("mount the %s: %w", m.name, err)
	}
	if stored {
		if kept, err := poolfs.Store(dev, m.name); err != nil || !kept {
			log.Warn(m.notStored, "err", err)
		}
	}
	return dev, nil
}

// poolOrNone returns the descriptor of the pool, or nil if none can be mounted. Without a
// pool, images are unpacked and volumes are not used. A node without its agent would
// start no containers at all.
func poolOrNone(cfg *config.Agent, stored bool, log *slog.Logger) *os.File {
	lay := layoutOf(cfg)
	dev, err := lay.poolMount().open(stored, log)
	if err != nil {
		log.Warn("there is no pool for files that are fetched when they are opened, so images are unpacked", "err", err)
		return nil
	}
	return dev
}
