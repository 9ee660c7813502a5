package reproduce

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/integration/bench/measure"
	"example.org/slipway/internal/chart"
)

// TestFiguresOutliveRaw checks that a report without the raw figures of an earlier run is the same,
// and that a report from few raw figures keeps the rest.
func TestFiguresOutliveRaw(t *testing.T) {
	t.Parallel()
	full, dir := t.TempDir(), t.TempDir()
	raw := syntheticRaw()
	for name, results := range map[string]any{ownFile: raw.Own, resultsFile("gear"): raw.Gear, resultsFile("start"): raw.Start, resultsFile("tiers"): raw.Tiers,
		resultsFile("mirrors"): raw.Mirrors, resultsFile("cider"): raw.Cider} {
		if err := measure.Save(filepath.Join(full, name), results); err != nil {
			t.Fatal(err)
		}
	}
	write := func(rawDir string) string {
		t.Helper()
		doc := filepath.Join(t.TempDir(), "doc.md")
		if err := os.WriteFile(doc, []byte(marks().Begin+marks().End), 0o644); err != nil {
			t.Fatal(err)
		}
		o, err := parse([]string{"-only", "report", "-raw", rawDir, "-figures", dir, "-doc", doc}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := o.run(t.Context()); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	want := write(full)
	if diff := cmp.Diff(want, write(t.TempDir())); diff != "" {
		t.Errorf("report (-with +without raw figures):\n%s", diff)
	}
	// A later run of one part changes its entries and no other.
	part := t.TempDir()
	later := syntheticCaches(measure.Run{Date: time.Date(2026, 1, 3, 0, 0, 0, 0, time.UTC), Commit: "later"})
	if err := measure.Save(filepath.Join(part, ownFile), &Results{Caches: later}); err != nil {
		t.Fatal(err)
	}
	got := write(part)
	if n := strings.Count(got, " at later on "); n != 2 || strings.Contains(got, "Not run: `") {
		t.Errorf("%d entries of the later run, want Figures 17 and 18; not run: %t", n, strings.Contains(got, "Not run: `"))
	}
}

// TestFiguresRoundTrip checks that kept figures are those that were found.
func TestFiguresRoundTrip(t *testing.T) {
	t.Parallel()
	dir, want := t.TempDir(), found(syntheticRaw(), nil)
	if err := want.write(dir, Entries()); err != nil {
		t.Fatal(err)
	}
	got, err := readFigures(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range Entries() {
		f := want[e.ID()]
		claimed := map[string]measure.Spread{}
		for _, c := range e.Claims {
			if v := f.Values[c.Name]; v.N > 0 {
				claimed[c.Name] = v
			}
		}
		if diff := cmp.Diff(claimed, got[e.ID()].Values); diff != "" {
			t.Errorf("values of %s (-found +read):\n%s", e.ID(), diff)
		}
		near := cmp.Comparer(func(a, b float64) bool { return a == b || a-b < 1e-4*b && b-a < 1e-4*b })
		if diff := cmp.Diff(f.Curves, got[e.ID()].Curves, near); diff != "" {
			t.Errorf("curves of %s (-found +read):\n%s", e.ID(), diff)
		}
	}
}

// TestNewest checks which of two findings counts.
func TestNewest(t *testing.T) {
	t.Parallel()
	at := func(day int, quick bool, values map[string]float64, curves ...string) *Finding {
		f := &Finding{Run: &measure.Run{Date: time.Date(2026, 1, day, 0, 0, 0, 0, time.UTC), Quick: quick}, Values: map[string]measure.Spread{}}
		for name, v := range values {
			f.Values[name] = one(v)
		}
		for _, c := range curves {
			f.Curves = append(f.Curves, Curve{Name: c, Points: []chart.Point{{X: float64(day)}}})
		}
		return f
	}
	type values = map[string]float64
	for _, c := range []struct {
		name                 string
		measured, kept, want *Finding
	}{
		{"nothing", nil, nil, nil},
		{"only measured", at(1, false, values{"a": 1}), nil, at(1, false, values{"a": 1})},
		{"only kept", nil, at(1, false, values{"a": 1}), at(1, false, values{"a": 1})},
		{"later measured", at(2, false, values{"a": 2}, "x"), at(1, false, values{"a": 1, "b": 1}, "x", "y"),
			&Finding{at(2, false, nil).Run, map[string]measure.Spread{"a": one(2), "b": one(1)}, append(at(2, false, nil, "x").Curves, at(1, false, nil, "y").Curves...)}},
		{"later kept", at(1, false, values{"a": 1, "b": 1}), at(2, false, values{"a": 2}), at(2, false, values{"a": 2, "b": 1})},
		{"a quick look", at(2, true, values{"a": 2}), at(1, false, values{"a": 1}), at(1, false, values{"a": 1})},
		{"only a quick look", at(2, true, values{"a": 2}), nil, at(2, true, values{"a": 2})},
	} {
		if diff := cmp.Diff(c.want, newest(c.measured, c.kept)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

// TestQuickIsNotKept checks that a quick look leaves no file.
func TestQuickIsNotKept(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	all := found(&Raw{Own: &Results{Caches: syntheticCaches(measure.Run{Quick: true})}, Gear: empty().Gear, Start: empty().Start, Tiers: empty().Tiers,
		Mirrors: empty().Mirrors, Cider: empty().Cider}, nil)
	if len(all) == 0 {
		t.Fatal("nothing is found")
	}
	if err := all.write(dir, Entries()); err != nil {
		t.Fatal(err)
	}
	if list, err := os.ReadDir(dir); err != nil || len(list) > 0 {
		t.Errorf("files %v, error %v", list, err)
	}
}

// TestPublishedFigures checks that the figures in the repository are those of its report: that each
// belongs to an entry and its part, and that the document says no other thing of any entry.
func TestPublishedFigures(t *testing.T) {
	t.Parallel()
	docs := filepath.Join("..", "..", "docs")
	dir := filepath.Join(docs, "reproduction")
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no figures in %s: %v", dir, err)
	}
	parts := map[string]string{}
	for _, e := range Entries() {
		parts[e.ID()] = e.Part
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var kept map[string]keptFinding
		d := json.NewDecoder(bytes.NewReader(text))
		d.DisallowUnknownFields()
		if err := d.Decode(&kept); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		for id := range kept {
			if figuresFile(parts[id]) != filepath.Base(file) {
				t.Errorf("%s has %s of part %q", file, id, parts[id])
			}
		}
	}
	kept, err := readFigures(dir)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile(filepath.Join(docs, "reproduction.md"))
	if err != nil {
		t.Fatal(err)
	}
	if r := newReport(kept); !strings.Contains(string(doc), strings.TrimSpace(r.markdown())) {
		t.Error("docs/reproduction.md is not the report of docs/reproduction: make reproduce ONLY=report")
	}
}
