package service

import (
	"example.org/slipway/gear"
	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog/gearfacts"
)

// Wake makes the workers look at the queue, as they do every few seconds.
func (s *Service) Wake() { s.wake() }

// SlotsTaken returns the number of running conversions, those of uploads included.
func (s *Service) SlotsTaken() int { return len(s.slots) }

// HushStep is the minimum time of a refusal, taken once for every HushFiles look-ups.
const (
	HushStep  = hushStep
	HushFiles = hushFiles
)

// Start marks a layer as being converted.
func (s *Service) Start(d oci.Digest) { s.start(d, &conversion{}) }

// IndexesFirst sorts jobs in the order of the queue.
func (s *Service) IndexesFirst(jobs []gearfacts.Job) { s.indexesFirst(jobs) }

// EarlyFor is how long after its push a queued layer gets its index first.
const EarlyFor = earlyFor

// The tests of profiles need these constants.
const (
	MaxProfile = maxProfile
	MaxReports = maxReports
	LastRetry  = lastRetry
	FirstRetry = firstRetry
)

// Profile exports profile.
type Profile struct{ p profile }

// Add merges a report into the profile.
func (p *Profile) Add(names []gear.Name) { p.p.add(names) }

// AddSeen merges the report of a start that was seen in part.
func (p *Profile) AddSeen(names []gear.Name) { p.p.addSeen(names) }

// Order returns the files that an image opens first.
func (p *Profile) Order() []gear.Name { return p.p.order() }

// Len returns the number of files.
func (p *Profile) Len() int { return len(p.p.files) }

// Encode returns the stored form.
func (p *Profile) Encode() []byte { return p.p.encode() }

// Decode reads the stored form.
func (p *Profile) Decode(b []byte) error { return p.p.decode(b) }
