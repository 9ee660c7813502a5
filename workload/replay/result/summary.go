package result

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Summary says what a run was and what came of it. Times are in milliseconds.
type Summary struct {
	// Version is the version of this form.
	Version int `json:"version"`
	// Level, Mode and Speed say how the trace was replayed. Options has all settings.
	Level   string            `json:"level"`
	Mode    string            `json:"mode"`
	Options map[string]string `json:"options"`
	// Targets and Workers are what samples refer to.
	Targets []string `json:"targets"`
	Workers []string `json:"workers"`
	// Environment is where it was run.
	Environment Environment `json:"environment"`
	// Planned is how many requests of the trace were to be replayed, Skipped how many
	// could not be replayed.
	Planned int64            `json:"planned"`
	Skipped map[string]int64 `json:"skipped,omitempty"`
	// Unsized is the content whose size the trace lacks.
	Unsized *Unsized `json:"unsized,omitempty"`
	// WarmUp is what was put in place.
	WarmUp *WarmUp `json:"warmUp,omitempty"`

	Began   time.Time `json:"began"`
	Resumed int       `json:"resumed,omitempty"`
	// Complete is false for a run that was ended early.
	Complete bool `json:"complete"`
	// Problems is what went wrong with the replay itself.
	Problems []string `json:"problems,omitempty"`
	// MaxLag is the largest lag of the generator, in milliseconds at the 99th percentile,
	// with which the run is valid.
	MaxLag float64 `json:"maxLagMs"`
	// Closed reports whether the run was a closed loop.
	Closed bool `json:"closedLoop"`
	// LostWorkers is how many workers were lost.
	LostWorkers int `json:"lostWorkers,omitempty"`

	// The rest is computed from the samples.
	Seconds    float64          `json:"seconds"`
	Requests   int64            `json:"requests"`
	Outcomes   map[string]int64 `json:"outcomes"`
	Sessions   map[string]int64 `json:"sessions,omitempty"`
	Late       int64            `json:"late"`
	Extra      int64            `json:"extra"`
	Bytes      int64            `json:"bytes"`
	PerSecond  float64          `json:"requestsPerSecond"`
	BytesPer   float64          `json:"bytesPerSecond"`
	Latency    Times            `json:"latencyMs"`
	Service    Times            `json:"serviceMs"`
	Lag        Times            `json:"lagMs"`
	Wait       Times            `json:"waitMs"`
	Redirects  int64            `json:"redirects"`
	RedirectMs float64          `json:"redirectMeanMs"`
	Unwritten  int64            `json:"unwritten,omitempty"`
	Valid      bool             `json:"valid"`
	Verdict    string           `json:"verdict"`
	Groups     []GroupRow       `json:"groups"`
	PerWorker  []WorkerRow      `json:"perWorker"`
}

// Unsized is content that was made without a recorded size to go by.
type Unsized struct {
	Blobs     int64 `json:"blobs"`
	Manifests int64 `json:"manifests"`
	// BlobSize is the size that such blobs were given, in bytes.
	BlobSize int64 `json:"blobSize"`
	// Examples are the names of some.
	Examples []string `json:"examples"`
}

// String says how much it is, and of what.
func (u *Unsized) String() string {
	return fmt.Sprintf("the trace does not have the sizes of %d blobs, which were given %d bytes, and of %d manifests, such as %s",
		u.Blobs, u.BlobSize, u.Manifests, strings.Join(u.Examples, ", "))
}

// WorkerRow is what one worker did.
type WorkerRow struct {
	Worker   string `json:"worker"`
	Requests int64  `json:"requests"`
	Errors   int64  `json:"errors"`
	Unsent   int64  `json:"unsent"`
	Bytes    int64  `json:"bytes"`
	Latency  Times  `json:"latencyMs"`
	Lag      Times  `json:"lagMs"`
}

// Environment is where a run was made.
type Environment struct {
	Slipway string `json:"slipway"`
	Go      string `json:"go"`
	OS      string `json:"os"`
	Arch    string `json:"arch"`
	CPUs    int    `json:"cpus"`
}

// Here returns the environment of this process.
func Here(version string) Environment {
	return Environment{Slipway: version, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH, CPUs: runtime.NumCPU()}
}

// WarmUp is what was put in place before the first request.
type WarmUp struct {
	Blobs     int64   `json:"blobs"`
	Manifests int64   `json:"manifests"`
	Requests  int64   `json:"requests"`
	Errors    int64   `json:"errors"`
	Seconds   float64 `json:"seconds"`
}

// Times is a distribution, in milliseconds.
type Times struct {
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p999"`
	Max  float64 `json:"max"`
}

func times(h *hdrhistogram.Histogram) Times {
	if h.TotalCount() == 0 {
		return Times{}
	}
	q := func(p float64) float64 { return float64(h.ValueAtQuantile(p)) / 1e3 }
	return Times{Mean: h.Mean() / 1e3, P50: q(50), P90: q(90), P99: q(99), P999: q(99.9), Max: float64(h.Max()) / 1e3}
}

// GroupRow is one group of requests.
type GroupRow struct {
	Method   string `json:"method"`
	Object   string `json:"object"`
	Size     string `json:"size"`
	Target   string `json:"target"`
	Status   string `json:"status"`
	Requests int64  `json:"requests"`
	Bytes    int64  `json:"bytes"`
	Latency  Times  `json:"latencyMs"`
	Service  Times  `json:"serviceMs"`
}

// fill derives figures from the aggregate.
func (s *Summary) fill(a *Aggregate) {
	s.Version = 1
	s.Requests, s.Late, s.Extra = a.Requests(), a.Late, a.Extra
	s.Outcomes, s.Sessions = named(a.Outcomes), named(a.Sessions)
	all := a.Sum(nil)
	s.Bytes, s.Redirects = all.Bytes, all.Redirects
	if all.Redirects > 0 {
		s.RedirectMs = float64(all.RedirectTime) / float64(all.Redirects) / 1e3
	}
	s.Latency, s.Service, s.Lag, s.Wait = times(all.Latency), times(all.Service), times(a.Lag), times(a.Wait)
	if a.Began >= 0 && a.Ended > a.Began {
		s.Seconds = float64(a.Ended-a.Began) / 1e6
		s.PerSecond = float64(all.Latency.TotalCount()) / s.Seconds
		s.BytesPer = float64(all.Bytes) / s.Seconds
	}
	s.judge(a)
	s.Groups = s.rows(a)
	s.PerWorker = s.workerRows(a)
}

func named(n [outcomes]int64) map[string]int64 {
	m := map[string]int64{}
	for i, v := range n {
		if v > 0 {
			m[Outcome(i).String()] = v
		}
	}
	return m
}

// notableWait is how long requests may wait for a place, in milliseconds at the 99th
// percentile, before a note says so.
const notableWait = 10

// judge decides whether the figures describe the registry or the generator.
func (s *Summary) judge(a *Aggregate) {
	total := a.Requests()
	share := func(n int64) float64 { return 100 * float64(n) / float64(max(1, total)) }
	var bad, notes []string
	failed := a.Errors() + a.Outcomes[Failed]
	switch {
	case total == 0:
		bad = append(bad, "nothing was sent")
	case a.Outcomes[OK] == 0:
		bad = append(bad, "no request succeeded")
	case failed > 0:
		notes = append(notes, fmt.Sprintf("%d requests (%.2f %%) failed", failed, share(failed)))
	}
	if !s.Closed && s.Lag.P99 > s.MaxLag {
		bad = append(bad, fmt.Sprintf("the generator was the bottleneck: 99 %% of the requests left within %.1f ms of their time, the bound is %.1f ms; use more workers, a lower speed or a shorter list of requests",
			s.Lag.P99, s.MaxLag))
	}
	if lost := a.Outcomes[Lost]; lost > 0 {
		notes = append(notes, fmt.Sprintf("%d requests were under way on workers that were lost", lost))
	}
	if n := a.Outcomes[Dropped]; n > 0 {
		bad = append(bad, fmt.Sprintf("%d requests (%.2f %%) were dropped: as many as allowed were under way for too long", n, share(n)))
	}
	if s.Wait.P99 > notableWait && !s.Closed {
		notes = append(notes, fmt.Sprintf("requests waited for others to end (p99 %.1f ms): the registry was saturated, or the bound of requests under way is too low", s.Wait.P99))
	}
	if s.Closed {
		notes = append(notes, "closed loop: the registry set the pace, so latencies say nothing about what users of a loaded registry would see")
	}
	if s.Unsized != nil {
		notes = append(notes, s.Unsized.String())
	}
	s.Valid = len(bad) == 0
	s.Verdict = "valid"
	if !s.Valid {
		s.Verdict = "INVALID: " + strings.Join(bad, "; ")
	}
	if len(notes) > 0 {
		s.Verdict += " (" + strings.Join(notes, "; ") + ")"
	}
}

func (s *Summary) target(i uint8) string {
	if int(i) < len(s.Targets) {
		return s.Targets[i]
	}
	return fmt.Sprint(i)
}

func (s *Summary) workerRows(a *Aggregate) []WorkerRow {
	rows := []WorkerRow{}
	for _, i := range slices.Sorted(maps.Keys(a.Workers)) {
		w, name := a.Workers[i], fmt.Sprint(i)
		if int(i) < len(s.Workers) {
			name = s.Workers[i]
		}
		rows = append(rows, WorkerRow{Worker: name, Requests: w.Requests, Errors: w.Errors, Unsent: w.Unsent, Bytes: w.Bytes,
			Latency: times(w.Latency), Lag: times(w.Lag)})
	}
	return rows
}

func (s *Summary) rows(a *Aggregate) []GroupRow {
	keys := make([]Key, 0, len(a.Groups))
	for k := range a.Groups {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(x, y Key) int {
		for _, d := range []int{int(x.Target) - int(y.Target), int(x.Object) - int(y.Object), int(x.Method) - int(y.Method), int(x.Size) - int(y.Size)} {
			if d != 0 {
				return d
			}
		}
		return int(x.Class) - int(y.Class)
	})
	rows := []GroupRow{}
	for _, k := range keys {
		g := a.Groups[k]
		status := "none"
		if k.Class > 0 {
			status = fmt.Sprintf("%dxx", k.Class)
		}
		rows = append(rows, GroupRow{Method: k.Method.String(), Object: k.Object.String(), Size: sizeNames[k.Size], Target: s.target(k.Target),
			Status: status, Requests: g.Latency.TotalCount(), Bytes: g.Bytes, Latency: times(g.Latency), Service: times(g.Service)})
	}
	return rows
}

// Result is a run that was read back.
type Result struct {
	// Dir is the result's directory. Name is its name in comparisons.
	Dir, Name string
	*Summary
	// Counts is all that was counted.
	Counts *Aggregate
}

// Load reads a result and counts it again from the samples. A run that did not end has no
// summary; Load then makes one from the existing samples.
func Load(dir string) (*Result, error) {
	r := &Result{Dir: dir, Name: filepath.Base(filepath.Clean(dir)), Summary: &Summary{}, Counts: NewAggregate(nil)}
	raw, err := os.ReadFile(filepath.Join(dir, SummaryName))
	switch {
	case errors.Is(err, os.ErrNotExist):
		r.Problems = append(r.Problems, "the run did not end: this is what it had written")
	case err != nil:
		return nil, err
	default:
		if err := json.Unmarshal(raw, r.Summary); err != nil {
			return nil, fmt.Errorf("%s of %s is malformed: %w", SummaryName, dir, err)
		}
	}
	if err := Read(dir, r.Counts.Add); err != nil {
		return nil, err
	}
	unwritten := r.Unwritten
	r.fill(r.Counts)
	r.Unwritten = unwritten
	if raw == nil { // the bound of its lag is not known either
		r.Valid, r.Verdict = false, "INVALID: the run did not end"
	}
	return r, nil
}
