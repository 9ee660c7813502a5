// Package report makes pages of figures: facts, lists, pictures, tables and notes on one
// self-contained HTML page, and the facts with the first table as text for a terminal.
//
// A page is readable on wide and narrow screens, in light and dark colours, by keyboard
// and by screen reader. All text is escaped.
package report

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"strings"
	"text/tabwriter"
	"unicode/utf8"

	"example.org/slipway/internal/chart"
)

//go:embed page.html
var pageHTML string

// Page is a page.
type Page struct {
	Title string
	// Facts stand below the title.
	Facts []string
	// Lists come before the pictures. Text comes after the first list, as it stands.
	Lists  []List
	Text   string
	Charts []Figure
	Tables []Table
	// Notes explain the columns of the tables.
	Notes []Note
}

// List is sentences below a title. A list without items is left out.
type List struct {
	Title string
	Items []string
	// Warning has them stand out.
	Warning bool
}

// Table is figures as text. The first Names columns are words.
type Table struct {
	// Title is "All figures" if it is left out; Caption says what a row is, "" means
	// "A row for each setting".
	Title, Caption string
	Head           []string
	Names          int
	Rows           [][]string
}

// Note explains a column.
type Note struct{ Name, Text string }

// Figure is a picture, for a wide screen and for a narrow one. Two figures that are a
// Half stand side by side if there is room.
type Figure struct {
	Title        string
	Wide, Narrow template.HTML
	Half         bool
}

// Picture is something that can be drawn, such as the pictures of package chart.
type Picture interface {
	SVG(*chart.Options) string
}

// These are widths of pictures in pixels: of a picture beside another one on a screen of
// 1280, and of a picture on a telephone.
const (
	halfWidth   = 550
	narrowWidth = 330
)

// NewFigure draws a picture twice.
func NewFigure(title string, p Picture) Figure { return newFigure(title, p, 0) }

// NewHalf draws a picture that may stand beside another one.
func NewHalf(title string, p Picture) Figure {
	f := newFigure(title, p, halfWidth)
	f.Half = true
	return f
}

func newFigure(title string, p Picture, width int) Figure {
	// The pictures escape all text they are given.
	return Figure{
		Title: title,
		Wide:  template.HTML(p.SVG(&chart.Options{Inline: true, Width: width})), Narrow: template.HTML(p.SVG(&chart.Options{Inline: true, Width: narrowWidth})),
	}
}

// WriteHTML writes the page.
func (p *Page) WriteHTML(w io.Writer) error {
	t, err := template.New("page").Parse(pageHTML)
	if err != nil {
		return err
	}
	page := *p
	page.Tables = nil
	for _, t := range p.Tables {
		if t.Title == "" {
			t.Title = "All figures"
		}
		if t.Caption == "" {
			t.Caption = "A row for each setting"
		}
		page.Tables = append(page.Tables, t)
	}
	return t.Execute(w, struct {
		Page
		ChartCSS template.CSS
	}{page, template.CSS(chart.CSS())})
}

// WriteText writes the facts, the lists of warnings and the first table, for a terminal.
func (p *Page) WriteText(w io.Writer) error {
	var b strings.Builder
	for _, f := range p.Facts {
		fmt.Fprintln(&b, f)
	}
	for _, l := range p.Lists {
		if !l.Warning {
			continue
		}
		for _, item := range l.Items {
			fmt.Fprintln(&b, item)
		}
	}
	if len(p.Tables) > 0 {
		fmt.Fprintln(&b)
		if err := p.Tables[0].writeText(&b); err != nil {
			return err
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (t *Table) writeText(w io.Writer) error {
	// Words are aligned to the left by padding them, since the writer aligns all columns
	// to one side.
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	widths := make([]int, t.Names)
	rows := append([][]string{t.Head}, t.Rows...)
	for _, row := range rows {
		for i := range widths {
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
	}
	for _, row := range rows {
		for i, c := range row {
			if i < t.Names {
				c = fmt.Sprintf("%-*s", widths[i], c)
			}
			fmt.Fprintf(tw, "%s\t", c)
		}
		fmt.Fprintln(tw)
	}
	return tw.Flush()
}

// Bytes writes bytes for people, in powers of 1000.
func Bytes(n float64) string {
	i := 0
	for n >= 999.5 && i < 5 {
		n /= 1000
		i++
	}
	if i == 0 {
		return fmt.Sprintf("%.0f B", n)
	}
	return fmt.Sprintf("%.1f %cB", n, "kMGTP"[i-1])
}
