package pace

import (
	"sync"
	"time"
)

// Lateness adds up for how long this process was late: how much later than it wanted it ran
// at certain times, which are called beats. On a busy machine a process gets no processor for
// a while. What it then sees of others says little about them: it may have read nothing
// although something had come. So a limit for others grows by the time that this process was
// late.
//
// A Lateness reads no clock. The zero value has no beat. It is not safe for concurrent use.
type Lateness struct {
	due   time.Time // the next beat, or zero
	total time.Duration
}

// tolerance is how late a timer may be on an idle machine.
const tolerance = 3 * time.Millisecond

// Beat notes that the process runs now, and wants to run again at next. A zero time means that
// it does not.
func (l *Lateness) Beat(now, next time.Time) { l.total, l.due = l.Total(now), next }

// Total returns for how long the process was late until now. Only the difference of two
// results means something.
func (l *Lateness) Total(now time.Time) time.Duration {
	if late := now.Sub(l.due); !l.due.IsZero() && late > tolerance {
		return l.total + late
	}
	return l.total
}

// Metronome measures the lateness of this process while somebody needs it. It is safe for
// concurrent use. The zero value can be used.
type Metronome struct {
	mu    sync.Mutex
	late  Lateness
	users int
	timer *time.Timer
}

// beatEvery is the time between two beats. A lack of a processor that is shorter than this
// may go unnoticed.
const beatEvery = 20 * time.Millisecond

// Start begins the beats. They end when Stop was called as often as Start.
func (m *Metronome) Start() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.users++; m.users > 1 {
		return
	}
	now := time.Now()
	m.late.Beat(now, now.Add(beatEvery))
	if m.timer == nil {
		m.timer = time.AfterFunc(beatEvery, m.beat)
		return
	}
	m.timer.Reset(beatEvery)
}

func (m *Metronome) beat() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.users == 0 {
		return
	}
	now := time.Now()
	m.late.Beat(now, now.Add(beatEvery))
	m.timer.Reset(beatEvery)
}

// Stop ends what Start began.
func (m *Metronome) Stop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.users--; m.users == 0 {
		m.timer.Stop()
		m.late.Beat(time.Now(), time.Time{})
	}
}

// Total is that of [Lateness].
func (m *Metronome) Total(now time.Time) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.late.Total(now)
}

// Deadline calls a function when others have taken longer than they may. It does not count
// the time for which this process was late. It is safe for concurrent use.
type Deadline struct {
	m    *Metronome
	over func()

	mu    sync.Mutex // before the Metronome's
	timer *time.Timer
	term  *term // nil while the deadline does not run
}

// Deadline returns a deadline that does not run yet. It calls over in a goroutine of its own.
// The metronome must run while the deadline does.
func (m *Metronome) Deadline(over func()) *Deadline {
	d := &Deadline{m: m, over: over}
	d.timer = time.AfterFunc(time.Hour, d.fired)
	d.timer.Stop()
	return d
}

// Set has the time end after a duration from now.
func (d *Deadline) Set(after time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	d.term = &term{now.Add(after), d.m.Total(now)}
	d.timer.Reset(after)
}

// Stop keeps the deadline from ending before Set is called again.
func (d *Deadline) Stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.term = nil
	d.timer.Stop()
}

func (d *Deadline) fired() {
	if d.ended() {
		d.over()
	}
}

// ended reports whether the time is over. If not, it waits for the rest.
func (d *Deadline) ended() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.term == nil {
		return false
	}
	now := time.Now()
	if rest := d.term.rest(now, d.m.Total(now)); rest > 0 {
		d.timer.Reset(rest)
		return false
	}
	d.term = nil
	return true
}

// term is a time that ends later if this process is late.
type term struct {
	end  time.Time
	late time.Duration // how late the process was when end was set
}

// rest returns how much of the time is left, if the process was late for so long in all.
func (t *term) rest(now time.Time, late time.Duration) time.Duration {
	return t.end.Add(late - t.late).Sub(now)
}
