package result

import (
	"fmt"
	"html/template"
	"io"

	"example.org/slipway/internal/chart"
)

// page is the data of the HTML report.
type page struct {
	CSS         template.CSS
	Title       string
	Results     []*Result
	Comparisons []*Comparison
	Pictures    []template.HTML
}

// HTML writes one self-contained page of some results and the comparisons between them.
func HTML(w io.Writer, title string, results []*Result, comparisons []*Comparison) error {
	p := page{CSS: template.CSS(chart.CSS()), Title: title, Results: results, Comparisons: comparisons}
	o := &chart.Options{Inline: true, Width: 900}
	for _, x := range pictures(results) {
		svg := x.SVG(o) // SVG escapes the texts that it is given
		p.Pictures = append(p.Pictures, template.HTML("<h2>"+template.HTMLEscapeString(x.Title)+"</h2>"+svg))
	}
	t, err := template.New("report").Funcs(template.FuncMap{
		"counts": counts, "seconds": seconds, "mb": megabytes,
		"change": func(c Change) string { return c.text() },
		"ms":     func(v float64) string { return fmt.Sprintf("%.2f", v) },
		"row": func(name string, t Times) any {
			return struct {
				Name string
				Times
			}{name, t}
		},
		"pct": func(v *float64) string { return fmt.Sprintf("%.4g %%", 100**v) },
	}).Parse(pageText)
	if err != nil {
		return err
	}
	return t.Execute(w, p)
}

// maxPoints bounds the points of a curve.
const maxPoints = 600

func pictures(results []*Result) []*chart.XY {
	cdf := func(title string, of func(*Result) *Group, service bool) *chart.XY {
		x := &chart.XY{Title: title, Desc: "Cumulative distribution, one curve for each result",
			X: chart.Axis{Title: "time", Unit: chart.Seconds, Log: true}, Y: chart.Axis{Title: "share of the requests", Unit: chart.Share, Full: true}}
		for _, r := range results {
			g := of(r)
			h := g.Latency
			if service {
				h = g.Service
			}
			s := chart.Series{Name: r.Name, Mark: chart.Step}
			if h.TotalCount() > 0 {
				for _, b := range h.CumulativeDistributionWithTicks(10) {
					s.Points = append(s.Points, chart.Point{X: float64(b.ValueAt) / 1e6, Y: b.Quantile / 100})
				}
			}
			x.Series = append(x.Series, s)
		}
		return x
	}
	all := func(r *Result) *Group { return r.Counts.Sum(nil) }
	return []*chart.XY{
		cdf("Latency, from the time at which a request was to be sent", all, false),
		cdf("Service time, from the actual sending", all, true),
		series(results, "Median and 99th percentile of the latency", chart.Axis{Title: "latency", Unit: chart.Seconds, Log: true},
			curve{"p50", func(b *Block, _ float64) float64 { return b.Latency.Quantile(0.5) / 1e6 }},
			curve{"p99", func(b *Block, _ float64) float64 { return b.Latency.Quantile(0.99) / 1e6 }}),
		series(results, "Requests per second", chart.Axis{Title: "requests per second"},
			curve{"", func(b *Block, s float64) float64 { return float64(b.Requests) / s }}),
		series(results, "Bytes per second", chart.Axis{Title: "bytes per second", Unit: chart.Bytes},
			curve{"", func(b *Block, s float64) float64 { return float64(b.Bytes) / s }}),
		series(results, "Requests that failed or were not sent, per second", chart.Axis{Title: "requests per second"},
			curve{"", func(b *Block, s float64) float64 { return float64(b.Errors+b.Unsent) / s }}),
		series(results, "Lag of the generator, at most", chart.Axis{Title: "lag", Unit: chart.Seconds, Log: true},
			curve{"", func(b *Block, _ float64) float64 { return float64(b.MaxLag) / 1e6 }}),
	}
}

// curve is a figure with a value for each block.
type curve struct {
	name string
	of   func(b *Block, seconds float64) float64
}

// series draws figures over the time of the run.
func series(results []*Result, title string, y chart.Axis, curves ...curve) *chart.XY {
	x := &chart.XY{Title: title, Desc: "Over the time of the run, one curve for each result", X: chart.Axis{Title: "time of the run", Unit: chart.Seconds}, Y: y}
	for _, r := range results {
		n := int64(1)
		for int64(len(r.blocks(n*r.Counts.BlockSeconds))) > maxPoints {
			n *= 2
		}
		length := float64(n * r.Counts.BlockSeconds)
		blocks := r.blocks(n * r.Counts.BlockSeconds)
		for _, c := range curves {
			s := chart.Series{Name: r.Name}
			if c.name != "" {
				s.Name += " " + c.name
			}
			for i := range blocks {
				if blocks[i].Requests+blocks[i].Unsent > 0 || c.name == "" {
					s.Points = append(s.Points, chart.Point{X: float64(i) * length, Y: c.of(&blocks[i], length)})
				}
			}
			x.Series = append(x.Series, s)
		}
	}
	return x
}

const pageText = `<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{{.Title}}</title>
<style>
:root{color-scheme:light dark}
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse;margin:1rem 0;display:block;overflow-x:auto}
th,td{padding:.2rem .7rem;text-align:right;border-bottom:1px solid #8884;white-space:nowrap}
th:first-child,td:first-child,td.text{text-align:left}
.bad{font-weight:700;color:#c8300a}
svg{max-width:100%;height:auto}
{{.CSS}}</style></head><body>
<h1>{{.Title}}</h1>
{{range .Results}}<section><h2>{{.Name}}</h2>
<p>{{.Level}}, {{.Mode}}, to {{range $i, $t := .Targets}}{{if $i}}, {{end}}{{$t}}{{end}}. {{if .Began.IsZero}}{{else}}Begun {{.Began.Format "2006-01-02 15:04:05 UTC"}}. {{end}}<span{{if not .Valid}} class="bad"{{end}}>{{.Verdict}}</span></p>
{{range .Problems}}<p class="bad">{{.}}</p>{{end}}
<p>{{.Requests}} requests in {{seconds .Seconds}}: {{ms .PerSecond}} per second, {{mb .BytesPer}}/s. Outcomes: {{counts .Summary.Outcomes}}.{{if .Summary.Sessions}} Pulls and pushes: {{counts .Summary.Sessions}}.{{end}}
Planned from the trace: {{.Planned}}{{if .Skipped}}; left out: {{counts .Skipped}}{{end}}. Late: {{.Summary.Late}}. Redirects: {{.Redirects}}.</p>
<table><tr><th>ms</th><th>mean</th><th>p50</th><th>p90</th><th>p99</th><th>p99.9</th><th>max</th></tr>
{{template "times" (row "latency" .Latency)}}{{template "times" (row "service" .Service)}}{{template "times" (row "generator's lag" .Summary.Lag)}}{{template "times" (row "wait for a place" .Summary.Wait)}}</table>
<details><summary>By method, object, size and status</summary><table><tr><th>target</th><th>request</th><th>size</th><th>status</th><th>requests</th><th>latency p50</th><th>p90</th><th>p99</th><th>max</th><th>service p50</th><th>p99</th></tr>
{{range .Summary.Groups}}<tr><td>{{.Target}}</td><td class="text">{{.Method}} {{.Object}}</td><td>{{.Size}}</td><td>{{.Status}}</td><td>{{.Requests}}</td><td>{{ms .Latency.P50}}</td><td>{{ms .Latency.P90}}</td><td>{{ms .Latency.P99}}</td><td>{{ms .Latency.Max}}</td><td>{{ms .Service.P50}}</td><td>{{ms .Service.P99}}</td></tr>{{end}}</table>
{{if gt (len .PerWorker) 1}}<table><tr><th>worker</th><th>requests</th><th>errors</th><th>not sent</th><th>latency p50</th><th>p99</th><th>lag p50</th><th>p99</th><th>max</th></tr>
{{range .PerWorker}}<tr><td>{{.Worker}}</td><td>{{.Requests}}</td><td>{{.Errors}}</td><td>{{.Unsent}}</td><td>{{ms .Latency.P50}}</td><td>{{ms .Latency.P99}}</td><td>{{ms .Lag.P50}}</td><td>{{ms .Lag.P99}}</td><td>{{ms .Lag.Max}}</td></tr>{{end}}</table>
{{end}}<p>Options: {{range $k, $v := .Options}}{{$k}}={{$v}} {{end}}</p>
<p>Slipway {{.Environment.Slipway}}, {{.Environment.Go}}, {{.Environment.OS}}/{{.Environment.Arch}}, {{.Environment.CPUs}} processors; workers: {{range .Workers}}{{.}} {{end}}</p></details></section>
{{end}}
{{range .Comparisons}}<section><h2>{{.Other}} against {{.Base}}</h2>{{range .Notes}}<p class="bad">{{.}}</p>{{end}}
<table><tr><th>metric</th><th>change, with its confidence interval</th><th>gate</th></tr>
{{range .Changes}}<tr><td>{{.Metric}}</td><td class="text">{{change .}}</td><td>{{if .Gate}}{{pct .Gate}} {{if .Failed}}<span class="bad">failed</span>{{else}}passed{{end}}{{end}}</td></tr>{{end}}</table></section>
{{end}}
{{range .Pictures}}<section>{{.}}</section>{{end}}
</body></html>
{{define "times"}}<tr><td>{{.Name}}</td><td>{{ms .Mean}}</td><td>{{ms .P50}}</td><td>{{ms .P90}}</td><td>{{ms .P99}}</td><td>{{ms .P999}}</td><td>{{ms .Max}}</td></tr>{{end}}
`
