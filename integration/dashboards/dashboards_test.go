package dashboards

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"example.org/slipway/integration/internal/proc"
	"example.org/slipway/integration/internal/tool"
	"example.org/slipway/internal/dashboard"
)

// patience is how long it may take on a busy machine until everything requested is there.
const patience = 3 * time.Minute

// boards reads the boards that ship with Slipway.
func boards(t *testing.T) []*dashboard.Board {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", "..", "deploy", "grafana", "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	var list []*dashboard.Board
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		b := &dashboard.Board{}
		d := json.NewDecoder(bytes.NewReader(text))
		d.DisallowUnknownFields()
		if err := d.Decode(b); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		list = append(list, b)
	}
	if len(list) != len(dashboard.Boards()) {
		t.Fatalf("%d boards are delivered, want %d", len(list), len(dashboard.Boards()))
	}
	return list
}

// TestPanels runs every query of every board, and every recording rule, against a Prometheus that
// scrapes the real programs at work. Each must return numbers.
func TestPanels(t *testing.T) {
	tool.System(t, "prometheus")
	tool.NeedRoot(t) // needed by the agent
	delivered := boards(t)
	b := newBed(t)
	m := startPrometheus(t, map[string]string{"127.0.0.1:5001": b.server.DebugAddr, "127.0.0.1:5002": b.agentAddr, "127.0.0.1:5003": b.replayAddr})
	b.startTraffic()
	b.startReplay()
	b.startAgent(m)

	want := map[string]string{} // expressions, by where they come from
	for _, board := range delivered {
		maps.Copy(want, queries(t, board))
	}
	for _, r := range m.rules() {
		if r.Type == "recording" {
			want["rule "+r.Name] = r.Name
		}
	}
	if len(want) < 150 {
		t.Errorf("%d queries and rules, want 150 at least: some were not read", len(want))
	}
	missing := m.waitFor(want)
	if t.Failed() {
		t.FailNow() // the traffic ended early, or a query is invalid: the rest would be noise
	}
	for _, who := range slices.Sorted(maps.Keys(missing)) {
		values, err := m.values(missing[who])
		t.Errorf("%s: no data but %d zeros, error %v: %s", who, len(values), err, missing[who])
	}
	if len(missing) > 0 {
		t.Logf("the metrics there are: %s", strings.Join(m.labels("__name__", ""), " "))
	}
	m.checkVariables(delivered)
	m.checkNames(want)
	m.checkRules()
}

// queries returns the queries of a board as they are sent for all values of its variables.
func queries(t *testing.T, b *dashboard.Board) map[string]string {
	t.Helper()
	values := map[string]string{"__rate_interval": "10s"}
	for _, v := range b.Templating.List {
		values[v.Name] = v.AllValue
	}
	list := map[string]string{}
	for _, q := range b.Queries() {
		expr, err := dashboard.Substitute(q.Expr, values)
		if err != nil {
			t.Error(err)
		}
		list[b.UID+": "+q.Panel+": "+q.Legend+" "+q.Expr] = expr
	}
	return list
}

// maybeZero matches expressions that need not exceed 0 here: about faults, states that last only a
// moment, waiting, what nobody does here, and what takes longer than this test.
var maybeZero = regexp.MustCompile(`error|fail|5\.\.|Failures|stale|denied|damaged|dropped|wasted|broken|resumed|retries|hedges|lies|unwritten|backoff|outcome=~|token_requests` +
	`|in_flight|in_memory|queued|running|waiting|active|fills\{|fill_memory|saved|abandoned|over_budget|resting|bypassed|pinned` +
	`|gc_deleted|settled|peers|warm_orders|ram_evictions|tier_evictions|evicted|agent_pool_read|stalls|stalled|volume`)

// waitFor waits until all expressions have had a number, and a number other than 0 if they must. It
// returns those without one at the end.
func (m *monitor) waitFor(want map[string]string) map[string]string {
	m.t.Helper()
	missing := maps.Clone(want)
	deadline := time.Now().Add(patience)
	for len(missing) > 0 && time.Now().Before(deadline) && !m.t.Failed() {
		for who, expr := range missing {
			values, err := m.values(expr)
			if err != nil {
				m.t.Errorf("%s: %v: %s", who, err, expr)
			}
			if len(values) > 0 && (maybeZero.MatchString(expr) || slices.ContainsFunc(values, func(v float64) bool { return v != 0 })) {
				delete(missing, who)
			}
		}
		if len(missing) > 0 {
			<-time.After(time.Second)
		}
	}
	return missing
}

// labelValues matches the query of a variable.
var labelValues = regexp.MustCompile(`^label_values\((.*), (\w+)\)$`)

// checkVariables fails the test unless each variable offers something to choose.
func (m *monitor) checkVariables(list []*dashboard.Board) {
	m.t.Helper()
	for _, b := range list {
		for _, v := range b.Templating.List {
			if v.Type != "query" {
				continue
			}
			q := labelValues.FindStringSubmatch(v.Query.Query)
			if q == nil {
				m.t.Errorf("%s: variable %s: %s", b.UID, v.Name, v.Query.Query)
			} else if got := m.labels(q[2], q[1]); len(got) == 0 {
				m.t.Errorf("%s: variable %s has no values: %s", b.UID, v.Name, v.Query.Query)
			}
		}
	}
}

var metricName = regexp.MustCompile(`([a-zA-Z_:][a-zA-Z0-9_:]*)\{`)

// unseen are metrics that only appear with something that cannot run here.
var unseen = []string{
	"registry_storage_retries_total", // with the first operation that fails and is repeated
	"registry_storage_errors_total",  // with the first that fails
}

// checkNames fails the test if a query or a rule names a metric that does not exist. It also
// finds a misspelt name in an expression that is 0 without the metric.
func (m *monitor) checkNames(want map[string]string) {
	m.t.Helper()
	exprs := maps.Clone(want)
	for _, r := range m.rules() {
		exprs["rule "+r.Name] = r.Query
	}
	known := m.labels("__name__", "")
	for who, expr := range exprs {
		for _, name := range metricName.FindAllStringSubmatch(expr, -1) {
			if !slices.Contains(known, name[1]) && !slices.Contains(unseen, name[1]) {
				m.t.Errorf("%s: there is no metric %s", who, name[1])
			}
		}
	}
}

// checkRules fails the test unless Prometheus can evaluate every rule, and the expression of every
// alert.
func (m *monitor) checkRules() {
	m.t.Helper()
	kinds := map[string]int{}
	for _, r := range m.rules() {
		kinds[r.Type]++
		proc.Poll(m.t, time.Minute, "evaluation of the rule "+r.Name, func() bool { return m.health(r.Name) != "unknown" })
		if h := m.health(r.Name); h != "ok" {
			m.t.Errorf("rule %s is %s: %s", r.Name, h, r.LastError)
		}
		if _, err := m.values(r.Query); err != nil {
			m.t.Errorf("rule %s: %v", r.Name, err)
		}
	}
	if kinds["recording"] < 10 || kinds["alerting"] < 25 {
		m.t.Errorf("rules that Prometheus has: %v", kinds)
	}
}

func (m *monitor) health(name string) string {
	for _, r := range m.rules() {
		if r.Name == name {
			return r.Health
		}
	}
	return "missing"
}
