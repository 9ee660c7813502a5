package analyze_test

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"example.org/slipway/workload/analyze"
	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/store"
)

// uriSource holds the requests of a file of URIs. The file has no other data.
type uriSource struct{ batches []*store.Batch }

func (u *uriSource) Zones() []store.Zone { return []store.Zone{{Name: "dal09"}} }

func (u *uriSource) Scan(_ context.Context, _ store.Query, fn func(*store.Batch) error) error {
	for _, b := range u.batches {
		if err := fn(b); err != nil {
			return err
		}
	}
	return nil
}

// readSample reads the real sample. It skips the test if the sample is missing.
func readSample(t *testing.T) *uriSource {
	t.Helper()
	dir := cmp.Or(os.Getenv("SLIPWAY_TRACES"), filepath.Join("..", "..", "..", "shared", "traces"))
	f, err := os.Open(filepath.Join(dir, "dal09_3d_get_uris.csv.zst"))
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("the real traces are not here; SLIPWAY_TRACES names their directory")
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := zstd.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	repos, refs := map[string]store.Symbol{"": store.None}, map[string]store.Symbol{"": store.None}
	intern := func(m map[string]store.Symbol, s string) store.Symbol {
		if _, ok := m[s]; !ok {
			m[s] = store.Symbol(len(m))
		}
		return m[s]
	}
	u := &uriSource{}
	var reqs []req
	var n int64
	lines := bufio.NewScanner(z)
	for lines.Scan() {
		target := trace.ParseURI(lines.Text())
		r := req{dur: -1, size: -1, method: store.GET, kind: target.Kind, repo: intern(repos, target.Repo),
			user: intern(repos, target.Namespace()), ref: intern(refs, target.Ref)}
		if target.Kind == trace.Blob {
			r.digest = r.ref
		}
		n++
		if reqs = append(reqs, r); len(reqs) == 1<<16 {
			u.batches, reqs = append(u.batches, batch("dal09", reqs)), reqs[:0]
		}
	}
	if lines.Err() != nil {
		t.Fatal(lines.Err())
	}
	if n != 725_242 {
		t.Fatalf("the sample has %d lines, want 725,242", n)
	}
	u.batches = append(u.batches, batch("dal09", reqs))
	return u
}

// TestRealSample compares with numbers that were measured on the real sample by other
// means.
func TestRealSample(t *testing.T) {
	src := readSample(t)
	rep, err := analyze.Run(context.Background(), src, nil)
	if err != nil {
		t.Fatal(err)
	}
	byURI, err := analyze.Run(context.Background(), src, &analyze.Options{LayersBy: analyze.ByURI})
	if err != nil {
		t.Fatal(err)
	}
	const percent, decimals, number = "%.1f %%", "%.2f", "%.0f"
	for _, c := range []struct {
		rep                   *analyze.Report
		figure, value, format string
		want                  string
	}{
		{rep, "5a", "pings in all GETs", percent, "46.0 %"},
		{rep, "5a", "layers in all GETs", percent, "35.7 %"},
		{rep, "5a", "manifests in all GETs", percent, "18.3 %"},
		{rep, "5a", "layers per manifest", decimals, "1.96"},
		{rep, "10a", "items", number, "81335"},
		{rep, "10a", "top 1 %", percent, "44.0 %"},
		{rep, "10a", "items requested once", "%.0f %%", "68 %"},
		{rep, "10a", "slope", decimals, "0.92"},
		{rep, "11a", "rank 1", percent, "2.8 %"},
		{rep, "11a", "top 10", percent, "13.3 %"},
		{byURI, "10a", "items", number, "108325"},
		{byURI, "10a", "top 1 %", percent, "42.9 %"},
		{rep, "10b", "items", number, "12988"},
		{rep, "10b", "top 1 %", percent, "84.8 %"},
		{rep, "10b", "items requested once", "%.0f %%", "84 %"},
		{rep, "10b", "slope", decimals, "1.25"},
		{rep, "11b", "rank 1", percent, "7.0 %"},
		{rep, "11b", "top 10", percent, "42.1 %"},
		{rep, "10c", "items", number, "8881"},
		{rep, "10c", "top 1 %", percent, "55.9 %"},
		{rep, "10c", "slope", decimals, "1.07"},
		{rep, "11c", "top 10", percent, "28.4 %"},
		{rep, "10-users", "items", number, "3162"},
		{rep, "11-users", "rank 1", percent, "30.6 %"},
		{rep, "11-users", "top 10", percent, "51.0 %"},
	} {
		v, ok := c.rep.Figure(c.figure).Zone("dal09").Value(c.value)
		if strings.HasSuffix(c.format, "%%") {
			v *= 100
		}
		if got := fmt.Sprintf(c.format, v); !ok || got != c.want {
			t.Errorf("figure %s: %s is %s, want %s", c.figure, c.value, got, c.want)
		}
	}
	// The file has neither sizes nor durations nor clients. The report must say so and
	// not count them.
	for figure, unknown := range map[string]int64{"6a": 259_274, "6b": 132_610, "8a": 259_274, "8d": 132_610, "9": 259_274, "12a": 132_610} {
		r := rep.Figure(figure).Zone("dal09")
		if r.Unknown != unknown || r.Requests != 0 {
			t.Errorf("figure %s counts %d requests and leaves out %d, want 0 and %d", figure, r.Requests, r.Unknown, unknown)
		}
	}
}
