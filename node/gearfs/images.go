package gearfs

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/internal/durable"
	"example.org/slipway/node/cachedir"
	"example.org/slipway/node/gearfs/table"
)

// ErrConflict is returned, wrapped, by AddImage for an index that contradicts a known
// index about a file and cannot prove its version. One of the two lies. Since a cached
// file serves all images, only the content itself is believed.
var ErrConflict = table.ErrConflict

// ErrUnknown is returned, wrapped, for an image that is not known.
var ErrUnknown = errors.New("image is not known")

// ImageSpec describes an image to add.
type ImageSpec struct {
	// Chain is the chain ID of its layers, which identifies the image.
	Chain string
	// Ref is the image's name for people.
	Ref string
	// Domain is the trust domain of its sources. The image shows only contents that a
	// source of this domain has sent to this node. Images without a domain see the whole
	// cache.
	Domain string
	// Sources are the sources that can deliver its files, the preferred one first.
	Sources []SourceRef
	// Layers are the digests of its layers. They are shown in the status.
	Layers []string
}

// record is what is stored about an image, as JSON.
type record struct {
	Version int         `json:"version"`
	Chain   string      `json:"chain"`
	Ref     string      `json:"ref,omitempty"`
	Index   string      `json:"index"` // SHA-256 of the encoded index, in hex
	Domain  string      `json:"domain,omitempty"`
	Sources []SourceRef `json:"sources"`
	Layers  []string    `json:"layers,omitempty"`
	Added   time.Time   `json:"added"`
	// Background says that the image is to be completed. Hits records how well profiles
	// did.
	Background bool `json:"background,omitempty"`
	Hits       hits `json:"hits"`
}

const (
	recordVersion = 1
	maxRecord     = 1 << 20 // bytes
	recordFile    = "record.json"
	indexFile     = "index"
	tableFile     = "files"
)

// parseRecord decodes a record.
func parseRecord(b []byte) (*record, error) {
	if len(b) > maxRecord {
		return nil, fmt.Errorf("record of %d bytes", len(b))
	}
	var r record
	if err := json.Unmarshal(b, &r); err != nil {
		return nil, fmt.Errorf("record of an image: %w", err)
	}
	if r.Version != recordVersion {
		return nil, fmt.Errorf("record of an image of version %d", r.Version)
	}
	if _, ok := parseHexName(r.Index); !ok || dirOf(r.Chain) == "" {
		return nil, fmt.Errorf("record of image %.80q with index %.80q", r.Chain, r.Index)
	}
	if r.Hits.Opened < 0 || r.Hits.Covered < 0 || r.Hits.Covered > r.Hits.Opened {
		r.Hits = hits{}
	}
	return &r, nil
}

func parseHexName(s string) (gear.Name, bool) {
	var name gear.Name
	if len(s) != 2*len(name) {
		return name, false
	}
	_, err := hex.Decode(name[:], []byte(s))
	return name, err == nil
}

// dirOf returns the directory of an image. It returns "" if chain cannot be a chain ID.
func dirOf(chain string) string {
	if len(chain) == 0 || len(chain) > 200 {
		return ""
	}
	for _, c := range []byte(chain) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != ':' && c != '-' && c != '_' {
			return ""
		}
	}
	return strings.ReplaceAll(chain, ":", "-")
}

// image is a known image.
type image struct {
	chain, ref string
	dir        string
	table      *table.Table
	view       *cachedir.View
	// rec is replaced as a whole. It is guarded by Service.imagesMu.
	rec       *record
	st        imageStats
	observing observing
}

func (img *image) close() error {
	if img.table == nil {
		return nil
	}
	return img.table.Close()
}

// Has implements cachedir.Set, for a lease of the whole image.
func (img *image) Has(name gear.Name) bool {
	_, i, err := img.table.Find(name)
	return err != nil || i >= 0
}

// Holds reports whether an image has any of the files. It returns true for an unknown
// image.
func (s *Service) Holds(chain string, names []gear.Name) bool {
	img := s.image(chain)
	return img == nil || slices.ContainsFunc(names, img.Has)
}

// AddImage adds an image. The caller has verified its index, which must be flat. The
// image is durable when AddImage returns. If the image is already known, it gets the
// sources that it lacked. Errors: ErrConflict; poolfs.ErrCollision; gear.ErrInvalid.
func (s *Service) AddImage(spec ImageSpec, x *gear.Index) error {
	base := dirOf(spec.Chain)
	if base == "" {
		return fmt.Errorf("image with chain %.80q: %w", spec.Chain, fs.ErrInvalid)
	}
	s.addMu.Lock()
	defer s.addMu.Unlock()
	if img := s.image(spec.Chain); img != nil {
		return s.addSources(img, spec.Sources)
	}
	if !x.Flat() {
		return fmt.Errorf("image %s is not one whole tree: %w", spec.Chain, gear.ErrInvalid)
	}
	var enc bytes.Buffer
	if err := x.Encode(&enc); err != nil {
		return fmt.Errorf("image %s: %w", spec.Chain, err)
	}
	sum := sha256.Sum256(enc.Bytes())
	table, err := table.Encode(x.Files)
	if err != nil {
		return fmt.Errorf("image %s: %w", spec.Chain, err)
	}
	rec := &record{Version: recordVersion, Chain: spec.Chain, Ref: spec.Ref, Index: hex.EncodeToString(sum[:]),
		Domain: spec.Domain, Sources: uniqueRefs(spec.Sources), Layers: spec.Layers, Added: s.opts.Clock().UTC()}
	v, err := s.cache.View(viewOf(spec.Domain))
	var files FileSet
	if err == nil {
		files, err = files.With(x.Files)
	}
	var others []*gear.File
	if err == nil {
		others, err = s.settle(v, rec.Sources, files)
	}
	if err != nil {
		return fmt.Errorf("add image %s: %w", spec.Chain, err)
	}
	s.renew(v, largeOf(others)) // a small file is shown only when all of it is right
	dir := filepath.Join(s.dir, base)
	if err := s.storeImage(dir, rec, enc.Bytes(), table); err != nil {
		return fmt.Errorf("store image %s: %w", spec.Chain, err)
	}
	img, err := s.openImage(dir)
	if err != nil {
		return errors.Join(fmt.Errorf("add image %s: %w", spec.Chain, err), os.RemoveAll(dir))
	}
	s.imagesMu.Lock()
	s.images[spec.Chain] = img
	s.imagesMu.Unlock()
	s.askProfile(img) // so that the profile is there when a container starts
	return nil
}

// uniqueRefs drops sources named twice.
func uniqueRefs(refs []SourceRef) []SourceRef {
	var out []SourceRef
	for _, r := range refs {
		if !slices.Contains(out, r) {
			out = append(out, r)
		}
	}
	return out
}

// storeImage writes the files of an image, the record last.
func (s *Service) storeImage(dir string, rec *record, index, table []byte) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := durable.WriteFile(filepath.Join(dir, indexFile), index); err != nil {
		return err
	}
	if err := durable.WriteFile(filepath.Join(dir, tableFile), table); err != nil {
		return err
	}
	if err := writeRecord(dir, rec); err != nil {
		return err
	}
	return durable.SyncDir(s.dir)
}

func writeRecord(dir string, rec *record) error {
	b, err := json.MarshalIndent(rec, "", " ")
	if err != nil {
		return err
	}
	return durable.WriteFile(filepath.Join(dir, recordFile), append(b, '\n'))
}

// openImage reads back the stored files of an image.
func (s *Service) openImage(dir string) (*image, error) {
	b, err := os.ReadFile(filepath.Join(dir, recordFile))
	if err != nil {
		return nil, err
	}
	rec, err := parseRecord(b)
	if err != nil {
		return nil, err
	}
	if dirOf(rec.Chain) != filepath.Base(dir) {
		return nil, fmt.Errorf("record of image %s in %s", rec.Chain, filepath.Base(dir))
	}
	img := &image{chain: rec.Chain, ref: rec.Ref, dir: dir, rec: rec}
	if img.view, err = s.cache.View(viewOf(rec.Domain)); err != nil {
		return nil, err
	}
	s.noteView(img.view.ID())
	if img.table, err = table.Open(filepath.Join(dir, tableFile)); err != nil {
		s.log.Warn("table of an image's files is made again", "chain", rec.Chain, "err", err)
		img.table, err = s.remakeTable(img)
	}
	if err != nil {
		return nil, err
	}
	return img, nil
}

// remakeTable rebuilds the table from the index.
func (s *Service) remakeTable(img *image) (*table.Table, error) {
	x, err := s.readIndex(img)
	if err != nil {
		return nil, err
	}
	b, err := table.Encode(x.Files)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(img.dir, tableFile)
	if err := durable.WriteFile(path, b); err != nil {
		return nil, err
	}
	return table.Open(path)
}

// readIndex reads back an image's index and compares it with its hash.
func (s *Service) readIndex(img *image) (*gear.Index, error) {
	b, err := os.ReadFile(filepath.Join(img.dir, indexFile))
	if err != nil {
		return nil, err
	}
	s.imagesMu.RLock()
	want := img.rec.Index
	s.imagesMu.RUnlock()
	if sum := sha256.Sum256(b); hex.EncodeToString(sum[:]) != want {
		return nil, fmt.Errorf("index of image %s is damaged: %w", img.chain, gear.ErrContent)
	}
	return gear.Decode(bytes.NewReader(b), s.opts.Limits)
}

// loadImages reads back all images.
func (s *Service) loadImages() error {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		dir := filepath.Join(s.dir, e.Name())
		img, err := s.openImage(dir)
		if errors.Is(err, fs.ErrNotExist) { // the image was being added or removed
			if err := os.RemoveAll(dir); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			s.log.Error("records of an image are damaged; pull it again", "dir", dir, "err", err)
			continue
		}
		s.images[img.chain] = img
	}
	return nil
}

// RemoveImage forgets an image. Its files stay in the cache until they are evicted. It is
// no error if the image is not known.
func (s *Service) RemoveImage(chain string) error {
	s.addMu.Lock()
	defer s.addMu.Unlock()
	return s.remove(chain)
}

// remove is like RemoveImage, for a caller that holds addMu.
func (s *Service) remove(chain string) error {
	s.imagesMu.Lock()
	img := s.images[chain]
	delete(s.images, chain)
	s.imagesMu.Unlock()
	if img == nil {
		return nil
	}
	s.cache.Unlease(leaseOf(chain))
	// The record is removed first: files without a record are leftovers. The table's
	// descriptor is left to the garbage collector, because a fetch may be using it.
	err := os.Remove(filepath.Join(img.dir, recordFile))
	if err = errors.Join(err, os.RemoveAll(img.dir), durable.SyncDir(s.dir)); err != nil {
		return fmt.Errorf("remove image %s: %w", chain, err)
	}
	return nil
}

// addSources adds sources to an image. The new ones are preferred, because they belong to
// the last pull.
func (s *Service) addSources(img *image, refs []SourceRef) error {
	s.imagesMu.RLock()
	rec := *img.rec
	s.imagesMu.RUnlock()
	all := uniqueRefs(append(slices.Clone(refs), rec.Sources...))
	if slices.Equal(all, rec.Sources) {
		return nil
	}
	rec.Sources = all
	return s.replaceRecord(img, &rec)
}

// replaceRecord replaces the stored record of an image.
func (s *Service) replaceRecord(img *image, rec *record) error {
	if err := writeRecord(img.dir, rec); err != nil {
		return fmt.Errorf("record of image %s: %w", rec.Chain, err)
	}
	s.imagesMu.Lock()
	defer s.imagesMu.Unlock()
	img.rec = rec
	return nil
}

// image returns a known image, or nil.
func (s *Service) image(chain string) *image {
	s.imagesMu.RLock()
	defer s.imagesMu.RUnlock()
	return s.images[chain]
}

// allImages returns the images sorted by chain.
func (s *Service) allImages() []*image {
	s.imagesMu.RLock()
	defer s.imagesMu.RUnlock()
	out := make([]*image, 0, len(s.images))
	for _, img := range s.images {
		out = append(out, img)
	}
	slices.SortFunc(out, func(a, b *image) int { return strings.Compare(a.chain, b.chain) })
	return out
}

// HasImage reports whether an image is known.
func (s *Service) HasImage(chain string) bool { return s.image(chain) != nil }

// Spec returns the specification with which an image was added, including later changes.
func (s *Service) Spec(chain string) (ImageSpec, bool) {
	s.imagesMu.RLock()
	defer s.imagesMu.RUnlock()
	img := s.images[chain]
	if img == nil {
		return ImageSpec{}, false
	}
	r := img.rec
	return ImageSpec{Chain: r.Chain, Ref: r.Ref, Domain: r.Domain, Sources: slices.Clone(r.Sources), Layers: slices.Clone(r.Layers)}, true
}

// Index reads back the index of an image. Errors: ErrUnknown; gear.ErrContent if
// it was damaged on disk.
func (s *Service) Index(chain string) (*gear.Index, error) {
	img := s.image(chain)
	if img == nil {
		return nil, fmt.Errorf("image %s: %w", chain, ErrUnknown)
	}
	return s.readIndex(img)
}
