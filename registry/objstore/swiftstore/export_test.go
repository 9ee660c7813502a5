package swiftstore

import (
	"net/http"
	"time"
)

// These are exported for tests.
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

// SetPageSize makes the pages of listings hold n objects.
func SetPageSize(s *Store, n string) { s.pageSize = n }

// PastStray wraps a transport in the same way as a store does.
func PastStray(rt http.RoundTripper) http.RoundTripper { return pastStray{rt} }
