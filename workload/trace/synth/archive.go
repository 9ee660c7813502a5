package synth

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"example.org/slipway/internal/durable"
	"example.org/slipway/workload/trace"
)

// ArchiveWriter writes the records of one zone in the form of the public archive:
// files DIR/<az>/<prefix>-logstash-YYYY.MM.DD-N.json, each one JSON array for at most
// six hours whose records are not in order of time. A file appears when it is complete.
type ArchiveWriter struct {
	dir, prefix string
	seed        uint64
	key         fileKey
	number      int
	lines       []byte
	out         []byte // the memory of the last file
	ends        []int
	closed      bool
}

// fileKey is the part of a day that a file is for.
type fileKey struct{ day, part int64 }

const (
	archivePart = 6 * time.Hour
	// maxArchiveFile bounds the memory: a line has about 380 B.
	maxArchiveFile = 100_000
)

// NewArchiveWriter makes the directory. seed decides the order of records in files.
func NewArchiveWriter(dir string, p *Profile, seed uint64) (*ArchiveWriter, error) {
	prefix, err := archivePrefix(p)
	if err != nil {
		return nil, err
	}
	w := &ArchiveWriter{dir: dir, prefix: prefix, seed: seed ^ hashString(p.Zone)}
	if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, w.prefix)), 0o755); err != nil {
		return nil, fmt.Errorf("write archive: %w", err)
	}
	return w, nil
}

// archivePrefix returns what the paths of a zone's files begin with.
func archivePrefix(p *Profile) (string, error) {
	prefix := p.Prefix
	if prefix == "" {
		prefix = filepath.Join(p.Zone, p.Zone)
	}
	if !filepath.IsLocal(prefix) {
		return "", fmt.Errorf("zone %q cannot be part of a file name", prefix)
	}
	return prefix, nil
}

// checkArchive returns an error if there are files of a zone already, which would be
// mixed with what is written.
func checkArchive(dir string, p *Profile) error {
	prefix, err := archivePrefix(p)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, prefix)
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("write archive: %w", err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), filepath.Base(path)+"-logstash-") {
			return fmt.Errorf("archive %s has files of zone %s already", dir, p.Zone)
		}
	}
	return nil
}

// Add adds a record; they must come in order of time.
func (w *ArchiveWriter) Add(r *trace.Record) error {
	ms := r.Time.UnixMilli()
	day := ms / (24 * time.Hour).Milliseconds()
	key := fileKey{day, ms / archivePart.Milliseconds()}
	if key != w.key || len(w.ends) >= maxArchiveFile {
		if err := w.flush(); err != nil {
			return err
		}
		if key.day != w.key.day {
			w.number = 0
		}
		w.key = key
	}
	w.lines = r.AppendTrace(w.lines)
	w.ends = append(w.ends, len(w.lines))
	return nil
}

// Close writes the last file.
func (w *ArchiveWriter) Close() error {
	if w.closed {
		return nil
	}
	w.closed = true
	return w.flush()
}

func (w *ArchiveWriter) flush() error {
	if len(w.ends) == 0 {
		return nil
	}
	day := time.Unix(w.key.day*24*3600, 0).UTC()
	path := filepath.Join(w.dir, fmt.Sprintf("%s-logstash-%s-%d.json", w.prefix, day.Format("2006.01.02"), w.number))
	if err := durable.WriteFile(path, w.shuffled()); err != nil {
		return fmt.Errorf("write archive: %w", err)
	}
	w.number++
	w.lines, w.ends = w.lines[:0], w.ends[:0]
	return nil
}

// shuffled returns the array of the lines in random order. It is valid until the next
// call.
func (w *ArchiveWriter) shuffled() []byte {
	rnd := rand.New(rand.NewPCG(w.seed, uint64(w.key.part)<<20+uint64(w.number)))
	out := append(slices.Grow(w.out[:0], len(w.lines)+len(w.ends)+8), '[')
	for n, i := range rnd.Perm(len(w.ends)) {
		start := 0
		if i > 0 {
			start = w.ends[i-1]
		}
		if n > 0 {
			out = append(out, ',')
		}
		out = append(out, '\n')
		out = append(out, w.lines[start:w.ends[i]-1]...) // a line ends with its line feed
	}
	w.out = append(out, "\n]\n"...)
	return w.out
}
