package analyze_test

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"example.org/slipway/workload/analyze"
	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/store"
)

// paperRows names the rows of the table of figures that the product promises.
const paperRows = "table1 4a 4b 5a 5b 6a 6b 7 8a 8b 8c 8d 8e 9 10a 10b 10c 10d 11a 11b 11c 11d 12a 12b 13a 13b 14a 14b 15a 15b"

func writeReport(t *testing.T, src analyze.Source, o *analyze.Options) (*analyze.Report, string) {
	t.Helper()
	rep, err := analyze.Run(context.Background(), src, o)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "new")
	if err := rep.Write(dir); err != nil {
		t.Fatal(err)
	}
	return rep, dir
}

func readFile(t *testing.T, elem ...string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(elem...))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestReportFiles checks that the page has every figure with its definition and needs
// nothing from outside, that every linked file exists, and that SVG and CSV files are
// valid.
func TestReportFiles(t *testing.T) {
	src := &memSource{names: []string{"dal09", "elsewhere"}, reqs: map[string][]req{"dal09": randomTrace(1, 2000), "elsewhere": randomTrace(2, 500)}}
	rep, dir := writeReport(t, src, nil)
	html := readFile(t, dir, "index.html")
	for id := range strings.FieldsSeq(paperRows) {
		f := rep.Figure(id)
		if f == nil {
			t.Errorf("there is no figure %s", id)
			continue
		}
		if len(f.Zones) != 2 || f.Definition == "" {
			t.Errorf("figure %s has %d zones and the definition %q", id, len(f.Zones), f.Definition)
		}
	}
	// Only styles, pictures and links count. Names of XML are not fetched.
	for _, m := range regexp.MustCompile(`(?i)(src|href|action)\s*=\s*"([^"]*)"|url\(|@import|https?://[^"<\s]*`).FindAllString(html, -1) {
		switch {
		case m == "http://www.w3.org/2000/svg", strings.HasPrefix(m, `href="#`):
		case strings.HasPrefix(m, `href="`):
			name := strings.TrimSuffix(strings.TrimPrefix(m, `href="`), `"`)
			if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
				t.Errorf("the page links %q: %v", name, err)
			}
		default:
			t.Errorf("the page needs %q", m)
		}
	}
	if !strings.Contains(html, "elsewhere: not in the paper") {
		t.Error("the page does not say that a zone is not in the paper")
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		text := readFile(t, dir, e.Name())
		switch filepath.Ext(e.Name()) {
		case ".svg":
			checkXML(t, e.Name(), text)
		case ".csv":
			if rows, err := csv.NewReader(strings.NewReader(text)).ReadAll(); err != nil || len(rows) < 2 {
				t.Errorf("%s has %d rows: %v", e.Name(), len(rows), err)
			}
		}
	}
	var back analyze.Report
	if err := json.Unmarshal([]byte(readFile(t, dir, "report.json")), &back); err != nil || len(back.Figures) != len(rep.Figures) {
		t.Errorf("report.json has %d figures, want %d (%v)", len(back.Figures), len(rep.Figures), err)
	}
}

func checkXML(t *testing.T, name, text string) {
	t.Helper()
	for dec := xml.NewDecoder(strings.NewReader(text)); ; {
		if _, err := dec.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Errorf("%s: %v", name, err)
			return
		}
	}
}

// TestComparison checks that published numbers stand beside ours only if both describe
// the same thing: zones of the paper, and totals over about as many days.
func TestComparison(t *testing.T) {
	reqs := []req{{method: store.GET, kind: trace.Manifest, repo: 1, ref: 1, status: 200}, {method: store.GET, kind: trace.Manifest, repo: 1, ref: 1, status: 200},
		{method: store.GET, kind: trace.Manifest, repo: 1, ref: 1, status: 200}, {method: store.PUT, kind: trace.Manifest, repo: 1, ref: 1, status: 201}}
	rep, dir := writeReport(t, &memSource{names: []string{"syd01", "other"}, reqs: map[string][]req{"syd01": reqs, "other": reqs}}, nil)
	find := func(figure, quantity, source string) analyze.Comparison {
		t.Helper()
		i := slices.IndexFunc(rep.Figure(figure).Comparisons, func(c analyze.Comparison) bool { return c.Quantity == quantity && c.Source == source })
		if i < 0 {
			t.Fatalf("figure %s does not compare %q with %s", figure, quantity, source)
		}
		return rep.Figure(figure).Comparisons[i]
	}
	for _, f := range rep.Figures {
		for _, c := range f.Comparisons {
			if c.Zone != "syd01" {
				t.Errorf("figure %s compares zone %s", f.ID, c.Zone)
			}
		}
	}
	if c := find("table1", "requests", "FAST'18, Table 1"); c.NotComparable != "1 of 65 days" || *c.Low != 1.03e6 {
		t.Errorf("one day's requests are compared with all of the paper: %+v", c)
	}
	// 75 % are pulls, the paper has 78 %. For 360 and 105 thousand images it is 77.4 %.
	if c := find("4a", "pulls", "FAST'18, text"); *c.Ours != 0.75 || *c.Low != 0.78 || *c.Difference > -0.029 || *c.Difference < -0.031 {
		t.Errorf("pulls: %+v", c)
	}
	if c := find("4b", "GET", "FAST'18, text"); *c.Difference != 0 || c.High != nil {
		t.Errorf("75 %% of GET are at least 60 %%: %+v", c)
	}
	if c := find("6a", "below 1 MB", "FAST'18, text"); c.Ours != nil || c.Difference != nil {
		t.Errorf("there is no layer to have a size: %+v", c)
	}
	html := readFile(t, dir, "index.html")
	for _, want := range []string{"not comparable: 1 of 65 days", ">syd01<span>1 of 65 days<", "not told<span", ">at least 60 %<", ">-3.00 points<", "</span>65 %<"} {
		if !strings.Contains(html, want) {
			t.Errorf("the page has no %q", want)
		}
	}
}

// hostile is a plug-in with words that a page does not expect.
type hostile struct{ n int64 }

func (h *hostile) Columns() store.Columns { return 0 }
func (h *hostile) Add(b *store.Batch)     { h.n += int64(b.Len()) }
func (h *hostile) Result() []analyze.Result {
	return []analyze.Result{{Requests: h.n, Notes: []string{"<script>alert(1)</script>"}, Values: []analyze.Value{{Name: "<b>&", Value: 1}},
		Series: []analyze.Series{{Name: `"><script>`, Points: []analyze.Point{{X: 1, Y: 1}}}, {Name: "\x00\xff", Points: nil}}}}
}

func TestPluginsAreEscapedAndChecked(t *testing.T) {
	plugin := func(id string) analyze.Plugin {
		return analyze.Plugin{Figures: []analyze.Figure{{ID: id, Title: "<script>alert(2)</script>", Definition: "</style><script>", Plot: analyze.Plot{Kind: analyze.PlotLines}}},
			New: func(store.Zone, *analyze.Options) analyze.Analysis { return &hostile{} }}
	}
	src := oneZone("z", randomTrace(1, 10))
	_, dir := writeReport(t, src, &analyze.Options{Plugins: []analyze.Plugin{plugin("mine")}})
	if html := readFile(t, dir, "index.html"); strings.Contains(html, "<script") || strings.Contains(html, "<b>&") {
		t.Error("the page has markup of a plug-in")
	}
	checkXML(t, "mine.svg", readFile(t, dir, "mine.svg"))
	for _, id := range []string{"", "4a", "../up", "A", "figure-4a", "comparison", "table1-curves"} {
		if _, err := analyze.Run(context.Background(), src, &analyze.Options{Plugins: []analyze.Plugin{plugin(id)}}); err == nil {
			t.Errorf("a figure may be called %q", id)
		}
	}
}

// broken is a plug-in with invalid results.
type broken struct {
	hostile
	results []analyze.Result
}

func (b *broken) Result() []analyze.Result { return b.results }

// TestPluginsAreHeldToTheirWord checks that an invalid plug-in fails by name, before
// anything is written.
func TestPluginsAreHeldToTheirWord(t *testing.T) {
	figures := []analyze.Figure{{ID: "mine", Title: "mine"}}
	src := oneZone("z", randomTrace(1, 10))
	for name, c := range map[string]struct {
		figures []analyze.Figure
		results []analyze.Result
		want    string
	}{
		"no figure": {nil, []analyze.Result{{}}, "0 figures"},
		"too few":   {figures, nil, "figure mine"},
		"NaN":       {figures, []analyze.Result{{Values: []analyze.Value{{Name: "v", Value: math.NaN()}}}}, `figure mine of zone z: value "v" is NaN`},
		"infinite":  {figures, []analyze.Result{{Series: []analyze.Series{{Name: "s", Points: []analyze.Point{{Y: math.Inf(1)}}}}}}, "figure mine of zone z: point 0"},
	} {
		p := analyze.Plugin{Figures: c.figures, New: func(store.Zone, *analyze.Options) analyze.Analysis { return &broken{results: c.results} }}
		_, err := analyze.Run(context.Background(), src, &analyze.Options{Plugins: []analyze.Plugin{p}})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	if _, err := analyze.Run(context.Background(), src, &analyze.Options{Plugins: []analyze.Plugin{{Figures: figures}}}); err == nil {
		t.Error("a plug-in without an analysis is taken")
	}
}

// TestUnitsOfPublished checks that published numbers have the same unit as ours, also
// where the trace lacks ours.
func TestUnitsOfPublished(t *testing.T) {
	src := &memSource{reqs: map[string][]req{}}
	for _, z := range []string{"dal", "dev", "fra", "lon", "prs", "stg", "syd"} {
		src.names, src.reqs[z] = append(src.names, z), randomTrace(1, 2000)
	}
	rep, err := analyze.Run(context.Background(), src, nil)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, f := range rep.Figures {
		for _, c := range f.Comparisons {
			quantity, _, _ := strings.Cut(c.Quantity, ", more than")
			i := slices.IndexFunc(f.Zone(c.Zone).Values, func(v analyze.Value) bool { return v.Name == quantity })
			if i < 0 {
				continue
			}
			if n++; f.Zone(c.Zone).Values[i].Unit != c.Unit {
				t.Errorf("figure %s, %s: %s is in %s, published in %s", f.ID, c.Zone, quantity, f.Zone(c.Zone).Values[i].Unit, c.Unit)
			}
		}
	}
	if n < 150 {
		t.Errorf("only %d numbers were compared", n)
	}
}

// TestComparedTable checks that the table has a row for each published quantity and a
// column for each zone. The cell of a zone is empty if the source has no number for it. A
// zone with two numbers of one quantity has two rows.
func TestComparedTable(t *testing.T) {
	src := &memSource{reqs: map[string][]req{}}
	for _, z := range []string{"dal", "fra", "other"} {
		src.names, src.reqs[z] = append(src.names, z), randomTrace(1, 500)
	}
	_, dir := writeReport(t, src, nil)
	html := readFile(t, dir, "index.html")
	tables := regexp.MustCompile(`(?s)<table class="compared">.*?</table>`).FindAllString(html, -1)
	if len(tables) < 10 {
		t.Fatalf("%d tables of comparisons", len(tables))
	}
	for _, table := range tables {
		rows := strings.Split(table, "<tr>")[1:]
		columns := strings.Count(rows[0], `<th scope="col">`) - 1
		if columns < 1 || columns > 2 || strings.Contains(rows[0], "other") {
			t.Errorf("head %s", rows[0])
		}
		for _, r := range rows[1:] {
			if got := strings.Count(r, "<td>"); got != columns {
				t.Errorf("%d cells of %d zones: %s", got, columns, r)
			}
		}
	}
	if got := strings.Count(tables[0], "<tr>"); got != 1+6+4 {
		t.Errorf("Table 1 is compared in %d rows with its head, want 11", got)
	}
	i := slices.IndexFunc(tables, func(s string) bool { return strings.Contains(s, "top 10<") })
	if got := strings.Count(tables[i], "top 10<"); got != 2 {
		t.Errorf("the top 10 of Figure 11a have %d rows, want 2", got)
	}
}

// TestWriteReplaces checks that a failed write leaves each file as it was, and that no
// link is followed.
func TestWriteReplaces(t *testing.T) {
	src := oneZone("z", randomTrace(1, 100))
	rep, dir := writeReport(t, src, nil)
	elsewhere := filepath.Join(t.TempDir(), "precious")
	if err := os.WriteFile(elsewhere, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"table1.csv", "figure-8a.svg", "report.json.new"} {
		if err := errors.Join(os.RemoveAll(filepath.Join(dir, name)), os.Symlink(elsewhere, filepath.Join(dir, name))); err != nil {
			t.Fatal(err)
		}
	}
	if err := rep.Write(dir); err != nil {
		t.Fatal(err)
	}
	if got := readFile(t, elsewhere); got != "precious" {
		t.Errorf("a link was followed: %q", got)
	}
	// A directory blocks the new file of the page, so the old page stays.
	page := readFile(t, dir, "index.html")
	if err := os.MkdirAll(filepath.Join(dir, "index.html.new", "x"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := rep.Write(dir); err == nil {
		t.Error("no error")
	}
	if readFile(t, dir, "index.html") != page {
		t.Error("the page has changed")
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".new") && !e.IsDir() {
			t.Errorf("%s is left", e.Name())
		}
	}
}

func TestOptionsAreChecked(t *testing.T) {
	src := oneZone("z", randomTrace(1, 10))
	for name, o := range map[string]*analyze.Options{
		"zone":       {Zones: []string{"nowhere"}},
		"session":    {Session: -time.Second},
		"keep-alive": {KeepAlive: -time.Second},
		"sizes":      {SizesOf: store.HEAD},
		"layers":     {LayersBy: "name"},
		"time":       {From: base.Add(time.Hour), To: base},
	} {
		if _, err := analyze.Run(context.Background(), src, o); err == nil {
			t.Errorf("%s: %+v is taken", name, o)
		}
	}
}

// TestRunEnds checks that an error of the source and the end of the context both end the
// run.
func TestRunEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	src := &memSource{names: []string{"z"}, reqs: map[string][]req{"z": randomTrace(1, 100)}, cut: func(int) []int { return []int{50} }}
	seen := int64(0)
	_, err := analyze.Run(ctx, src, &analyze.Options{Progress: func(p analyze.Progress) {
		seen = p.Records
		if p.Total != 100 || p.Zone != "z" {
			t.Errorf("progress is %+v", p)
		}
		cancel()
	}})
	if !errors.Is(err, context.Canceled) || seen != 50 {
		t.Errorf("after %d records the error is %v, want 50 and that the context was cancelled", seen, err)
	}
}
