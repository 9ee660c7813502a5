package analyze_test

import (
	"context"
	"math"
	"testing"
	"time"

	"example.org/slipway/workload/analyze"
	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/store"
)

const (
	ms  = time.Millisecond
	sec = time.Second
	day = 24 * time.Hour
)

// run analyses a miniature trace of one zone.
func run(t *testing.T, reqs []req, o *analyze.Options) *analyze.Report {
	t.Helper()
	rep, err := analyze.Run(context.Background(), oneZone("z", reqs), o)
	if err != nil {
		t.Fatal(err)
	}
	return rep
}

// check compares numbers of a figure with those worked out by hand. NaN means that the
// number must be absent.
func check(t *testing.T, rep *analyze.Report, figure string, want map[string]float64) *analyze.Result {
	t.Helper()
	r := rep.Figure(figure).Zone("z")
	for name, w := range want {
		got, ok := r.Value(name)
		switch {
		case math.IsNaN(w):
			if ok {
				t.Errorf("figure %s: %s is %v, want none", figure, name, got)
			}
		case !ok:
			t.Errorf("figure %s has no %q but %v", figure, name, r.Values)
		case math.Abs(got-w) > 1e-9*max(1, math.Abs(w)):
			t.Errorf("figure %s: %s is %v, want %v", figure, name, got, w)
		}
	}
	return r
}

// near is like check, for numbers from buckets. It allows the documented error.
func near(t *testing.T, rep *analyze.Report, figure, name string, want float64) {
	t.Helper()
	got, ok := rep.Figure(figure).Zone("z").Value(name)
	if !ok || math.Abs(got-want) > analyze.QuantileError*want {
		t.Errorf("figure %s: %s is %v, want %v within %v", figure, name, got, want, analyze.QuantileError)
	}
}

func unknown(t *testing.T, r *analyze.Result, requests, left int64) {
	t.Helper()
	if r.Requests != requests || r.Unknown != left {
		t.Errorf("%d requests and %d unknown, want %d and %d", r.Requests, r.Unknown, requests, left)
	}
}

// TestTable1 checks numbers worked out by hand. The requests are of the first and the
// fourth day, so 2 days have requests and 2 are absent. Ingress is the 500 of the
// manifest, since the size of the upload is unknown. Egress is 1000 + 4000 + 6000 + 10; a
// HEAD has none, and the ping lacks none. One image is pulled, because the other does not
// exist (404). One layer has content and status 200; the range (206) does not count.
func TestTable1(t *testing.T) {
	reqs := []req{
		{method: store.GET, kind: trace.Manifest, client: 1, host: 1, repo: 1, ref: 1, size: 1000, status: 200},
		{at: 1 * sec, method: store.PUT, kind: trace.Manifest, client: 2, host: 1, repo: 1, ref: 1, size: 500, status: 201},
		{at: 2 * sec, method: store.GET, kind: trace.Blob, client: 1, host: 2, repo: 1, digest: 5, size: 4000, status: 206},
		{at: 3 * sec, method: store.GET, kind: trace.Blob, client: 1, host: 2, repo: 1, digest: 5, size: 6000, status: 200},
		{at: 4 * sec, method: store.GET, kind: trace.Ping, client: 3, size: -1, status: 200},
		{at: 5 * sec, method: store.PUT, kind: trace.Upload, client: 2, repo: 1, size: -1, status: 201},
		{at: 6 * sec, method: store.HEAD, kind: trace.Blob, client: 2, repo: 1, digest: 5, size: 9999, status: 200},
		{at: 7 * sec, method: store.PATCH, kind: trace.Upload, client: 2, repo: 1, size: 777, status: 202},
		{at: 8 * sec, method: store.GET, kind: trace.Manifest, client: 1, repo: 9, ref: 1, size: 10, status: 404},
		{at: 3*day + sec, method: store.POST, kind: trace.Upload, client: 2, repo: 1, size: 0, status: 202},
	}
	rep := run(t, reqs, nil)
	r := check(t, rep, "table1", map[string]float64{"days": 2, "requests": 10, "ingress": 500, "egress": 11010, "images pushed": 1, "images pulled": 1,
		"clients": 3, "servers": 2, "pings": 1, "GET": 5, "HEAD": 1, "PUT": 2, "PATCH": 1, "POST": 1, "DELETE": 0,
		"layer GETs with content": 1, "bytes of PATCH": 777})
	unknown(t, r, 10, 1)
	if z := rep.Zones[0]; z.Days != 2 || z.Absent != 2 || z.Requests != 10 {
		t.Errorf("the zone has %d days, %d absent, %d requests; want 2, 2, 10", z.Days, z.Absent, z.Requests)
	}
	// Without any size there is no egress, which differs from an egress of 0.
	check(t, run(t, []req{{method: store.GET, kind: trace.Blob, digest: 1, size: -1}}, nil), "table1", map[string]float64{"egress": math.NaN()})
}

// TestIngress checks that pushed content counts once, at the request that completes it,
// and refused content not at all. That is 3000 by PUT, including the PATCH before it, and
// 400 by a single POST. The mount brings nothing.
func TestIngress(t *testing.T) {
	upload := func(m store.Method, size int64, status uint16) req {
		return req{method: m, kind: trace.Upload, client: 1, repo: 1, ref: 1, digest: 2, size: size, status: status}
	}
	rep := run(t, []req{upload(store.POST, 0, 202), upload(store.PATCH, 3000, 202), upload(store.PUT, 3000, 201), upload(store.POST, 400, 201),
		upload(store.POST, 0, 201), upload(store.PUT, 7000, 400), upload(store.POST, 50, 202)}, nil)
	check(t, rep, "table1", map[string]float64{"ingress": 3400, "bytes of PATCH": 3000})
}

// TestIngressOfOthers counts pushes as other registries log them. Some log how many bytes came
// in each request. A PUT without a body then has no size of its own, and the size of the push
// is that of its PATCHes. For a PUT without a PATCH nothing is known.
func TestIngressOfOthers(t *testing.T) {
	upload := func(m store.Method, ref store.Symbol, size int64, status uint16) req {
		return req{method: m, kind: trace.Upload, client: 1, repo: 1, ref: ref, size: size, status: status}
	}
	rep := run(t, []req{upload(store.PATCH, 1, 3000, 202), upload(store.PATCH, 2, 10, 202), upload(store.PATCH, 1, 7000, 416), upload(store.PATCH, 1, 500, 202),
		upload(store.PUT, 1, -1, 201), upload(store.PUT, 1, -1, 201), {method: store.PUT, kind: trace.Manifest, repo: 1, ref: 3, size: 40, status: 201}}, nil)
	r := check(t, rep, "table1", map[string]float64{"ingress": 3540})
	unknown(t, r, 7, 1)
}

// TestFigure4 counts images. 3 are pulled, one through an HTTP redirect; a 404 and a HEAD
// do not count. 1 is pushed; the upload of a layer does not count. That gives 3/4. Of all
// 8 requests, 5 are GETs, and one of them is a ping.
func TestFigure4(t *testing.T) {
	manifest := func(m store.Method, status uint16) req {
		return req{method: m, kind: trace.Manifest, repo: 1, ref: 1, status: status}
	}
	rep := run(t, []req{manifest(store.GET, 200), manifest(store.GET, 301), manifest(store.GET, 0), manifest(store.GET, 404), manifest(store.HEAD, 200),
		manifest(store.PUT, 201), {method: store.PATCH, kind: trace.Upload, repo: 1, status: 202}, {method: store.GET, kind: trace.Ping, status: 200}}, nil)
	check(t, rep, "4a", map[string]float64{"pulls": 0.75, "pulled": 3, "pushed": 1})
	check(t, rep, "4b", map[string]float64{"GET": 5.0 / 8, "HEAD": 1.0 / 8, "PUT": 1.0 / 8, "PATCH": 1.0 / 8, "POST": 0, "pings": 1.0 / 8, "PUT per PATCH": 1})
	check(t, run(t, []req{{method: store.GET, kind: trace.Ping}}, nil), "4a", map[string]float64{"pulls": math.NaN(), "pulled": 0})
}

// TestFigure5 counts kinds of requests. GETs are 3 layers and 1 manifest, whatever the
// status. The ping and the tag list are neither, but belong to the 6 in all. PUT and HEAD
// are a PUT of an upload, a HEAD of a blob and a HEAD of a manifest.
func TestFigure5(t *testing.T) {
	rep := run(t, []req{
		{method: store.GET, kind: trace.Blob, digest: 1, status: 200}, {method: store.GET, kind: trace.Blob, digest: 1, status: 206}, {method: store.GET, kind: trace.Blob, digest: 2, status: 404},
		{method: store.GET, kind: trace.Manifest, status: 200}, {method: store.GET, kind: trace.Ping, status: 200}, {method: store.GET, kind: trace.Tags, status: 200},
		{method: store.PUT, kind: trace.Upload, status: 201}, {method: store.HEAD, kind: trace.Blob, digest: 1, status: 404}, {method: store.HEAD, kind: trace.Manifest, status: 200},
		{method: store.HEAD, kind: trace.Ping, status: 200}, {method: store.PATCH, kind: trace.Upload, status: 202},
	}, nil)
	r := check(t, rep, "5a", map[string]float64{"layers": 0.75, "manifests": 0.25, "pings in all GETs": 1.0 / 6, "layers in all GETs": 0.5, "layers per manifest": 3})
	unknown(t, r, 4, 0)
	check(t, rep, "5b", map[string]float64{"layers": 2.0 / 3, "manifests": 1.0 / 3, "PUT of layers": 1, "HEAD of layers": 1, "HEAD of manifests": 1, "PUT of manifests": 0})
}

// TestFigure6 counts sizes. Layers by requests are 10, 10, 200, 999999 and 10^6, of which
// 4 of 5 are below 1 MB, because 10^6 is not. By objects, digest 1 counts once, with 10,
// so it is 3 of 4. The layer without a size and the missing one do not count. Of the
// manifests, 1000 is not above 1 kB, and 10001 is above 10 kB. The same tag counts once
// as an object, and again in another repository.
func TestFigure6(t *testing.T) {
	blob := func(digest store.Symbol, size int64, status uint16) req {
		return req{method: store.GET, kind: trace.Blob, repo: 1, digest: digest, size: size, status: status}
	}
	manifest := func(repo, ref store.Symbol, size int64) req {
		return req{method: store.GET, kind: trace.Manifest, repo: repo, ref: ref, size: size, status: 200}
	}
	reqs := []req{blob(1, 10, 200), blob(1, 10, 206), blob(2, 200, 200), blob(3, 999_999, 200), blob(4, 1_000_000, 200), blob(5, -1, 200), blob(6, 7, 404),
		manifest(1, 1, 1000), manifest(1, 1, 1001), manifest(2, 1, 10_001),
		{method: store.PUT, kind: trace.Upload, repo: 1, ref: 70, size: 30, status: 201}, {method: store.PUT, kind: trace.Upload, repo: 1, ref: 71, size: 30, status: 201},
		{method: store.PUT, kind: trace.Upload, repo: 1, ref: 72, digest: 1, size: 40, status: 201}, {method: store.PUT, kind: trace.Upload, repo: 1, ref: 73, digest: 1, size: 40, status: 201},
		{method: store.PUT, kind: trace.Manifest, repo: 1, ref: 1, size: 50, status: 201}}
	rep := run(t, reqs, nil)
	r := check(t, rep, "6a", map[string]float64{"below 1 MB": 0.8, "below 10 MB": 1, "objects below 1 MB": 0.75, "median": 200, "p10": 10, "max": 1e6, "objects": 4, "median of objects": 200})
	unknown(t, r, 5, 1)
	check(t, rep, "6b", map[string]float64{"above 1 kB": 2.0 / 3, "above 10 kB": 1.0 / 3, "objects": 2, "objects above 10 kB": 0.5})
	// PUTs have 30, 30, 40 and 40. The two uploads without a digest are two objects, the
	// two of one digest are one.
	put := run(t, reqs, &analyze.Options{SizesOf: store.PUT})
	check(t, put, "6a", map[string]float64{"median": 30, "max": 40, "objects": 3, "mean": 35})
	check(t, put, "6b", map[string]float64{"median": 50, "objects": 1})
}

// TestFigure7 counts requests by minute. The minutes of the first day have two requests,
// one, none for three minutes, 100, and none for 1,434 minutes. The second day is absent.
// The third has one minute with one request. So there are 1,441 minutes, of which 1,437
// are empty. 100 is at least 100.
func TestFigure7(t *testing.T) {
	ping := func(at time.Duration) req { return req{at: at, method: store.GET, kind: trace.Ping} }
	reqs := []req{ping(10 * sec), ping(60*sec - ms), ping(60 * sec)}
	for range 100 {
		reqs = append(reqs, ping(5*time.Minute))
	}
	rep := run(t, append(reqs, ping(2*day+30*sec)), nil)
	r := check(t, rep, "7", map[string]float64{"minutes": 1441, "minutes without any": 1437.0 / 1441, "minutes with at least 100": 1.0 / 1441, "max": 100, "median": 0, "mean": 104.0 / 1441})
	unknown(t, r, 104, 0)
	if len(r.Notes) != 1 {
		t.Errorf("the notes are %q; want one about the absent day", r.Notes)
	}
}

// TestFigure8 checks latencies. GETs of layers take 100 µs, 1 s, just above 1 s, and 10
// s. 1 s is not more than 1 s, 10 s is at least 10 s. The other kinds have one request
// each.
func TestFigure8(t *testing.T) {
	blob := func(dur time.Duration, status uint16) req {
		return req{dur: dur, method: store.GET, kind: trace.Blob, digest: 1, status: status}
	}
	rep := run(t, []req{blob(100*time.Microsecond, 200), blob(sec, 206), blob(sec+time.Microsecond, 200), blob(10*sec, 200), blob(-1, 200), blob(ms, 404),
		{dur: 21 * time.Microsecond, method: store.PUT, kind: trace.Upload, status: 201},
		{dur: 22 * time.Microsecond, method: store.PATCH, kind: trace.Upload, status: 202},
		{dur: 23 * time.Microsecond, method: store.GET, kind: trace.Manifest, status: 200},
		{dur: 24 * time.Microsecond, method: store.PUT, kind: trace.Manifest, status: 201},
		{dur: 25 * time.Microsecond, method: store.HEAD, kind: trace.Manifest, status: 200},
	}, nil)
	r := check(t, rep, "8a", map[string]float64{"more than 1 s": 0.5, "at least 10 s": 0.25, "p10": 100e-6, "p25": 100e-6, "max": 10})
	unknown(t, r, 4, 1)
	near(t, rep, "8a", "median", 1)
	for figure, want := range map[string]float64{"8b": 21e-6, "8c": 22e-6, "8d": 23e-6, "8e": 24e-6} {
		unknown(t, check(t, rep, figure, map[string]float64{"median": want, "more than 1 s": 0}), 1, 0)
	}
}

// TestFigure9 checks latencies by size. 1000 and 1258 bytes lie in the bin from 10^3.0,
// 1259 bytes in the bin from 10^3.1. In the first bin the median of 5, 7 and 9 µs is 7. A
// size of 0 lies in no bin. Durations of 10, 100 and 1000 µs at 1, 10 and 100 MB are
// proportional, which gives a slope of 1.
func TestFigure9(t *testing.T) {
	blob := func(size int64, us int64) req {
		return req{dur: time.Duration(us) * time.Microsecond, method: store.GET, kind: trace.Blob, digest: 1, size: size, status: 200}
	}
	reqs := []req{blob(1000, 5), blob(1100, 9), blob(1258, 7), blob(1259, 50), blob(0, 77), blob(-1, 77)}
	for range 10 {
		reqs = append(reqs, blob(1e6, 10), blob(10e6, 100), blob(100e6, 1000))
	}
	rep := run(t, reqs, nil)
	r := check(t, rep, "9", map[string]float64{"median at 1 MB": 10e-6, "median at 10 MB": 100e-6, "median below 1 MB": 7e-6, "slope below 1 MB": math.NaN()})
	unknown(t, r, 34, 1)
	if got, _ := r.Value("slope above 1 MB"); math.Abs(got-1) > 0.01 {
		t.Errorf("the slope above 1 MB is %v, want 1", got)
	}
	first := r.Series[0].Points[0]
	if len(r.Series[0].Points) != 5 || first.Y != 7e-6 || first.Low != 5e-6 || first.High != 9e-6 || math.Abs(first.X-math.Pow(10, 3.05)) > 1e-6 {
		t.Errorf("the bins are %+v; want 5, the first at 10^3.05 with 5, 7 and 9 µs", r.Series[0].Points)
	}
	if len(r.Series[1].Points) != 34 {
		t.Errorf("%d dots, want 34", len(r.Series[1].Points))
	}
}

// TestFigures10And11 checks popularity. Layers: digest 1 is requested five times in two
// repositories, 2 three times, 3 and 4 once. A range (206) counts, a missing layer does
// not. Manifests are requested 12, 6, 4 and 3 times, which is 12/rank and gives a slope
// of 1. Clients: pings do not count. Repositories: all requests count.
func TestFigures10And11(t *testing.T) {
	var reqs []req
	add := func(n int, r req) {
		for range n {
			reqs = append(reqs, r)
		}
	}
	blob := func(repo, digest, client store.Symbol, status uint16) req {
		return req{method: store.GET, kind: trace.Blob, repo: repo, user: 90 + repo, ref: digest, digest: digest, client: client, status: status}
	}
	add(3, blob(1, 1, 1, 200))
	add(2, blob(2, 1, 1, 206))
	add(3, blob(1, 2, 1, 200))
	add(1, blob(1, 3, 2, 200))
	add(1, blob(1, 4, 0, 200))
	add(9, req{method: store.GET, kind: trace.Ping, client: 2, status: 200})
	rep := run(t, reqs, nil)
	check(t, rep, "10a", map[string]float64{"items": 4, "top 1 %": 0.5, "items requested once": 0.5})
	check(t, rep, "11a", map[string]float64{"rank 1": 0.5, "top 2": 0.8, "top 10": 1})
	check(t, rep, "10c", map[string]float64{"items": 2, "top 1 %": 0.8})
	check(t, rep, "11c", map[string]float64{"rank 1": 0.8})
	check(t, rep, "11-users", map[string]float64{"rank 1": 0.8})
	unknown(t, check(t, rep, "11d", map[string]float64{"rank 1": 8.0 / 9, "top 2": 1}), 9, 1)
	unknown(t, check(t, rep, "10d", map[string]float64{"items": 2}), 9, 1)
	byURI := run(t, reqs, &analyze.Options{LayersBy: analyze.ByURI})
	check(t, byURI, "10a", map[string]float64{"items": 5, "top 1 %": 0.3})

	reqs = nil
	for i, n := range []int{12, 6, 4, 3} {
		// The last two use the same tag in different repositories.
		add(n, req{method: store.GET, kind: trace.Manifest, repo: store.Symbol(1 + i), user: 9, ref: store.Symbol(1 + min(i, 2)), client: 1, status: 200})
	}
	add(5, req{method: store.GET, kind: trace.Manifest, repo: 7, user: 9, ref: 1, client: 1, status: 404})
	rep = run(t, reqs, nil)
	check(t, rep, "10b", map[string]float64{"items": 4, "slope": 1, "top 1 %": 12.0 / 25})
	r := check(t, rep, "11b", map[string]float64{"top 10": 1, "rank 1": 12.0 / 25})
	if p := r.Series[0].Points; len(p) != 4 || p[2].Y != 4.0/25 || p[2].Label != "3" {
		t.Errorf("the bars of figure 11b are %+v", p)
	}
}
