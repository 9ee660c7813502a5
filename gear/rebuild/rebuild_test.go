package rebuild_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os/exec"
	"testing"

	kflate "github.com/klauspost/compress/flate"

	"example.org/slipway/gear/rebuild"
)

// trailer appends what a gzip member ends with.
func trailer(b, plain []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, crc32.ChecksumIEEE(plain))
	return binary.LittleEndian.AppendUint32(b, uint32(len(plain)))
}

// What Go's encoder wrote is predicted: at most so many bytes of recipe, for which the digests and
// the table of segments count as well.
func TestGo(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	plain := sample(1, 3<<18)
	for level := gzip.HuffmanOnly; level <= gzip.BestCompression; level++ {
		t.Run(fmt.Sprint(level), func(t *testing.T) {
			t.Parallel()
			blob := goZip(t, plain, level, nil)
			r := makeRecipe(t, blob, &rebuild.MakeOptions{SegmentBytes: 1 << 18})
			same(t, r, plain, blob)
			t.Logf("%d bytes: recipe of %d in %d segments, %s", len(blob), size(r), r.Segments(), r.Encoder())
			most := 1000
			if level == gzip.BestSpeed {
				most = 3000 // a segment's first blocks depend on more than its history
			}
			if n := size(r); n > most {
				t.Errorf("recipe of %d bytes for %d", n, len(blob))
			}
		})
	}
}

// The encoders of zlib are those of the system's Python.
func TestZlib(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3 to run zlib with")
	}
	plain := sample(2, 1<<18)
	for level := 0; level <= 9; level++ {
		for _, mem := range []int{8, 9, 4} {
			for _, strategy := range []int{0, 1, 2, 3, 4} {
				if (strategy != 0 || mem == 4) && level != 6 {
					continue
				}
				t.Run(fmt.Sprint(level, mem, strategy), func(t *testing.T) {
					t.Parallel()
					script := fmt.Sprintf("import sys, zlib\nc = zlib.compressobj(%d, 8, 31, %d, %d)\n"+
						"o = sys.stdout.buffer\no.write(c.compress(sys.stdin.buffer.read()))\no.write(c.flush())", level, mem, strategy)
					blob := pipe(t, plain, python, "-c", script)
					r := makeRecipe(t, blob, nil)
					same(t, r, plain, blob)
					t.Logf("%d bytes: recipe of %d, %s", len(blob), size(r), r.Encoder())
					if n := size(r); n > 1500 {
						t.Errorf("recipe of %d bytes for %d", n, len(blob))
					}
				})
			}
		}
	}
}

func pipe(tb testing.TB, in []byte, name string, args ...string) []byte {
	tb.Helper()
	cmd := exec.Command(name, args...)
	cmd.Stdin = bytes.NewReader(in)
	out, err := cmd.Output()
	if err != nil {
		tb.Fatalf("%s: %v", name, err)
	}
	return out
}

func TestTools(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	plain := sample(3, 1<<19)
	for _, tool := range []string{"gzip", "pigz"} {
		path, err := exec.LookPath(tool)
		for _, level := range []string{"-1", "-6", "-9"} {
			t.Run(tool+level, func(t *testing.T) {
				t.Parallel()
				if err != nil {
					t.Skipf("no %s", tool)
				}
				blob := pipe(t, plain, path, level, "-c")
				r := makeRecipe(t, blob, nil)
				same(t, r, plain, blob)
				t.Logf("%d bytes: recipe of %d, %s", len(blob), size(r), r.Encoder())
				if n := size(r); n > 2500 {
					t.Errorf("recipe of %d bytes for %d", n, len(blob))
				}
			})
		}
	}
}

func TestPgzip(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	for _, n := range []int{0, 1, 100, 70_000, 1 << 20, 3<<20 + 12345} {
		plain := sample(4, n)
		blob := pgzip(t, plain, 1<<20)
		r := makeRecipe(t, blob, nil)
		same(t, r, plain, blob)
		t.Logf("%d bytes: recipe of %d in %d segments, %s", len(blob), size(r), r.Segments(), r.Encoder())
		if size(r) > 120+len(blob)/1000 {
			t.Errorf("recipe of %d bytes for %d", size(r), len(blob))
		}
	}
}

// The output of an encoder without a model needs a part of the layer, and more on such
// dense samples than on files.
func TestOther(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	plain := sample(5, 1<<19)
	for _, level := range []int{1, 3, 6, 7, 9} {
		var out bytes.Buffer
		out.Write([]byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3})
		w, err := kflate.NewWriter(&out, level)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(plain); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		blob := trailer(out.Bytes(), plain)
		r := makeRecipe(t, blob, nil)
		same(t, r, plain, blob)
		t.Logf("level %d, %d bytes: recipe of %d, %s", level, len(blob), size(r), r.Encoder())
		if size(r) > len(blob)/4 {
			t.Errorf("level %d: recipe of %d bytes for %d", level, size(r), len(blob))
		}
	}
}

// Whatever is written, in pieces of whatever size, by whichever encoders in turn, comes back.
func TestAnything(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	for seed := range uint64(16) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			d := dice(seed)
			var blob, plain []byte
			for range 1 + d.roll(5) {
				b := sample(d.next(), d.roll(1<<(1+d.roll(18))))
				plain = append(plain, b...)
				if d.roll(4) == 0 {
					blob = append(blob, pgzip(t, b, 1<<(12+d.roll(8)))...)
				} else {
					blob = append(blob, goZip(t, b, d.roll(12)-2, &d)...)
				}
			}
			if d.roll(3) == 0 {
				blob = append(blob, sample(d.next(), d.roll(3000))...)
			}
			r := makeRecipe(t, blob, &rebuild.MakeOptions{SegmentBytes: 1 << d.roll(22)})
			same(t, r, plain, blob)
		})
	}
}

// A layer of zeros has blocks of several megabytes.
func TestZeros(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	plain := make([]byte, 16<<20)
	blob := goZip(t, plain, 6, nil)
	r := makeRecipe(t, blob, nil)
	same(t, r, plain, blob)
	if size(r) > 1000 {
		t.Errorf("recipe of %d bytes for %d", size(r), len(blob))
	}
}

func TestHeaders(t *testing.T) {
	t.Parallel()
	plain := sample(7, 5000)
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	w.Name, w.Comment, w.Extra = "layer.tar", "made by a test", []byte("some extra")
	if _, err := w.Write(plain); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	good := bytes.Clone(out.Bytes())
	wrongSum := bytes.Clone(good)
	wrongSum[len(wrongSum)-6] ^= 1
	for name, blob := range map[string][]byte{
		"options": good, "wrong sum": wrongSum, "zeros behind": append(bytes.Clone(good), make([]byte, 999)...),
		"half a member behind": append(bytes.Clone(good), 0x1f, 0x8b),
	} {
		t.Run(name, func(t *testing.T) { same(t, makeRecipe(t, blob, nil), plain, blob) })
	}
	for name, blob := range map[string][]byte{
		"nothing": nil, "not gzip": []byte("hello, world, this is no gzip stream"), "cut off": good[:len(good)-9],
		"damaged": append(bytes.Clone(good[:60]), bytes.Repeat([]byte{0xff}, 500)...), "another member cut off": append(bytes.Clone(good), good[:30]...),
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := rebuild.Make(context.Background(), bytes.NewReader(blob), nil); !errors.Is(err, rebuild.ErrUnsupported) {
				t.Errorf("got %v, want ErrUnsupported", err)
			}
		})
	}
}

// Other contents than the layer's must not come out as the layer, and of a whole one nothing of its
// end.
func TestOtherContents(t *testing.T) {
	t.Parallel()
	plain := sample(8, 300_000)
	blob := goZip(t, plain, 6, nil)
	r := makeRecipe(t, blob, nil)
	other := bytes.Clone(plain)
	other[200_000] ^= 1
	var out bytes.Buffer
	err := r.Rebuild(context.Background(), &out, bytes.NewReader(other), nil)
	if !errors.Is(err, rebuild.ErrDamaged) || out.Len() >= len(blob) {
		t.Errorf("with another byte: %v after %d of %d bytes", err, out.Len(), len(blob))
	}
	err = r.Rebuild(context.Background(), io.Discard, bytes.NewReader(plain[:250_000]), nil)
	if !errors.Is(err, rebuild.ErrDamaged) {
		t.Errorf("with less bytes: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := r.Rebuild(ctx, io.Discard, bytes.NewReader(plain), nil); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
}

// A damaged recipe is an error, whatever is damaged.
func TestDamagedRecipe(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	d := dice(9)
	plain := sample(9, 200_000)
	for _, blob := range [][]byte{goZip(t, plain, 6, &d), goZip(t, plain, 1, nil), pgzip(t, plain, 50_000), goZip(t, plain, -2, nil)} {
		good := makeRecipe(t, blob, &rebuild.MakeOptions{SegmentBytes: 50_000}).Append(nil)
		for range 150 {
			b := bytes.Clone(good)
			for range 1 + d.roll(3) {
				b[8+64+d.roll(len(b)-72)] ^= byte(1 << d.roll(8))
			}
			b = b[:len(b)-d.roll(2)*d.roll(10)]
			r, err := rebuild.Parse(b)
			if err == nil {
				var out bytes.Buffer
				if err = r.Rebuild(context.Background(), &out, bytes.NewReader(plain), nil); err == nil && !bytes.Equal(out.Bytes(), blob) {
					t.Fatal("a damaged recipe rebuilt something else and said nothing")
				}
			}
			if err != nil && !errors.Is(err, rebuild.ErrDamaged) {
				t.Fatalf("got %v, want ErrDamaged", err)
			}
		}
	}
}

func FuzzRebuild(f *testing.F) {
	plain := sample(10, 30_000)
	d := dice(10)
	for _, blob := range [][]byte{goZip(f, plain, 6, &d), goZip(f, plain, 1, nil), goZip(f, plain, 0, nil), pgzip(f, plain, 20_000)} {
		f.Add(makeRecipe(f, blob, &rebuild.MakeOptions{SegmentBytes: 20_000}).Append(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := rebuild.Parse(b)
		if err != nil || r.Plain > 1<<20 || r.Size > 1<<20 {
			return
		}
		if again, err := rebuild.Parse(r.Append(nil)); err != nil || again.Segments() != r.Segments() {
			t.Fatalf("written again it does not parse: %v", err)
		}
		_ = r.Rebuild(context.Background(), io.Discard, bytes.NewReader(plain[:min(r.Plain, int64(len(plain)))]), nil)
	})
}

func FuzzMake(f *testing.F) {
	plain := sample(11, 3000)
	d := dice(11)
	for level := -2; level <= 9; level++ {
		f.Add(goZip(f, plain, level, &d))
	}
	f.Add(append(pgzip(f, plain, 700), pgzip(f, plain[:100], 10)...))
	f.Fuzz(func(t *testing.T, blob []byte) {
		var plain bytes.Buffer
		r, err := rebuild.Make(context.Background(), bytes.NewReader(blob), &rebuild.MakeOptions{SegmentBytes: 1000, Plain: &plain})
		if err != nil {
			if !errors.Is(err, rebuild.ErrUnsupported) {
				t.Fatal(err)
			}
			return
		}
		var out bytes.Buffer
		if err := r.Rebuild(context.Background(), &out, bytes.NewReader(plain.Bytes()), nil); err != nil || !bytes.Equal(out.Bytes(), blob) {
			t.Fatalf("not rebuilt: %v", err)
		}
	})
}
