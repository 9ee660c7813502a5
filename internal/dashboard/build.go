package dashboard

import "strings"

// These are the jobs of deploy/prometheus/prometheus.yml.
const (
	serverJob = "slipway"
	agentJob  = "slipway-agent"
	replayJob = "slipway-replay"
)

// selectors replaces the placeholders for the series of a job in queries, so that no query
// forgets the choice of instances: {@server} and {@server,code="404"}. No name begins with
// another, so their order does not matter.
var selectors = strings.NewReplacer(
	"@server", `job="`+serverJob+`",instance=~"$instance"`,
	"@mirror", `job="`+serverJob+`",instance=~"$instance",upstream=~"$upstream"`,
	"@agent", `job="`+agentJob+`",instance=~"$node"`,
	"@replay", `job="`+replayJob+`",instance=~"$instance"`,
)

// These are Grafana's names of units.
const (
	perSecond   = "ops"
	bytesPerSec = "Bps"
	inBytes     = "bytes"
	inSeconds   = "s"
	inPercent   = "percentunit"
	plain       = "short"
)

// These are the sizes of panels in the grid.
const (
	gridWidth  = 24
	rowHeight  = 1
	statHeight = 4
	plotHeight = 8
)

// prometheus is the data source that is chosen at the top of the board.
var prometheus = &Datasource{Type: "prometheus", UID: "${datasource}"}

// builder places panels from left to right, line by line.
type builder struct {
	b *Board
	// x and y are where the next panel goes. height is the height of the panels in the
	// line.
	x, y, height int
}

// newBoard begins a board. Its first variable is the data source.
func newBoard(uid, title, description string, variables ...Variable) *builder {
	list := []Variable{{Name: "datasource", Label: "Data source", Type: "datasource", Query: VariableQuery{Query: "prometheus"}}}
	tags := []string{"slipway"}
	return &builder{b: &Board{
		Title: title, UID: uid, Description: description, Tags: tags, SchemaVersion: 39, Version: 1, Editable: true, GraphTooltip: 1,
		Refresh: "30s", Time: TimeRange{From: "now-3h", To: "now"}, Templating: Templating{List: append(list, variables...)},
		Links: []Link{{Title: "Slipway", Type: "dashboards", Tags: tags, AsDropdown: true, KeepTime: true}},
	}}
}

// choice returns a variable whose values are the values of a metric's label.
func choice(name, label, metric, of string) Variable {
	return Variable{Name: name, Label: label, Type: "query", Datasource: prometheus, Refresh: 2, Sort: 1, Multi: true, IncludeAll: true, AllValue: ".*",
		Query:   VariableQuery{Query: "label_values(" + selectors.Replace(metric) + ", " + of + ")", RefID: name},
		Current: &VariableValue{Text: "All", Value: "$__all"}}
}

// jobChoice returns a choice among the instances of a job.
func jobChoice(name, label, job string) Variable {
	return choice(name, label, `up{job="`+job+`"}`, "instance")
}

// done returns the board.
func (l *builder) done() *Board { return l.b }

// row begins a part of the board with a heading.
func (l *builder) row(title string) {
	l.newLine()
	open := false
	l.b.Panels = append(l.b.Panels, Panel{ID: len(l.b.Panels) + 1, Type: "row", Title: title, Collapsed: &open,
		GridPos: GridPos{Y: l.y, W: gridWidth, H: rowHeight}})
	l.y += rowHeight
}

func (l *builder) newLine() {
	l.x, l.y, l.height = 0, l.y+l.height, 0
}

// place puts a panel where there is room.
func (l *builder) place(p Panel, width, height int) {
	if l.x+width > gridWidth || (l.height != 0 && l.height != height) {
		l.newLine()
	}
	p.ID, p.Datasource = len(l.b.Panels)+1, prometheus
	p.GridPos = GridPos{X: l.x, Y: l.y, W: width, H: height}
	l.x, l.height = l.x+width, height
	l.b.Panels = append(l.b.Panels, p)
}

// query is an expression and the legend of its series.
type query struct{ expr, legend string }

func targets(queries []query) []Target {
	var list []Target
	for i, q := range queries {
		list = append(list, Target{RefID: string(rune('A' + i)), Datasource: prometheus, Expr: selectors.Replace(q.expr), LegendFormat: q.legend})
	}
	return list
}

// number adds a panel with the present value of an expression.
func (l *builder) number(title, description, unit, expr string) {
	p := Panel{Type: "stat", Title: title, Description: description, Targets: targets([]query{{expr, ""}}),
		FieldConfig: &FieldConfig{Defaults: FieldDefaults{Unit: unit}, Overrides: []struct{}{}},
		Options:     &Options{ReduceOptions: &ReduceOptions{Calcs: []string{"lastNotNull"}}, ColorMode: "value", GraphMode: "area"}}
	l.place(p, 4, statHeight)
}

// graph adds a panel with a line for each series; three are in a line.
func (l *builder) graph(title, description, unit string, queries ...query) {
	l.place(plot(title, description, unit, queries), gridWidth/3, plotHeight)
}

// stack is like graph, with the series stacked, for parts of a whole.
func (l *builder) stack(title, description, unit string, queries ...query) {
	p := plot(title, description, unit, queries)
	p.FieldConfig.Defaults.Custom = &FieldCustom{FillOpacity: 40, Stacking: &Stacking{Mode: "normal", Group: "A"}}
	l.place(p, gridWidth/3, plotHeight)
}

// share is like graph, for shares of 1.
func (l *builder) share(title, description string, queries ...query) {
	p := plot(title, description, inPercent, queries)
	one := 1.0
	p.FieldConfig.Defaults.Max = &one
	l.place(p, gridWidth/3, plotHeight)
}

func plot(title, description, unit string, queries []query) Panel {
	zero := 0.0
	return Panel{Type: "timeseries", Title: title, Description: description, Targets: targets(queries),
		FieldConfig: &FieldConfig{Defaults: FieldDefaults{Unit: unit, Min: &zero, Custom: &FieldCustom{FillOpacity: 8}}, Overrides: []struct{}{}},
		Options: &Options{Legend: &Legend{DisplayMode: "list", Placement: "bottom", Calcs: []string{}},
			Tooltip: &Tooltip{Mode: "multi", Sort: "desc"}}}
}

// rate returns the rate of a counter, summed by labels.
func rate(counter string, by ...string) string {
	return sum("rate("+counter+"[$__rate_interval])", by...)
}

// sum sums up series that have the same labels.
func sum(expr string, by ...string) string {
	if len(by) == 0 {
		return "sum(" + expr + ")"
	}
	return "sum by (" + strings.Join(by, ", ") + ") (" + expr + ")"
}

// orZero returns 0 for a sum over series that may not exist yet.
func orZero(expr string) string { return "(" + expr + " or vector(0))" }

// over returns a share. It is 0 if the whole is empty.
func over(part, whole string) string { return part + " / (" + whole + " > 0) or vector(0)" }

// quantile returns a quantile of a histogram, by labels. It has no value if nothing
// happened.
func quantile(q, histogram string, by ...string) string {
	return "histogram_quantile(" + q + ", " + rate(histogram, append([]string{"le"}, by...)...) + ")"
}
