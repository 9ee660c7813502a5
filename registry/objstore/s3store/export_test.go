package s3store

import (
	"bufio"
	"io"
)

// These names are exported for the external tests.
var (
	PartSize   = partSize
	Grown      = grown
	CheckParts = checkParts
)

// These limits are exported for the external tests.
const (
	MaxParts  = maxParts
	MaxPart   = maxPart
	MinPart   = minPart
	MaxObject = maxObject
)

// DecodeState decodes the content of a state object and encodes it again.
func DecodeState(r io.Reader) (again []byte, stored int64, err error) {
	rec, err := decodeRecord(bufio.NewReader(r))
	if err != nil {
		return nil, 0, err
	}
	again, err = rec.encode()
	return again, rec.stored(), err
}

// ParseState parses a state and formats it again.
func ParseState(s string) (again, name string, ok bool) {
	id, ok := parseState(s)
	return id.String(), id.name(), ok
}
