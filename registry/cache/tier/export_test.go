package tier

// These are exported for tests.
var (
	KeyOf        = keyOf
	DecodeMark   = decodeMark
	DecodeFooter = decodeFooter
	ParseName    = parseName
)

// Remount retries at once what failed.
func (s *Store) Remount() { s.remount() }

// These are the limits of fills.
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

// Again encodes a decoded mark.
func (m mark) Again() []byte { return m.encode() }

// Again encodes a decoded footer.
func (f footer) Again() [footerSize]byte { return f.encode() }
