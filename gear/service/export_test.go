package service

import (
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

// The tests of retries need these constants.
const (
	LastRetry  = lastRetry
	FirstRetry = firstRetry
)
