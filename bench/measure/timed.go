package measure

import (
	"os"
	"runtime"
	"syscall"
	"time"
)

// Times are the times of a measurement, in seconds.
type Times struct {
	Wall float64 `json:"wall"`
	CPU  float64 `json:"cpu"`
}

// Timed calls a function in this process with the given number of processors. It does not restore
// the earlier number.
func Timed(cores int, do func() error) (Times, error) {
	runtime.GOMAXPROCS(cores)
	runtime.GC() // collects the garbage of earlier work
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
