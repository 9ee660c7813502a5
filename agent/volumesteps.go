package agent

import (
	"sync"
	"time"

	"example.org/slipway/volume/volfs"
)

// volumeSteps are the steps of package node, in the order of their first use.
var volumeSteps = []string{"credential", "clone", "map", "attach", "mount", "unmount", "unmap", "remove", "copy", "commit"}

// stepTimes adds up how long the steps of using volumes took, and how much was read from
// volumes.
type stepTimes struct {
	mu   sync.Mutex
	took map[string]stepTime
	last map[string]volumeIO // by mapping, as last reported
	sum  volumeIO
}

// stepTime is how often a step was done, and how long all of them took together.
type stepTime struct {
	n    int64
	took time.Duration
}

// volumeIO counts the I/O of one mapping or of all mappings.
type volumeIO struct{ read, written, errors, failed int64 }

func newStepTimes() *stepTimes {
	return &stepTimes{took: map[string]stepTime{}, last: map[string]volumeIO{}}
}

func (t *stepTimes) observe(step string, took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.took[step]
	s.n++
	s.took += took
	t.took[step] = s
}

func (t *stepTimes) of(step string) stepTime {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.took[step]
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

func (t *stepTimes) total() volumeIO {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.sum
}
