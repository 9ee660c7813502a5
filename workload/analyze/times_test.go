package analyze_test

import (
	"testing"
	"time"

	"example.org/slipway/workload/analyze"
	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/store"
)

func manifestGet(at time.Duration, client, repo store.Symbol) req {
	return req{at: at, method: store.GET, kind: trace.Manifest, client: client, repo: repo, ref: 1, status: 200}
}

func layerGet(at time.Duration, client, repo store.Symbol) req {
	return req{at: at, method: store.GET, kind: trace.Blob, client: client, repo: repo, digest: 50, status: 200}
}

// TestFigure12a counts the layers of sessions. Client 1 gets the manifest of repository 1
// at 0 and at 50 s. Layers before it, by another client and of another repository do not
// count. The layer at 30 s counts for the first session, the one at exactly 60 s for
// both, the one just after for the second. The third session has none, because its layer
// does not exist. So the counts are 2, 2, 0. If the second manifest ended the first
// session, they would be 1, 2, 0.
func TestFigure12a(t *testing.T) {
	missing := layerGet(301*sec, 1, 1)
	missing.status = 404
	reqs := []req{layerGet(0, 1, 1), manifestGet(0, 1, 1), layerGet(30*sec, 1, 1), layerGet(31*sec, 2, 1), layerGet(32*sec, 1, 2), manifestGet(50*sec, 1, 1),
		layerGet(60*sec, 1, 1), layerGet(60*sec+ms, 1, 1), manifestGet(300*sec, 1, 1), missing, manifestGet(400*sec, 0, 1), layerGet(1000*sec, 1, 1)}
	r := check(t, run(t, reqs, nil), "12a", map[string]float64{"no layer": 1.0 / 3, "mean": 4.0 / 3, "max": 2, "median": 2})
	unknown(t, r, 3, 1)
	check(t, run(t, reqs, &analyze.Options{StopAtNext: true}), "12a", map[string]float64{"no layer": 1.0 / 3, "mean": 1, "median": 1, "max": 2})
	// With 10 minutes, the first session has the layers at 30, 60 and 60.001, the second
	// those at 60 and 60.001. The third begins at 300 s and has none until 900 s.
	check(t, run(t, reqs, &analyze.Options{Session: 10 * time.Minute}), "12a", map[string]float64{"no layer": 1.0 / 3, "mean": 5.0 / 3, "max": 3})
	// The trace ends before its sessions do.
	cut := run(t, []req{manifestGet(0, 1, 1), layerGet(sec, 1, 1)}, nil)
	if r := check(t, cut, "12a", map[string]float64{"mean": 1}); len(r.Notes) != 1 {
		t.Errorf("the notes are %q; want one about the session that was cut", r.Notes)
	}
}

// TestFigure12b counts the layers pulled after a push. Client 9 pushes a layer to
// repository 1 at 0. Client 1 gets its manifest at exactly 60 s, which is just pushed and
// gives 1 layer. Client 2 gets it a millisecond later, which is not just pushed. A failed
// push and a push to another repository do not count.
func TestFigure12b(t *testing.T) {
	push := func(at time.Duration, kind trace.Kind, repo store.Symbol, status uint16) req {
		return req{at: at, method: store.PUT, kind: kind, client: 9, repo: repo, status: status}
	}
	rep := run(t, []req{push(0, trace.Upload, 1, 201), push(50*sec, trace.Upload, 1, 400), push(55*sec, trace.Manifest, 2, 201),
		manifestGet(60*sec, 1, 1), manifestGet(60*sec+ms, 2, 1), layerGet(61*sec, 1, 1), manifestGet(62*sec, 1, 2), layerGet(500*sec, 1, 1)}, nil)
	check(t, rep, "12a", map[string]float64{"no layer": 2.0 / 3})
	// The manifests of repositories 1 (one layer) and 2 (a pushed manifest, and no layer
	// pulled).
	unknown(t, check(t, rep, "12b", map[string]float64{"no layer": 0.5, "mean": 0.5}), 2, 0)
}

// TestFigure13 counts active clients. Client 1 is active from 0 to 30 s, and once more
// from 10 to 20; client 2 from 30 to 90; client 3 from 100 to 110. So there is 1 client
// except for 10 s without any, in 110 s. Minute 0 has 1. Minute 1, of which there are 50
// s, has 40/50. Two requests are active from 10 to 20 s, so minute 0 has 70/60 requests.
// Kept alive for 60 s, client 1 lasts until 90, 2 until 150 and 3 until 170. That gives 1
// client from 0 to 30, 2 to 90, 1 to 100, 2 to 150 and 1 to 170.
func TestFigure13(t *testing.T) {
	reqs := []req{
		{at: 0, dur: 30 * sec, client: 1, method: store.GET, kind: trace.Ping}, {at: 10 * sec, dur: 10 * sec, client: 1, method: store.GET, kind: trace.Blob},
		{at: 15 * sec, dur: -1, client: 4}, {at: 30 * sec, dur: 60 * sec, client: 2}, {at: 100 * sec, dur: 10 * sec, client: 3}}
	rep := run(t, reqs, nil)
	r := check(t, rep, "13a", map[string]float64{"mean": 100.0 / 110, "median, time-weighted": 1, "max, time-weighted": 1,
		"max, mean per minute": 1, "mean, kept alive 1m0s": 280.0 / 170, "median, time-weighted, kept alive 1m0s": 2})
	unknown(t, r, 4, 1)
	near(t, rep, "13a", "median, mean per minute", 0.8)
	check(t, rep, "13b", map[string]float64{"mean": 110.0 / 110, "max, time-weighted": 2})
	near(t, rep, "13b", "max, mean per minute", 70.0/60)

	// Two requests of 10 s lie on both sides of two absent days. From the first day the
	// time from 0:00 to 24:00 counts, from the last day 15 s.
	rep = run(t, []req{{dur: 10 * sec, client: 1}, {at: 3*day + 5*sec, dur: 10 * sec, client: 1}}, nil)
	check(t, rep, "13a", map[string]float64{"mean": 20.0 / 86415})
	check(t, rep, "13b", map[string]float64{"mean": 20.0 / 86415})
	// A request of unknown duration does not mean 0 clients.
	if r := run(t, []req{{dur: -1, client: 1}}, nil).Figure("13a").Zone("z"); len(r.Values) != 0 || r.Unknown != 1 {
		t.Errorf("without durations the values are %v, %d unknown", r.Values, r.Unknown)
	}
	// A request that claims an endless duration must end the sum, not the program.
	run(t, []req{{dur: 1<<63 - 1, client: 1}, {at: sec, dur: sec, client: 2}}, nil)
}

// TestFigure14 counts requests by hour: on Tuesday three at 0:10 and one at 2:00, on
// Thursday one at 0:30. Wednesday is absent. So hour 0 occurs twice, with 4 requests, and
// every other hour once.
func TestFigure14(t *testing.T) {
	reqs := []req{{at: 10 * time.Minute}, {at: 10 * time.Minute}, {at: 10 * time.Minute}, {at: 2 * time.Hour}, {at: 2*day + 30*time.Minute}}
	rep := run(t, reqs, nil)
	r := check(t, rep, "14a", map[string]float64{"00": 2, "02": 1, "01": 0, "23": 0})
	if len(r.Values) != 24 {
		t.Errorf("%d hours, want 24", len(r.Values))
	}
	r = check(t, rep, "14b", map[string]float64{"Tue": 4, "Thu": 1})
	if len(r.Values) != 2 {
		t.Errorf("the days are %v; Wednesday is absent and the others are not in the trace", r.Values)
	}
	// In a time zone half an hour off, the times are 5:40, 7:30 and, on Thursday, 6:00.
	// Hour 5 occurs on Tuesday, on Wednesday until the absent day begins, and on Thursday
	// when it ends.
	rep = run(t, reqs, &analyze.Options{Location: time.FixedZone("+0530", 5*3600+1800)})
	check(t, rep, "14a", map[string]float64{"05": 1, "06": 0.5, "07": 1, "04": 0})
	check(t, rep, "14b", map[string]float64{"Tue": 4, "Wed": 0, "Thu": 1})
}

// TestFigure15a measures the gaps between arrivals at 0, 0, 100 µs and 250 µs, and after
// an absent day, which makes no gap. The gaps are 0, 100 and 150 µs.
func TestFigure15a(t *testing.T) {
	us := time.Microsecond
	rep := run(t, []req{{}, {}, {at: 100 * us}, {at: 250 * us}, {at: 2 * day}}, nil)
	r := check(t, rep, "15a", map[string]float64{"median": 100e-6, "max": 150e-6, "mean": 250e-6 / 3})
	if len(r.Notes) != 1 {
		t.Errorf("the notes are %q; want one about the absent day", r.Notes)
	}
}

// TestFigure15b measures idle periods. The trace is busy from 0 to 10 µs, within that
// from 5 to 7, and from 10 to 15, which touches. At 20 there is a request of unknown
// duration. It is busy from 30 to 31, from 31 to 31 (no time at all), and at 2 s. So it
// is idle for 15 µs and for almost 2 s. After the absent day, the time in between is
// unknown.
func TestFigure15b(t *testing.T) {
	us := time.Microsecond
	rep := run(t, []req{{dur: 10 * us}, {at: 5 * us, dur: 2 * us}, {at: 10 * us, dur: 5 * us}, {at: 20 * us, dur: -1}, {at: 30 * us, dur: us}, {at: 31 * us}, {at: 2 * sec, dur: us}, {at: 2 * day, dur: -1}, {at: 2*day + sec, dur: us}, {at: 2*day + sec + 3*us, dur: us}}, nil)
	r := check(t, rep, "15b", map[string]float64{"idle periods": 3, "below 1 s": 2.0 / 3, "p10": 2e-6, "median": 15e-6, "max": 2 - 31e-6})
	unknown(t, r, 8, 2)
}
