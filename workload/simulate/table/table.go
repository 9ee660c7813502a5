// Package table writes the results of simulations as CSV, for spreadsheets and other
// programs. The columns are those of the JSON reports, in a fixed order.
package table

import (
	"encoding/csv"
	"io"
	"strconv"

	"example.org/slipway/workload/simulate"
)

// Caches writes a row for each cache, after a row of names unless header is false. Sizes
// are in bytes and ratios are shares from 0 to 1. A ratio that is not defined is empty.
func Caches(w io.Writer, r *simulate.CacheReport, header bool) error {
	var rows [][]string
	if header {
		rows = append(rows, []string{"zone", "policy", "ram_bytes", "ssd_policy", "ssd_bytes", "shards", "requests", "hits", "ram_hits", "bytes", "hit_bytes",
			"object_ratio", "byte_ratio", "ram_ratio", "ram_warm", "combined_warm", "not_compulsory", "backend_bytes", "ssd_write_bytes", "ram_evictions", "ssd_evictions"})
	}
	for i := range r.Results {
		x := &r.Results[i]
		c := &x.Config
		ssd := ""
		if c.SSD > 0 {
			ssd = c.SSDPolicy
		}
		ramWarm, allWarm := fraction(x.RAMWarm), fraction(x.CombinedWarm)
		if x.RAMNeverEvicted {
			ramWarm = ""
		}
		if x.NeverFull() {
			allWarm = ""
		}
		rows = append(rows, []string{r.Zone, c.Policy, whole(c.RAM), ssd, whole(c.SSD), strconv.Itoa(c.Shards), whole(x.Requests), whole(x.Hits), whole(x.RAMHits), whole(x.Bytes), whole(x.HitBytes),
			fraction(x.ObjectRatio), fraction(x.ByteRatio), fraction(x.RAMRatio), ramWarm, allWarm, fraction(x.NotCompulsory), whole(x.BackendBytes), whole(x.SSDWriteBytes), whole(x.RAMEvictions), whole(x.SSDEvictions)})
	}
	return csv.NewWriter(w).WriteAll(rows)
}

// Prefetchers writes a row for each prefetcher, after a row of names unless header is false.
// Thresholds are in seconds.
func Prefetchers(w io.Writer, r *simulate.PrefetchReport, header bool) error {
	var rows [][]string
	if header {
		rows = append(rows, []string{"zone", "algorithm", "lm_s", "ml_s", "layer_gets", "hits", "prefetches", "used", "bytes", "refreshes", "hits_per_prefetch", "hits_per_decision",
			"precision", "recall", "wasted_bytes", "peak_bytes", "pinned_hits", "pinned_peak_bytes"})
	}
	for i := range r.Results {
		x := &r.Results[i]
		lm := ""
		if x.Config.Algorithm != simulate.Manifest {
			lm = seconds(x.Config.LM.Seconds())
		}
		rows = append(rows, []string{r.Zone, x.Config.Algorithm, lm, seconds(x.Config.ML.Seconds()), whole(x.LayerGets), whole(x.Hits), whole(x.Prefetches), whole(x.Used), whole(x.Bytes), whole(x.Refreshes),
			fraction(x.HitsPerPrefetch), fraction(x.HitsPerDecision), fraction(x.Precision), fraction(x.Recall), whole(x.WastedBytes), whole(x.PeakBytes), whole(x.PinnedHits), whole(x.PinnedPeakBytes)})
	}
	return csv.NewWriter(w).WriteAll(rows)
}

func whole(n int64) string      { return strconv.FormatInt(n, 10) }
func fraction(v float64) string { return strconv.FormatFloat(v, 'f', 6, 64) }
func seconds(v float64) string  { return strconv.FormatFloat(v, 'f', -1, 64) }
