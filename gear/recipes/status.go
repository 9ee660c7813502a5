package recipes

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/gearfacts"
	"example.org/slipway/registry/storage"
)

// Status describes what is kept as recipes.
type Status struct {
	// Layers is the number of dropped layers. The other fields are their size and the
	// size of their recipes, in bytes.
	Layers      int64 `json:"layers"`
	Bytes       int64 `json:"bytes"`
	RecipeBytes int64 `json:"recipe_bytes"`
	// Waiting is the number of layers that have a recipe as well as an object, and
	// WaitingBytes their size.
	Waiting      int64 `json:"waiting"`
	WaitingBytes int64 `json:"waiting_bytes"`
	// Refused is the number of layers that got no recipe. They stay as they are.
	Refused      int64 `json:"refused"`
	RefusedBytes int64 `json:"refused_bytes"`
	// Unreadable is the number of packs that dropped layers need and that were found
	// damaged, unreadable or missing. UnreadablePacks has at most 100 of them.
	Unreadable      int64            `json:"unreadable"`
	UnreadablePacks []UnreadablePack `json:"unreadable_packs,omitempty"`
	// Pass is the pass that is running; nil: none.
	Pass *Progress `json:"pass,omitempty"`
}

// Progress says what a running pass has done.
type Progress struct {
	// Since is when the pass began.
	Since time.Time `json:"since"`
	// Report counts the work up to the last portion that was finished.
	Report
}

// UnreadablePack is a damaged pack under dropped layers.
type UnreadablePack struct {
	// Key is the key of the pack in the object store.
	Key string `json:"key"`
	// Damage says what is wrong.
	Damage string `json:"damage"`
}

// maxUnreadable is how many damaged packs a Status lists.
const maxUnreadable = 100

// Status returns what is currently kept as recipes.
func (s *Store) Status(ctx context.Context) (st Status, err error) {
	n, err := gearfacts.NewRecipes(s.cat.DB).RecipeCounts(ctx)
	if err != nil {
		return st, fmt.Errorf("count recipes: %w", err)
	}
	for state, c := range n {
		switch state := gearfacts.RecipeState(state); {
		case state >= gearfacts.RecipeStands:
			st.Layers += c.Layers
			st.Bytes += c.Bytes
			st.RecipeBytes += c.RecipeBytes
		case state == gearfacts.RecipeRefused:
			st.Refused, st.RefusedBytes = c.Layers, c.Bytes
		default:
			st.Waiting += c.Layers
			st.WaitingBytes += c.Bytes
		}
	}
	checks := gearfacts.NewChecks(s.cat.DB)
	if st.Unreadable, err = checks.CountDamaged(ctx); err != nil {
		return st, fmt.Errorf("count damaged packs: %w", err)
	}
	list, err := checks.Damaged(ctx, maxUnreadable)
	s.mu.Lock()
	st.Pass = s.pass
	s.mu.Unlock()
	for _, p := range list {
		st.UnreadablePacks = append(st.UnreadablePacks, UnreadablePack{Key: storage.PackPrefix + hex.EncodeToString(p.Digest[:]), Damage: p.Damage})
	}
	return st, err
}

// passes records what the running pass has done; nil: no pass is running.
func (s *Store) passes(p *Progress) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pass = p
}

// metrics has the metrics of a Store and its Keeper.
type metrics struct {
	layers, bytes, recipeBytes prometheus.Gauge
	rebuilds                   *prometheus.CounterVec
	rebuiltBytes               prometheus.Counter
	took                       prometheus.Histogram
	failures                   prometheus.Counter
	unreadable                 prometheus.GaugeFunc
	scrubbed                   *prometheus.CounterVec
	scrubbedBytes              prometheus.Counter
	scrubBehind                prometheus.Gauge
	repaired                   prometheus.Counter
	unprotected                prometheus.Gauge
}

func newMetrics(cat *catalog.Catalog) *metrics {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: "slipway_recipes_" + name, Help: help})
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "slipway_recipes_" + name, Help: help})
	}
	m := &metrics{
		layers:      gauge("dropped_layers", "Layers that are kept as recipes, as of the last pass."),
		bytes:       gauge("dropped_bytes", "Bytes of the layers that are kept as recipes."),
		recipeBytes: gauge("stored_bytes", "Bytes of the recipes of dropped layers."),
		rebuilds: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "slipway_recipes_rebuilds_total",
			Help: "Rebuilds of dropped layers for whoever read them, by result: done; failed, as packs are damaged or missing; given up, as nobody waited any more."}, []string{"result"}),
		rebuiltBytes: counter("rebuilt_bytes_total", "Bytes of layers that were rebuilt for whoever read them."),
		took: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "slipway_recipes_rebuild_seconds", Help: "Time that rebuilds of whole layers took.",
			Buckets: prometheus.ExponentialBuckets(0.05, 4, 8)}),
		scrubbed: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "slipway_recipes_scrubbed_packs_total",
			Help: "Packs of dropped layers that the scrub has read whole, by result: sound; damaged, which includes missing and unreadable."}, []string{"result"}),
		scrubbedBytes: counter("scrubbed_bytes_total", "Bytes of packs that the scrub has read."),
		repaired:      counter("repaired_packs_total", "Damaged packs that were made again from parity."),
		unprotected:   gauge("unprotected_packs", "Packs of dropped layers for which parity could not be made, as of the last pass."),
		scrubBehind:   gauge("scrub_behind_bytes", "Bytes of the packs of dropped layers that were not read within storage.rebuild.scrub_every."),
		failures:      counter("failures_total", "Layers for which a recipe could not be made, proven or put in their place."),
	}
	// The gauge asks the catalogue, so that what an earlier process or a reader found counts.
	m.unreadable = prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "slipway_recipes_unreadable_packs",
		Help: "Packs that dropped layers need and that were found damaged, unreadable or missing; -1 if the catalogue does not answer."}, func() float64 {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		n, err := gearfacts.NewChecks(cat.DB).CountDamaged(ctx)
		if err != nil {
			return -1
		}
		return float64(n)
	})
	for _, result := range []string{"done", "failed", "given up"} {
		m.rebuilds.WithLabelValues(result) // 0 before the first one, so that an alert has a series
	}
	for _, result := range []string{"sound", "damaged"} {
		m.scrubbed.WithLabelValues(result)
	}
	return m
}

// rebuilt counts a rebuild.
func (m *metrics) rebuilt(size int64, took time.Duration, err error) {
	if errors.Is(err, context.Canceled) {
		m.rebuilds.WithLabelValues("given up").Inc()
		return
	}
	if err != nil {
		m.rebuilds.WithLabelValues("failed").Inc()
		return
	}
	m.rebuilds.WithLabelValues("done").Inc()
	m.rebuiltBytes.Add(float64(size))
	m.took.Observe(took.Seconds())
}

// count sets the gauges.
func (m *metrics) count(ctx context.Context, cat *catalog.Catalog) error {
	st, err := (&Store{cat: cat}).Status(ctx)
	m.layers.Set(float64(st.Layers))
	m.bytes.Set(float64(st.Bytes))
	m.recipeBytes.Set(float64(st.RecipeBytes))
	return err
}

// Metrics returns the collectors of the store and its keeper.
func (s *Store) Metrics() []prometheus.Collector {
	m := s.metrics
	return []prometheus.Collector{m.layers, m.bytes, m.recipeBytes, m.rebuilds, m.rebuiltBytes, m.took, m.failures, m.unreadable, m.scrubbed, m.scrubbedBytes, m.scrubBehind, m.repaired, m.unprotected}
}
