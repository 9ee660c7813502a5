package node

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"example.org/slipway/internal/durable"
	"example.org/slipway/node/view"
	"example.org/slipway/oci/volref"
	"example.org/slipway/volume/block"
)

// These are the prefixes of the names of records, mappings and directories. Mappings with
// other names do not belong to the Manager, and stay.
const (
	localPrefix   = "local-"
	networkPrefix = "net-"
	commitPrefix  = "commit-"
	latePrefix    = "late-" // only records, of clones that may still come
)

// phase says how far the making of a mount has come.
type phase string

const (
	// making: nobody has used it yet. It will be removed.
	making phase = "making"
	// made: it was handed out. It is mounted, or will be mounted again when it is used.
	made phase = "made"
	// leaving: it is being removed.
	leaving phase = "leaving"
)

// record is what is known of a mount, whatever happens to the process. It never holds the
// key of a credential.
type record struct {
	Version int   `json:"version"`
	Phase   phase `json:"phase"`
	// Key is the key of the container. It is "" for an image that containers share.
	Key    string        `json:"key,omitempty"`
	Image  volref.Record `json:"image"`
	Volume string        `json:"volume"`
	// Clone is the container's own volume.
	Clone string `json:"clone,omitempty"`
	// Doubt is until when Clone may still appear, although its creation was given up or
	// its creator killed. It is zero once it is known whether the clone exists.
	Doubt time.Time `json:"doubt,omitzero"`
	// Commit is a volume that is being made from the clone.
	Commit string `json:"commit,omitempty"`
	// Tries counts the mounts. Each has its own directory, so that a mount that hung and
	// came late is not taken for another.
	Tries int `json:"tries"`
	// Mount is the final mount, or nil.
	Mount *mountRecord `json:"mount,omitempty"`
	// Since and Expires are the times of the credential with which it is mapped. They are
	// zero if it does not expire.
	Since   time.Time `json:"since,omitzero"`
	Expires time.Time `json:"expires,omitzero"`
}

// mountRecord identifies a mount and its source.
type mountRecord struct {
	// Boot identifies the start of the machine during which it was mounted.
	Boot string `json:"boot"`
	// Dir is where it is mounted, File the mapping.
	Dir  string    `json:"dir"`
	File string    `json:"file"`
	Root view.Root `json:"root"`
	// Under is the device number of the file system that holds File. If it changes, the
	// connection that served File is gone.
	Under uint64 `json:"under"`
}

// mapping returns the record's volume as a mapping.
func (r *record) mapping(name string) block.Mapping {
	m := block.Mapping{Name: name, Place: r.Image.Place, ID: r.Volume}
	if r.Key != "" {
		m.ID, m.Writable = r.Clone, true
	}
	return m
}

// committing returns the volume that is being made as a mapping.
func (r *record) committing(name string) block.Mapping {
	return block.Mapping{Name: commitPrefix + name, Place: r.Image.Place, ID: r.Commit, Writable: true}
}

// nameOf returns a short name that stands for all parts.
func nameOf(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:16])
}

func placeKey(p volref.Place) string {
	return strings.Join([]string{p.Driver, p.Cluster, p.Pool, p.Namespace}, "\x00")
}

const (
	recordSuffix = ".json"
	newSuffix    = ".new" // ends the name of a file that package durable was writing
)

func (m *Manager) recordPath(name string) string { return filepath.Join(m.o.Dir, name+recordSuffix) }

// save makes r the record of an entry, durably. Only the entry's flight calls it.
func (m *Manager) save(e *entry, r record) error {
	r.Version = 1
	b, err := json.Marshal(&r)
	if err == nil {
		err = durable.WriteFile(m.recordPath(e.name), b)
	}
	if err != nil {
		return fmt.Errorf("record %s: %w", e.name, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	e.rec = &r
	return nil
}

// forget removes the record of an entry of which nothing is left.
func (m *Manager) forget(e *entry) error {
	if err := os.Remove(m.recordPath(e.name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("record %s: %w", e.name, err)
	}
	if err := durable.SyncDir(m.o.Dir); err != nil {
		return fmt.Errorf("record %s: %w", e.name, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	e.rec = nil
	return nil
}

// records reads all records in Dir. It reports one that cannot be read and leaves it
// alone, because its meaning is unknown.
func (m *Manager) records() (map[string]*record, error) {
	entries, err := os.ReadDir(m.o.Dir)
	if err != nil {
		return nil, err
	}
	all := map[string]*record{}
	for _, d := range entries {
		if strings.HasSuffix(d.Name(), recordSuffix+newSuffix) {
			if err := os.Remove(filepath.Join(m.o.Dir, d.Name())); err != nil { // an earlier attempt left half of it
				return nil, err
			}
		}
		name, ok := strings.CutSuffix(d.Name(), recordSuffix)
		if !ok || !ours(name) && !strings.HasPrefix(name, latePrefix) {
			continue
		}
		b, err := os.ReadFile(filepath.Join(m.o.Dir, d.Name()))
		if err != nil {
			return nil, err
		}
		r, err := parseRecord(b)
		if err != nil {
			m.log.Warn("record of a volume is not understood and left alone", "name", name, "error", err)
			continue
		}
		all[name] = r
	}
	return all, nil
}

// parseRecord reads a record.
func parseRecord(b []byte) (*record, error) {
	r := &record{}
	if err := json.Unmarshal(b, r); err != nil {
		return nil, err
	}
	switch {
	case r.Version != 1:
		return nil, fmt.Errorf("version %d is not known", r.Version)
	case r.Phase != making && r.Phase != made && r.Phase != leaving:
		return nil, fmt.Errorf("phase %q is not known", r.Phase)
	case r.Volume == "" || (r.Key != "") != (r.Clone != ""):
		return nil, errors.New("it is not whole")
	}
	return r, nil
}

// bootID identifies this start of the machine.
func bootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b)), err
}
