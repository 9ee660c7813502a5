package procstat

import (
	"testing"
	"time"
)

func TestProc(t *testing.T) {
	busy, all := machine([]byte("cpu  100 20 30 400 50 6 7 8 9 10\ncpu0 1 2 3 4\n"))
	if busy != 1710*time.Millisecond || all != 6210*time.Millisecond {
		t.Errorf("busy %v of %v", busy, all)
	}
	for _, bad := range []string{"", "cpu", "cpu a b c d e", "cpu -1 2 3 4 5", "intr 1 2 3 4 5"} {
		if busy, all := machine([]byte(bad)); busy != 0 || all != 0 {
			t.Errorf("%q: busy %v of %v", bad, busy, all)
		}
	}
	stat := "1 (a (b) c) S 1 1 1 0 -1 4194560 1 2 3 4 150 50 0 0 20 0 1 0 5 1 1"
	if cpu, err := processCPU([]byte(stat)); err != nil || cpu != 2*time.Second {
		t.Errorf("the process took %v, %v", cpu, err)
	}
	for _, bad := range []string{"", "1 (a)", "1 (a) S 1 1 1 0 -1 4194560 1 2 3 4 x 50 0 0"} {
		if _, err := processCPU([]byte(bad)); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}
