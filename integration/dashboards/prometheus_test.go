package dashboards

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"example.org/slipway/integration/internal/proc"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/tool"
)

// delivered is the directory of Prometheus's configuration.
var delivered = filepath.Join("..", "..", "deploy", "prometheus")

// monitor is a running Prometheus.
type monitor struct {
	t     *testing.T
	url   string
	begin time.Time
}

// interval matches the intervals of scrapes, which are shorter here than in the delivered
// configuration.
var interval = regexp.MustCompile(`(?m)(scrape|evaluation)_interval: \w+$`)

// startPrometheus runs the delivered configuration with intervals of a second. addrs maps the
// delivered addresses to those used here.
func startPrometheus(t *testing.T, addrs map[string]string) *monitor {
	t.Helper()
	dir := t.TempDir()
	rules, err := filepath.Glob(filepath.Join(delivered, "*.yml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range rules {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if filepath.Base(file) == "prometheus.yml" {
			for from, to := range addrs {
				if !strings.Contains(string(text), from) {
					t.Errorf("prometheus.yml does not scrape %s", from)
				}
				text = []byte(strings.ReplaceAll(string(text), from, to))
			}
		}
		text = interval.ReplaceAll(text, []byte("${1}_interval: 1s"))
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(file)), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	addr := slipway.FreeAddr(t)
	cmd := exec.Command(tool.System(t, "prometheus"), "--config.file="+filepath.Join(dir, "prometheus.yml"),
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+addr, "--log.level=warn")
	cmd.Dir = dir
	p := proc.Start(t, cmd, filepath.Join(dir, "log"))
	m := &monitor{t: t, url: "http://" + addr, begin: time.Now()}
	m.waitReady(p)
	return m
}

func (m *monitor) waitReady(p *proc.Process) {
	m.t.Helper()
	proc.Poll(m.t, time.Minute, "start of Prometheus", func() bool {
		select {
		case <-p.Exited():
			m.t.Fatalf("Prometheus ended (%s):\n%s", p.State(), p.Log(4096))
		default:
		}
		return ready(m.url)
	})
}

func ready(url string) bool {
	resp, err := http.Get(url + "/-/ready")
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// ask sends a request to the API. The error is Prometheus's objection to the request.
func (m *monitor) ask(path string, form url.Values, data any) error {
	resp, err := http.Get(m.url + "/api/v1/" + path + "?" + form.Encode())
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer := struct {
		Status, Error string
		Data          json.RawMessage
	}{}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return fmt.Errorf("answer with status %d: %w", resp.StatusCode, err)
	}
	if answer.Status != "success" {
		return fmt.Errorf("status %d: %s", resp.StatusCode, answer.Error)
	}
	return json.Unmarshal(answer.Data, data)
}

// series is a series of a range query. Each sample is a time and a number as text.
type series struct {
	Metric map[string]string
	Values [][2]any
}

// values returns all numbers that an expression has had since the start.
func (m *monitor) values(expr string) ([]float64, error) {
	var data struct{ Result []series }
	form := url.Values{"query": {expr}, "step": {"1"}, "start": {stamp(m.begin)}, "end": {stamp(time.Now())}}
	if err := m.ask("query_range", form, &data); err != nil {
		return nil, err
	}
	var all []float64
	for _, s := range data.Result {
		for _, sample := range s.Values {
			text, _ := sample[1].(string)
			v, err := strconv.ParseFloat(text, 64)
			if err != nil {
				return nil, err
			}
			if !math.IsNaN(v) && !math.IsInf(v, 0) {
				all = append(all, v)
			}
		}
	}
	return all, nil
}

func stamp(t time.Time) string { return strconv.FormatFloat(float64(t.UnixMilli())/1e3, 'f', 3, 64) }

// labels returns the values of a label in the series that a selector matches.
func (m *monitor) labels(label, selector string) []string {
	m.t.Helper()
	form := url.Values{"start": {stamp(m.begin)}, "end": {stamp(time.Now())}}
	if selector != "" {
		form.Set("match[]", selector)
	}
	var list []string
	if err := m.ask("label/"+label+"/values", form, &list); err != nil {
		m.t.Fatal(err)
	}
	return list
}

// rule is a recording rule or an alerting rule.
type rule struct {
	Name, Query, Type, Health, LastError string
}

func (m *monitor) rules() []rule {
	m.t.Helper()
	var data struct{ Groups []struct{ Rules []rule } }
	if err := m.ask("rules", nil, &data); err != nil {
		m.t.Fatal(err)
	}
	var list []rule
	for _, g := range data.Groups {
		list = append(list, g.Rules...)
	}
	return list
}
