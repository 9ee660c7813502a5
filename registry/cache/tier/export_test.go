package tier

// KeyOf is exported for tests.
var KeyOf = keyOf

// Remount retries at once what failed.
func (s *Store) Remount() { s.remount() }

// These are the limits of fills.
const (
	Ahead      = ahead
	KeepFill   = keepFill
	SmallPiece = smallPiece
	MaxTees    = maxTees
)
