package view

import (
	"errors"

	"golang.org/x/sys/unix"
)

// OlderKernel reports whether an option for a directory that the kernel does not have counts as a
// sign of an older kernel.
func OlderKernel(key, dir string) (bool, error) {
	fs, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return false, err
	}
	defer unix.Close(fs)
	err = configure(fs, option{key, dir, true})
	return errors.Is(err, errUnknownParts), err
}

// OverlayByPage is like Overlay, in the form that kernels before 6.7 need.
func OverlayByPage(dir string, o OverlayOptions) error { return o.mountByPage(dir) }

// ParseMounts and Escape are tested with text that no kernel here writes.
var (
	ParseMounts = parseMounts
	EscapePath  = escapePath
)
