package charts

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// notes renders what helm prints after an installation. Without a cluster helm prints nothing, so
// a copy of the chart has the notes in an object.
func (h *helm) notes(values string) string {
	h.t.Helper()
	dir := filepath.Join(h.t.TempDir(), "slipway")
	h.env.Run(h.t, "cp", "-rL", chart(h.t), dir)
	text, err := os.ReadFile(filepath.Join(dir, "templates", "NOTES.txt"))
	if err != nil {
		h.t.Fatal(err)
	}
	object := "{{ define \"notes\" }}" + string(text) + "{{ end }}\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: notes}\ndata:\n  text: |\n    {{- include \"notes\" . | nindent 4 }}\n"
	if err := os.WriteFile(filepath.Join(dir, "templates", "notes.yaml"), []byte(object), 0o600); err != nil {
		h.t.Fatal(err)
	}
	args := append([]string{"template", "r", dir, "--namespace", "images"}, h.values(values)...)
	return get[corev1.ConfigMap](decode(h.t, h.env.Run(h.t, h.path, args...)), "notes").Data["text"]
}

// TestNotes checks that the notes of each kind of installation name the next step.
func TestNotes(t *testing.T) {
	t.Parallel()
	h := newHelm(t)
	agents := "image: {repository: r.example.com/s}\nserver: {enabled: false}\nagent:\n  enabled: true\n"
	for name, c := range map[string]struct {
		values     string
		says, none []string
	}{
		"one server": {one, []string{
			"kubectl -n images rollout status deployment/r-slipway", "helm -n images test r", "port-forward service/r-slipway 5000:5000", "The agent on nodes",
		}, []string{"docker login", "daemonset", "persistence"}},
		"replicas":      {shared, []string{"rollout status statefulset/r-slipway", "docker push registry.example.com/team/app:1"}, []string{"port-forward"}},
		"load balancer": {one + "service: {type: LoadBalancer}\n", []string{"get service r-slipway"}, []string{"port-forward"}},
		"no volume":     {one + "persistence: {enabled: false}\n", []string{"everything is gone with the pod"}, nil},
		"agents that load nothing": {agents, []string{
			"rollout status daemonset/r-slipway-agent", "--container installed", "agent.config.registries is empty", "agent.state=removed",
		}, []string{"docker push"}},
		"agents":                {agents + "  config: {registries: [{host: registry.example.com}]}\n", []string{"a pod of an image of registry.example.com"}, []string{"is empty"}},
		"agents that are to go": {agents + "  state: removed\n", []string{"--container removed"}, []string{"agent.state=removed", "is empty"}},
	} {
		text := h.notes(c.values)
		for _, want := range c.says {
			if !strings.Contains(text, want) {
				t.Errorf("%s: the notes are\n%s\nwant %q in them", name, text, want)
			}
		}
		for _, no := range c.none {
			if strings.Contains(text, no) {
				t.Errorf("%s: the notes are\n%s\nwant nothing of %q", name, text, no)
			}
		}
	}
}
