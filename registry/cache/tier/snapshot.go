package tier

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"example.org/slipway/internal/policy"
	"example.org/slipway/registry/cache/tier/format"
)

// found is a file that an earlier Store left.
type found struct {
	k    policy.Key
	seq  uint64
	size int64
	path string
	rank int // position in the order of use; the least recently used is first
	// doubtful says that the bytes have to be read before they are used.
	doubtful bool
}

// mount starts to use the SSD, for the first time or again after it failed.
func (s *Store) mount() error {
	d := s.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.state.Load() == aside {
		err := d.prepare()
		if err == nil && d.state.CompareAndSwap(aside, inUse) {
			d.log.Info("the cache's SSD is in use again", "dir", d.dir)
		}
		return err
	}
	list, clean, err := d.load()
	if err != nil {
		d.errors.Add(1)
		if !d.said {
			d.log.Error("the cache's SSD cannot be used and is left alone for a while", "dir", d.dir, "error", err)
			d.said = true
		}
		return err
	}
	d.said = false
	s.mu.Lock()
	for _, fd := range list {
		s.adopt(fd)
	}
	s.mu.Unlock()
	d.state.Store(inUse)
	s.reap()
	d.log.Info("the cache's SSD is in use", "dir", d.dir, "files", len(list), "clean", clean)
	return nil
}

// adopt adds a file that was there before. mu is held.
func (s *Store) adopt(fd found) {
	f := &file{s: s, path: fd.path, seq: fd.seq, size: fd.size}
	f.refs.Store(1)
	f.seal.doubtful = fd.doubtful
	// The bytes are there whether or not there is room for them.
	s.ssd.used += fd.size
	s.ssd.most = max(s.ssd.most, s.ssd.used)
	if s.objs[fd.k] != nil || !s.two.SSD().Add(fd.k, fd.size, 1) {
		s.discard(f)
		return
	}
	s.tick++
	s.objs[fd.k] = &entry{k: fd.k, size: fd.size, at: policy.SSD, file: f, used: s.tick}
}

// unmount writes the mark of a clean shutdown, with the order of use.
func (s *Store) unmount() {
	d := s.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.state.Load() != unmounted {
		var list []*entry
		s.mu.Lock()
		for _, e := range s.objs {
			if e.file != nil {
				list = append(list, e)
			}
		}
		slices.SortFunc(list, func(a, b *entry) int { return cmp.Compare(a.used, b.used) })
		m := format.Mark{Boot: bootID()}
		for _, e := range list {
			seq := e.file.seq
			if e.file.seal.doubtful && !e.file.seal.known.Load() {
				seq |= format.Doubt // not read since a crash
			}
			m.Order = append(m.Order, seq)
		}
		s.mu.Unlock()
		if err := os.WriteFile(filepath.Join(d.dir, markName), m.Encode(), 0o600); err != nil {
			d.log.Error("the order of the cache's files could not be written", "dir", d.dir, "error", err)
		}
	}
	if err := d.unlock(); err != nil {
		d.log.Error("the cache's directory could not be closed", "dir", d.dir, "error", err)
	}
}

// load takes over the directory and lists its files in the order in which to adopt them.
// If it returns no error, the mark is removed. d.mu is held.
func (d *disk) load() (list []found, clean bool, err error) {
	if err := d.prepare(); err != nil {
		return nil, false, err
	}
	m, clean := d.takeMark()
	if err := errors.Join(d.removeMark(), d.emptyTmp()); err != nil {
		return nil, false, err
	}
	rank := make(map[uint64]int, len(m.Order))
	for i, seq := range m.Order {
		rank[seq] = i + 1
	}
	subs, err := os.ReadDir(d.dir)
	if err != nil {
		return nil, false, err
	}
	for _, sub := range subs {
		if _, err := hex.DecodeString(sub.Name()); err != nil || len(sub.Name()) != 2 || !sub.IsDir() {
			continue
		}
		if list, err = d.scan(list, sub.Name()); err != nil {
			return nil, false, err
		}
	}
	last := uint64(0)
	trusted := list[:0]
	for _, fd := range list {
		last = max(last, fd.seq)
		fd.rank = rank[fd.seq]
		if fd.rank == 0 {
			fd.rank, fd.doubtful = rank[fd.seq|format.Doubt], true
		}
		switch {
		case fd.rank > 0:
			fd.doubtful = fd.doubtful || !clean
		case clean: // it was given up and could not be removed
			if err := os.Remove(fd.path); err != nil {
				return nil, false, err
			}
			continue
		default:
			fd.rank = len(m.Order) + 1
		}
		trusted = append(trusted, fd)
	}
	d.seq.Store(max(d.seq.Load(), last))
	slices.SortFunc(trusted, func(a, b found) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.seq, b.seq))
	})
	list, err = d.newest(trusted)
	return list, clean, err
}

// newest keeps the last written one of several files of a key, and removes the others.
func (d *disk) newest(list []found) ([]found, error) {
	of := make(map[policy.Key]uint64, len(list))
	for _, fd := range list {
		of[fd.k] = max(of[fd.k], fd.seq)
	}
	kept := list[:0]
	for _, fd := range list {
		if of[fd.k] == fd.seq {
			kept = append(kept, fd)
		} else if err := os.Remove(fd.path); err != nil {
			return nil, err
		}
	}
	return kept, nil
}

// scan adds the files of a directory by their names alone.
func (d *disk) scan(list []found, sub string) ([]found, error) {
	h, err := os.Open(filepath.Join(d.dir, sub))
	if err != nil {
		return nil, err
	}
	names, err := h.Readdirnames(-1)
	if err = errors.Join(err, h.Close()); err != nil {
		return nil, err
	}
	for _, name := range names {
		k, seq, size, ok := format.ParseName(name)
		if !ok || !strings.HasPrefix(name, sub) {
			d.log.Warn("a file that is not the cache's is in its directory", "file", filepath.Join(d.dir, sub, name))
			continue
		}
		list = append(list, found{k: k, seq: seq, size: size, path: filepath.Join(d.dir, sub, name)})
	}
	return list, nil
}

// emptyTmp removes files that were never finished.
func (d *disk) emptyTmp() error {
	tmp := filepath.Join(d.dir, tmpDir)
	if err := os.RemoveAll(tmp); err != nil {
		return err
	}
	return os.Mkdir(tmp, 0o700)
}

// takeMark reads the mark of a clean shutdown. A mark from before the last boot does not
// count. Files are not synced, so a power cut may have lost bytes and kept names.
func (d *disk) takeMark() (format.Mark, bool) {
	b, err := os.ReadFile(filepath.Join(d.dir, markName))
	if err != nil {
		return format.Mark{}, false
	}
	m, err := format.DecodeMark(b)
	if err != nil {
		d.log.Warn("the order of the cache's files is unreadable", "error", err)
		return format.Mark{}, false
	}
	return m, m.Boot != "" && m.Boot == bootID()
}

func (d *disk) removeMark() error {
	err := os.Remove(filepath.Join(d.dir, markName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// bootID identifies the boot of the running kernel. It returns "" if the kernel does not
// say.
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return string(bytes.TrimSpace(b))
}
