package gear

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"example.org/slipway/gear/rootfs"
	"example.org/slipway/oci"
)

// A Gear image is an ordinary image of one layer. The layer holds the index of the image
// that the Gear image represents. docs/formats/gear-image.md specifies it.
const (
	// ImageLayerType is the media type of that layer, a tar. The tar is not compressed,
	// because nine tenths of it are digests. Its digest is its diff ID.
	ImageLayerType = "application/vnd.oci.image.layer.v1.tar"
	// LabelVersion is the label in the configuration of a Gear image that holds the
	// version of the format, ImageVersion.
	LabelVersion = "dev.slipway.gear.version"
	// LabelOriginal is the label with the digest of the manifest that the image was made
	// from.
	LabelOriginal = "dev.slipway.gear.original"
	// ImageVersion is the version that is written and read.
	ImageVersion = 1
)

const (
	imageDir    = ".slipway"
	imageReadme = ".slipway/README"
	imageIndex  = ".slipway/index"
	readmeText  = `This is a Gear image. Its only layer holds, in .slipway/index, the file tree of
the image it stands for, without the contents of files: these are fetched from
the registry when they are used, by a node that runs the Slipway agent. Without
the agent the image has nothing to run.
`
)

// ErrNotGear is returned, wrapped, for a layer or configuration that does not belong to a
// Gear image.
var ErrNotGear = errors.New("not a Gear image")

// ImageLayer returns the layer of a Gear image. It is always the same for the same index.
// The index must be flat.
func ImageLayer(x *Index) ([]byte, error) {
	if !x.Flat() {
		return nil, fmt.Errorf("%w: an image's index has neither whiteouts nor links to other layers", ErrInvalid)
	}
	var index, out bytes.Buffer
	if err := x.Encode(&index); err != nil {
		return nil, err
	}
	out.Grow(index.Len() + 8<<10)
	w := tar.NewWriter(&out)
	for _, m := range []struct {
		name string
		kind byte
		mode int64
		data []byte
	}{
		{imageDir + "/", tar.TypeDir, 0o755, nil},
		{imageReadme, tar.TypeReg, 0o644, []byte(readmeText)},
		{imageIndex, tar.TypeReg, 0o644, index.Bytes()},
	} {
		h := &tar.Header{Format: tar.FormatUSTAR, Typeflag: m.kind, Name: m.name, Mode: m.mode,
			Size: int64(len(m.data)), ModTime: time.Unix(0, 0)}
		if err := w.WriteHeader(h); err != nil {
			return nil, fmt.Errorf("write Gear image layer: %w", err)
		}
		if _, err := w.Write(m.data); err != nil {
			return nil, fmt.Errorf("write Gear image layer: %w", err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("write Gear image layer: %w", err)
	}
	return out.Bytes(), nil
}

// ReadImageLayer returns the index in the layer of a Gear image. The layer may have been
// compressed since it was written. If it is another layer, ReadImageLayer reads little
// more than the first header and returns ErrNotGear. The caller compares the digest of
// the layer.
func ReadImageLayer(ctx context.Context, layer io.Reader, limits *Limits) (*Index, error) {
	r, err := rootfs.Open(ctx, layer, nil)
	if err != nil {
		return nil, fmt.Errorf("read Gear image layer: %w", err)
	}
	defer r.Close()
	for _, want := range []struct {
		path string
		kind rootfs.Type
	}{{imageDir, rootfs.Dir}, {imageReadme, rootfs.File}, {imageIndex, rootfs.File}} {
		e, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("read Gear image layer: %w: it ends before %s", ErrNotGear, want.path)
		}
		if err != nil {
			return nil, fmt.Errorf("read Gear image layer: %w", err)
		}
		if e.Path != want.path || e.Type != want.kind {
			return nil, fmt.Errorf("read Gear image layer: %w: it has %q in the place of %s", ErrNotGear, e.Path, want.path)
		}
	}
	x, err := Decode(r, limits)
	if err != nil {
		return nil, fmt.Errorf("read Gear image layer: %w", err)
	}
	if !x.Flat() {
		return nil, fmt.Errorf("read Gear image layer: %w: it has whiteouts or links to other layers", ErrInvalid)
	}
	if e, err := r.Next(); err == nil {
		return nil, fmt.Errorf("read Gear image layer: %w: %q follows the index", ErrNotGear, e.Path)
	} else if !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read Gear image layer: %w", err)
	}
	return x, nil
}

// ImageConfig returns the configuration of a Gear image whose only layer has the given
// diff ID. It is made from the configuration of the original and the digest of the
// original's manifest. All members of the configuration are kept, known or not, except
// the list of layers and the history.
func ImageConfig(config []byte, original, diffID oci.Digest) ([]byte, error) {
	top, run, labels, err := splitConfig(config)
	if err != nil {
		return nil, err
	}
	labels[LabelVersion] = strconv.Itoa(ImageVersion)
	if original != "" {
		labels[LabelOriginal] = string(original)
	}
	type history struct {
		Created   json.RawMessage `json:"created,omitempty"`
		CreatedBy string          `json:"created_by"`
	}
	for _, set := range []struct {
		in    map[string]json.RawMessage
		name  string
		value any
	}{
		{run, "Labels", labels},
		{top, "config", run},
		{top, "rootfs", map[string]any{"type": "layers", "diff_ids": []oci.Digest{diffID}}},
		{top, "history", []history{{Created: top["created"], CreatedBy: "slipway gear"}}},
	} {
		if set.in[set.name], err = json.Marshal(set.value); err != nil {
			return nil, fmt.Errorf("write Gear image configuration: %w", err)
		}
	}
	out, err := json.Marshal(top)
	if err != nil {
		return nil, fmt.Errorf("write Gear image configuration: %w", err)
	}
	return out, nil
}

// IsImageConfig returns nil if a configuration belongs to a Gear image. Otherwise it
// returns ErrNotGear, or ErrVersion if this code does not read the configuration's
// version.
func IsImageConfig(config []byte) error {
	_, _, labels, err := splitConfig(config)
	switch v, ok := labels[LabelVersion]; {
	case err != nil:
		return err
	case !ok:
		return ErrNotGear
	case v != strconv.Itoa(ImageVersion):
		return fmt.Errorf("%w: image version %q", ErrVersion, v)
	}
	return nil
}

// splitConfig splits an image configuration into the parts that are changed here.
func splitConfig(config []byte) (top, run map[string]json.RawMessage, labels map[string]string, err error) {
	if err := json.Unmarshal(config, &top); err != nil {
		return nil, nil, nil, fmt.Errorf("%w: image configuration: %w", ErrInvalid, err)
	}
	if raw := top["config"]; len(raw) > 0 {
		if err := json.Unmarshal(raw, &run); err != nil {
			return nil, nil, nil, fmt.Errorf("%w: image configuration: config: %w", ErrInvalid, err)
		}
	}
	if raw := run["Labels"]; len(raw) > 0 {
		if err := json.Unmarshal(raw, &labels); err != nil {
			return nil, nil, nil, fmt.Errorf("%w: image configuration: labels: %w", ErrInvalid, err)
		}
	}
	if top == nil {
		return nil, nil, nil, fmt.Errorf("%w: image configuration is null", ErrInvalid)
	}
	if run == nil {
		run = map[string]json.RawMessage{}
	}
	if labels == nil {
		labels = map[string]string{}
	}
	return top, run, labels, nil
}

// MismatchError says that a layer is not the expected one. The caller must discard
// whatever the conversion has given its sink.
type MismatchError struct {
	What      string // "digest" or "diff ID"
	Want, Got oci.Digest
}

// Error names both digests.
func (e *MismatchError) Error() string {
	return fmt.Sprintf("the %s of the layer is %s, not %s", e.What, e.Got, e.Want)
}
