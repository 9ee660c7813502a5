package runtimespec

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
)

// MakeVolumes makes the directories that the configuration of an image names as volumes,
// in its tree at root, unless they are there. Programs expect them, and other runtimes
// make them. Links in the tree stay inside it.
func MakeVolumes(image []byte, root string) error {
	var img ocispec.Image
	if err := json.Unmarshal(image, &img); err != nil {
		return fmt.Errorf("configuration of the image: %w", err)
	}
	top, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: root, Err: err}
	}
	defer unix.Close(top)
	for _, v := range slices.Sorted(maps.Keys(img.Config.Volumes)) {
		if err := makeDirs(top, path.Join("/", v)); err != nil {
			return fmt.Errorf("volume %s of the image: %w", v, err)
		}
	}
	return nil
}

// makeDirs makes a directory below the directory top, and those above it.
func makeDirs(top int, dir string) error {
	if dir == "/" {
		return nil
	}
	have := "."
	for name := range strings.SplitSeq(strings.Trim(dir, "/"), "/") {
		at, err := unix.Openat2(top, have, &unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT})
		if err != nil {
			return &os.PathError{Op: "open", Path: path.Join("/", have), Err: err}
		}
		have = path.Join(have, name)
		err = unix.Mkdirat(at, name, 0o755)
		_ = unix.Close(at)
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return &os.PathError{Op: "mkdir", Path: path.Join("/", have), Err: err}
		}
	}
	return nil
}
