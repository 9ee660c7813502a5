package analyze

import (
	"math"

	"example.org/slipway/internal/chart"
	"example.org/slipway/workload/trace/store"
)

// figure9 makes Figure 9 of FAST'18, "Correlation between layer size and latency".
func figure9() Plugin {
	return Plugin{
		Figures: []Figure{{
			ID: "9", Title: "Figure 9: duration against size of layers",
			Definition: "Over GETs of a layer with status 200 or 206 and a size above 0: in bins of the size, ten for each power of ten, the median duration and the band from the 10th to the 90th percentile. " +
				"Dots are single requests, at most 1,000 drawn evenly out of all. The slopes are those of a straight line through the medians of bins with at least 10 requests, " +
				"both in logarithms, weighted by requests: 0 is flat, 1 is in proportion. MB is 10^6 bytes.",
			Error: "Durations of a bin within 0.4 %; a bin stands at the middle, in logarithms, of its sizes.",
			Plot: Plot{Kind: PlotBands, PerZone: true, X: chart.Axis{Title: "size of the layer", Unit: chart.Bytes, Log: true},
				Y: chart.Axis{Title: "duration: median, 10th to 90th percentile", Unit: chart.Seconds, Log: true}},
		}},
		New: func(store.Zone, *Options) Analysis { return &sizeLatency{seed: 1} },
	}
}

const (
	binsPerDecade = 10
	maxDots       = 1000
)

type sizeLatency struct {
	bins    [19 * binsPerDecade]*Hist // up to 9.2e18, the largest size
	n       int64
	unknown int64
	dots    []Point
	seed    uint64
}

func (s *sizeLatency) Columns() store.Columns {
	return store.ColMethod | store.ColKind | store.ColStatus | store.ColDuration | store.ColSize
}

func (s *sizeLatency) Add(b *store.Batch) {
	for i := range b.Method {
		if !layerGet(b, i) || b.Size[i] == 0 {
			continue
		}
		if b.Size[i] < 0 || b.Duration[i] < 0 {
			s.unknown++
			continue
		}
		bin := sizeBin(b.Size[i])
		if s.bins[bin] == nil {
			s.bins[bin] = &Hist{}
		}
		s.bins[bin].Add(b.Duration[i])
		s.n++
		s.draw(Point{X: float64(b.Size[i]), Y: float64(b.Duration[i]) / 1e6})
	}
}

// sizeBin returns the bin of a size: bin k holds 10^(k/10) up to 10^((k+1)/10).
func sizeBin(size int64) int {
	k := int(math.Floor(math.Log10(float64(size))*binsPerDecade + 1e-9))
	return min(max(k, 0), 19*binsPerDecade-1)
}

// draw keeps a sample in which every point is equally likely (Vitter's algorithm R). Its
// randomness depends only on the order of the points.
func (s *sizeLatency) draw(p Point) {
	if len(s.dots) < maxDots {
		s.dots = append(s.dots, p)
		return
	}
	s.seed = s.seed*6364136223846793005 + 1442695040888963407 // Knuth's MMIX generator
	if at := (s.seed >> 11) % uint64(s.n); at < maxDots {
		s.dots[at] = p
	}
}

func (s *sizeLatency) Result() []Result {
	r := Result{Requests: s.n}
	r.unknown(s.unknown, "the size or the duration")
	var points []Point
	var small Hist
	for k, h := range s.bins {
		if h == nil {
			continue
		}
		mid := math.Pow(10, (float64(k)+0.5)/binsPerDecade)
		points = append(points, Point{X: mid, Y: h.Quantile(0.5) / 1e6, Low: h.Quantile(0.1) / 1e6, High: h.Quantile(0.9) / 1e6})
		if k < 6*binsPerDecade {
			small.merge(h)
		}
	}
	r.add("median below 1 MB", Seconds, small.Quantile(0.5)/1e6)
	for _, at := range []struct {
		name string
		bin  int
	}{{"median at 10 kB", 40}, {"median at 1 MB", 60}, {"median at 10 MB", 70}, {"median at 100 MB", 80}, {"median at 1 GB", 90}} {
		if h := s.bins[at.bin]; h != nil {
			r.add(at.name, Seconds, h.Quantile(0.5)/1e6)
		}
	}
	r.add("slope below 1 MB", Number, s.slope(0, 6*binsPerDecade))
	r.add("slope above 1 MB", Number, s.slope(6*binsPerDecade, len(s.bins)))
	r.Series = []Series{{Name: "median, 10th to 90th percentile", Points: points}, {Name: "requests", Points: s.dots}}
	return []Result{r}
}

// merge adds all numbers of another distribution.
func (h *Hist) merge(o *Hist) {
	if o.n == 0 {
		return
	}
	if len(o.counts) > len(h.counts) {
		h.counts = append(h.counts, make([]int64, len(o.counts)-len(h.counts))...)
	}
	for i, c := range o.counts {
		h.counts[i] += c
	}
	if h.n == 0 || o.min < h.min {
		h.min = o.min
	}
	h.max = max(h.max, o.max)
	h.n += o.n
	h.sum += o.sum
}

// slope returns the slope of the line through the bins' medians in logarithms, or NaN
// with fewer than three bins.
func (s *sizeLatency) slope(from, to int) float64 {
	var f fit
	const least = 10
	for k := from; k < to; k++ {
		if h := s.bins[k]; h != nil && h.N() >= least && h.Quantile(0.5) > 0 {
			f.add((float64(k)+0.5)/binsPerDecade, math.Log10(h.Quantile(0.5)), float64(h.N()))
		}
	}
	return f.slope()
}

// fit is a straight line by least squares.
type fit struct {
	n                   int
	w, wx, wy, wxx, wxy float64
}

func (f *fit) add(x, y, weight float64) {
	f.n++
	f.w += weight
	f.wx += weight * x
	f.wy += weight * y
	f.wxx += weight * x * x
	f.wxy += weight * x * y
}

// slope returns NaN if there are fewer than three points, or if all have the same x.
func (f *fit) slope() float64 {
	d := f.w*f.wxx - f.wx*f.wx
	if f.n < 3 || d <= 0 {
		return math.NaN()
	}
	return (f.w*f.wxy - f.wx*f.wy) / d
}
