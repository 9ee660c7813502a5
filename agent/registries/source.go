package registries

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"

	"example.org/slipway/gear"
	gearclient "example.org/slipway/gear/client"
	"example.org/slipway/gear/predict"
	"example.org/slipway/node/gearfs"
	"example.org/slipway/node/gearfs/starts"
	"example.org/slipway/oci"
	"example.org/slipway/oci/client"
	"example.org/slipway/oci/fleet"
	"example.org/slipway/oci/peering"
)

// source is an image's repository at a place.
type source struct {
	p        *place
	repo     string
	manifest oci.Digest
	files    *gearclient.Source
	silent   bool
}

var (
	_ gearfs.Reconnector = (*source)(nil)
	_ gearfs.Packer      = (*source)(nil)
)

// Reconnect implements gearfs.Reconnector.
func (s *source) Reconnect() { s.p.reg.Reconnect() }

// Dial makes a source from its stored reference.
func (r *Set) Dial(ref gearfs.SourceRef) (gearfs.Source, error) {
	s, err := r.source(ref)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Report sends a report on this node to a source.
func (r *Set) Report(ctx context.Context, ref gearfs.SourceRef, report *fleet.Report) error {
	s, err := r.source(ref)
	if err != nil {
		return err
	}
	return s.p.reg.ReportNode(ctx, s.repo, report)
}

// Announce announces this node to a source.
func (r *Set) Announce(ctx context.Context, ref gearfs.SourceRef, a *peering.Announcement) (*peering.Answer, error) {
	s, err := r.source(ref)
	if err != nil {
		return nil, err
	}
	return client.AnnouncePeer(ctx, s.p.reg, s.repo, a)
}

func (r *Set) source(ref gearfs.SourceRef) (*source, error) {
	name, err := Parse(ref.Credential)
	if err != nil {
		return nil, err
	}
	reg, err := r.Of(name)
	if err != nil {
		return nil, err
	}
	for _, p := range reg.places {
		if p.url == ref.Registry {
			img := &gearclient.Image{Repo: ref.Repo, Ref: ref.Manifest}
			return &source{p, ref.Repo, oci.Digest(ref.Manifest), p.gear.Files(img, &gear.Index{}), r.silent}, nil
		}
	}
	return nil, fmt.Errorf("registry %s is at %s no more, says the configuration", name.Host, ref.Registry)
}

// Sources returns the sources of an image of a registry.
func (r *Registry) Sources(ref Reference, manifest string) []gearfs.SourceRef {
	var out []gearfs.SourceRef
	for _, p := range r.places {
		out = append(out, gearfs.SourceRef{Registry: p.url, Repo: r.repo(ref.Repo), Manifest: manifest, Credential: ref.Name()})
	}
	return out
}

// Fetch implements [gear.FileSource].
func (s *source) Fetch(ctx context.Context, files []gear.File, deliver func(int, io.Reader) error) error {
	err := s.files.Fetch(ctx, files, deliver)
	var missing *gearclient.MissingError
	switch {
	case errors.As(err, &missing):
		return fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	case len(files) == 1:
		return gone(err, oci.CodeBlobUnknown)
	}
	return err
}

// Range implements gearfs.Source.
func (s *source) Range(ctx context.Context, f gear.File, off, n int64, checked bool) (io.ReadCloser, error) {
	r, err := s.files.Range(ctx, f, off, n, checked)
	if err != nil {
		return nil, gone(err, oci.CodeBlobUnknown)
	}
	return r, nil
}

// Profile implements gearfs.Source.
func (s *source) Profile(ctx context.Context) (starts.Profile, error) {
	if e := s.p.early.take(profileKey{s.repo, s.manifest}); e != nil {
		select {
		case <-e.done:
		case <-ctx.Done():
			return starts.Profile{}, ctx.Err()
		}
		if e.err == nil || oci.HasCode(e.err, oci.CodeManifestUnknown) {
			return profileOf(e.profile), gone(e.err, oci.CodeManifestUnknown)
		}
	}
	p, err := s.p.reg.GearProfile(ctx, s.repo, s.manifest)
	return profileOf(p), gone(err, oci.CodeManifestUnknown)
}

// Pack implements gearfs.Packer. It ends if there is no profile that was requested at the
// same time, because nobody could wait for its files.
func (s *source) Pack(ctx context.Context, coming func(names []gear.Name), deliver func(f gear.File, content io.Reader) error) error {
	e := s.p.early.get(profileKey{s.repo, s.manifest})
	if e == nil {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	var work sync.WaitGroup
	defer work.Wait()
	defer cancel()
	work.Go(func() {
		select {
		case <-ctx.Done():
		case <-e.done:
			if e.err != nil {
				cancel()
				return
			}
			coming(e.profile.Names)
		}
	})
	return gone(s.p.gear.Pack(ctx, s.repo, s.manifest, deliver), oci.CodeManifestUnknown)
}

func profileOf(p client.GearProfile) starts.Profile {
	return starts.Profile{Files: predict.Files(p.Names, p.Origins), Donor: string(p.Donor)}
}

// earlyProfiles holds profiles that were requested together with the indexes of their
// images. The zero value is empty.
type earlyProfiles struct {
	mu  sync.Mutex
	all map[profileKey]*earlyProfile
}

type profileKey struct {
	repo     string
	manifest oci.Digest
}

// earlyProfile is a profile that is being fetched or has arrived.
type earlyProfile struct {
	done    chan struct{} // closed when profile and err are set
	profile client.GearProfile
	err     error
	taken   bool // by the caller that needed it; guarded by earlyProfiles.mu
}

// begin returns a profile that is to be requested, or nil if it was requested recently.
func (p *earlyProfiles) begin(key profileKey) *earlyProfile {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.all[key] != nil {
		return nil
	}
	if p.all == nil {
		p.all = map[profileKey]*earlyProfile{}
	}
	e := &earlyProfile{done: make(chan struct{})}
	p.all[key] = e
	return e
}

// get returns a requested profile, or nil if none was requested recently.
func (p *earlyProfiles) get(key profileKey) *earlyProfile {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.all[key]
}

// take returns a requested profile, but only once: a caller that asks again wants a new
// one.
func (p *earlyProfiles) take(key profileKey) *earlyProfile {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.all[key]
	if e == nil || e.taken {
		return nil
	}
	e.taken = true
	return e
}

func (p *earlyProfiles) forget(key profileKey, e *earlyProfile) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.all[key] == e {
		delete(p.all, key)
	}
}

// ReportProfile implements gearfs.Source.
func (s *source) ReportProfile(ctx context.Context, names []gear.Name, whole bool) error {
	if s.silent {
		return nil
	}
	return gone(s.p.reg.GearReportProfile(ctx, s.repo, s.manifest, names, whole), oci.CodeManifestUnknown)
}

// gone converts a registry's error that something does not exist to gearfs' kind of
// error.
func gone(err error, code oci.Code) error {
	if oci.HasCode(err, code) {
		return fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	}
	return err
}
