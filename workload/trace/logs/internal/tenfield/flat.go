package tenfield

import (
	"strconv"
	"time"

	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/logs/internal/values"
)

// result is what parseFlat found.
type result int

const (
	parsed  result = iota
	short          // the bytes end within the object
	unusual        // something that encoding/json must judge
)

// These bits say which fields an object already had.
const (
	sawHost = 1 << iota
	sawDuration
	sawMethod
	sawClient
	sawURI
	sawAgent
	sawStatus
	sawWritten
	sawID
	sawTimestamp
	sawDigest
)

// parseFlat reads an object of the ten-field form if everything in it is as usual: known keys once
// each, ASCII strings with no escapes except \" \\ and \/, which most of Docker's user agents have,
// and plain numbers. It returns the length of the object. It leaves anything unusual to parseAny,
// which reads everything that parseFlat does, into the same fields, only slower.
func parseFlat(b []byte, f *fields) (int, result) {
	*f = fields{duration: trace.Unknown, written: trace.Unknown, unescaped: f.unescaped[:0]}
	seen := 0
	i := 1 // after the brace
	for n := 0; ; n++ {
		i = values.SkipSpace(b, i)
		bit, end, res := keyAt(b, i, n)
		if res != parsed {
			return 0, res
		}
		if seen&bit != 0 {
			return 0, unusual
		}
		i = values.SkipSpace(b, end)
		seen |= bit
		if str := f.text(bit); str != nil {
			*str, i, res = f.unescape(b, i)
		} else {
			i, res = f.number(bit, b, i)
		}
		if res != parsed {
			return 0, res
		}
		if i = values.SkipSpace(b, i); i >= len(b) {
			return 0, short
		}
		switch b[i] {
		case ',':
			i++
		case '}':
			return i + 1, parsed
		default:
			return 0, unusual
		}
	}
}

// keys are in the order in which they are written, by Slipway as in the IBM traces.
var keys = [...]struct {
	quoted string // with the colon
	bit    int
}{
	{`"host":`, sawHost}, {`"http.request.duration":`, sawDuration}, {`"http.request.method":`, sawMethod},
	{`"http.request.remoteaddr":`, sawClient}, {`"http.request.uri":`, sawURI}, {`"http.request.useragent":`, sawAgent},
	{`"http.response.status":`, sawStatus}, {`"http.response.written":`, sawWritten}, {`"id":`, sawID},
	{`"timestamp":`, sawTimestamp}, {`"digest":`, sawDigest},
}

// keyAt reads the key at b[i], which follows n others, and the colon. It returns the key's bit and
// the index after the colon.
func keyAt(b []byte, i, n int) (bit, end int, _ result) {
	if n < len(keys) {
		k := &keys[n]
		if end = i + len(k.quoted); end <= len(b) && string(b[i:end]) == k.quoted {
			return k.bit, end, parsed
		}
	}
	return otherKeyAt(b, i)
}

// otherKeyAt is like keyAt, for keys in any order, and space before the colon.
func otherKeyAt(b []byte, i int) (bit, end int, _ result) {
	_, end, res := plainString(b, i)
	if res != parsed {
		return 0, 0, res
	}
	colon := values.SkipSpace(b, end)
	if colon >= len(b) {
		return 0, 0, short
	}
	if b[colon] != ':' {
		return 0, 0, unusual
	}
	for k := range keys {
		if quoted := keys[k].quoted; string(b[i:end]) == quoted[:len(quoted)-1] {
			return keys[k].bit, colon + 1, parsed
		}
	}
	return 0, 0, unusual
}

// text returns the place for the string of a key, or nil for keys of numbers.
func (f *fields) text(bit int) *[]byte {
	switch bit {
	case sawHost:
		return &f.host
	case sawMethod:
		return &f.method
	case sawClient:
		return &f.client
	case sawURI:
		return &f.uri
	case sawAgent:
		return &f.agent
	case sawID:
		return &f.id
	case sawTimestamp:
		return &f.timestamp
	case sawDigest:
		return &f.digest
	}
	return nil
}

// plainString reads a string of printable ASCII without escapes at b[i] and returns
// what is between the quotes and the index after them.
func plainString(b []byte, i int) ([]byte, int, result) {
	if i >= len(b) {
		return nil, 0, short
	}
	if b[i] != '"' {
		return nil, 0, unusual
	}
	end := values.Special(b, i+1)
	switch {
	case end == len(b):
		return nil, 0, short
	case b[end] != '"':
		return nil, 0, unusual
	}
	return b[i+1 : end], end + 1, parsed
}

// unescape is like plainString, for a value, which may have simple escapes.
func (f *fields) unescape(b []byte, i int) ([]byte, int, result) {
	if i >= len(b) {
		return nil, 0, short
	}
	if b[i] != '"' {
		return nil, 0, unusual
	}
	i++
	end := values.Special(b, i)
	if end < len(b) && b[end] == '"' {
		return b[i:end], end + 1, parsed
	}
	from := len(f.unescaped)
	for ; end+1 < len(b) && b[end] == '\\'; end = values.Special(b, i) {
		c := b[end+1]
		if c != '"' && c != '\\' && c != '/' {
			return nil, 0, unusual
		}
		f.unescaped = append(append(f.unescaped, b[i:end]...), c)
		i = end + 2
	}
	switch {
	case end >= len(b) || b[end] == '\\': // the backslash is the last byte
		return nil, 0, short
	case b[end] != '"':
		return nil, 0, unusual
	}
	f.unescaped = append(f.unescaped, b[i:end]...)
	return f.unescaped[from:], end + 1, parsed
}

// number reads a plain number at b[i] into the field and returns the index after it.
func (f *fields) number(bit int, b []byte, i int) (int, result) {
	const maxDigits = 18 // fit into 64 bits
	from := i
	var whole int64
	for i < len(b) && b[i] >= '0' && b[i] <= '9' {
		whole = whole*10 + int64(b[i]-'0')
		if i++; i-from > maxDigits {
			return 0, unusual
		}
	}
	if i == len(b) {
		return 0, short
	}
	if i == from || b[from] == '0' && i-from > 1 {
		return 0, unusual
	}
	fraction := i
	if b[i] == '.' && bit == sawDuration {
		for i++; i < len(b) && b[i] >= '0' && b[i] <= '9'; i++ {
		}
		if i == len(b) {
			return 0, short
		}
		if i == fraction+1 {
			return 0, unusual
		}
	}
	switch b[i] {
	case ',', '}', ' ', '\n', '\t', '\r':
	default:
		return 0, unusual
	}
	switch bit {
	case sawStatus:
		f.status = whole
	case sawWritten:
		f.written = whole
	default:
		return i, f.seconds(b[from:fraction], b[fraction:i], whole)
	}
	return i, parsed
}

// seconds sets the duration from the digits before the point and the text from the point on.
func (f *fields) seconds(whole, fraction []byte, n int64) result {
	// Within these limits a float64 is exact enough for both ways to give the same nanosecond.
	const maxWhole, maxFraction = 6, 10
	if len(whole) <= maxWhole && len(fraction) <= maxFraction {
		nanos := int64(0)
		if len(fraction) > 0 {
			nanos = int64(values.Digits(fraction[1:]))
			for range maxFraction - len(fraction) {
				nanos *= 10
			}
		}
		f.duration = time.Duration(n*1e9 + nanos)
		return parsed
	}
	seconds, err := strconv.ParseFloat(string(whole)+string(fraction), 64)
	if err != nil {
		return unusual
	}
	f.duration = values.FromSeconds(seconds)
	return parsed
}
