package predict

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"

	"example.org/slipway/gear"
)

// Donor is what is kept of an image that was started. It is enough to find the files that
// the image opened in another version, without the image's index. It takes about 5 kB for
// some hundred files.
type Donor struct {
	Version int `json:"version"`
	// Manifest is the image's manifest. Platform and Command say what the image is for.
	Manifest string    `json:"manifest"`
	Platform string    `json:"platform"`
	Command  string    `json:"command"`
	Learnt   time.Time `json:"learnt"`
	// Part says that no complete start of the image was seen, so that files which its
	// program loads may be missing.
	Part bool `json:"part,omitempty"`
	// Sketch is a sample of the hashes of all paths: the smallest hashes.
	Sketch []uint64 `json:"sketch"`
	// Opened has the files that were opened, in order.
	Opened []Opened `json:"opened"`
	// Whole has the directories in which containers opened nearly all files with a
	// suffix.
	Whole []Whole `json:"whole,omitempty"`
}

// Opened is a file that a donor opened.
type Opened struct {
	// Path has no leading slash.
	Path string `json:"p"`
	// Key is the beginning of the content's name. Eight bytes are enough to find a
	// content in a tree, and names do not compress.
	Key uint64 `json:"k"`
	// Alike is how many files of the donor had the same path after leaving out dotted
	// versions (the first element) and all digits (the second). AlikeOpened is how many
	// of these files were opened.
	Alike       [len(looseners)]int `json:"a"`
	AlikeOpened [len(looseners)]int `json:"o"`
}

// Whole is a directory of which all files with one suffix are read.
type Whole struct {
	Dir    string `json:"d"`
	Suffix string `json:"s"`
}

const (
	donorVersion = 1
	sketchSize   = 128
	// wholeFiles and wholeShare say when a directory counts as read as a whole: if it has
	// at least wholeFiles files, and at least the share wholeShare of them was opened.
	wholeFiles = 5
	wholeShare = 0.8
	// maxDonor is the maximum size of a decoded donor.
	maxDonor = 16 << 20
	// likely is the share of files that must have a property before other files are
	// expected to have it, too.
	likely = 0.5
)

// NewDonor returns what is kept of an image whose containers opened some files, given in
// order. It leaves out names that the tree does not have.
func NewDonor(t *Tree, manifest, platform string, command []string, opened []gear.Name, now time.Time) *Donor {
	d := &Donor{Version: donorVersion, Manifest: manifest, Platform: platform, Command: commandKey(command), Learnt: now.UTC(), Sketch: t.sketch()}
	had := make(map[int32]bool, len(opened))
	for _, n := range opened {
		e, ok := t.byName()[n]
		if !ok || had[e] || len(d.Opened) >= MaxFiles {
			continue
		}
		if _, ok := t.file(int(e)); !ok {
			continue
		}
		had[e] = true
		d.Opened = append(d.Opened, Opened{Path: t.x.Entries[e].Path, Key: keyOf(n)})
	}
	d.count(t)
	d.findWhole(t)
	return d
}

// commandKey returns a key that differs between commands that start different programs.
func commandKey(command []string) string {
	if len(command) == 0 {
		return ""
	}
	return path.Base(command[0])
}

func keyOf(n gear.Name) uint64 { return binary.BigEndian.Uint64(n[:]) }

// count sets how many files look like each file that was opened.
func (d *Donor) count(t *Tree) {
	for level, leave := range looseners {
		all := t.loose[level]()
		opened := map[string]int{}
		for i := range d.Opened {
			opened[leave(d.Opened[i].Path)]++
		}
		for i := range d.Opened {
			k := leave(d.Opened[i].Path)
			d.Opened[i].Alike[level], d.Opened[i].AlikeOpened[level] = len(all[k]), opened[k]
		}
	}
}

// findWhole finds the directories that were read as a whole.
func (d *Donor) findWhole(t *Tree) {
	opened := map[Whole]int{}
	for i := range d.Opened {
		opened[wholeOf(d.Opened[i].Path)]++
	}
	for w, n := range opened {
		if n >= wholeFiles && float64(n) >= wholeShare*float64(len(t.wholes()[w])) {
			d.Whole = append(d.Whole, w)
		}
	}
	slices.SortFunc(d.Whole, func(a, b Whole) int {
		return strings.Compare(a.Dir+"/"+a.Suffix, b.Dir+"/"+b.Suffix)
	})
}

func wholeOf(p string) Whole { return Whole{path.Dir(p), path.Ext(p)} }

// sketch returns the smallest hashes of the tree's paths, in order.
func (t *Tree) sketch() []uint64 {
	var all []uint64
	t.each(func(_ int, e *gear.Entry) {
		h := fnv.New64a()
		_, _ = io.WriteString(h, e.Path) // writing to a hash never fails
		all = append(all, h.Sum64())
	})
	slices.Sort(all)
	all = slices.Compact(all)
	return slices.Clone(all[:min(len(all), sketchSize)])
}

// similarity returns an estimate of the share of paths that two sets have in common.
func similarity(a, b []uint64) float64 {
	union, both := 0, 0
	for i, j := 0, 0; (i < len(a) || j < len(b)) && union < sketchSize; union++ {
		switch {
		case j >= len(b) || i < len(a) && a[i] < b[j]:
			i++
		case i >= len(a) || b[j] < a[i]:
			j++
		default:
			both++
			i, j = i+1, j+1
		}
	}
	if union == 0 {
		return 0
	}
	return float64(both) / float64(union)
}

// Likest returns the donor that is most similar to an image, or nil if none is for its
// platform. A donor with the same command is preferred, because another program opens
// other files. Among equally similar donors, Likest chooses the donor that was learnt
// last.
func Likest(t *Tree, platform string, command []string, donors []*Donor) *Donor {
	var best *Donor
	var most float64
	sketch := t.sketch()
	keys := t.keys()
	for _, d := range donors {
		if d.Platform != platform || len(d.Opened) == 0 {
			continue
		}
		like := similarity(sketch, d.Sketch) + d.found(t, keys)
		if d.Command == commandKey(command) {
			like += 2
		}
		if best == nil || like > most || like == most && d.Learnt.After(best.Learnt) {
			best, most = d, like
		}
	}
	return best
}

// keys maps the beginnings of the names of the tree's contents to an entry each.
func (t *Tree) keys() map[uint64]int32 {
	m := make(map[uint64]int32, len(t.x.Files))
	for n, e := range t.byName() {
		m[keyOf(n)] = e
	}
	return m
}

// found returns the share of the donor's files that the tree has. Half of it counts paths
// and half contents.
func (d *Donor) found(t *Tree, keys map[uint64]int32) float64 {
	n := 0
	for i := range d.Opened {
		if _, ok := t.regularAt(d.Opened[i].Path); ok {
			n++
		}
		if _, ok := keys[d.Opened[i].Key]; ok {
			n++
		}
	}
	return float64(n) / float64(2*len(d.Opened))
}

// Encode returns the stored form: JSON, compressed by zstd.
func (d *Donor) Encode() ([]byte, error) {
	b, err := json.Marshal(d)
	if err != nil {
		return nil, err
	}
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	defer enc.Close()
	return enc.EncodeAll(b, nil), nil
}

// ErrDonor is returned, wrapped, for bytes that are not a donor of this version.
var ErrDonor = errors.New("not what is kept of an image's starts")

// DecodeDonor reads the stored form.
func DecodeDonor(b []byte) (*Donor, error) {
	dec, err := zstd.NewReader(bytes.NewReader(b), zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxDonor))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDonor, err)
	}
	defer dec.Close()
	raw, err := io.ReadAll(io.LimitReader(dec, maxDonor+1))
	if err != nil || len(raw) > maxDonor {
		return nil, fmt.Errorf("%w: %d bytes: %w", ErrDonor, len(raw), errors.Join(err))
	}
	d := &Donor{}
	if err := json.Unmarshal(raw, d); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDonor, err)
	}
	if d.Version != donorVersion || len(d.Opened) > MaxFiles || len(d.Sketch) > sketchSize || len(d.Whole) > MaxFiles || !slices.IsSorted(d.Sketch) {
		return nil, fmt.Errorf("%w: version %d of %d files", ErrDonor, d.Version, len(d.Opened))
	}
	return d, nil
}
