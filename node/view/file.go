package view

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"example.org/slipway/gear"
	"example.org/slipway/internal/durable"
	"example.org/slipway/node/erofs"
)

// Suffix is the end of the names of image files.
const Suffix = ".img"

// Compile writes the tree of a flat index into the directory dir as an image file and
// returns the path of the file. The file is named after the SHA-256 of its bytes, so the
// same tree has the same name. If the file already exists, Compile compares its bytes and
// leaves it unchanged. The file appears complete and durable, or not at all, and a crash
// leaves nothing behind. dir must be on a file system with O_TMPFILE.
//
// Owners, modes and attributes are as in the index. Attributes that would control
// overlayfs are escaped. A character device 0:0 becomes an empty file that only an
// overlay inside the container takes for a whiteout. A directory that the index does not
// describe has mode 0755, owner root and the epoch as its time.
//
// Errors: *[erofs.Error] for what an image cannot hold, an index that is not flat, and
// the errors of ctx and of the file system.
func Compile(ctx context.Context, x *gear.Index, dir string) (string, error) {
	nodes, err := tree(ctx, x)
	if err != nil {
		return "", fmt.Errorf("compile index: %w", err)
	}
	file, err := store(ctx, nodes, dir)
	if err != nil {
		return "", fmt.Errorf("compile index into %s: %w", dir, err)
	}
	return file, nil
}

// store writes the image of the nodes to a file in dir.
func store(ctx context.Context, nodes []erofs.Node, dir string) (string, error) {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o444)
	if err != nil {
		return "", fmt.Errorf("make a file without a name: %w", err)
	}
	f := os.NewFile(uintptr(fd), filepath.Join(dir, "new image"))
	defer f.Close()
	sum := sha256.New()
	if _, err := erofs.Write(io.MultiWriter(f, sum), nodes, nil); err != nil {
		return "", err
	}
	if err := f.Chmod(0o444); err != nil { // whatever the umask is
		return "", err
	}
	if err := f.Sync(); err != nil {
		return "", err
	}
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	var name [sha256.Size]byte
	file := filepath.Join(dir, hex.EncodeToString(sum.Sum(name[:0]))+Suffix)
	if err := publish(f, file, name); err != nil {
		return "", err
	}
	return file, durable.SyncDir(dir)
}

// publish gives f its name, unless a file with the same bytes already has the name.
func publish(f *os.File, file string, name [sha256.Size]byte) error {
	for {
		// Linking through /proc needs no capability.
		err := unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", f.Fd()), unix.AT_FDCWD, file, unix.AT_SYMLINK_FOLLOW)
		if !errors.Is(err, unix.EEXIST) {
			return err
		}
		same, err := holds(file, name)
		if same || err != nil {
			return err
		}
		// The file was damaged on disk. Existing mounts keep the old file.
		if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
}

// holds reports whether the SHA-256 of a file's bytes is name.
func holds(file string, name [sha256.Size]byte) (bool, error) {
	f, err := os.Open(file)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return false, err
	}
	return bytes.Equal(sum.Sum(nil), name[:]), nil
}

// identified returns an error for an image without a UUID, as versions before 0.2 wrote
// them. Overlays above such an image treat the names of a hard link as different files.
func identified(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	id, err := erofs.ReadUUID(f)
	if err == nil && id == ([16]byte{}) {
		err = errors.New("an earlier version of Slipway made it, without a UUID")
	}
	return err
}

// Check returns an error unless an image file still has the bytes after which it is
// named, and a UUID. A kernel should only get images that were made here and have not
// changed since. So call Check after a crash and before the first mount.
func Check(file string) error {
	var name [sha256.Size]byte
	digits, ok := bytes.CutSuffix([]byte(filepath.Base(file)), []byte(Suffix))
	if n, err := hex.Decode(name[:], digits[:min(len(digits), 2*len(name))]); !ok || err != nil || n != len(name) || len(digits) != 2*len(name) {
		return fmt.Errorf("check image %s: it is not called by its digest", file)
	}
	same, err := holds(file, name)
	if err == nil && !same {
		err = errors.New("its bytes have changed, or it is gone")
	}
	if err == nil {
		err = identified(file)
	}
	if err != nil {
		return fmt.Errorf("check image %s: %w", file, err)
	}
	return nil
}
