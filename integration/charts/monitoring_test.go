package charts

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	sigsyaml "sigs.k8s.io/yaml"

	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/tool"
)

// podMonitor and prometheusRule are the operator's objects as far as the chart uses them.
type podMonitor struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Selector            metav1.LabelSelector `json:"selector"`
		PodMetricsEndpoints []struct {
			Port        string `json:"port"`
			Interval    string `json:"interval"`
			Relabelings []struct {
				SourceLabels []string `json:"sourceLabels"`
				TargetLabel  string   `json:"targetLabel"`
				Replacement  string   `json:"replacement"`
			} `json:"relabelings"`
		} `json:"podMetricsEndpoints"`
	} `json:"spec"`
}

type prometheusRule struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              ruleGroups `json:"spec"`
}

// ruleGroups is also what a file of rules of Prometheus holds.
type ruleGroups struct {
	Groups []struct {
		Name  string `json:"name"`
		Rules []struct {
			Record      string            `json:"record"`
			Alert       string            `json:"alert"`
			Expr        string            `json:"expr"`
			For         string            `json:"for"`
			Labels      map[string]string `json:"labels"`
			Annotations map[string]string `json:"annotations"`
		} `json:"rules"`
	} `json:"groups"`
}

// names returns what rules are called, sorted, each with its expression.
func (r *ruleGroups) names() (out []string) {
	for _, g := range r.Groups {
		for _, rule := range g.Rules {
			out = append(out, rule.Record+rule.Alert+": "+rule.Expr)
		}
	}
	slices.Sort(out)
	return out
}

const monitored = `
image: {repository: registry.example.com/slipway}
htpasswd: {existingSecret: users}
metrics:
  prometheusRule: {enabled: true, labels: {release: prometheus}}
  dashboards: {enabled: true, namespace: monitoring}
agent:
  enabled: true
  podMonitor: {enabled: true, port: 5009}
`

// TestRules compares the rules of a release with the files of deploy/prometheus. A
// release of both server and agents must have all rules. Two releases that share a
// cluster must together have each rule once.
func TestRules(t *testing.T) {
	h := newHelm(t)
	files, err := filepath.Glob(source(t, "deploy", "prometheus", "*.yml"))
	if err != nil {
		t.Fatal(err)
	}
	var all ruleGroups
	for _, file := range files {
		if base := filepath.Base(file); base == "prometheus.yml" || base == "rules_test.yml" {
			continue
		}
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var one ruleGroups
		if err := sigsyaml.UnmarshalStrict(b, &one); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		all.Groups = append(all.Groups, one.Groups...)
	}
	want := all.names()
	whole := get[prometheusRule](h.template(monitored), "r-slipway")
	if got := whole.Spec.names(); !slices.Equal(got, want) || len(want) == 0 {
		t.Errorf("the release has the rules\n%q\nwant\n%q", got, want)
	}
	if whole.Labels["release"] != "prometheus" {
		t.Errorf("the rules' labels are %v", whole.Labels)
	}
	server := get[prometheusRule](h.template(monitored+"  state: installed\n", "--set", "agent.enabled=false"), "r-slipway")
	agents := get[prometheusRule](h.template(monitored, "--set", "server.enabled=false"), "r-slipway")
	both := append(server.Spec.names(), agents.Spec.names()...)
	slices.Sort(both)
	if !slices.Equal(both, want) {
		t.Errorf("two releases have together\n%q\nwant\n%q", both, want)
	}
	for _, name := range agents.Spec.names() {
		if !strings.Contains(name, "agent") && !strings.Contains(name, "gear") {
			t.Errorf("a release of agents has the rule %s", name)
		}
	}
}

// TestBoards checks the ConfigMaps of dashboards: each is one of deploy/grafana, byte for byte.
func TestBoards(t *testing.T) {
	o := newHelm(t).template(monitored)
	boards := 0
	for i, v := range o.list {
		m, ok := v.(*corev1.ConfigMap)
		if !ok || m.Labels["grafana_dashboard"] != "1" {
			continue
		}
		boards++
		if m.Namespace != "monitoring" || len(m.Data) != 1 {
			t.Errorf("%s is in namespace %q and has %d files", o.names[i], m.Namespace, len(m.Data))
		}
		for name, text := range m.Data {
			b, err := os.ReadFile(source(t, "deploy", "grafana", name))
			if err != nil || strings.TrimSpace(string(b)) != strings.TrimSpace(text) || !json.Valid([]byte(text)) {
				t.Errorf("%s is not deploy/grafana/%s: %v", o.names[i], name, err)
			}
		}
	}
	files, err := filepath.Glob(source(t, "deploy", "grafana", "*.json"))
	if err != nil || boards == 0 || boards != len(files)-1 { // no replay runs in a cluster
		t.Errorf("%d boards of %d files, error %v", boards, len(files), err)
	}
}

// TestPodMonitor follows a scrape of an agent from the monitor to the port that the agent listens
// on, with a configuration that the agent takes.
func TestPodMonitor(t *testing.T) {
	h := newHelm(t)
	o := h.template(monitored)
	m := get[podMonitor](o, "r-slipway-agent")
	pod := get[appsv1.DaemonSet](o, "r-slipway-agent").Spec.Template
	for k, v := range m.Spec.Selector.MatchLabels {
		if pod.Labels[k] != v {
			t.Errorf("the monitor selects %s=%s, and the pods have %q", k, v, pod.Labels[k])
		}
	}
	end := m.Spec.PodMetricsEndpoints[0]
	ports := pod.Spec.Containers[0].Ports
	if len(ports) != 1 || ports[0].Name != end.Port || ports[0].ContainerPort != 5009 || !pod.Spec.HostNetwork {
		t.Errorf("the monitor asks port %q; the pods have %v", end.Port, ports)
	}
	jobs := map[string]string{}
	for _, r := range end.Relabelings {
		jobs[r.TargetLabel] = r.Replacement
	}
	if jobs["job"] != "slipway-agent" {
		t.Errorf("the job is %q, and the rules are about slipway-agent", jobs["job"])
	}
	config := get[corev1.Secret](o, "r-slipway-agent").StringData["agent.yml"]
	if !strings.Contains(config, "addr: :5009") {
		t.Errorf("the agent does not listen there:\n%s", config)
	}
	file := filepath.Join(t.TempDir(), "agent.yml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	tool.NewEnv(t.TempDir()).Run(t, slipway.Binary(t), "agent", "config", "check", file)
	without := h.template(strings.Replace(monitored, "podMonitor: {enabled: true", "podMonitor: {enabled: false", 1))
	if c := get[corev1.Secret](without, "r-slipway-agent").StringData["agent.yml"]; strings.Contains(c, "metrics") || without.has("PodMonitor/r-slipway-agent") {
		t.Errorf("without a monitor the agent listens all the same:\n%s", c)
	}
}
