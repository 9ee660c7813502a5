package content_test

import (
	"bytes"
	"compress/flate"
	"crypto/sha256"
	"io"
	"testing"

	"example.org/slipway/workload/replay/content"
)

func read(t *testing.T, r io.Reader) []byte {
	t.Helper()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestContentIsTheSameFromAnyOffset(t *testing.T) {
	for _, m := range []content.Maker{{}, {Seed: 7, Compressible: 0.5}, {Seed: 7, Duplicates: 0.3, Compressible: 1}} {
		const size = 3*4096 + 77
		whole := read(t, m.Reader(5, 0, size))
		if len(whole) != size {
			t.Fatalf("%+v: %d bytes, want %d", m, len(whole), size)
		}
		for _, cut := range [][2]int64{{0, 1}, {1, 4096}, {4095, 4097}, {4096, 8192}, {5000, size}, {size, size}} {
			if got := read(t, m.Reader(5, cut[0], cut[1])); !bytes.Equal(got, whole[cut[0]:cut[1]]) {
				t.Errorf("%+v: bytes %v differ from those of the whole", m, cut)
			}
		}
		if got, want := m.Digest(5, size), sha256.Sum256(whole); got != want {
			t.Errorf("%+v: digest %x, want %x", m, got, want)
		}
		if bytes.Equal(whole[:4096], read(t, m.Reader(6, 0, 4096))) {
			t.Errorf("%+v: two keys have the same first block", m)
		}
	}
}

func TestReaderSeeks(t *testing.T) {
	var m content.Maker
	r := m.Reader(1, 10, 5000)
	first := read(t, r)
	if _, err := r.Seek(0, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	if again := read(t, r); !bytes.Equal(first, again) {
		t.Error("the second reading differs")
	}
	if n, err := r.Seek(-90, io.SeekEnd); err != nil || n != 4900 {
		t.Fatalf("seek to %d, %v, want 4900", n, err)
	}
	if got := read(t, r); !bytes.Equal(got, first[4900:]) {
		t.Error("the end differs after a seek")
	}
	if _, err := r.Seek(-1, io.SeekStart); err == nil {
		t.Error("a seek before the begin succeeded")
	}
}

func TestCompressibility(t *testing.T) {
	for _, want := range []float64{0, 0.5, 0.9} {
		m := content.Maker{Compressible: want}
		var out bytes.Buffer
		w, _ := flate.NewWriter(&out, flate.DefaultCompression)
		const size = 1 << 20
		if _, err := io.Copy(w, m.Reader(3, 0, size)); err != nil {
			t.Fatal(err)
		}
		w.Close()
		if got := 1 - float64(out.Len())/size; got < want-0.03 || got > want+0.03 {
			t.Errorf("compressible %.2f: flate saves %.3f", want, got)
		}
	}
}

func TestDuplicates(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	m := content.Maker{Duplicates: 0.25}
	seen := map[[32]byte]bool{}
	twice, blocks := 0, 0
	for key := range uint64(400) {
		b := read(t, m.Reader(key, 0, 1<<20))
		for ; len(b) > 0; b = b[4096:] {
			sum := sha256.Sum256(b[:4096])
			if seen[sum] {
				twice++
			}
			seen[sum] = true
			blocks++
		}
	}
	// 25 % of 102,400 blocks are drawn from 65,536. 21,157 different ones are expected,
	// so 4,443 blocks occur twice.
	if twice < 3800 || twice > 5100 {
		t.Errorf("%d of %d blocks were there before, want about 4443", twice, blocks)
	}
}

func TestPickIsEven(t *testing.T) {
	var got [3]int
	for i := range uint64(30000) {
		got[content.Pick(i, 3)]++
	}
	for i, n := range got {
		if n < 9600 || n > 10400 {
			t.Errorf("%d was picked %d times of 30000", i, n)
		}
	}
}

func BenchmarkRead(b *testing.B) {
	var m content.Maker
	buf := make([]byte, 64<<10)
	b.SetBytes(int64(len(buf)))
	for b.Loop() {
		m.Reader(1, 0, int64(len(buf))).Read(buf)
	}
}
