package upstream

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// State is the state of an endpoint or an upstream, in one word for commands, pages,
// metrics and readiness alike. The zero value means that nothing is known.
type State string

// The states. An endpoint is never HealthyInPart. An upstream is never Offline by itself;
// that comes from the configuration.
const (
	// NotAsked: no request has been made.
	NotAsked State = ""
	// Healthy: the last request was answered, whatever the answer was.
	Healthy State = "healthy"
	// HealthyInPart: some endpoints are healthy, and some are not.
	HealthyInPart State = "healthy in part"
	// Failing: the last request failed, or brought wrong content.
	Failing State = "failing"
	// LeftAlone: the last answer was that there are too many requests.
	LeftAlone State = "left alone"
	// Offline: nothing is asked.
	Offline State = "offline by configuration"
)

// String returns the state in words.
func (s State) String() string {
	if s == NotAsked {
		return "not asked yet"
	}
	return string(s)
}

// MarshalText implements encoding.TextMarshaler.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *State) UnmarshalText(text []byte) error {
	if *s = State(text); *s == State(NotAsked.String()) {
		*s = NotAsked
	}
	return nil
}

// Works reports whether something answers.
func (s State) Works() bool { return s == Healthy || s == HealthyInPart }

// Bad reports whether an endpoint that was used does not work as it should.
func (s State) Bad() bool { return s == HealthyInPart || s == Failing || s == LeftAlone }

// together returns the state of an upstream from the states of its endpoints.
func together(endpoints []Endpoint) State {
	all := NotAsked
	for _, e := range endpoints {
		switch {
		case e.State == NotAsked || e.State == all:
		case all == NotAsked:
			all = e.State
		case all.Works() || e.State.Works():
			all = HealthyInPart
		default:
			all = Failing
		}
	}
	return all
}

// Status describes an upstream.
type Status struct {
	// Name is the upstream's.
	Name string `json:"name"`
	// State follows from the states of the endpoints.
	State State `json:"state"`
	// Endpoints are the mirrors and, last, the upstream itself.
	Endpoints []Endpoint `json:"endpoints"`
	// Limit is what the upstream itself said last.
	Limit Limit `json:"limit"`
	// Requests counts requests, except those for tokens and those to the targets of
	// redirects. Failures counts the failed ones among them.
	Requests int64 `json:"requests"`
	Failures int64 `json:"failures"`
	// Bytes is how many bytes of bodies were received.
	Bytes int64 `json:"bytes"`
	// Active is how many requests are under way.
	Active int `json:"active"`
}

// Endpoint describes an endpoint.
type Endpoint struct {
	// URL is the endpoint's URL as configured.
	URL string `json:"url"`
	// State is the outcome of the last request.
	State State `json:"state"`
	// Healthy says the same as State, as a boolean.
	Healthy bool `json:"healthy"`
	// LastError is the latest failure, or "" if there was none.
	LastError string `json:"last_error,omitempty"`
	// LastErrorTime is when that was.
	LastErrorTime time.Time `json:"last_error_time,omitzero"`
	// BackoffUntil is the end of the pause that the endpoint asked for, or zero if it did
	// not.
	BackoffUntil time.Time `json:"backoff_until,omitzero"`
	// Requests counts requests, and Failures counts the failed ones among them.
	Requests int64 `json:"requests"`
	Failures int64 `json:"failures"`
	// Latency is the time until an answer begins, smoothed over some ten answers.
	Latency time.Duration `json:"latency"`
	// Limit is what the endpoint said last.
	Limit Limit `json:"limit"`
}

// Status returns the state of the upstream.
func (u *Upstream) Status() Status {
	s := Status{Name: u.name, Bytes: u.bytes.Load(), Active: int(u.active.Load())}
	for _, e := range u.endpoints {
		st := e.health.status()
		st.URL = e.name
		s.Endpoints = append(s.Endpoints, st)
		s.Requests += st.Requests
		s.Failures += st.Failures
	}
	s.State = together(s.Endpoints)
	s.Limit = s.Endpoints[len(s.Endpoints)-1].Limit
	return s
}

func (h *health) status() Endpoint {
	now := h.clock()
	h.mu.Lock()
	defer h.mu.Unlock()
	state := h.state(now)
	s := Endpoint{State: state, Healthy: state.Works(), LastError: h.lastErr, LastErrorTime: h.lastErrTime,
		Requests: h.requests, Failures: h.failures, Latency: h.latency, Limit: h.limit}
	if until := h.lastUntil(); until.After(now) {
		s.BackoffUntil = until
	}
	return s
}

// state returns the state of the endpoint. h.mu is held.
func (h *health) state(now time.Time) State {
	switch {
	case now.Before(h.blamed):
		return Failing // even if other content is right
	case now.Before(h.lastUntil()) && h.last != Failing:
		return LeftAlone // requests that it does not count may be answered meanwhile
	}
	return h.last
}

// metrics are the metrics of an upstream. The upstream's name is a constant label of
// each, so that the metrics of several upstreams can be registered together.
type metrics struct {
	results map[string]prometheus.Counter
	tokens  map[string]prometheus.Counter
	latency prometheus.Histogram
	bytes   prometheus.Counter
	broken  prometheus.Counter
	all     []prometheus.Collector
}

func newMetrics(u *Upstream) *metrics {
	labels := prometheus.Labels{"upstream": u.name}
	m := &metrics{
		results: map[string]prometheus.Counter{}, tokens: map[string]prometheus.Counter{},
		latency: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "slipway_upstream_request_seconds", ConstLabels: labels,
			Help:    "Time until an upstream's answer begins, with the token and the redirects it takes.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}}),
		bytes: prometheus.NewCounter(prometheus.CounterOpts{Name: "slipway_upstream_received_bytes_total", ConstLabels: labels,
			Help: "Bytes of bodies received from an upstream."}),
		broken: prometheus.NewCounter(prometheus.CounterOpts{Name: "slipway_upstream_broken_answers_total", ConstLabels: labels,
			Help: "Answers of an upstream that broke off or stood still."}),
	}
	m.all = []prometheus.Collector{m.latency, m.bytes, m.broken}
	for k := Kind(0); k <= Wrong; k++ {
		m.counter(m.results, k.String(), "slipway_upstream_requests_total",
			"Attempts to get something from an endpoint of an upstream, by what they came to.", u.name)
	}
	for _, k := range []Kind{0, Denied, Busy, Unavailable} {
		m.counter(m.tokens, k.String(), "slipway_upstream_token_requests_total",
			"Tokens asked of an upstream's token service, by what came of it.", u.name)
	}
	m.gauges(u, labels)
	return m
}

func (m *metrics) counter(into map[string]prometheus.Counter, result, name, help, upstream string) {
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help,
		ConstLabels: prometheus.Labels{"upstream": upstream, "result": result}})
	into[result] = c
	m.all = append(m.all, c)
}

// gauges adds the metrics that are looked up when they are scraped.
func (m *metrics) gauges(u *Upstream, labels prometheus.Labels) {
	add := func(name, help string, labels prometheus.Labels, f func() float64) {
		m.all = append(m.all, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels}, f))
	}
	add("slipway_upstream_active_requests", "Requests to an upstream under way, bodies included.", labels,
		func() float64 { return float64(u.active.Load()) })
	add("slipway_upstream_limit", "Requests that an upstream allows in its window; -1: it did not say.", labels,
		func() float64 { return float64(u.limit().Total) })
	add("slipway_upstream_limit_remaining", "Requests that an upstream still allows; -1: it did not say.", labels,
		func() float64 { return float64(u.limit().Remaining) })
	for _, e := range u.endpoints {
		labels := prometheus.Labels{"upstream": u.name, "endpoint": e.name}
		m.all = append(m.all, &healthy{e, prometheus.NewDesc("slipway_upstream_endpoint_healthy",
			"1 where an endpoint answered when it was asked last, 0 where it failed or wants to be left alone. Absent until it is asked.", nil, labels)})
		add("slipway_upstream_backoff_seconds", "Time for which an endpoint wants to be left alone yet.", labels,
			func() float64 { return e.health.busy(u.clock()).Seconds() })
	}
}

// healthy collects the state of an endpoint, once there is one.
type healthy struct {
	e    *endpoint
	desc *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *healthy) Describe(ch chan<- *prometheus.Desc) { ch <- c.desc }

// Collect implements prometheus.Collector.
func (c *healthy) Collect(ch chan<- prometheus.Metric) {
	st := c.e.health.status()
	if st.State == NotAsked {
		return
	}
	var value float64
	if st.Healthy {
		value = 1
	}
	ch <- prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, value)
}

// limit returns what the upstream itself said last.
func (u *Upstream) limit() Limit {
	if l := u.own().health.status().Limit; l.Known {
		return l
	}
	return Limit{Total: -1, Remaining: -1}
}

// Collectors returns the upstream's metrics.
func (u *Upstream) Collectors() []prometheus.Collector { return u.metrics.all }

// result counts the outcome of an attempt.
func (m *metrics) result(err error) {
	if c := m.results[KindOf(err).String()]; c != nil && (err == nil || KindOf(err) != 0) {
		c.Inc()
	}
}

// token counts the outcome of a request for a token.
func (m *metrics) token(err error) {
	k := KindOf(err)
	if err != nil && k == 0 {
		k = Unavailable
	}
	if c := m.tokens[k.String()]; c != nil {
		c.Inc()
	}
}
