package result_test

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"encoding/xml"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"example.org/slipway/workload/replay/result"
	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/store"
)

// draw returns n samples over some seconds, with latencies around a mean in ms.
func draw(seed uint64, n, seconds int, mean float64) []result.Sample {
	rng := rand.New(rand.NewPCG(seed, 0))
	out := make([]result.Sample, n)
	for i := range out {
		at := int64(i) * int64(seconds) * 1e6 / int64(n)
		lag := rng.Int64N(300)
		took := int64(rng.ExpFloat64() * mean * 1e3)
		s := result.Sample{Task: int64(i), Last: true, Method: store.GET, Object: result.Object(trace.Blob), Status: 200,
			Intended: at, Sent: at + lag, First: at + lag + took/2, End: at + lag + took, Bytes: rng.Int64N(1 << 22), Target: uint8(i % 2), Worker: uint8(i % 3)}
		switch rng.IntN(100) {
		case 0:
			s.Outcome, s.Status = result.BadStatus, 500
		case 1:
			s.Outcome, s.Status, s.Sent, s.End = result.Dropped, 0, at, at
		case 2:
			s.Object, s.Step = result.PullSession, -1
		}
		out[i] = s
	}
	return out
}

func aggregate(t testing.TB, samples []result.Sample) *result.Aggregate {
	t.Helper()
	a := result.NewAggregate(nil)
	for i := range samples {
		if err := a.Add(&samples[i]); err != nil {
			t.Fatal(err)
		}
	}
	return a
}

// TestBlocksGrow checks that a run which is longer than blocks of one second can cover has longer ones, and that
// they count every request.
func TestBlocksGrow(t *testing.T) {
	a := aggregate(t, draw(1, 6_000, 5000, 20))
	if a.BlockSeconds != 4 {
		t.Errorf("blocks of %d s, want 4: 5000 s in at most 2048", a.BlockSeconds)
	}
	counted := int64(0)
	for _, blocks := range a.Blocks {
		for _, b := range blocks {
			counted += b.Requests + b.Unsent
		}
	}
	if want := a.Requests(); counted != want || want == 0 {
		t.Errorf("the blocks count %d requests of %d", counted, want)
	}
}

func TestSpreadIsCloseToTheHistogram(t *testing.T) {
	var s result.Spread
	all := draw(2, 50_000, 10, 30)
	a := aggregate(t, all)
	for i := range all {
		if all[i].Executed() && !all[i].IsSession() {
			s.Add(all[i].Latency())
		}
	}
	sum := a.Sum(nil)
	for _, q := range []float64{0.01, 0.5, 0.9, 0.99, 0.999, 1} {
		want, got := float64(sum.Latency.ValueAtQuantile(100*q)), s.Quantile(q)
		if got < want*0.96 || got > want*1.04 {
			t.Errorf("quantile %g: %.0f, HdrHistogram has %.0f", q, got, want)
		}
	}
	var none result.Spread
	if none.Quantile(0.5) != 0 || none.Mean() != 0 {
		t.Error("an empty spread has quantiles")
	}
}

func write(t testing.TB, dir string, samples []result.Sample) *result.Summary {
	t.Helper()
	r, err := result.Create(dir, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Add(samples)
	s := &result.Summary{Level: "L1", Targets: []string{"a", "b"}, MaxLag: 10, Complete: true, Options: map[string]string{"speed": "2x"}}
	if err := r.Close(s); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestPerWorker checks that the result counts the requests of each worker, and that they
// add up to the total.
func TestPerWorker(t *testing.T) {
	dir := t.TempDir()
	sum := write(t, dir, draw(3, 3_000, 60, 5))
	want := sum.Outcomes["ok"] + sum.Outcomes["status"]
	var requests, unsent int64
	for _, w := range sum.PerWorker {
		requests, unsent = requests+w.Requests, unsent+w.Unsent
		if w.Requests < 900 || w.Errors == 0 || w.Latency.P99 <= w.Latency.P50 || w.Lag.Max > 0.3 || w.Bytes == 0 {
			t.Errorf("worker %+v", w)
		}
	}
	if len(sum.PerWorker) != 3 || requests != want || unsent != sum.Outcomes["dropped"] {
		t.Errorf("%d workers sent %d requests and %d not; want 3, %d and %d", len(sum.PerWorker), requests, unsent, want, sum.Outcomes["dropped"])
	}
	r, err := result.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	if err := r.Text(&text); err != nil || !strings.Contains(text.String(), "worker") {
		t.Errorf("the report does not tell of workers, %v:\n%s", err, &text)
	}
}

func TestWhatIsWrittenIsRead(t *testing.T) {
	dir := t.TempDir()
	all := draw(3, 30_000, 60, 5)
	sum := write(t, dir, all)
	var got []result.Sample
	if err := result.Read(dir, func(s *result.Sample) error { got = append(got, *s); return nil }); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(all, got); d != "" {
		t.Errorf("samples (-written +read):\n%.2000s", d)
	}
	r, err := result.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(sum, r.Summary, cmpopts.EquateEmpty()); d != "" {
		t.Errorf("summary (-written +counted anew):\n%s", d)
	}
	for _, name := range []string{"series.parquet", result.SummaryName} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*.tmp")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestRunWithoutAnEndIsReadable(t *testing.T) {
	dir := t.TempDir()
	r, err := result.Create(dir, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	all := draw(4, 5000, 10, 5)
	r.Add(all[:3000])
	r.Checkpoint()
	r.Add(all[3000:]) // as if the process were killed here
	got, err := result.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	if n := got.Counts.Requests(); n < 2800 || got.Complete || len(got.Problems) == 0 {
		t.Errorf("%d requests, complete %t, problems %q; want what was safe", n, got.Complete, got.Problems)
	}
	if err := r.Close(nil); err != nil {
		t.Error(err)
	}
}

func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	r, err := result.Create(dir, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(0, 0)
	r.Clock = func() time.Time { return now }
	all := draw(5, 40_000, 10, 5)
	r.Add(all[:10_000])
	r.Checkpoint()
	// The next file is on a disk without space.
	if err := os.Symlink("/dev/full", filepath.Join(dir, "requests-000001.parquet.tmp")); err != nil {
		t.Fatal(err)
	}
	r.Add(all[10_000:20_000])
	r.Checkpoint()
	if !errors.Is(r.Err, syscall.ENOSPC) || r.Unwritten != 10_000 {
		t.Fatalf("error %v, %d samples unwritten, want ENOSPC and 10000", r.Err, r.Unwritten)
	}
	r.Add(all[20_000:30_000]) // too soon to try again
	r.Checkpoint()
	now = now.Add(time.Minute)
	r.Add(all[30_000:])
	s := &result.Summary{Complete: true, MaxLag: 10}
	if err := r.Close(s); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("closed with %v, want the first error", err)
	}
	got, err := result.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	n := int64(0)
	for _, v := range got.Summary.Outcomes {
		n += v
	}
	for _, v := range got.Summary.Sessions {
		n += v
	}
	if n != 20_000 || got.Unwritten != 20_000 || len(got.Problems) != 1 || !strings.Contains(got.Problems[0], "no space") {
		t.Errorf("%d samples readable, %d unwritten, problems %q", n, got.Unwritten, got.Problems)
	}
}

func TestCreateKeepsWhatIsThere(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, draw(6, 100, 10, 5))
	if _, err := result.Create(dir, false, nil); err == nil {
		t.Error("a result was begun where there is one")
	}
	done := map[int64]bool{}
	r, err := result.Create(dir, true, func(id int64) { done[id] = true })
	if err != nil {
		t.Fatal(err)
	}
	if len(done) != 100 {
		t.Errorf("%d tasks are done, want 100", len(done))
	}
	if err := r.Close(nil); err != nil {
		t.Error(err)
	}
}

func TestDamagedFileIsAnError(t *testing.T) {
	for _, damage := range []func([]byte) []byte{
		func(b []byte) []byte { return b[:len(b)/2] },
		func(b []byte) []byte { return nil },
		func(b []byte) []byte { b[len(b)/3] ^= 0xff; b[len(b)/4] ^= 0xff; return b[:len(b)-9] },
	} {
		dir := t.TempDir()
		write(t, dir, draw(7, 100, 10, 5))
		path := filepath.Join(dir, "requests-000000.parquet")
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, damage(b), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := result.Load(dir); err == nil {
			t.Error("a damaged file was read")
		}
	}
}

// loaded writes a result and loads it.
func loaded(t testing.TB, name string, samples []result.Sample) *result.Result {
	t.Helper()
	dir := filepath.Join(t.TempDir(), name)
	write(t, dir, samples)
	r, err := result.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestCompareAndGates(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	base := loaded(t, "base", draw(8, 20_000, 100, 10))
	same := loaded(t, "same", draw(9, 20_000, 100, 10))
	slow := loaded(t, "slow", draw(10, 20_000, 100, 15))
	gate, err := result.ParseGate("p99=10%")
	if err != nil {
		t.Fatal(err)
	}
	rate, err := result.ParseGate("rate=5%")
	if err != nil {
		t.Fatal(err)
	}
	o := result.CompareOptions{Gates: []result.Gate{gate, rate}, Resamples: 200}
	if c := result.Compare(base, same, o); c.Failed() {
		t.Errorf("the gate failed for results of the same distribution: %+v", c.Changes)
	}
	if c := result.Compare(slow, base, o); c.Failed() {
		t.Error("the gate failed for an improvement")
	}
	c := result.Compare(base, slow, o)
	if !c.Failed() {
		t.Errorf("half as slow again passed a gate of 10 %%: %+v", c.Changes)
	}
	for _, ch := range c.Changes {
		if ch.Share.Low > ch.Share.Value || ch.Share.High < ch.Share.Value {
			t.Errorf("%s: %+v is outside of its own interval", ch.Metric, ch.Share)
		}
		if ch.Metric == "mean" && (ch.Share.Low > 0.5 || ch.Share.High < 0.47 || !ch.Differs) {
			t.Errorf("mean: %+v, want an interval with 50 %% in it", ch.Share)
		}
		if ch.Failed != (ch.Metric == "p99") {
			t.Errorf("gate of %s: failed %t", ch.Metric, ch.Failed)
		}
	}
	var text strings.Builder
	if err := c.Text(&text); err != nil || !strings.Contains(text.String(), "FAILED") {
		t.Errorf("text %q, %v", text.String(), err)
	}
}

func TestParseGate(t *testing.T) {
	for _, s := range []string{"", "p99", "p99=", "p99=10", "p98=10%", "p99=-1%", "p99=NaN%", "p99=Inf%", "=1%"} {
		if g, err := result.ParseGate(s); err == nil {
			t.Errorf("%q is the gate %+v", s, g)
		}
	}
	if g, err := result.ParseGate("errors=0.5%"); err != nil || g.Limit != 0.005 {
		t.Errorf("got %+v, %v", g, err)
	}
}

func TestReports(t *testing.T) {
	a, b := loaded(t, "one<b>", draw(11, 3000, 30, 10)), loaded(t, "two", draw(12, 3000, 30, 20))
	both := []*result.Result{a, b}
	c := result.Compare(a, b, result.CompareOptions{Resamples: 50})
	var text, table, page, junit bytes.Buffer
	if err := a.Text(&text); err != nil || !strings.Contains(text.String(), "GET blob") {
		t.Errorf("text %v:\n%s", err, text.String())
	}
	if err := result.CSV(&table, both); err != nil {
		t.Fatal(err)
	}
	rows, err := csv.NewReader(&table).ReadAll()
	if err != nil || len(rows) != 1+len(a.Summary.Groups)+len(b.Summary.Groups) {
		t.Errorf("%d rows, %v", len(rows), err)
	}
	if err := result.HTML(&page, "T", both, []*result.Comparison{c}); err != nil {
		t.Fatal(err)
	}
	if p := page.String(); strings.Count(p, "<svg") != 7 || strings.Contains(p, "<b>") || strings.Contains(p, "src=") || strings.Contains(p, "ZgotmplZ") {
		t.Errorf("the page has %d plots, or something from elsewhere, or what was not escaped", strings.Count(p, "<svg"))
	}
	if _, err := json.Marshal(c); err != nil {
		t.Error(err)
	}
	checks := a.Checks(0.01)
	if err := result.JUnit(&junit, checks); err != nil {
		t.Fatal(err)
	}
	var suite struct {
		Tests    int `xml:"tests,attr"`
		Failures int `xml:"failures,attr"`
	}
	if err := xml.Unmarshal(junit.Bytes(), &suite); err != nil || suite.Tests != 4 || suite.Failures != 2 {
		t.Errorf("%+v, %v; want dropped requests and 2 %% of errors to fail two of four:\n%s", suite, err, junit.String())
	}
}

func FuzzSample(f *testing.F) {
	for _, s := range draw(13, 10, 1, 1) {
		f.Add(result.AppendSample(nil, &s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s, rest, err := result.DecodeSample(b)
		if err != nil {
			return
		}
		if len(rest) >= len(b) {
			t.Fatal("nothing was read")
		}
		again, _, err := result.DecodeSample(result.AppendSample(nil, &s))
		if err != nil || again != s {
			t.Errorf("%+v was encoded and became %+v, %v", s, again, err)
		}
		a := result.NewAggregate(nil)
		if s.Intended < 1e15 {
			_ = a.Add(&s)
		}
	})
}
