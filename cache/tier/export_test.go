package tier

// For tests.
var (
	KeyOf        = keyOf
	DecodeMark   = decodeMark
	DecodeFooter = decodeFooter
	ParseName    = parseName
)

// Remount tries again at once what failed.
func (s *Store) Remount() { s.remount() }

// Ahead and KeepFill are limits of fills.
const (
	Ahead    = ahead
	KeepFill = keepFill
)

// Mark encodes a mark.
func Mark(boot string, order []uint64) []byte {
	m := mark{boot: boot, order: order}
	return m.encode()
}

// Again encodes what was decoded.
func (m mark) Again() []byte { return m.encode() }

// Again encodes what was decoded.
func (f footer) Again() [footerSize]byte { return f.encode() }
