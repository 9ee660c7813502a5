package service

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/oci"
	"example.org/slipway/oci/volref"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/volumefacts"
	"example.org/slipway/volume/block"
	"example.org/slipway/volume/chain"
)

// build is a build of one image while it runs.
type build struct {
	since time.Time

	mu   sync.Mutex
	done int64 // bytes written so far
	of   int64 // 0 while it is unknown
}

func (b *build) progress(done, of int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.done, b.of = done, of
}

func (b *build) state() (done, of int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.done, b.of
}

// build builds an image and records it. Errors: *waitingError, errNotAsked,
// catalog.ErrNotFound if the image is no longer wanted, and the errors of chain.Build.
func (s *Service) build(ctx context.Context, v volumefacts.Image, b *build) error {
	m, err := s.cat.Manifest(ctx, v.Repo, v.Manifest)
	if errors.Is(err, catalog.ErrNoRepository) {
		err = catalog.ErrNotFound
	}
	if err != nil {
		return err
	}
	digests, err := layersOf(m.Content)
	if err != nil {
		return err
	}
	layers, err := s.indexes(ctx, v.Repo, digests)
	if err != nil {
		return err
	}
	store, err := s.storage.get(ctx)
	if err != nil {
		return err
	}
	place := placeName(store.Place())
	if err := s.facts.Intend(ctx, v.ID, place, volumesOf(v.FS, digests)); err != nil {
		return removing(err)
	}
	rec, err := chain.Build(ctx, store, layers, s.layers.Contents(), &block.BuildOptions{FS: v.FS, Log: s.log,
		Progress: func(p block.Progress) { b.progress(p.Written, p.Total) }})
	if err != nil {
		return err
	}
	rec.Manifest = v.Manifest
	return s.record(ctx, v, m, place, rec)
}

// removing turns an error about a volume that is being removed into a temporary one.
func removing(err error) error {
	if errors.Is(err, volumefacts.ErrRemoving) {
		return &waitingError{err.Error()}
	}
	return err
}

// indexes returns the layers of an image with their indexes. Errors:
// *waitingError, errNotAsked.
func (s *Service) indexes(ctx context.Context, repo string, digests []oci.Digest) ([]block.Layer, error) {
	layers := make([]block.Layer, len(digests))
	var wait *waitingError
	for i, d := range digests { // all of them, so that all are queued
		x, embedded, err := s.layers.StoredIndex(ctx, repo, d)
		var pending *gear.PendingError
		switch {
		case errors.As(err, &pending) && pending.RetryAfter > 0 && pending.Reason == "":
			wait = &waitingError{"layer " + string(d) + " is being converted to Gear"}
		case errors.As(err, &pending) && pending.RetryAfter > 0:
			return nil, fmt.Errorf("layer %s: %s; its conversion to Gear is tried again", d, pending.Reason)
		case err != nil:
			return nil, fmt.Errorf("layer %s: %w", d, err)
		case embedded:
			return nil, errNotAsked
		}
		layers[i] = block.Layer{Digest: d, Index: x}
	}
	if wait != nil {
		return nil, wait
	}
	return layers, nil
}

// volumesOf returns the volumes of an image, each after its parent.
func volumesOf(fs string, layers []oci.Digest) []volumefacts.Volume {
	if fs != volref.Ext4 {
		return []volumefacts.Volume{{Name: volref.VolumeName(fs, layers)}}
	}
	out := make([]volumefacts.Volume, len(layers))
	for i := range layers {
		out[i].Name = volref.VolumeName(fs, layers[:i+1])
		if i > 0 {
			out[i].Parent = out[i-1].Name
		}
	}
	return out
}

// placeName returns the name of a place in the catalogue.
func placeName(p volref.Place) string {
	b, err := json.Marshal(p)
	if err != nil {
		panic(err) // the value has only strings
	}
	return string(b)
}

// These are the media types of a record beside its image.
const (
	// ArtifactType is the artifact type of the referrer, and the media type of the record
	// in it.
	ArtifactType = "application/vnd.slipway.volumes.v1+json"
	emptyType    = "application/vnd.oci.empty.v1+json"
)

// record stores a record beside its image and in the catalogue. It removes an earlier
// referrer with another record.
func (s *Service) record(ctx context.Context, v volumefacts.Image, m catalog.Manifest, place string, rec *volref.Record) error {
	body, err := json.Marshal(rec)
	if err != nil {
		return fmt.Errorf("encode the record: %w", err)
	}
	out := volumefacts.Record{Place: place, Record: body, Volumes: volumesOf(v.FS, digestsOf(rec))}
	if !s.opts.Copied(v.Repo) {
		if out.Referrer, err = s.pushReferrer(ctx, v.Repo, m, body); err != nil {
			return fmt.Errorf("push the record: %w", err)
		}
	}
	if err := s.facts.Record(ctx, v.ID, out); err != nil {
		if errors.Is(err, catalog.ErrNotFound) && out.Referrer != "" { // the image was given up meanwhile, and the pushed referrer is recorded nowhere
			s.dropReferrer(ctx, v.ID, v.Repo, out.Referrer)
		}
		return removing(err)
	}
	s.log.Info("an image is built as volumes", "repo", v.Repo, "manifest", v.Manifest, "fs", v.FS, "volume", rec.Volume())
	if v.Referrer != "" && v.Referrer != out.Referrer {
		s.dropReferrer(ctx, v.ID, v.Repo, v.Referrer)
	}
	return nil
}

func digestsOf(rec *volref.Record) []oci.Digest {
	out := make([]oci.Digest, len(rec.Layers))
	for i, l := range rec.Layers {
		out[i] = l.Digest
	}
	return out
}

// referrer is the manifest beside an image.
type referrer struct {
	SchemaVersion int              `json:"schemaVersion"`
	MediaType     string           `json:"mediaType"`
	ArtifactType  string           `json:"artifactType"`
	Config        oci.Descriptor   `json:"config"`
	Layers        []oci.Descriptor `json:"layers"`
	Subject       oci.Descriptor   `json:"subject"`
}

// pushReferrer pushes a record as a referrer of an image and returns the digest of the
// manifest that holds it. The same record gives the same manifest.
func (s *Service) pushReferrer(ctx context.Context, repo string, m catalog.Manifest, record []byte) (oci.Digest, error) {
	empty := []byte("{}")
	r := referrer{SchemaVersion: 2, MediaType: oci.MediaTypeOCIManifest, ArtifactType: ArtifactType,
		Config:  oci.Descriptor{MediaType: emptyType, Digest: oci.SHA256(empty), Size: int64(len(empty))},
		Layers:  []oci.Descriptor{{MediaType: ArtifactType, Digest: oci.SHA256(record), Size: int64(len(record))}},
		Subject: oci.Descriptor{MediaType: m.MediaType, Digest: m.Digest, Size: int64(len(m.Content))}}
	for _, blob := range [][]byte{empty, record} {
		if _, err := s.reg.PushBlob(ctx, repo, oci.SHA256(blob), int64(len(blob)), bytes.NewReader(blob)); err != nil {
			return "", err
		}
	}
	body, err := json.Marshal(r)
	if err != nil {
		return "", err
	}
	put, err := s.reg.PutManifest(ctx, repo, oci.PutManifest{Bytes: body, MediaType: r.MediaType})
	return put.Digest, err
}

// dropReferrer removes a referrer of an image, unless another file system has the same
// referrer. If it cannot be removed, it may stay, because what it says is not wrong.
func (s *Service) dropReferrer(ctx context.Context, id int64, repo string, d oci.Digest) {
	used, err := s.facts.ReferrerUsed(ctx, repo, d, id)
	if err == nil && !used {
		err = s.reg.DeleteManifest(ctx, repo, d)
	}
	if err != nil && ctx.Err() == nil && !oci.HasCode(err, oci.CodeManifestUnknown) &&
		!oci.HasCode(err, oci.CodeNameUnknown) && !oci.HasCode(err, oci.CodeUnsupported) {
		s.log.Warn("a record of volumes stays beside its image", "repo", repo, "referrer", d, "err", err)
	}
}
