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
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/volumefacts"
	"example.org/slipway/registry/storage"
	"example.org/slipway/volume/block"
)

// These are the states of an image that is not built, or not only built.
const (
	StateWaiting  = "waiting"
	StateBuilding = "building"
	StateFailed   = "failed"
)

// ImageStatus is what is known about the volumes of an image.
type ImageStatus struct {
	// Records has the records of the usable volumes, one for each file system.
	Records []json.RawMessage
	// State is empty if nothing is to be done. Otherwise it is the state of the file
	// system that is furthest from done, and Reason says why it is not done.
	State, Reason string
	// Done is how many of the Total bytes are written. Both are 0 if that is not known.
	Done, Total int64
}

// Image returns what is known about an image that a repository shows. Errors:
// MANIFEST_UNKNOWN.
func (s *Service) Image(ctx context.Context, repo string, d oci.Digest) (ImageStatus, error) {
	st := ImageStatus{Records: []json.RawMessage{}}
	if _, err := s.shows(ctx, repo, d); err != nil {
		return st, err
	}
	list, err := s.facts.ImagesOf(ctx, repo, d)
	if err != nil {
		return st, storage.Unavailable(err)
	}
	others, err := s.elsewhere(ctx, list)
	if err != nil {
		return st, storage.Unavailable(err)
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

// stateOf returns the state of one image in one file system. If public is set, the answer
// is for clients that may pull the image, and otherwise for the operator.
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

// publicReason returns the reason that clients get for a failed build that may succeed
// later. They may know what is wrong with the image. Other details, such as paths of the
// storage, are only in the log and in the operator's status.
func publicReason(failure string) string {
	for _, e := range []error{block.ErrFull, block.ErrDenied, block.ErrAway} {
		if strings.Contains(failure, e.Error()) { // only the text of the error was kept
			return e.Error()
		}
	}
	if strings.HasPrefix(failure, openFailed) {
		return errAway.Error()
	}
	return "for a reason that may pass"
}

// buildOf returns the build of an image that runs in this process, or nil.
func (s *Service) buildOf(id int64) *build {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.active[id]
}

// Listed is an image that is stored as volumes, or will be.
type Listed struct {
	// ID orders images.
	ID       int64      `json:"-"`
	Repo     string     `json:"repository"`
	Manifest oci.Digest `json:"manifest"`
	FS       string     `json:"fs"`
	// State is empty if the image is built.
	State  string `json:"state,omitempty"`
	Reason string `json:"reason,omitempty"`
	// These fields are set if the image is built. Volume is the volume with the whole
	// tree. Size is the size of its device in bytes, and Used the bytes used by all of
	// its layers.
	Volume string `json:"volume,omitempty"`
	Size   int64  `json:"size,omitempty"`
	Used   int64  `json:"used,omitempty"`
	// Place is where the volume is.
	Place volref.Place `json:"place,omitzero"`
}

// List returns at most n images with ids greater than after. It lists the images of a
// repository or, for the operator, with "" the images of all repositories.
func (s *Service) List(ctx context.Context, repo string, after int64, n int) ([]Listed, error) {
	list, err := s.facts.Images(ctx, repo, after, n)
	if err != nil {
		return nil, storage.Unavailable(err)
	}
	others, err := s.elsewhere(ctx, list)
	if err != nil {
		return nil, storage.Unavailable(err)
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

// unavailable returns the error for a request while the storage of volumes is away.
func unavailable(err error) error {
	return &oci.Error{Code: oci.CodeUnavailable, RetryAfter: openAgain, Message: errAway.Error(), Err: err}
}

// Status is the state of the volume side.
type Status struct {
	// Place is the place of the volumes. If it is not known, Away says why.
	Place volref.Place `json:"place,omitzero"`
	Away  string       `json:"away,omitempty"`
	// Built, Waiting and Failed count the images that are built, wait and have failed. An
	// image counts once for each file system.
	Built   int64 `json:"built"`
	Waiting int64 `json:"waiting"`
	Failed  int64 `json:"failed"`
	// Volumes is the number of volumes in the place, and Unused how many of them no image
	// needs any more. Elsewhere is the number of volumes in places that were used before.
	Volumes   int64 `json:"volumes"`
	Unused    int64 `json:"unused"`
	Elsewhere int64 `json:"elsewhere"`
	// Active has the builds of this server, the longest-running first.
	Active []Active `json:"active"`
	// Failures has some of the failed builds.
	Failures []Failure `json:"failures"`
}

// Active is an image being built.
type Active struct {
	Repo     string     `json:"repository"`
	Manifest oci.Digest `json:"manifest"`
	FS       string     `json:"fs"`
	// Done is how many of the Total bytes are written. Both are 0 while that is not
	// known.
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
	// Retry is when it is tried again. If it is zero, that happens only when somebody
	// requests the image.
	Retry time.Time `json:"retry,omitzero"`
}

// maxFailures is how many failures a status lists.
const maxFailures = 100

// Status returns the current state.
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

// metrics has the service's Prometheus collectors.
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
