package gear

import (
	"archive/tar"
	"bufio"
	"errors"
	"io"
	"os"
	"path"

	"github.com/klauspost/compress/gzip"

	"example.org/slipway/gear"
)

// known says, for one image, in what the program that unpacks for comparison is known to
// differ.
type known struct {
	entries int64
	// root says that a layer describes the root directory.
	root bool
}

// knownText explains the known difference to readers.
const knownText = "One thing is left out: the time of the root directory of images in which no layer describes that directory. " +
	"umoci sets it to the beginning of 1970, an export leaves it as it was made. umoci writes no attributes of overlayfs, and neither does an export."

func newKnown(l *loaded, im *image) (*known, error) {
	k := &known{}
	var layers []*gear.Index
	for _, d := range im.Layers {
		layers = append(layers, l.indexes[d.Digest])
		root, err := beginsWithRoot(im.Blob(d.Digest))
		if err != nil {
			return nil, err
		}
		k.root = k.root || root
	}
	x, err := gear.Flatten(layers...)
	if err != nil {
		return nil, err
	}
	k.entries = int64(len(x.Entries))
	return k, nil
}

// beginsWithRoot reports whether the first member of a layer is the root directory. If a layer has
// the root, it is the first member.
func beginsWithRoot(file string) (bool, error) {
	f, err := os.Open(file)
	if err != nil {
		return false, err
	}
	defer f.Close()
	z, err := gzip.NewReader(bufio.NewReader(f))
	if err != nil {
		return false, err
	}
	h, err := tar.NewReader(z).Next()
	if errors.Is(err, io.EOF) {
		return false, nil
	}
	return err == nil && path.Clean("/"+h.Name) == "/", err
}

func (k *known) ignore(path, aspect string) bool { return path == "." && aspect == "mtime" && !k.root }
