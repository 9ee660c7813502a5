package charts

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"sigs.k8s.io/yaml"

	"example.org/slipway/integration/internal/tool"
)

const (
	// one is the smallest set of values: one server, one volume.
	one = `
image: {repository: registry.example.com/slipway}
htpasswd: {existingSecret: users}
`
	// shared has everything that several replicas may have.
	shared = `
image: {repository: registry.example.com/slipway, digest: "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", pullSecrets: [pull]}
replicas: 3
config:
  storage: {s3: {bucket: images, region: eu-central-1}, blob_cache: {ssd: 40GiB}}
  gear: {max_entries: 1000000}
  notifications: {endpoints: [{name: hook, url: "https://hook.example.com/", secret: "${file:/run/secrets/slipway/webhook/key}"}]}
htpasswd: {existingSecret: users}
tls: {existingSecret: cert}
s3: {existingSecret: store}
postgres: {existingSecret: db}
cluster: {existingSecret: peers}
tokenKey: {existingSecret: token}
extraSecrets: [{name: webhook}]
networkPolicy: {enabled: true, metricsFrom: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}]}
ingress: {enabled: true, className: nginx, hosts: [registry.example.com], tls: [{secretName: cert, hosts: [registry.example.com]}]}
metrics: {serviceMonitor: {enabled: true, labels: {release: prometheus}}}
serviceAccount: {annotations: {eks.amazonaws.com/role-arn: "arn:aws:iam::1:role/registry"}}
`
)

func TestLint(t *testing.T) {
	h := newHelm(t)
	for _, values := range []string{one, shared, "image: {repository: r.example.com/s}\nagent: {enabled: true}\nserver: {enabled: false}\n"} {
		h.env.Run(t, h.path, append([]string{"lint", "--strict", chart(t)}, h.values(values)...)...)
	}
}

// TestOneServer renders what most people install.
func TestOneServer(t *testing.T) {
	o := newHelm(t).template(one)
	d := get[appsv1.Deployment](o, "r-slipway")
	if *d.Spec.Replicas != 1 || d.Spec.Strategy.Type != appsv1.RecreateDeploymentStrategyType {
		t.Errorf("got %d replicas and strategy %q, want one server that goes before the next comes", *d.Spec.Replicas, d.Spec.Strategy.Type)
	}
	hardened(t, d.Spec.Template.Spec)
	claim := get[corev1.PersistentVolumeClaim](o, "r-slipway-data")
	if claim.Annotations["helm.sh/resource-policy"] != "keep" {
		t.Errorf("the claim's annotations are %v, want it kept when the release is removed", claim.Annotations)
	}
	checkConfig(t, get[corev1.ConfigMap](o, "r-slipway").Data["config.yml"])
	wired(t, o, d.Spec.Selector.MatchLabels, d.Spec.Template)
	for _, n := range []string{"StatefulSet/r-slipway", "Ingress/r-slipway", "DaemonSet/r-slipway-agent", "PodDisruptionBudget/r-slipway", "NetworkPolicy/r-slipway", "ServiceMonitor/r-slipway"} {
		if o.has(n) {
			t.Errorf("%s is rendered without having been asked for", n)
		}
	}
}

// TestReplicas renders several servers over one bucket and one database.
func TestReplicas(t *testing.T) {
	o := newHelm(t).template(shared)
	s := get[appsv1.StatefulSet](o, "r-slipway")
	if *s.Spec.Replicas != 3 || s.Spec.ServiceName != "r-slipway-peers" || len(s.Spec.VolumeClaimTemplates) != 1 {
		t.Errorf("got %d replicas, service %q, %d claims; want 3, r-slipway-peers, 1", *s.Spec.Replicas, s.Spec.ServiceName, len(s.Spec.VolumeClaimTemplates))
	}
	pod := s.Spec.Template.Spec
	hardened(t, pod)
	if want := "registry.example.com/slipway@sha256:" + strings.Repeat("a", 64); pod.Containers[0].Image != want || len(pod.ImagePullSecrets) != 1 {
		t.Errorf("image %q, pull secrets %v", pod.Containers[0].Image, pod.ImagePullSecrets)
	}
	config := get[corev1.ConfigMap](o, "r-slipway").Data["config.yml"]
	if !strings.Contains(config, "max_entries: 1000000\n") {
		t.Errorf("a large number is not written as one:\n%s", config)
	}
	checkConfig(t, config, podEnv(pod)...)
	wired(t, o, s.Spec.Selector.MatchLabels, s.Spec.Template)
	if p := get[policyv1.PodDisruptionBudget](o, "r-slipway"); p.Spec.MaxUnavailable.IntValue() != 1 {
		t.Errorf("%v may be unavailable, want 1", p.Spec.MaxUnavailable)
	}
	if n := get[networkingv1.NetworkPolicy](o, "r-slipway"); len(n.Spec.Ingress) != 3 || n.Spec.Ingress[0].From != nil || len(n.Spec.Ingress[1].From) != 2 || len(n.Spec.Ingress[2].From) != 1 {
		t.Errorf("network policy: %+v", n.Spec.Ingress)
	}
	in := get[networkingv1.Ingress](o, "r-slipway")
	if b := in.Spec.Rules[0].HTTP.Paths[0].Backend.Service; b.Name != "r-slipway" || b.Port.Number != 5000 || *in.Spec.IngressClassName != "nginx" {
		t.Errorf("ingress: %+v", in.Spec)
	}
	if !o.has("ServiceMonitor/r-slipway") || o.has("PersistentVolumeClaim/r-slipway-data") {
		t.Errorf("objects: %v", o.names)
	}
}

// hardened checks that a server's pod may do no more than it must.
func hardened(t *testing.T, pod corev1.PodSpec) {
	t.Helper()
	c := pod.Containers[0]
	switch {
	case *pod.AutomountServiceAccountToken, !*pod.SecurityContext.RunAsNonRoot, *pod.SecurityContext.RunAsUser != 65532,
		pod.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault,
		!*c.SecurityContext.ReadOnlyRootFilesystem, *c.SecurityContext.AllowPrivilegeEscalation,
		!slices.Equal(c.SecurityContext.Capabilities.Drop, []corev1.Capability{"ALL"}), c.Resources.Limits.Memory().IsZero():
		t.Errorf("pod may do more than it must: %+v %+v", pod.SecurityContext, c.SecurityContext)
	}
	if c.LivenessProbe.HTTPGet.Path != "/livez" || c.ReadinessProbe.HTTPGet.Path != "/readyz" || c.StartupProbe == nil {
		t.Errorf("probes: %+v %+v", c.LivenessProbe, c.ReadinessProbe)
	}
}

// wired checks that selectors find the pods, that ports have names that exist, and that each mount
// has a volume.
func wired(t *testing.T, o objects, selector map[string]string, pod corev1.PodTemplateSpec) {
	t.Helper()
	c := pod.Spec.Containers[0]
	selects := func(who string, sel map[string]string) {
		t.Helper()
		for k, v := range sel {
			if pod.Labels[k] != v {
				t.Errorf("%s selects %s=%s, and the pods have %q", who, k, v, pod.Labels[k])
			}
		}
	}
	selects("the controller", selector)
	for _, name := range []string{"r-slipway", "r-slipway-metrics"} {
		s := get[corev1.Service](o, name)
		selects("service "+name, s.Spec.Selector)
		for _, p := range s.Spec.Ports {
			if !slices.ContainsFunc(c.Ports, func(cp corev1.ContainerPort) bool { return cp.Name == p.TargetPort.String() }) {
				t.Errorf("service %s leads to port %s, which the pod does not have", name, p.TargetPort.String())
			}
		}
	}
	volumes := map[string]bool{}
	for _, v := range pod.Spec.Volumes {
		volumes[v.Name] = true
	}
	if o.has("StatefulSet/r-slipway") {
		volumes["data"] = true
	}
	for _, m := range c.VolumeMounts {
		if !volumes[m.Name] {
			t.Errorf("mount of %s has no volume", m.Name)
		}
	}
	if o.get("ServiceAccount/"+pod.Spec.ServiceAccountName) == nil {
		t.Errorf("service account %s is not made", pod.Spec.ServiceAccountName)
	}
}

// get returns the object kind/name, or nil.
func (o objects) get(name string) any {
	if i := slices.Index(o.names, name); i >= 0 {
		return o.list[i]
	}
	return nil
}

// TestConfigs checks the chart's output for further configurations.
func TestConfigs(t *testing.T) {
	h := newHelm(t)
	for name, values := range map[string]string{
		"swift":          "config: {storage: {swift: {authurl: 'https://k.example.com:5000/v3', container: images}}}\nswift: {existingSecret: s}\nhtpasswd: {existingSecret: u}\n",
		"everybody":      "config: {http: {insecure_open_to_network: true}}\n",
		"mirror":         "config: {proxy: {upstreams: [{name: docker.io}], max_bytes: 500GiB}, auth: {access: [{repositories: ['**'], subjects: [anonymous], actions: [pull]}]}}\nhtpasswd: {existingSecret: u}\n",
		"another prefix": "config: {http: {prefix: /registry/, trusted_proxies: [10.0.0.0/8]}}\nhtpasswd: {existingSecret: u}\npersistence: {enabled: false}\n",
		"tokens":         "tokenKey: {existingSecret: k}\nhtpasswd: {existingSecret: u}\n",
		"role of a pod":  "config: {storage: {s3: {bucket: images, region: eu-central-1}}}\nhtpasswd: {existingSecret: u}\n",
	} {
		t.Run(name, func(t *testing.T) {
			o := h.template("image: {repository: registry.example.com/slipway}\n" + values)
			checkConfig(t, get[corev1.ConfigMap](o, "r-slipway").Data["config.yml"])
		})
	}
}

// TestGuards renders values that would not work, and expects a helpful message.
func TestGuards(t *testing.T) {
	h := newHelm(t)
	const image = "image: {repository: registry.example.com/slipway}\n"
	for name, c := range map[string]struct{ values, want string }{
		"no image":          {"htpasswd: {existingSecret: u}\n", "image.repository is not set: push the image of the release to a registry of yours"},
		"nobody has access": {image, "set htpasswd.existingSecret or config.auth"},
		"two in a volume":   {image + "htpasswd: {existingSecret: u}\nreplicas: 2\n", "replicas is 2, but a registry in one volume has one server: set config.storage.s3 or config.storage.swift and postgres.existingSecret"},
		"no database":       {image + "htpasswd: {existingSecret: u}\nreplicas: 2\nconfig: {storage: {s3: {bucket: b}}}\n", "postgres.existingSecret"},
		"no bucket":         {image + "htpasswd: {existingSecret: u}\ns3: {existingSecret: s}\n", "config.storage.s3 is not: name the bucket there"},
		"no token key":      {image + "postgres: {existingSecret: p}\nreplicas: 2\nconfig: {storage: {s3: {bucket: b}}, auth: {token: {builtin: true}}}\n", "set tokenKey.existingSecret"},
		"a lone peer":       {image + "htpasswd: {existingSecret: u}\ncluster: {existingSecret: c}\n", "cluster.existingSecret is for several replicas"},
		"no name":           {image + "htpasswd: {existingSecret: u}\ningress: {enabled: true}\n", "a name of the registry in ingress.hosts"},
		// The schema refuses these values.
		"misspelt":        {image + "htpasswd: {existingSecret: u}\nreplica: 2\n", "replica"},
		"a word":          {image + "htpasswd: {existingSecret: u}\nreplicas: two\n", "replicas"},
		"a tag inside":    {"image: {repository: 'registry.example.com/slipway:1'}\nhtpasswd: {existingSecret: u}\n", "image/repository"},
		"another state":   {image + "htpasswd: {existingSecret: u}\nagent: {state: gone}\n", "agent/state"},
		"not a size":      {image + "htpasswd: {existingSecret: u}\npersistence: {size: plenty}\n", "persistence/size"},
		"a key of config": {image + "htpasswd: {existingSecret: u}\nconfig: {http: {trusted_proxy: [10.0.0.0/8]}}\n", "trusted_proxy"},
		"of the agent":    {image + "htpasswd: {existingSecret: u}\nagent: {config: {cache: {max_byte: 1GiB}}}\n", "max_byte"},
		"a taken name":    {image + "htpasswd: {existingSecret: u}\nextraSecrets: [{name: tls}]\n", "extraSecrets/0/name"},
	} {
		t.Run(name, func(t *testing.T) {
			got := strings.ReplaceAll(h.refused(c.values), ".", "/")
			if want := strings.ReplaceAll(c.want, ".", "/"); !strings.Contains(got, want) {
				t.Errorf("got %q, want %q in it", got, c.want)
			}
		})
	}
}

// TestOlderValues renders values that lack a part, as values do that are reused from an older chart.
// The chart either does without the part or says what to do.
func TestOlderValues(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(chart(t), "values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var all map[string]any
	if err := yaml.Unmarshal(b, &all); err != nil {
		t.Fatal(err)
	}
	var parts [][]string
	for name, v := range all {
		below, ok := v.(map[string]any)
		if !ok {
			continue
		}
		parts = append(parts, []string{name})
		for inner, v := range below {
			if _, ok := v.(map[string]any); ok {
				parts = append(parts, []string{name, inner})
			}
		}
	}
	h := newHelm(t)
	refused := 0
	for _, part := range parts {
		values := map[string]any{"image": map[string]any{"repository": "registry.example.com/slipway"}, "htpasswd": map[string]any{"existingSecret": "u"}, "agent": map[string]any{"enabled": true}}
		at := values
		for _, name := range part[:len(part)-1] {
			if _, ok := at[name].(map[string]any); !ok {
				at[name] = map[string]any{}
			}
			at = at[name].(map[string]any)
		}
		at[part[len(part)-1]] = nil // removes the default
		text, err := yaml.Marshal(values)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := h.env.Try(t.Context(), h.path, append([]string{"template", "r", chart(t)}, h.values(string(text))...)...); err != nil {
			refused++
			if !strings.Contains(err.Error(), "the values have no "+strings.Join(part, ".")+",") || !strings.Contains(err.Error(), "--reset-then-reuse-values") {
				t.Errorf("without %v: %v", part, err)
			}
		}
	}
	if refused < 10 {
		t.Errorf("only %d of %d values were refused", refused, len(parts))
	}
}

// TestManifests decodes deploy/kubernetes, and checks that it equals the chart's output.
func TestManifests(t *testing.T) {
	h := newHelm(t)
	for _, name := range []string{"server", "replicas", "agent"} {
		b, err := os.ReadFile(source(t, "deploy", "kubernetes", name+".yaml"))
		if err != nil {
			t.Fatal(err)
		}
		o := decode(t, string(b))
		if !o.has("Namespace/slipway") || strings.Contains(string(b), "helm.sh/") {
			t.Errorf("%s.yaml: objects %v", name, o.names)
		}
		if c, ok := o.get("ConfigMap/slipway").(*corev1.ConfigMap); ok {
			var env []string
			if s, ok := o.get("StatefulSet/slipway").(*appsv1.StatefulSet); ok {
				env = podEnv(s.Spec.Template.Spec)
			}
			checkConfig(t, c.Data["config.yml"], env...)
		}
	}
	env := tool.NewEnv(h.env.Dir(), "SLIPWAY_TOOLS="+filepath.Dir(tool.Dir()))
	if out := env.Run(t, "bash", source(t, "scripts", "gen-manifests.sh"), "--check"); out != "" {
		t.Errorf("scripts/gen-manifests.sh --check: %s", out)
	}
}

// TestDocumentedValues renders the values in docs/kubernetes.md, and checks the resulting
// configurations.
func TestDocumentedValues(t *testing.T) {
	h := newHelm(t)
	b, err := os.ReadFile(source(t, "docs", "kubernetes.md"))
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(string(b), "```yaml\n")[1:]
	if len(blocks) < 3 {
		t.Fatalf("%d blocks of values in docs/kubernetes.md", len(blocks))
	}
	base := h.values(one)
	for _, block := range blocks {
		text, _, _ := strings.Cut(block, "```")
		if strings.Contains(text, "\nkind: ") {
			continue // an object of Kubernetes
		}
		o := decode(t, h.env.Run(t, h.path, append(append([]string{"template", "r", chart(t)}, base...), h.values(text)...)...))
		var env []string
		if s, ok := o.get("StatefulSet/r-slipway").(*appsv1.StatefulSet); ok {
			env = podEnv(s.Spec.Template.Spec)
		}
		checkConfig(t, get[corev1.ConfigMap](o, "r-slipway").Data["config.yml"], env...)
	}
}
