package rebuild

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"

	kgzip "github.com/klauspost/compress/gzip"

	"example.org/slipway/gear/rebuild/deflate"
)

// words returns text of some bytes that compresses like that of programs.
func words(seed uint64, n int) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	var b bytes.Buffer
	for b.Len() < n {
		fmt.Fprintf(&b, "%x word%d ", r.Uint32()>>r.IntN(32), r.IntN(1<<r.IntN(12)))
	}
	return b.Bytes()[:n]
}

// made makes the recipe of a stream with small segments.
func made(t *testing.T, stream []byte) *maker {
	t.Helper()
	m := &maker{work: newWork(), diffID: sha256.New(), opts: MakeOptions{SegmentBytes: 64 << 10}}
	m.in = deflate.NewReader(bytes.NewReader(stream))
	if err := m.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	return m
}

// member returns a gzip member that a writer compresses.
func member(t *testing.T, plain []byte, to func(io.Writer) (io.WriteCloser, error)) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := to(&b)
	if err == nil {
		_, err = w.Write(plain)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestSearches checks how often a model is searched for: hardly again if the encoder is
// one that nobody models, and again if another encoder has written the rest.
func TestSearches(t *testing.T) {
	t.Parallel()
	unknown := func(w io.Writer) (io.WriteCloser, error) { return kgzip.NewWriterLevel(w, 8) }
	level := func(n int) func(io.Writer) (io.WriteCloser, error) {
		return func(w io.Writer) (io.WriteCloser, error) { return gzip.NewWriterLevel(w, n) }
	}
	stream := member(t, words(1, 5<<19), unknown)
	m := made(t, stream)
	poor := 0
	for _, s := range m.r.segments {
		if int64(len(s.data))*8*128 > s.bits {
			poor++
		}
	}
	if poor < 8 || poor > searchPause {
		t.Fatalf("%d of %d segments are predicted badly; want some, but fewer than lie between two searches", poor, len(m.r.segments))
	}
	if m.again > 1 {
		t.Errorf("a model of an unknown encoder was searched for %d times again", m.again)
	}
	stream = append(member(t, words(2, 400<<10), level(6)), member(t, words(3, 400<<10), level(1))...)
	m = made(t, stream)
	bytes := 0
	for _, s := range m.r.segments[len(m.r.segments)/2+1:] {
		bytes += len(s.data)
	}
	if m.again == 0 || bytes > len(stream)/256 {
		t.Errorf("the second encoder was searched for %d times, and its segments have %d of %d bytes", m.again, bytes, len(stream))
	}
}
