package mirror

import (
	"cmp"
	"slices"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/mirror/fill"
	"example.org/slipway/registry/mirror/upstream"
)

// The actions of an Event.
const (
	// ActionFetched means that a manifest or blob was fetched.
	ActionFetched = "fetched"
	// ActionMoved means that a tag stands for something else than before.
	ActionMoved = "moved"
	// ActionGone means that a tag is gone upstream, and here.
	ActionGone = "gone"
	// ActionStale means that a tag was served although it could not be confirmed, or was
	// moved to something that the rules refuse.
	ActionStale = "stale"
	// ActionRefused means that the rules did not let something in.
	ActionRefused = "refused"
	// ActionResumed means that the download of a blob was continued after a break, at
	// byte Bytes.
	ActionResumed = "resumed"
	// ActionWrong means that the upstream sent something other than it should have.
	// Nobody was given it as a whole, and it was not stored.
	ActionWrong = "wrong"
	// ActionForgotten means that an image was dropped from the mirror.
	ActionForgotten = "forgotten"
)

// Event is something that happened between the mirror and an upstream.
type Event struct {
	Time     time.Time  `json:"time"`
	Action   string     `json:"action"`
	Upstream string     `json:"upstream"`
	Repo     string     `json:"repo"`
	Ref      string     `json:"ref,omitempty"` // the tag or digest in the request
	Blob     bool       `json:"blob,omitempty"`
	Digest   oci.Digest `json:"digest,omitempty"`
	Bytes    int64      `json:"bytes,omitempty"`
	// Duration is how long the fetching took.
	Duration time.Duration `json:"duration,omitempty"`
	// Err says why something failed.
	Err string `json:"error,omitempty"`
}

func (m *Registry) event(e Event) {
	if m.opts.OnEvent == nil {
		return
	}
	e.Time = m.now()
	m.opts.OnEvent(e)
}

// Status is the state of the mirrors.
type Status struct {
	Sources []SourceStatus `json:"upstreams"` // by name
	Fills   []fill.Status  `json:"fills"`     // the fills under way, oldest first
}

// SourceStatus is the state of a source.
type SourceStatus struct {
	Name     string          `json:"name"`
	Offline  bool            `json:"offline"`
	State    upstream.State  `json:"state"`
	Upstream upstream.Status `json:"upstream"`
	// Requests counts the requests of clients since the process began, by type and by
	// result.
	Requests map[string]map[string]int64 `json:"requests"`
	// PulledBytes is how many bytes came from the upstream. PushedBytes is how many went
	// to clients.
	PulledBytes int64 `json:"pulled_bytes"`
	PushedBytes int64 `json:"pushed_bytes"`
	// Resumed is how many downloads were continued after a break.
	Resumed int64 `json:"resumed"`
}

// Status returns the state of the mirrors.
func (m *Registry) Status() Status {
	st := Status{Sources: []SourceStatus{}, Fills: m.fills.Status()}
	for name, s := range m.all() {
		v := SourceStatus{Name: name, Offline: s.Offline, Upstream: s.Upstream.Status(), Requests: map[string]map[string]int64{},
			PulledBytes: s.counts.pulled.Load(), PushedBytes: s.counts.pushed.Load(), Resumed: s.counts.resumed.Load()}
		if v.State = v.Upstream.State; s.Offline {
			v.State = upstream.Offline
		}
		for k := range kinds {
			of := map[string]int64{}
			for r := range results {
				of[resultNames[r]] = s.counts.requests[k][r].Load()
			}
			v.Requests[kindNames[k]] = of
		}
		st.Sources = append(st.Sources, v)
	}
	slices.SortFunc(st.Sources, func(a, b SourceStatus) int { return cmp.Compare(a.Name, b.Name) })
	return st
}
