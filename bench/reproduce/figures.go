package reproduce

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"example.org/slipway/integration/bench/measure"
	"example.org/slipway/internal/chart"
)

// Raw figures of all suites are large, and stay on the machine that measured them. The figures
// that the report shows are small. They are kept in the repository, one file for each part, so
// that a report made elsewhere or later still has them.

// figures are the findings of entries, by the entries' IDs.
type figures map[string]*Finding

// keptFinding is a finding in a file of figures.
type keptFinding struct {
	Run    *measure.Run              `json:"run"`
	Values map[string]measure.Spread `json:"values"`
	Curves []keptCurve               `json:"curves,omitempty"`
}

// keptCurve is a curve in a file of figures. Points are x and y.
type keptCurve struct {
	Name   string       `json:"name"`
	Single bool         `json:"single,omitempty"`
	Step   bool         `json:"step,omitempty"`
	Points [][2]float64 `json:"points"`
}

// keptDigits is the number of significant digits of a kept point. A plot shows fewer.
const keptDigits = 5

// figuresFile returns the name of the file with the figures of a part.
func figuresFile(part string) string { return part + ".json" }

// readFigures reads the figures in a directory. A part without a file has no figures.
func readFigures(dir string) (figures, error) {
	out := figures{}
	if dir == "" {
		return out, nil
	}
	for _, p := range Parts() {
		kept, err := measure.Load[map[string]keptFinding](filepath.Join(dir, figuresFile(p.Name)))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for id, k := range *kept {
			out[id] = k.finding()
		}
	}
	return out, nil
}

// write writes the figures of the entries into a directory, as a file for each part that has any.
// Figures of a quick look are not kept.
func (f figures) write(dir string, entries []Entry) error {
	parts := map[string]map[string]keptFinding{}
	for i := range entries {
		e := &entries[i]
		found := f[e.ID()]
		if found == nil || found.Run == nil || found.Run.Quick {
			continue
		}
		if parts[e.Part] == nil {
			parts[e.Part] = map[string]keptFinding{}
		}
		parts[e.Part][e.ID()] = e.kept(found)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for part, list := range parts {
		text, err := linewise(list)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, figuresFile(part)), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// linewise returns findings as JSON with a line for each entry. Indented points would take a line
// for each coordinate.
func linewise(list map[string]keptFinding) ([]byte, error) {
	var b bytes.Buffer
	b.WriteString("{")
	for i, id := range slices.Sorted(maps.Keys(list)) {
		line, err := json.Marshal(list[id])
		if err != nil {
			return nil, err
		}
		if i > 0 {
			b.WriteString(",")
		}
		fmt.Fprintf(&b, "\n%q: %s", id, line)
	}
	b.WriteString("\n}\n")
	return b.Bytes(), nil
}

// kept returns what is kept of a finding: the values of the entry's claims, and the curves.
func (e *Entry) kept(f *Finding) keptFinding {
	k := keptFinding{Run: f.Run, Values: map[string]measure.Spread{}}
	for _, c := range e.Claims {
		if v := f.Values[c.Name]; v.N > 0 {
			k.Values[c.Name] = v
		}
	}
	for _, c := range f.Curves {
		points := make([][2]float64, len(c.Points))
		for i, p := range c.Points {
			points[i] = [2]float64{rounded(p.X), rounded(p.Y)}
		}
		k.Curves = append(k.Curves, keptCurve{c.Name, c.Single, c.Step, points})
	}
	return k
}

func (k *keptFinding) finding() *Finding {
	f := &Finding{Run: k.Run, Values: k.Values}
	for _, c := range k.Curves {
		points := make([]chart.Point, len(c.Points))
		for i, p := range c.Points {
			points[i] = chart.Point{X: p[0], Y: p[1]}
		}
		f.Curves = append(f.Curves, Curve{c.Name, points, c.Single, c.Step})
	}
	return f
}

// rounded rounds to keptDigits.
func rounded(v float64) float64 {
	r, err := strconv.ParseFloat(strconv.FormatFloat(v, 'g', keptDigits, 64), 64)
	if err != nil {
		return v
	}
	return r
}

// newest completes a finding from the raw figures with kept figures. Where both have a value or a
// curve, the later run's counts. Two parts may measure one entry, so each may have what the other
// lacks. A quick look replaces nothing.
func newest(measured, kept *Finding) *Finding {
	switch {
	case kept == nil || kept.Run == nil:
		return measured
	case measured == nil || measured.Run == nil || measured.Run.Quick:
		return kept
	}
	later, earlier := measured, kept
	if kept.Run.Date.After(measured.Run.Date) {
		later, earlier = kept, measured
	}
	out := &Finding{Run: later.Run, Values: maps.Clone(earlier.Values), Curves: slices.Clone(later.Curves)}
	for name, v := range later.Values {
		out.Values[name] = cmp.Or(v, out.Values[name])
	}
	for _, c := range earlier.Curves {
		if !slices.ContainsFunc(out.Curves, func(o Curve) bool { return o.Name == c.Name }) {
			out.Curves = append(out.Curves, c)
		}
	}
	return out
}

// found returns the findings of all entries.
func found(r *Raw, kept figures) figures {
	out := figures{}
	for _, e := range Entries() {
		if f := newest(e.Read(r), kept[e.ID()]); f != nil {
			out[e.ID()] = f
		}
	}
	return out
}
