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

// What the names of records, mappings and directories begin with. Whatever else
// is mapped under other names is not the Manager's, and stays.
const (
	localPrefix   = "local-"
	networkPrefix = "net-"
	commitPrefix  = "commit-"
	latePrefix    = "late-" // records only: of clones that may still come
)

// phase is how far the making of a mount has come.
type phase string

const (
	// making: nobody has used it yet. What there is of it goes.
	making phase = "making"
	// made: it was handed out. It is mounted, or will be again when it is used.
	made phase = "made"
	// leaving: what there is of it goes.
	leaving phase = "leaving"
)

// record is what is known of a mount whatever happens to the process. It has no
// key of any credential.
type record struct {
	Version int   `json:"version"`
	Phase   phase `json:"phase"`
	// Key of the container, "" for an image of all containers.
	Key    string        `json:"key,omitempty"`
	Image  volref.Record `json:"image"`
	Volume string        `json:"volume"`
	// Clone is the volume of the container alone.
	Clone string `json:"clone,omitempty"`
	// Doubt is until when Clone may still come, though it was given up or its maker
	// killed; zero once it is known to be there or not.
	Doubt time.Time `json:"doubt,omitzero"`
	// Commit is a volume that is being made of the clone.
	Commit string `json:"commit,omitempty"`
	// Tries counts the mounts: each has a directory of its own, so that one that
	// hung and came late is not taken for another.
	Tries int `json:"tries"`
	// Mount is what was mounted in the end, nil before.
	Mount *mountRecord `json:"mount,omitempty"`
	// Since and Expires are those of the credential that it is mapped with; zero if
	// it does not expire.
	Since   time.Time `json:"since,omitzero"`
	Expires time.Time `json:"expires,omitzero"`
}

// mountRecord identifies a mount and what it is of.
type mountRecord struct {
	// Boot is the start of the machine in which it was mounted.
	Boot string `json:"boot"`
	// Dir is where, File the mapping.
	Dir  string    `json:"dir"`
	File string    `json:"file"`
	Root view.Root `json:"root"`
	// Under is the device number of the file system that File lies on: another one
	// means that the connection that served File is gone.
	Under uint64 `json:"under"`
}

// mapping is the name of the record's volume as it is mapped.
func (r *record) mapping(name string) block.Mapping {
	m := block.Mapping{Name: name, Place: r.Image.Place, ID: r.Volume}
	if r.Key != "" {
		m.ID, m.Writable = r.Clone, true
	}
	return m
}

// committing is how the volume that is being made is mapped.
func (r *record) committing(name string) block.Mapping {
	return block.Mapping{Name: commitPrefix + name, Place: r.Image.Place, ID: r.Commit, Writable: true}
}

// nameOf is a short name that stands for all parts.
func nameOf(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:16])
}

func placeKey(p volref.Place) string {
	return strings.Join([]string{p.Driver, p.Cluster, p.Pool, p.Namespace}, "\x00")
}

const (
	recordSuffix = ".json"
	newSuffix    = ".new" // of what package durable was writing
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

// forget ends the record of an entry of which nothing is left.
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

// records reads all that are in Dir. One that cannot be read is told and left
// alone: what it stands for is unknown.
func (m *Manager) records() (map[string]*record, error) {
	entries, err := os.ReadDir(m.o.Dir)
	if err != nil {
		return nil, err
	}
	all := map[string]*record{}
	for _, d := range entries {
		if strings.HasSuffix(d.Name(), recordSuffix+newSuffix) {
			if err := os.Remove(filepath.Join(m.o.Dir, d.Name())); err != nil { // half of one
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

// bootID tells this start of the machine from all others.
func bootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b)), err
}
