package gearfs

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// pace tells work that nobody waits for when others want the processors. Priorities
// cannot: they count among the processes of one control group only, and containers
// are in others. The kernel does tell how long a thread was ready to run and had no
// processor. It is the thread that stores what comes; chunks of large files are
// decoded by another one, about as much again.
type pace struct {
	times     func() (run, wait time.Duration, err error)
	end       func() error
	run, wait time.Duration // when they were asked for last
}

const (
	// paceSample is how much of a thread's time is looked at at once.
	paceSample = 5 * time.Millisecond
	// paceBusy is the part of its time on a processor that a thread may wait for one
	// and they are not taken for busy.
	paceBusy = 0.25
	// paceRest is how long it rests for its time on a busy processor: it takes a tenth
	// of one.
	paceRest = 9
	// maxPaceRest bounds a rest.
	maxPaceRest = time.Second
)

// newPace is for the calling goroutine, which is locked to its thread. It is nil
// where the kernel does not tell.
func newPace() *pace {
	p := &pace{}
	var err error
	if p.times, p.end, err = threadTimes(); err == nil {
		p.run, p.wait, err = p.times()
	}
	if err != nil {
		p.close()
		return nil
	}
	return p
}

// close ends it; nil is fine.
func (p *pace) close() {
	if p != nil && p.end != nil {
		_ = p.end() // was read only
	}
}

// threadTimes tells, whenever it is asked, how long the calling thread has run and how
// long it was ready and had no processor. Tests put another in its place.
var threadTimes = func() (times func() (run, wait time.Duration, err error), end func() error, err error) {
	f, err := os.Open("/proc/thread-self/schedstat")
	if err != nil {
		return nil, nil, err
	}
	return func() (run, wait time.Duration, err error) {
		var b [128]byte
		n, err := f.ReadAt(b[:], 0)
		if err != nil && !errors.Is(err, io.EOF) {
			return 0, 0, err
		}
		_, err = fmt.Sscan(string(b[:n]), (*int64)(&run), (*int64)(&wait))
		return run, wait, err
	}, f.Close, nil
}

// due is how long to rest now; nothing for nil.
func (p *pace) due() time.Duration {
	if p == nil {
		return 0
	}
	run, wait, err := p.times()
	ran, waited := run-p.run, wait-p.wait
	if err != nil || ran+waited < paceSample {
		return 0
	}
	p.run, p.wait = run, wait
	if float64(waited) <= paceBusy*float64(ran) {
		return 0
	}
	return min(paceRest*max(ran, time.Millisecond), maxPaceRest)
}
