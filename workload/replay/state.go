package replay

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"path/filepath"
	"slices"
	"time"

	"example.org/slipway/internal/durable"
	"example.org/slipway/workload/replay/plan"
	"example.org/slipway/workload/replay/result"
)

// stateName is the file that holds what a resumed run must know, beside the samples.
const stateName = "state.json"

// state is the state of a run. A resumed run must have the same plan, targets and trace.
type state struct {
	// Plan holds the options of the plan, Targets their names and URLs.
	Plan    json.RawMessage `json:"plan"`
	Targets []string        `json:"targets"`
	// Trace is what the trace was found to hold.
	Trace   trace          `json:"trace"`
	WarmUp  *result.WarmUp `json:"warmUp,omitempty"`
	Began   time.Time      `json:"began"`
	Resumed int            `json:"resumed"`
}

// trace distinguishes traces.
type trace struct {
	Requests  int64     `json:"requests"`
	First     time.Time `json:"first"`
	Last      time.Time `json:"last"`
	Blobs     int64     `json:"blobs"`
	BlobBytes int64     `json:"blobBytes"`
}

// openState reads the state of the run that is resumed, or makes a new one.
func openState(o *Options) (*state, error) {
	p := o.Plan
	p.Hashers = 0 // makes no difference
	mine, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	s := &state{Plan: mine, Began: time.Now().UTC()}
	for _, t := range o.Targets {
		s.Targets = append(s.Targets, t.Name+" "+t.URL)
	}
	raw, err := os.ReadFile(filepath.Join(o.Dir, stateName))
	switch {
	case errors.Is(err, os.ErrNotExist) && o.Resume:
		return nil, fmt.Errorf("%s has no run to resume", o.Dir)
	case errors.Is(err, os.ErrNotExist):
		return s, nil
	case err != nil:
		return nil, err
	}
	was := &state{}
	if err := json.Unmarshal(raw, was); err != nil {
		return nil, fmt.Errorf("%s of %s is malformed: %w", stateName, o.Dir, err)
	}
	begun, err := result.Begun(o.Dir)
	switch {
	case err != nil:
		return nil, err
	case o.Resume:
	case begun, was.WarmUp != nil && o.Phase != TestOnly:
		return nil, fmt.Errorf("%s has a run already; resume it, or name another directory", o.Dir)
	case was.WarmUp == nil:
		return s, nil // nothing came of that run
	}
	var plan any
	if json.Unmarshal(was.Plan, &plan) != nil || !same(plan, mine) {
		return nil, fmt.Errorf("the run in %s was made with other options", o.Dir)
	}
	if !slices.Equal(was.Targets, s.Targets) {
		return nil, fmt.Errorf("the run in %s had other targets: %q", o.Dir, was.Targets)
	}
	if o.Resume {
		was.Resumed++
	} else {
		was.Began = s.Began // the run was a warm-up alone; the test begins now
	}
	was.Plan = mine
	return was, nil
}

// begin notes the trace. A resumed run must have the same one.
func (s *state) begin(o *Options, p *plan.Plan) error {
	t := trace{Requests: p.Requests, First: p.First, Last: p.Last, Blobs: p.Blobs, BlobBytes: p.BlobBytes}
	if s.Trace != (trace{}) && s.Trace != t {
		return fmt.Errorf("the run in %s was of another trace: of %d requests from %s on", o.Dir, s.Trace.Requests, s.Trace.First.Format(time.RFC3339))
	}
	s.Trace = t
	return s.save(o.Dir)
}

// same reports whether a and b are the same JSON, however it is written.
func same(a any, b []byte) bool {
	x, err := json.Marshal(a)
	if err != nil {
		return false
	}
	var v any
	if json.Unmarshal(b, &v) != nil {
		return false
	}
	y, err := json.Marshal(v)
	return err == nil && string(x) == string(y)
}

func (s *state) save(dir string) error {
	b, err := json.MarshalIndent(s, "", " ")
	if err != nil {
		return err
	}
	if err := durable.WriteFile(filepath.Join(dir, stateName), append(b, '\n')); err != nil {
		return fmt.Errorf("write the run's state: %w", err)
	}
	return nil
}

// doneSet is a set of tasks of a plan, with a bit for each task.
type doneSet struct {
	bits  []uint64
	limit int64
}

// newDoneSet returns an empty set for tasks below limit. It never holds others.
func newDoneSet(limit int64) *doneSet { return &doneSet{limit: limit} }

func (d *doneSet) add(id int64) {
	if id < 0 || id >= d.limit {
		return
	}
	for int64(len(d.bits)) <= id/64 {
		d.bits = append(d.bits, 0)
	}
	d.bits[id/64] |= 1 << (id % 64)
}

func (d *doneSet) has(id int64) bool {
	return id/64 < int64(len(d.bits)) && d.bits[id/64]&(1<<(id%64)) != 0
}

// first returns the first task that is not in the set.
func (d *doneSet) first() int64 {
	for i, w := range d.bits {
		if w != ^uint64(0) {
			return int64(i)*64 + int64(bits.TrailingZeros64(^w))
		}
	}
	return int64(len(d.bits)) * 64
}
