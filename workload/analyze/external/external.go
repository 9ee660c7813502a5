// Package external runs analyses that are programs outside of this one.
package external

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"example.org/slipway/internal/chart"
	"example.org/slipway/workload/analyze"
	"example.org/slipway/workload/plugin"
	"example.org/slipway/workload/trace/store"
)

// Program is an analysis that a program computes. docs/analysis.md describes the lines.
type Program struct {
	program string
	figure  analyze.Figure
	columns []column
	names   func(store.Table, store.Symbol) string

	mu  sync.Mutex
	err error
}

// column is a field of a request in the lines.
type column struct {
	name   string
	column store.Columns
	// write appends the value of request i.
	write func(e *run, dst []byte, b *store.Batch, i int) []byte
}

// columns returns all fields that a program may ask for. Each line has the time as well.
func columns() []column {
	number := func(name string, c store.Columns, of func(b *store.Batch, i int) int64) column {
		return column{name, c, func(_ *run, dst []byte, b *store.Batch, i int) []byte {
			return strconv.AppendInt(dst, of(b, i), 10)
		}}
	}
	text := func(name string, c store.Columns, t store.Table, of func(b *store.Batch, i int) store.Symbol) column {
		return column{name, c, func(e *run, dst []byte, b *store.Batch, i int) []byte { return e.text(dst, t, of(b, i)) }}
	}
	word := func(name string, c store.Columns, of func(b *store.Batch, i int) string) column {
		return column{name, c, func(_ *run, dst []byte, b *store.Batch, i int) []byte {
			return append(append(append(dst, '"'), of(b, i)...), '"')
		}}
	}
	return []column{
		number("duration", store.ColDuration, func(b *store.Batch, i int) int64 { return b.Duration[i] }),
		number("size", store.ColSize, func(b *store.Batch, i int) int64 { return b.Size[i] }),
		number("status", store.ColStatus, func(b *store.Batch, i int) int64 { return int64(b.Status[i]) }),
		word("method", store.ColMethod, func(b *store.Batch, i int) string { return b.Method[i].String() }),
		word("kind", store.ColKind, func(b *store.Batch, i int) string { return b.Kind[i].String() }),
		text("host", store.ColHost, store.Hosts, func(b *store.Batch, i int) store.Symbol { return b.Host[i] }),
		text("client", store.ColClient, store.Clients, func(b *store.Batch, i int) store.Symbol { return b.Client[i] }),
		text("repo", store.ColRepo, store.Repos, func(b *store.Batch, i int) store.Symbol { return b.Repo[i] }),
		text("ref", store.ColRef, store.Refs, func(b *store.Batch, i int) store.Symbol { return b.Ref[i] }),
		text("digest", store.ColDigest, store.Refs, func(b *store.Batch, i int) store.Symbol { return b.Digest[i] }),
		text("agent", store.ColAgent, store.Agents, func(b *store.Batch, i int) store.Symbol { return b.Agent[i] }),
	}
}

// axis and figure are what a program says of its figure.
type axis struct {
	Title string       `json:"title"`
	Unit  analyze.Unit `json:"unit"`
	Log   bool         `json:"log"`
}

type figure struct {
	analyze.Figure
	Columns []string `json:"columns"`
	Plot    string   `json:"plot"`
	X       axis     `json:"x"`
	Y       axis     `json:"y"`
}

// New asks a program for its figure. names returns the string of a symbol: a
// [store.Store] has it as Name.
func New(ctx context.Context, program string, names func(store.Table, store.Symbol) string) (*Program, error) {
	p, err := plugin.Start(ctx, program, "describe", "")
	if err != nil {
		return nil, err
	}
	defer p.Close()
	var f figure
	if err := p.End(&f); err != nil {
		return nil, err
	}
	e := &Program{program: program, figure: f.Figure, names: names}
	if e.figure.Plot, err = f.plot(); err != nil {
		return nil, fmt.Errorf("the plug-in %s: %w", program, err)
	}
	all := columns()
	for _, name := range f.Columns {
		i := slices.IndexFunc(all, func(c column) bool { return c.name == name })
		if i < 0 {
			var known []string
			for _, c := range all {
				known = append(known, c.name)
			}
			return nil, fmt.Errorf("the plug-in %s wants the column %q; there are %s", program, name, strings.Join(known, ", "))
		}
		e.columns = append(e.columns, all[i])
	}
	return e, nil
}

// plot returns how the figure is drawn.
func (f *figure) plot() (p analyze.Plot, err error) {
	kinds := map[string]analyze.PlotKind{"": analyze.NoPlot, "none": analyze.NoPlot, "cdf": analyze.PlotCDF, "lines": analyze.PlotLines, "bars": analyze.PlotBars, "columns": analyze.PlotColumns}
	kind, ok := kinds[f.Plot]
	if !ok {
		return p, fmt.Errorf("there is no plot %q; there are none, cdf, lines, bars and columns", f.Plot)
	}
	p.Kind = kind
	for _, a := range []struct {
		from axis
		to   *chart.Axis
	}{{f.X, &p.X}, {f.Y, &p.Y}} {
		u, err := unit(a.from.Unit)
		if err != nil {
			return p, err
		}
		*a.to = chart.Axis{Title: a.from.Title, Unit: u, Log: a.from.Log}
	}
	return p, nil
}

// unit returns the unit of an axis. A unit that is left out is a plain number.
func unit(u analyze.Unit) (chart.Unit, error) {
	switch cmp.Or(u, analyze.Number) {
	case analyze.Number:
		return chart.Number, nil
	case analyze.Bytes:
		return chart.Bytes, nil
	case analyze.Seconds:
		return chart.Seconds, nil
	case analyze.Share:
		return chart.Share, nil
	}
	return 0, fmt.Errorf("there is no unit %q; there are number, bytes, seconds and share", u)
}

// analyze.Plugin returns the plug-in. Its programs, one for each zone, end when ctx is done.
func (e *Program) Plugin(ctx context.Context) analyze.Plugin {
	return analyze.Plugin{Figures: []analyze.Figure{e.figure}, New: func(z store.Zone, _ *analyze.Options) analyze.Analysis { return e.begin(ctx, z.Name) }}
}

// Err returns the first error of the programs. The figures mean nothing then.
func (e *Program) Err() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.err
}

func (e *Program) keep(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err == nil {
		e.err = err
	}
}

// run is the program of one zone.
type run struct {
	*Program
	p     *plugin.Process
	line  []byte
	texts map[store.Table]map[store.Symbol][]byte
	n     int64
}

var _ analyze.Analysis = (*run)(nil)

func (e *Program) begin(ctx context.Context, zone string) analyze.Analysis {
	r := &run{Program: e, texts: map[store.Table]map[store.Symbol][]byte{}}
	var err error
	if r.p, err = plugin.Start(ctx, e.program, "analyze", zone); err != nil {
		e.keep(err)
	}
	return r
}

// Columns implements [analyze.Analysis].
func (r *run) Columns() (c store.Columns) {
	for _, x := range r.columns {
		c |= x.column
	}
	return c
}

// Add implements [analyze.Analysis].
func (r *run) Add(b *store.Batch) {
	if r.p == nil || r.p.Err() != nil {
		return
	}
	r.n += int64(b.Len())
	for i := range b.Len() {
		r.line = append(r.line[:0], `{"time":`...)
		r.line = strconv.AppendInt(r.line, b.Time[i], 10)
		for _, c := range r.columns {
			r.line = append(append(append(r.line, `,"`...), c.name...), `":`...)
			r.line = c.write(r, r.line, b, i)
		}
		r.line = append(r.line, '}')
		if r.p.Send(r.line) != nil {
			return
		}
	}
}

// text appends the string of a symbol as JSON.
func (r *run) text(dst []byte, t store.Table, s store.Symbol) []byte {
	known := r.texts[t]
	if known == nil {
		known = map[store.Symbol][]byte{}
		r.texts[t] = known
	}
	quoted, ok := known[s]
	if !ok {
		quoted, _ = json.Marshal(r.names(t, s)) // a string always can be
		known[s] = quoted
	}
	return append(dst, quoted...)
}

// analyze.Result implements [analyze.Analysis].
func (r *run) Result() []analyze.Result {
	var out analyze.Result
	if r.p == nil {
		return []analyze.Result{out}
	}
	defer r.p.Close()
	err := r.p.End(&out)
	for i := range out.Values {
		if _, bad := unit(out.Values[i].Unit); bad != nil && err == nil {
			err = fmt.Errorf("the plug-in %s, value %q: %w", r.program, out.Values[i].Name, bad)
		}
		out.Values[i].Unit = cmp.Or(out.Values[i].Unit, analyze.Number)
	}
	if err != nil {
		r.keep(err)
		return []analyze.Result{{}}
	}
	out.Requests = cmp.Or(out.Requests, r.n)
	return []analyze.Result{out}
}
