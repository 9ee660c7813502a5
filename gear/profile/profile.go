// Package profile merges reports into one order. A report lists the files that a
// container of an image opened first.
package profile

import (
	"cmp"
	"encoding/binary"
	"errors"
	"math"
	"slices"

	"example.org/slipway/gear"
)

// These are the bounds of profiles.
const (
	// MaxFiles is the maximum number of files in a profile.
	MaxFiles = 20_000
	// MaxReports is the number of reports at which all counts are halved when another
	// report is merged. So a profile follows changes in how images are used.
	MaxReports = 256
	// leastCount is the count below which a file is forgotten. A file from a single
	// report falls below it once the file's count was halved more than twice. The profile
	// then has at least MaxReports/2 reports.
	leastCount = 1.0 / 4
)

// Profile merges reports. For each file it has the number of reports that had the file,
// and the file's average position in them. The zero value is a profile without reports.
type Profile struct {
	reports float32
	files   map[gear.Name]opened
}

type opened struct{ count, rank float32 }

// Add merges one report.
func (p *Profile) Add(names []gear.Name) {
	if p.files == nil {
		p.files = make(map[gear.Name]opened, len(names))
	}
	if p.reports >= MaxReports {
		p.reports /= 2
		for n, o := range p.files {
			if o.count /= 2; o.count < leastCount {
				delete(p.files, n) // no report has had it for a long time
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
	if len(p.files) > MaxFiles {
		for _, n := range p.sorted(func(a, b opened) int { return cmp.Or(cmp.Compare(b.count, a.count), cmp.Compare(a.rank, b.rank)) })[MaxFiles:] {
			delete(p.files, n)
		}
	}
}

// AddSeen merges the report of a start that was only partly seen. A file that is not in
// the profile's list counts as if it were in one more whole report. Files in the list do
// not count: the container had them before it opened them, so that nothing can be
// concluded about them.
func (p *Profile) AddSeen(names []gear.Name) {
	if p.files == nil {
		p.files = make(map[gear.Name]opened, len(names))
	}
	left := MaxFiles
	if len(p.files) > 0 {
		left = loneFiles // files that only this report has must not far outnumber the rest
	}
	had := make(map[gear.Name]bool, len(names))
	for i, n := range names {
		o, known := p.files[n]
		if had[n] || known && o.count*4 >= p.reports || !known && (left == 0 || len(p.files) >= MaxFiles) {
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

// Order returns the files that at least a quarter of the reports had. The number of files
// that only one report had is bounded by the number of the other files. Otherwise one
// false report among a few would be enough to have all nodes fetch the whole image.
func (p *Profile) Order() []gear.Name {
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

// loneFiles and loneShare bound the files that only one report has: loneFiles of them
// count, and loneShare more for each file that another report had, too.
const loneFiles, loneShare = 1000, 4

// Len returns the number of files.
func (p *Profile) Len() int { return len(p.files) }

// Whole reports whether any report was of a complete start.
func (p *Profile) Whole() bool { return p.reports > 0 }

func (p *Profile) sorted(by func(a, b opened) int) []gear.Name {
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
	version    = 1
	entryBytes = 32 + 4 + 4
)

// Encode writes the version, the number of reports, and the name, count and rank of each
// file. Count and rank are little-endian floats of 32 bits.
func (p *Profile) Encode() []byte {
	out := make([]byte, 0, 5+len(p.files)*entryBytes)
	out = append(out, version)
	out = binary.LittleEndian.AppendUint32(out, math.Float32bits(p.reports))
	for _, n := range p.sorted(func(a, b opened) int { return 0 }) {
		o := p.files[n]
		out = append(out, n[:]...)
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(o.count))
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(o.rank))
	}
	return out
}

var errFormat = errors.New("it is not a profile of version 1")

// Decode is the reverse of Encode. An empty input is an empty profile.
func (p *Profile) Decode(data []byte) error {
	if len(data) == 0 {
		return nil
	}
	if data[0] != version || len(data) < 5 || (len(data)-5)%entryBytes != 0 || (len(data)-5)/entryBytes > MaxFiles {
		return errFormat
	}
	p.reports = math.Float32frombits(binary.LittleEndian.Uint32(data[1:]))
	p.files = make(map[gear.Name]opened, (len(data)-5)/entryBytes)
	for data = data[5:]; len(data) > 0; data = data[entryBytes:] {
		o := opened{math.Float32frombits(binary.LittleEndian.Uint32(data[32:])), math.Float32frombits(binary.LittleEndian.Uint32(data[36:]))}
		if !(o.count > 0) || !(o.rank >= 0) || math.IsInf(float64(o.count), 0) || math.IsInf(float64(o.rank), 0) {
			return errFormat
		}
		p.files[gear.Name(data[:32])] = o
	}
	if !(p.reports >= 0) || math.IsInf(float64(p.reports), 0) {
		return errFormat
	}
	return nil
}
