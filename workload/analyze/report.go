package analyze

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"example.org/slipway/internal/chart"
	"example.org/slipway/workload/trace/store"
)

// Report is the result of a run.
type Report struct {
	// Settings are the options that decide what figures mean.
	Settings Settings       `json:"settings"`
	Zones    []ZoneSummary  `json:"zones"`
	Figures  []FigureReport `json:"figures"`
}

// Settings are the options of a run, in words.
type Settings struct {
	From           string   `json:"from,omitempty"`
	To             string   `json:"to,omitempty"`
	Session        string   `json:"session"`
	StopAtNext     bool     `json:"stopAtNextManifest"`
	SizesOf        string   `json:"sizesOf"`
	KeepAlive      string   `json:"keepAlive"`
	TimeZone       string   `json:"timeZone"`
	LayersBy       LayersBy `json:"layersBy"`
	TotalRequests  int64    `json:"totalRequests"`
	ZonesWithPaper int      `json:"zonesInPaper"`
}

// ZoneSummary is what was read of a zone.
type ZoneSummary struct {
	Name string `json:"name"`
	// Paper is the paper's name for the zone. It is empty if the zone is not in the
	// paper; then there is nothing to compare.
	Paper    string `json:"paper,omitempty"`
	Requests int64  `json:"requests"`
	Days     int64  `json:"days"`
	// Absent is the number of days between the first and the last that have no request.
	Absent int64     `json:"absentDays"`
	First  time.Time `json:"first,omitzero"`
	Last   time.Time `json:"last,omitzero"`
}

// FigureReport is a figure of all zones.
type FigureReport struct {
	Figure
	Zones       []ZoneResult `json:"zones"`
	Comparisons []Comparison `json:"comparisons,omitempty"`
}

// ZoneResult is a figure of one zone.
type ZoneResult struct {
	Zone string `json:"zone"`
	Result
}

func newReport(o *Options, plugins []Plugin, zones []store.Zone, spans []span, results [][]Result) *Report {
	r := &Report{Settings: Settings{Session: o.Session.String(), StopAtNext: o.StopAtNext, SizesOf: o.SizesOf.String(),
		KeepAlive: o.KeepAlive.String(), TimeZone: o.Location.String(), LayersBy: o.LayersBy}}
	if !o.From.IsZero() {
		r.Settings.From = o.From.UTC().Format(time.RFC3339Nano)
	}
	if !o.To.IsZero() {
		r.Settings.To = o.To.UTC().Format(time.RFC3339Nano)
	}
	days := map[string]int64{}
	for i, z := range zones {
		sum := ZoneSummary{Name: z.Name, Paper: paperZone(z.Name), Requests: spans[i].records, Days: spans[i].days}
		if sum.Requests > 0 {
			sum.Absent = floorDiv(spans[i].last, microDay) - floorDiv(spans[i].first, microDay) + 1 - sum.Days
			sum.First, sum.Last = time.UnixMicro(spans[i].first).UTC(), time.UnixMicro(spans[i].last).UTC()
		}
		if sum.Paper != "" {
			r.Settings.ZonesWithPaper++
		}
		r.Settings.TotalRequests += sum.Requests
		r.Zones = append(r.Zones, sum)
		days[z.Name] = sum.Days
	}
	n := 0
	for _, p := range plugins {
		for _, f := range p.Figures {
			fr := FigureReport{Figure: f}
			for i, z := range zones {
				fr.Zones = append(fr.Zones, ZoneResult{Zone: z.Name, Result: results[i][n]})
			}
			fr.Comparisons = compare(f.ID, fr.Zones, days)
			r.Figures = append(r.Figures, fr)
			n++
		}
	}
	return r
}

// Figure returns a figure by its id, nil if there is none.
func (r *Report) Figure(id string) *FigureReport {
	for i := range r.Figures {
		if r.Figures[i].ID == id {
			return &r.Figures[i]
		}
	}
	return nil
}

// Zone returns the figure of a zone, nil if there is none.
func (f *FigureReport) Zone(name string) *Result {
	for i := range f.Zones {
		if f.Zones[i].Zone == name {
			return &f.Zones[i].Result
		}
	}
	return nil
}

// Write writes the whole report into a directory and creates the directory if it is
// missing: index.html, report.json, comparison.csv, and for each figure a CSV file with
// its numbers, one with its curves if it has any, and an SVG file for each picture. Each
// file is replaced as a whole; index.html comes last.
func (r *Report) Write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	page, err := r.HTML()
	if err != nil {
		return err
	}
	all, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	tables := r.tables()
	for _, name := range slices.Sorted(maps.Keys(tables)) {
		var b bytes.Buffer
		if err := csv.NewWriter(&b).WriteAll(tables[name]); err != nil {
			return fmt.Errorf("write report: %w", err)
		}
		if err := replaceFile(filepath.Join(dir, name), b.Bytes()); err != nil {
			return err
		}
	}
	for i := range r.Figures {
		for _, p := range r.Figures[i].pictures() {
			if err := replaceFile(filepath.Join(dir, p.file+".svg"), []byte(p.picture.SVG(nil))); err != nil {
				return err
			}
		}
	}
	if err := replaceFile(filepath.Join(dir, "report.json"), all); err != nil {
		return err
	}
	return replaceFile(filepath.Join(dir, "index.html"), page)
}

// replaceFile writes a file beside its place and then moves it there. The file need not
// survive a power cut: the trace is still there.
func replaceFile(path string, content []byte) error {
	part := path + ".new"
	if err := os.Remove(part); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(part, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(part))
	}
	return nil
}

// file returns the common beginning of the names of a figure's files.
func (f *Figure) file() string {
	if f.ID[0] >= '0' && f.ID[0] <= '9' {
		return "figure-" + f.ID
	}
	return f.ID
}

// tables returns the CSV files by their names, each with its head.
func (r *Report) tables() map[string][][]string {
	number := func(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
	optional := func(v *float64) string {
		if v == nil {
			return ""
		}
		return number(*v)
	}
	out := map[string][][]string{}
	compared := [][]string{{"figure", "zone", "quantity", "unit", "ours", "low", "high", "about", "source", "difference", "not comparable"}}
	for i := range r.Figures {
		f := &r.Figures[i]
		values := [][]string{{"zone", "quantity", "unit", "value"}}
		curves := [][]string{{"zone", "series", "label", "x", "y", "low", "high"}}
		for _, z := range f.Zones {
			values = append(values, []string{z.Zone, "requests in the figure", string(Number), strconv.FormatInt(z.Requests, 10)},
				[]string{z.Zone, "requests left out as unknown", string(Number), strconv.FormatInt(z.Unknown, 10)})
			for _, v := range z.Values {
				values = append(values, []string{z.Zone, v.Name, string(v.Unit), number(v.Value)})
			}
			for _, s := range z.Series {
				for _, p := range s.Points {
					row := []string{z.Zone, s.Name, p.Label, number(p.X), number(p.Y), "", ""}
					if p.Low != 0 || p.High != 0 {
						row[5], row[6] = number(p.Low), number(p.High)
					}
					curves = append(curves, row)
				}
			}
		}
		out[f.file()+".csv"] = values
		if len(curves) > 1 {
			out[f.file()+"-curves.csv"] = curves
		}
		for _, c := range f.Comparisons {
			compared = append(compared, []string{f.ID, c.Zone, c.Quantity, string(c.Unit), optional(c.Ours), optional(c.Low), optional(c.High),
				strconv.FormatBool(c.About), c.Source, optional(c.Difference), c.NotComparable})
		}
	}
	out["comparison.csv"] = compared
	return out
}

// format writes a value for people.
func format(v float64, u Unit) string {
	switch u {
	case Share:
		return strconv.FormatFloat(100*v, 'f', 2, 64) + " %"
	case Bytes:
		return chart.Format(v, chart.Bytes)
	case Seconds:
		return chart.Format(v, chart.Seconds)
	}
	return chart.Format(v, chart.Number)
}
