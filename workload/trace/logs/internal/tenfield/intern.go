package tenfield

import "encoding/binary"

// Interner keeps strings that recur, such as user agents, so that they are allocated once. When two
// strings have the same place, it forgets the older one. Its size bounds the strings that it keeps
// alive.
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
	// The ends and the middle distinguish most strings without a look at all bytes.
	h := binary.LittleEndian.Uint32(b)*31 ^ binary.LittleEndian.Uint32(b[n-4:])*17 ^ binary.LittleEndian.Uint32(b[(n-4)/2:]) ^ uint32(n)
	slot := &in.slots[h*2654435761>>20]
	if *slot != string(b) {
		*slot = string(b)
	}
	return *slot
}
