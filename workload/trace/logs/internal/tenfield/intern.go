package tenfield

import "encoding/binary"

// Interner keeps strings that come again and again, such as user agents, so that
// they are allocated once. It forgets what has the place of another: the others come
// again. Its size bounds the strings it keeps alive.
type Interner struct {
	slots [internSlots]string
}

const (
	internSlots = 1 << 12
	// maxInterned bounds each string that is kept, in bytes.
	maxInterned = 1 << 10
)

func (in *Interner) get(b []byte) string {
	n := len(b)
	if n < 4 || n > maxInterned {
		return string(b)
	}
	// Ends and the middle tell most apart without looking at all bytes.
	h := binary.LittleEndian.Uint32(b)*31 ^ binary.LittleEndian.Uint32(b[n-4:])*17 ^ binary.LittleEndian.Uint32(b[(n-4)/2:]) ^ uint32(n)
	slot := &in.slots[h*2654435761>>20]
	if *slot != string(b) {
		*slot = string(b)
	}
	return *slot
}
