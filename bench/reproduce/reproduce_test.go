package reproduce

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/integration/bench/cider"
	"example.org/slipway/integration/bench/gear"
	"example.org/slipway/integration/bench/measure"
	"example.org/slipway/integration/bench/mirrors"
	"example.org/slipway/integration/bench/start"
	"example.org/slipway/integration/bench/tiers"
	"example.org/slipway/integration/internal/ctrnode"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/internal/chart"
	"example.org/slipway/workload/analyze"
)

// TestEveryEntry compares the entries with the tables and figures of the papers that have values.
func TestEveryEntry(t *testing.T) {
	t.Parallel()
	want := map[string]string{
		fast18: "Table 1,Figure 4a,Figure 4b,Figure 5a,Figure 5b,Figure 6a,Figure 6b,Figure 7,Figure 8a,Figure 8b,Figure 8c,Figure 8d,Figure 8e,Figure 9," +
			"Figure 10a,Figure 10b,Figure 10c,Figure 10d,Figure 11a,Figure 11b,Figure 11c,Figure 11d,Figure 12a,Figure 12b,Figure 13a,Figure 13b,Figure 14a,Figure 14b," +
			"Figure 15a,Figure 15b,Figure 16,Figure 17,Figure 18",
		gearPaper:   "Table I,Table II,Figure 6,Figure 7,Figure 8,Figure 9,Figure 10,Figure 11a,Figure 11b",
		ociregistry: "Pull-through,Cached pulls,Server memory,API errors,One cached image",
		ciderPaper:  "Figure 2,Figure 6,Figure 7,Figure 8,Figure 9,Figure 10,Figure 11",
	}
	got := map[string]string{}
	ids := map[string]bool{}
	for _, e := range Entries() {
		got[e.Paper] = strings.TrimPrefix(got[e.Paper]+","+e.Name, ",")
		if ids[e.ID()] {
			t.Errorf("two entries are called %s", e.ID())
		}
		ids[e.ID()] = true
		if e.Title == "" || e.Did == "" || e.Differs == "" || e.Source == "" || partByName(e.Part) == nil {
			t.Errorf("%s lacks a text or a part: %+v", e.ID(), e)
		}
		if len(e.Claims) == 0 {
			t.Errorf("%s has no published value", e.ID())
		}
		names := map[string]bool{}
		for _, c := range e.Claims {
			if names[c.Name] || c.Low > c.High || math.IsInf(c.Low, -1) && math.IsInf(c.High, 1) {
				t.Errorf("%s has the claim %+v, or has it twice", e.ID(), c)
			}
			names[c.Name] = true
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("entries (-papers +table):\n%s", diff)
	}
	for _, p := range Parts() {
		if p.Minutes > 40 || p.Needs == "" {
			t.Errorf("part %s takes %d minutes and needs %q", p.Name, p.Minutes, p.Needs)
		}
		if !slices.ContainsFunc(Entries(), func(e Entry) bool { return e.Part == p.Name }) {
			t.Errorf("no entry has the part %s", p.Name)
		}
	}
}

func TestVerdict(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		claim Claim
		got   float64
		want  Verdict
	}{
		{exactly("", chart.Number, 100, More), 91, Reproduced},
		{exactly("", chart.Number, 100, More), 89, Worse},
		{exactly("", chart.Number, 100, More), 111, Better},
		{exactly("", chart.Number, 100, Less), 111, Worse},
		{exactly("", chart.Number, 100, Less), 89, Better},
		{exactly("", chart.Number, 100, Like), 111, Worse},
		{exactly("", chart.Number, 100, Like), 89, Worse},
		{Claim{Low: 100, High: 100, Within: 0.5}, 149, Reproduced},
		{Claim{Low: -0.5, High: 0.5}, -0.54, Reproduced},
		{Claim{Low: -0.5, High: 0.5}, -0.56, Worse},
		{atLeast("", chart.Number, 10, Like), 1e9, Reproduced},
		{atLeast("", chart.Number, 10, Like), 8, Worse},
		{atMost("", chart.Number, 0, Less), 0, Reproduced},
		{atMost("", chart.Number, 0, Less), 1, Worse},
	} {
		if got := c.claim.Verdict(one(c.got)); got != c.want {
			t.Errorf("%g against %+v is %s, want %s", c.got, c.claim, got, c.want)
		}
	}
	if got := (&Claim{}).Verdict(measure.Spread{}); got != NotRun {
		t.Errorf("nothing is %s", got)
	}
}

// TestEntryVerdict checks that the worst value decides, and that values that were not measured do not.
func TestEntryVerdict(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		values []float64 // 0 is not measured
		want   Verdict
	}{{[]float64{0, 0}, NotRun}, {[]float64{10, 0}, Reproduced}, {[]float64{20, 10}, Better}, {[]float64{10, 20}, Better}, {[]float64{1, 20}, Worse}, {[]float64{20, 1}, Worse}} {
		e := Entry{Claims: []Claim{exactly("a", chart.Number, 10, More), exactly("b", chart.Number, 10, More)}}
		e.Read = func(*Raw) *Finding {
			f := &Finding{Values: map[string]measure.Spread{}}
			for i, v := range c.values {
				if v > 0 {
					f.Values[e.Claims[i].Name] = one(v)
				}
			}
			return f
		}
		if got := e.judge(e.Read(nil)).verdict; got != c.want {
			t.Errorf("%v is %s, want %s", c.values, got, c.want)
		}
	}
}

// empty holds no results.
func empty() *Raw {
	return &Raw{&Results{}, &gear.Results{}, &start.Results{}, &tiers.Results{}, &mirrors.Results{}, &cider.Results{}}
}

// TestNotRun checks that a report of nothing names every entry, its published values and its command.
func TestNotRun(t *testing.T) {
	t.Parallel()
	raw, err := readRaw(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(empty(), raw); diff != "" {
		t.Errorf("an empty directory (-want +got):\n%s", diff)
	}
	r := newReport(found(raw, nil))
	text := r.markdown()
	for _, j := range r.Entries {
		if j.verdict != NotRun || len(j.pictures()) > 0 {
			t.Errorf("%s is %s with %d pictures", j.ID(), j.verdict, len(j.pictures()))
		}
		_, rest, ok := strings.Cut(text, "### "+j.Paper+", "+j.Name+": ")
		body, _, _ := strings.Cut(rest, "\n### ")
		if !ok || !strings.Contains(body, "`make reproduce ONLY="+j.Part+"`") || !strings.Contains(body, "| "+j.Claims[0].Name+" | "+j.Claims[0].Published()+" | – | not run") {
			t.Errorf("the report does not say how to run %s:\n%s", j.ID(), body)
		}
	}
}

// syntheticRaw returns raw figures of everything, in which each value is as published where that is easy.
func syntheticRaw() *Raw {
	raw := empty()
	run := measure.Run{Date: time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC), Commit: "abc", Command: "test", Rounds: 1}
	raw.Own.Traces = &Traces{Run: run, Report: syntheticAnalysis()}
	raw.Own.Caches = syntheticCaches(run)
	raw.Gear.Storage = &gear.Storage{Run: gear.Run{Run: run}, Images: 971, Layers: 5670, Bytes: 98e9, Dense: gear.State{Packs: 500, Bytes: 45.4e9, IndexBytes: 515e6}}
	for _, c := range categories() {
		raw.Gear.Storage.Sets = append(raw.Gear.Storage.Sets, gear.Set{Category: c.name, Layers: 1e9, Dense: int64(1e9 * (1 - c.saving))})
	}
	raw.Gear.Convert = &gear.Convert{Run: gear.Run{Run: run}, Images: []gear.ConvertImage{{Bytes: 1e6, Seconds: []float64{1}}, {Bytes: 2e6, Seconds: []float64{2}}, {Bytes: 3e6, Seconds: []float64{3.1}}}}
	syntheticStarts(raw.Start, run)
	bins := []tiers.Bin{{N: 5, Bytes: 1e3, Mean: 1}, {N: 5, Bytes: 1e5, Mean: 10}, {N: 5, Bytes: 5e5, Mean: 10}, {N: 5, Bytes: 5e6, Mean: 20}, {N: 5, Bytes: 5e7, Mean: 100}, {N: 5, Bytes: 1e9, Mean: 600}}
	raw.Tiers.Fig16 = &tiers.Fig16{Run: run}
	for name, factor := range map[string]float64{"RAM + Swift": 0.1, "local files": 0.2, "Swift": 1, "redirect to Swift": 1.5} {
		p := tiers.Place{Name: name, Bins: slices.Clone(bins)}
		for i := range p.Bins {
			p.Bins[i].Mean *= factor
		}
		raw.Tiers.Fig16.Places = append(raw.Tiers.Fig16.Places, p)
	}
	raw.Mirrors.Load = &mirrors.Load{Run: mirrors.Run{Run: run}}
	for _, server := range []string{"slipway", "Ociregistry"} {
		for _, mode := range []string{"cached", "pull-through"} {
			r := mirrors.Ramp{Server: server, Mode: mode, PeakRSS: 39e6}
			for n := 1; n <= 10; n++ {
				r.Steps = append(r.Steps, mirrors.Step{Pullers: n, Rate: 180 * float64(n)})
			}
			raw.Mirrors.Load.Ramps = append(raw.Mirrors.Load.Ramps, r)
		}
	}
	syntheticCider(raw.Cider, run)
	return raw
}

// syntheticAnalysis has each published number of the paper as its own.
func syntheticAnalysis() *analyze.Report {
	rep := &analyze.Report{}
	for _, e := range fast18Entries() {
		id := strings.TrimPrefix(e.Name, "Figure ")
		if id == "Table 1" {
			id = "table1"
		}
		f := analyze.FigureReport{Figure: analyze.Figure{ID: id}}
		for _, z := range zones() {
			r := analyze.ZoneResult{Zone: z}
			for name, v := range map[string]float64{"median": 2, "top 1 %": 0.5, "no layer": 0.7, "mean": 2} {
				r.Values = append(r.Values, analyze.Value{Name: name, Value: v})
			}
			r.Series = []analyze.Series{{Name: "s", Points: []analyze.Point{{X: 1, Y: 0.1}, {X: 10, Y: 1}}}}
			f.Zones = append(f.Zones, r)
		}
		for _, c := range analyze.Published(id) {
			c.Ours, c.NotComparable = c.Low, ""
			if c.Ours == nil {
				c.Ours = c.High
			}
			f.Comparisons = append(f.Comparisons, c)
		}
		rep.Figures = append(rep.Figures, f)
	}
	return rep
}

func syntheticCaches(run measure.Run) *Caches {
	c := &Caches{Run: run}
	for _, z := range append(zones(), sampleZone) {
		var list []CacheResult
		for range memories() {
			for range ssds() {
				list = append(list, CacheResult{RAMWarm: 0.41, NotCompulsory: 0.97})
			}
		}
		c.Caches = append(c.Caches, ZoneCaches{z, list})
	}
	for _, z := range zones() {
		p := ZonePulls{Zone: z}
		for _, lm := range []time.Duration{time.Hour, 24 * time.Hour} {
			for _, ml := range []time.Duration{time.Hour, 24 * time.Hour} {
				r := PullResult{HitsPerDecision: 1, PeakBytes: 1e9}
				if r.Config.LM, r.Config.ML = lm, ml; ml > time.Hour {
					r.HitsPerDecision = 3
				}
				p.Results = append(p.Results, r)
			}
		}
		c.Prefetch = append(c.Prefetch, p)
	}
	return c
}

func syntheticStarts(s *start.Results, run measure.Run) {
	r := start.Run{Run: run}
	s.Start, s.Sequence = &start.Start{Run: r}, &start.Sequence{Run: r}
	for _, l := range rates() {
		cell := start.Cell{Image: "nginx/1", Task: "first", Mbit: l.here}
		s.Start.Samples = append(s.Start.Samples, start.Sample{Cell: cell, System: "plain", PullSec: l.cold}, start.Sample{Cell: cell, System: "slipway", PullSec: 0.5, RunSec: 0.5})
		cell.Image = "tomcat/1"
		s.Start.Samples = append(s.Start.Samples, start.Sample{Cell: cell, System: "plain", PullSec: 2 * l.warm})
		for place := range 3 {
			s.Sequence.Versions = append(s.Sequence.Versions, start.SequenceVersion{Series: "tomcat", Mbit: l.here, Place: place, Plain: 2 * l.warm, Slipway: 2})
		}
	}
	s.Bytes = &start.Bytes{Run: r, Versions: []start.Version{{Series: "a", Plain: 1000, Empty: 290, Warm: 160}}}
	s.Local = &start.Local{Run: r, Tests: []start.LocalTest{{Name: "nginx, a page (ab)", PerSec: true, Plain: []float64{100}, Other: []float64{101}}}}
	s.Cycles = &start.Cycles{Run: r, Plain: []float64{1, 1}, Slipway: []float64{0.9, 1}}
}

func syntheticCider(c *cider.Results, run measure.Run) {
	c.Single = &cider.Single{Run: run, Sizes: map[string]int64{"a/1": 100e6, "b/1": 200e6, "c/1": 300e6}}
	c.Node10, c.Nodes, c.PageCache = &cider.Node10{Run: run}, &cider.Nodes{Run: run}, &cider.PageCache{Run: run}
	c.Throughput = &cider.Throughput{Run: run}
	seconds := map[string]float64{ctrnode.Plain: 10, ctrnode.VolumeLocal: 2, ctrnode.VolumeNetwork: 4}
	for way, sec := range seconds {
		for image, bytes := range c.Single.Sizes {
			d := cider.Deployment{Image: image, Way: way, Nodes: 1, Containers: 1, PullSec: sec * float64(bytes) / 100e6, RunSec: 1}
			c.Single.Deployments = append(c.Single.Deployments, d)
			for _, n := range []int{1, 10} {
				d.Containers, d.Steps = n, map[string]float64{"clone": 0.1 * float64(n*n), "map": 0.1 * float64(n*n)}
				c.Node10.Deployments = append(c.Node10.Deployments, d)
				d.Nodes = n
				c.Nodes.Deployments = append(c.Nodes.Deployments, d)
			}
		}
		c.PageCache.Samples = append(c.PageCache.Samples, cider.PageCacheSample{Way: way, Containers: 1, Bytes: 10}, cider.PageCacheSample{Way: way, Containers: 20, Bytes: 200})
	}
	c.Throughput.List = []cider.ThroughputOne{{Name: "nginx, a page (ab)", PerSec: map[string][]float64{ctrnode.Plain: {10}, ctrnode.VolumeLocal: {10}}}}
}

// TestReport writes raw figures as the suites do, reads them, and checks the report of them.
func TestReport(t *testing.T) {
	t.Parallel()
	dir, want := t.TempDir(), syntheticRaw()
	for name, results := range map[string]any{ownFile: want.Own, resultsFile("gear"): want.Gear, resultsFile("start"): want.Start, resultsFile("tiers"): want.Tiers,
		resultsFile("mirrors"): want.Mirrors, resultsFile("cider"): want.Cider} {
		if err := measure.Save(filepath.Join(dir, name), results); err != nil {
			t.Fatal(err)
		}
	}
	raw, err := readRaw(dir)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, raw); diff != "" {
		t.Errorf("raw figures (-written +read):\n%s", diff)
	}
	r := newReport(found(raw, nil))
	for _, j := range r.Entries {
		if j.verdict == NotRun {
			t.Errorf("%s is not run", j.ID())
		}
	}
	for name, want := range map[string]Verdict{"FAST'18 Table 1": Reproduced, "FAST'18 Figure 16": Worse, "Gear Figure 9": Reproduced, "Gear Figure 7": Reproduced, "Gear Table II": Better,
		"Ociregistry Cached pulls": Reproduced, "Ociregistry Pull-through": Better, "Ociregistry API errors": Reproduced, "Cider Figure 7": Worse, "Cider Figure 2": Reproduced,
		"Cider Figure 6": Worse, "Gear Figure 10": Worse} {
		for _, j := range r.Entries {
			if j.Paper+" "+j.Name == name && j.verdict != want {
				t.Errorf("%s is %s, want %s: %v", name, j.verdict, want, j.rows())
			}
		}
	}
	checkPictures(t, r)
	checkFiles(t, dir, r)
}

// checkPictures checks that each curve and each kind of value is in a picture, beside the published one.
func checkPictures(t *testing.T, r *report) {
	for _, j := range r.Entries {
		if len(j.pictures()) == 0 && !strings.HasPrefix(j.Name, "Table") && len(j.Claims) <= mostBars {
			t.Errorf("%s has no picture", j.ID())
		}
		for _, p := range j.pictures() {
			var text strings.Builder
			for d := xml.NewDecoder(strings.NewReader(p.SVG(nil))); ; {
				tok, err := d.Token()
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					t.Fatalf("%s: %v", p.File, err)
				}
				if c, ok := tok.(xml.CharData); ok {
					text.Write(c)
				}
			}
			if !strings.Contains(text.String(), "published") || len(j.found.Curves)+strings.Count(text.String(), "here") == 0 {
				t.Errorf("%s does not name what is published and what is measured: %s", p.File, &text)
			}
		}
	}
}

// checkFiles writes the report's files and checks that the document shows the pictures.
func checkFiles(t *testing.T, raw string, r *report) {
	out := t.TempDir()
	doc, images, page := filepath.Join(out, "doc.md"), filepath.Join(out, "img"), filepath.Join(out, "page.html")
	stale := filepath.Join(images, "reproduce-stale.svg")
	err := errors.Join(os.Mkdir(images, 0o755), os.WriteFile(stale, nil, 0o644), os.WriteFile(doc, []byte("before\n"+marks().Begin+marks().End+"\nafter"), 0o644))
	if err != nil {
		t.Fatal(err)
	}
	o, err := parse([]string{"-only", "report", "-raw", raw, "-doc", doc, "-img", images, "-html", page}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if good, err := o.run(t.Context()); err != nil || !good {
		t.Fatalf("report: %t, %v", good, err)
	}
	text, err := os.ReadFile(doc)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), strings.TrimSpace(r.markdown())) || !strings.HasSuffix(string(text), "\nafter") {
		t.Error("the document does not have the report between its marks")
	}
	if _, err := os.Stat(stale); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a picture of an earlier report: %v", err)
	}
	for _, p := range r.pictures() {
		if _, err := os.Stat(filepath.Join(images, p.File)); err != nil || !strings.Contains(string(text), "(img/"+p.File+")") {
			t.Errorf("picture %s is missing: %v", p.File, err)
		}
	}
	html, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Count(string(html), "<svg"), len(r.pictures()); got != want {
		t.Errorf("the page has %d pictures, want %d", got, want)
	}
	for _, j := range r.Entries {
		if !strings.Contains(string(html), `<section id="`+j.ID()+`">`) {
			t.Errorf("the page lacks %s", j.ID())
		}
	}
}

// TestOwnParts measures small traces with the binary.
func TestOwnParts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, part := range []string{partTraces, partCaches} { // the second run keeps what the first wrote
		o, err := parse([]string{"-quick", "-only", part, "-raw", dir, "-bin", slipway.Binary(t), "-dir", t.TempDir(), "-traces", "", "-doc", os.DevNull}, nil)
		if err != nil {
			t.Fatal(err)
		}
		parts, err := o.chosen()
		if err != nil {
			t.Fatal(err)
		}
		if err := o.part(t.Context(), parts[0]); err != nil {
			t.Fatal(err)
		}
	}
	raw, err := readRaw(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range fast18Entries() {
		j := e.judge(e.Read(raw))
		if e.Part == "fig16" {
			continue
		}
		// A short trace has no totals, and too few requests for some slopes.
		if j.verdict == NotRun && e.Name != "Table 1" {
			t.Errorf("%s is not run", j.ID())
		}
		for i, c := range j.Claims {
			if j.verdicts[i] == NotRun && !c.Total && e.Part == partTraces && e.Name != "Figure 9" {
				t.Errorf("%s: nothing is found for %q", j.ID(), c.Name)
			}
		}
	}
}

// TestOnly checks that parts are chosen by name.
func TestOnly(t *testing.T) {
	t.Parallel()
	if _, err := parse([]string{"-only", "nothing"}, nil); err == nil || !strings.Contains(err.Error(), partTraces) {
		t.Errorf("an unknown part: %v", err)
	}
	o, err := parse([]string{"-only", "fig16,gear-cycles"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if parts, err := o.chosen(); err != nil || len(parts) != 2 {
		t.Errorf("parts %+v, %v", parts, err)
	}
}
