package mirrors

import (
	"encoding/json"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"example.org/slipway/integration/bench/measure"
	"example.org/slipway/integration/bench/rival"
	"example.org/slipway/integration/internal/slipway"
)

// TestMeasure runs everything on a small scale with a real upstream.
func TestMeasure(t *testing.T) {
	if rival.Distribution3("").Binary == "" && rival.Distribution2("").Binary == "" {
		t.Skip("tool not installed: docker-registry (scripts/setup.sh test installs it)")
	}
	dir := t.TempDir()
	o, err := parse([]string{"-quick", "-bin", slipway.Binary(t), "-dir", dir, "-images", "12", "-batches", "2", "-step", "200ms", "-size", "2", "-clients", "4"})
	if err != nil {
		t.Fatal(err)
	}
	o.check = 10 * time.Second // enough passes even on a slow machine
	r, err := o.measure(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for mode, ramps := range map[string][]float64{modeCached: r.Load.figures(nameSlipway, modeCached, badOf), modeThrough: r.Load.figures(nameSlipway, modeThrough, badOf)} {
		if len(ramps) != 1 || ramps[0] != 0 {
			t.Errorf("%s: failures by round %v, want none in one", mode, ramps)
		}
	}
	for _, l := range r.Large.Links {
		if len(l.Direct) != 1 || len(l.Through) != 1 || l.Direct[0].All <= 0 || l.Through[0].First <= 0 || l.Through[0].All < l.Through[0].First {
			t.Errorf("not a measurement: %+v", l)
		}
	}
	if r.Crowd.Reads != 1 || r.Crowd.ReadBytes != 2<<20 || len(r.Crowd.First) != 4 || r.Crowd.Peak < r.Crowd.Idle {
		t.Errorf("crowd of 4: %+v, want one download of 2 MiB", r.Crowd)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// madeUp returns results in which Ociregistry needs the given multiple of Slipway's CPU time.
func madeUp(times float64) *Results {
	ramp := func(server, mode string, cpu, rate, last float64) Ramp {
		return Ramp{Server: server, Mode: mode, Round: 1, Images: 100, CPU: cpu, Rate: rate, PeakRSS: 30e6, Steps: []Step{{1, rate}, {2, last}, {1, rate}}}
	}
	return &Results{
		Load: &Load{Images: 10, Batches: 2, Ramps: []Ramp{
			ramp(nameSlipway, modeCached, 1, 100, 99), ramp(nameOciregistry, modeCached, times, 50, 20),
			ramp(nameSlipway, modeThrough, 1, 100, 100), ramp(nameOciregistry, modeThrough, times, 40, 40),
		}},
		Large: &Large{Size: 1e9, Links: []Link{{Name: linkLoopback, Direct: []Download{{First: 2, All: 90}}, Through: []Download{{First: 3.1, All: 95}}}}},
		Crowd: &Crowd{Crowded: measure.Crowded{Clients: 2, Size: 10, Reads: 1, ReadBytes: 10, First: []float64{1, 2}, All: []float64{3, 4}}},
	}
}

func TestTargets(t *testing.T) {
	for times, want := range map[float64]bool{4.5: true, 3.5: false, 1.5: false} {
		var w strings.Builder
		if got := measure.CheckParts(&w, madeUp(times).Parts()); got != want {
			t.Errorf("%v times the CPU: met %v, want %v:\n%s", times, got, want, &w)
		}
		if strings.Contains(w.String(), "not measured") {
			t.Errorf("everything was measured:\n%s", &w)
		}
	}
	for name, change := range map[string]func(*Results){
		"dip":        func(r *Results) { r.Load.Ramps[0].Steps[1].Rate = 80 },
		"memory":     func(r *Results) { r.Load.Ramps[2].PeakRSS = 41e6 },
		"failure":    func(r *Results) { r.Load.Ramps[2].Failed = 1 },
		"prune":      func(r *Results) { r.Load.Ramps[2].NotPruned = 1 },
		"rate":       func(r *Results) { r.Load.Ramps[2].Rate = 70 },
		"first byte": func(r *Results) { r.Large.Links[0].Through[0].First = 3.3 },
		"transfer":   func(r *Results) { r.Large.Links[0].Through[0].All = 101 },
		"downloads":  func(r *Results) { r.Crowd.Reads = 2 },
		"bytes":      func(r *Results) { r.Crowd.ReadBytes = 11 },
	} {
		r := madeUp(5)
		change(r)
		var w strings.Builder
		if measure.CheckParts(&w, r.Parts()) {
			t.Errorf("%s: met:\n%s", name, &w)
		}
	}
}

// TestReport makes a document from results that went through a file.
func TestReport(t *testing.T) {
	dir := t.TempDir()
	b, err := json.Marshal(madeUp(5))
	if err != nil {
		t.Fatal(err)
	}
	file, doc, img := filepath.Join(dir, "results"), filepath.Join(dir, "doc.md"), filepath.Join(dir, "img")
	for path, text := range map[string]string{file: string(b), doc: "# Title\n\n" + marks().Begin + "\n" + marks().End + "\n"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if good, err := Suite().Run(t.Context(), []string{"-from", file, "-doc", doc, "-img", img, "-check"}); err != nil || !good {
		t.Errorf("good %v, %v", good, err)
	}
	text, err := os.ReadFile(doc)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"PASS  load", "| cached | Ociregistry | 100 |", "![Images a second, cached](img/bench-mirrors-cached.svg)", "| loopback | 2.00 | 3.10 |", "| 2 | 1 |"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the document lacks %q:\n%s", want, text)
		}
	}
	for _, name := range []string{modeCached, modeThrough} {
		if _, err := os.Stat(filepath.Join(img, "bench-mirrors-"+name+".svg")); err != nil {
			t.Error(err)
		}
	}
}

func TestOptions(t *testing.T) {
	t.Setenv("SLIPWAY_BIN", "")
	for args, ok := range map[string]bool{
		"":                             false, // no binary
		"-bin x":                       true,
		"-from results":                true,
		"-bin x -rounds 0":             false,
		"-bin x -images 9 -batches 10": false,
		"-bin x -step 0s":              false,
		"-bin x -clients 0":            false,
		"-bin x extra":                 false,
	} {
		if _, err := parse(strings.Fields(args)); (err == nil) != ok {
			t.Errorf("%q: %v, want ok %v", args, err, ok)
		}
	}
	o, err := parse(strings.Fields("-bin /secret/x -quick -images 30 -dir /secret"))
	if err != nil || o.Command != "scripts/bench-mirrors.sh -images 30 -quick" || o.Rounds != 1 || o.images != 30 || o.clients != 10 {
		t.Errorf("options %+v, %v", o, err)
	}
}

// TestPaced checks that a narrow link carries what it may carry, and no more.
func TestPaced(t *testing.T) {
	near, far := net.Pipe()
	const size, perSecond = 200_000, 1_000_000
	go func() {
		_, _ = far.Write(make([]byte, size)) // the reader below notices missing bytes
		far.Close()
	}()
	began := time.Now()
	var w countingWriter
	paced(&w, near, perSecond)
	if took := time.Since(began); w.n != size || took < 60*time.Millisecond {
		t.Errorf("%d of %d bytes in %s, want them to take about 200 ms", w.n, size, took)
	}
}

type countingWriter struct{ n int }

func (w *countingWriter) Write(p []byte) (int, error) { w.n += len(p); return len(p), nil }

var _ io.Writer = (*countingWriter)(nil)
