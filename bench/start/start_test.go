package start

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/integration/bench/measure"
)

func TestLinks(t *testing.T) {
	for _, tt := range []struct {
		rates, rtts string
		want        []link
		err         string
	}{
		{"100,5", "0,20", []link{{100, 0}, {5, 0}, {100, 20}, {5, 20}}, ""},
		{"5", "20", []link{{5, 20}}, ""},
		{"5", "10,20", nil, "only one"},
		{"0", "0", nil, "above 0"},
		{"", "0", nil, "no number"},
		{"5", "x", nil, "no number"},
	} {
		got, err := (&options{rates: tt.rates, rtts: tt.rtts}).links()
		if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(link{})); diff != "" || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("links of %q and %q: %v, %v", tt.rates, tt.rtts, got, err)
		}
	}
}

func TestLinkIsChecked(t *testing.T) {
	good := Link{Mbit: 100, RTTms: 20, ConnectMs: 41, ExchangeMs: 21, DownMbit: 95}
	if err := good.check(); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*Link){
		"too slow": func(l *Link) { l.DownMbit = 60 }, "too fast": func(l *Link) { l.DownMbit = 300 },
		"too near": func(l *Link) { l.ExchangeMs = 1 }, "too far": func(l *Link) { l.ExchangeMs = 80 }, "no handshake": func(l *Link) { l.ConnectMs = 21 },
	} {
		l := good
		change(&l)
		if l.check() == nil {
			t.Errorf("a link that is %s is good: %s", name, l)
		}
	}
}

// sampleStart returns results for two images over two links. The slow plain pull of one image was
// computed, and one start failed.
func sampleStart() *Start {
	st := &Start{Needs: []Need{
		{Image: "a/1", Task: firstTask, Compressed: 900_000, Index: 90_000, Meta: 10_000},
		{Image: "b/1", Task: firstTask, Compressed: 1_000_000},
	}}
	add := func(image string, mbit int, system string, pull, run float64) *Sample {
		st.Samples = append(st.Samples, Sample{Cell: Cell{image, firstTask, mbit, 20}, System: system, PullSec: pull, RunSec: run})
		return &st.Samples[len(st.Samples)-1]
	}
	add("a/1", 100, plainName, 3, 1)
	add("a/1", 100, stargzName, 0.5, 1.5)
	add("a/1", 100, slipwayName, 0.1, 0.9)
	add("b/1", 100, plainName, 3, 2)
	add("b/1", 100, stargzName, 0.5, 1.5)
	add("b/1", 100, slipwayName, 0.5, 2)
	add("a/1", 5, plainName, 80, 0).Computed = true
	add("a/1", 5, stargzName, 1, 4)
	add("a/1", 5, slipwayName, 1, 3)
	add("b/1", 5, plainName, 80, 0).Computed = true
	add("b/1", 5, stargzName, 1, 4)
	add("b/1", 5, slipwayName, 0, 0).Failure = "it broke\nin two lines"
	st.complete()
	return st
}

func TestLimit(t *testing.T) {
	st := sampleStart()
	// The limit is 6 round trips of 20 ms, 1 MB, and a second on overlayfs.
	for mbit, want := range map[int]float64{100: 0.12 + 0.08 + 1, 5: 0.12 + 1.6 + 1} {
		if got := st.limit(Cell{"a/1", firstTask, mbit, 20}); math.Abs(got-want) > 1e-9 {
			t.Errorf("limit at %d Mbit/s is %v, want %v", mbit, got, want)
		}
	}
	if got := st.limit(Cell{"c/1", firstTask, 5, 20}); got != 0 {
		t.Errorf("limit of an unknown image is %v", got)
	}
}

func TestComputedStartsRunAsMeasuredOnes(t *testing.T) {
	got, computed := sampleStart().spread(Cell{"a/1", firstTask, 5, 20}, plainName, Sample.TotalSec)
	if !computed || got.Median != 81 {
		t.Errorf("computed %t, %v", computed, got)
	}
}

func TestSummaries(t *testing.T) {
	all := sampleStart().summaries()
	if len(all) != 2 {
		t.Fatalf("summaries %+v", all)
	}
	fast, slow := all[0], all[1]
	if fast.mbit != 100 || fast.cells != 2 || fast.missing != 0 || slow.cells != 1 || slow.missing != 1 || slow.computed != 1 {
		t.Errorf("cells: %+v, %+v", fast, slow)
	}
	if got, want := fast.ratio[plainName], (4/1.0+5/2.5)/2; math.Abs(got-want) > 1e-9 {
		t.Errorf("mean speed-up %v, want %v", got, want)
	}
	if diff := cmp.Diff(map[string][]string{stargzName: {"b/1"}}, fast.slower); diff != "" {
		t.Errorf("slower (-want +got):\n%s", diff)
	}
	if fast.worstImage != "b/1" {
		t.Errorf("farthest from the limit is %s", fast.worstImage)
	}
}

func TestCheckFindsWhatIsMissed(t *testing.T) {
	r := &Results{Start: sampleStart(), Bytes: &Bytes{Versions: []Version{{Series: "a", Plain: 100, New: 50, Warm: 10, Empty: 40}}},
		Local: &Local{System: slipwayName, Tests: []LocalTest{
			{Name: "mount", Plain: []float64{1, 1, 9}, Other: []float64{1.2, 1.2}},
			{Name: "redis", PerSec: true, Plain: []float64{100}, Other: []float64{90}},
			{Name: "nginx", PerSec: true, Why: "ab is not installed"},
		}}}
	var w strings.Builder
	if check(&w, r) {
		t.Error("all targets are met")
	}
	for _, want := range []string{
		"MISSED  mean speed-up over the plain pull at 100 Mbit/s, 20 ms: 3.00, at least 8.00",
		"met     slower than the plain pull: never",
		"MISSED  not faster than stargz: 1 times: b/1 at 100 Mbit/s, 20 ms",
		"MISSED  a start that failed: 1 times",
		"met     share of a plain pull's bytes, warm cache: 0.100",
		"MISSED  share of a plain pull's bytes, empty cache: 0.400",
		"met     mount, times overlayfs: 1.20", "MISSED  redis, share of overlayfs: 0.900", "OPEN    nginx (ab is not installed)",
	} {
		if !strings.Contains(w.String(), want) {
			t.Errorf("no line %q in:\n%s", want, w.String())
		}
	}
	w.Reset()
	if check(&w, &Results{}) || strings.Count(w.String(), "OPEN") != 3 {
		t.Errorf("nothing measured:\n%s", w.String())
	}
}

// TestNewVersionsAreChecked compares starts of new versions with those that have profiles.
func TestNewVersionsAreChecked(t *testing.T) {
	st := &Start{}
	add := func(image, system string, sec float64) {
		st.Samples = append(st.Samples, Sample{Cell: Cell{image, firstTask, 100, 20}, System: system, RunSec: sec})
	}
	for image, sec := range map[string][3]float64{"a/1": {1, 1.05, 2}, "b/1": {1, 1.3, 1.2}} {
		add(image, slipwayName, sec[0])
		add(image, newName, sec[1])
		add(image, stargzName, sec[2])
	}
	var w strings.Builder
	check(&w, &Results{Start: st})
	for _, want := range []string{
		"MISSED  new versions at 100 Mbit/s, 20 ms, first task, times a start with their own profiles: 1.18, at most 1.15",
		"1.1 at 20: 1 times: b/1 at 100 Mbit/s, 20 ms, first task: 1.30\n",
		"MISSED  a new version not faster than stargz with its optimised image: 1 times: b/1 at 100 Mbit/s, 20 ms, first task\n",
	} {
		if !strings.Contains(w.String(), want) {
			t.Errorf("no line %q in:\n%s", want, w.String())
		}
	}
	w.Reset()
	check(&w, &Results{Start: sampleStart()})
	if strings.Contains(w.String(), "new version") {
		t.Errorf("no new version was measured:\n%s", w.String())
	}
}

func TestReportAndResults(t *testing.T) {
	r := &Results{Start: sampleStart()}
	text := report(r, "verdict\n")
	for _, want := range []string{"verdict", "| a/1 | first | 5 Mbit/s, 20 ms | c 81.0 | 5.00 | 4.00 |", "**Slower than stargz** over 100 Mbit/s", "| it broke |"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in the report:\n%s", want, text)
		}
	}
	dir := t.TempDir()
	if err := measure.WritePictures(dir, r.Start.pictures()); err != nil {
		t.Fatal(err)
	}
	if svg, err := os.ReadFile(filepath.Join(dir, "start-20ms.svg")); err != nil || !strings.Contains(string(svg), slipwayName) {
		t.Errorf("picture: %v", err)
	}
	file := filepath.Join(dir, "results")
	if err := measure.Save(file, r); err != nil {
		t.Fatal(err)
	}
	again, err := measure.Load[Results](file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r, again); diff != "" {
		t.Errorf("results (-written +read):\n%s", diff)
	}
	fresh := &Results{Bytes: &Bytes{}}
	fresh.Fill(again)
	if fresh.Start != again.Start || fresh.Bytes == nil {
		t.Error("old results did not fill new ones")
	}
}

func TestRatesAreRead(t *testing.T) {
	got, err := after("tps =")("latency average = 0.4 ms\ntps = 9876.5 (without initial connection time)\n")
	if err != nil || got != 9876.5 {
		t.Errorf("pgbench: %v, %v", got, err)
	}
	got, err = lastBefore("requests per second")("GET: rps=1.0\nGET: 55.5 requests per second, p50=1\n\nGET: 123.4 requests per second, p50=0.1 msec\n")
	if err != nil || got != 123.4 {
		t.Errorf("redis-benchmark: %v, %v", got, err)
	}
	for _, f := range []func(string) (float64, error){after("tps ="), lastBefore("requests per second")} {
		if _, err := f("connection refused"); err == nil {
			t.Error("a failure has a rate")
		}
	}
}

func TestTurns(t *testing.T) {
	var order []int
	test := LocalTest{Name: "x"}
	for round := range 2 {
		if err := test.both(round, func(i int) (float64, error) {
			order = append(order, i)
			return float64(10 + i), nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]int{0, 1, 1, 0}, order); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
	if got := test.ratio(); math.Abs(got-1.1) > 1e-9 || measure.SpreadOf(test.Plain).Median != 10 {
		t.Errorf("%+v has ratio %v", test, got)
	}
}
