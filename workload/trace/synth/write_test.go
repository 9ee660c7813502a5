package synth_test

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/store"
	"example.org/slipway/workload/trace/synth"
)

func writeStore(t *testing.T, dir string, p []*synth.Profile, o *synth.Options) {
	t.Helper()
	if err := synth.Write(context.Background(), p, o, &synth.Output{Store: dir}); err != nil {
		t.Fatal(err)
	}
}

func openStore(t *testing.T, dir string) *store.Store {
	t.Helper()
	s, err := store.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestWriteStore(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "s")
	profiles := []*synth.Profile{zone(t, "dal"), zone(t, "syd"), zone(t, "dev")}
	writeStore(t, dir, profiles, &synth.Options{Seed: 5, Requests: 30_000, Days: 2})
	var total int64
	for _, z := range openStore(t, dir).Zones() {
		p := zone(t, z.Name)
		want := 30_000 * float64(p.Requests) / float64(20_856_543+1_056_787+380_877)
		if math.Abs(float64(z.Records)-want) > 1 || len(z.Days) != 2 {
			t.Errorf("%s: %d records in %d days, want %.0f in 2", z.Name, z.Records, len(z.Days), want)
		}
		total += z.Records
	}
	if total != 30_000 {
		t.Errorf("%d records, want 30000", total)
	}
	err := synth.Write(context.Background(), profiles[2:], &synth.Options{Requests: 10}, &synth.Output{Store: dir})
	if err == nil || !strings.Contains(err.Error(), "already") {
		t.Errorf("a zone was written twice: %v", err)
	}
	w, err := store.NewWriter(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = synth.Write(context.Background(), []*synth.Profile{zone(t, "prs")}, &synth.Options{Requests: 10}, &synth.Output{Store: dir})
	if !errors.Is(err, store.ErrBusy) {
		t.Errorf("a trace was written while another writer was at work: %v", err)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	err = synth.Write(context.Background(), []*synth.Profile{profiles[0], profiles[0]}, &synth.Options{}, &synth.Output{Store: t.TempDir()})
	if err == nil {
		t.Error("a zone was named twice")
	}
}

// TestWriteEnds stops writing in the middle. The records written so far must be readable.
func TestWriteEnds(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	err := synth.Write(ctx, []*synth.Profile{zone(t, "dal"), zone(t, "syd")}, &synth.Options{Requests: 40_000, Days: 1}, &synth.Output{Store: dir})
	if !errors.Is(err, context.Canceled) || strings.Contains(err.Error(), "open") {
		t.Errorf("got %v", err)
	}
	if s, err := store.Open(dir); err == nil {
		t.Logf("%+v", s.Zones())
	} else if !errors.Is(err, store.ErrNotStore) {
		t.Error(err)
	}
}

// TestArchiveHasTheSameRecords writes both forms of one trace and compares them.
func TestArchiveHasTheSameRecords(t *testing.T) {
	dir := t.TempDir()
	p := zone(t, "syd")
	o := synth.Options{Seed: 2, Requests: 20_000, Days: 2}
	if err := synth.Write(context.Background(), []*synth.Profile{p}, &o, &synth.Output{Archive: dir}); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "syd01", "*"))
	if err != nil {
		t.Fatal(err)
	}
	name := regexp.MustCompile(`/prod-syd01-logstash-2017\.06\.2[01]-[0-3]\.json$`)
	if len(files) != 8 {
		t.Errorf("%d files, want 8: %v", len(files), files)
	}
	err = synth.Write(context.Background(), []*synth.Profile{p}, &synth.Options{Requests: 10}, &synth.Output{Archive: dir})
	if err == nil || !strings.Contains(err.Error(), "already") {
		t.Errorf("the files of a zone were written over: %v", err)
	}
	var got []string
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		var records []map[string]any
		if err := json.Unmarshal(b, &records); err != nil || !name.MatchString(f) {
			t.Fatalf("%s: %v", f, err)
		}
		var times []string
		for _, r := range records {
			if len(r) != 10 {
				t.Fatalf("a record with %d fields: %v", len(r), r)
			}
			times = append(times, r["timestamp"].(string))
			got = append(got, r["timestamp"].(string)+" "+r["id"].(string)+" "+r["http.request.uri"].(string))
		}
		if slices.IsSorted(times) {
			t.Errorf("%s is in order of time", f)
		}
	}
	var want []string
	if err := p.Generate(context.Background(), &o, func(r *trace.Record) error {
		want = append(want, r.Time.Format("2006-01-02T15:04:05.000Z")+" "+r.ID+" "+r.URI)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("the archive has %d records, the trace %d, or they differ", len(got), len(want))
	}
	bad := *p
	bad.Prefix = "../x"
	if _, err := synth.NewArchiveWriter(dir, &bad, 1); err == nil {
		t.Error("a prefix that leads out of the directory was taken")
	}
}

// TestFitRoundTrip generates a trace, fits a profile to it, generates another trace from
// the profile, and compares the two traces.
func TestFitRoundTrip(t *testing.T) {
	for _, name := range []string{"dal", "dev"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			requests := int64(100_000)
			if raceDetector {
				requests = 40_000 // under the race detector it is ten times slower, and the result is no closer
			}
			o := synth.Options{Seed: 11, Requests: requests}
			writeStore(t, dir, []*synth.Profile{zone(t, name)}, &o)
			p, err := synth.Fit(context.Background(), openStore(t, dir), name)
			if err != nil {
				t.Fatal(err)
			}
			a, b := newMeasured(), newMeasured()
			collect := func(m *measured) func(*trace.Record) error {
				return func(r *trace.Record) error { m.add(r); return nil }
			}
			if err := zone(t, name).Generate(context.Background(), &o, collect(a)); err != nil {
				t.Fatal(err)
			}
			if err := p.Generate(context.Background(), &synth.Options{Seed: 12}, collect(b)); err != nil {
				t.Fatal(err)
			}
			if b.total < requests-requests/50 || b.total > requests {
				t.Errorf("%d requests, want about %d", b.total, requests)
			}
			compare(t, a, b)
		})
	}
}

// compare reports where two traces differ by more than what is documented for --like.
func compare(t *testing.T, a, b *measured) {
	t.Helper()
	for _, f := range []struct {
		name string
		near float64
		of   func(*measured) float64
	}{
		{"GET", 0.01, methodShare("GET")}, {"HEAD", 0.01, methodShare("HEAD")}, {"PUT", 0.01, methodShare("PUT")},
		{"POST", 0.01, methodShare("POST")}, {"PATCH", 0.01, methodShare("PATCH")},
		{"ping", 0.02, kindShare("ping")}, {"blob", 0.02, kindShare("blob")}, {"manifest", 0.02, kindShare("manifest")},
		{"without layers", 0.05, (*measured).without},
		{"top 10 layers", 0.04, top(layers, 10)}, {"top 1 % of layers", 0.08, top(layers, 0.01)},
		{"first touches", 0.06, func(m *measured) float64 { return float64(len(m.layers)) / float64(m.kind["blob"]) }},
		{"top 10 manifests", 0.06, top(manifests, 10)},
		{"first client", 0.03, top(clients, 1)}, {"10 clients", 0.05, top(clients, 10)},
		{"below 16 KiB", 0.04, func(m *measured) float64 { return below(m.layerSizes, 16<<10) }},
		{"below 1 MiB", 0.04, func(m *measured) float64 { return below(m.layerSizes, 1<<20) }},
		{"below 10 MB", 0.04, func(m *measured) float64 { return below(m.layerSizes, 10e6) }},
		{"night", 0.15, (*measured).night},
		{"mean run of pings", 0.3, func(m *measured) float64 { return float64(m.pings) / float64(m.pingRuns) }},
		{"empty minutes", 0.12, func(m *measured) float64 { return below(m.perMinute(), 1) }},
		{"layers of more than 1 s", 0.06, func(m *measured) float64 { return 1 - below(m.layerSeconds(), 1) }},
	} {
		x, y := f.of(a), f.of(b)
		t.Logf("%-24s %.4f %.4f", f.name, x, y)
		if !(math.Abs(x-y) <= f.near) {
			t.Errorf("%s: %.4f in the trace, %.4f in the one fitted to it; at most %.2f apart", f.name, x, y, f.near)
		}
	}
}

// TestFitWindows checks that layers count for every pull of the same client and
// repository in the minute before.
func TestFitWindows(t *testing.T) {
	dir := t.TempDir()
	w, err := store.NewWriter(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []struct {
		second      int64
		client, uri string
	}{
		{0, "c", "v2/a/manifests/x"}, {1, "c", "v2/a/blobs/1"}, {2, "c", "v2/a/manifests/x"}, {3, "c", "v2/a/blobs/2"},
		{4, "d", "v2/a/manifests/x"}, {5, "c", "v2/b/blobs/1"}, {61, "c", "v2/a/blobs/3"}, {62, "c", "v2/a/blobs/4"},
	} {
		if err := w.Add("z", &trace.Record{Host: "h", Method: "GET", RemoteAddr: r.client, URI: r.uri, Status: 200, Written: 1, Time: time.Unix(1e9+r.second, 0)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	p, err := synth.Fit(context.Background(), openStore(t, dir), "z")
	if err != nil {
		t.Fatal(err)
	}
	// Layers 1 and 2 count for the first manifest, 2 and 3 for the second, none for that
	// of d.
	if p.PullsWithLayers != 2.0/3 || p.LayersPerPull != 2 {
		t.Errorf("%g of the pulls with layers, %g layers each; want 2/3 and 2", p.PullsWithLayers, p.LayersPerPull)
	}
}

func TestFitRefuses(t *testing.T) {
	dir := t.TempDir()
	w, err := store.NewWriter(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Add("z", &trace.Record{Host: "h", Method: "DELETE", RemoteAddr: "c", URI: "v2/a/manifests/b", Status: 202, ID: "1", Time: time.Unix(1e9, 0)}); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	s := openStore(t, dir)
	for _, z := range []string{"z", "y"} {
		if p, err := synth.Fit(context.Background(), s, z); err == nil {
			t.Errorf("zone %s: %+v", z, p)
		}
	}
}
