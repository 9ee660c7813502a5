package dedup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"example.org/slipway/oci"
)

// AddLayouts adds the images of an OCI image layout, or of all layouts below a directory.
// If a layout in a directory SERIES/VERSION has one image, that is the image's name. A
// layout with several images is a series, and its images have their reference names.
//
// A layout or image that cannot be read becomes a [Problem]. AddLayouts returns an error
// if a directory cannot be read or has no layout below it.
func (s *Set) AddLayouts(ctx context.Context, dir string) error {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	found := false
	err = filepath.WalkDir(abs, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		case !d.IsDir():
			return nil
		}
		if _, err := os.Stat(filepath.Join(path, ocispec.ImageLayoutFile)); errors.Is(err, fs.ErrNotExist) {
			return nil
		} else if err != nil {
			return err
		}
		found = true
		if err := s.addLayout(ctx, layout{path}); err != nil {
			s.problems = append(s.problems, Problem{Where: path, Images: []string{layoutName(path)}, Err: err.Error()})
		}
		return fs.SkipDir
	})
	if err != nil {
		return err
	}
	if !found {
		return fmt.Errorf("%s is no OCI image layout and has none below it", dir)
	}
	return nil
}

// layoutName returns the name of a layout's only image.
func layoutName(path string) string {
	return filepath.Base(filepath.Dir(path)) + "/" + filepath.Base(path)
}

func (s *Set) addLayout(ctx context.Context, l layout) error {
	f, err := os.Open(filepath.Join(l.dir, ocispec.ImageIndexFile))
	if err != nil {
		return err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, oci.MaxManifestSize+1))
	if err != nil {
		return err
	}
	var index ocispec.Index
	if err := json.Unmarshal(b, &index); err != nil {
		return fmt.Errorf("read %s: %w", ocispec.ImageIndexFile, err)
	}
	seen := map[oci.Digest]bool{} // an image with two names counts once
	for _, d := range index.Manifests {
		if seen[d.Digest] {
			continue
		}
		seen[d.Digest] = true
		series, version := filepath.Base(filepath.Dir(l.dir)), filepath.Base(l.dir)
		if len(index.Manifests) > 1 {
			series, version = version, d.Annotations[ocispec.AnnotationRefName]
			if version == "" {
				version = string(d.Digest)
			}
		}
		s.addReference(ctx, l, series, version, d)
	}
	return ctx.Err()
}

// layout is an OCI image layout.
type layout struct{ dir string }

var _ place = layout{}

func (l layout) String() string { return l.dir }

func (l layout) manifest(ctx context.Context, d oci.Descriptor) ([]byte, error) {
	return readBlob(ctx, l, d)
}

func (l layout) blob(_ context.Context, d oci.Descriptor) (io.ReadCloser, error) {
	path, err := l.path(d)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, missing(err)
	}
	return f, nil
}

func (l layout) look(d oci.Descriptor) error {
	path, err := l.path(d)
	if err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return missing(err)
	}
	if info.Size() != d.Size {
		return fmt.Errorf("damaged: %d bytes, want %d bytes", info.Size(), d.Size)
	}
	return nil
}

// path returns the path of a blob. It checks the digest, so that the path stays inside
// the layout.
func (l layout) path(d oci.Descriptor) (string, error) {
	if err := oci.CheckDigest(d.Digest); err != nil {
		return "", err
	}
	return filepath.Join(l.dir, ocispec.ImageBlobsDir, d.Digest.Algorithm().String(), d.Digest.Encoded()), nil
}

// missing returns an error that says plainly that a blob does not exist.
func missing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return errors.New("the blob is missing")
	}
	return err
}
