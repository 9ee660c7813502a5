package measure

import (
	"os/exec"
	"strings"
	"testing"
)

// TestRunOn checks that a command may use no more CPUs than it is given, and that this process
// keeps its own.
func TestRunOn(t *testing.T) {
	before := CPUs()
	cmd := exec.Command("nproc")
	var out strings.Builder
	cmd.Stdout = &out
	if err := RunOn(cmd, 1); err != nil {
		t.Fatal(err)
	}
	if got := strings.TrimSpace(out.String()); got != "1" {
		t.Errorf("a command on one CPU sees %s", got)
	}
	if after := CPUs(); after != before {
		t.Errorf("this process had %d CPUs and has %d", before, after)
	}
	if err := RunOn(exec.Command("true"), 100_000); err == nil {
		t.Error("a command got more CPUs than there are")
	}
}
