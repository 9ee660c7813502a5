package mirror

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"example.org/slipway/oci"
	"example.org/slipway/registry/mirror/fill"
	"example.org/slipway/registry/mirror/upstream"
)

// LoadOptions are the options of Load. The zero value works.
type LoadOptions struct {
	// Platforms are the platforms of an index that are loaded. Default: those of the
	// source.
	Platforms []oci.Platform
	// Concurrent is how many blobs are fetched at once. Default: 4.
	Concurrent int
	// Progress is called with the progress of the image. It is not called concurrently.
	Progress func(Progress)
}

// Progress says how far the loading of an image is.
type Progress struct {
	// Of the Total blobs and TotalBytes bytes known to belong to the image, Blobs and Bytes are
	// stored here.
	Blobs, Total      int
	Bytes, TotalBytes int64
}

// Load fetches a whole image in advance. It returns when the image is stored. Content
// that is stored already costs next to nothing. oci.ParseReference parses ref. Its name may
// be any that clients use for the repository.
func (m *Registry) Load(ctx context.Context, ref string, o *LoadOptions) error {
	var opts LoadOptions
	if o != nil {
		opts = *o
	}
	if opts.Concurrent <= 0 {
		opts.Concurrent = 4
	}
	repo, ref, err := oci.ParseReference(ref)
	if err != nil {
		return err
	}
	repo = m.Name(ctx, repo)
	s, name := m.source(repo)
	if s == nil {
		return fmt.Errorf("%s is not a repository of an upstream", repo)
	}
	if len(opts.Platforms) == 0 {
		opts.Platforms = s.Platforms
	}
	l := &loading{m: m, s: s, name: name, repo: repo, opts: opts, blobs: map[oci.Digest]int64{}, seen: map[oci.Digest]bool{}}
	if err := l.manifest(ctx, ref); err != nil {
		return fmt.Errorf("load %s: %w", ref, err)
	}
	if err := l.fetch(ctx); err != nil {
		return err
	}
	return m.settle(ctx, repo)
}

// loading is an image that is being loaded.
type loading struct {
	m          *Registry
	s          *source
	name, repo string
	opts       LoadOptions
	order      []oci.Digest
	blobs      map[oci.Digest]int64 // the blobs' sizes
	seen       map[oci.Digest]bool  // manifests that indexes name, and whether they were found

	mu       sync.Mutex
	progress Progress
}

// manifest fetches a manifest and the manifests that it names, and notes their blobs.
func (l *loading) manifest(ctx context.Context, ref string) error {
	mf, err := l.m.GetManifest(ctx, l.repo, ref)
	if err != nil {
		return err
	}
	var doc document
	if err := json.Unmarshal(mf.Bytes, &doc); err != nil {
		return fmt.Errorf("read manifest %s: %w", mf.Digest, err)
	}
	switch {
	case oci.IsIndex(mf.MediaType):
		return l.children(ctx, &doc)
	case isSchema1(mf.MediaType):
		return fmt.Errorf("manifest %s is of Docker's schema 1, which is passed on and not kept", mf.Digest)
	}
	layers := doc.Layers
	if doc.Config != nil {
		layers = append(slices.Clone(layers), *doc.Config)
	}
	for _, d := range layers {
		if _, known := l.blobs[d.Digest]; known || len(d.URLs) > 0 { // foreign layers are not fetched
			continue
		}
		l.order = append(l.order, d.Digest)
		l.blobs[d.Digest] = d.Size
		l.progress.Total++
		l.progress.TotalBytes += d.Size
	}
	return nil
}

func (l *loading) children(ctx context.Context, doc *document) error {
	images, found := 0, false
	for _, c := range doc.Manifests {
		platform := oci.PlatformOf(c.Platform)
		isImage := platform.OS != "unknown" // an attestation cannot be run
		if isImage {
			images++
		}
		if !wants(l.opts.Platforms, platform) {
			continue
		}
		if there, seen := l.seen[c.Digest]; seen {
			found = found || there && isImage
			continue
		}
		// An index may name manifests that its registry lacks. The others are still worth
		// having.
		err := l.manifest(ctx, string(c.Digest))
		l.seen[c.Digest] = err == nil
		if oci.HasCode(err, oci.CodeManifestUnknown) {
			l.m.log.Warn("an index names a manifest that is not there", "repo", l.repo, "digest", c.Digest, "platform", platform.String(), "err", err)
			continue
		} else if err != nil {
			return err
		}
		found = found || isImage
	}
	if images > 0 && !found {
		return fmt.Errorf("none of the index's manifests is there and for the platforms wanted")
	}
	return nil
}

// fetch fetches all noted blobs and waits until they are stored.
func (l *loading) fetch(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(l.opts.Concurrent)
	l.report(0, 0)
	for _, d := range l.order {
		group.Go(func() error {
			if err := l.blob(ctx, d); err != nil {
				return fmt.Errorf("load blob %s: %w", d, err)
			}
			l.report(1, l.blobs[d])
			return nil
		})
	}
	return group.Wait()
}

func (l *loading) report(blobs int, bytes int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.progress.Blobs += blobs
	l.progress.Bytes += bytes
	if l.opts.Progress != nil {
		l.opts.Progress(l.progress)
	}
}

// blob fetches a blob and returns when the store has it.
func (l *loading) blob(ctx context.Context, d oci.Digest) error {
	if _, err := l.m.store.ResolveBlob(ctx, l.repo, d); !oci.HasCode(err, oci.CodeBlobUnknown) {
		return err
	}
	c, err := l.m.openBlob(ctx, l.s, l.name, l.repo, d, fill.Whole)
	if err != nil {
		return err
	}
	defer c.Close()
	settled, ok := fill.Settled(c)
	if !ok {
		return nil
	}
	if err := upstream.Await(ctx, settled); err != nil {
		return err
	}
	if _, err := l.m.store.ResolveBlob(ctx, l.repo, d); err != nil {
		if _, readErr := io.Copy(io.Discard, c); readErr != nil { // readErr says what went wrong
			return readErr
		}
		return fmt.Errorf("it was fetched and could not be stored: %w", err)
	}
	return nil
}
