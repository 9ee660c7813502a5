package analyze

import (
	"fmt"
	"runtime"
	"time"

	"example.org/slipway/workload/trace/store"
)

// LayersBy decides when two requests are for the same layer.
type LayersBy string

const (
	// ByDigest counts layers of the same digest as one layer, in whatever repository.
	ByDigest LayersBy = "digest"
	// ByURI counts a digest in two repositories as two layers.
	ByURI LayersBy = "uri"
)

// Options are the options of an analysis. The zero value gives each figure the definition
// in docs/analysis.md.
type Options struct {
	// Zones are the zones to analyse; empty for all.
	Zones []string
	// From and To bound the time of arrival: From is included, To is not. A zero time is
	// no bound.
	From, To time.Time
	// Session is how long after a manifest a layer still counts as a part of the
	// manifest's pull (Figure 12). It is also how long before a manifest a push still
	// counts. Default 60 s; the paper also looks at up to 10 min.
	Session time.Duration
	// StopAtNext ends a session when the client gets the next manifest of the repository.
	// By default each manifest has the whole window.
	StopAtNext bool
	// SizesOf chooses the requests whose sizes Figure 6 shows: store.GET, the default, or
	// store.PUT.
	SizesOf store.Method
	// KeepAlive is how long after a request a client counts as active in the second form
	// of Figure 13a. Default 60 s. The first form does not use it.
	KeepAlive time.Duration
	// Location is the time zone of the hours and weekdays of Figure 14. Default UTC.
	Location *time.Location
	// LayersBy is what Figures 10a and 11a count. Default ByDigest.
	LayersBy LayersBy
	// Plugins make figures beside the figures of the paper.
	Plugins []Plugin
	// Workers is how many zones are read at once. Default the number of cores.
	Workers int
	// Progress, if not nil, is called with the progress of the pass, by one goroutine at
	// a time.
	Progress func(Progress)
}

// Progress is how far a pass has come.
type Progress struct {
	// Records is how many records were seen, of about Total.
	Records, Total int64
	// Zone is the zone that was read last.
	Zone string
}

// withDefaults returns the options with all defaults filled in, or an error if they are
// invalid.
func (o *Options) withDefaults() (*Options, error) {
	var v Options
	if o != nil {
		v = *o
	}
	if v.Session == 0 {
		v.Session = time.Minute
	}
	if v.KeepAlive == 0 {
		v.KeepAlive = time.Minute
	}
	if v.SizesOf == store.OtherMethod {
		v.SizesOf = store.GET
	}
	if v.Location == nil {
		v.Location = time.UTC
	}
	if v.LayersBy == "" {
		v.LayersBy = ByDigest
	}
	if v.Workers <= 0 {
		v.Workers = runtime.GOMAXPROCS(0)
	}
	switch {
	case v.Session < 0:
		return nil, fmt.Errorf("the session is %s; it must be more than 0", v.Session)
	case v.KeepAlive < 0:
		return nil, fmt.Errorf("the keep-alive time is %s; it must be more than 0", v.KeepAlive)
	case v.SizesOf != store.GET && v.SizesOf != store.PUT:
		return nil, fmt.Errorf("there are sizes of GET and PUT, not of %s", v.SizesOf)
	case v.LayersBy != ByDigest && v.LayersBy != ByURI:
		return nil, fmt.Errorf("layers are counted by digest or uri, not by %q", v.LayersBy)
	case !v.To.IsZero() && !v.From.Before(v.To):
		return nil, fmt.Errorf("there is no time from %s to %s", v.From.Format(time.RFC3339), v.To.Format(time.RFC3339))
	}
	return &v, nil
}
