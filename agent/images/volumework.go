package images

import (
	"sync"
	"time"

	"example.org/slipway/volume/volfs"
)

// VolumeWork counts what a node did with volumes since its worker started.
type VolumeWork struct {
	Steps          []VolumeStep
	Read, Written  int64 // bytes
	Errors, Failed int64 // failed attempts to use the storage, and reads and writes that failed for that reason
}

// VolumeStep is how often a step of using volumes was done, and how long all took together.
type VolumeStep struct {
	Step  string
	Count int64
	Took  time.Duration
}

// volumeSteps are the steps of package node, in the order of their first use.
var volumeSteps = []string{"credential", "clone", "map", "attach", "mount", "unmount", "unmap", "remove", "copy", "commit"}

// stepTimes adds up how long the steps of using volumes took, and how much was read from
// volumes.
type stepTimes struct {
	mu   sync.Mutex
	took map[string]VolumeStep
	last map[string]volumeIO // by mapping, as last reported
	sum  volumeIO
}

// volumeIO counts the I/O of one mapping or of all mappings.
type volumeIO struct{ read, written, errors, failed int64 }

func newStepTimes() *stepTimes {
	return &stepTimes{took: map[string]VolumeStep{}, last: map[string]volumeIO{}}
}

func (t *stepTimes) observe(step string, took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.took[step]
	s.Count++
	s.Took += took
	t.took[step] = s
}

// count adds the volume worker's counters to sums that only grow. The worker's counters
// begin at zero with every mapping and every worker.
func (t *stepTimes) count(list []volfs.Status) {
	t.mu.Lock()
	defer t.mu.Unlock()
	last := make(map[string]volumeIO, len(list))
	for i := range list {
		s := &list[i]
		now := volumeIO{s.ReadBytes, s.WrittenBytes, s.Errors, s.Failed}
		was := t.last[s.Mapping.Name]
		if now.read < was.read || now.written < was.written || now.errors < was.errors || now.failed < was.failed {
			was = volumeIO{}
		}
		t.sum.read += now.read - was.read
		t.sum.written += now.written - was.written
		t.sum.errors += now.errors - was.errors
		t.sum.failed += now.failed - was.failed
		last[s.Mapping.Name] = now
	}
	t.last = last
}

// work returns all counts.
func (t *stepTimes) work() VolumeWork {
	t.mu.Lock()
	defer t.mu.Unlock()
	w := VolumeWork{Read: t.sum.read, Written: t.sum.written, Errors: t.sum.errors, Failed: t.sum.failed}
	for _, step := range volumeSteps {
		s := t.took[step]
		w.Steps = append(w.Steps, VolumeStep{step, s.Count, s.Took})
	}
	return w
}
