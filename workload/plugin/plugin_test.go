package plugin_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"example.org/slipway/workload/plugin"
)

// start starts a shell script as a plug-in. The test fails if it hangs. Such tests are not parallel: the kernel refuses
// to start a file while a process that another test forks still has it open.
func start(t *testing.T, script string) *plugin.Process {
	t.Helper()
	path := filepath.Join(t.TempDir(), "plug-in")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	p, err := plugin.Start(ctx, path, "role", "zone")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func TestExchange(t *testing.T) {
	p := start(t, `n=0; while read -r l; do n=$((n+1)); if [ "$l" = ask ]; then echo $n; fi; done; echo "\"$SLIPWAY_PLUGIN $SLIPWAY_ZONE $n\""`)
	var n int
	for i, line := range []string{"tell", "ask", "tell", "tell", "ask"} {
		if err := p.Send([]byte(line)); err != nil {
			t.Fatal(err)
		}
		if line == "ask" {
			if err := p.Receive(&n); err != nil || n != i+1 {
				t.Fatalf("answer %d, %v; want %d", n, err, i+1)
			}
		}
	}
	var last string
	if err := p.End(&last); err != nil || last != "role zone 5" {
		t.Errorf("last line %q, %v", last, err)
	}
}

// TestFailures checks that every way to fail ends in an error that names the program and has what it
// said, that the error stays, and that nothing hangs.
func TestFailures(t *testing.T) {
	for name, c := range map[string]struct{ script, want string }{
		"ends":         {"echo sorry >&2; exit 3", "sorry"},
		"no JSON":      {"echo hello", "hello"},
		"closes":       {"exec 1>&-; sleep 0.1; echo closed >&2; cat >/dev/null", "ended, or closed"},
		"fails at end": {`echo 1; cat >/dev/null; echo 2; exit 7`, "exit status 7"},
		"ends at end":  {`echo 1; cat >/dev/null`, "ended, or closed"},
	} {
		t.Run(name, func(t *testing.T) {
			p := start(t, c.script)
			var v int
			err := p.Receive(&v)
			if err == nil {
				err = p.End(&v)
			}
			if err == nil || !strings.Contains(err.Error(), "the plug-in plug-in: ") || !strings.Contains(err.Error(), c.want) {
				t.Errorf("the error is %v, want %q in it", err, c.want)
			}
			if again := p.Send(nil); again != err || p.Err() != err {
				t.Errorf("after that the error is %v", again)
			}
		})
	}
	if _, err := plugin.Start(t.Context(), filepath.Join(t.TempDir(), "none"), "", ""); err == nil {
		t.Error("a program that is not there is started")
	}
}
