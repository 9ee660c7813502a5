package dedup_test

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"go.uber.org/goleak"

	"example.org/slipway/gear/dedup"
	"example.org/slipway/oci"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func saved(part, whole int64) float64 { return 1 - float64(part)/float64(whole) }

// group returns a group whose stored and uncompressed sizes are the same.
func group(name, category string, images int, objects, sizes [4]int64) dedup.Group {
	g := dedup.Group{Name: name, Category: category, Images: images}
	for i := range g.Rows {
		g.Rows[i] = dedup.Row{Dedup: dedup.Level(i), Objects: objects[i], StoredBytes: sizes[i], RawBytes: sizes[i]}
		g.Rows[i].SavedOfNone = saved(sizes[i], sizes[0])
		if i > 1 {
			g.Rows[i].SavedOfLayer = saved(sizes[i], sizes[1])
		}
	}
	return g
}

// sampleReport returns the report of sample, added up by hand.
func sampleReport() *dedup.Report {
	db := [2][4]int64{{1, 2, 4, 4}, {51200, 51200, 43856, 43856}}
	web := [2][4]int64{{2, 3, 4, 6}, {622592, 613376, 606000, 437072}}
	return &dedup.Report{
		Level: 3, Images: 3,
		All:        group("all", "", 3, [4]int64{3, 4, 6, 7}, [4]int64{673792, 655360, 643856, 437072}),
		Categories: []dedup.Group{group("Data", "", 1, db[0], db[1]), group("Web", "", 2, web[0], web[1])},
		Series:     []dedup.Group{group("db", "Data", 1, db[0], db[1]), group("web", "Web", 2, web[0], web[1])},
		Paths:      dedup.Sizes{{Files: 8, Bytes: 7000}, {Files: 3, Bytes: 47856}, {Files: 2, Bytes: 600000}, {}},
		Unique:     dedup.Sizes{{Files: 2, Bytes: 1000}, {Files: 2, Bytes: 42856}, {Files: 2, Bytes: 600000}, {}},
		Redundancy: []dedup.Redundancy{
			{Name: "db", Images: 1, HeldBytes: 45856, NeededBytes: 1000, DistinctBytes: 1000},
			{Name: "web", Images: 2, HeldBytes: 609000, NeededBytes: 602000, DistinctBytes: 601000, Redundant: saved(601000, 602000)},
			{Name: "all", Images: 3, HeldBytes: 654856, NeededBytes: 603000, DistinctBytes: 601000, Redundant: saved(601000, 603000)},
		},
		UsedImages: 3, UsedUnknown: 2,
	}
}

func TestNumbers(t *testing.T) {
	dir := writeSample(t)
	for _, workers := range []int{0, 1, 4} {
		o := sampleOptions(t)
		o.Workers = workers
		var last dedup.Progress
		o.Progress = func(p dedup.Progress) { last = p }
		if diff := cmp.Diff(sampleReport(), analyse(t, dir, dedup.Set{}, o)); diff != "" {
			t.Errorf("%d workers (-want +got):\n%s", workers, diff)
		}
		if want := (dedup.Progress{Bytes: 655360, TotalBytes: 655360, Layers: 4, TotalLayers: 4}); last != want {
			t.Errorf("%d workers: got progress %+v, want %+v", workers, last, want)
		}
	}
}

func TestCompression(t *testing.T) {
	c := content{}
	text := strings.Repeat("All happy families are alike. ", 5000) // 150,000 bytes, two chunks
	raw := layerOf(t, member{name: "text", content: text}, member{name: "again", content: text})
	packed := gzipped(t, raw)
	dir := t.TempDir()
	writeLayout(t, dir, c, c.image(t, "linux/amd64", packed))
	rep := analyse(t, dir, dedup.Set{}, nil)
	layer, file, chunk := rep.All.Rows[dedup.Layer], rep.All.Rows[dedup.File], rep.All.Rows[dedup.Chunk]
	if layer.StoredBytes != int64(len(packed)) || layer.RawBytes != int64(len(raw)) {
		t.Errorf("layer %+v, want %d and %d bytes", layer, len(packed), len(raw))
	}
	if file.Objects != 1 || file.RawBytes != 150000 || file.StoredBytes < 30 || file.StoredBytes > 300 {
		t.Errorf("file %+v, want one of 150,000 bytes that compresses well", file)
	}
	if chunk.Objects != 2 || chunk.RawBytes != 150000 || chunk.StoredBytes <= file.StoredBytes || chunk.StoredBytes > 2*300 {
		t.Errorf("chunk %+v, want two of 150,000 bytes that compress well", chunk)
	}
	best := analyse(t, dir, dedup.Set{}, &dedup.Options{Level: 19})
	if best.Level != 19 || best.All.Rows[dedup.File].StoredBytes > file.StoredBytes {
		t.Errorf("level 19: %+v, want no more than %+v", best.All.Rows[dedup.File], file)
	}
}

// TestLargeFile analyses a file that is too large for memory: 137 times the same chunk.
func TestLargeFile(t *testing.T) {
	const times = 137
	chunk := noise(7, dedup.ChunkSize)
	c := content{}
	l := layerOf(t, member{name: "large", content: strings.Repeat(chunk, times)}, member{name: "small", content: chunk})
	dir, temp := t.TempDir(), t.TempDir()
	writeLayout(t, dir, c, c.image(t, "linux/amd64", l))
	rep := analyse(t, dir, dedup.Set{}, &dedup.Options{TempDir: temp})
	want := dedup.Row{Dedup: dedup.Chunk, Objects: 1, StoredBytes: dedup.ChunkSize, RawBytes: dedup.ChunkSize}
	got := rep.All.Rows[dedup.Chunk]
	got.SavedOfLayer, got.SavedOfNone = 0, 0
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("chunks (-want +got):\n%s", diff)
	}
	file := rep.All.Rows[dedup.File]
	if least := int64(2 * dedup.ChunkSize); file.Objects != 2 || file.RawBytes != (times+1)*dedup.ChunkSize || file.StoredBytes < least || file.StoredBytes > least+least/2 {
		t.Errorf("got files %+v, want two of %d bytes, stored in a little more than %d", file, (times+1)*dedup.ChunkSize, least)
	}
	if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
		t.Errorf("%d temporary files are left, %v", len(left), err)
	}
	var set dedup.Set
	if err := set.AddLayouts(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	if _, err := dedup.Analyse(t.Context(), &set, &dedup.Options{TempDir: filepath.Join(temp, "none")}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without the temporary directory: got %v, want that it does not exist", err)
	}
}

// TestTree checks that an image shows its layers stacked one over the other.
func TestTree(t *testing.T) {
	f := func(name string, size int) member { return member{name: name, content: noise(uint64(size), size)} }
	lower := []member{f("a/x", 1), f("a/y", 2), f("a/b/z", 4), f("top", 8), {name: "lib", link: "usr/lib"}, f("usr/lib/l", 16)}
	for name, tt := range map[string]struct {
		upper       []member
		files, size int64
	}{
		"nothing":                {nil, 5, 31},
		"file over file":         {[]member{f("top", 32)}, 5, 31 - 8 + 32},
		"whiteout of a file":     {[]member{{name: "a/.wh.x"}}, 4, 30},
		"of a directory":         {[]member{{name: ".wh.a"}}, 2, 24},
		"of what is not there":   {[]member{{name: "q/.wh.a"}}, 5, 31},
		"whiteout, then new":     {[]member{{name: ".wh.a"}, {name: "a/"}, f("a/n", 32)}, 3, 56},
		"new, then whiteout":     {[]member{{name: "a/"}, f("a/n", 32), {name: ".wh.a"}}, 3, 56},
		"opaque":                 {[]member{{name: "a/"}, f("a/n", 32), {name: "a/.wh..wh..opq"}}, 3, 56},
		"file over directory":    {[]member{f("a", 32)}, 3, 56},
		"directory over file":    {[]member{{name: "top/"}, f("top/n", 32)}, 5, 31 - 8 + 32},
		"directory again":        {[]member{{name: "a/"}}, 5, 31},
		"link over file":         {[]member{{name: "top", link: "a/x"}}, 4, 23},
		"hard link below":        {[]member{{name: "h", link: "=a/b/z"}}, 6, 35},
		"hard link to nothing":   {[]member{{name: "h", link: "=a/none"}}, 5, 31},
		"hard link to the new":   {[]member{f("top", 32), {name: "h", link: "=top"}}, 6, 31 - 8 + 64},
		"hard link to a link":    {[]member{{name: "h", link: "=lib"}, f("h/m", 32)}, 6, 63},
		"through a link":         {[]member{f("lib/l", 32)}, 5, 31 - 16 + 32},
		"whiteout through one":   {[]member{{name: "lib/.wh.l"}}, 4, 15},
		"link that dangles":      {[]member{{name: "e", link: "/new/dir"}, f("e/n", 32)}, 6, 63},
		"link up and out":        {[]member{{name: "e", link: "../../../a"}, f("e/x", 32)}, 5, 62},
		"links in a circle":      {[]member{{name: "e", link: "g"}, {name: "g", link: "e"}, f("e/n", 32)}, 5, 31},
		"the root":               {[]member{{name: "./"}}, 5, 31},
		"everything":             {[]member{{name: ".wh..wh..opq"}}, 0, 0},
		"whiteout's own layer":   {[]member{f("n", 32), {name: ".wh.n"}}, 6, 63},
		"file without directory": {[]member{f("new/dir/n", 32)}, 6, 63},
	} {
		t.Run(name, func(t *testing.T) {
			c := content{}
			dir := t.TempDir()
			writeLayout(t, dir, c, c.image(t, "linux/amd64", layerOf(t, lower...), layerOf(t, tt.upper...)))
			rep := analyse(t, dir, dedup.Set{}, nil)
			var got dedup.SizeClass
			for _, s := range rep.Paths {
				got.Files, got.Bytes = got.Files+s.Files, got.Bytes+s.Bytes
			}
			if want := (dedup.SizeClass{Files: tt.files, Bytes: tt.size}); got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
		})
	}
}

func TestPlatforms(t *testing.T) {
	one := func(n int) []byte { return layerOf(t, member{name: "f", content: noise(uint64(n), n)}) }
	with := func(d oci.Descriptor, platform string) oci.Descriptor {
		p := strings.Split(platform, "/")
		d.Platform = &ocispec.Platform{OS: p[0], Architecture: p[1]}
		if len(p) > 2 {
			d.Platform.Variant = p[2]
		}
		return d
	}
	c := content{}
	artifact := c.addJSON(t, oci.MediaTypeOCIManifest, map[string]any{"schemaVersion": 2, "config": oci.Descriptor{MediaType: "application/vnd.example"}, "layers": []oci.Descriptor{}})
	amd, arm := c.image(t, "linux/amd64", one(1)), c.image(t, "linux/arm64", one(2))
	index := c.index(t, with(amd, "linux/amd64"), with(arm, "linux/arm64/v8"), with(artifact, "unknown/unknown"))
	tags := []oci.Descriptor{c.index(t, index), arm, artifact, index} // the first one is an index within an index
	names := []string{"nested", "arm", "artifact", "index"}
	for i := range tags {
		tags[i].Annotations = map[string]string{"org.opencontainers.image.ref.name": names[i]}
	}
	dir := t.TempDir()
	writeLayout(t, dir, c, tags...)
	for _, tt := range []struct {
		set            dedup.Set
		images, layers int64
		skipped        int
	}{
		{dedup.Set{}, 2, 1, 2},
		{dedup.Set{Platform: "linux/arm64"}, 3, 1, 1},
		{dedup.Set{Platform: "linux/arm64/v8"}, 2, 1, 2},
		{dedup.Set{AllPlatforms: true}, 5, 2, 1},
	} {
		rep := analyse(t, dir, tt.set, nil)
		rows := rep.All.Rows
		if rows[dedup.None].Objects != tt.images || rows[dedup.Layer].Objects != tt.layers || rep.Skipped != tt.skipped || rep.Problems != nil {
			t.Errorf("%+v: got %d images, %d layers, %d skipped, problems %v; want %d, %d, %d", tt.set,
				rows[dedup.None].Objects, rows[dedup.Layer].Objects, rep.Skipped, rep.Problems, tt.images, tt.layers, tt.skipped)
		}
	}
	var set dedup.Set
	set.Platform = "windows/amd64"
	if err := set.AddLayouts(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	if _, err := dedup.Analyse(t.Context(), &set, nil); err == nil || err.Error() != "no images found" {
		t.Errorf("no image for the platform: got %v", err)
	}
}

// TestIndexesThatShareIndexes analyses an index through which exponentially more ways lead to the
// image than there are indexes. Each index counts once.
func TestIndexesThatShareIndexes(t *testing.T) {
	const wide, deep = 3, 3
	c := content{}
	below := []oci.Descriptor{c.image(t, "linux/amd64", layerOf(t, member{name: "f", content: "f"}))}
	for level := range deep {
		var made []oci.Descriptor
		for i := range wide {
			made = append(made, c.addJSON(t, oci.MediaTypeOCIIndex, ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: oci.MediaTypeOCIIndex,
				Manifests: below, Annotations: map[string]string{"n": fmt.Sprint(level, i)}}))
		}
		below = made
	}
	top := c.index(t, below...)
	top.Annotations = map[string]string{"org.opencontainers.image.ref.name": "top"}
	dir := t.TempDir()
	writeLayout(t, dir, c, top)
	rep := analyse(t, dir, dedup.Set{AllPlatforms: true}, nil)
	if n := rep.All.Rows[dedup.None].Objects; n != wide || rep.Problems != nil {
		t.Errorf("got %d images and the problems %v, want one for each of the %d indexes that name it", n, rep.Problems, wide)
	}
}

func TestOutput(t *testing.T) {
	rep := analyse(t, writeSample(t), dedup.Set{}, sampleOptions(t))
	out := t.TempDir()
	if err := errors.Join(rep.WriteCSV(filepath.Join(out, "new")), rep.WriteSVG(filepath.Join(out, "new"))); err != nil {
		t.Fatal(err)
	}
	var text, js strings.Builder
	if err := errors.Join(rep.WriteText(&text), rep.WriteJSON(&js)); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{"report.txt": text.String(), "report.json": js.String()}
	for _, name := range []string{"table2.csv", "figure7.csv", "figure2.csv", "sizes.csv"} {
		b, err := os.ReadFile(filepath.Join(out, "new", name))
		if err != nil {
			t.Fatal(err)
		}
		got[name] = string(b)
	}
	for name, text := range got {
		golden := filepath.Join("testdata", name)
		if os.Getenv("UPDATE_GOLDEN") != "" {
			if err := os.WriteFile(golden, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), text); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	for name, labels := range map[string][]string{
		"table2-bytes.svg": {"none", "layer", "file", "chunk", "674 kB", "437 kB"}, "table2-objects.svg": {"3 images", "7 chunks", "10"},
		"figure7.svg": {"db (1)", "web (2)", "Data (1)", "all together (3)", "14.3 %"}, "figure2.svg": {"web (2)", "all together (3)", "0.3 %"},
	} {
		b, err := os.ReadFile(filepath.Join(out, "new", name))
		if err != nil {
			t.Fatal(err)
		}
		texts := svgTexts(t, string(b))
		for _, l := range labels {
			if !strings.Contains(texts, "\n"+l+"\n") {
				t.Errorf("%s has no label %q, but%s", name, l, texts)
			}
		}
	}
}

// svgTexts returns the texts of an SVG file, one per line.
func svgTexts(t *testing.T, svg string) string {
	t.Helper()
	out := "\n"
	for dec := xml.NewDecoder(strings.NewReader(svg)); ; {
		tok, err := dec.Token()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		if start, ok := tok.(xml.StartElement); ok && start.Name.Local == "text" {
			var s string
			if err := dec.DecodeElement(&s, &start); err != nil {
				t.Fatal(err)
			}
			out += strings.TrimSpace(s) + "\n"
		}
	}
}

// TestTextOfLittle prints a report without any optional part, with numbers of any size.
func TestTextOfLittle(t *testing.T) {
	rep := &dedup.Report{Images: 1, LeftOut: 2, Skipped: 3, All: dedup.Group{Name: "all", Images: 1}}
	rep.All.Rows[dedup.File] = dedup.Row{Dedup: dedup.File, Objects: 1234567, StoredBytes: 999_960, RawBytes: 43_210_000_000_000_000, SavedOfLayer: -0.25}
	var b strings.Builder
	if err := rep.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"2 images left out", "3 references skipped", "1,234,567 files", "1.00 MB", "43.2 PB", "-25.0 %"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in:\n%s", want, b.String())
		}
	}
	if strings.Contains(b.String(), "category") || strings.Contains(b.String(), "needed") {
		t.Errorf("tables of nothing in:\n%s", b.String())
	}
	if err := rep.WriteSVG(t.TempDir()); err != nil {
		t.Errorf("charts of nothing: %v", err)
	}
}
