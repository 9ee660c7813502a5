package tier

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"example.org/slipway/internal/policy"
)

// found is a file that an earlier Store left.
type found struct {
	k    policy.Key
	seq  uint64
	size int64
	path string
	rank int // place in the order of use, first what was used longest ago
	// doubtful tells that the bytes have to be read before they are used.
	doubtful bool
}

// mount takes the SSD into use, for the first time or again after it failed.
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

// adopt takes in a file that was there before. mu is held.
func (s *Store) adopt(fd found) {
	f := &file{s: s, path: fd.path, seq: fd.seq, size: fd.size}
	f.refs.Store(1)
	f.seal.doubtful = fd.doubtful
	// The bytes are there, whether there is room or not.
	s.ssd.used += fd.size
	s.ssd.most = max(s.ssd.most, s.ssd.used)
	if s.objs[fd.k] != nil || !s.two.SSD().Add(fd.k, fd.size, 1) {
		s.discard(f)
		return
	}
	s.tick++
	s.objs[fd.k] = &entry{k: fd.k, size: fd.size, at: policy.SSD, file: f, used: s.tick}
}

// unmount notes the order of use and that all is in order.
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
		m := mark{boot: bootID()}
		for _, e := range list {
			seq := e.file.seq
			if e.file.seal.doubtful && !e.file.seal.known.Load() {
				seq |= doubt // not read since a crash
			}
			m.order = append(m.order, seq)
		}
		s.mu.Unlock()
		if err := os.WriteFile(filepath.Join(d.dir, markName), m.encode(), 0o600); err != nil {
			d.log.Error("the order of the cache's files could not be written", "dir", d.dir, "error", err)
		}
	}
	if err := d.unlock(); err != nil {
		d.log.Error("the cache's directory could not be closed", "dir", d.dir, "error", err)
	}
}

// load takes the directory and lists the files in it, in the order in which they should
// be taken in. The mark is gone when it returns without an error. d.mu is held.
func (d *disk) load() (list []found, clean bool, err error) {
	if err := d.prepare(); err != nil {
		return nil, false, err
	}
	m, clean := d.takeMark()
	if err := errors.Join(d.removeMark(), d.emptyTmp()); err != nil {
		return nil, false, err
	}
	rank := make(map[uint64]int, len(m.order))
	for i, seq := range m.order {
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
			fd.rank, fd.doubtful = rank[fd.seq|doubt], true
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
			fd.rank = len(m.order) + 1
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

// newest leaves the last one written of several files of a key, and removes the others.
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
		k, seq, size, ok := parseName(name)
		if !ok || !strings.HasPrefix(name, sub) {
			d.log.Warn("a file that is not the cache's is in its directory", "file", filepath.Join(d.dir, sub, name))
			continue
		}
		list = append(list, found{k: k, seq: seq, size: size, path: filepath.Join(d.dir, sub, name)})
	}
	return list, nil
}

// emptyTmp removes what was never finished.
func (d *disk) emptyTmp() error {
	tmp := filepath.Join(d.dir, tmpDir)
	if err := os.RemoveAll(tmp); err != nil {
		return err
	}
	return os.Mkdir(tmp, 0o700)
}

// takeMark reads the mark of a shutdown in order. There is none if the machine was started
// since: nothing here is synced, so that a power cut may have taken bytes and left names.
func (d *disk) takeMark() (mark, bool) {
	b, err := os.ReadFile(filepath.Join(d.dir, markName))
	if err != nil {
		return mark{}, false
	}
	m, err := decodeMark(b)
	if err != nil {
		d.log.Warn("the order of the cache's files is unreadable", "error", err)
		return mark{}, false
	}
	return m, m.boot != "" && m.boot == bootID()
}

func (d *disk) removeMark() error {
	err := os.Remove(filepath.Join(d.dir, markName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// bootID is that of the running kernel; "" if it does not tell.
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return string(bytes.TrimSpace(b))
}

// mark says that a Store was closed in order. It is the file "clean":
//
//	4  "SlwM"
//	4  1, the version
//	4  length of the boot's name, then the name
//	4  number of files, then for each, 8 bytes, its number, first what was used longest ago;
//	   the highest bit is set if its bytes have not been read since a crash
//	4  CRC-32C of all above
//
// Numbers are little endian.
type mark struct {
	boot  string
	order []uint64
}

const (
	markMagic   = "SlwM"
	markVersion = 1
	doubt       = 1 << 63
)

func (m *mark) encode() []byte {
	le := binary.LittleEndian
	b := make([]byte, 0, 20+len(m.boot)+8*len(m.order))
	b = append(b, markMagic...)
	b = le.AppendUint32(b, markVersion)
	b = le.AppendUint32(b, uint32(len(m.boot)))
	b = append(b, m.boot...)
	b = le.AppendUint32(b, uint32(len(m.order)))
	for _, seq := range m.order {
		b = le.AppendUint64(b, seq)
	}
	return le.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

func decodeMark(b []byte) (mark, error) {
	le := binary.LittleEndian
	if len(b) < 20 || string(b[:4]) != markMagic {
		return mark{}, errors.New("no mark of a cache")
	}
	body, sum := b[:len(b)-4], le.Uint32(b[len(b)-4:])
	if crc32.Checksum(body, castagnoli) != sum {
		return mark{}, fmt.Errorf("mark of the cache: %w", errDamaged)
	}
	if v := le.Uint32(body[4:]); v != markVersion {
		return mark{}, fmt.Errorf("mark of the cache has version %d", v)
	}
	n := uint64(le.Uint32(body[8:]))
	body = body[12:]
	if n > uint64(len(body)) || n+4 > uint64(len(body)) {
		return mark{}, fmt.Errorf("mark of the cache: %w", errDamaged)
	}
	m := mark{boot: string(body[:n])}
	count := le.Uint32(body[n:])
	body = body[n+4:]
	if count > math.MaxInt32 || uint64(count)*8 != uint64(len(body)) {
		return mark{}, fmt.Errorf("mark of the cache: %w", errDamaged)
	}
	for ; len(body) > 0; body = body[8:] {
		m.order = append(m.order, le.Uint64(body))
	}
	return m, nil
}
