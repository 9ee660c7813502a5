package rebuild

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"io"
	"slices"
	"testing"

	kgzip "github.com/klauspost/compress/gzip"

	"example.org/slipway/gear/rebuild/deflate"
)

// whole codes a stream as one segment.
func whole(t *testing.T, stream []byte) (*maker, segment, attempt) {
	t.Helper()
	m := &maker{work: newWork(), verify: newVerifier()}
	m.in = deflate.NewReader(bytes.NewReader(stream))
	for {
		e, err := m.in.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		m.events = append(m.events, e)
		m.plain += int64(e.Block.Plain)
	}
	a := m.choose(m.events, m.plain)
	return m, segment{bits: int64(8 * len(stream)), plain: m.plain, model: m.model, data: a.b}, a
}

// TestVerify damages the data of a segment in many bits. The verification, which replays the
// predictions, must not take a layer for right that a rebuild, which predicts again, does not
// give.
func TestVerify(t *testing.T) {
	t.Parallel()
	plain := words(7, 60<<10)
	for name, to := range map[string]func(io.Writer) (io.WriteCloser, error){
		"go 6":        func(w io.Writer) (io.WriteCloser, error) { return gzip.NewWriterLevel(w, 6) },
		"go 1":        func(w io.Writer) (io.WriteCloser, error) { return gzip.NewWriterLevel(w, 1) },
		"klauspost 5": func(w io.Writer) (io.WriteCloser, error) { return kgzip.NewWriterLevel(w, 5) },
		"other":       func(w io.Writer) (io.WriteCloser, error) { return kgzip.NewWriterLevel(w, 8) },
	} {
		stream := member(t, plain, to)
		m, s, a := whole(t, stream)
		span, _, _ := m.span(s.model, 0, m.plain)
		digest := sha256.Sum256(stream)
		right, wrong := 0, 0
		for bit := -1; bit < min(8*len(s.data), 400); bit++ {
			damaged := s
			if damaged.data = slices.Clone(s.data); bit >= 0 {
				damaged.data[bit/8] ^= 1 << (bit % 8)
			}
			guesses, v := *a.guesses, newVerifier()
			err := v.segment(&damaged, span, &guesses, true)
			if err == nil {
				err = v.end(&Recipe{Digest: digest})
			}
			b, rebuildErr := decodeSegment(m.work, m.work.pred, span, damaged.data, 0, s.bits)
			rebuilds := rebuildErr == nil && bytes.Equal(b, stream)
			if err == nil && !rebuilds || bit < 0 && err != nil {
				t.Errorf("%s, bit %d: verified: %v; rebuilt: %v, %v", name, bit, err, rebuilds, rebuildErr)
			}
			if err == nil {
				right++
			} else {
				wrong++
			}
		}
		if right == 0 || wrong == 0 {
			t.Errorf("%s: %d right and %d wrong", name, right, wrong)
		}
	}
}
