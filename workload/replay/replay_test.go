package replay_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/workload/replay/plan"
	"example.org/slipway/workload/replay/result"
)

func wantOutcomes(t *testing.T, s *result.Summary, all []result.Sample, want map[string]int64) {
	t.Helper()
	if d := cmp.Diff(want, s.Outcomes); d != "" {
		t.Errorf("outcomes (-want +got):\n%s", d)
		for _, sm := range all {
			if sm.Outcome != result.OK {
				t.Logf("task %d step %d part %d: %s %s: %s, status %d", sm.Task, sm.Step, sm.Part, sm.Method, sm.Object, sm.Outcome, sm.Status)
			}
			t.Logf("task %d step %d: %s %s: from %d (sent %d) to %d us", sm.Task, sm.Step, sm.Method, sm.Object, sm.Intended, sm.Sent, sm.End)
		}
	}
}

func TestL1SendsEachRequest(t *testing.T) {
	url, seen := newRegistry(t, nil)
	o := options(t, plan.L1, url)
	// The requests of an upload arrive in order only if the machine keeps up with them.
	o.Plan.Speed, o.Plan.MaxGap = 0.1, 200*time.Millisecond
	s, all := run(t, newStore(t, images()), o)
	// 20 of 22 requests are replayed.
	wantOutcomes(t, s, all, map[string]int64{"ok": 20})
	if d := cmp.Diff(map[string]int64{"DELETE": 1, "path is not the protocol's": 1}, s.Skipped); d != "" {
		t.Errorf("skipped (-want +got):\n%s", d)
	}
	const a, b = "/v2/a7e6b589/one", "/v2/a7e6b589/deep/er/two"
	for request, want := range map[string]int{
		"GET /v2/":                            2, // /v2 is answered itself or redirected to /v2/
		"GET " + a + "/manifests/817c8a39":    2,
		"HEAD " + a + "/manifests/817c8a39":   1,
		"PUT " + a + "/manifests/817c8a39":    1, // warm-up
		"PUT " + b + "/manifests/817c8a39":    1,
		"DELETE " + a + "/manifests/817c8a39": 0,
		"GET " + a + "/tags/list":             1,
	} {
		got := seen.get(request)
		if request == "GET /v2/" {
			got += seen.get("GET /v2")
			want += int(s.Redirects)
		}
		if got != want {
			t.Errorf("%d times %s, want %d", got, request, want)
		}
	}
	if s.WarmUp.Errors != 0 || s.WarmUp.Manifests != 1 {
		t.Errorf("warm-up: %+v, want one manifest and no errors", *s.WarmUp)
	}
	var sent, ranged int64
	for _, sm := range all {
		switch {
		case sm.Method.String() == "PATCH" || sm.Method.String() == "PUT" && sm.Object.String() == "upload":
			sent += sm.Bytes
		case sm.Status == 206:
			ranged = sm.Bytes
		}
	}
	if sent != 50_001 || ranged != 30_000 {
		t.Errorf("%d bytes uploaded and %d read by range, want 50001 and 30000", sent, ranged)
	}
}

func TestL0SendsBlobsOnly(t *testing.T) {
	url, seen := newRegistry(t, nil)
	s, all := run(t, newStore(t, images()), options(t, plan.L0, url))
	// 8 GETs have a size, and one of a range counts as one of the whole blob. Each of the
	// 2 PUTs becomes a POST and a PUT.
	wantOutcomes(t, s, all, map[string]int64{"ok": 9 + 2*2})
	if n := seen.get("GET /v2/replay/tags/list"); n != 0 {
		t.Errorf("%d requests for tags at L0", n)
	}
	for _, sm := range all {
		if o := sm.Object.String(); o != "blob" && o != "upload" {
			t.Errorf("a request of %s at L0", o)
		}
	}
}

func TestL2SendsSessions(t *testing.T) {
	url, _ := newRegistry(t, nil)
	s, all := run(t, newStore(t, images()), options(t, plan.L2, url))
	if d := cmp.Diff(map[string]int64{"ok": 4}, s.Sessions); d != "" { // three pulls, one push
		t.Errorf("sessions (-want +got):\n%s", d)
	}
	wantOutcomes(t, s, all, map[string]int64{"ok": s.Requests})
	ends := map[int64]map[string][2]int64{} // by task and object: the first begin, the last end
	for _, sm := range all {
		if sm.Step < 0 {
			continue
		}
		if ends[sm.Task] == nil {
			ends[sm.Task] = map[string][2]int64{}
		}
		v, ok := ends[sm.Task][sm.Object.String()]
		if !ok {
			v[0] = sm.Sent
		}
		ends[sm.Task][sm.Object.String()] = [2]int64{min(v[0], sm.Sent), max(v[1], sm.End)}
	}
	pulls := 0
	for task, e := range ends {
		m, hasManifest := e["manifest"]
		if b, ok := e["blob"]; ok && hasManifest {
			if _, push := e["upload"]; push {
				continue
			}
			pulls++
			if b[0] < m[1] {
				t.Errorf("task %d: a layer was asked for at %d, before its manifest was there at %d", task, b[0], m[1])
			}
		}
		if u, ok := e["upload"]; ok && hasManifest && m[0] < u[1] {
			t.Errorf("task %d: the manifest was put at %d, before its layers were there at %d", task, m[0], u[1])
		}
	}
	if pulls != 3 {
		t.Errorf("%d pulls with layers, want 3", pulls)
	}
}

func TestResultsOfTwoRunsHaveTheSameContent(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	st := newStore(t, images())
	for _, level := range []plan.Level{plan.L0, plan.L1, plan.L2} {
		first, _ := newRegistry(t, nil)
		o := options(t, level, first)
		o.Plan.Maker.Seed, o.Plan.MaxGap = 4, time.Second
		run(t, st, o)
		// On the same registry everything exists already.
		o.Dir += "-again"
		o.Phase = "run"
		s, all := run(t, st, o)
		wantOutcomes(t, s, all, map[string]int64{"ok": s.Requests})
	}
}

func TestSpeedAndGaps(t *testing.T) {
	url, _ := newRegistry(t, nil)
	reqs := []request{{0, "a", "GET", "v2", 200, 2}, {100, "a", "GET", "v2", 200, 2}, {3_600_100, "a", "GET", "v2", 200, 2}}
	o := options(t, plan.L1, url)
	o.Plan.Speed, o.Plan.MaxGap = 2, 150*time.Millisecond
	_, all := run(t, newStore(t, reqs), o)
	var got []int64
	for _, s := range all {
		got = append(got, s.Intended)
	}
	if d := cmp.Diff([]int64{0, 50_000, 200_000}, got); d != "" {
		t.Errorf("intended times (-want +got):\n%s", d)
	}
}
