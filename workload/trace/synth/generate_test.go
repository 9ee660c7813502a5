package synth_test

import (
	"context"
	"errors"
	"hash/fnv"
	"math"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/synth"
)

func zone(t testing.TB, name string) *synth.Profile {
	t.Helper()
	p, err := synth.Zone(name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// sums generates all zones at once and returns a hash of each.
func sums(t *testing.T, seed uint64) map[string]uint64 {
	t.Helper()
	out := map[string]uint64{}
	var mu sync.Mutex
	var jobs []synth.Job
	for _, name := range synth.Zones() {
		h := fnv.New64a()
		var line []byte
		jobs = append(jobs, synth.Job{Profile: zone(t, name), Options: synth.Options{Seed: seed, Requests: 8_000, Days: 2},
			Add: func(r *trace.Record) error {
				line = r.AppendTrace(line[:0])
				h.Write(line) //nolint:errcheck // a hash
				return nil
			},
			Done: func() error {
				mu.Lock()
				defer mu.Unlock()
				out[name] = h.Sum64()
				return nil
			}})
	}
	if err := synth.GenerateAll(context.Background(), jobs); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestSameSeedSameTraceOnAnyNumberOfProcessors(t *testing.T) {
	before := runtime.GOMAXPROCS(1)
	defer runtime.GOMAXPROCS(before)
	one := sums(t, 7)
	runtime.GOMAXPROCS(8)
	eight, other := sums(t, 7), sums(t, 8)
	if len(one) != len(synth.Zones()) {
		t.Fatalf("%d zones were done", len(one))
	}
	seen := map[uint64]string{}
	for z, h := range one {
		if eight[z] != h {
			t.Errorf("%s differs between 1 and 8 processors", z)
		}
		if other[z] == h {
			t.Errorf("%s is the same with another seed", z)
		}
		if seen[h] != "" {
			t.Errorf("%s and %s are the same", z, seen[h])
		}
		seen[h] = z
	}
}

// TestRecordsHaveTheFormOfTheArchive checks every field of every record, and what must
// match between records: an upload begins before it ends, and a layer always has the same
// size.
func TestRecordsHaveTheFormOfTheArchive(t *testing.T) {
	hex8, hex10 := regexp.MustCompile(`^[0-9a-f]{8}$`), regexp.MustCompile(`^[0-9a-f]{10}$`)
	uri := regexp.MustCompile(`^v2$|^v2/([0-9a-f]{8}/){1,4}(manifests/[0-9a-f]{8}|blobs/[0-9a-f]{8}|blobs/uploads/([0-9a-f]{8})?)$`)
	sizes, ids, patched := map[string]int64{}, map[string]bool{}, map[string]bool{}
	depths, posts, ends := map[int]int{}, 0, 0
	var last time.Time
	start := time.Date(2020, 2, 28, 0, 0, 0, 0, time.UTC)
	err := zone(t, "stg").Generate(context.Background(), &synth.Options{Seed: 3, Start: start, Days: 1, Requests: 60_000}, func(r *trace.Record) error {
		if !hex8.MatchString(r.Host) || !hex8.MatchString(r.RemoteAddr) || !hex10.MatchString(r.ID) || !uri.MatchString(r.URI) || r.UserAgent == "" {
			t.Fatalf("record %+v", r)
		}
		if ids[r.ID] {
			t.Fatalf("id %s twice", r.ID)
		}
		ids[r.ID] = true
		if r.Time.Before(last) || r.Time.Before(start) || !r.Time.Before(start.AddDate(0, 0, 1)) || r.Duration <= 0 {
			t.Fatalf("at %v after %v for %v", r.Time, last, r.Duration)
		}
		last = r.Time
		target := trace.ParseURI(r.URI)
		if target.Kind != trace.Ping {
			depths[strings.Count(target.Repo, "/")]++
		}
		switch {
		case target.Kind == trace.Blob:
			if n, ok := sizes[target.Ref]; ok && n != r.Written {
				t.Fatalf("layer %s has %d bytes and %d", target.Ref, n, r.Written)
			}
			sizes[target.Ref] = r.Written
		case r.Method == "POST" && r.Status == 202:
			posts++
		case r.Method == "PATCH":
			patched[r.URI] = true
		case r.Method == "PUT" && target.Kind == trace.Upload:
			ends++
			delete(patched, r.URI)
			if ends > posts || r.Received <= 0 || r.Written != 0 {
				t.Fatalf("upload %d after %d begun: %+v", ends, posts, r)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if posts-ends > 5 || len(patched) > 5 { // sessions cut off at the requested number of requests
		t.Errorf("%d uploads begun, %d ended, %d in chunks without an end", posts, ends, len(patched))
	}
	total := float64(depths[0] + depths[1] + depths[2] + depths[3])
	if f := float64(depths[1]) / total; math.Abs(f-0.985) > 0.01 {
		t.Errorf("%.3f of the URIs have five segments, want 0.985", f)
	}
}

func TestOptions(t *testing.T) {
	count := func(o synth.Options) (n int64, days int64, err error) {
		var first, last time.Time
		err = zone(t, "dev").Generate(context.Background(), &o, func(r *trace.Record) error {
			if n == 0 {
				first = r.Time
			}
			last = r.Time
			n++
			return nil
		})
		return n, int64(math.Ceil(last.Sub(first).Hours() / 24)), err
	}
	for _, tt := range []struct {
		name           string
		o              synth.Options
		requests, days int64
	}{
		{"days give requests", synth.Options{Days: 5}, 35_266, 5},
		{"requests give days", synth.Options{Requests: 35_266}, 35_266, 5},
		{"both", synth.Options{Requests: 1000, Days: 2}, 1000, 2},
		{"one", synth.Options{Requests: 1, Days: 1}, 1, 0},
	} {
		n, days, err := count(tt.o)
		if err != nil || n != tt.requests || days != tt.days {
			t.Errorf("%s: %d requests in %d days, %v; want %d in %d", tt.name, n, days, err, tt.requests, tt.days)
		}
	}
	for _, o := range []synth.Options{{Requests: -1}, {Days: -1}, {Days: 1 << 40}, {Start: time.Date(1969, 1, 1, 0, 0, 0, 0, time.UTC)}, {Start: time.Date(2199, 1, 1, 0, 0, 0, 0, time.UTC), Days: 800}} {
		if n, _, err := count(o); err == nil || n > 0 {
			t.Errorf("%+v: %d requests, %v", o, n, err)
		}
	}
	if n, err := synth.Plan([]*synth.Profile{zone(t, "dev"), zone(t, "dal")}, &synth.Options{}); err != nil || n[0] != 380_877 || n[1] != 20_856_543 {
		t.Errorf("by default %d requests, %v", n, err)
	}
	if _, err := synth.Zone("nowhere"); err == nil {
		t.Error("zone nowhere exists")
	}
}

func TestGenerateEnds(t *testing.T) {
	stop := errors.New("stop")
	n := 0
	err := zone(t, "dal").Generate(context.Background(), &synth.Options{Requests: 1000}, func(*trace.Record) error {
		if n++; n == 10 {
			return stop
		}
		return nil
	})
	if err != stop || n != 10 {
		t.Errorf("after %d records: %v", n, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	n = 0
	err = zone(t, "dal").Generate(ctx, &synth.Options{Requests: 1_000_000}, func(*trace.Record) error { n++; cancel(); return nil })
	if !errors.Is(err, context.Canceled) || n > 50_000 {
		t.Errorf("canceled after the first record, %d came: %v", n, err)
	}
}

// FuzzGenerate tries profiles and options of all kinds. Either they are refused, or
// exactly the requested number of records is generated, in order of time and within the
// days.
func FuzzGenerate(f *testing.F) {
	f.Add(uint64(1), int64(500), int(2), "mix", 0.2, 1.0)
	f.Add(uint64(2), int64(100), int(1), "pause", 80000.0, 0.001)
	f.Add(uint64(3), int64(300), int(1), "shares", 0.0, 0.0)
	f.Add(uint64(4), int64(300), int(3), "load", 1e9, 1e-9)
	f.Add(uint64(5), int64(300), int(3), "pulls", 100.0, 1000.0)
	f.Add(uint64(6), int64(300), int(3), "latency", math.NaN(), math.Inf(1))
	f.Fuzz(func(t *testing.T, seed uint64, requests int64, days int, what string, a, b float64) {
		p := zone(t, synth.Zones()[seed%7])
		mutate(p, what, a, b)
		o := synth.Options{Seed: seed, Requests: requests % 3000, Days: days % 20}
		if o.Requests == 0 {
			o.Requests = 1
		}
		n := int64(0)
		var last time.Time
		err := p.Generate(context.Background(), &o, func(r *trace.Record) error {
			if n++; r.Time.Before(last) || r.Duration < 0 || r.Written < 0 || r.Received < 0 || trace.ParseURI(r.URI).Kind == trace.Other {
				t.Fatalf("record %d: %+v", n, r)
			}
			last = r.Time
			return nil
		})
		if err == nil && n != o.Requests || err != nil && n != 0 {
			t.Fatalf("%d records of %d: %v", n, o.Requests, err)
		}
		end := time.Date(2017, 6, 20, 0, 0, 0, 0, time.UTC).AddDate(0, 0, max(o.Days, 1))
		if err == nil && o.Days > 0 && !last.Before(end) {
			t.Fatalf("last record at %v, end is %v", last, end)
		}
	})
}

// mutate changes one part of a profile.
func mutate(p *synth.Profile, what string, a, b float64) {
	switch what {
	case "mix":
		p.Mix = synth.Mix{Ping: a, ManifestPut: b, BlobGet: 1 - a - b}
	case "pause":
		p.Load.PausesPerDay, p.Load.PauseMean, p.Load.PauseMin = a, time.Duration(b*1e9), 0
	case "shares":
		p.Manifests, p.HotLayers, p.LayerRepos, p.Clients = []float64{a}, []float64{b}, nil, []float64{1}
	case "load":
		p.Load.Hour, p.Load.Weekday = [24]float64{1: a}, [7]float64{3: b}
	case "pulls":
		p.LayersPerPull, p.PingRun, p.PullsWithLayers = a, b, 1
	case "latency":
		p.Latency.Spread, p.Latency.BytesPerSecond = a, b
	default:
		n, _ := strconv.Atoi(what)
		p.Hosts, p.Burst, p.NewLayers = n, a, b
	}
}
