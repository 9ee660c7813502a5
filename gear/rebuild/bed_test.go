package rebuild_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"io"
	"testing"

	kflate "github.com/klauspost/compress/flate"

	"example.org/slipway/gear/rebuild"
)

// dice is a generator of numbers that never changes, since digests of golden blobs depend on it:
// Steele's SplitMix64.
type dice uint64

func (d *dice) next() uint64 {
	*d += 0x9e3779b97f4a7c15
	z := uint64(*d)
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// roll returns a number below n.
func (d *dice) roll(n int) int { return int(d.next() % uint64(n)) }

// sample makes n bytes in which text, code, noise, zeros and repetitions of what was before take turns.
func sample(seed uint64, n int) []byte {
	d := dice(seed)
	words := make([][]byte, 500)
	for i := range words {
		words[i] = make([]byte, 2+d.roll(12))
		for j := range words[i] {
			words[i][j] = byte('a' + d.roll(26))
		}
	}
	var b []byte
	for len(b) < n {
		switch d.roll(6) {
		case 0, 1:
			few := 1 + d.roll(len(words))
			for range 1 + d.roll(3000) {
				b = append(append(b, words[d.roll(few)]...), " \n,."[d.roll(4)])
			}
		case 2: // records with fields that are alike
			for i := range d.roll(2000) {
				b = binary.LittleEndian.AppendUint32(b, uint32(i*d.roll(4)))
				b = append(b, byte(d.roll(3)), 0, 0, byte(d.roll(200)))
			}
		case 3:
			bits := 1 + d.roll(256)
			for range d.roll(20000) {
				b = append(b, byte(d.roll(bits)))
			}
		case 4:
			b = append(b, make([]byte, d.roll(6000))...)
		case 5:
			if len(b) > 1000 {
				for range d.roll(200) {
					at := max(0, len(b)-1-d.roll(40000))
					b = append(b, b[at:min(len(b), at+d.roll(600))]...)
				}
			}
		}
	}
	return b[:n]
}

// goZip compresses with Go's gzip, in writes of any size and with flushes now and then.
func goZip(tb testing.TB, plain []byte, level int, d *dice) []byte {
	tb.Helper()
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, level)
	if err != nil {
		tb.Fatal(err)
	}
	for len(plain) > 0 {
		n := len(plain)
		if d != nil {
			n = min(n, 1+d.roll(1<<(1+d.roll(20))))
		}
		if _, err := w.Write(plain[:n]); err != nil {
			tb.Fatal(err)
		}
		if d != nil && d.roll(40) == 0 {
			if err := w.Flush(); err != nil {
				tb.Fatal(err)
			}
		}
		plain = plain[n:]
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return out.Bytes()
}

// pgzip compresses as klauspost/pgzip does: 1 MiB by 1 MiB, each with the last 16 KiB before it as
// its dictionary.
func pgzip(tb testing.TB, plain []byte, block int) []byte {
	tb.Helper()
	out := bytes.NewBuffer([]byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff})
	for at := 0; at == 0 || at < len(plain); at += block {
		end := min(at+block, len(plain))
		w, err := kflate.NewWriterDict(out, kflate.DefaultCompression, plain[max(0, at-16<<10):at])
		if err == nil {
			_, err = w.Write(plain[at:end])
		}
		if err == nil {
			err = w.Flush()
		}
		if err == nil && end == len(plain) {
			err = w.Close()
		}
		if err != nil {
			tb.Fatal(err)
		}
	}
	return trailer(out.Bytes(), plain)
}

func makeRecipe(tb testing.TB, blob []byte, opts *rebuild.MakeOptions) *rebuild.Recipe {
	tb.Helper()
	verified := rebuild.MakeOptions{Verify: true}
	if opts != nil {
		verified.SegmentBytes, verified.Plain = opts.SegmentBytes, opts.Plain
	}
	r, err := rebuild.Make(context.Background(), bytes.NewReader(blob), &verified)
	if err != nil {
		tb.Fatal(err)
	}
	// All that is tested is tested as it comes back from where it was stored.
	stored, err := rebuild.Parse(r.Append(nil))
	if err != nil {
		tb.Fatal(err)
	}
	return stored
}

// same fails unless the recipe rebuilds the blob.
func same(tb testing.TB, r *rebuild.Recipe, plain, blob []byte) {
	tb.Helper()
	if r.Digest != sha256.Sum256(blob) || r.DiffID != sha256.Sum256(plain) || r.Size != int64(len(blob)) || r.Plain != int64(len(plain)) {
		tb.Fatalf("recipe of %d and %d bytes: the layer has %d and %d, or the digests are others", r.Size, r.Plain, len(blob), len(plain))
	}
	d := dice(len(blob))
	var out bytes.Buffer
	if err := r.Rebuild(context.Background(), &out, bytes.NewReader(plain), &rebuild.Options{Workers: 1 + d.roll(3)}); err != nil {
		tb.Fatal(err)
	}
	if !bytes.Equal(out.Bytes(), blob) {
		tb.Fatal("rebuilt another blob")
	}
}

// size is how many bytes a recipe takes.
func size(r *rebuild.Recipe) int { return len(r.Append(nil)) }

var _ io.ReaderAt = (*rebuild.Archive)(nil)
