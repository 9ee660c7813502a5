package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"example.org/slipway/internal/durable"
)

// publishers is how many files a Writer writes at once.
const publishers = 2

// publisher writes files of days while more records are added. The zero value works.
type publisher struct {
	mu sync.Mutex
	// changed is signalled when a file is done.
	changed *sync.Cond
	// running holds the days whose files are being written, with the bytes that their
	// records take in memory.
	running map[dayKey]int64
	written Written
	err     error
}

// publish starts writing the file of a day and forgets its buffer. It waits if enough
// others are being written, or an earlier one of the same day.
func (w *Writer) publish(key dayKey, b *dayBuffer) {
	delete(w.days, key)
	w.latest = nil
	p := &w.publishing
	p.begin(key, b.size())
	go func() {
		stats, err := w.publishDay(key, b)
		b.release(w.free)
		p.end(key, stats, err)
	}()
}

func (p *publisher) begin(key dayKey, size int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running == nil {
		p.running, p.changed = map[dayKey]int64{}, sync.NewCond(&p.mu)
	}
	for {
		if _, same := p.running[key]; !same && len(p.running) < publishers {
			break
		}
		p.changed.Wait()
	}
	p.running[key] = size
}

func (p *publisher) end(key dayKey, stats fileStats, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.running, key)
	p.changed.Broadcast()
	if err != nil {
		p.err = errors.Join(p.err, err)
		return
	}
	p.written.Files++
	p.written.Records += stats.added
	p.written.Duplicates += stats.duplicates
	p.written.Dropped += stats.dropped
}

// wait waits for all that is being written, and returns what has failed so far.
func (p *publisher) wait() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.running) > 0 {
		p.changed.Wait()
	}
	return p.err
}

// failed returns what has failed so far.
func (p *publisher) failed() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// held returns how much memory the records that are being written take, in bytes.
func (p *publisher) held() (total int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, size := range p.running {
		total += size
	}
	return total
}

// has reports whether anything of a zone is being written.
func (p *publisher) has(zone string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for key := range p.running {
		if key.zone == zone {
			return true
		}
	}
	return false
}

// counted returns what has been written.
func (p *publisher) counted() Written {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.written
}

// publishDay writes the file of a day. It merges what the file has already, the runs, and
// what is in memory.
func (w *Writer) publishDay(key dayKey, b *dayBuffer) (stats fileStats, err error) {
	dir := filepath.Join(w.dir, zonePrefix+key.zone)
	if err := makeDir(dir); err != nil {
		return stats, fmt.Errorf("write store: %w", err)
	}
	path := filepath.Join(dir, dayName(key.day))
	sources, err := runSources(b.runs)
	defer func() {
		for _, s := range sources {
			err = errors.Join(err, s.close())
		}
	}()
	if err != nil {
		return stats, err
	}
	o := fileOptions{final: true, drop: w.o.DropDuplicates, maxRows: w.maxGroup}
	if _, serr := os.Lstat(path); serr == nil {
		if _, err := openDay(path); err != nil {
			return stats, fmt.Errorf("add to store: %w", err)
		}
		s, err := openSource(path, dayBuffers)
		if err != nil {
			return stats, fmt.Errorf("add to store: %w", err)
		}
		sources = slices.Insert(sources, 0, source(s))
		o.old = 1
	} else if !os.IsNotExist(serr) {
		return stats, fmt.Errorf("add to store: %w", serr)
	}
	part := filepath.Join(dir, partPrefix+dayName(key.day))
	stats, err = writeFile(part, key, sources, b, &o)
	if err != nil {
		return stats, errors.Join(fmt.Errorf("write %s: %w", path, err), removePart(part))
	}
	if err := os.Rename(part, path); err != nil {
		return stats, errors.Join(fmt.Errorf("write store: %w", err), removePart(part))
	}
	if err := durable.SyncDir(dir); err != nil {
		return stats, fmt.Errorf("write store: %w", err)
	}
	for _, run := range b.runs {
		if err := os.Remove(run); err != nil {
			return stats, fmt.Errorf("write store: %w", err)
		}
	}
	return stats, nil
}

// makeDir makes a directory durably if it is missing.
func makeDir(dir string) error {
	err := os.Mkdir(dir, 0o755)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return durable.SyncDir(filepath.Dir(dir))
}

// removePart removes a file that could not be completed.
func removePart(path string) error {
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return err
	}
	return nil
}
