package service

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"math"
	"slices"

	"example.org/slipway/gear"
	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
)

// Bounds of profiles.
const (
	// maxProfile is how many files a profile has at most.
	maxProfile = 20_000
	// maxReports is how many reports weigh in: when there are more, all count
	// half, so that a profile follows what images are used for.
	maxReports = 256
	// leastCount is below what a file is forgotten: one report that was halved more than
	// twice, of at least maxReports/2.
	leastCount = 1.0 / 4
)

// Profile returns which files containers of an image open first, in that order:
// those that at least a quarter of the reports had. Errors: MANIFEST_UNKNOWN.
func (s *Service) Profile(ctx context.Context, repo string, manifest oci.Digest) ([]gear.Name, error) {
	return s.profileOf(ctx, repo, manifest, true)
}

// LookProfile is Profile for who only looks: files that are still being stored are
// left out. It does not wait for them, nor have them stored sooner.
func (s *Service) LookProfile(ctx context.Context, repo string, manifest oci.Digest) ([]gear.Name, error) {
	return s.profileOf(ctx, repo, manifest, false)
}

func (s *Service) profileOf(ctx context.Context, repo string, manifest oci.Digest, wait bool) ([]gear.Name, error) {
	names, _, err := s.knownOf(ctx, repo, manifest, wait)
	return names, err
}

// knownOf is profileOf that says as well whether any report was of a whole start.
func (s *Service) knownOf(ctx context.Context, repo string, manifest oci.Digest, wait bool) (names []gear.Name, whole bool, err error) {
	if err := s.shows(ctx, repo, manifest); err != nil {
		return nil, false, err
	}
	data, err := s.facts.Profile(ctx, manifest)
	if err != nil || data == nil {
		return nil, false, err
	}
	var p profile
	if err := p.decode(data); err != nil {
		s.log.Warn("a damaged profile is left alone", "manifest", manifest, "err", err)
		return nil, false, nil
	}
	names = p.order()
	// Reports may have come by way of another repository that shows the image.
	may, err := s.look(ctx, repo, names, wait)
	if err != nil {
		return nil, false, err
	}
	kept := names[:0]
	for i, n := range names {
		if may[i] {
			kept = append(kept, n)
		}
	}
	return kept, p.reports > 0, nil
}

// ReportProfile takes in which files a container opened, in that order. Names
// that the repository may not read are left out, so that a report can do no more
// than change an order. Errors: MANIFEST_UNKNOWN.
func (s *Service) ReportProfile(ctx context.Context, repo string, manifest oci.Digest, names []gear.Name) error {
	return s.report(ctx, repo, manifest, names, (*profile).add)
}

// ReportSeen is ReportProfile of a container that may have opened other files as well, which
// nobody saw. It speaks for its names, and not against others. Errors: MANIFEST_UNKNOWN.
func (s *Service) ReportSeen(ctx context.Context, repo string, manifest oci.Digest, names []gear.Name) error {
	return s.report(ctx, repo, manifest, names, (*profile).addSeen)
}

func (s *Service) report(ctx context.Context, repo string, manifest oci.Digest, names []gear.Name, add func(*profile, []gear.Name)) error {
	if err := s.writable(); err != nil {
		return err
	}
	if err := s.shows(ctx, repo, manifest); err != nil {
		return err
	}
	names = names[:min(len(names), maxProfile)]
	may, err := s.visible(ctx, repo, names)
	if err != nil {
		return err
	}
	var opened []gear.Name
	for i, n := range names {
		if may[i] {
			opened = append(opened, n)
		}
	}
	if len(opened) == 0 {
		return nil
	}
	err = s.facts.ChangeProfile(ctx, manifest, func(old []byte) ([]byte, error) {
		var p profile
		if err := p.decode(old); err != nil {
			s.log.Warn("a damaged profile begins anew", "manifest", manifest, "err", err)
			p = profile{}
		}
		add(&p, opened)
		return p.encode(), nil
	})
	if err == nil {
		s.learnFrom(repo, manifest)
	}
	return err
}

// shows checks that a repository shows a manifest.
func (s *Service) shows(ctx context.Context, repo string, manifest oci.Digest) error {
	_, err := s.cat.Manifest(ctx, repo, manifest)
	if errors.Is(err, catalog.ErrNotFound) || errors.Is(err, catalog.ErrNoRepository) {
		return oci.Errorf(oci.CodeManifestUnknown, "%s has no manifest %s", repo, manifest)
	}
	return err
}

// profile merges reports: how many had a file, and where in them it came on
// average.
type profile struct {
	reports float32
	files   map[gear.Name]opened
}

type opened struct{ count, rank float32 }

// add merges one report.
func (p *profile) add(names []gear.Name) {
	if p.files == nil {
		p.files = make(map[gear.Name]opened, len(names))
	}
	if p.reports >= maxReports {
		p.reports /= 2
		for n, o := range p.files {
			if o.count /= 2; o.count < leastCount {
				delete(p.files, n) // nobody had it for a long time
				continue
			}
			p.files[n] = o
		}
	}
	p.reports++
	had := make(map[gear.Name]bool, len(names))
	for i, n := range names {
		if had[n] {
			continue
		}
		had[n] = true
		o := p.files[n]
		o.count++
		o.rank += (float32(i) - o.rank) / o.count
		p.files[n] = o
	}
	if len(p.files) > maxProfile {
		for _, n := range p.sorted(func(a, b opened) int { return cmp.Or(cmp.Compare(b.count, a.count), cmp.Compare(a.rank, b.rank)) })[maxProfile:] {
			delete(p.files, n)
		}
	}
}

// addSeen merges the report of a start that was seen in part. A file that is not in the profile's
// list counts as if one whole report more had had it. Of those in the list nothing can be told:
// they were there before they were opened.
func (p *profile) addSeen(names []gear.Name) {
	if p.files == nil {
		p.files = make(map[gear.Name]opened, len(names))
	}
	left := maxProfile
	if len(p.files) > 0 {
		left = loneFiles // what nobody else has had must not outnumber the rest by far
	}
	had := make(map[gear.Name]bool, len(names))
	for i, n := range names {
		o, known := p.files[n]
		if had[n] || known && o.count*4 >= p.reports || !known && (left == 0 || len(p.files) >= maxProfile) {
			continue
		}
		had[n] = true
		if !known {
			left--
		}
		o.count++
		o.rank += (float32(i) - o.rank) / o.count
		p.files[n] = o
	}
}

// order returns the files that at least a quarter of the reports had. Those that one report
// alone had are bounded by the others: else one false report among a few is enough to have
// all nodes fetch the whole image.
func (p *profile) order() []gear.Name {
	names := p.sorted(func(a, b opened) int { return cmp.Compare(a.rank, b.rank) })
	names = slices.DeleteFunc(names, func(n gear.Name) bool { return p.files[n].count*4 < p.reports })
	if p.reports < 2 {
		return names
	}
	alone := func(n gear.Name) bool { return p.files[n].count < 2 }
	left := loneFiles
	for _, n := range names {
		if !alone(n) {
			left += loneShare
		}
	}
	return slices.DeleteFunc(names, func(n gear.Name) bool {
		if alone(n) {
			left--
			return left < 0
		}
		return false
	})
}

// What one report alone says counts for so many files, and so many more for each file that
// another report had, too.
const loneFiles, loneShare = 1000, 4

func (p *profile) sorted(by func(a, b opened) int) []gear.Name {
	names := make([]gear.Name, 0, len(p.files))
	for n := range p.files {
		names = append(names, n)
	}
	slices.SortFunc(names, func(a, b gear.Name) int {
		return cmp.Or(by(p.files[a], p.files[b]), slices.Compare(a[:], b[:]))
	})
	return names
}

const (
	profileVersion = 1
	profileEntry   = 32 + 4 + 4
)

// encode writes the version, the number of reports, and of each file its name,
// count and rank, as little-endian floats of 32 bits.
func (p *profile) encode() []byte {
	out := make([]byte, 0, 5+len(p.files)*profileEntry)
	out = append(out, profileVersion)
	out = binary.LittleEndian.AppendUint32(out, math.Float32bits(p.reports))
	for _, n := range p.sorted(func(a, b opened) int { return 0 }) {
		o := p.files[n]
		out = append(out, n[:]...)
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(o.count))
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(o.rank))
	}
	return out
}

var errProfile = errors.New("it is not a profile of version 1")

func (p *profile) decode(data []byte) error {
	if len(data) == 0 {
		return nil
	}
	if data[0] != profileVersion || len(data) < 5 || (len(data)-5)%profileEntry != 0 || (len(data)-5)/profileEntry > maxProfile {
		return errProfile
	}
	p.reports = math.Float32frombits(binary.LittleEndian.Uint32(data[1:]))
	p.files = make(map[gear.Name]opened, (len(data)-5)/profileEntry)
	for data = data[5:]; len(data) > 0; data = data[profileEntry:] {
		o := opened{math.Float32frombits(binary.LittleEndian.Uint32(data[32:])), math.Float32frombits(binary.LittleEndian.Uint32(data[36:]))}
		if !(o.count > 0) || !(o.rank >= 0) || math.IsInf(float64(o.count), 0) || math.IsInf(float64(o.rank), 0) {
			return errProfile
		}
		p.files[gear.Name(data[:32])] = o
	}
	if !(p.reports >= 0) || math.IsInf(float64(p.reports), 0) {
		return errProfile
	}
	return nil
}
