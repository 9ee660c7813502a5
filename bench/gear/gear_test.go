package gear

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/integration/bench/measure"
	"example.org/slipway/integration/internal/corpus"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/tool"
	"example.org/slipway/integration/internal/wire"
)

// smallSet writes three images of three layers.
func smallSet(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for version, top := range []string{"1.9", "1.10", "1.11"} {
		if err := writeLayout(filepath.Join(dir, "shop"), top, release("shop", 0), release("wiki", 0), release("shop", 1+version)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestRun measures real servers with little content, and reads what it wrote.
func TestRun(t *testing.T) {
	scenarios := "storage,speed,push,convert,determinism"
	if _, err := tool.Find("umoci"); err == nil && os.Geteuid() == 0 {
		scenarios += ",oracle"
	}
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "results")
	o, err := parse([]string{"-bin", slipway.Binary(t), "-corpus", smallSet(t), "-dir", dir, "-rounds", "1", "-scenario", scenarios, "-out", out})
	if err != nil {
		t.Fatal(err)
	}
	r, err := o.measure(t.Context())
	if err != nil {
		t.Fatalf("measure: %v", err)
	}
	if got, want := len(r.Parts()), len(strings.Split(scenarios, ",")); got != want {
		t.Errorf("%d scenarios have results, want %d", got, want)
	}
	if s := r.Storage; s.Images != 3 || s.Layers != 5 || s.Fresh.Packs == 0 || s.Dense.Packs != 1 || s.Dense.Files != s.Fresh.Files ||
		s.Dense.Bytes >= s.Fresh.Bytes || s.Settle.ServerCPU <= 0 {
		t.Errorf("storage is %+v", s)
	}
	if r.Oracle != nil && (len(r.Oracle.Different) > 0 || r.Oracle.Entries == 0) {
		t.Errorf("oracle: %+v", r.Oracle)
	}
	if d := r.Determinism; len(d.Different) > 0 || d.Layers != 5 || d.Settled == 0 {
		t.Errorf("determinism: %+v", d)
	}
	if len(r.Push.After) != 2 || len(r.Push.Next) != 1 || r.Push.After[0].PeakRSS[0] == 0 {
		t.Errorf("push: %+v", r.Push)
	}
	if err := measure.Save(out, r); err != nil {
		t.Fatal(err)
	}
	again, err := measure.Load[Results](out)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r, again); diff != "" {
		t.Errorf("results (-written +read):\n%s", diff)
	}
	checkReport(t, again)
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// checkReport checks that a report names each scenario and that its pictures are XML.
func checkReport(t *testing.T, r *Results) {
	t.Helper()
	text := measure.Report("PASS\n", r.Parts())
	for _, p := range r.Parts() {
		if !strings.Contains(text, "### "+p.Title()+"\n") {
			t.Errorf("the report lacks %q", p.Title())
		}
		for _, pic := range p.Pictures() {
			dec := xml.NewDecoder(strings.NewReader(pic.Chart.SVG()))
			for {
				if _, err := dec.Token(); errors.Is(err, io.EOF) {
					break
				} else if err != nil {
					t.Fatalf("%s: %v", pic.File, err)
				}
			}
		}
	}
}

func TestCheck(t *testing.T) {
	r := &Results{
		Storage: &Storage{Bytes: 100e6, Dense: State{Packs: 1, Bytes: 50e6, Files: 4000, IndexBytes: 1e6}},
		Push:    &Push{After: []After{{Case: caseImage, Index: []float64{0.5, 2, 3}, PeakRSS: []int64{1e6, 300e6, 1e6}}}},
		Serving: &Serving{Cases: []ServingCase{{Case: caseGet(4),
			Slipway: []Sample{{Ops: 10, ServerCPU: 3}}, Nginx: []Sample{{Ops: 10, ServerCPU: 1}}}}},
		Determinism: &Determinism{},
	}
	var out strings.Builder
	if measure.CheckParts(&out, r.Parts()) {
		t.Error("targets that are missed were not found")
	}
	for _, want := range []string{
		"PASS  storage     saving against layers, settled: 50.0 % (at least 50.0 %)\n",
		"FAIL  storage     share of indexes, settled: 2.00 % (at most 1.50 %)\n",
		"PASS  storage     objects for 2,000 files, settled: 0.500 (at most 1.00)\n",
		"FAIL  push        from the push to all indexes, several layers: 2.00 s (at most 1.00 s; 0.500 to 3.00)\n",
		"FAIL  push        peak RSS meanwhile, several layers: 300 MB (at most 256 MB; 1.00 to 300)\n",
		"FAIL  serving     CPU of GET of 4 KiB, slipway / nginx: 3.00 (at most 2.00)\n",
		"----  serving     CPU of GET of 16 KiB, slipway / nginx: not measured (at most 2.00)\n",
		"PASS  determinism indexes and packs that differ: 0 (at most 0)\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the verdict lacks %q:\n%s", want, out.String())
		}
	}
	if !measure.CheckParts(io.Discard, (&Results{Determinism: &Determinism{}}).Parts()) {
		t.Error("targets that are met were found missed")
	}
}

func TestFill(t *testing.T) {
	r, old := &Results{Push: &Push{}}, &Results{Push: &Push{After: []After{{}}}, Oracle: &Oracle{Images: 3}}
	r.Fill(old)
	if r.Push.After != nil || r.Oracle == nil || r.Storage != nil {
		t.Errorf("filled: %+v", r)
	}
}

func TestCorpus(t *testing.T) {
	all, err := corpus.Read(smallSet(t))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, im := range all {
		got = append(got, im.String())
	}
	if diff := cmp.Diff([]string{"shop/1.9", "shop/1.10", "shop/1.11"}, got); diff != "" {
		t.Errorf("images (-want +got):\n%s", diff)
	}
	if n := len(distinct(all)); n != 5 {
		t.Errorf("%d distinct layers, want 5", n)
	}
	if few := fewer(all, 2); len(few) != 2 || few[1] != all[1] {
		t.Errorf("two of three are %v", few)
	}
	if p := pairs(all); len(p) != 1 || newBytes(p[0][0], p[0][1]) != p[0][1].Layers[2].Size {
		t.Errorf("pairs %v", p)
	}
	if _, err := corpus.Read(t.TempDir()); err == nil {
		t.Error("an empty directory is a set of images")
	}
}

func TestCompareVersions(t *testing.T) {
	want := []string{"1.2", "1.10", "1.10-a", "1.10-b2", "1.10-b10", "2", "a"}
	got := slices.Clone(want)
	slices.Reverse(got)
	slices.SortFunc(got, corpus.CompareVersions)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
}

func TestCategories(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.csv")
	if err := os.WriteFile(file, []byte("shop,Trade\n\"wiki\",\"A, B\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := readCategories(file)
	if diff := cmp.Diff(map[string]string{"shop": "Trade", "wiki": "A, B"}, got); err != nil || diff != "" {
		t.Errorf("%v, categories (-want +got):\n%s", err, diff)
	}
}

// TestKnown checks that the root's time counts only if a layer has the root.
func TestKnown(t *testing.T) {
	for _, k := range []known{{root: true}, {}} {
		if got := k.ignore(".", "mtime"); got == k.root {
			t.Errorf("%+v: time of the root ignored: %v", k, got)
		}
		if k.ignore("a", "mtime") || k.ignore(".", "mode") {
			t.Errorf("%+v: something else is ignored", k)
		}
	}
}

// smallPack is a pack with two contents of 3 and 4 bytes.
func smallPack() []byte {
	b := []byte("SLGPACK\x01\x00\x00\x00\x00abcdefg")
	for i, size := range []uint64{3, 4} {
		b = append(b, bytes.Repeat([]byte{byte(i + 1)}, 32)...)
		b = binary.LittleEndian.AppendUint64(b, size)
		b = binary.LittleEndian.AppendUint64(b, size)
		b = append(b, 0)
	}
	b = append(b, 2, 0, 0, 0, 0, 0, 0, 0)
	b = append(b, make([]byte, 32)...)
	return append(b, "SLGPEND\x01"...)
}

func TestParsePack(t *testing.T) {
	b := smallPack()
	p, err := parsePack(bytes.NewReader(b), int64(len(b)))
	if err != nil || len(p.files) != 2 || p.files[1].stored != 4 || p.files[1].name != strings.Repeat("02", 32) {
		t.Fatalf("got %+v, %v", p, err)
	}
	for name, change := range map[string]func(b []byte) []byte{
		"short":        func(b []byte) []byte { return b[:40] },
		"magic":        func(b []byte) []byte { b[0]++; return b },
		"more entries": func(b []byte) []byte { b[len(b)-48]++; return b },
		"other length": func(b []byte) []byte { b[12+7+40]++; return b },
	} {
		b := change(smallPack())
		if _, err := parsePack(bytes.NewReader(b), int64(len(b))); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func FuzzParsePack(f *testing.F) {
	f.Add(smallPack())
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := parsePack(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			return
		}
		var stored int64
		for _, x := range p.files {
			stored += x.stored
		}
		if want := int64(len(b)) - 12 - packTrailer - p.dict - packEntry*int64(len(p.files)); stored != want {
			t.Errorf("contents have %d bytes, want %d", stored, want)
		}
	})
}

func TestParse(t *testing.T) {
	t.Setenv("SLIPWAY_BIN", "")
	for args, ok := range map[string]bool{
		"":                              false, // no binary
		"-bin x":                        true,
		"-from results":                 true,
		"-bin x -rounds 0":              false,
		"-bin x -images -1":             false,
		"-bin x extra":                  false,
		"-bin x -quick -scenario push ": true,
	} {
		if _, err := parse(strings.Fields(args)); (err == nil) != ok {
			t.Errorf("%q: %v, want ok %v", args, err, ok)
		}
	}
	o, err := parse(strings.Fields("-bin /secret/x -quick -scenario push -dir /secret"))
	if err != nil || o.Command != "scripts/bench-gear.sh -quick -scenario push" || o.images != quickImages || o.Rounds != 2 {
		t.Errorf("options %+v, %v", o, err)
	}
	if _, err := measure.Choose(scenarios(), "storage,nothing"); err == nil {
		t.Error("an unknown scenario was accepted")
	}
	list, err := measure.Choose(scenarios(), "push,storage")
	if err != nil || len(list) != 2 || list[0].Name != "storage" {
		t.Errorf("scenarios %v, %v", list, err)
	}
}

// TestLargeContent checks that each range equals that part of the whole.
func TestLargeContent(t *testing.T) {
	whole := largeContent(0, 5*largeBlock)
	for _, off := range []int64{0, 1, largeBlock - 1, largeBlock, 2*largeBlock + 7} {
		if got := largeContent(off, 5000); !bytes.Equal(got, whole[off:off+5000]) {
			t.Errorf("5,000 bytes from %d on differ", off)
		}
	}
}

// TestLoad puts a load on a real server.
func TestLoad(t *testing.T) {
	s, err := startSlipway(t.Context(), slipway.Binary(t), filepath.Join(t.TempDir(), "server"), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer s.stop()
	blob := []byte("12345")
	if err := s.upload(t.Context(), "a", wire.Digest(blob), bytes.NewReader(blob), 5); err != nil {
		t.Fatal(err)
	}
	get := func(digest string) (Sample, error) {
		return underLoad(t.Context(), s, 3, 20*time.Millisecond, func(ctx context.Context, buf []byte, _ int) (int64, error) {
			return s.count(ctx, "GET", s.url("a", "blobs/"+digest), nil, nil, 200, buf)
		})
	}
	x, err := get(wire.Digest(blob))
	if err != nil || x.Ops == 0 || x.Bytes != 5*int64(x.Ops) || x.ServerCPU <= 0 || x.PeakRSS == 0 {
		t.Errorf("sample %+v, %v", x, err)
	}
	if _, err := get(wire.Digest(nil)); wire.StatusOf(err) != 404 {
		t.Errorf("a blob that is not there: %v", err)
	}
}
