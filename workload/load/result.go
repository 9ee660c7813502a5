package load

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"example.org/slipway/oci/client"
	"example.org/slipway/workload/replay/result"
)

// resultVersion is the version of the format of results. A reader accepts no other
// version.
const resultVersion = 1

// Result is the result of a run. It is written as JSON.
type Result struct {
	Version int    `json:"version"`
	Name    string `json:"name"`
	// Target is the registry's host. Mode is "cached", "pull-through" or "mixed".
	Target string    `json:"target"`
	Mode   string    `json:"mode"`
	Began  time.Time `json:"began"`
	// Complete says that the run was not cut short.
	Complete    bool               `json:"complete"`
	Environment result.Environment `json:"environment"`
	// Options are the options that the user gave.
	Options map[string]string `json:"options,omitempty"`
	Images  ImagesInfo        `json:"images"`
	Pushed  *Pushed           `json:"pushed,omitempty"`
	Steps   []Step            `json:"steps"`
	Tallies []Tally           `json:"tallies"`
	Total   Total             `json:"total"`
	Knee    *Knee             `json:"knee,omitempty"`
	Faults  []FaultCount      `json:"faults,omitempty"`
	// Notes say what a reader must know to understand the figures.
	Notes []string `json:"notes,omitempty"`
}

// ImagesInfo describes the images that were pulled.
type ImagesInfo struct {
	Count int `json:"count"`
	// Patterns is the number of patterns. Each selects the images of one puller; these
	// sets of images may overlap.
	Patterns int `json:"patterns"`
	// Requests and Bytes are the mean numbers of requests and bytes per image.
	Requests float64 `json:"requests_each"`
	Bytes    float64 `json:"bytes_each"`
	Seed     uint64  `json:"seed"`
	Sizes    string  `json:"sizes,omitempty"`
}

// Total has the figures of the whole run.
type Total struct {
	Seconds    float64      `json:"seconds"`
	Images     int64        `json:"images"`
	Operations int64        `json:"operations"`
	Failed     int64        `json:"failed"`
	Pruned     int64        `json:"prunes"`
	NotPruned  int64        `json:"failed_prunes"`
	Requests   int64        `json:"requests"`
	Bytes      int64        `json:"bytes"`
	Image      result.Times `json:"image_ms"`
	Request    result.Times `json:"request_ms"`
	// Best is the step with the highest rate.
	Best Level `json:"best"`
	// ClientCPU and ServerCPU are in milliseconds per image, or per operation if there
	// are other operations than pulls. ServerMemory is the largest memory, in bytes.
	ClientCPU    float64 `json:"client_cpu_ms_each"`
	ServerCPU    float64 `json:"server_cpu_ms_each,omitempty"`
	ServerMemory int64   `json:"server_memory_bytes,omitempty"`
}

func (r *run) newResult() *Result {
	res := &Result{Version: resultVersion, Name: r.target.Name, Target: r.target.url.Host + r.target.url.Path, Mode: "cached",
		Environment: result.Here(r.o.Version), Options: r.o.Describe}
	switch {
	case !r.o.Mix.PullsOnly():
		res.Mode = "mixed"
	case r.o.Prune != NoPrune:
		res.Mode = "pull-through"
	case r.o.Cold:
		res.Mode = "cold at first"
	}
	return res
}

func (r *run) describeImages(res *Result) {
	i := ImagesInfo{Count: len(r.images), Patterns: len(r.patterns), Seed: r.o.Set.Maker.Seed}
	for _, m := range r.images {
		i.Requests += float64(len(m.Manifests)+len(m.Blobs)) / float64(len(r.images))
		i.Bytes += float64(m.Bytes()) / float64(len(r.images))
	}
	if r.set != nil {
		i.Sizes = r.o.Set.Sizes.String()
	}
	res.Images = i
}

// finish fills in the figures of the whole run.
func (r *run) finish(res *Result, s *stepper) {
	res.Steps, res.Tallies, res.Faults = s.steps, s.tallies, faultList(&s.sum)
	c, t := &s.sum, &res.Total
	t.Operations, t.Failed = c.all()
	t.Images, t.Pruned, t.NotPruned = c.done(Pull), c.done(Pruning), c.failed[Pruning]
	t.Requests, t.Bytes = c.requests.spread.Count, c.bytes
	t.Image, t.Request, t.ServerMemory = c.ops[Pull].times(), c.requests.times(), s.peakRSS
	if n := len(s.tallies); n > 0 {
		t.Seconds = s.tallies[n-1].At
	}
	all := levels(s.steps, r.o.Mix)
	for _, l := range all {
		if l.Rate > t.Best.Rate {
			t.Best = l
		}
	}
	var own, server float64
	var done int64
	for _, st := range s.steps {
		own, server, done = own+st.ClientCPU, server+st.ServerCPU, done+st.Operations
	}
	if done > 0 {
		t.ClientCPU, t.ServerCPU = 1e3*own/float64(done), 1e3*server/float64(done)
	}
	if k, ok := FindKnee(all); ok {
		res.Knee = &k
	}
	res.Notes = r.notes(res)
}

// These are the shares of processor time above which the processors are the limit.
const (
	clientFull  = 0.85
	machineFull = 0.9
	// noticed is the smallest share of a busy machine that counts as taken away from the
	// server on it.
	noticed = 0.25
)

// notes returns explanations that the figures do not give themselves.
func (r *run) notes(res *Result) []string {
	var notes []string
	var own, machine, others []int
	for _, s := range res.Steps {
		used := (s.ClientCPU + s.ServerCPU) / max(s.Seconds, 1e-9) / float64(res.Environment.CPUs)
		switch {
		case s.ServerCPU > 0 && s.MachineShare >= machineFull && s.MachineShare-used >= noticed:
			others = append(others, s.Pullers)
		case s.ClientShare >= clientFull:
			own = append(own, s.Pullers)
		case s.MachineShare >= machineFull && s.ClientShare >= noticed && client.IsLoopback(r.target.url.Host):
			machine = append(machine, s.Pullers)
		}
	}
	if len(own) > 0 {
		notes = append(notes, fmt.Sprintf("The driver was the limit with %s pullers: it used more than %.0f %% of its processors. The registry may be faster than these rates.", numbers(own), 100*clientFull))
	}
	if len(machine) > 0 {
		notes = append(notes, fmt.Sprintf("With %s pullers this machine was busy, and the driver had more than %.0f %% of it: the registry on it would be faster without.", numbers(machine), 100*noticed))
	}
	if len(others) > 0 {
		notes = append(notes, fmt.Sprintf("With %s pullers others than the driver and the registry had more than %.0f %% of this machine, which was busy: these rates are not the registry's best.", numbers(others), 100*noticed))
	}
	for _, f := range res.Faults {
		if f.Kind == wrongContent {
			notes = append(notes, fmt.Sprintf("WRONG CONTENT came %d times; the first: %s", f.Count, f.Example))
		}
	}
	if n := res.Total.NotPruned; n > 0 {
		notes = append(notes, fmt.Sprintf("%d times pruning failed: the pulls after that were not all pull-through.", n))
	}
	if res.Knee == nil && r.o.Ramp == Saturate && res.Total.Images > 0 {
		notes = append(notes, "No knee was found: the rate still rose at the end, or it never rose. More pullers (--pullers) or longer steps may show one.")
	}
	return notes
}

// numbers formats a list of numbers of pullers, each once.
func numbers(n []int) string {
	slices.Sort(n)
	var parts []string
	for _, v := range slices.Compact(n) {
		parts = append(parts, fmt.Sprint(v))
	}
	if len(parts) > 1 {
		last := len(parts) - 1
		parts = append(parts[:last-1], parts[last-1]+" and "+parts[last])
	}
	return strings.Join(parts, ", ")
}

// firstFault returns an example of the most frequent fault.
func (r *Result) firstFault() string {
	if len(r.Faults) == 0 {
		return "nothing failed either"
	}
	return r.Faults[0].Kind + ": " + r.Faults[0].Example
}

// Wrong returns how often wrong content came.
func (r *Result) Wrong() int64 {
	for _, f := range r.Faults {
		if f.Kind == wrongContent {
			return f.Count
		}
	}
	return 0
}

// WriteJSON writes the result as JSON.
func (r *Result) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", " ")
	return e.Encode(r)
}

// maxResult bounds the size of a result in bytes. A day of tallies each second takes a
// tenth of it.
const maxResult = 256 << 20

// ReadResult reads a result that WriteJSON wrote.
func ReadResult(rd io.Reader) (*Result, error) {
	b, err := io.ReadAll(io.LimitReader(rd, maxResult+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxResult {
		return nil, errors.New("it is too large to be a result of slipway load")
	}
	var r Result
	if err := json.Unmarshal(b, &r); err != nil {
		return nil, fmt.Errorf("it is not a result of slipway load: %w", err)
	}
	switch {
	case r.Version == 0:
		return nil, errors.New("it is not a result of slipway load")
	case r.Version != resultVersion:
		return nil, fmt.Errorf("it is a result of version %d, and this program reads %d", r.Version, resultVersion)
	}
	for _, s := range r.Steps {
		if s.Pullers < 0 || s.Pullers > maxPullers || s.Seconds < 0 || math.Abs(s.Rate) > 1e12 {
			return nil, errors.New("it has a step that cannot be")
		}
	}
	return &r, nil
}

// pullsOnly reports whether the rates of the result are of images.
func (r *Result) pullsOnly() bool { return r.Mode != "mixed" }

// rate returns the rate by which the step is measured.
func (r *Result) rate(s *Step) float64 {
	if r.pullsOnly() {
		return s.Rate
	}
	return s.OperationsRate
}

// what returns the name of what the rates count.
func (r *Result) what() string {
	if r.pullsOnly() {
		return "images"
	}
	return "operations"
}
