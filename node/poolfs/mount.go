package poolfs

import (
	"os"

	"example.org/slipway/node/fuse"
)

// MountOptions are the options of [Mount]. The zero value works.
type MountOptions struct {
	// Source is what mountinfo shows as the mounted device. The default is
	// "slipway-pool".
	Source string
	// ReadaheadBytes is how many bytes the kernel reads ahead of a process in cached
	// mode. The default is 1 MiB.
	ReadaheadBytes int
}

// Mount mounts a pool at an existing directory and returns the descriptor of its
// connection. The mount works as long as any process holds the descriptor. Mount needs
// CAP_SYS_ADMIN. Requests wait until a server answers them.
//
// The mount is read-only, nodev and nosuid. Only root may enter its root directory.
func Mount(dir string, o *MountOptions) (*os.File, error) {
	if o == nil {
		o = &MountOptions{}
	}
	source := o.Source
	if source == "" {
		source = "slipway-pool"
	}
	return fuse.Mount(dir, fuse.MountOptions{Source: source, ReadaheadBytes: o.ReadaheadBytes, ReadOnly: true})
}

// Available returns why no pool can be mounted here, or nil. It checks only the device.
func Available() error {
	f, err := os.OpenFile(fuse.Device, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return f.Close()
}

// Teardown aborts the connection of the pool mounted at dir and unmounts the pool. It is
// for the end of a node's service or of a test, after which no process may be left
// hanging. It is no error if nothing is mounted there.
func Teardown(dir string) error { return fuse.Teardown(dir) }
