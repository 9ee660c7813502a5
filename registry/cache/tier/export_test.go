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

// Limits of fills.
const (
	Ahead      = ahead
	KeepFill   = keepFill
	SmallPiece = smallPiece
	MaxTees    = maxTees
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
