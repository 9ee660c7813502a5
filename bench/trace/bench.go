package trace

import (
	"fmt"
	"syscall"

	"example.org/slipway/integration/bench/measure"
)

// bench is a run of some scenarios.
type bench struct {
	*measure.Bench
	o        *options
	results  *Results
	analysed *analysed // what the scenario analyse leaves for figures
}

// needRoom fails if the disk has fewer bytes than something needs.
func (b *bench) needRoom(what string, bytes int64) error {
	var st syscall.Statfs_t
	if err := syscall.Statfs(b.Dir, &st); err != nil {
		return fmt.Errorf("look for room in %s: %w", b.o.Dir, err)
	}
	if free := int64(st.Bavail) * st.Bsize; free < bytes {
		return fmt.Errorf("%s takes %.1f GB and %s has %.1f: choose another -dir or fewer records", what, float64(bytes)/1e9, b.o.Dir, float64(free)/1e9)
	}
	return nil
}
