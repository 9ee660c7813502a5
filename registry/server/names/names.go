// Package names reads and writes lists of the names of files in requests and answers.
package names

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"sync"

	"example.org/slipway/oci"
	"example.org/slipway/registry/server/edge"
)

// buffer holds the names of a list of usual length.
type buffer struct {
	names [4 * perBlock][32]byte
	block [perBlock * 32]byte
}

var buffers = sync.Pool{New: func() any { return new(buffer) }}

// List is the list of names in a request.
type List struct {
	Names [][32]byte
	// Profile, if not empty, stands for the names of an image's profile.
	Profile oci.Digest
	// Part says that the list has only a part of the existing names.
	Part bool
	// Binary says that the list was not JSON.
	Binary bool
	// buf is the buffer in which Names may lie.
	buf *buffer
}

// Release returns the list's buffer. The names must not be used afterwards.
func (l *List) Release() {
	if l.buf != nil {
		buffers.Put(l.buf)
		l.buf, l.Names = nil, nil
	}
}

// Parse parses the name of a file: "sha256:" and 64 lower-case hex digits.
func Parse[T string | []byte](s T) (name [32]byte, ok bool) {
	const prefix = "sha256:"
	if len(s) != len(prefix)+2*len(name) || string(s[:len(prefix)]) != prefix {
		return name, false
	}
	s = s[len(prefix):]
	for i := range name {
		hi, lo := hexDigit(s[2*i]), hexDigit(s[2*i+1])
		if hi > 15 || lo > 15 {
			return [32]byte{}, false
		}
		name[i] = hi<<4 | lo
	}
	return name, true
}

// hexDigit returns the value of a hex digit. For any other byte it returns more than 15.
func hexDigit(c byte) byte {
	switch {
	case c >= '0' && c <= '9':
		return c - '0'
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10
	}
	return 255
}

// Append appends a name in the form that Parse reads.
func Append(b []byte, name [32]byte) []byte {
	return hex.AppendEncode(append(b, "sha256:"...), name[:])
}

// Invalid returns the error for what is not the name of a file.
func Invalid(s string) error {
	return oci.Errorf(oci.CodeDigestInvalid, "%.80q is not a file's name: sha256, a colon, and 64 digits of lower-case hex", s)
}

func errTooMany(most int) error {
	return &oci.Error{Code: oci.CodeSizeInvalid, Status: http.StatusRequestEntityTooLarge,
		Message: "the list has more than " + strconv.Itoa(most) + " names; split it into several requests", Detail: map[string]int{"names": most}}
}

// perBlock is how many names are read at once. They take 32 KiB. A buffer for four times
// as many is kept for the next request.
const perBlock = 1024

// ReadBinary reads a list with 32 bytes for each name. size is the size of the list in
// bytes, negative if unknown. It takes memory as the names come, whatever size says. The
// list has to be released.
func ReadBinary(r io.Reader, size int64, most int) (List, error) {
	l := List{Binary: true, buf: buffers.Get().(*buffer)}
	var err error
	if l.Names, err = readBinary(r, size, most, l.buf); err != nil {
		l.Release()
	}
	return l, err
}

// readBinary is ReadBinary with a buffer, in which the result may lie.
func readBinary(r io.Reader, size int64, most int, b *buffer) ([][32]byte, error) {
	const width = int64(len([32]byte{}))
	if size > int64(most)*width {
		return nil, errTooMany(most)
	}
	names := b.names[:0]
	for {
		n, err := io.ReadFull(r, b.block[:])
		if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
			return nil, edge.BrokeOff(err)
		}
		if len(names)+n/int(width) > most {
			return nil, errTooMany(most)
		}
		if n%int(width) != 0 {
			return nil, oci.Errorf(oci.CodeSizeInvalid, "the list is not of whole names of %d bytes each", width)
		}
		for p := b.block[:n]; len(p) > 0; p = p[width:] {
			names = append(names, [32]byte(p))
		}
		if err != nil {
			return names, nil
		}
	}
}

// ReadJSON reads {"names":[...]} or {"profile":"..."}. size is the size of the body in
// bytes, negative if unknown.
func ReadJSON(r io.Reader, size int64, most int) (List, error) {
	limit := int64(most)*80 + 4096 // a name has 74 bytes with its quotes and comma
	if size > limit {
		return List{}, errTooMany(most)
	}
	b, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return List{}, edge.BrokeOff(err)
	}
	if int64(len(b)) > limit {
		return List{}, errTooMany(most)
	}
	var body struct {
		Names   *list       `json:"names"`
		Profile *oci.Digest `json:"profile"`
		Part    bool        `json:"part"`
	}
	if err := json.Unmarshal(b, &body); err != nil {
		var e *oci.Error
		if errors.As(err, &e) {
			return List{}, e
		}
		return List{}, errBody
	}
	switch {
	case (body.Names == nil) == (body.Profile == nil):
		return List{}, errBody
	case body.Profile != nil:
		return List{Profile: *body.Profile}, oci.CheckDigest(*body.Profile)
	case len(*body.Names) > most:
		return List{}, errTooMany(most)
	}
	return List{Names: *body.Names, Part: body.Part}, nil
}

var errBody = &oci.Error{Code: oci.CodeUnsupported, Status: http.StatusBadRequest,
	Message: `the body is not what this endpoint takes: {"names":["sha256:..."]} or {"profile":"<manifest digest>"}`}

// list decodes a list of names without allocating a string for each.
type list [][32]byte

// UnmarshalJSON implements json.Unmarshaler. The caller has checked that b is JSON.
func (l *list) UnmarshalJSON(b []byte) error {
	if len(b) == 0 || b[0] != '[' {
		return errBody
	}
	*l = (*l)[:0] // of two members with the same name, the last counts
	const quoted = len(`"sha256:"`) + 64
	for b = b[1:]; ; b = b[quoted:] {
		for len(b) > 0 && (b[0] == ' ' || b[0] == '\t' || b[0] == '\r' || b[0] == '\n' || b[0] == ',') {
			b = b[1:]
		}
		if len(b) == 0 || b[0] == ']' {
			return nil
		}
		if len(b) < quoted || b[0] != '"' || b[quoted-1] != '"' {
			return Invalid(string(b[:min(len(b), quoted)]))
		}
		name, ok := Parse(b[1 : quoted-1])
		if !ok {
			return Invalid(string(b[1 : quoted-1]))
		}
		*l = append(*l, name)
	}
}

// AppendJSON appends {"<key>":["sha256:...",...] to b, without the closing brace.
func AppendJSON(b []byte, key string, names [][32]byte) []byte {
	b = append(append(append(b, `{"`...), key...), `":[`...)
	for i, name := range names {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(Append(append(b, '"'), name), '"')
	}
	return append(b, ']')
}
