package report_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/internal/chart"
	"example.org/slipway/internal/report"
)

func page() *report.Page {
	xy := &chart.XY{Title: "A curve", X: chart.Axis{Title: "x"}, Y: chart.Axis{Title: "y"},
		Series: []chart.Series{{Name: "s", Points: []chart.Point{{X: 1, Y: 1}, {X: 2, Y: 4}}}}}
	return &report.Page{
		Title: "All & sundry", Facts: []string{"one <fact>"},
		Lists: []report.List{{Title: "Beware", Items: []string{"of <it>"}, Warning: true}, {Title: "Empty"}, {Title: "Plain", Items: []string{"so"}}},
		Text:  "key: <value>",
		Charts: []report.Figure{
			report.NewFigure(xy.Title, xy), report.NewHalf(xy.Title, xy),
		},
		Tables: []report.Table{
			{Names: 1, Head: []string{"name", "n"}, Rows: [][]string{{"à la", "1"}, {"b", "200"}}},
			{Title: "More", Caption: "Of it", Head: []string{"n"}, Rows: [][]string{{"<3>"}}},
		},
		Notes: []report.Note{{Name: "n", Text: "a number"}},
	}
}

func TestHTML(t *testing.T) {
	var b bytes.Buffer
	if err := page().WriteHTML(&b); err != nil {
		t.Fatal(err)
	}
	html := b.String()
	for _, want := range []string{"<title>All &amp; sundry</title>", "one &lt;fact&gt;", "of &lt;it&gt;", `<section class="warning">`, "key: &lt;value&gt;",
		`<section class="half">`, "<h2>All figures</h2>", "A row for each setting", "<h2>More</h2>", "Of it", "&lt;3&gt;", "What the columns say", "prefers-color-scheme: dark", ".slipway-chart"} {
		if !strings.Contains(html, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	for _, bad := range []string{"Empty", "<fact>", "src=", "href=", "<script"} {
		if strings.Contains(html, bad) {
			t.Errorf("the page has %q", bad)
		}
	}
	if n := strings.Count(html, "<svg"); n != 4 {
		t.Errorf("%d pictures, want a wide and a narrow one of each", n)
	}
}

func TestText(t *testing.T) {
	var b bytes.Buffer
	if err := page().WriteText(&b); err != nil {
		t.Fatal(err)
	}
	want := "one <fact>\nof <it>\n\n  name    n\n  à la    1\n  b     200\n"
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Error(diff)
	}
}
