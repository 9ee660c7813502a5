package s3store

import (
	"bufio"
	"io"
)

// Names for the tests outside.
var (
	PartSize   = partSize
	Grown      = grown
	CheckParts = checkParts
)

// Limits for the tests outside.
const (
	MaxParts  = maxParts
	MaxPart   = maxPart
	MinPart   = minPart
	MaxObject = maxObject
)

// DecodeState decodes what a state object holds and encodes it anew.
func DecodeState(r io.Reader) (again []byte, stored int64, err error) {
	rec, err := decodeRecord(bufio.NewReader(r))
	if err != nil {
		return nil, 0, err
	}
	again, err = rec.encode()
	return again, rec.stored(), err
}

// ParseState parses a state and formats it anew.
func ParseState(s string) (again, name string, ok bool) {
	id, ok := parseState(s)
	return id.String(), id.name(), ok
}
