package analyze

import (
	"fmt"

	"example.org/slipway/internal/chart"
	"example.org/slipway/workload/trace/store"
)

// figure12 makes Figures 12a and 12b of FAST'18: how many layers a client gets after a
// manifest, over all manifests and over the manifests of a repository that was just
// pushed to.
func figure12() Plugin {
	const window = "A session begins with each GET of a manifest (status below 400) by a client and lasts for 60 s (by option: another time), the last moment included. " +
		"Its layers are the GETs of a layer (status 200 or 206) by the same client from the same repository that come after it and within the session. " +
		"Sessions of one client and repository may overlap, and a layer then counts in each; by option a session ends at the next manifest. "
	plot := Plot{Kind: PlotCDF, X: chart.Axis{Title: "layers in a session", Log: true}, Y: chart.Axis{Title: "share of sessions with at most as many", Unit: chart.Share, Full: true}}
	const inexact = "Exact below 256 layers, within 0.4 % above."
	return Plugin{
		Figures: []Figure{
			{ID: "12a", Title: "Figure 12a: layers got after a manifest", Definition: window + "The distribution is over all sessions.", Error: inexact, Plot: plot},
			{ID: "12b", Title: "Figure 12b: layers got after a manifest of a repository just pushed to", Error: inexact, Plot: plot,
				Definition: window + "The distribution is over those sessions before which, at most as long ago as a session lasts, any client sent a PUT of a layer or manifest (status below 400) to the same repository."},
		},
		New: func(_ store.Zone, o *Options) Analysis {
			return &sessions{length: o.Session.Microseconds(), stopAtNext: o.StopAtNext, open: map[uint64]openSessions{}, pushed: map[store.Symbol]int64{}}
		},
	}
}

// openSessions are the open sessions of one client and repository.
type openSessions struct {
	layers uint32 // layers that the client got since the first of them began
	n      uint32 // how many
	last   uint64 // the serial number of the latest
	// base and push belong to the latest session; they are used if the next session ends it.
	base uint32
	push bool
}

// session is a session that waits for its end. All sessions are equally long, so they end
// in the order in which they began.
type session struct {
	key    uint64
	begin  int64
	serial uint64
	base   uint32 // layers got before
	push   bool   // the repository was just pushed to
}

type sessions struct {
	length     int64
	stopAtNext bool
	queue      []session
	head       int
	open       map[uint64]openSessions
	pushed     map[store.Symbol]int64 // when a repository was last pushed to
	serial     uint64
	now        int64
	all, fresh sessionCount
	noClient   int64
}

// sessionCount is the distribution of the number of layers of sessions.
type sessionCount struct {
	hist Hist
	none int64
}

func (c *sessionCount) add(layers uint32) {
	c.hist.Add(int64(layers))
	if layers == 0 {
		c.none++
	}
}

func (s *sessions) Columns() store.Columns {
	return store.ColMethod | store.ColKind | store.ColStatus | store.ColClient | store.ColRepo
}

func (s *sessions) Add(b *store.Batch) {
	for i, t := range b.Time {
		s.now = max(s.now, t)
		switch {
		case layerGet(b, i):
			s.expire(t)
			key := pair(b.Client[i], b.Repo[i])
			if o, ok := s.open[key]; ok {
				o.layers++
				s.open[key] = o
			}
		case manifestGet(b, i):
			s.expire(t)
			if b.Client[i] == store.None {
				s.noClient++
				continue
			}
			at, pushed := s.pushed[b.Repo[i]]
			s.begin(pair(b.Client[i], b.Repo[i]), t, pushed && t-at <= s.length)
		case manifestPut(b, i) || layerPut(b, i):
			s.pushed[b.Repo[i]] = t
		}
	}
}

func (s *sessions) begin(key uint64, t int64, push bool) {
	o := s.open[key]
	if s.stopAtNext && o.n > 0 && o.last != 0 {
		s.count(o.layers-o.base, o.push)
	}
	s.serial++
	o.n, o.last, o.base, o.push = o.n+1, s.serial, o.layers, push
	s.open[key] = o
	s.queue = append(s.queue, session{key: key, begin: t, serial: s.serial, base: o.layers, push: push})
}

// expire ends the sessions that are over at t.
func (s *sessions) expire(t int64) {
	for s.head < len(s.queue) && s.queue[s.head].begin+s.length < t {
		s.end()
	}
	if s.head > len(s.queue)/2 && s.head > 1024 {
		s.queue = s.queue[:copy(s.queue, s.queue[s.head:])]
		s.head = 0
	}
}

// end ends the session that began first.
func (s *sessions) end() {
	e := s.queue[s.head]
	s.head++
	o := s.open[e.key]
	switch {
	case !s.stopAtNext:
		s.count(o.layers-e.base, e.push)
	case o.last == e.serial: // otherwise the next manifest has ended it
		s.count(o.layers-o.base, o.push)
		o.last = 0
	}
	if o.n--; o.n == 0 {
		delete(s.open, e.key)
		return
	}
	s.open[e.key] = o
}

func (s *sessions) count(layers uint32, push bool) {
	s.all.add(layers)
	if push {
		s.fresh.add(layers)
	}
}

func (s *sessions) Result() []Result {
	s.expire(s.now)
	cut := int64(len(s.queue) - s.head)
	for s.head < len(s.queue) {
		s.end()
	}
	var out []Result
	for _, c := range []*sessionCount{&s.all, &s.fresh} {
		r := Result{Requests: c.hist.N()}
		r.unknown(s.noClient, "the client")
		r.share("no layer", c.none, c.hist.N())
		r.quantiles(&c.hist, Number, 1)
		if c == &s.all && cut > 0 {
			r.note(fmt.Sprintf("%s still open at the last request; they have the layers until then.", plural(cut, "session", "sessions")))
		}
		r.Series = []Series{{Name: "sessions", Points: c.hist.CDF(1)}}
		out = append(out, r)
	}
	return out
}
