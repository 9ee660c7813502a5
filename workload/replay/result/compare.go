package result

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
)

// Metric is a figure by which results are compared.
type Metric struct {
	// Name is the name that gates use: "p99", "service-p50", "rate".
	Name string
	// Unit is the unit of the metric's values.
	Unit string
	// MoreIsBetter reports whether a higher value is better.
	MoreIsBetter bool

	of func(b *Block, seconds float64) float64
}

// Metrics returns the figures that can be compared and can have gates.
func Metrics() []Metric {
	latency := func(q float64) func(*Block, float64) float64 {
		return func(b *Block, _ float64) float64 { return b.Latency.Quantile(q) / 1e3 }
	}
	service := func(q float64) func(*Block, float64) float64 {
		return func(b *Block, _ float64) float64 { return b.Service.Quantile(q) / 1e3 }
	}
	return []Metric{
		{"mean", "ms", false, func(b *Block, _ float64) float64 { return b.Latency.Mean() / 1e3 }},
		{"p50", "ms", false, latency(0.5)},
		{"p90", "ms", false, latency(0.9)},
		{"p99", "ms", false, latency(0.99)},
		{"p999", "ms", false, latency(0.999)},
		{"service-mean", "ms", false, func(b *Block, _ float64) float64 { return b.Service.Mean() / 1e3 }},
		{"service-p50", "ms", false, service(0.5)},
		{"service-p99", "ms", false, service(0.99)},
		{"rate", "1/s", true, func(b *Block, s float64) float64 { return float64(b.Requests) / s }},
		{"throughput", "MB/s", true, func(b *Block, s float64) float64 { return float64(b.Bytes) / 1e6 / s }},
		{"errors", "%", false, func(b *Block, _ float64) float64 {
			return 100 * float64(b.Errors+b.Unsent) / float64(max(1, b.Requests+b.Unsent))
		}},
	}
}

// Gate is the largest regression of a metric that passes.
type Gate struct {
	Metric string
	// Limit is a share: 0.1 lets a metric be 10 % worse. For errors it is in points:
	// 0.01 lets 1 % more of the requests fail.
	Limit float64
}

// ParseGate reads METRIC=PERCENT%, such as p99=10%.
func ParseGate(s string) (Gate, error) {
	name, value, ok := strings.Cut(s, "=")
	value, percent := strings.CutSuffix(value, "%")
	v, err := strconv.ParseFloat(value, 64)
	if !ok || !percent || err != nil || v < 0 || math.IsInf(v, 0) || math.IsNaN(v) {
		return Gate{}, fmt.Errorf("malformed gate %q: write METRIC=PERCENT%%, such as p99=10%%", s)
	}
	for _, m := range Metrics() {
		if m.Name == name {
			return Gate{name, v / 100}, nil
		}
	}
	var names []string
	for _, m := range Metrics() {
		names = append(names, m.Name)
	}
	return Gate{}, fmt.Errorf("unknown metric %q: there are %s", name, strings.Join(names, ", "))
}

// CompareOptions are the options of Compare. The zero value is usable.
type CompareOptions struct {
	// Confidence is the confidence of the intervals; 0 means 0.95.
	Confidence float64
	// Resamples is how many times the blocks are drawn, 0 means 1000.
	Resamples int
	// BlockSeconds is the length of the blocks that are drawn; 0 means 1. Longer blocks
	// are right if one second depends on the seconds before.
	BlockSeconds int64
	// Seed is the seed of the random draws. The same seed gives the same intervals.
	Seed uint64
	// Gates are the gates that have to hold.
	Gates []Gate
}

// Interval is a figure with its confidence interval.
type Interval struct {
	Value float64 `json:"value"`
	Low   float64 `json:"low"`
	High  float64 `json:"high"`
}

// Change compares a metric of a result with the same metric of the first result.
type Change struct {
	Metric string `json:"metric"`
	Unit   string `json:"unit"`
	Base   Interval
	Other  Interval
	// Share is how much Other exceeds Base, as a share of Base. For errors it is the
	// difference in percent.
	Share Interval `json:"change"`
	// Differs reports whether the interval of Share excludes 0.
	Differs bool `json:"differs"`
	// Gate and Failed are set if there is a gate.
	Gate   *float64 `json:"gate,omitempty"`
	Failed bool     `json:"failed,omitempty"`
}

// Comparison is a result beside the first one.
type Comparison struct {
	Base    string   `json:"base"`
	Other   string   `json:"other"`
	Blocks  [2]int   `json:"blocks"`
	Valid   bool     `json:"valid"`
	Notes   []string `json:"notes,omitempty"`
	Changes []Change `json:"changes"`
}

// Failed reports whether a gate does not hold.
func (c *Comparison) Failed() bool {
	return slices.ContainsFunc(c.Changes, func(ch Change) bool { return ch.Failed })
}

// fewBlocks is the number of blocks below which intervals mean little.
const fewBlocks = 20

// Compare compares other with base. A gate fails if the metric is worse by more than its
// limit and the confidence interval of the change confirms that it became worse.
func Compare(base, other *Result, o CompareOptions) *Comparison {
	set := func(v *float64, d float64) {
		if *v == 0 {
			*v = d
		}
	}
	set(&o.Confidence, 0.95)
	if o.Resamples == 0 {
		o.Resamples = 1000
	}
	c := &Comparison{Base: base.Name, Other: other.Name, Valid: base.Valid && other.Valid}
	for _, r := range []*Result{base, other} {
		if !r.Valid {
			c.Notes = append(c.Notes, fmt.Sprintf("%s is not a valid run: %s", r.Name, r.Verdict))
		} else if !r.Complete {
			c.Notes = append(c.Notes, r.Name+" was ended early")
		}
	}
	rng := rand.New(rand.NewPCG(o.Seed, 1))
	a, b := newDraws(base, &o, rng), newDraws(other, &o, rng)
	c.Blocks = [2]int{len(a.blocks), len(b.blocks)}
	if len(a.blocks) < fewBlocks || len(b.blocks) < fewBlocks {
		c.Notes = append(c.Notes, fmt.Sprintf("%d and %d blocks of time are few: the intervals are rough", len(a.blocks), len(b.blocks)))
	}
	if base.Mode != other.Mode || base.Level != other.Level || base.Planned != other.Planned {
		c.Notes = append(c.Notes, "the runs were not made in the same way")
	}
	for i, m := range Metrics() {
		c.Changes = append(c.Changes, change(i, m, a, b, &o))
	}
	return c
}

// draws holds the metrics of a result: of the whole, and of each resample.
type draws struct {
	blocks  []Block
	whole   []float64
	samples [][]float64 // by metric
}

func newDraws(r *Result, o *CompareOptions, rng *rand.Rand) *draws {
	d := &draws{blocks: r.blocks(o.BlockSeconds)}
	metrics := Metrics()
	all := Block{}
	for i := range d.blocks {
		all.merge(&d.blocks[i])
	}
	for _, m := range metrics {
		d.whole = append(d.whole, m.of(&all, max(1e-6, r.Seconds)))
	}
	d.samples = make([][]float64, len(metrics))
	if len(d.blocks) == 0 {
		return d
	}
	for range o.Resamples {
		sum := Block{}
		for range d.blocks {
			sum.merge(&d.blocks[rng.IntN(len(d.blocks))])
		}
		for i, m := range metrics {
			d.samples[i] = append(d.samples[i], m.of(&sum, max(1e-6, r.Seconds)))
		}
	}
	return d
}

// blocks returns the blocks of all targets together, merged to a length in seconds.
func (r *Result) blocks(seconds int64) []Block {
	var out []Block
	n := int(max(1, seconds/r.Counts.BlockSeconds))
	for _, blocks := range r.Counts.Blocks {
		for i := range blocks {
			if i/n >= len(out) {
				out = append(out, Block{})
			}
			out[i/n].merge(&blocks[i])
		}
	}
	for len(out) > 0 && out[0].Requests+out[0].Unsent == 0 { // a run that was resumed, or begins late
		out = out[1:]
	}
	return out
}

func (d *draws) interval(metric int, confidence float64) Interval {
	return interval(d.whole[metric], d.samples[metric], confidence)
}

// interval returns the percentile interval of a bootstrap.
func interval(value float64, samples []float64, confidence float64) Interval {
	if len(samples) == 0 {
		return Interval{value, value, value}
	}
	s := slices.Clone(samples)
	slices.Sort(s)
	tail := (1 - confidence) / 2
	at := func(q float64) float64 { return s[min(len(s)-1, int(q*float64(len(s))))] }
	return Interval{value, at(tail), at(1 - tail)}
}

func change(i int, m Metric, a, b *draws, o *CompareOptions) Change {
	c := Change{Metric: m.Name, Unit: m.Unit, Base: a.interval(i, o.Confidence), Other: b.interval(i, o.Confidence)}
	relative := func(x, y float64) float64 {
		switch {
		case m.Name == "errors":
			return (y - x) / 100
		case x == 0 && y == 0:
			return 0
		case x == 0:
			return math.MaxFloat32 // JSON has no infinity
		}
		return y/x - 1
	}
	var shares []float64
	for j := range min(len(a.samples[i]), len(b.samples[i])) {
		shares = append(shares, relative(a.samples[i][j], b.samples[i][j]))
	}
	c.Share = interval(relative(a.whole[i], b.whole[i]), shares, o.Confidence)
	c.Differs = c.Share.Low > 0 || c.Share.High < 0
	for _, g := range o.Gates {
		if g.Metric != m.Name {
			continue
		}
		worse := c.Share.Value
		if m.MoreIsBetter {
			worse = -worse
		}
		c.Gate = &g.Limit
		c.Failed = worse > g.Limit && c.Differs
	}
	return c
}
