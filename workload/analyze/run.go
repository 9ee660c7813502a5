package analyze

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"example.org/slipway/workload/trace/store"
)

// Source is where requests come from: a [store.Store]. Scan gives the requests of one
// zone in order of time, and may be called for several zones at once.
type Source interface {
	Zones() []store.Zone
	Scan(ctx context.Context, q store.Query, fn func(*store.Batch) error) error
}

var _ Source = (*store.Store)(nil)

// Run makes all figures of all zones, in one pass over each zone. It ends when ctx is
// done, or at the first error of reading.
func Run(ctx context.Context, src Source, opts *Options) (*Report, error) {
	o, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	plugins := append(Builtin(), o.Plugins...)
	if err := checkFigures(plugins); err != nil {
		return nil, err
	}
	zones, err := o.zones(src.Zones())
	if err != nil {
		return nil, err
	}
	p := &passes{src: src, o: o, plugins: plugins, spans: make([]span, len(zones))}
	for _, z := range zones {
		p.total += o.expected(z)
	}
	// The largest zone goes first, so that no core waits for it at the end.
	order := make([]int, len(zones))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return int(zones[b].Records - zones[a].Records) })
	results := make([][]Result, len(zones))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(o.Workers)
	for _, i := range order {
		g.Go(func() error {
			var err error
			results[i], p.spans[i], err = p.zone(ctx, zones[i])
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return newReport(o, plugins, zones, p.spans, results), nil
}

// checkFigures checks that all figures have different names, which are valid names of
// files.
func checkFigures(plugins []Plugin) error {
	seen := map[string]bool{"comparison": true}
	for _, p := range plugins {
		if len(p.Figures) == 0 || p.New == nil {
			return fmt.Errorf("a plug-in has %d figures, and an analysis is %t; it needs both", len(p.Figures), p.New != nil)
		}
		for _, f := range p.Figures {
			for _, c := range []byte(f.ID) {
				if !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-') {
					return fmt.Errorf("figure id %q: only lower-case letters, digits and '-' may be in it", f.ID)
				}
			}
			if f.ID == "" || seen[f.file()] || strings.HasSuffix(f.ID, "-curves") {
				return fmt.Errorf("figure id %q is empty or in use", f.ID)
			}
			seen[f.file()] = true
		}
	}
	return nil
}

// zones returns the zones that the options name.
func (o *Options) zones(all []store.Zone) ([]store.Zone, error) {
	if len(o.Zones) == 0 {
		return all, nil
	}
	var out []store.Zone
	for _, name := range o.Zones {
		i := slices.IndexFunc(all, func(z store.Zone) bool { return z.Name == name })
		if i < 0 {
			names := make([]string, len(all))
			for i, z := range all {
				names[i] = z.Name
			}
			return nil, fmt.Errorf("there is no zone %q; there are %v", name, names)
		}
		if !slices.ContainsFunc(out, func(z store.Zone) bool { return z.Name == name }) {
			out = append(out, all[i])
		}
	}
	return out, nil
}

// expected returns about how many requests of a zone are within From and To.
func (o *Options) expected(z store.Zone) int64 {
	if len(z.Days) == 0 {
		return 0
	}
	var days int64
	for _, d := range z.Days {
		if (o.From.IsZero() || d.Add(24*time.Hour).After(o.From)) && (o.To.IsZero() || d.Before(o.To)) {
			days++
		}
	}
	return z.Records * days / int64(len(z.Days))
}

// span is what was read of a zone.
type span struct {
	records     int64
	days        int64
	first, last int64
}

// passes is a run over all zones.
type passes struct {
	src     Source
	o       *Options
	plugins []Plugin
	spans   []span
	total   int64

	mu   sync.Mutex
	done int64
}

// zone makes the pass over one zone and returns the results of all figures in their
// order.
func (p *passes) zone(ctx context.Context, z store.Zone) ([]Result, span, error) {
	var sp span
	q := store.Query{Zone: z.Name, From: p.o.From, To: p.o.To}
	analyses := make([]Analysis, len(p.plugins))
	for i, plug := range p.plugins {
		analyses[i] = plug.New(z, p.o)
		q.Columns |= analyses[i].Columns()
	}
	lastDay := int64(0)
	err := p.src.Scan(ctx, q, func(b *store.Batch) error {
		if b.Len() == 0 {
			return nil
		}
		for _, a := range analyses {
			a.Add(b)
		}
		if sp.records == 0 {
			sp.first = b.Time[0]
		}
		for _, t := range b.Time {
			if day := floorDiv(t, microDay); sp.days == 0 || day > lastDay {
				sp.days, lastDay = sp.days+1, day
			}
		}
		sp.last = b.Time[b.Len()-1]
		sp.records += int64(b.Len())
		p.progress(z.Name, int64(b.Len()))
		return ctx.Err()
	})
	if err != nil {
		return nil, sp, fmt.Errorf("analyse zone %s: %w", z.Name, err)
	}
	var out []Result
	for i, a := range analyses {
		res := a.Result()
		if len(res) != len(p.plugins[i].Figures) {
			return nil, sp, fmt.Errorf("figure %s: the analysis has %d results for %d figures", p.plugins[i].Figures[0].ID, len(res), len(p.plugins[i].Figures))
		}
		for k := range res {
			if err := res[k].check(); err != nil {
				return nil, sp, fmt.Errorf("figure %s of zone %s: %w", p.plugins[i].Figures[k].ID, z.Name, err)
			}
		}
		out = append(out, res...)
		analyses[i] = nil // its memory may go
	}
	return out, sp, nil
}

func (p *passes) progress(zone string, n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done += n
	if p.o.Progress != nil {
		p.o.Progress(Progress{Records: p.done, Total: max(p.total, p.done), Zone: zone})
	}
}
