package file

// SetBoot makes a store take itself for one of another machine.
func (s *Store) SetBoot(id string) { s.boot = id }

// WithoutFlock makes a store take its directory for one without flock.
func (s *Store) WithoutFlock() { s.unlocked.Store(true) }

// Stretch, DecodeExtents and EncodeExtents are for the fuzzer.
type Stretch = stretch

var (
	DecodeExtents = decodeExtents
	EncodeExtents = encodeExtents
)
