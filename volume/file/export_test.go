package file

import "time"

// SetBoot makes a store act as one of another machine.
func (s *Store) SetBoot(id string) { s.boot = id }

// WithoutFlock makes a store act as if its directory had no flock.
func (s *Store) WithoutFlock() { s.unlocked.Store(true) }

// SetTimeout changes Options.Timeout. No operation that a method began may be running.
func (s *Store) SetTimeout(d time.Duration) { s.io.timeout = d }

// SomeExtents returns a list for the fuzzer.
func SomeExtents() []Stretch { return []stretch{{0, 1}, {5, 300}, {999, 1}} }

// Stretch, DecodeExtents and EncodeExtents are for the fuzzer.
type Stretch = stretch

var (
	DecodeExtents = decodeExtents
	EncodeExtents = encodeExtents
)
