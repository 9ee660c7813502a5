package rebuild_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"example.org/slipway/gear/rebuild"
)

const goldenFile = "testdata/golden.txt"

var addGolden = flag.Bool("add-golden", false, "append the recipes of new golden blobs; old ones are never changed")

// A golden recipe was stored once, and must rebuild its blob for ever: each line has its name, the
// seed and size of the plain bytes, the digest of the blob, and the recipe.
func TestGolden(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	have := map[string]bool{}
	for _, line := range goldenLines(t) {
		var name, digest, text string
		var seed uint64
		var n int
		if _, err := fmt.Sscan(line, &name, &seed, &n, &digest, &text); err != nil {
			t.Fatalf("%s: %v", line[:min(len(line), 40)], err)
		}
		have[name] = true
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, err := base64.StdEncoding.DecodeString(text)
			if err != nil {
				t.Fatal(err)
			}
			r, err := rebuild.Parse(b)
			if err != nil {
				t.Fatal(err)
			}
			if got := hex.EncodeToString(r.Digest[:]); got != digest {
				t.Fatalf("the recipe is of %s, want %s", got, digest)
			}
			if err := r.Rebuild(context.Background(), io.Discard, bytes.NewReader(sample(seed, n)), nil); err != nil {
				t.Errorf("%v; a model has changed, and stored recipes need the one there was", err)
			}
		})
	}
	if *addGolden {
		appendGolden(t, have)
	} else if len(have) < 48 {
		t.Errorf("%d golden recipes, want 48 at least", len(have))
	}
}

func goldenLines(tb testing.TB) (lines []string) {
	f, err := os.Open(goldenFile)
	if err != nil {
		if *addGolden {
			return nil
		}
		tb.Fatal(err)
	}
	defer f.Close()
	s := bufio.NewScanner(f)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		lines = append(lines, s.Text())
	}
	if err := s.Err(); err != nil {
		tb.Fatal(err)
	}
	return lines
}

// javaGzip compresses as jib does, which builds images of Java programs.
const javaGzip = `import java.util.zip.GZIPOutputStream;

class Gzip {
	public static void main(String[] args) throws java.io.IOException {
		try (GZIPOutputStream out = new GZIPOutputStream(System.out)) {
			System.in.transferTo(out);
		}
	}
}
`

// appendGolden makes golden blobs with the encoders of this machine.
func appendGolden(t *testing.T, have map[string]bool) {
	const n = 400_000
	type encoder struct {
		name   string
		encode func(plain []byte) []byte
	}
	var all []encoder
	for level := -2; level <= 9; level++ {
		all = append(all, encoder{fmt.Sprintf("go%d", level), func(b []byte) []byte { return goZip(t, b, level, nil) }})
		d := dice(level)
		all = append(all, encoder{fmt.Sprintf("goflush%d", level), func(b []byte) []byte { return goZip(t, b, level, &d) }})
	}
	for level := 1; level <= 9; level++ {
		for _, set := range []struct{ mem, strategy int }{{8, 0}, {9, 0}, {4, 0}, {8, 1}, {8, 2}, {8, 3}} {
			if level != 6 && set.mem != 8 || level != 6 && set.strategy > 0 {
				continue
			}
			script := fmt.Sprintf("import sys, zlib\nc = zlib.compressobj(%d, 8, 31, %d, %d)\n"+
				"sys.stdout.buffer.write(c.compress(sys.stdin.buffer.read()) + c.flush())", level, set.mem, set.strategy)
			all = append(all, encoder{fmt.Sprintf("zlib%d-%d-%d", level, set.mem, set.strategy),
				func(b []byte) []byte { return pipe(t, b, "python3", "-c", script) }})
		}
	}
	tool := func(name, program string, args ...string) {
		if _, err := exec.LookPath(program); err != nil {
			t.Logf("no %s", program)
			return
		}
		all = append(all, encoder{name, func(b []byte) []byte { return pipe(t, b, program, args...) }})
	}
	for _, level := range []string{"-1", "-6", "-9"} {
		tool("gzip"+level, "gzip", level, "-c", "-n")
	}
	all = append(all, encoder{"pgzip", func(b []byte) []byte { return pgzip(t, b, 1<<17) }})
	for _, level := range []string{"-1", "-6", "-9", "-11"} {
		tool("pigz"+level, "pigz", level, "-c", "-n", "-p", "4")
	}
	tool("gzip-rsyncable", "gzip", "--rsyncable", "-c", "-n")
	tool("busybox", "busybox", "gzip", "-c")
	java := filepath.Join(t.TempDir(), "Gzip.java")
	if err := os.WriteFile(java, []byte(javaGzip), 0o600); err != nil {
		t.Fatal(err)
	}
	tool("java", "java", java)
	f, err := os.OpenFile(goldenFile, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for i, e := range all {
		if have[e.name] {
			continue
		}
		seed := uint64(1000 + i)
		plain := sample(seed, n)
		blob := e.encode(plain)
		r := makeRecipe(t, blob, &rebuild.MakeOptions{SegmentBytes: 150_000})
		same(t, r, plain, blob)
		if _, err := fmt.Fprintf(f, "%s %d %d %x %s\n", e.name, seed, n, r.Digest, base64.StdEncoding.EncodeToString(r.Append(nil))); err != nil {
			t.Fatal(err)
		}
	}
}
