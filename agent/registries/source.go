package registries

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
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

// Packed implements gearfs.Packer.
func (s *source) Packed(name gear.Name) bool {
	s.p.early.mu.Lock()
	defer s.p.early.mu.Unlock()
	return s.p.early.packed(profileKey{s.repo, s.manifest}, name) != nil
}

// Fetch implements [gear.FileSource]. It takes the files from the pack of the image if there
// is one.
func (s *source) Fetch(ctx context.Context, files []gear.File, deliver func(int, io.Reader) error) error {
	var pack *gearclient.Pack
	if len(files) > 0 {
		pack = s.p.early.pack(profileKey{s.repo, s.manifest}, files)
	}
	if pack == nil {
		return s.fetch(ctx, files, deliver)
	}
	left, err := pack.Deliver(ctx, files, deliver)
	_ = pack.Close()
	if err != nil || len(left) == 0 {
		return err
	}
	others := make([]gear.File, len(left))
	for k, i := range left {
		others[k] = files[i]
	}
	return s.fetch(ctx, others, func(k int, r io.Reader) error { return deliver(left[k], r) })
}

func (s *source) fetch(ctx context.Context, files []gear.File, deliver func(int, io.Reader) error) error {
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
	// The caller that needed the profile has taken it. pack has its files, until somebody has
	// taken them or nobody wants them. earlyProfiles.mu guards both.
	taken bool
	pack  *gearclient.Pack
}

// packBegins is how many names of a profile are looked at to find out whether a request
// begins where its pack does. The first ones may be too large to be requested.
const packBegins = 16

// packed returns the profile of which there is a pack, if a request that begins with a file
// begins where the pack does. mu is held.
func (p *earlyProfiles) packed(key profileKey, first gear.Name) *earlyProfile {
	e := p.all[key]
	if e == nil || e.pack == nil {
		return nil
	}
	select {
	case <-e.done:
	default:
		return nil
	}
	if !slices.Contains(e.profile.Names[:min(len(e.profile.Names), packBegins)], first) {
		return nil
	}
	return e
}

// pack returns the pack of an image for a request that begins where the pack does. The caller
// closes it. Others get nothing.
func (p *earlyProfiles) pack(key profileKey, files []gear.File) *gearclient.Pack {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.packed(key, files[0].Name)
	if e == nil {
		return nil
	}
	pack := e.pack
	e.pack = nil
	return pack
}

// drop ends the pack of a profile if nobody has taken it.
func (p *earlyProfiles) drop(e *earlyProfile) {
	p.mu.Lock()
	pack := e.pack
	e.pack = nil
	p.mu.Unlock()
	if pack != nil {
		_ = pack.Close()
	}
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
