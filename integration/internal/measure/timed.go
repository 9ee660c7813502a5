package measure

import (
	"os"
	"runtime"
	"syscall"
	"time"
)

// Times of a measurement, in seconds.
type Times struct {
	Wall float64 `json:"wall"`
	CPU  float64 `json:"cpu"`
}

// Timed does something in this process with so many processors, and leaves it at
// those.
func Timed(cores int, do func() error) (Times, error) {
	runtime.GOMAXPROCS(cores)
	runtime.GC() // what others left
	syscall.Sync()
	before, err := CPUTime(os.Getpid())
	if err != nil {
		return Times{}, err
	}
	began := time.Now()
	if err := do(); err != nil {
		return Times{}, err
	}
	wall := time.Since(began)
	after, err := CPUTime(os.Getpid())
	return Times{wall.Seconds(), (after - before).Seconds()}, err
}
