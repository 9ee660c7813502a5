package mirror_test

import (
	"context"
	"io"
	"strings"
	"testing"

	"example.org/slipway/oci"
	"example.org/slipway/oci/ocitest"
	"example.org/slipway/registry"
	"example.org/slipway/registry/mirror"
	"example.org/slipway/registry/objstore/memstore"
)

// TestConformanceOfOurs checks the contract for the repositories that are not mirrors.
func TestConformanceOfOurs(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	ocitest.Run(t, func(t *testing.T) oci.Registry {
		store := newRegistry(t, memstore.New(nil), &registry.Options{})
		m, err := mirror.New(store, &mirror.Options{Dir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := m.Close(context.Background()); err != nil {
				t.Errorf("close the mirror: %v", err)
			}
		})
		return m
	}, &ocitest.Options{LargeSize: 100_000, Racers: 3})
}

// through is a registry whose content is pushed to the upstream and read through the mirror. A
// delete deletes the content upstream and forgets it here.
type through struct {
	oci.Registry // the upstream
	b            *bed
}

// mirrorOf returns the mirror's name for a repository of the upstream.
func mirrorOf(repo string) string { return "origin/" + short(repo) }

// short shortens a name that would be too long with the mirror's prefix and therefore could not be
// mirrored.
func short(repo string) string {
	if oci.ValidName(repo) && len("origin/"+repo) > oci.MaxNameLength {
		return "long/" + oci.SHA256([]byte(repo)).Encoded()
	}
	return repo
}

func (r *through) PushBlob(ctx context.Context, repo string, d oci.Digest, size int64, body io.Reader) (oci.Descriptor, error) {
	return r.Registry.PushBlob(ctx, short(repo), d, size, body)
}

func (r *through) PutManifest(ctx context.Context, repo string, p oci.PutManifest) (oci.PutResult, error) {
	return r.Registry.PutManifest(ctx, short(repo), p)
}

// TestConformanceOfMirrors checks the contract for reads through a mirror.
func TestConformanceOfMirrors(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	ocitest.Run(t, func(t *testing.T) oci.Registry {
		b := newBed(t, settings{source: func(s *mirror.Source) { s.TTL, s.NegativeTTL = -1, -1 }})
		return &through{b.o.Registry, b}
	}, &ocitest.Options{LargeSize: 1<<20 + 77, Racers: 3})
}

func (r *through) ResolveBlob(ctx context.Context, repo string, d oci.Digest) (oci.Descriptor, error) {
	return r.b.ResolveBlob(ctx, mirrorOf(repo), d)
}

func (r *through) GetBlob(ctx context.Context, repo string, d oci.Digest) (oci.Content, error) {
	return r.b.GetBlob(ctx, mirrorOf(repo), d)
}

func (r *through) GetBlobRange(ctx context.Context, repo string, d oci.Digest, off, n int64) (oci.Content, error) {
	return r.b.GetBlobRange(ctx, mirrorOf(repo), d, off, n)
}

func (r *through) ResolveManifest(ctx context.Context, repo, ref string) (oci.Descriptor, error) {
	return r.b.ResolveManifest(ctx, mirrorOf(repo), ref)
}

func (r *through) GetManifest(ctx context.Context, repo, ref string) (*oci.Manifest, error) {
	return r.b.GetManifest(ctx, mirrorOf(repo), ref)
}

func (r *through) Tags(ctx context.Context, repo, last string, n int) ([]string, bool, error) {
	return r.b.Tags(ctx, mirrorOf(repo), last, n)
}

func (r *through) Referrers(ctx context.Context, repo string, d oci.Digest, artifactType, last string, n int) ([]oci.Descriptor, bool, error) {
	return r.b.Referrers(ctx, mirrorOf(repo), d, artifactType, last, n)
}

func (r *through) DeleteBlob(ctx context.Context, repo string, d oci.Digest) error {
	err := r.Registry.DeleteBlob(ctx, repo, d)
	if err == nil {
		err = known(r.b.DeleteBlob(ctx, mirrorOf(repo), d))
	}
	return err
}

func (r *through) DeleteManifest(ctx context.Context, repo string, d oci.Digest) error {
	err := r.Registry.DeleteManifest(ctx, repo, d)
	if err == nil {
		err = known(r.b.DeleteManifest(ctx, mirrorOf(repo), d))
	}
	return err
}

func (r *through) DeleteTag(ctx context.Context, repo, tag string) error {
	err := r.Registry.DeleteTag(ctx, repo, tag)
	if err == nil {
		err = known(r.b.DeleteTag(ctx, mirrorOf(repo), tag))
	}
	return err
}

// known drops the error for something that was never mirrored.
func known(err error) error {
	if oci.HasCode(err, oci.CodeManifestUnknown) || oci.HasCode(err, oci.CodeBlobUnknown) {
		return nil
	}
	return err
}

// TestWritesRefused checks that nothing can be pushed to a mirror.
func TestWritesRefused(t *testing.T) {
	b := newBed(t, settings{})
	ctx, repo, d := t.Context(), "origin/library/hello", oci.SHA256(nil)
	for what, do := range map[string]func() error{
		"push a blob":    func() error { _, err := b.PushBlob(ctx, repo, d, 0, strings.NewReader("")); return err },
		"start upload":   func() error { _, err := b.StartUpload(ctx, repo); return err },
		"mount a blob":   func() error { _, err := b.MountBlob(ctx, repo, "ours", d); return err },
		"put a manifest": func() error { _, err := b.PutManifest(ctx, repo, oci.PutManifest{Bytes: []byte("{}")}); return err },
	} {
		wantCode(t, what, do(), oci.CodeUnsupported)
	}
	if got := b.o.count(""); got != 0 {
		t.Errorf("%d requests to the upstream, want none", got)
	}
}
