package logs

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"io"
	"unicode/utf16"
	"unicode/utf8"

	"example.org/slipway/workload/trace/logs/internal/tenfield"
)

// text is a file as text, together with its underlying reader.
type text struct {
	*bufio.Reader
	from io.Reader
}

func newText(from io.Reader) text {
	return text{bufio.NewReaderSize(from, tenfield.MaxRecord), from}
}

// unbuffered returns the rest of a text, for a reader with its own buffer.
func (t text) unbuffered() io.Reader {
	read, _ := t.Peek(t.Buffered())
	return io.MultiReader(bytes.NewReader(read), t.from)
}

// newTextReader reads text. UTF-16 with a byte order mark, which PowerShell writes for redirected
// output, becomes UTF-8. NUL bytes become line ends: a log that was truncated while its writer kept
// its position begins with them.
func newTextReader(r io.Reader, head []byte) io.Reader {
	switch {
	case bytes.HasPrefix(head, []byte{0xff, 0xfe}):
		r = &utf16Reader{r: r, order: binary.LittleEndian}
	case bytes.HasPrefix(head, []byte{0xfe, 0xff}):
		r = &utf16Reader{r: r, order: binary.BigEndian}
	}
	return holesReader{r}
}

// holesReader turns NULs into line ends.
type holesReader struct{ r io.Reader }

func (h holesReader) Read(b []byte) (int, error) {
	n, err := h.r.Read(b)
	for rest := b[:n]; ; {
		i := bytes.IndexByte(rest, 0)
		if i < 0 {
			return n, err
		}
		for ; i < len(rest) && rest[i] == 0; i++ {
			rest[i] = '\n'
		}
		rest = rest[i:]
	}
}

// utf16Reader reads UTF-16 as UTF-8.
type utf16Reader struct {
	r     io.Reader
	order binary.ByteOrder
	in    [4 << 10]byte
	have  int // bytes of in
	out   []byte
	err   error
}

func (u *utf16Reader) Read(b []byte) (int, error) {
	for len(u.out) == 0 {
		if u.err != nil {
			return 0, u.err
		}
		var n int
		n, u.err = u.r.Read(u.in[u.have:])
		u.have += n
		u.decode()
	}
	n := copy(b, u.out)
	u.out = u.out[n:]
	return n, nil
}

// decode decodes the complete characters.
func (u *utf16Reader) decode() {
	u.out = nil
	i := 0
	for ; i+2 <= u.have; i += 2 {
		r := rune(u.order.Uint16(u.in[i:]))
		if utf16.IsSurrogate(r) {
			if i+4 > u.have && u.err == nil {
				break
			}
			low := rune(utf8.RuneError)
			if i+4 <= u.have {
				low = rune(u.order.Uint16(u.in[i+2:]))
			}
			if r = utf16.DecodeRune(r, low); r != utf8.RuneError {
				i += 2
			}
		}
		u.out = utf8.AppendRune(u.out, r)
	}
	u.have = copy(u.in[:], u.in[i:u.have])
}

// skipBlank skips leading white space, however much there is.
func skipBlank(r *bufio.Reader) error {
	for {
		c, err := r.ReadByte()
		if err != nil {
			return err
		}
		if c != ' ' && c != '\n' && c != '\r' && c != '\t' {
			return r.UnreadByte()
		}
	}
}
