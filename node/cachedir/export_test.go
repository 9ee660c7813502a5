package cachedir

import "example.org/slipway/gear"

// ParseState decodes a state. It is exported for fuzzing.
func ParseState(b []byte) (durable uint32, err error) {
	s, err := parseState(b)
	return s.Durable, err
}

// ParseMap decodes a bitmap and encodes it again.
func ParseMap(b []byte) ([]byte, error) {
	m, err := parseMap(b)
	if err != nil {
		return nil, err
	}
	return m.append(nil), nil
}

// NewMap encodes an empty bitmap.
func NewMap(f gear.File) []byte {
	return mapRecord{f.Name, f.Size, chunksSum(f.Chunks), make(bitmap, (len(f.Chunks)+7)/8)}.append(nil)
}

// Counted compares the counters with the content of the directory, and returns all that is counted.
func (d *Dir) Counted() (files map[gear.Name]int64, total int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	files = map[gear.Name]int64{}
	d.files.each(func(_ uint32, e *entry) bool {
		files[e.name] = int64(e.blocks) * 512
		return true
	})
	return files, d.used + d.partial + d.reserved + d.late
}
