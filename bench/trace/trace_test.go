package trace

import (
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/integration/bench/measure"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/tool"
)

// publishedFile returns the path of the project's table of published figures.
func publishedFile() string {
	return filepath.Join("..", "..", "docs", "synthetic-traces.md")
}

// TestRun takes a quick look at everything, and reads what it wrote.
func TestRun(t *testing.T) {
	scenarios := "import,analyse,figures,timely,simulate"
	if _, err := tool.Find("docker-registry"); err == nil {
		scenarios += ",compare"
	}
	t.Setenv("SLIPWAY_BENCH_ZOT", "")
	t.Setenv("SLIPWAY_BENCH_DISTRIBUTION", "")
	dir, kept := t.TempDir(), t.TempDir()
	out := filepath.Join(kept, "results")
	o, err := parse([]string{"-bin", slipway.Binary(t), "-quick", "-dir", dir, "-records", "30000", "-requests", "60000",
		"-published", publishedFile(), "-traces", "", "-scenario", scenarios, "-out", out})
	if err != nil {
		t.Fatal(err)
	}
	r, err := o.measure(t.Context())
	if err != nil {
		t.Fatalf("measure: %v", err)
	}
	checkResults(t, r)
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
	text := measure.Report("PASS\n", again.Parts())
	for _, p := range again.Parts() {
		if !strings.Contains(text, "### "+p.Title()+"\n") {
			t.Errorf("the report lacks %q", p.Title())
		}
	}
	if len(again.Parts()) != len(strings.Split(scenarios, ",")) {
		t.Errorf("%d parts of %s", len(again.Parts()), scenarios)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// checkResults checks what holds on any machine.
func checkResults(t *testing.T, r *Results) {
	t.Helper()
	if im := r.Import; im.Files == 0 || im.Bytes < 200*im.Records || len(im.Scan) != 1 || im.One[0].CPU <= im.Scan[0].CPU || im.One[0].PeakRSS < 10e6 || im.One[0].PeakRSS > 2e9 {
		t.Errorf("import: %+v", im)
	}
	if a := r.Analyse; a.StoreBytes < a.Requests || a.Analyze[0].Wall <= 0 || a.Analyze[0].PeakRSS < 10e6 {
		t.Errorf("analyse: %+v", a)
	}
	if f := r.Figures.Traces; len(f) != 1 || f[0].Met < 100 || len(f[0].NotFound) > 30 {
		t.Errorf("figures: %+v", f)
	}
	if s := r.Timely.Summary; s.Requests != timelyQuick || s.Lag.Max < s.Lag.P99 || s.Seconds < 1.9 {
		t.Errorf("timely: %+v", s)
	}
	if s := r.Simulate; s.Requests == 0 || len(s.Policies) != 3 || len(s.Sample) != 0 {
		t.Errorf("simulate: %+v", s)
	}
	c := r.Compare
	if c == nil {
		return
	}
	if len(c.Compared) != 1 || c.Compared[0].Base != "slipway" || c.Compared[0].change("p99") == "-" || c.Page != comparePage {
		t.Errorf("compare: %+v", c)
	}
	for _, s := range c.Servers {
		if s.Missing == "" && (s.Summary.Outcomes["ok"] != s.Summary.Requests || s.CPU <= 0 || s.PeakRSS == 0 || s.Version == "") {
			t.Errorf("compare: %+v", s)
		}
	}
}

func TestTargets(t *testing.T) {
	second := measure.Spent{Times: measure.Times{Wall: 10, CPU: 12}, PeakRSS: 3e9}
	r := &Results{
		Import:  &Import{Records: 8e6, One: []measure.Spent{{Times: measure.Times{Wall: 10}}}, Two: []measure.Spent{second}},
		Analyse: &Analyse{Requests: archiveRequests, Analyze: []measure.Spent{{Times: measure.Times{Wall: 100}}, {Times: measure.Times{Wall: 121}}}},
		Figures: &Figures{Traces: []FigureList{{Name: "some", Met: 3, Missed: []Found{{}}}}},
		Timely:  &Timely{Summary: replaySummary{Requests: 1000, Late: 5}},
		Compare: &Compare{Servers: []Rival{{Name: "zot", Missing: "SLIPWAY_BENCH_ZOT is not set"}}},
	}
	var out strings.Builder
	if measure.CheckParts(&out, r.Parts()) {
		t.Error("targets that are missed were not found")
	}
	for _, want := range []string{
		"PASS  import      records/s, one core: 0.800 M (at least 0.500 M)\n",
		"FAIL  import      records/s/core, two cores: 0.400 M (at least 0.500 M)\n",
		"FAIL  import      peak RSS: 3000 MB (at most 2000 MB; 0 to 3000)\n",
		"FAIL  analyse     all figures: 121 s (at most 120 s; 100 to 121)\n",
		"FAIL  figures     not met, some: 1.00 (at most 0)\n",
		"PASS  timely      requests that leave within 2 ms of their time: 99.5 % (at least 99.0 %)\n",
		"----  compare     registries compared in one report: not measured (at least 3.00)\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the verdict lacks %q:\n%s", want, out.String())
		}
	}
	r.Import.Records = leastRecords - 1
	if got := r.Import.Targets()[0]; !got.Missing {
		t.Errorf("an import of few records is judged: %+v", got)
	}
	r.Analyse.Requests--
	if got := r.Analyse.Targets()[0]; !got.Missing {
		t.Errorf("a smaller trace is judged: %+v", got)
	}
	if !measure.CheckParts(io.Discard, (&Results{Figures: &Figures{}}).Parts()) {
		t.Error("targets that are met were found missed")
	}
}

func TestFill(t *testing.T) {
	r, old := &Results{Import: &Import{}}, &Results{Import: &Import{Records: 1}, Timely: &Timely{Requests: 3}, Compare: &Compare{}}
	r.Fill(old)
	if r.Import.Records != 0 || r.Timely == nil || r.Compare == nil || r.Simulate != nil {
		t.Errorf("filled: %+v", r)
	}
}

// TestPublished checks that the document's tables can be read, and that the analysis knows no
// figure that is missing from them.
func TestPublished(t *testing.T) {
	doc, err := os.ReadFile(publishedFile())
	if err != nil {
		t.Fatal(err)
	}
	list, err := parsePublished(string(doc))
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, p := range list {
		names[p.Name] = true
		if p.Low > p.High || p.Zone == "" {
			t.Errorf("%+v", p)
		}
	}
	for name := range finders() {
		if !names[name] {
			t.Errorf("nothing is published as %q", name)
		}
	}
	if want := (Published{"dal", "first layer", 0.023, 0.033}); len(list) < 150 || !contains(list, want) {
		t.Errorf("%d figures, without %+v", len(list), want)
	}
	if want := (Published{allZones, "PATCH, % of all requests", 1.891 - 0.3, 1.891 + 0.3}); !contains(list, want) {
		t.Errorf("there is no %+v", want)
	}
}

func contains(list []Published, want Published) bool {
	for _, p := range list {
		if p.Zone == want.Zone && p.Name == want.Name && math.Abs(p.Low-want.Low) < 1e-9 && math.Abs(p.High-want.High) < 1e-9 {
			return true
		}
	}
	return false
}

func TestPublishedIsChecked(t *testing.T) {
	const head = "| zone | figure | published | accepted | seed 1 |\n|---|---|---|---|---|\n"
	for doc, ok := range map[string]bool{
		head + "| dal | x | – | 1 to 2 | 3 |\n":     true,
		head + "| dal | x | – | 1 | 3 |\n":          false,
		head + "| dal | x | – | one to 2 | 3 |\n":   false,
		head + "| dal | x |\n":                      false,
		"| other | table |\n|---|---|\n| 1 | 2 |\n": false,
		"": false,
	} {
		if _, err := parsePublished(doc); (err == nil) != ok {
			t.Errorf("%q: %v, want ok %v", doc, err, ok)
		}
	}
}

func FuzzParsePublished(f *testing.F) {
	f.Add("| zone | figure | accepted |\n|---|---|---|\n| dal | x | 1 to 2 |\n")
	f.Add("| | archive | tolerance |\n|---|---|---|\n| GET | 78 | ±0.6 |\n")
	f.Fuzz(func(t *testing.T, doc string) {
		list, err := parsePublished(doc)
		if (err == nil) != (len(list) > 0) {
			t.Errorf("%d figures and %v", len(list), err)
		}
	})
}

// TestFind finds figures in a report that is made by hand.
func TestFind(t *testing.T) {
	dir := t.TempDir()
	const text = `{"figures": [
 {"id": "table1", "zones": [{"zone": "dal", "values": [{"name": "requests", "value": 100}, {"name": "GET", "value": 80}]},
                            {"zone": "dev", "values": [{"name": "requests", "value": 300}, {"name": "GET", "value": 100}]}]},
 {"id": "6a", "zones": [{"zone": "dal", "series": [{"name": "requests", "points": [{"x": 16000, "y": 0.5}, {"x": 17000, "y": 0.6}]}]}]},
 {"id": "10a", "zones": [{"zone": "dal", "requests": 50, "values": [{"name": "items", "value": 20}]}]},
 {"id": "12a", "zones": [{"zone": "dal", "series": [{"name": "sessions", "points": [{"x": 0, "y": 0.8}, {"x": 2, "y": 0.88}, {"x": 3, "y": 0.92}, {"x": 9, "y": 1}]}]}]}]}`
	if err := os.WriteFile(filepath.Join(dir, "report.json"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := readReport(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		zone, name string
		want       float64
		ok         bool
	}{
		{"dal", "layer GETs below 16 KiB", 0.5384, true},
		{"dal", "layer GETs below 1 MiB", 0.6, true},
		{"dev", "layer GETs below 16 KiB", 0, false},
		{"dal", "first touches, share of layer GETs", 0, false}, // of three days alone
		{"dal", "layers after a manifest, median", 3, true},
		{"dal", "layers after a manifest, p90", 9, true},
		{"dal", "requests at night over by day", 0, false},
		{"dal", "never heard of", 0, false},
		{allZones, "GET, % of all requests", 45, true},
		{allZones, "HEAD, % of all requests", 0, false},
	} {
		got, ok := r.find(Published{Zone: x.zone, Name: x.name})
		if ok != x.ok || ok && math.Abs(got-x.want) > 1e-9 {
			t.Errorf("%s of %s: %v, %v, want %v, %v", x.name, x.zone, got, ok, x.want, x.ok)
		}
	}
	l := r.judge("this", []Published{{"dal", "layers after a manifest, median", 2, 3}, {"dal", "layers after a manifest, p90", 8, 8.5}, {"dal", "nothing", 0, 1}})
	if l.Met != 1 || len(l.Missed) != 1 || len(l.NotFound) != 1 {
		t.Errorf("judged: %+v", l)
	}
	r.partial = true
	if _, ok := r.find(Published{Zone: allZones, Name: "GET, % of all requests"}); ok {
		t.Error("zones that are not of the archive's sizes were taken together")
	}
	if got, ok := r.find(Published{Zone: "dal", Name: "first touches, share of layer GETs"}); !ok || math.Abs(got-0.4) > 1e-9 {
		t.Errorf("first touches of three days: %v, %v", got, ok)
	}
}

func TestScan(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.json")
	if err := os.WriteFile(path, []byte("[\n"+`{"host":"h","http.response.written":3}`+",\n"+`{"host":"i"}`+"\n]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{1, 7, 1 << 20} {
		if n, err := scan(path, make([]byte, size)); err != nil || n != 10 {
			t.Errorf("by %d bytes: %d quotes, %v, want 10", size, n, err)
		}
	}
	if err := decodeFile(path); err != nil {
		t.Error(err)
	}
	if err := scanAll(t.Context(), nil); err == nil {
		t.Error("an empty archive was scanned")
	}
}

func TestParse(t *testing.T) {
	t.Setenv("SLIPWAY_BIN", "")
	for args, ok := range map[string]bool{
		"":                               false, // no binary
		"-bin x":                         true,
		"-from results":                  true,
		"-bin x -rounds 0":               false,
		"-bin x -records 0":              false,
		"-bin x -requests -1":            false,
		"-bin x extra":                   false,
		"-bin x -quick -scenario timely": true,
	} {
		if _, err := parse(strings.Fields(args)); (err == nil) != ok {
			t.Errorf("%q: %v, want ok %v", args, err, ok)
		}
	}
	o, err := parse(strings.Fields("-bin /secret/x -quick -rounds 2 -scenario timely -dir /secret"))
	if err != nil || o.Command != "scripts/bench-trace.sh -quick -rounds 2 -scenario timely" || o.Rounds != 2 || o.records != quickRecords || o.requests != quickRequests {
		t.Errorf("options %+v, %v", o, err)
	}
	if o, err = parse(strings.Fields("-bin x -full")); err != nil || o.records != archiveRequests || o.requests != 0 {
		t.Errorf("options %+v, %v", o, err)
	}
	if o, err = parse(strings.Fields("-bin x -quick -records 7")); err != nil || o.records != 7 {
		t.Errorf("options %+v, %v", o, err)
	}
	b := &bench{Bench: o.On("x", t.TempDir()), o: o}
	if b.needRoom("all", math.MaxInt64) == nil || b.needRoom("nothing", 1) != nil {
		t.Error("the room on the disk is not looked at")
	}
}
