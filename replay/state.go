package replay

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"example.org/slipway/replay/result"
)

// stateName is the file of what a resumed run has to know, beside the samples.
const stateName = "state.json"

// state of a run.
type state struct {
	// Plan is that of the options; a resumed run must have the same.
	Plan    json.RawMessage `json:"plan"`
	WarmUp  *result.WarmUp  `json:"warmUp,omitempty"`
	Began   time.Time       `json:"began"`
	Resumed int             `json:"resumed"`
}

// openState reads the state of the run that is resumed, or begins one.
func openState(o *Options) (*state, error) {
	p := o.Plan
	p.Hashers = 0 // makes no difference
	mine, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	raw, err := os.ReadFile(filepath.Join(o.Dir, stateName))
	switch {
	case errors.Is(err, os.ErrNotExist) && o.Resume:
		return nil, fmt.Errorf("%s has no run to resume", o.Dir)
	case errors.Is(err, os.ErrNotExist):
		s := &state{Plan: mine, Began: time.Now().UTC()}
		return s, s.save(o.Dir)
	case err != nil:
		return nil, err
	case !o.Resume && o.Phase != TestOnly:
		return nil, fmt.Errorf("%s has a run already; resume it, or name another directory", o.Dir)
	}
	s := &state{}
	if err := json.Unmarshal(raw, s); err != nil {
		return nil, fmt.Errorf("%s of %s is malformed: %w", stateName, o.Dir, err)
	}
	var was any
	if json.Unmarshal(s.Plan, &was) != nil || !same(was, mine) {
		return nil, fmt.Errorf("the run in %s was made with other options", o.Dir)
	}
	if o.Resume {
		s.Resumed++
	} else {
		s.Began = time.Now().UTC() // the test after a warm-up on its own
	}
	s.Plan = mine
	return s, s.save(o.Dir)
}

// same compares JSON however it is written.
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
	path := filepath.Join(dir, stateName)
	if err := os.WriteFile(path+".tmp", append(b, '\n'), 0o644); err != nil {
		return fmt.Errorf("write the run's state: %w", err)
	}
	return os.Rename(path+".tmp", path)
}

// doneSet is a set of tasks: a bit for each.
type doneSet struct {
	bits []uint64
}

func newDoneSet() *doneSet { return &doneSet{} }

func (d *doneSet) add(id int64) {
	for int64(len(d.bits)) <= id/64 {
		d.bits = append(d.bits, 0)
	}
	d.bits[id/64] |= 1 << (id % 64)
}

func (d *doneSet) has(id int64) bool {
	return id/64 < int64(len(d.bits)) && d.bits[id/64]&(1<<(id%64)) != 0
}

// first is the first task that is not in the set.
func (d *doneSet) first() int64 {
	for i, w := range d.bits {
		if w != ^uint64(0) {
			for b := range int64(64) {
				if w&(1<<b) == 0 {
					return int64(i)*64 + b
				}
			}
		}
	}
	return int64(len(d.bits)) * 64
}
