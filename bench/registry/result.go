package registry

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"example.org/slipway/integration/bench/measure"
)

// Run says how, when and on what results were measured.
type Run struct {
	Date    time.Time       `json:"date"`
	Commit  string          `json:"commit"`
	Command string          `json:"command"`
	Machine measure.Machine `json:"machine"`
	Rounds  int             `json:"rounds"`
	// SliceSec is how long one measurement lasts, in seconds.
	SliceSec float64 `json:"slice_sec"`
	// TookSec is how long everything took, in seconds; 0 while it runs.
	TookSec float64 `json:"took_sec"`
	// Full says that slow measurements of other servers were done too.
	Full    bool        `json:"full,omitempty"`
	Scale   Scale       `json:"scale"`
	Servers []RunServer `json:"servers"`
}

// RunServer is a server that was measured, or says why it was not.
type RunServer struct {
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
	Missing string `json:"missing,omitempty"`
	// Variant says that it is another build of Slipway.
	Variant bool `json:"variant,omitempty"`
}

// Scale is the amount of content that the scenarios work on.
type Scale struct {
	Images      int    `json:"images"`        // small images that are pulled
	MemImages   int    `json:"memory_images"` // small images of the memory scenario
	Tags        int    `json:"tags"`          // tags in one repository of the large catalogue
	Repos       int    `json:"repositories"`  // repositories of the large catalogue
	StoreBlobs  [2]int `json:"store_blobs"`   // sizes of the stores that garbage is collected in
	GarbageEach int    `json:"garbage"`       // blobs that become garbage before each collection
}

// Sample is one measurement of one server. Times are in seconds unless the name says otherwise, and
// sizes in bytes.
type Sample struct {
	Scenario string `json:"scenario"`
	Case     string `json:"case"`
	Server   string `json:"server"`
	Round    int    `json:"round"`

	Ops     int     `json:"ops"`
	Bytes   int64   `json:"bytes,omitempty"`
	Seconds float64 `json:"sec"`
	// ServerCPU is the CPU time of the server's processes, and ClientCPU is the CPU time
	// of the client.
	ServerCPU float64 `json:"server_cpu_sec"`
	ClientCPU float64 `json:"client_cpu_sec"`
	// OtherCPUs is the number of CPUs that everything else on the machine kept busy.
	OtherCPUs float64 `json:"other_cpus"`
	// P50 and P99 are quantiles of the time of one operation, in milliseconds.
	P50 float64 `json:"p50_ms,omitempty"`
	P99 float64 `json:"p99_ms,omitempty"`
	// RSS is the server's resident set at the end, PeakRSS the largest so far.
	RSS     int64 `json:"rss,omitempty"`
	PeakRSS int64 `json:"peak_rss,omitempty"`
	// Err says why there is no measurement. All other fields are 0 then.
	Err string `json:"error,omitempty"`
}

// Results are everything that a run measured.
type Results struct {
	Run     Run
	Samples []Sample
}

// line is a line of a results file.
type line struct {
	Run    *Run    `json:"run,omitempty"`
	Sample *Sample `json:"sample,omitempty"`
}

// writeResults writes results as JSON lines, the run first.
func writeResults(path string, r *Results) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := bufio.NewWriter(f)
	enc := json.NewEncoder(w)
	if err := enc.Encode(line{Run: &r.Run}); err != nil {
		return err
	}
	for i := range r.Samples {
		if err := enc.Encode(line{Sample: &r.Samples[i]}); err != nil {
			return err
		}
	}
	return w.Flush()
}

// readResults reads what writeResults wrote.
func readResults(src io.Reader) (*Results, error) {
	r := &Results{}
	dec := json.NewDecoder(src)
	found := false
	for {
		var l line
		switch err := dec.Decode(&l); {
		case err == io.EOF && !found:
			return nil, errors.New("the results do not say what run they are of")
		case err == io.EOF:
			return r, nil
		case err != nil:
			return nil, fmt.Errorf("parse results: %w", err)
		}
		if l.Run != nil {
			r.Run, found = *l.Run, true
		}
		if l.Sample != nil {
			r.Samples = append(r.Samples, *l.Sample)
		}
	}
}

// group returns the successful samples of a server in a case, by round.
func (r *Results) group(scenario, cas, server string) []Sample {
	var out []Sample
	for _, s := range r.Samples {
		if s.Scenario == scenario && s.Case == cas && s.Server == server && s.Err == "" {
			out = append(out, s)
		}
	}
	slices.SortStableFunc(out, func(a, b Sample) int { return a.Round - b.Round })
	return out
}

// failure returns why a server has no sample in a case, if it was tried.
func (r *Results) failure(scenario, cas, server string) string {
	for _, s := range r.Samples {
		if s.Scenario == scenario && s.Case == cas && s.Server == server && s.Err != "" {
			return s.Err
		}
	}
	return ""
}

// cases returns the cases of a scenario in the order in which they were measured.
func (r *Results) cases(scenario string) []string {
	var out []string
	for _, s := range r.Samples {
		if s.Scenario == scenario && !slices.Contains(out, s.Case) {
			out = append(out, s.Case)
		}
	}
	return out
}

// metric is a figure derived from a sample.
type metric struct {
	// title is the metric's name with its unit.
	title string
	of    func(Sample) float64
}

// These are the metrics that scenarios report.
var (
	cpuMs     = metric{"server CPU ms", func(s Sample) float64 { return 1000 * s.ServerCPU / float64(s.Ops) }}
	cpuPerGB  = metric{"server CPU s/GB", func(s Sample) float64 { return s.ServerCPU / (float64(s.Bytes) / 1e9) }}
	perSecond = metric{"per second", func(s Sample) float64 { return float64(s.Ops) / s.Seconds }}
	mbPerSec  = metric{"MB/s", func(s Sample) float64 { return float64(s.Bytes) / 1e6 / s.Seconds }}
	seconds   = metric{"seconds", func(s Sample) float64 { return s.Seconds / float64(s.Ops) }}
	p50       = metric{"p50 ms", func(s Sample) float64 { return s.P50 }}
	p99       = metric{"p99 ms", func(s Sample) float64 { return s.P99 }}
	rssMB     = metric{"RSS MB", func(s Sample) float64 { return float64(s.RSS) / 1e6 }}
	peakMB    = metric{"peak RSS MB", func(s Sample) float64 { return float64(s.PeakRSS) / 1e6 }}
	otherCPUs = metric{"other CPUs", func(s Sample) float64 { return s.OtherCPUs }}
)

// spread returns the spread of a metric over the rounds.
func (m metric) spread(samples []Sample) measure.Spread {
	v := make([]float64, len(samples))
	for i, s := range samples {
		v[i] = m.of(s)
	}
	return measure.SpreadOf(v)
}

// comparison is one server's figure divided by another's.
type comparison struct {
	// ofMedians is the ratio of the medians.
	ofMedians float64
	// rounds is the spread of the ratios within each round.
	rounds measure.Spread
}

// compare divides a metric of a by the same metric of b. ok is false if either was not
// measured.
func (m metric) compare(a, b []Sample) (c comparison, ok bool) {
	sa, sb := m.spread(a), m.spread(b)
	if sa.N == 0 || sb.N == 0 || sb.Median == 0 {
		return comparison{}, false
	}
	c.ofMedians = sa.Median / sb.Median
	var ratios []float64
	for _, x := range a {
		for _, y := range b {
			if x.Round == y.Round {
				ratios = append(ratios, m.of(x)/m.of(y))
			}
		}
	}
	c.rounds = measure.SpreadOf(ratios)
	return c, true
}
