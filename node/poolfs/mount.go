package poolfs

import (
	"os"

	"example.org/slipway/node/fuse"
)

// MountOptions are the choices of [Mount]. The zero value is right.
type MountOptions struct {
	// Source is what mountinfo shows as the mounted device. Default "slipway-pool".
	Source string
	// ReadaheadBytes is how far the kernel reads ahead of a process in cached mode. Default 1 MiB.
	ReadaheadBytes int
}

// Mount mounts a pool at an existing directory and returns the descriptor that speaks for it: the mount works as long
// as any process holds it. It needs CAP_SYS_ADMIN. Requests wait until somebody serves them.
//
// The mount is read-only, without devices and set-user-id, and its root may be entered by root alone.
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

// Available returns why no pool can be mounted here, as far as the device tells.
func Available() error {
	f, err := os.OpenFile(fuse.Device, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return f.Close()
}

// Teardown aborts the connection of the pool mounted at dir and unmounts it: for the end of a node's service or of a
// test, when nobody may be left hanging. Nothing mounted there is no error.
func Teardown(dir string) error { return fuse.Teardown(dir) }
