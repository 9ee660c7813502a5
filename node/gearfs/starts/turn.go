package starts

import (
	"fmt"
	"sync"
	"time"
)

const (
	// fileTime is how long it takes to write a file (measured: node/gearfs/DESIGN.md).
	fileTime = 50 * time.Microsecond
	// turnAt says when the rest of an image is fetched, too: when the container has
	// wanted this share of the missing bytes that the profile does not name. A start
	// reads 6 to 30 % of an image (FAST'16 Slacker), so a container that has wanted this
	// much probably wants most.
	turnAt = 0.25
	// turnAfter says when the rest is fetched although the container has wanted less: when
	// it has waited this share of the time that the rest takes. A start that reads all of an
	// image then takes no longer than this much more than one that was eager at once, and
	// one that needs a few round trips has ended by then.
	turnAfter = 0.3
	// mostBusy is how much of the link the files may have taken for which the container
	// waited, as a share. It rather waits for round trips then. If they took more, then the
	// others that it wants come sooner without the rest of the image.
	mostBusy = 0.6
	// boundBy is how much of the time since the start the container must have waited, as
	// a share. If it has waited less, it is not the start that reads so much.
	boundBy = 0.5
)

// Takes returns how long files take at a rate in bytes a second.
func Takes(files, bytes, rate float64) time.Duration {
	return time.Duration(bytes/rate*float64(time.Second)) + time.Duration(files*float64(fileTime))
}

// Waits are what containers of an image have got and waited for, ever.
type Waits struct {
	Fetched int64 // bytes that were fetched on demand
	Stalled time.Duration
}

// Turn decides while a container of an image starts whether the rest of the image is fetched.
// The zero value has nothing to decide.
type Turn struct {
	mu sync.Mutex
	// began is when the start began, or zero if there is nothing to decide.
	began time.Time
	// files and bytes are what the start lacks beyond its profile.
	files int
	bytes int64
	// before was at the start.
	before Waits
}

// Begin notes a start that lacks the given files beyond its profile.
func (t *Turn) Begin(files int, bytes int64, before Waits, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.began, t.files, t.bytes, t.before = now, files, bytes, before
}

// Due reports once whether the rest shall be fetched, and why. The containers must have
// waited most of the time since the start, and for round trips more than for bytes: whoever
// waits for bytes gets them no sooner if others come as well. Beyond that, they have wanted
// a good part of the image or, if it is to be fetched anyway, have waited for long compared
// with the time that the rest would take.
//
// rate is that of the link in bytes a second, as it was measured if known is true.
func (t *Turn) Due(w Waits, rate float64, known, anyway bool, now time.Time) (why string, due bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	since := now.Sub(t.began)
	waited, fetched := min(w.Stalled-t.before.Stalled, since), w.Fetched-t.before.Fetched
	if t.began.IsZero() || float64(waited) < boundBy*float64(since) || known && float64(fetched) > mostBusy*waited.Seconds()*rate {
		return "", false
	}
	rest := Takes(float64(t.files), float64(max(0, t.bytes-fetched)), rate)
	switch {
	case float64(fetched) >= turnAt*float64(t.bytes):
		why = fmt.Sprintf("the containers have read more than %.0f %% of what was missing", 100*turnAt)
	case anyway && float64(waited) >= turnAfter*float64(rest):
		why = fmt.Sprintf("the containers have waited %v for files, and the rest takes %v", waited.Round(time.Millisecond), rest.Round(time.Millisecond))
	default:
		return "", false
	}
	t.began = time.Time{}
	return why, true
}
