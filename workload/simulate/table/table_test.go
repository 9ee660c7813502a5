package table_test

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"strconv"
	"strings"
	"testing"
	"time"

	"example.org/slipway/workload/simulate"
	"example.org/slipway/workload/simulate/table"
)

// rowsOf reads what is written, with names as keys.
func rowsOf(t *testing.T, write func(io.Writer, bool) error) (rows []map[string]string) {
	t.Helper()
	var b bytes.Buffer
	if err := errors.Join(write(&b, true), write(&b, false)); err != nil { // as for two zones
		t.Fatal(err)
	}
	all, err := csv.NewReader(&b).ReadAll()
	if err != nil || len(all) < 3 || len(all)%2 != 1 {
		t.Fatalf("%d rows: %v", len(all), err)
	}
	for _, r := range all[1:] {
		row := map[string]string{}
		for i, name := range all[0] {
			row[name] = r[i]
		}
		rows = append(rows, row)
	}
	return rows
}

// sameAsJSON checks that the columns of a row that have the name of a key have its value.
func sameAsJSON(t *testing.T, row map[string]string, result any) {
	t.Helper()
	b, err := json.Marshal(result)
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]any{}
	if err := json.Unmarshal(b, &values); err != nil {
		t.Fatal(err)
	}
	compared := 0
	for name, text := range row {
		want, ok := values[name].(float64)
		if !ok {
			continue
		}
		got, err := strconv.ParseFloat(text, 64)
		if text == "" {
			continue
		}
		if d := got - want; err != nil || d > 1e-6 || d < -1e-6 {
			t.Errorf("%s is %s in CSV and %v in JSON", name, text, want)
		}
		compared++
	}
	if compared < 8 {
		t.Errorf("only %d columns have the name of a key: %v", compared, row)
	}
}

func isXML(t *testing.T, svg string, has ...string) {
	t.Helper()
	for d := xml.NewDecoder(strings.NewReader(svg)); ; {
		if _, err := d.Token(); err == io.EOF {
			break
		} else if err != nil {
			t.Fatalf("%v in\n%s", err, svg)
		}
	}
	for _, want := range append(has, "xmlns=\"http://www.w3.org/2000/svg\"") {
		if !strings.Contains(svg, want) {
			t.Errorf("the picture lacks %s", want)
		}
	}
}

// TestTables checks that CSV has the figures of JSON, and that pictures are documents.
func TestTables(t *testing.T) {
	t.Parallel()
	result := func(policy string, ram, ssd, hits int64) simulate.CacheResult {
		return simulate.CacheResult{Config: simulate.CacheConfig{Policy: policy, RAM: ram, SSD: ssd, SSDPolicy: "lru", Shards: 2}, Requests: 1000, Hits: hits, RAMHits: hits / 3, Bytes: 1 << 40, HitBytes: 1<<39 + 1,
			ObjectRatio: float64(hits) / 1000, ByteRatio: 0.123456789, RAMRatio: 1.0 / 3, RAMWarm: 0.25, CombinedWarm: 0.75, NotCompulsory: 0.5, BackendBytes: 77, SSDWriteBytes: 3, RAMEvictions: 4, SSDEvictions: 5, SSDNeverEvicted: ssd == 0}
	}
	caches := &simulate.CacheReport{Zone: `a,"b`, Results: []simulate.CacheResult{result("lru", 100, 0, 200), result("lru", 200, 0, 300), result("exec:./a b", 100, 50, 400)}}
	rows := rowsOf(t, func(w io.Writer, header bool) error { return table.Caches(w, caches, header) })
	for i, row := range rows {
		x := caches.Results[i%3]
		sameAsJSON(t, row, x)
		if row["zone"] != caches.Zone || row["policy"] != x.Config.Policy || row["ram_bytes"] != strconv.FormatInt(x.Config.RAM, 10) || row["shards"] != "2" {
			t.Errorf("row %d is %v", i, row)
		}
		if row["combined_warm"] == "" || row["ram_warm"] == "" || (row["ssd_policy"] == "") != (x.Config.SSD == 0) {
			t.Errorf("row %d has a ratio or a policy that is not defined, or lacks one: %v", i, row)
		}
	}
	for _, never := range []struct {
		ram, ssd, noSSD bool
		want            string
	}{{true, true, true, "/"}, {true, true, false, "/"}, {false, true, true, "0.250000/0.750000"}, {false, true, false, "0.250000/"}, {true, false, false, "/0.750000"}} {
		x := result("lru", 100, 50, 200)
		x.RAMNeverEvicted, x.SSDNeverEvicted = never.ram, never.ssd
		if never.noSSD {
			x.Config.SSD = 0
		}
		one := &simulate.CacheReport{Results: []simulate.CacheResult{x}}
		row := rowsOf(t, func(w io.Writer, header bool) error { return table.Caches(w, one, header) })[0]
		if got := row["ram_warm"] + "/" + row["combined_warm"]; got != never.want {
			t.Errorf("%+v: the ratios of a warm cache are %q", never, got)
		}
	}
	isXML(t, caches.SVG(), "class=\"line s0", "by size of the memory")
	single := &simulate.CacheReport{Zone: "<z>", Results: caches.Results[:1]}
	isXML(t, single.SVG(), "lru 100")
	prefetch := &simulate.PrefetchReport{Zone: "z", Results: []simulate.PrefetchResult{
		{Config: simulate.PrefetchConfig{Algorithm: "algorithm1", LM: time.Hour, ML: 90 * time.Second}, LayerGets: 9, Hits: 8, Prefetches: 7, Used: 6, Bytes: 5, HitsPerPrefetch: 8.0 / 7, Precision: 6.0 / 7, Recall: 8.0 / 9},
		{Config: simulate.PrefetchConfig{Algorithm: simulate.Manifest, ML: time.Hour}, LayerGets: 9}}}
	for i, row := range rowsOf(t, func(w io.Writer, header bool) error { return table.Prefetchers(w, prefetch, header) }) {
		sameAsJSON(t, row, prefetch.Results[i%2])
		if want := []string{"3600", ""}[i%2]; row["lm_s"] != want {
			t.Errorf("row %d has lm_s %q", i, row["lm_s"])
		}
	}
}
