package tier

import (
	"github.com/prometheus/client_golang/prometheus"

	"example.org/slipway/internal/policy"
)

// counts are counts since the start that only the Store knows. Store.mu guards them.
type counts struct {
	fills, fillErrors, shared int64
	bypassed, dropped         int64
	damaged, ssdWritten       int64
}

// TierStatus is the status of one tier. Its counts begin at the start.
type TierStatus struct {
	// Limit is how many bytes may be taken. Capacity is how many of them the policy has
	// for objects.
	Limit, Capacity int64
	// Bytes is the size of the entries, and PinnedBytes is the size of the pinned
	// entries.
	Bytes, PinnedBytes int64
	Entries            int
	// Taken is how many bytes are in use. They belong to entries that are here, to
	// objects on their way in or out, and to objects that were given up and are still
	// being read. Taken is never above Limit, except right after a start with a smaller
	// limit. Most is the maximum of Taken.
	Taken, Most int64
	// Hits and Misses count as the policy does: an object that is on its way counts as
	// being at its destination. A miss in RAM may be a hit on the SSD.
	Hits, Misses, HitBytes int64
	Evictions              int64
}

// Status is the status of a cache. Its counts begin at the start.
type Status struct {
	RAM, SSD TierStatus
	// Fills is how many objects are being fetched. Demotions and Promotions count the
	// objects that are queued to go down or up, or are on their way.
	Fills, Demotions, Promotions int
	// Fetched counts the fetches, and Shared counts the requests that joined a fetch.
	// FetchErrors counts the fetches that failed, except for objects that do not exist.
	Fetched, Shared, FetchErrors int64
	// Bypassed counts the objects that were fetched and not taken into the cache. Dropped
	// counts the objects that were taken in and could not be kept, because there was no
	// room, or because the SSD is slow or fails.
	Bypassed, Dropped int64
	// Damaged counts the files that were not as they should be.
	Damaged int64
	// SSDWritten is how many bytes were written to the SSD. SSDBudget is how many more
	// may be written now, or -1 if there is no limit.
	SSDWritten, SSDBudget int64
	// SSDErrors counts the failures of the SSD. SSDUsable reports whether it can be
	// written at present.
	SSDErrors int64
	SSDUsable bool
}

// Status returns the status of the cache.
func (s *Store) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, t := &s.counts, s.two.Stats()
	st := Status{
		RAM: tierStatus(s.two.RAM(), &s.ram), SSD: tierStatus(s.two.SSD(), &s.ssd),
		Fills: s.running, Demotions: s.down.len(), Promotions: s.up.len(),
		Fetched: c.fills, Shared: c.shared, FetchErrors: c.fillErrors,
		Bypassed: c.bypassed, Dropped: c.dropped, Damaged: c.damaged,
		SSDWritten: c.ssdWritten, SSDBudget: -1,
	}
	st.RAM.Hits, st.RAM.Misses, st.RAM.HitBytes = t.RAMHits, t.SSDHits+t.Misses, t.RAMHitBytes
	st.SSD.Hits, st.SSD.Misses, st.SSD.HitBytes = t.SSDHits, t.Misses, t.SSDHitBytes
	st.RAM.Evictions, st.SSD.Evictions = t.RAMEvictions, t.SSDEvictions
	if s.o.SSDWritePerDay > 0 {
		st.SSDBudget = s.two.WriteBudget()
	}
	if s.disk != nil {
		st.SSDErrors, st.SSDUsable = s.disk.errors.Load(), s.disk.usable()
	}
	return st
}

func tierStatus(c *policy.Cache, r *room) TierStatus {
	return TierStatus{
		Limit: r.limit, Capacity: c.Limit(), Bytes: c.Bytes(), PinnedBytes: c.PinnedBytes(),
		Entries: c.Len(), Taken: r.used, Most: r.most,
	}
}

// Metrics returns the cache's collectors. The label tier is ram or ssd.
func (s *Store) Metrics() []prometheus.Collector {
	return []prometheus.Collector{collector{s}}
}

// collector reports a Status as metrics, all from one moment.
type collector struct{ s *Store }

type metric struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	get  func(*Status) float64
	tier func(*TierStatus) float64 // used instead of get
}

func metrics() []metric {
	const c, g = prometheus.CounterValue, prometheus.GaugeValue
	one := func(kind prometheus.ValueType, name, help string, get func(*Status) float64) metric {
		return metric{desc: prometheus.NewDesc("slipway_cache_"+name, help, nil, nil), kind: kind, get: get}
	}
	each := func(kind prometheus.ValueType, name, help string, get func(*TierStatus) float64) metric {
		return metric{desc: prometheus.NewDesc("slipway_cache_"+name, help, []string{"tier"}, nil), kind: kind, tier: get}
	}
	return []metric{
		each(g, "tier_bytes", "Bytes of the objects in a tier.", func(t *TierStatus) float64 { return float64(t.Bytes) }),
		each(g, "tier_taken_bytes", "Bytes in use in a tier, with those on their way and those given up but still being read.",
			func(t *TierStatus) float64 { return float64(t.Taken) }),
		each(g, "tier_limit_bytes", "Bytes that may be in use in a tier.", func(t *TierStatus) float64 { return float64(t.Limit) }),
		each(g, "tier_pinned_bytes", "Bytes of the pinned objects in a tier.", func(t *TierStatus) float64 { return float64(t.PinnedBytes) }),
		each(g, "tier_objects", "Objects in a tier.", func(t *TierStatus) float64 { return float64(t.Entries) }),
		each(c, "tier_hits_total", "Requests for objects in a tier.", func(t *TierStatus) float64 { return float64(t.Hits) }),
		each(c, "tier_hit_bytes_total", "Sizes of the objects that were asked for and in a tier.", func(t *TierStatus) float64 { return float64(t.HitBytes) }),
		each(c, "tier_misses_total", "Requests for objects not in a tier, nor in one above.", func(t *TierStatus) float64 { return float64(t.Misses) }),
		each(c, "tier_evictions_total", "Objects a tier gave up to make room.", func(t *TierStatus) float64 { return float64(t.Evictions) }),
		one(g, "fills", "Objects being fetched.", func(s *Status) float64 { return float64(s.Fills) }),
		one(c, "fills_total", "Objects fetched.", func(s *Status) float64 { return float64(s.Fetched) }),
		one(c, "fill_errors_total", "Fetches that failed.", func(s *Status) float64 { return float64(s.FetchErrors) }),
		one(c, "shared_total", "Requests that joined a fetch under way.", func(s *Status) float64 { return float64(s.Shared) }),
		one(g, "demotions_queued", "Objects on their way from RAM to the SSD.", func(s *Status) float64 { return float64(s.Demotions) }),
		one(g, "promotions_queued", "Objects on their way from the SSD to RAM.", func(s *Status) float64 { return float64(s.Promotions) }),
		one(c, "bypassed_total", "Objects fetched and not taken in.", func(s *Status) float64 { return float64(s.Bypassed) }),
		one(c, "dropped_total", "Objects lost for want of room or by a slow or failing SSD.", func(s *Status) float64 { return float64(s.Dropped) }),
		one(c, "damaged_total", "Files that were not what they should be.", func(s *Status) float64 { return float64(s.Damaged) }),
		one(c, "ssd_written_bytes_total", "Bytes of objects written to the SSD.", func(s *Status) float64 { return float64(s.SSDWritten) }),
		one(g, "ssd_budget_bytes", "Bytes that may be written to the SSD now; -1 without a limit.", func(s *Status) float64 { return float64(s.SSDBudget) }),
		one(c, "ssd_errors_total", "Failures of the SSD.", func(s *Status) float64 { return float64(s.SSDErrors) }),
		one(g, "ssd_usable", "1 if the SSD is in use, 0 if not.", func(s *Status) float64 {
			if s.SSDUsable {
				return 1
			}
			return 0
		}),
	}
}

// Describe implements prometheus.Collector.
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range metrics() {
		ch <- m.desc
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	st := c.s.Status()
	for _, m := range metrics() {
		if m.get != nil {
			ch <- prometheus.MustNewConstMetric(m.desc, m.kind, m.get(&st))
			continue
		}
		ch <- prometheus.MustNewConstMetric(m.desc, m.kind, m.tier(&st.RAM), policy.RAM.String())
		ch <- prometheus.MustNewConstMetric(m.desc, m.kind, m.tier(&st.SSD), policy.SSD.String())
	}
}
