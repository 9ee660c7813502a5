package mirrors

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"example.org/slipway/config"
	"example.org/slipway/oci"
	"example.org/slipway/registry/auth/patterns"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/mirror/airgap"
	"example.org/slipway/registry/storage"
)

// storedImages is the source of images for an export. Reading from it does not count as a
// pull, so that an export does not make every image look used.
type storedImages struct{ *Stored }

var _ airgap.Source = storedImages{}

// GetManifest implements airgap.Source.
func (s storedImages) GetManifest(ctx context.Context, repo, ref string) (*oci.Manifest, error) {
	var m catalog.Manifest
	var err error
	if oci.IsDigest(ref) {
		m, err = s.Catalog.Manifest(ctx, repo, oci.Digest(ref))
	} else {
		m, err = s.Catalog.Tag(ctx, repo, ref)
	}
	if errors.Is(err, catalog.ErrNotFound) {
		return nil, oci.Errorf(oci.CodeManifestUnknown, "is not here")
	}
	if err != nil {
		return nil, err
	}
	return &oci.Manifest{Descriptor: oci.Descriptor{MediaType: m.MediaType, Digest: m.Digest, Size: int64(len(m.Content))}, Bytes: m.Content}, nil
}

// ResolveBlob implements airgap.Source.
func (s storedImages) ResolveBlob(ctx context.Context, repo string, d oci.Digest) (oci.Descriptor, error) {
	return s.Registry.ResolveBlob(ctx, repo, d)
}

// OpenBlob implements airgap.Source.
func (s storedImages) OpenBlob(ctx context.Context, _ string, d oci.Digest) (io.ReadCloser, error) {
	rc, _, err := storage.OpenBlob(ctx, s.Catalog, s.Store, d, 0)
	return rc, err
}

// Referrers implements airgap.Source.
func (s storedImages) Referrers(ctx context.Context, repo string, d oci.Digest, artifactType, last string, n int) ([]oci.Descriptor, bool, error) {
	return s.Registry.Referrers(ctx, repo, d, artifactType, last, n)
}

// Export writes mirrored images into a file, for a server without a network.
func (s *Stored) Export(ctx context.Context, args ExportArgs, progress func(airgap.Progress)) (airgap.Progress, error) {
	if !filepath.IsAbs(args.Path) {
		return airgap.Progress{}, fmt.Errorf("the file %q is not an absolute path", args.Path)
	}
	images, err := s.toExport(ctx, args)
	if err != nil {
		return airgap.Progress{}, err
	}
	rep, err := writeFile(args.Path, func(f *os.File) (airgap.Progress, error) {
		begin := func() (io.Writer, error) {
			_, err := f.Seek(0, io.SeekStart)
			return f, errors.Join(err, f.Truncate(0))
		}
		return airgap.Write(ctx, begin, storedImages{s}, images, progress)
	})
	if n := len(rep.LeftOut); err == nil && n > 0 {
		err = fmt.Errorf("%d images are not whole and left out; slipway mirror load fetches what is missing; first, %s: %s", n, rep.LeftOut[0].Image, rep.LeftOut[0].Reason)
	}
	return rep, err
}

// toExport lists the images to export.
func (s *Stored) toExport(ctx context.Context, args ExportArgs) (images []airgap.Image, err error) {
	if len(args.Images) > 0 {
		for _, text := range args.Images {
			im, err := airgap.ParseImage(text)
			if err != nil {
				return nil, fmt.Errorf("image %s: %w", text, err)
			}
			images = append(images, im)
		}
		return images, nil
	}
	list := ListArgs{Pattern: args.Pattern}
	if _, err := patterns.Compile(args.Pattern); args.Pattern != "" && err != nil {
		return nil, err
	}
	for {
		page, err := s.List(ctx, list)
		if err != nil {
			return nil, err
		}
		for _, i := range page.Images {
			for _, tag := range i.Tags {
				images = append(images, airgap.Image{Repo: i.Repository, Ref: tag})
			}
			if len(i.Tags) == 0 {
				images = append(images, airgap.Image{Repo: i.Repository, Ref: string(i.Digest)})
			}
		}
		if list.After = page.Next; list.After == "" {
			break
		}
	}
	if len(images) == 0 {
		return nil, errors.New("there are no such images; slipway mirror ls shows which there are")
	}
	return images, nil
}

// writeFile lets write fill a temporary file beside path, and renames it to path when it
// is complete.
func writeFile[R any](path string, write func(*os.File) (R, error)) (rep R, err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*.part")
	if err != nil {
		return rep, fmt.Errorf("make the file: %w", err)
	}
	defer func() {
		f.Close() // already closed, unless something failed before
		if err != nil {
			os.Remove(f.Name())
		}
	}()
	if rep, err = write(f); err != nil {
		return rep, err
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return rep, fmt.Errorf("write the file: %w", err)
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return rep, fmt.Errorf("put the file into its place: %w", err)
	}
	return rep, nil
}

// Import adds images to the mirrors, from a file that Export or another tool has written.
func (m *Mirrors) Import(ctx context.Context, args ImportArgs, progress func(airgap.Progress)) (airgap.Progress, error) {
	if !filepath.IsAbs(args.Path) {
		return airgap.Progress{}, fmt.Errorf("the file %q is not an absolute path", args.Path)
	}
	f, err := os.Open(args.Path)
	if err != nil {
		return airgap.Progress{}, err
	}
	defer f.Close()
	if fi, err := f.Stat(); err != nil {
		return airgap.Progress{}, err
	} else if !fi.Mode().IsRegular() {
		return airgap.Progress{}, fmt.Errorf("%s is not a regular file; its parts are read in no order", args.Path)
	}
	plain, err := m.unpacked(ctx, f)
	if err != nil {
		return airgap.Progress{}, fmt.Errorf("%s: %w", args.Path, err)
	}
	defer plain.Close()
	fi, err := plain.Stat()
	if err != nil {
		return airgap.Progress{}, err
	}
	a, err := airgap.Open(plain, fi.Size())
	if err != nil {
		return airgap.Progress{}, fmt.Errorf("%s: %w", args.Path, err)
	}
	a.Rename(m.imported)
	return a.Import(ctx, m.Stored.Registry, progress)
}

// imported returns the repository of an image that was carried here in a file. Other
// tools put the host of the registry before its name, or leave out docker.io/library/.
func (m *Mirrors) imported(im airgap.Image) (string, error) {
	if m.Mirrored(im.Repo) {
		return m.NameToPush(im.Repo), nil
	}
	host, name, ok := strings.Cut(im.Repo, "/")
	if !ok || !strings.ContainsAny(host, ".:") && host != "localhost" {
		host, name = config.DockerHub, im.Repo
	}
	if repo, ok := m.at(host, name); ok {
		return repo, nil
	}
	return "", fmt.Errorf("image %s is of no registry that is mirrored here; proxy.upstreams of the configuration names them", im)
}

// at returns the repository for a name at the registry that a client gives as ?ns=.
func (m *Mirrors) at(registry, name string) (string, bool) {
	repo, ok := m.named(m.NameFor, registry, name)
	if !ok {
		repo, ok = m.named(m.NameForAny, registry, name)
	}
	return repo, ok
}

// unpacked returns a file as it is or, if it is compressed, its uncompressed contents.
// These go into an unnamed file beside the incoming blobs.
func (s *Stored) unpacked(ctx context.Context, f *os.File) (*os.File, error) {
	in, how, err := airgap.Unpack(f)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	if how == "" {
		return f, nil
	}
	out, err := os.CreateTemp(filepath.Join(s.Dir, Dir), "import-")
	if err != nil {
		return nil, err
	}
	err = os.Remove(out.Name())
	if err == nil {
		_, err = io.Copy(&roomy{ctx: ctx, f: out, keep: s.KeepFree}, in)
	}
	if err != nil {
		out.Close()
		return nil, fmt.Errorf("unpack it: %w", err)
	}
	return out, nil
}

// roomy writes to a file as long as its disk has room to spare.
type roomy struct {
	ctx  context.Context
	f    *os.File
	keep int64
}

// Write implements io.Writer.
func (w *roomy) Write(p []byte) (int, error) {
	if err := w.ctx.Err(); err != nil {
		return 0, err
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(w.f.Fd()), &st); err == nil && st.Blocks > 0 && int64(st.Bavail)*st.Bsize < w.keep+int64(len(p)) {
		return 0, unix.ENOSPC
	}
	return w.f.Write(p)
}
