package images

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

	"example.org/slipway/config"
	"example.org/slipway/gear"
	"example.org/slipway/internal/durable"
	"example.org/slipway/node/gearfs"
)

// chainRecord is the record of a claimed layer. Together with the records of the layers
// below, it suffices to mount the layer without the registry.
type chainRecord struct {
	Version int    `json:"version"`
	Chain   string `json:"chain"`
	Parent  string `json:"parent,omitempty"`
	Digest  string `json:"digest"`
	Ref     string `json:"ref"`
	// Domain is the trust domain of the sources. Records of older versions have none,
	// and their images see the whole cache.
	Domain string `json:"domain,omitempty"`
	// Index is the SHA-256 of the layer's index, which is next to the record. It is empty
	// if the layer came with an image that is a volume.
	Index   string             `json:"index,omitempty"`
	Sources []gearfs.SourceRef `json:"sources"`
	// Layers are the digests of all layers of the chain, the lowest first.
	Layers []string `json:"layers"`
	// Snapshot reports whether a snapshot of containerd's needs the record. Other records
	// are for mounts without containerd.
	Snapshot bool `json:"snapshot,omitempty"`
	// Image is the name of the compiled image file, once there is one.
	Image string `json:"image,omitempty"`
	// Way is how the tree is mounted, config.WayGear or config.WayVolume. Why says what
	// became of this way and of the ways that were tried before. Both come from the first
	// image whose last layer this is. They are empty if there is no such image.
	Way string   `json:"way,omitempty"`
	Why []string `json:"why,omitempty"`
	// Volume is the volume of the chain, or nil if there is none.
	Volume *volumeRecord `json:"volume,omitempty"`
}

// way returns how the tree of the chain is mounted.
func (r *chainRecord) way() string {
	switch {
	case r.Way != "":
		return r.Way
	case r.Index == "" && r.Volume.usable():
		return config.WayVolume
	}
	return config.WayGear
}

const (
	chainVersion   = 1
	maxChainRecord = 1 << 20 // bytes
)

var (
	// errNoRecord says that a chain is not known.
	errNoRecord = errors.New("layer is not known here")
	// errDamaged says that the record of a chain differs from what was written.
	errDamaged = errors.New("the record is damaged")
	// errNewer says that another version of the agent wrote a record.
	errNewer = errors.New("another version of the agent wrote it")
)

// records is the directory of chain records.
type records struct {
	dir string
}

// path returns the directory of a chain's record. Chain IDs come from containerd. Chain
// IDs from [keyIn] may have a suffix.
func (r *records) path(chain string) (string, error) {
	alg, hex, ok := strings.Cut(chain, ":")
	if !ok || len(hex) < 32 || len(chain) > 200 || strings.Trim(alg, "abcdefghijklmnopqrstuvwxyz0123456789") != "" ||
		strings.Trim(hex, "0123456789abcdef-") != "" {
		return "", fmt.Errorf("%.80q is not a chain ID", chain)
	}
	return filepath.Join(r.dir, alg+"-"+hex), nil
}

// load reads a record. Errors: errNoRecord, errDamaged.
func (r *records) load(chain string) (*chainRecord, error) {
	dir, err := r.path(chain)
	if err != nil {
		return nil, err
	}
	b, err := os.ReadFile(filepath.Join(dir, "record.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", chain, errNoRecord)
	}
	if err != nil {
		return nil, err
	}
	rec, err := parseChainRecord(b)
	if err == nil && rec.Chain != chain {
		err = fmt.Errorf("it is of %s", rec.Chain)
	}
	if err != nil && !errors.Is(err, errNewer) {
		err = fmt.Errorf("%w: %w", errDamaged, err)
	}
	if err != nil {
		return nil, fmt.Errorf("record of layer %s in %s: %w", chain, dir, err)
	}
	return rec, nil
}

func parseChainRecord(b []byte) (*chainRecord, error) {
	if len(b) > maxChainRecord {
		return nil, errors.New("too large")
	}
	var rec chainRecord
	if err := json.Unmarshal(b, &rec); err != nil {
		return nil, err
	}
	if rec.Version != chainVersion {
		return nil, fmt.Errorf("version %d: %w", rec.Version, errNewer)
	}
	if err := rec.check(); err != nil {
		return nil, err
	}
	if name := rec.Image; name != "" && (name != filepath.Base(name) || name == "." || name == "..") {
		return nil, fmt.Errorf("image file %q", rec.Image)
	}
	return &rec, nil
}

// check rejects a record that an agent never writes.
func (r *chainRecord) check() error {
	switch {
	case r.Way != "" && r.Way != config.WayGear && r.Way != config.WayVolume:
		return fmt.Errorf("way %q", r.Way)
	case r.Way == config.WayVolume && !r.Volume.usable():
		return errors.New("it is a volume, and says not which")
	}
	return nil
}

// create writes a record durably, and the layer's encoded index if there is one.
func (r *records) create(rec *chainRecord, index []byte) error {
	dir, err := r.path(rec.Chain)
	if err != nil {
		return err
	}
	rec.Version = chainVersion
	if _, err := os.Lstat(dir + damagedSuffix); err == nil {
		rec.Snapshot = true // the record that was put aside may have been for a snapshot, too
	}
	tmp := dir + ".new"
	if err := os.RemoveAll(tmp); err != nil {
		return err
	}
	if err := os.MkdirAll(tmp, 0o700); err != nil {
		return err
	}
	if err := r.writeIndex(tmp, rec, index); err != nil {
		return err
	}
	if err := r.write(tmp, rec); err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.Rename(tmp, dir); err != nil {
		return err
	}
	return durable.SyncDir(r.dir)
}

// writeIndex writes an index durably to the directory of a record. The record on disk
// does not mention it yet.
func (r *records) writeIndex(dir string, rec *chainRecord, index []byte) error {
	if index == nil {
		return nil
	}
	sum := sha256.Sum256(index)
	rec.Index = hex.EncodeToString(sum[:])
	return durable.WriteFile(filepath.Join(dir, "index"), index)
}

// addIndex adds an index to a record that was made without one.
func (r *records) addIndex(rec *chainRecord, index []byte) error {
	dir, err := r.path(rec.Chain)
	if err != nil {
		return err
	}
	if err := r.writeIndex(dir, rec, index); err != nil {
		return err
	}
	return r.write(dir, rec)
}

// errNoIndex says that a layer came with an image that is a volume.
var errNoIndex = errors.New("the layer is here without its index")

// update replaces a record.
func (r *records) update(rec *chainRecord) error {
	dir, err := r.path(rec.Chain)
	if err != nil {
		return err
	}
	return r.write(dir, rec)
}

func (r *records) write(dir string, rec *chainRecord) error {
	b, err := json.MarshalIndent(rec, "", " ")
	if err != nil {
		return err
	}
	return durable.WriteFile(filepath.Join(dir, "record.json"), append(b, '\n'))
}

// index reads a layer's index. Errors: errNoIndex.
func (r *records) index(rec *chainRecord) (*gear.Index, error) {
	if rec.Index == "" {
		return nil, fmt.Errorf("layer %s: %w", rec.Digest, errNoIndex)
	}
	dir, err := r.path(rec.Chain)
	if err != nil {
		return nil, err
	}
	b, err := os.ReadFile(filepath.Join(dir, "index"))
	if err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(b); hex.EncodeToString(sum[:]) != rec.Index {
		return nil, fmt.Errorf("index of layer %s is damaged on disk; remove the image and pull it again", rec.Digest)
	}
	return gear.Decode(bytes.NewReader(b), nil)
}

// line returns the records of a chain and of all chains below it, the lowest first.
func (r *records) line(chain string) ([]*chainRecord, error) {
	return lineOf(chain, r.load)
}

// lineOf is like line, with records from load.
func lineOf(chain string, load func(string) (*chainRecord, error)) ([]*chainRecord, error) {
	var out []*chainRecord
	for chain != "" {
		rec, err := load(chain)
		if err != nil {
			return nil, err
		}
		if len(out) > 1000 {
			return nil, fmt.Errorf("the layers below %s have no end", chain)
		}
		out = append(out, rec)
		chain = rec.Parent
	}
	slices.Reverse(out)
	return out, nil
}

// damagedSuffix ends the name of a record that was put aside.
const damagedSuffix = ".damaged"

// putAside keeps what is left of a damaged record for inspection, under a name that is
// not a record's.
func (r *records) putAside(chain string) error {
	dir, err := r.path(chain)
	if err != nil {
		return err
	}
	aside := dir + damagedSuffix
	if err := os.RemoveAll(aside); err != nil {
		return err
	}
	if err := os.Rename(dir, aside); err != nil {
		return err
	}
	return durable.SyncDir(r.dir)
}

// remove forgets a chain. A chain that is not known is not an error.
func (r *records) remove(chain string) error {
	dir, err := r.path(chain)
	if err != nil {
		return nil //nolint:nilerr // never a valid name of a record
	}
	// The record is removed first, because without it the rest counts as a leftover.
	if err := os.Remove(filepath.Join(dir, "record.json")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return errors.Join(os.RemoveAll(dir), os.RemoveAll(dir+damagedSuffix))
}

// all lists the readable records. It passes damaged ones to bad. Records may be changed
// meanwhile.
func (r *records) all(bad func(dir string, err error)) ([]*chainRecord, error) {
	entries, err := os.ReadDir(r.dir)
	if err != nil {
		return nil, err
	}
	var out []*chainRecord
	for _, e := range entries {
		chain, ok := r.chainOf(e.Name())
		if !ok {
			continue
		}
		rec, err := r.load(chain)
		switch {
		case errors.Is(err, errNoRecord): // it is being removed, or a crash left it
		case err != nil:
			bad(e.Name(), err)
		default:
			out = append(out, rec)
		}
	}
	return out, nil
}

// chainOf returns the chain to which a directory belongs.
func (r *records) chainOf(name string) (string, bool) {
	chain := strings.Replace(name, "-", ":", 1)
	dir, err := r.path(chain)
	return chain, err == nil && filepath.Base(dir) == name
}

// clean removes what a crash left. Nobody may change records meanwhile, because an
// unfinished record looks the same.
func (r *records) clean() error {
	entries, err := os.ReadDir(r.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		chain, ok := r.chainOf(e.Name())
		if !ok && strings.HasSuffix(e.Name(), ".new") {
			err = errors.Join(err, os.RemoveAll(filepath.Join(r.dir, e.Name())))
		}
		if !ok {
			continue
		}
		if _, lerr := r.load(chain); errors.Is(lerr, errNoRecord) {
			err = errors.Join(err, r.remove(chain))
		}
	}
	return err
}
