package swiftstore

import "time"

// Exported for tests.
var (
	DecodeState   = decodeState
	EncodeState   = encodeState
	ManifestError = manifestError
	RetryAfter    = retryAfter
)

// Segment is a stored segment.
type Segment = segment

// SetClock replaces the store's clock.
func SetClock(s *Store, now func() time.Time) { s.c.now = now }

// SetPageSize makes listings come in pages of so many objects.
func SetPageSize(s *Store, n string) { s.pageSize = n }
