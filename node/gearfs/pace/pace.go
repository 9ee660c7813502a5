// Package pace tells what a busy machine does to this process. Pace reports to work that
// nobody waits for when others need the processors. Lateness measures for how long this
// process itself lacked one, so that others are not blamed for it.
package pace

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// Pace reports to work that nobody waits for when others need the processors. Priorities
// cannot do that: they count only among the processes of one control group, and
// containers are in others. But the kernel reports how long a thread was ready to run and
// had no processor. The measured thread is the one that stores what arrives. Another
// thread decodes the chunks of large files, which takes about as much time again.
type Pace struct {
	times     func() (run, wait time.Duration, err error)
	end       func() error
	run, wait time.Duration // as of the last measurement
}

const (
	// paceSample is how much of a thread's time one measurement covers.
	paceSample = 5 * time.Millisecond
	// paceBusy is how long a thread may wait for a processor, as a share of its time on
	// one, before the processors count as busy.
	paceBusy = 0.25
	// paceRest is how many times as long a thread rests as it ran on a busy processor. It
	// then uses a tenth of a processor.
	paceRest = 9
	// maxPaceRest bounds a rest.
	maxPaceRest = time.Second
)

// New returns the pace of the calling goroutine, which is locked to its thread. It
// returns nil if the kernel does not report the times.
func New() *Pace {
	p := &Pace{}
	var err error
	if p.times, p.end, err = ThreadTimes(); err == nil {
		p.run, p.wait, err = p.times()
	}
	if err != nil {
		p.Close()
		return nil
	}
	return p
}

// Close releases the pace. It accepts nil.
func (p *Pace) Close() {
	if p != nil && p.end != nil {
		_ = p.end() // was read only
	}
}

// ThreadTimes returns a function that returns how long the calling thread has run, and
// how long it was ready without a processor. Only tests replace it.
var ThreadTimes = func() (times func() (run, wait time.Duration, err error), end func() error, err error) {
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

// Due returns how long to rest now. It returns 0 for nil.
func (p *Pace) Due() time.Duration {
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
