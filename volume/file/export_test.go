package file

import "time"

// SetBoot makes a store take itself for one of another machine.
func (s *Store) SetBoot(id string) { s.boot = id }

// WithoutFlock makes a store take its directory for one without flock.
func (s *Store) WithoutFlock() { s.unlocked.Store(true) }

// SetTimeout changes Options.Timeout. Nothing may be under way that
// a method began.
func (s *Store) SetTimeout(d time.Duration) { s.io.timeout = d }

// SomeExtents is a list, for the fuzzer.
func SomeExtents() []Stretch { return []stretch{{0, 1}, {5, 300}, {999, 1}} }

// Stretch, DecodeExtents and EncodeExtents are for the fuzzer.
type Stretch = stretch

var (
	DecodeExtents = decodeExtents
	EncodeExtents = encodeExtents
)
