package wire

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
)

// errMalformed is the error for an answer that is not HTTP.
var errMalformed = errors.New("malformed answer")

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errMalformed, fmt.Sprintf(format, args...))
}

// head is the part of an answer's head that says how to read the rest.
type head struct {
	// length is the length of the body, or -1 if the head does not give it.
	length  int64
	chunked bool
	// keep says that the connection can be used again. old says that the version is 1.0.
	keep, old bool
	// bytes is how many bytes of heads have been read.
	bytes int
}

// read reads the head of an answer. It skips the heads of interim answers.
func (h *head) read(r *bufio.Reader) (Answer, error) {
	for {
		a, err := h.one(r)
		if err != nil || a.Status >= 200 {
			return a, err
		}
		if a.Status == http.StatusSwitchingProtocols {
			return a, malformed("the server switches protocols")
		}
	}
}

// one reads a single head.
func (h *head) one(r *bufio.Reader) (a Answer, err error) {
	h.length, h.chunked = -1, false
	line, err := h.line(r)
	if err != nil {
		return a, err
	}
	if a.Status, h.keep, err = statusLine(line); err != nil {
		return a, err
	}
	h.old = !h.keep
	for {
		if line, err = h.line(r); err != nil {
			return a, err
		}
		if len(line) == 0 {
			break
		}
		if err := h.field(&a, line); err != nil {
			return a, err
		}
	}
	if h.chunked { // RFC 9112, 6.3: the length is ignored
		h.length = -1
		if h.old {
			return a, malformed("HTTP/1.0 has no chunks")
		}
	}
	return a, nil
}

// line reads a line and returns it without its end. The line is valid until the next
// read.
func (h *head) line(r *bufio.Reader) ([]byte, error) {
	line, err := r.ReadSlice('\n')
	if h.bytes += len(line); h.bytes > maxHead {
		return nil, malformed("the head has more than %d bytes", maxHead)
	}
	if errors.Is(err, bufio.ErrBufferFull) {
		return nil, malformed("a line of the head has more than %d bytes", bufferSize)
	}
	if err != nil {
		return nil, err
	}
	line = line[:len(line)-1]
	return bytes.TrimSuffix(line, []byte("\r")), nil
}

// statusLine parses a line such as "HTTP/1.1 200 OK". keep is the default of the HTTP
// version.
func statusLine(line []byte) (status int, keep bool, err error) {
	const prefix = "HTTP/1."
	if len(line) < len(prefix)+5 || string(line[:len(prefix)]) != prefix || line[len(prefix)] > '1' || line[len(prefix)] < '0' || line[len(prefix)+1] != ' ' {
		return 0, false, malformed("the first line is no status line of HTTP/1")
	}
	code := line[len(prefix)+2:]
	if len(code) > 3 && code[3] != ' ' {
		return 0, false, malformed("the status has more than three digits")
	}
	for _, c := range code[:3] {
		if c < '0' || c > '9' {
			return 0, false, malformed("the status is no number")
		}
		status = 10*status + int(c-'0')
	}
	if status < 100 {
		return 0, false, malformed("the status is below 100")
	}
	return status, line[len(prefix)] == '1', nil
}

// field notes a header.
func (h *head) field(a *Answer, line []byte) error {
	name, value, ok := bytes.Cut(line, []byte(":"))
	if !ok || len(name) == 0 || !printable(name) {
		return malformed("a line of the head is no header")
	}
	value = bytes.Trim(value, " \t")
	switch {
	case is(name, "Content-Length"):
		n, ok := decimal(value)
		if !ok || h.length >= 0 && h.length != n {
			return malformed("the length is no number, or another one than before")
		}
		h.length = n
	case is(name, "Transfer-Encoding"):
		if h.chunked || !is(value, "chunked") {
			return malformed("the transfer encoding is not chunked")
		}
		h.chunked = true
	case is(name, "Connection"):
		for option := range bytes.SplitSeq(value, []byte(",")) {
			if is(bytes.Trim(option, " \t"), "close") {
				h.keep = false
			}
		}
	case is(name, "Location"):
		note(&a.Location, value)
	case is(name, "Link"):
		note(&a.Link, value)
	case is(name, "WWW-Authenticate"):
		note(&a.Challenge, value)
	case is(name, "Docker-Content-Digest"):
		note(&a.Digest, value)
	}
	return nil
}

func note(dst *string, value []byte) {
	if *dst == "" {
		*dst = string(value)
	}
}

// is compares b with name, ignoring case. name is ASCII.
func is(b []byte, name string) bool {
	if len(b) != len(name) {
		return false
	}
	for i := range b {
		if b[i]|0x20 != name[i]|0x20 {
			return false
		}
	}
	return true
}

// decimal parses a length.
func decimal(b []byte) (n int64, ok bool) {
	if len(b) == 0 || len(b) > 18 { // 10^18 bytes must be a mistake
		return 0, false
	}
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = 10*n + int64(c-'0')
	}
	return n, true
}

// body reads the body that follows the head.
func (h *head) body(r *bufio.Reader, method string, a *Answer, to func([]byte) error) error {
	switch {
	case method == http.MethodHead:
		a.Size = h.length
		return nil
	case a.Status == http.StatusNoContent, a.Status == http.StatusNotModified:
		return nil
	case h.chunked:
		return h.chunks(r, a, to)
	case h.length >= 0:
		return pieces(r, h.length, a, to)
	}
	h.keep = false // the body ends with the connection
	for {
		if _, err := r.Peek(1); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := pieces(r, int64(r.Buffered()), a, to); err != nil {
			return err
		}
	}
}

// pieces passes on the next n bytes.
func pieces(r *bufio.Reader, n int64, a *Answer, to func([]byte) error) error {
	for n > 0 {
		if r.Buffered() == 0 {
			if _, err := r.Peek(1); err != nil {
				return err
			}
		}
		p, err := r.Peek(int(min(n, int64(r.Buffered()))))
		if err != nil {
			return err
		}
		a.Size += int64(len(p))
		if to != nil {
			if err := to(p); err != nil {
				return err
			}
		}
		n -= int64(len(p))
		if _, err := r.Discard(len(p)); err != nil {
			return err
		}
	}
	return nil
}

// chunks reads a chunked body and the trailer behind it.
func (h *head) chunks(r *bufio.Reader, a *Answer, to func([]byte) error) error {
	for {
		h.bytes = 0
		line, err := h.line(r)
		if err != nil {
			return err
		}
		n, err := chunkSize(line)
		if err != nil {
			return err
		}
		if n == 0 {
			break
		}
		if err := pieces(r, n, a, to); err != nil {
			return err
		}
		if line, err = h.line(r); err != nil {
			return err
		}
		if len(line) > 0 {
			return malformed("a chunk is longer than it says")
		}
	}
	for {
		line, err := h.line(r)
		if err != nil || len(line) == 0 {
			return err
		}
	}
}

// chunkSize parses the line before a chunk. It ignores the extensions behind the number.
func chunkSize(line []byte) (int64, error) {
	digits, _, _ := bytes.Cut(line, []byte(";"))
	digits = bytes.TrimRight(digits, " \t")
	if len(digits) == 0 || len(digits) > 15 {
		return 0, malformed("a chunk has no size")
	}
	var n int64
	for _, c := range digits {
		switch {
		case '0' <= c && c <= '9':
			n = n<<4 | int64(c-'0')
		case 'a' <= c|0x20 && c|0x20 <= 'f':
			n = n<<4 | int64(c|0x20-'a'+10)
		default:
			return 0, malformed("the size of a chunk is no number")
		}
	}
	return n, nil
}
