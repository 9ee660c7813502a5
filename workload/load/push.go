package load

import (
	"bytes"
	"context"
	"fmt"
	"sync/atomic"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"example.org/slipway/oci"
	"example.org/slipway/oci/client"
	"example.org/slipway/workload/load/imageset"
)

// Pushed describes what was put in place before a run.
type Pushed struct {
	Images int64 `json:"images"`
	// Present is how many images were there before.
	Present int64   `json:"present"`
	Bytes   int64   `json:"bytes"`
	Seconds float64 `json:"seconds"`
}

// pushSet pushes the images that a registry does not have, several at once.
func pushSet(ctx context.Context, e *endpoint, s *imageset.Set, parallel int, progress func(done, total int64)) (Pushed, error) {
	begin := time.Now()
	var p Pushed
	var next, done atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	for range min(parallel, len(s.Images)) {
		g.Go(func() error {
			for i := next.Add(1) - 1; i < int64(len(s.Images)); i = next.Add(1) - 1 {
				m := s.Images[i]
				// If the request to the registry fails, the push fails, too, and its
				// error says why.
				d, err := e.patient.ResolveManifest(ctx, m.Repo, m.Tag)
				if err == nil && d.Digest == m.Manifests[0].Digest {
					atomic.AddInt64(&p.Present, 1)
				} else if err := pushImage(ctx, e.patient, s, m); err != nil {
					return fmt.Errorf("push %s: %w", m.Name(), err)
				} else {
					atomic.AddInt64(&p.Images, 1)
					atomic.AddInt64(&p.Bytes, m.Bytes())
				}
				progress(done.Add(1), int64(len(s.Images)))
			}
			return nil
		})
	}
	err := g.Wait()
	p.Seconds = time.Since(begin).Seconds()
	return p, err
}

// pushImage pushes a generated image: first the blobs, then the manifest, then the index
// under the tag.
func pushImage(ctx context.Context, c *client.Client, s *imageset.Set, m *imageset.Image) error {
	docs, err := imageset.Documents(m)
	if err != nil {
		return err
	}
	for i, key := range m.Layers {
		b := m.Blobs[i+1]
		r, err := imageset.Layer(s.Options.Maker, key, b.Size)
		if err != nil {
			return err
		}
		if _, err := c.PushBlob(ctx, m.Repo, b.Digest, b.Size, r); err != nil {
			return err
		}
	}
	if _, err := c.PushBlob(ctx, m.Repo, m.Blobs[0].Digest, m.Blobs[0].Size, bytes.NewReader(docs.Config)); err != nil {
		return err
	}
	put := oci.PutManifest{Bytes: docs.Manifest, MediaType: ocispec.MediaTypeImageManifest, Digest: m.Manifests[1].Digest}
	if _, err := c.PutManifest(ctx, m.Repo, put); err != nil {
		return err
	}
	_, err = c.PutManifest(ctx, m.Repo, oci.PutManifest{Bytes: docs.Index, MediaType: ocispec.MediaTypeImageIndex, Tags: []string{m.Tag}})
	return err
}

// PushSet makes the images of o.Set and pushes the images that o.Target does not have. Of
// the other options it uses PushAtOnce, Timeout, Progress and Logger.
func PushSet(ctx context.Context, o *Options) (*Pushed, error) {
	r := &run{o: *o}
	r.o.Source, r.o.Upstream, r.o.Prune, r.o.Mix = PushedSet, nil, NoPrune, Mix{}
	if err := r.complete(); err != nil {
		return nil, err
	}
	e, err := open(&r.o.Target, r.o.Timeout)
	if err != nil {
		return nil, err
	}
	defer e.close()
	r.target, r.upstream = e, e
	if err := r.choose(ctx); err != nil {
		return nil, err
	}
	if err := r.reach(ctx); err != nil {
		return nil, err
	}
	return r.pushAll(ctx)
}
