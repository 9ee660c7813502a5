package gearfs

import (
	"encoding/binary"
	"testing"
	"time"

	"example.org/slipway/gear"
)

// Busy makes all processors seem busy until the test ends.
func Busy(t *testing.T) {
	was := threadTimes
	t.Cleanup(func() { threadTimes = was })
	threadTimes = func() (times func() (run, wait time.Duration, err error), end func() error, err error) {
		var at time.Duration
		return func() (run, wait time.Duration, err error) {
			at += maxPaceRest
			return at, at, nil
		}, nil, nil
	}
}

// These decoders are exported for fuzzing.
var (
	ParseProfile  = parseProfile
	EncodeProfile = encodeProfile
	EncodeTable   = encodeTable
)

// ParseTable decodes a table and returns its number of files and their bytes.
func ParseTable(b []byte) (files int, bytes int64, err error) {
	t, err := parseTable(b)
	if err != nil {
		return 0, 0, err
	}
	return len(t.keys), t.bytes, nil
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

// ProfileV1 returns a profile as version 1 wrote it.
func ProfileV1(names []gear.Name) []byte {
	b := encodeProfile(ownProfile(names))[:profileHeader+32*len(names)]
	copy(b, profileMagic1)
	binary.LittleEndian.PutUint32(b[12:], profileSum(b))
	return b
}
