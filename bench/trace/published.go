package trace

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"example.org/slipway/integration/bench/measure"
)

// Published is a figure that was published for a zone, with the accepted values.
type Published struct {
	Zone string  `json:"zone"`
	Name string  `json:"name"`
	Low  float64 `json:"low"`
	High float64 `json:"high"`
}

// allZones stands for the zones together.
const allZones = "all"

// parsePublished reads the tables of docs/synthetic-traces.md. One lists figures by zone, with
// accepted values of the form "LOW to HIGH". The other lists methods, in per cent of all requests,
// with a tolerance of "±N".
func parsePublished(doc string) ([]Published, error) {
	var out []Published
	var head []string
	for line := range strings.Lines(doc) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") {
			head = nil
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if head == nil {
			head = cells
			continue
		}
		if strings.Trim(strings.Join(cells, ""), "-:") == "" {
			continue
		}
		p, ok, err := publishedRow(head, cells)
		if err != nil {
			return nil, fmt.Errorf("row %q: %w", line, err)
		}
		if ok {
			out = append(out, p)
		}
	}
	if len(out) == 0 {
		return nil, errors.New("there is no table of published figures")
	}
	return out, nil
}

// publishedRow reads a row of either table. ok is false for a row of any other table.
func publishedRow(head, cells []string) (p Published, ok bool, err error) {
	if len(cells) != len(head) {
		return p, false, fmt.Errorf("%d cells below a head of %d", len(cells), len(head))
	}
	switch {
	case slices.Contains(head, "accepted") && head[0] == "zone":
		low, high, found := strings.Cut(cells[slices.Index(head, "accepted")], " to ")
		if !found {
			return p, false, errors.New("no range is accepted")
		}
		p = Published{Zone: cells[0], Name: cells[1]}
		if p.Low, err = strconv.ParseFloat(low, 64); err != nil {
			return p, false, err
		}
		p.High, err = strconv.ParseFloat(high, 64)
		return p, err == nil, err
	case slices.Contains(head, "archive") && slices.Contains(head, "tolerance"):
		want, err := strconv.ParseFloat(cells[slices.Index(head, "archive")], 64)
		if err != nil {
			return p, false, err
		}
		near, err := strconv.ParseFloat(strings.TrimPrefix(cells[slices.Index(head, "tolerance")], "±"), 64)
		if err != nil {
			return p, false, err
		}
		return Published{allZones, cells[0] + ", % of all requests", want - near, want + near}, true, nil
	}
	return p, false, nil
}

// report holds the part of an analysis that is read.
type report struct {
	Figures []struct {
		ID    string
		Zones []zoneFigure
	}
	// partial says that the zones have the sizes of three days of dal and not the sizes
	// of the archive. In that case nothing can be said about all zones together. See also
	// ofThreeDays.
	partial bool
}

// zoneFigure is a figure of a zone.
type zoneFigure struct {
	Zone     string
	Requests int64
	Values   []struct {
		Name  string
		Value float64
	}
	Series []struct {
		Name   string
		Points []struct{ X, Y float64 }
	}
}

func readReport(dir string) (*report, error) {
	r := &report{}
	return r, measure.ReadJSON(r, dir, "report.json")
}

// figure returns a figure of a zone. The result is empty if there is none.
func (r *report) figure(id, zone string) *zoneFigure {
	for _, f := range r.Figures {
		for i := range f.Zones {
			if f.ID == id && f.Zones[i].Zone == zone {
				return &f.Zones[i]
			}
		}
	}
	return &zoneFigure{}
}

// value returns a value by its name.
func (z *zoneFigure) value(name string) (float64, bool) {
	for _, v := range z.Values {
		if v.Name == name {
			return v.Value, true
		}
	}
	return 0, false
}

// below returns the share of a distribution that is less than x. Between two points it interpolates
// linearly.
func (z *zoneFigure) below(series string, x float64) (float64, bool) {
	for _, s := range z.Series {
		if s.Name != series || len(s.Points) == 0 {
			continue
		}
		var lastX, lastY float64
		for _, p := range s.Points {
			if p.X >= x {
				return lastY + (p.Y-lastY)*(x-lastX)/(p.X-lastX), true
			}
			lastX, lastY = p.X, p.Y
		}
		return lastY, true
	}
	return 0, false
}

// above0 returns a quantile of the counts in a distribution that are greater than 0.
func (z *zoneFigure) above0(series string, q float64) (float64, bool) {
	for _, s := range z.Series {
		zero := 0.0
		for _, p := range s.Points {
			switch {
			case s.Name != series:
			case p.X < 1:
				zero = p.Y
			case p.Y-zero >= q*(1-zero):
				return p.X, true
			}
		}
	}
	return 0, false
}
