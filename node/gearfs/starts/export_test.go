package starts

import (
	"encoding/binary"

	"example.org/slipway/gear"
)

// ParseEvent is exported for fuzzing.
var ParseEvent = parseEvent

// V1 returns a profile as version 1 wrote it.
func V1(names []gear.Name) []byte {
	p := Own(names)
	b := p.Encode()[:profileHeader+32*len(names)]
	copy(b, profileMagic1)
	binary.LittleEndian.PutUint32(b[12:], profileSum(b))
	return b
}
