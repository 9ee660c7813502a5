package tier

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"example.org/slipway/internal/policy"
)

// footerSize is the length of a footer in bytes.
const footerSize = 48

// footer stands behind an object's bytes in its file, so that the bytes begin where the
// file does and can be sent by the kernel:
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
type footer struct {
	key  policy.Key
	size int64
	mod  int64
	crc  uint32
}

const (
	footerMagic   = "SlwC"
	footerVersion = 1
)

func (f *footer) encode() (b [footerSize]byte) {
	copy(b[:], footerMagic)
	binary.LittleEndian.PutUint32(b[4:], footerVersion)
	copy(b[8:], f.key[:])
	binary.LittleEndian.PutUint64(b[24:], uint64(f.size))
	binary.LittleEndian.PutUint64(b[32:], uint64(f.mod))
	binary.LittleEndian.PutUint32(b[40:], f.crc)
	binary.LittleEndian.PutUint32(b[44:], crc32.Checksum(b[:44], castagnoli))
	return b
}

func decodeFooter(b []byte) (footer, error) {
	if len(b) != footerSize || string(b[:4]) != footerMagic ||
		crc32.Checksum(b[:44], castagnoli) != binary.LittleEndian.Uint32(b[44:]) {
		return footer{}, fmt.Errorf("no footer: %w", errDamaged)
	}
	if v := binary.LittleEndian.Uint32(b[4:]); v != footerVersion {
		return footer{}, fmt.Errorf("footer of version %d: %w", v, errDamaged)
	}
	f := footer{
		size: int64(binary.LittleEndian.Uint64(b[24:])),
		mod:  int64(binary.LittleEndian.Uint64(b[32:])),
		crc:  binary.LittleEndian.Uint32(b[40:]),
	}
	copy(f.key[:], b[8:])
	return f, nil
}
