package engine

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
)

// A logMark records how much of SQLite's log is synced.
//
// SQLite reads its log up to the first frame with a wrong checksum. After a power cut
// that is the end of what was synced, as it should be. But a single flipped bit in the
// middle ends the log there too, and every later change is lost without a word.
//
// A mark distinguishes the two cases. It is a small file that says how many frames of
// which round of the log are synced. It is written after each synced commit, before any
// caller learns of the commit. It is not synced itself: an old mark claims less, and its
// claim stays true until the log begins anew with other salts.
//
// The file has 36 bytes: markMagic, the two salts of the log (8), the number of frames
// (8, big endian), and the CRC-32 of all that (4, big endian).
type logMark struct {
	file, index *os.File // the mark, and SQLite's index of the log
	seen        logPlace // the end of the log after the last commit
}

// logPlace is a number of frames in a round of the log.
type logPlace struct {
	salts  [8]byte
	frames uint64
}

const (
	markSuffix   = "-synced"
	markMagic    = "slipway-synced 1"
	markSize     = len(markMagic) + 8 + 8 + 4
	damageSuffix = "-damaged"
)

// A LogDamagedError says that a catalogue's log is damaged before the end of what was
// synced. If the catalogue were opened, the changes after the damage would be lost.
type LogDamagedError struct {
	Log, Copy, Mark string // files
	// Good frames precede the damage. Synced frames should be there.
	Good, Synced uint64
}

func (e *LogDamagedError) Error() string {
	return fmt.Sprintf("the log %s is damaged: %d of %d pages that were written to it can be read, and changes that were acknowledged are behind them; "+
		"a copy is in %s; restore a backup into a new directory, or remove %s to go on without these changes",
		e.Log, e.Good, e.Synced, e.Copy, e.Mark)
}

// checkLog compares the log of the catalogue at path with its mark. It must be called
// before SQLite reads the log. Errors: *LogDamagedError.
func checkLog(path string) error {
	m, err := readMark(path + markSuffix)
	if err != nil || m.frames == 0 {
		return err
	}
	log := path + "-wal"
	f, err := os.Open(log)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	good, err := goodFrames(f, m)
	if err != nil || good >= m.frames {
		return err
	}
	damaged := &LogDamagedError{Log: log, Copy: log + damageSuffix, Mark: path + markSuffix, Good: good, Synced: m.frames}
	return errors.Join(damaged, keepCopy(f, damaged.Copy))
}

// readMark reads a mark. A missing or damaged mark claims nothing.
func readMark(path string) (logPlace, error) {
	b, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return logPlace{}, err
	}
	sum := markSize - 4
	if len(b) != markSize || !bytes.HasPrefix(b, []byte(markMagic)) || crc32.ChecksumIEEE(b[:sum]) != binary.BigEndian.Uint32(b[sum:]) {
		return logPlace{}, nil
	}
	b = b[len(markMagic):]
	return logPlace{[8]byte(b), binary.BigEndian.Uint64(b[8:])}, nil
}

func (p logPlace) encode() []byte {
	b := append([]byte(markMagic), p.salts[:]...)
	b = binary.BigEndian.AppendUint64(b, p.frames)
	return binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
}

// Sizes of the log's parts: https://www.sqlite.org/fileformat2.html#walformat
const (
	logHeader   = 32
	frameHeader = 24
)

// goodFrames counts the whole frames at the beginning of a log, up to the number in the
// mark. It returns that number for an empty log, and for a log of another round.
func goodFrames(log io.Reader, m logPlace) (uint64, error) {
	var h [logHeader]byte
	if _, err := io.ReadFull(log, h[:]); err == io.EOF {
		return m.frames, nil
	} else if err != nil {
		return 0, ignoreEnd(err)
	}
	var order binary.ByteOrder = binary.LittleEndian
	if h[3]&1 == 1 {
		order = binary.BigEndian
	}
	sum := frameSum{order: order}
	sum.add(h[:24])
	if !sum.is(h[24:]) {
		return 0, nil // a crash cannot tear a header, which lies within one sector
	}
	if [8]byte(h[16:24]) != m.salts {
		return m.frames, nil
	}
	frame := make([]byte, frameHeader+int(binary.BigEndian.Uint32(h[8:])))
	for n := range m.frames {
		if _, err := io.ReadFull(log, frame); err != nil {
			return n, ignoreEnd(err)
		}
		sum.add(frame[:8])
		sum.add(frame[frameHeader:])
		if !sum.is(frame[16:]) || [8]byte(frame[8:16]) != m.salts {
			return n, nil
		}
	}
	return m.frames, nil
}

// ignoreEnd drops the error that says that a log is too short.
func ignoreEnd(err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return nil
	}
	return err
}

// frameSum is the checksum of a log. It is cumulative over the frames.
type frameSum struct {
	order binary.ByteOrder
	a, b  uint32
}

// add adds bytes to the checksum. Their number is a multiple of eight.
func (s *frameSum) add(p []byte) {
	for ; len(p) >= 8; p = p[8:] {
		s.a += s.order.Uint32(p) + s.b
		s.b += s.order.Uint32(p[4:]) + s.a
	}
}

// is reports whether p begins with the checksum.
func (s *frameSum) is(p []byte) bool {
	return s.a == binary.BigEndian.Uint32(p) && s.b == binary.BigEndian.Uint32(p[4:])
}

// keepCopy copies a damaged log, unless there is a copy already. The first copy has the
// most.
func keepCopy(log *os.File, path string) error {
	dst, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("keep a copy of the log: %w", err)
	}
	_, err = io.Copy(dst, io.NewSectionReader(log, 0, 1<<62))
	if err = errors.Join(err, dst.Sync(), dst.Close()); err != nil {
		return fmt.Errorf("keep a copy of the log: %w", errors.Join(err, os.Remove(path)))
	}
	return nil
}

// startMark begins the mark of a catalogue that is open and whose log is synced. The mark
// is synced once, so that a power cut cannot bring back the mark of a removed log.
func startMark(path string) (*logMark, error) {
	index, err := os.Open(path + "-shm")
	if err != nil {
		return nil, err
	}
	m := &logMark{index: index}
	if m.file, err = os.OpenFile(path+markSuffix, os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return nil, errors.Join(err, index.Close())
	}
	if m.seen, err = m.place(); err == nil {
		_, err = m.file.WriteAt(m.seen.encode(), 0)
	}
	if err = errors.Join(err, m.file.Truncate(int64(markSize)), m.file.Sync()); err != nil {
		return nil, errors.Join(err, m.close())
	}
	return m, nil
}

// place reads the end of the log from its index:
// https://www.sqlite.org/walformat.html#the_wal_index_header
func (m *logMark) place() (logPlace, error) {
	var b [48]byte
	if _, err := m.index.ReadAt(b[:], 0); err != nil {
		return logPlace{}, fmt.Errorf("read the index of the log: %w", err)
	}
	return logPlace{[8]byte(b[32:40]), uint64(binary.NativeEndian.Uint32(b[16:]))}, nil
}

// committed notes that a commit has ended. synced says that the commit was synced if it
// wrote anything. If the mark cannot be written, it stays as it is, and its claim stays
// true.
func (m *logMark) committed(synced bool) {
	p, err := m.place()
	if err != nil || p == m.seen {
		return
	}
	m.seen = p
	if synced {
		_, _ = m.file.WriteAt(p.encode(), 0)
	}
}

// close closes the files. The index, like the catalogue's file, must not be closed before
// SQLite's own descriptors of it.
func (m *logMark) close() error {
	if m == nil {
		return nil
	}
	return errors.Join(m.file.Close(), m.index.Close())
}
