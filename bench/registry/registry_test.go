package registry

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/integration/bench/measure"
	"example.org/slipway/integration/bench/rival"
	"example.org/slipway/integration/internal/slipway"
)

// TestRun measures a real server with as little content as the scenarios need.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	o := &options{Options: measure.Options{Binary: slipway.Binary(t), Scenarios: "start,lists,gc", Dir: dir, Rounds: 2}, slice: 20 * time.Millisecond, scale: 1e-6}
	r, good, err := o.measure(t.Context())
	if err != nil || !good {
		t.Fatalf("measure: good %v, %v", good, err)
	}
	want := map[string]int{"start": 3 * 2, "lists": 6 * 2, "gc": 1 * 4} // both stores have the least size here
	got := map[string]int{}
	for _, s := range r.Samples {
		got[s.Scenario]++
		if s.Err != "" || s.Ops == 0 || s.ServerCPU <= 0 || s.Seconds <= 0 || s.RSS == 0 || s.PeakRSS < s.RSS {
			t.Errorf("not a measurement: %+v", s)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("samples per scenario (-want +got):\n%s", diff)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestPush pushes to a real server in every mode and pulls what it pushed.
func TestPush(t *testing.T) {
	s, err := startServer(t.Context(), rival.Slipway(nameSlipway, slipway.Binary(t), true), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer s.stop()
	for i, mode := range []pushMode{{}, {single: true}, {chunk: 300}} {
		im := smallImage(3, i)
		if err := s.pushImage(t.Context(), im, mode); err != nil {
			t.Fatalf("%+v: %v", mode, err)
		}
		var buf bytes.Buffer
		if n, err := s.pull(t.Context(), im, &buf); err != nil || n != im.bytes()+int64(len(im.manifest.data)) {
			t.Errorf("%+v: pulled %d bytes, %v", mode, n, err)
		}
		if err := s.head(t.Context(), im.repo, imageTag, smallImage(3, 99).manifest.digest); err == nil {
			t.Errorf("%+v: the digest of another image was accepted", mode)
		}
	}
}

// staticServer serves a tree.
func staticServer(t *testing.T, root string) *server {
	web := httptest.NewServer(http.FileServer(http.Dir(root)))
	t.Cleanup(web.Close)
	return &server{Server: &rival.Server{Spec: &rival.Spec{Static: true}, Addr: strings.TrimPrefix(web.URL, "http://")}, http: web.Client()}
}

func TestPullVerifies(t *testing.T) {
	root := t.TempDir()
	im := smallImage(1, 2)
	if err := (tree{root}).image(im); err != nil {
		t.Fatal(err)
	}
	s := staticServer(t, root)
	var buf bytes.Buffer
	n, err := s.pull(t.Context(), im, &buf)
	if want := im.bytes() + int64(len(im.manifest.data)); err != nil || n != want {
		t.Fatalf("pull: %d bytes, %v, want %d", n, err, want)
	}
	layer := filepath.Join(root, "v2", im.repo, "blobs", im.blobs[2].digest)
	if err := os.WriteFile(layer, []byte("other bytes"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.pull(t.Context(), im, &buf); err == nil {
		t.Error("a damaged layer was accepted")
	}
	if err := s.download(t.Context(), im.repo, im.blobs[2], make([]byte, 100)); err == nil {
		t.Error("a short blob was accepted")
	}
}

func TestContent(t *testing.T) {
	if diff := cmp.Diff(smallImage(1, 2), smallImage(1, 2), cmp.AllowUnexported(image{}, blob{})); diff != "" {
		t.Errorf("the same image twice:\n%s", diff)
	}
	seen := map[string]string{}
	for name, im := range map[string]*image{
		"set 1, 2": smallImage(1, 2), "set 1, 3": smallImage(1, 3), "set 2, 2": smallImage(2, 2),
		"another 1": smallImage(1, 2).another("x", 1), "another 2": smallImage(1, 2).another("x", 2),
	} {
		for _, b := range append(im.blobs, im.manifest) {
			if other, ok := seen[b.digest]; ok {
				t.Errorf("%s and %s share a blob", name, other)
			}
			seen[b.digest] = name
		}
	}
}

// madeUp returns results in which Slipway needs the given CPU time for a pull, and nginx needs 1
// ms.
func madeUp(slipwayMs float64) *Results {
	r := &Results{Run: Run{Date: time.Unix(0, 0), Commit: "abc", Command: "make bench", Rounds: 3, Scale: newScale(1),
		Servers: []RunServer{{Name: nameSlipway, Version: "1"}, {Name: nameNginx, Version: "2"}, {Name: nameZot, Missing: "gone"}}}}
	for round := 1; round <= 3; round++ {
		for server, ms := range map[string]float64{nameSlipway: slipwayMs, nameNginx: 1} {
			for _, cas := range []string{caseClients(1), caseClients(10)} {
				r.Samples = append(r.Samples, Sample{Scenario: "pull", Case: cas, Server: server, Round: round,
					Ops: 1000, Seconds: 1, ServerCPU: ms * (1 + float64(round-2)/10), P50: 1, P99: 2, RSS: 1e6, PeakRSS: 2e6})
			}
		}
	}
	r.Samples = append(r.Samples, Sample{Scenario: "pull", Case: caseClients(10), Server: nameDist2, Round: 1, Err: "it fell over"})
	return r
}

func TestCheck(t *testing.T) {
	for _, tt := range []struct {
		ms   float64
		good bool
		want string
	}{
		{1.5, true, "PASS  pull      CPU of a pull, C=10, slipway / nginx: 1.50 (at most 1.50; rounds 1.50 to 1.50)\n"},
		{1.6, false, "FAIL  pull      CPU of a pull, C=10, slipway / nginx: 1.60 (at most 1.50; rounds 1.60 to 1.60)\n"},
	} {
		var out strings.Builder
		if good := check(&out, madeUp(tt.ms)); good != tt.good || out.String() != tt.want {
			t.Errorf("%v ms: good %v, want %v:\n%s", tt.ms, good, tt.good, cmp.Diff(tt.want, out.String()))
		}
	}
	// This covers metrics where more is better, and a server that is missing.
	r := &Results{Run: Run{Scale: newScale(1)}}
	for server, n := range map[string]int{nameSlipway: 29, nameZotCommit: 10} {
		r.Samples = append(r.Samples, Sample{Scenario: "push", Case: caseClients(4), Server: server, Round: 1, Ops: n, Seconds: 1})
	}
	r.Samples = append(r.Samples, Sample{Scenario: "blob", Case: caseSize(1 << 20), Server: nameSlipway, Round: 1, Ops: 1, Bytes: 1, ServerCPU: 1})
	var out strings.Builder
	if check(&out, r) {
		t.Errorf("29 pushes where 10 * 3 are promised passed:\n%s", out.String())
	}
	if !strings.Contains(out.String(), "----  blob ") {
		t.Errorf("a comparison without nginx is not said to be missing:\n%s", out.String())
	}
}

func TestReport(t *testing.T) {
	text := report(madeUp(1.5), "PASS\n")
	for _, want := range []string{
		"| C=10 | slipway | 1.50 (1.35 to 1.65) |", "| C=10 | zot | not measured |", "| C=10 | Distribution 2.8 | failed: it fell over |",
		"| C=10 | nginx | 1.50 | 1.50 (1.50 to 1.50) |", "- zot: not measured: gone", "![", "```text\nPASS\n```",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the report lacks %q:\n%s", want, text)
		}
	}
}

// TestPlots checks that pictures are XML and that nothing lies outside them.
func TestPlots(t *testing.T) {
	r := madeUp(30)
	for i, size := range blobSizes {
		r.Samples = append(r.Samples, Sample{Scenario: "blob", Case: caseSize(size), Server: nameNginx, Round: 1, Ops: 1, Bytes: 1e9, ServerCPU: 0.2 * float64(i+1)})
	}
	r.Samples = append(r.Samples, Sample{Scenario: "head", Case: caseTags(10), Server: nameZot, Round: 1, Ops: 1000, ServerCPU: 0})
	list := plots(r)
	if len(list) != 3 {
		t.Fatalf("%d plots, want 3", len(list))
	}
	for _, p := range list {
		dec := xml.NewDecoder(strings.NewReader(p.Chart.SVG()))
		var width, height float64
		for {
			tok, err := dec.Token()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v\n%s", p.File, err, p.Chart.SVG())
			}
			e, _ := tok.(xml.StartElement)
			for _, a := range e.Attr {
				f, err := strconv.ParseFloat(a.Value, 64)
				switch name := a.Name.Local; {
				case e.Name.Local == "svg" && name == "width":
					width = f
				case e.Name.Local == "svg" && name == "height":
					height = f
				case strings.Contains(" x x1 x2 cx ", " "+name+" ") && (err != nil || !(f >= 0 && f <= width)),
					strings.Contains(" y y1 y2 cy ", " "+name+" ") && (err != nil || !(f >= 0 && f <= height)):
					t.Errorf("%s: %s of a %s is %s in a picture of %v x %v", p.File, name, e.Name.Local, a.Value, width, height)
				}
			}
		}
	}
}

func TestParse(t *testing.T) {
	t.Setenv("SLIPWAY_BIN", "")
	for args, ok := range map[string]bool{
		"":                                false, // no binary
		"-bin x":                          true,
		"-from results":                   true,
		"-bin x -rounds 0":                false,
		"-bin x -scale 0":                 false,
		"-bin x extra":                    false,
		"-bin x -variant new=y -check":    true,
		"-bin x -variant nonsense":        false,
		"-bin x -scenario pull -slice 1s": true,
	} {
		if _, err := parse(strings.Fields(args)); (err == nil) != ok {
			t.Errorf("%q: %v, want ok %v", args, err, ok)
		}
	}
	if _, err := chosen("pull,nothing"); err == nil {
		t.Error("an unknown scenario was accepted")
	}
	list, err := chosen("gc,pull")
	if err != nil || len(list) != 2 || list[0].name != "pull" {
		t.Errorf("scenarios %v, %v", list, err)
	}
}

func TestResultsFile(t *testing.T) {
	want := madeUp(2)
	want.Run.Date = want.Run.Date.UTC()
	path := filepath.Join(t.TempDir(), "results")
	if err := writeResults(path, want); err != nil {
		t.Fatal(err)
	}
	got, err := (&options{Options: measure.Options{Output: measure.Output{From: path}}}).read()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("results (-written +read):\n%s", diff)
	}
}

// FuzzReadResults checks that any results can be reported.
func FuzzReadResults(f *testing.F) {
	f.Add(`{"run":{"rounds":1}}` + "\n" + `{"sample":{"scenario":"pull","case":"C=10","server":"slipway","ops":0}}`)
	f.Add(`{"sample":{}}`)
	f.Add(fmt.Sprintf(`{"run":{}}{"sample":{"scenario":"blob","case":"1 MiB","server":"nginx","bytes":%d,"server_cpu_sec":1e308}}`, 1))
	f.Fuzz(func(t *testing.T, s string) {
		r, err := readResults(strings.NewReader(s))
		if err != nil {
			return
		}
		var out strings.Builder
		check(&out, r)
		report(r, out.String())
	})
}
