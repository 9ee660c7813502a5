package poolfs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// The state file stores what a successor of a killed worker could not find out: the
// features of the connection, the backing ids of inodes, and the live opens. It is a log
// of 24-byte records. Each record is written before the answer to which it belongs:
//
//	0  kind u8, 3 zero bytes
//	4  CRC-32C of the other 20 bytes, u32
//	8  a u64
//	16 b u64
//
// A torn record at the end is dropped, because its request was never answered. The file
// belongs on tmpfs: it has to survive the process but not the machine, so it is never
// synced.
const recordLen = 24

var le = binary.LittleEndian

type recordKind byte

const (
	recConn    recordKind = 'C' // a: number of the connection; the first record
	recInit    recordKind = 'I' // a: revision, b: flags agreed on in INIT
	recLastID  recordKind = 'L' // a: highest backing id seen
	recBacking recordKind = 'B' // a: node, b: backing id
	recClosed  recordKind = 'b' // a: node whose backing id was closed
	recOpen    recordKind = 'O' // a: node, b: file handle
	recRelease recordKind = 'R' // b: file handle
)

// snapshot is the state that a log describes.
type snapshot struct {
	minor   uint64
	flags   uint64
	inited  bool
	lastID  uint64
	backing map[uint64]int32  // node to backing id
	opens   map[uint64]uint64 // file handle to node
}

// stateLog appends to the state file. Its caller serializes the calls.
type stateLog struct {
	path    string
	conn    uint32
	f       *os.File
	size    int64
	records int // in the file
	live    func() snapshot
	buf     [recordLen]byte
}

// compactFloor is the length of the log, in records, below which the log is not
// compacted: 1.5 MB.
const compactFloor = 65536

// openState reads the state of a connection. live returns the whole state when the log is
// rewritten. openState empties a file that belongs to another connection. If path is
// empty, the log stores nothing.
func openState(path string, conn uint32, live func() snapshot) (*stateLog, snapshot, error) {
	l := &stateLog{path: path, conn: conn, live: live}
	snap := snapshot{backing: map[uint64]int32{}, opens: map[uint64]uint64{}}
	if path == "" {
		return l, snap, nil
	}
	b, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, snap, fmt.Errorf("read the pool's state: %w", err)
	}
	n := parseState(b, conn, &snap)
	l.f, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, snap, fmt.Errorf("open the pool's state: %w", err)
	}
	l.records, l.size = n, int64(n)*recordLen
	if err = l.f.Truncate(l.size); err == nil && n == 0 {
		err = l.append(recConn, uint64(conn), 0)
	}
	if err != nil {
		l.close()
		return nil, snap, fmt.Errorf("begin the pool's state: %w", err)
	}
	l.allot(l.f)
	return l, snap, nil
}

// parseState replays the records of one connection and returns how many records are
// valid.
func parseState(b []byte, conn uint32, s *snapshot) int {
	n := 0
	for ; len(b) >= recordLen; n++ {
		r := b[:recordLen]
		if le.Uint32(r[4:]) != checksum(r) {
			break
		}
		kind, x, y := recordKind(r[0]), le.Uint64(r[8:]), le.Uint64(r[16:])
		if (n == 0) != (kind == recConn) || kind == recConn && x != uint64(conn) {
			break
		}
		s.apply(kind, x, y)
		b = b[recordLen:]
	}
	return n
}

func (s *snapshot) apply(kind recordKind, a, b uint64) {
	switch kind {
	case recInit:
		s.minor, s.flags, s.inited = a, b, true
	case recLastID:
		s.lastID = max(s.lastID, a)
	case recBacking:
		s.backing[a] = int32(b)
		s.lastID = max(s.lastID, b)
	case recClosed:
		delete(s.backing, a)
	case recOpen:
		s.opens[b] = a
	case recRelease:
		delete(s.opens, b)
	}
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(r []byte) uint32 {
	return crc32.Update(crc32.Checksum(r[:4], castagnoli), castagnoli, r[8:])
}

func putRecord(r []byte, kind recordKind, a, b uint64) {
	clear(r)
	r[0] = byte(kind)
	le.PutUint64(r[8:], a)
	le.PutUint64(r[16:], b)
	le.PutUint32(r[4:], checksum(r))
}

// append writes one record. After an error the log is as before: the next record
// overwrites a half-written one.
func (l *stateLog) append(kind recordKind, a, b uint64) error {
	if l.f == nil {
		return nil
	}
	putRecord(l.buf[:], kind, a, b)
	if _, err := l.f.WriteAt(l.buf[:], l.size); err != nil {
		return fmt.Errorf("write the pool's state: %w", err)
	}
	l.size += recordLen
	l.records++
	return nil
}

// allot allocates the disk space for a log that is about to be compacted, as far as
// possible, so that a full disk does not make an open fail.
func (l *stateLog) allot(f *os.File) {
	_ = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, (compactFloor+1)*recordLen)
}

// due reports whether the log is much longer than the state that it describes.
func (l *stateLog) due(live int) bool {
	return l.f != nil && l.records > compactFloor && l.records > 4*live
}

// compact writes the whole state to a new file, which replaces the old one atomically.
func (l *stateLog) compact() error {
	s := l.live()
	b := make([]byte, 0, recordLen*(3+len(s.backing)+len(s.opens)))
	add := func(kind recordKind, x, y uint64) {
		b = b[:len(b)+recordLen]
		putRecord(b[len(b)-recordLen:], kind, x, y)
	}
	add(recConn, uint64(l.conn), 0)
	add(recInit, s.minor, s.flags)
	add(recLastID, s.lastID, 0)
	for node, id := range s.backing {
		add(recBacking, node, uint64(id))
	}
	for fh, node := range s.opens {
		add(recOpen, node, fh)
	}
	f, err := os.OpenFile(l.path+".new", os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("compact the pool's state: %w", err)
	}
	l.allot(f)
	if _, err = f.WriteAt(b, 0); err == nil {
		err = os.Rename(f.Name(), l.path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("compact the pool's state: %w", err), f.Close(), os.Remove(f.Name()))
	}
	old := l.f
	l.f, l.size, l.records = f, int64(len(b)), len(b)/recordLen
	return old.Close()
}

func (l *stateLog) close() error {
	if l.f == nil {
		return nil
	}
	err := l.f.Close()
	l.f = nil
	return err
}
