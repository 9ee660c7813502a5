package synth_test

import (
	"math"
	"slices"
	"sort"
	"time"

	"example.org/slipway/workload/trace"
)

// measured computes the published figures of the zones from records alone. It keeps
// everything in memory and shares no code with the generator.
type measured struct {
	total                               int64
	method, status                      map[string]int64
	kind                                map[string]int // GETs only
	putKind                             map[trace.Kind]int64
	headPutBlob, headPutMan             int64
	layers, layerURIs                   map[string]int
	manifests, repos, clients, repoGets map[string]int
	agentNames                          map[string]bool
	layerSizes, manSizes                []float64
	layerTime                           []sizeTime
	putTime, patchTime, manTime         []float64
	ingress, egress                     float64
	times                               []int64 // ms
	minutes                             map[int64]int
	hours                               [24]float64
	days                                map[int64]float64
	pingRuns, pings                     int64
	lastGet                             trace.Kind
	lastManifest                        map[string][]int // by client and repository: open windows, as indexes into after
	openAt                              []int64
	after                               []int
	hosts                               map[string]bool
	firsts                              []int // whether each layer GET was the first of its layer
	tagged                              int64 // manifest GETs of the tag latest
	namespaces                          map[string]int
}

type sizeTime struct{ size, seconds float64 }

func newMeasured() *measured {
	return &measured{method: map[string]int64{}, kind: map[string]int{}, status: map[string]int64{}, putKind: map[trace.Kind]int64{},
		layers: map[string]int{}, layerURIs: map[string]int{}, manifests: map[string]int{}, repos: map[string]int{}, repoGets: map[string]int{}, clients: map[string]int{},
		agentNames: map[string]bool{}, minutes: map[int64]int{}, days: map[int64]float64{}, lastManifest: map[string][]int{},
		hosts: map[string]bool{}, namespaces: map[string]int{}}
}

func (m *measured) add(r *trace.Record) {
	t := trace.ParseURI(r.URI)
	ms := r.Time.UnixMilli()
	m.total++
	m.method[r.Method]++
	m.status[r.Method+statusText(r.Status)]++
	m.times = append(m.times, ms)
	m.minutes[ms/60000]++
	m.hours[r.Time.Hour()]++
	m.days[ms/86400000]++
	m.clients[r.RemoteAddr]++
	m.hosts[r.Host] = true
	m.agentNames[r.UserAgent] = true
	if t.Repo != "" {
		m.repos[t.Repo]++
	}
	if t.Repo != "" && r.Method == "GET" {
		m.repoGets[t.Repo]++
		m.namespaces[t.Namespace()]++
	}
	size := float64(max(r.Written, r.Received))
	switch r.Method {
	case "GET":
		m.addGet(r, t, ms, size)
	case "PUT":
		m.putKind[t.Kind]++
		m.ingress += size
		if t.Kind == trace.Upload {
			m.putTime = append(m.putTime, r.Duration.Seconds())
			m.headPutBlob++
		} else {
			m.headPutMan++
		}
	case "HEAD":
		m.headPutBlob++
	case "PATCH":
		m.patchTime = append(m.patchTime, r.Duration.Seconds())
	}
}

func statusText(code int) string {
	return string(rune('0'+code/100)) + string(rune('0'+code/10%10)) + string(rune('0'+code%10))
}

func (m *measured) addGet(r *trace.Record, t trace.Target, ms int64, size float64) {
	m.kind[t.Kind.String()]++
	m.egress += size
	key := r.RemoteAddr + " " + t.Repo
	switch t.Kind {
	case trace.Ping:
		m.pings++
		if m.lastGet != trace.Ping {
			m.pingRuns++
		}
	case trace.Manifest:
		m.manifests[r.URI]++
		if t.Ref == "817c8a39" {
			m.tagged++
		}
		m.manSizes = append(m.manSizes, size)
		m.manTime = append(m.manTime, r.Duration.Seconds())
		m.lastManifest[key] = append(m.open(key, ms), len(m.after))
		m.after, m.openAt = append(m.after, 0), append(m.openAt, ms)
	case trace.Blob:
		if m.layers[t.Ref]++; m.layers[t.Ref] == 1 {
			m.firsts = append(m.firsts, m.kind["blob"])
		}
		m.layerURIs[r.URI]++
		m.layerSizes = append(m.layerSizes, size)
		m.layerTime = append(m.layerTime, sizeTime{size, r.Duration.Seconds()})
		open := m.open(key, ms)
		for _, i := range open {
			m.after[i]++
		}
		m.lastManifest[key] = open
	}
	m.lastGet = t.Kind
}

// open returns the windows of 60 s that are still open.
func (m *measured) open(key string, ms int64) []int {
	return slices.DeleteFunc(m.lastManifest[key], func(i int) bool { return ms-m.openAt[i] >= int64(time.Minute/time.Millisecond) })
}

func (m *measured) share(n int64) float64 { return float64(n) / float64(m.total) }

// topShare returns the share of the n most popular items. Below 1, n is a share of the
// items.
func topShare(counts map[string]int, n float64) float64 {
	ranked, all := ranks(counts)
	if n < 1 {
		n = math.Max(1, math.Round(n*float64(len(ranked))))
	}
	top := 0
	for _, c := range ranked[:min(int(n), len(ranked))] {
		top += c
	}
	return float64(top) / float64(all)
}

func ranks(counts map[string]int) (ranked []int, all int) {
	for _, c := range counts {
		ranked = append(ranked, c)
		all += c
	}
	sort.Sort(sort.Reverse(sort.IntSlice(ranked)))
	return ranked, all
}

// slope returns the slope of log count over log rank, by least squares over the first n
// ranks.
func slope(counts map[string]int, n int) float64 {
	ranked, _ := ranks(counts)
	var sx, sy, sxx, sxy float64
	n = min(n, len(ranked))
	for i, c := range ranked[:n] {
		x, y := math.Log(float64(i+1)), math.Log(float64(c))
		sx, sy, sxx, sxy = sx+x, sy+y, sxx+x*x, sxy+x*y
	}
	return -(float64(n)*sxy - sx*sy) / (float64(n)*sxx - sx*sx)
}

func onceShare(counts map[string]int) float64 {
	n := 0
	for _, c := range counts {
		if c == 1 {
			n++
		}
	}
	return float64(n) / float64(len(counts))
}

func below(values []float64, limit float64) float64 {
	n := 0
	for _, v := range values {
		if v < limit {
			n++
		}
	}
	return float64(n) / float64(len(values))
}

func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(values))
	return s[min(int(q*float64(len(s))), len(s)-1)]
}

func mean(values []float64) float64 {
	s := 0.0
	for _, v := range values {
		s += v
	}
	return s / float64(len(values))
}

// gap returns a quantile of the times between arrivals, in seconds.
func (m *measured) gap(q float64) float64 {
	gaps := make([]float64, 0, len(m.times))
	for i := 1; i < len(m.times); i++ {
		gaps = append(gaps, float64(m.times[i]-m.times[i-1])/1000)
	}
	return quantile(gaps, q)
}

// perMinute returns the number of requests in each minute from the first to the last.
func (m *measured) perMinute() []float64 {
	var out []float64
	for t := m.times[0] / 60000; t <= m.times[len(m.times)-1]/60000; t++ {
		out = append(out, float64(m.minutes[t]))
	}
	return out
}

// without returns the share of manifest GETs that no layer GET follows.
func (m *measured) without() float64 {
	n := 0
	for _, c := range m.after {
		if c == 0 {
			n++
		}
	}
	return float64(n) / float64(len(m.after))
}

// layersAfter returns the number of layer GETs after each manifest GET that some follow.
func (m *measured) layersAfter() []float64 {
	var out []float64
	for _, c := range m.after {
		if c > 0 {
			out = append(out, float64(c))
		}
	}
	return out
}

// timeOf returns a quantile of the durations of layers in a range of sizes.
func (m *measured) timeOf(from, to, q float64) float64 {
	var out []float64
	for _, l := range m.layerTime {
		if l.size >= from && l.size < to {
			out = append(out, l.seconds)
		}
	}
	return quantile(out, q)
}

func (m *measured) layerSeconds() []float64 {
	out := make([]float64, len(m.layerTime))
	for i, l := range m.layerTime {
		out[i] = l.seconds
	}
	return out
}

// lateNew returns the share of first touches in the second half of the layer GETs.
func (m *measured) lateNew() float64 {
	half := m.kind["blob"] / 2
	n := 0
	for _, i := range m.firsts {
		if i > half {
			n++
		}
	}
	return float64(n) / float64(m.kind["blob"]-half)
}

func (m *measured) latest() float64 { return float64(m.tagged) / float64(m.kind["manifest"]) }

// night returns the mean of an hour from 2 to 6 UTC divided by the mean of an hour from
// 13 to 19 UTC.
func (m *measured) night() float64 {
	var night, day float64
	for h, n := range m.hours {
		switch {
		case h >= 2 && h < 6:
			night += n / 4
		case h >= 13 && h < 19:
			day += n / 6
		}
	}
	return night / day
}
