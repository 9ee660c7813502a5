package service

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"example.org/slipway/oci"
	"example.org/slipway/oci/volref"
	"example.org/slipway/registry"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/volumefacts"
	"example.org/slipway/volume/block"
)

// States of an image that is not (only) built.
const (
	StateWaiting  = "waiting"
	StateBuilding = "building"
	StateFailed   = "failed"
)

// ImageStatus is what is known of an image as volumes.
type ImageStatus struct {
	// Records of what can be used, by file system.
	Records []json.RawMessage
	// State is empty where nothing is to be done; else that of the file system that
	// is furthest from done, and Reason why it is not.
	State, Reason string
	// Done bytes of Total are written; 0 where that is not known.
	Done, Total int64
}

// Image returns what is known of an image that a repository shows. Errors:
// MANIFEST_UNKNOWN.
func (s *Service) Image(ctx context.Context, repo string, d oci.Digest) (ImageStatus, error) {
	st := ImageStatus{Records: []json.RawMessage{}}
	if _, err := s.shows(ctx, repo, d); err != nil {
		return st, err
	}
	list, err := s.facts.ImagesOf(ctx, repo, d)
	if err != nil {
		return st, registry.Unavailable(err)
	}
	others, err := s.elsewhere(ctx, list)
	if err != nil {
		return st, registry.Unavailable(err)
	}
	store, away := s.storage.soon(ctx)
	for _, v := range list {
		if v.Dropped {
			continue
		}
		state, reason := s.stateOf(v, others, true)
		switch {
		case v.Place != "" && away == nil && placeName(store.Place()) == v.Place:
			st.Records = append(st.Records, v.Record)
		case v.Place != "" && state == "":
			state, reason = StateFailed, notServed(v, away)
		}
		if rank(state) > rank(st.State) {
			st.State, st.Reason = state, reason
		}
		if b := s.buildOf(v.ID); b != nil {
			st.Done, st.Total = b.state()
		}
	}
	return st, nil
}

// rank orders states by how far they are from done.
func rank(state string) int {
	return slices.Index([]string{"", StateFailed, StateWaiting, StateBuilding}, state)
}

// notServed says why a record is not served.
func notServed(v volumefacts.Image, away error) string {
	if away != nil {
		return errAway.Error()
	}
	var p volref.Place
	if err := json.Unmarshal([]byte(v.Place), &p); err != nil {
		return "its volumes are at an unknown place"
	}
	return fmt.Sprintf("its volumes are in other storage (%s of cluster %s) than the registry uses now; slipway volume build builds them again", p.Driver, p.Cluster)
}

// stateOf tells the state of one image in one file system, to whoever may pull it
// or to the operator.
func (s *Service) stateOf(v volumefacts.Image, others map[int64]bool, public bool) (state, reason string) {
	switch {
	case s.buildOf(v.ID) != nil || others[v.ID]:
		return StateBuilding, ""
	case v.Due.IsZero():
		return "", ""
	case v.Attempts == 0:
		return StateWaiting, ""
	case s.final(v):
		return StateFailed, v.Failure
	}
	reason = v.Failure
	if public {
		reason = publicReason(reason)
	}
	return StateFailed, reason + " (it is tried again)"
}

// publicReason is what clients are told of why a build failed that may succeed
// later. What is wrong with the image they may know; the rest, such as paths of the
// storage, is for the operator, who finds it in the log and in the status.
func publicReason(failure string) string {
	for _, e := range []error{block.ErrFull, block.ErrDenied, block.ErrAway} {
		if strings.Contains(failure, e.Error()) { // only the text was kept
			return e.Error()
		}
	}
	if strings.HasPrefix(failure, openFailed) {
		return errAway.Error()
	}
	return "for a reason that may pass"
}

// buildOf is the build of an image that this process is at, or nil.
func (s *Service) buildOf(id int64) *build {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.active[id]
}

// Listed is an image that is volumes, or is to be.
type Listed struct {
	// ID orders images.
	ID       int64      `json:"-"`
	Repo     string     `json:"repository"`
	Manifest oci.Digest `json:"manifest"`
	FS       string     `json:"fs"`
	// State is empty for one that is built.
	State  string `json:"state,omitempty"`
	Reason string `json:"reason,omitempty"`
	// Volume with the whole tree, Size of its device and Used by all of its layers
	// in bytes, of one that is built.
	Volume string `json:"volume,omitempty"`
	Size   int64  `json:"size,omitempty"`
	Used   int64  `json:"used,omitempty"`
	// Place is where that is.
	Place volref.Place `json:"place,omitzero"`
}

// List returns at most n images behind the id after, of a repository or, for the
// operator, with "" of all.
func (s *Service) List(ctx context.Context, repo string, after int64, n int) ([]Listed, error) {
	list, err := s.facts.Images(ctx, repo, after, n)
	if err != nil {
		return nil, registry.Unavailable(err)
	}
	others, err := s.elsewhere(ctx, list)
	if err != nil {
		return nil, registry.Unavailable(err)
	}
	out := make([]Listed, len(list))
	for i, v := range list {
		l := &out[i]
		*l = Listed{ID: v.ID, Repo: v.Repo, Manifest: v.Manifest, FS: v.FS}
		if l.State, l.Reason = s.stateOf(v, others, repo != ""); v.Dropped {
			l.State, l.Reason = "dropped", ""
		}
		var rec volref.Record
		if v.Place == "" || json.Unmarshal(v.Record, &rec) != nil {
			continue
		}
		l.Volume, l.Place = rec.Volume(), rec.Place
		for _, layer := range rec.Layers {
			l.Size = max(l.Size, layer.Size)
			l.Used += layer.Used
		}
	}
	return out, nil
}

// unavailable is the answer where the storage of volumes is away.
func unavailable(err error) error {
	return &oci.Error{Code: oci.CodeUnavailable, RetryAfter: openAgain, Message: errAway.Error(), Err: err}
}

// Status is the state of the volume side.
type Status struct {
	// Place of the volumes, unless Away says why it is not known.
	Place volref.Place `json:"place,omitzero"`
	Away  string       `json:"away,omitempty"`
	// Images that are built, in each file system, wait and have failed.
	Built   int64 `json:"built"`
	Waiting int64 `json:"waiting"`
	Failed  int64 `json:"failed"`
	// Volumes of the place, those of them that no image needs any more, and those
	// of places that were used before.
	Volumes   int64 `json:"volumes"`
	Unused    int64 `json:"unused"`
	Elsewhere int64 `json:"elsewhere"`
	// Active are the builds of this server, longest first.
	Active []Active `json:"active"`
	// Failures are some of those that failed.
	Failures []Failure `json:"failures"`
}

// Active is an image being built.
type Active struct {
	Repo     string     `json:"repository"`
	Manifest oci.Digest `json:"manifest"`
	FS       string     `json:"fs"`
	// Done bytes of Total; 0 while that is not known.
	Done  int64         `json:"done"`
	Total int64         `json:"total"`
	Took  time.Duration `json:"took"`
}

// Failure is an image that could not be built.
type Failure struct {
	Repo     string     `json:"repository"`
	Manifest oci.Digest `json:"manifest"`
	FS       string     `json:"fs"`
	Attempts int        `json:"attempts"`
	Reason   string     `json:"reason"`
	// Retry is when it is tried again; zero: only when somebody asks for it.
	Retry time.Time `json:"retry,omitzero"`
}

// maxFailures is how many failures a status lists.
const maxFailures = 100

// Status returns the state as it is now.
func (s *Service) Status(ctx context.Context) (Status, error) {
	st := Status{Active: []Active{}, Failures: []Failure{}}
	place := ""
	store, err := s.storage.soon(ctx)
	switch {
	case ctx.Err() != nil:
		return st, ctx.Err()
	case err != nil:
		st.Away = err.Error()
	default:
		st.Place = store.Place()
		place = placeName(st.Place)
	}
	n, err := s.facts.Counts(ctx, place)
	if err != nil {
		return st, err
	}
	st.Built, st.Waiting, st.Failed, st.Volumes, st.Unused, st.Elsewhere = n.Built, n.Waiting, n.Failed, n.Volumes, n.Unused, n.Elsewhere
	failed, err := s.facts.Failed(ctx, maxFailures)
	if err != nil {
		return st, err
	}
	for _, v := range failed {
		f := Failure{Repo: v.Repo, Manifest: v.Manifest, FS: v.FS, Attempts: v.Attempts, Reason: v.Failure}
		if !s.final(v) {
			f.Retry = v.Due
		}
		st.Failures = append(st.Failures, f)
	}
	st.Active, err = s.activeNow(ctx)
	return st, err
}

func (s *Service) activeNow(ctx context.Context) ([]Active, error) {
	s.mu.Lock()
	builds := make(map[int64]*build, len(s.active))
	for id, b := range s.active {
		if b != nil {
			builds[id] = b
		}
	}
	s.mu.Unlock()
	out := make([]Active, 0, len(builds))
	for id, b := range builds {
		v, err := s.facts.Image(ctx, id)
		if errors.Is(err, catalog.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		done, total := b.state()
		out = append(out, Active{v.Repo, v.Manifest, v.FS, done, total, s.opts.Clock().Sub(b.since)})
	}
	slices.SortFunc(out, func(a, b Active) int { return cmp.Or(cmp.Compare(b.Took, a.Took), cmp.Compare(a.Manifest, b.Manifest)) })
	return out, nil
}

// metrics are the service's Prometheus collectors.
type metrics struct {
	built, failed        prometheus.Counter
	removed, credentials prometheus.Counter
	took                 prometheus.Histogram
	active               prometheus.GaugeFunc
}

func (m *metrics) init(s *Service) {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "slipway", Subsystem: "volumes", Name: name, Help: help})
	}
	m.built = counter("builds_total", "Images built as volumes.")
	m.failed = counter("build_failures_total", "Attempts to build an image as volumes that failed.")
	m.removed = counter("removed_total", "Volumes removed because nothing needed them.")
	m.credentials = counter("credentials_total", "Credentials given to nodes.")
	m.took = prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: "slipway", Subsystem: "volumes", Name: "build_seconds",
		Help: "Time of a build that succeeded.", Buckets: prometheus.ExponentialBuckets(0.05, 4, 8)})
	m.active = prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "slipway", Subsystem: "volumes", Name: "builds_active",
		Help: "Images being built as volumes."}, func() float64 {
		s.mu.Lock()
		defer s.mu.Unlock()
		n := 0
		for _, b := range s.active {
			if b != nil {
				n++
			}
		}
		return float64(n)
	})
}

// Metrics returns the service's Prometheus collectors.
func (s *Service) Metrics() []prometheus.Collector {
	m := &s.metrics
	return []prometheus.Collector{m.built, m.failed, m.removed, m.credentials, m.took, m.active}
}
