package service

import (
	"example.org/slipway/gear"
	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
)

// Wake has the workers look at the queue, as they do every few seconds.
func (s *Service) Wake() { s.wake() }

// SlotsTaken counts the conversions at work, those of uploads included.
func (s *Service) SlotsTaken() int { return len(s.slots) }

// HushStep is the floor of the time that a refusal takes, HushFiles for how many
// look-ups.
const (
	HushStep  = hushStep
	HushFiles = hushFiles
)

// Start has a layer count as being converted.
func (s *Service) Start(d oci.Digest) { s.start(d, &conversion{}) }

// IndexesFirst sorts jobs as the queue does.
func (s *Service) IndexesFirst(jobs []catalog.GearJob) { s.indexesFirst(jobs) }

// EarlyFor is how long a layer of the queue gets its index first.
const EarlyFor = earlyFor

// What the tests of profiles need.
const (
	MaxProfile = maxProfile
	MaxReports = maxReports
	LastRetry  = lastRetry
	FirstRetry = firstRetry
)

// Profile is a profile.
type Profile struct{ p profile }

// Add merges a report.
func (p *Profile) Add(names []gear.Name) { p.p.add(names) }

// Order returns what is opened first.
func (p *Profile) Order() []gear.Name { return p.p.order() }

// Len counts the files.
func (p *Profile) Len() int { return len(p.p.files) }

// Encode returns the stored form.
func (p *Profile) Encode() []byte { return p.p.encode() }

// Decode reads the stored form.
func (p *Profile) Decode(b []byte) error { return p.p.decode(b) }
