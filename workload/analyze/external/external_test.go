package external_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"example.org/slipway/workload/analyze"
	"example.org/slipway/workload/analyze/external"
	"example.org/slipway/workload/trace/store"
	"example.org/slipway/workload/trace/tracetest"
)

// externalScript prints a result that does not depend on the requests, and the last line it got as a
// note.
const externalScript = `#!/bin/bash
if [ "$SLIPWAY_PLUGIN" = describe ]; then
	echo '{"id":"errors","title":"Failures","definition":"d","columns":["status","repo","method","kind"],"plot":"bars","x":{"title":"share","unit":"share"}}'
	exit
fi
while read -r l; do last=$l; done
note=${last//\\/\\\\}
note=${note//\"/\\\"}
echo '{"values":[{"name":"failed","unit":"share","value":0.25}],"series":[{"name":"failed","points":[{"label":"failed","x":0,"y":0.25}]}],"notes":["'"$SLIPWAY_ZONE $note"'"]}'
`

// externalProgram writes a script. Tests that use it are not parallel: the kernel refuses to start a
// file while a process that another test forks still has it open.
func externalProgram(t *testing.T, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "analysis")
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// someTrace stores a trace of n requests in the zone z.
func someTrace(t *testing.T, n int) *store.Store {
	t.Helper()
	dir := t.TempDir()
	w, err := store.NewWriter(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	recs := tracetest.Records(n, time.Hour, 1)
	for i := range recs {
		if err := w.Add("z", &recs[i]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return tracetest.Open(t, dir)
}

// TestProgram runs an analysis that is a program, and checks its figure and what it was told.
func TestProgram(t *testing.T) {
	src := someTrace(t, 3000)
	names := func(table store.Table, sym store.Symbol) string {
		return fmt.Sprintf("%s \"%s\"", table, src.Name(table, sym))
	}
	e, err := external.New(t.Context(), externalProgram(t, externalScript), names)
	if err != nil {
		t.Fatal(err)
	}
	rep, err := analyze.Run(t.Context(), src, &analyze.Options{Plugins: []analyze.Plugin{e.Plugin(t.Context())}})
	if err := errors.Join(err, e.Err()); err != nil {
		t.Fatal(err)
	}
	f := rep.Figure("errors")
	if f == nil || f.Title != "Failures" || f.Plot.Kind != analyze.PlotBars {
		t.Fatalf("the figure is %+v", f)
	}
	z := f.Zone("z")
	if v, ok := z.Value("failed"); !ok || v != 0.25 || z.Requests != 3000 {
		t.Errorf("the result is %+v", z)
	}
	if len(z.Notes) != 1 {
		t.Fatalf("the notes are %q", z.Notes)
	}
	zone, line, _ := strings.Cut(z.Notes[0], " ")
	var last struct {
		Time         int64
		Status       int
		Repo, Method string
		Kind         string
	}
	d := json.NewDecoder(strings.NewReader(line))
	d.DisallowUnknownFields()
	if err := d.Decode(&last); err != nil || zone != "z" || last.Time == 0 || last.Status == 0 || last.Method == "" || last.Kind == "" || !strings.HasPrefix(last.Repo, `repos "`) {
		t.Errorf("the last request of zone %q was told as %s: %+v, %v", zone, line, last, err)
	}
}

// TestProgramFails checks that mistakes of a program are reported.
func TestProgramFails(t *testing.T) {
	src := someTrace(t, 100)
	for _, c := range []struct{ from, to, want string }{
		{`"plot":"bars"`, `"plot":"pie"`, `no plot "pie"`},
		{`"unit":"share"}}'`, `"unit":"miles"}}'`, `no unit "miles"`},
		{`"columns":["status"`, `"columns":["colour"`, `the column "colour"; there are duration, size`},
		{`"unit":"share","value"`, `"unit":"miles","value"`, `no unit "miles"`},
		{`while read`, `echo oh >&2; exit 4; while read`, "oh"},
		{`done` + "\n", `done; exit 5` + "\n", "ended, or closed"},
	} {
		script := strings.Replace(externalScript, c.from, c.to, 1)
		if script == externalScript {
			t.Fatalf("the script has no %q", c.from)
		}
		e, err := external.New(t.Context(), externalProgram(t, script), src.Name)
		if err == nil {
			_, err = analyze.Run(t.Context(), src, &analyze.Options{Plugins: []analyze.Plugin{e.Plugin(t.Context())}})
			err = errors.Join(err, e.Err())
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: the error is %v", c.to, err)
		}
	}
}
