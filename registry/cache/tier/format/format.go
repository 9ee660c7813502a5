// Package format defines what the SSD tier of the cache writes in addition to the bytes
// of objects: the names of files, their footers, and the mark of a clean shutdown.
package format

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"strconv"
	"strings"

	"example.org/slipway/internal/policy"
)

// ErrDamaged says that bytes are not as they were written.
var ErrDamaged = errors.New("the bytes are not those that were written")

// Castagnoli is the table of the CRC-32C checksums. Nobody may change it.
var Castagnoli = crc32.MakeTable(crc32.Castagnoli)

// FooterSize is the length of a footer in bytes.
const FooterSize = 48

// Footer follows an object's bytes in its file. So the bytes begin at the file's
// beginning, and the kernel can send them:
//
//	 0  4  "SlwC"
//	 4  4  1, the version
//	 8 16  key
//	24  8  size of the object in bytes
//	32  8  its modification time, nanoseconds since 1970
//	40  4  CRC-32C of its bytes
//	44  4  CRC-32C of the 44 bytes above
//
// Numbers are little endian.
type Footer struct {
	Key  policy.Key
	Size int64
	Mod  int64
	CRC  uint32
}

const (
	footerMagic   = "SlwC"
	footerVersion = 1
)

// Encode returns the bytes of a footer.
func (f *Footer) Encode() (b [FooterSize]byte) {
	copy(b[:], footerMagic)
	binary.LittleEndian.PutUint32(b[4:], footerVersion)
	copy(b[8:], f.Key[:])
	binary.LittleEndian.PutUint64(b[24:], uint64(f.Size))
	binary.LittleEndian.PutUint64(b[32:], uint64(f.Mod))
	binary.LittleEndian.PutUint32(b[40:], f.CRC)
	binary.LittleEndian.PutUint32(b[44:], crc32.Checksum(b[:44], Castagnoli))
	return b
}

// DecodeFooter is the reverse of Encode. Errors: ErrDamaged.
func DecodeFooter(b []byte) (Footer, error) {
	if len(b) != FooterSize || string(b[:4]) != footerMagic ||
		crc32.Checksum(b[:44], Castagnoli) != binary.LittleEndian.Uint32(b[44:]) {
		return Footer{}, fmt.Errorf("no footer: %w", ErrDamaged)
	}
	if v := binary.LittleEndian.Uint32(b[4:]); v != footerVersion {
		return Footer{}, fmt.Errorf("footer of version %d: %w", v, ErrDamaged)
	}
	f := Footer{
		Size: int64(binary.LittleEndian.Uint64(b[24:])),
		Mod:  int64(binary.LittleEndian.Uint64(b[32:])),
		CRC:  binary.LittleEndian.Uint32(b[40:]),
	}
	copy(f.Key[:], b[8:])
	return f, nil
}

// FileName returns the path of a key's file, relative to the directory.
func FileName(k policy.Key, seq uint64, size int64) string {
	h := hex.EncodeToString(k[:])
	return h[:2] + "/" + h + "-" + strconv.FormatUint(seq, 16) + "-" + strconv.FormatInt(size, 16)
}

// ParseName is the reverse of FileName, without the directory.
func ParseName(name string) (k policy.Key, seq uint64, size int64, ok bool) {
	key, rest, _ := strings.Cut(name, "-")
	num, length, _ := strings.Cut(rest, "-")
	if len(key) != 2*len(k) {
		return k, 0, 0, false
	}
	if _, err := hex.Decode(k[:], []byte(key)); err != nil {
		return k, 0, 0, false
	}
	seq, err := strconv.ParseUint(num, 16, 64)
	if err != nil {
		return k, 0, 0, false
	}
	size, err = strconv.ParseInt(length, 16, 64)
	if err != nil || size <= 0 || seq >= Doubt {
		return k, 0, 0, false
	}
	return k, seq, size, FileName(k, seq, size) == key[:2]+"/"+name
}

// Mark says that a Store was closed cleanly. It is the file "clean":
//
//	4  "SlwM"
//	4  1, the version
//	4  length of the boot's name, then the name
//	4  number of files
//	8  for each file, the least recently used first: its number; the highest bit is
//	   set if its bytes have not been read since a crash
//	4  CRC-32C of all above
//
// Numbers are little endian.
type Mark struct {
	// Boot identifies the boot of the running kernel. Order has the numbers of files,
	// with Doubt.
	Boot  string
	Order []uint64
}

const (
	markMagic   = "SlwM"
	markVersion = 1
	// Doubt is the bit of a file whose bytes have not been read since a crash.
	Doubt = 1 << 63
)

// Encode returns the bytes of a mark.
func (m *Mark) Encode() []byte {
	le := binary.LittleEndian
	b := make([]byte, 0, 20+len(m.Boot)+8*len(m.Order))
	b = append(b, markMagic...)
	b = le.AppendUint32(b, markVersion)
	b = le.AppendUint32(b, uint32(len(m.Boot)))
	b = append(b, m.Boot...)
	b = le.AppendUint32(b, uint32(len(m.Order)))
	for _, seq := range m.Order {
		b = le.AppendUint64(b, seq)
	}
	return le.AppendUint32(b, crc32.Checksum(b, Castagnoli))
}

// DecodeMark is the reverse of Encode.
func DecodeMark(b []byte) (Mark, error) {
	le := binary.LittleEndian
	if len(b) < 20 || string(b[:4]) != markMagic {
		return Mark{}, errors.New("no mark of a cache")
	}
	body, sum := b[:len(b)-4], le.Uint32(b[len(b)-4:])
	if crc32.Checksum(body, Castagnoli) != sum {
		return Mark{}, fmt.Errorf("mark of the cache: %w", ErrDamaged)
	}
	if v := le.Uint32(body[4:]); v != markVersion {
		return Mark{}, fmt.Errorf("mark of the cache has version %d", v)
	}
	n := uint64(le.Uint32(body[8:]))
	body = body[12:]
	if n > uint64(len(body)) || n+4 > uint64(len(body)) {
		return Mark{}, fmt.Errorf("mark of the cache: %w", ErrDamaged)
	}
	m := Mark{Boot: string(body[:n])}
	count := le.Uint32(body[n:])
	body = body[n+4:]
	if count > math.MaxInt32 || uint64(count)*8 != uint64(len(body)) {
		return Mark{}, fmt.Errorf("mark of the cache: %w", ErrDamaged)
	}
	for ; len(body) > 0; body = body[8:] {
		m.Order = append(m.Order, le.Uint64(body))
	}
	return m, nil
}
