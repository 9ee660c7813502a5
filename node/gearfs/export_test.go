package gearfs

import (
	"testing"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/node/gearfs/pace"
)

// Busy makes all processors seem busy until the test ends.
func Busy(t *testing.T) {
	was := pace.ThreadTimes
	t.Cleanup(func() { pace.ThreadTimes = was })
	pace.ThreadTimes = func() (times func() (run, wait time.Duration, err error), end func() error, err error) {
		var at time.Duration
		return func() (run, wait time.Duration, err error) {
			at += time.Second
			return at, at, nil
		}, nil, nil
	}
}

// ParseRecord decodes a record and returns its chain and index.
func ParseRecord(b []byte) (chain string, index gear.Name, err error) {
	r, err := parseRecord(b)
	if err != nil {
		return "", index, err
	}
	index, _ = parseHexName(r.Index)
	return r.Chain, index, nil
}

// Covers examines up to looks files of an image. It returns what is known then, and where it would
// continue.
func (s *Service) Covers(chain string, removed int64, looks int) (complete bool, at int) {
	img := s.image(chain)
	complete = s.covers(img, removed, looks)
	return complete, img.st.coverage.at
}
