package simulate

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"example.org/slipway/internal/policy"
	"example.org/slipway/internal/report"
)

// Tier is how long a layer takes from one place: a time until the first byte and a rate,
// or measured points.
type Tier struct {
	// Latency is the time until the first byte, in milliseconds.
	Latency float64 `json:"latency_ms,omitempty"`
	// Bandwidth is the rate of a single transfer, in bytes a second; 0 is no limit.
	Bandwidth float64 `json:"bytes_per_second,omitempty"`
	// Points, if there are any, replace both: measured times by size, in order of size.
	// Between two points the time is interpolated. Below the first point, the time of the
	// first point counts. Above the last point the time grows at the rate between the
	// last two points; with a single point it stays the same.
	Points []TierPoint `json:"points,omitempty"`
}

// TierPoint is a measured time for a layer of some size.
type TierPoint struct {
	Bytes int64   `json:"bytes"`
	Ms    float64 `json:"ms"`
}

// Model is how long a layer takes from each place.
type Model struct {
	RAM     Tier `json:"ram"`
	SSD     Tier `json:"ssd"`
	Backend Tier `json:"backend"`
}

// DefaultModel returns the model that is used without measurements.
func DefaultModel() Model {
	return Model{
		// A request of a pull by one client takes 1.64 ms / 7. One of four clients gets 1
		// MiB at 590 MB/s without checking it: docs/bench.md.
		RAM: Tier{Latency: 0.25, Bandwidth: 500e6},
		// Like memory, plus 0.25 ms for an open and a read, and at the rate of a SATA
		// SSD.
		SSD: Tier{Latency: 0.5, Bandwidth: 450e6},
		// FAST'18 Fig. 16: layers below 1 MB take 0.07 s from Swift. Object stores
		// commonly give a single transfer this rate.
		Backend: Tier{Latency: 70, Bandwidth: 100e6},
	}
}

// ms returns the time of a layer of some size in milliseconds. link bounds the transfer,
// in bytes a second; 0 means no bound.
func (t *Tier) ms(size int64, link float64) float64 {
	if len(t.Points) == 0 {
		return t.Latency + transferMs(size, slower(t.Bandwidth, link))
	}
	return max(t.measured(size), transferMs(size, link))
}

func slower(a, b float64) float64 {
	if a <= 0 || b > 0 && b < a {
		return b
	}
	return a
}

func transferMs(size int64, rate float64) float64 {
	if rate <= 0 {
		return 0
	}
	return float64(size) / rate * 1e3
}

func (t *Tier) measured(size int64) float64 {
	p := t.Points
	n := len(p)
	if size <= p[0].Bytes || n == 1 {
		return p[0].Ms
	}
	i, _ := slices.BinarySearchFunc(p, size, func(p TierPoint, s int64) int { return cmp.Compare(p.Bytes, s) })
	i = min(i, n-1)
	a, b := p[i-1], p[i]
	slope := (b.Ms - a.Ms) / float64(b.Bytes-a.Bytes)
	if size > b.Bytes {
		return b.Ms + max(slope, 0)*float64(size-b.Bytes) // what is larger takes no less
	}
	return a.Ms + slope*float64(size-a.Bytes)
}

func (t *Tier) check(name string) error {
	if !(t.Latency >= 0) || !(t.Bandwidth >= 0) || math.IsInf(t.Latency, 0) || math.IsInf(t.Bandwidth, 0) {
		return fmt.Errorf("latency and bandwidth of %s are numbers of at least 0", name)
	}
	for i, p := range t.Points {
		if !(p.Ms >= 0) || math.IsInf(p.Ms, 0) || p.Bytes < 0 || i > 0 && p.Bytes <= t.Points[i-1].Bytes {
			return fmt.Errorf("measured points of %s have growing sizes, and times of at least 0", name)
		}
	}
	return nil
}

// String describes the tier.
func (t *Tier) String() string {
	if n := len(t.Points); n > 0 {
		return fmt.Sprintf("%d measured points from %s to %s", n, report.Bytes(float64(t.Points[0].Bytes)), report.Bytes(float64(t.Points[n-1].Bytes)))
	}
	if t.Bandwidth == 0 {
		return msText(t.Latency)
	}
	return fmt.Sprintf("%s + %s/s", msText(t.Latency), report.Bytes(t.Bandwidth))
}

// maxProfile bounds the size of a profile, in bytes.
const maxProfile = 1 << 20

// ReadModel reads measured tiers as JSON, {"backend": {"points": [{"bytes": 1000, "ms":
// 12.5}, ...]}}. Tiers that are missing there stay as they are in m.
func (m *Model) ReadModel(r io.Reader) error {
	b, err := io.ReadAll(io.LimitReader(r, maxProfile+1))
	if err != nil {
		return fmt.Errorf("read the profile of tiers: %w", err)
	}
	if len(b) > maxProfile {
		return fmt.Errorf("a profile of tiers has at most %d bytes", maxProfile)
	}
	var read struct{ RAM, SSD, Backend *Tier }
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields() // an unknown name is a mistake and does not mean the default
	if err := d.Decode(&read); err != nil {
		return fmt.Errorf("parse the profile of tiers: %w", err)
	}
	next := *m
	for _, t := range []struct {
		from, to *Tier
	}{{read.RAM, &next.RAM}, {read.SSD, &next.SSD}, {read.Backend, &next.Backend}} {
		if t.from != nil {
			*t.to = *t.from
		}
	}
	if err := next.check(); err != nil {
		return err
	}
	*m = next
	return nil
}

func (m *Model) check() error {
	return errors.Join(m.RAM.check("memory"), m.SSD.check("the SSD"), m.Backend.check("the backend"))
}

func (m *Model) tier(at policy.Level) *Tier {
	switch at {
	case policy.RAM:
		return &m.RAM
	case policy.SSD:
		return &m.SSD
	}
	return &m.Backend
}

// Latency is the latency of requests for layers, in milliseconds.
type Latency struct {
	Mean float64 `json:"mean_ms"`
	P50  float64 `json:"p50_ms"`
	P95  float64 `json:"p95_ms"`
	P99  float64 `json:"p99_ms"`
}

// found counts how often each layer was found at each level, at index 3*layer + level.
type found []uint32

func (f found) add(layer uint32, at policy.Level) { f[3*int(layer)+int(at)]++ }

// latency computes the times of requests by where their layers were found. link bounds a
// transfer, in bytes a second; 0 means no bound.
func (f found) latency(sizes []int64, m *Model, link float64) Latency {
	type some struct {
		ms float64
		n  uint32
	}
	var list []some
	var total int64
	var sum float64
	for i, n := range f {
		if n == 0 {
			continue
		}
		ms := m.tier(policy.Level(i%3)).ms(sizes[i/3], link)
		list = append(list, some{ms, n})
		total += int64(n)
		sum += ms * float64(n)
	}
	if total == 0 {
		return Latency{}
	}
	slices.SortFunc(list, func(a, b some) int { return cmp.Compare(a.ms, b.ms) })
	l := Latency{Mean: sum / float64(total)}
	var seen int64
	at := 0
	for _, q := range []struct {
		share float64
		to    *float64
	}{{0.50, &l.P50}, {0.95, &l.P95}, {0.99, &l.P99}} {
		rank := max(1, int64(math.Ceil(q.share*float64(total)-1e-9)))
		for seen+int64(list[at].n) < rank {
			seen += int64(list[at].n)
			at++
		}
		*q.to = list[at].ms
	}
	return l
}

// Goal is a latency of layers to reach. The zero value is none.
type Goal struct {
	// Of is mean, p50, p95 or p99.
	Of string `json:"of,omitempty"`
	// Ms is the largest latency, in milliseconds.
	Ms float64 `json:"ms,omitempty"`
}

// ParseGoal reads a goal such as "p99=200ms"; "" is none.
func ParseGoal(s string) (Goal, error) {
	if s == "" {
		return Goal{}, nil
	}
	of, text, ok := strings.Cut(s, "=")
	d, err := time.ParseDuration(text)
	if !ok || err != nil || d <= 0 || !slices.Contains([]string{"mean", "p50", "p95", "p99"}, of) {
		return Goal{}, fmt.Errorf("%q is not a goal; write mean=50ms, p50=, p95= or p99=200ms", s)
	}
	return Goal{Of: of, Ms: d.Seconds() * 1e3}, nil
}

// of returns the figure of a latency that the goal is about.
func (g Goal) of(l Latency) float64 {
	switch g.Of {
	case "p50":
		return l.P50
	case "p95":
		return l.P95
	case "p99":
		return l.P99
	}
	return l.Mean
}

// met reports whether a latency meets the goal. Without a goal, every latency meets it.
func (g Goal) met(l Latency) bool { return g.Of == "" || g.of(l) <= g.Ms }

// String writes the goal as ParseGoal reads it.
func (g Goal) String() string {
	if g.Of == "" {
		return "none"
	}
	return g.Of + "=" + msText(g.Ms)
}

// msText writes milliseconds with three digits and a unit.
func msText(ms float64) string {
	switch {
	case ms == 0:
		return "0 ms"
	case ms < 0.9995:
		return threeDigits(ms*1e3) + " µs"
	case ms < 999.5:
		return threeDigits(ms) + " ms"
	}
	return threeDigits(ms/1e3) + " s"
}

// threeDigits writes a number with three significant digits and no exponent.
func threeDigits(f float64) string {
	if f == 0 || math.IsInf(f, 0) || math.IsNaN(f) {
		return strconv.FormatFloat(f, 'f', -1, 64)
	}
	digits := max(0, 2-int(math.Floor(math.Log10(math.Abs(f)))))
	return strconv.FormatFloat(f, 'f', digits, 64)
}
