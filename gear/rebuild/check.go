package rebuild

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// Report says how large a recipe of a layer would be, and what rebuilding the layer
// costs.
type Report struct {
	// Size is the size of the layer in bytes, and Plain the size of the tar in it.
	Size  int64 `json:"layer_bytes"`
	Plain int64 `json:"tar_bytes"`
	// Recipe is the size of the recipe. Its parts are Choices, the encoder's choices, and
	// Skeleton, the parts of the tar that are not contents of files.
	Recipe   int64 `json:"recipe_bytes"`
	Choices  int64 `json:"choices_bytes"`
	Skeleton int64 `json:"skeleton_bytes"`
	// Files is how many different contents the layer has, and FileBytes their
	// uncompressed size.
	Files     int   `json:"files"`
	FileBytes int64 `json:"file_bytes"`
	// Encoder is the encoder that the layer was predicted with. Segments is the number of
	// parts that are rebuilt independently.
	Encoder  string `json:"encoder"`
	Segments int    `json:"segments"`
	// Make is how long making the recipe took, and Rebuild how long rebuilding the layer
	// took, with one worker.
	Make    time.Duration `json:"make_ns"`
	Rebuild time.Duration `json:"rebuild_ns"`
}

// CheckOptions adjust a check. The zero value works.
type CheckOptions struct {
	// TempDir is the directory of the file that holds the uncompressed layer; default:
	// the system's directory for temporary files. The file has no name.
	TempDir string
}

// Check makes the recipe of a layer, rebuilds the layer with it and compares the digest.
// It keeps nothing. Errors: ErrUnsupported for a layer that would stay as it is, and the
// errors of layer and ctx.
func Check(ctx context.Context, layer io.Reader, o CheckOptions) (*Report, error) {
	f, err := os.CreateTemp(o.TempDir, "slipway-recipe-")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := os.Remove(f.Name()); err != nil {
		return nil, err
	}
	split := NewCollector()
	out := bufio.NewWriterSize(f, 1<<20)
	began := time.Now()
	r, err := Make(ctx, layer, &MakeOptions{Plain: io.MultiWriter(split, out)})
	if err != nil {
		return nil, err
	}
	if err := out.Flush(); err != nil {
		return nil, err
	}
	k, err := split.Skeleton()
	if err != nil {
		return nil, err
	}
	if r.Skeleton, err = k.Append(nil); err != nil {
		return nil, err
	}
	rep := &Report{Size: r.Size, Plain: r.Plain, Skeleton: int64(len(r.Skeleton)), Encoder: r.Encoder(), Segments: r.Segments(), Files: len(split.Files())}
	for _, file := range split.Files() {
		rep.FileBytes += file.Size
	}
	stored := r.Append(nil)
	rep.Recipe = int64(len(stored))
	rep.Choices = rep.Recipe - rep.Skeleton
	rep.Make = time.Since(began)
	began = time.Now()
	err = rebuildStored(ctx, stored, f)
	rep.Rebuild = time.Since(began)
	return rep, err
}

// rebuildStored rebuilds a layer from the stored form of its recipe.
func rebuildStored(ctx context.Context, stored []byte, plain io.ReaderAt) error {
	r, err := Parse(stored)
	if err == nil {
		_, err = ParseSkeleton(r.Skeleton)
	}
	if err == nil {
		err = r.Rebuild(ctx, io.Discard, plain, nil)
	}
	if errors.Is(err, ErrDamaged) { // the fault is in this package and not in the layer
		return fmt.Errorf("%w: it was not rebuilt as it is: %w", ErrUnsupported, err)
	}
	return err
}
