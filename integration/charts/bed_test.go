package charts

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	sigsyaml "sigs.k8s.io/yaml"

	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/tool"
)

// source returns the path of a file of the source tree. Commands run elsewhere.
func source(t *testing.T, path ...string) string {
	t.Helper()
	abs, err := filepath.Abs(filepath.Join(append([]string{"..", ".."}, path...)...))
	if err != nil {
		t.Fatal(err)
	}
	return abs
}

// chart returns the directory of the chart.
func chart(t *testing.T) string { return source(t, "deploy", "helm", "slipway") }

// kinds are the objects that manifests may contain, by apiVersion and kind.
var kinds = map[string]func() any{
	"v1/Namespace":                       func() any { return new(corev1.Namespace) },
	"v1/ConfigMap":                       func() any { return new(corev1.ConfigMap) },
	"v1/Secret":                          func() any { return new(corev1.Secret) },
	"v1/Service":                         func() any { return new(corev1.Service) },
	"v1/ServiceAccount":                  func() any { return new(corev1.ServiceAccount) },
	"v1/PersistentVolumeClaim":           func() any { return new(corev1.PersistentVolumeClaim) },
	"v1/Pod":                             func() any { return new(corev1.Pod) },
	"apps/v1/Deployment":                 func() any { return new(appsv1.Deployment) },
	"apps/v1/StatefulSet":                func() any { return new(appsv1.StatefulSet) },
	"apps/v1/DaemonSet":                  func() any { return new(appsv1.DaemonSet) },
	"networking.k8s.io/v1/Ingress":       func() any { return new(networkingv1.Ingress) },
	"networking.k8s.io/v1/NetworkPolicy": func() any { return new(networkingv1.NetworkPolicy) },
	"policy/v1/PodDisruptionBudget":      func() any { return new(policyv1.PodDisruptionBudget) },
	// The operator's types are not part of Kubernetes.
	"monitoring.coreos.com/v1/ServiceMonitor": func() any { return new(map[string]any) },
	"monitoring.coreos.com/v1/PodMonitor":     func() any { return new(podMonitor) },
	"monitoring.coreos.com/v1/PrometheusRule": func() any { return new(prometheusRule) },
}

// objects are the objects in manifests.
type objects struct {
	t    *testing.T
	list []any
	// names holds kind/name of each object.
	names []string
}

// decode reads manifests strictly: an unknown or repeated key is an error.
func decode(t *testing.T, text string) objects {
	t.Helper()
	o := objects{t: t}
	r := yaml.NewYAMLReader(bufio.NewReader(strings.NewReader(text)))
	for {
		doc, err := r.Read()
		if errors.Is(err, io.EOF) {
			return o
		}
		if err != nil {
			t.Fatal(err)
		}
		var head struct {
			APIVersion, Kind string
			Metadata         struct{ Name string }
		}
		if err := sigsyaml.Unmarshal(doc, &head); err != nil {
			t.Fatalf("%v in\n%s", err, doc)
		}
		if head.Kind == "" {
			continue // the document holds only comments
		}
		mk := kinds[head.APIVersion+"/"+head.Kind]
		if mk == nil {
			t.Fatalf("%s/%s is no object that is expected", head.APIVersion, head.Kind)
		}
		v := mk()
		if err := sigsyaml.UnmarshalStrict(doc, v); err != nil {
			t.Fatalf("%s %s: %v\n%s", head.Kind, head.Metadata.Name, err, doc)
		}
		o.list = append(o.list, v)
		o.names = append(o.names, head.Kind+"/"+head.Metadata.Name)
	}
}

// has reports whether there is an object kind/name.
func (o objects) has(name string) bool {
	for _, n := range o.names {
		if n == name {
			return true
		}
	}
	return false
}

// get returns the object of this kind and name, which must exist.
func get[T any](o objects, name string) *T {
	o.t.Helper()
	for i, v := range o.list {
		if x, ok := v.(*T); ok && strings.HasSuffix(o.names[i], "/"+name) {
			return x
		}
	}
	o.t.Fatalf("no %s %s among %v", reflect.TypeFor[T](), name, o.names)
	return nil
}

// helm is a helm with its own home.
type helm struct {
	t    *testing.T
	path string
	env  *tool.Env
}

func newHelm(t *testing.T) *helm {
	t.Helper()
	return &helm{t: t, path: tool.Built(t, "helm"), env: tool.NewEnv(t.TempDir())}
}

// values writes a file of values and returns the flags that name it.
func (h *helm) values(text string) []string {
	h.t.Helper()
	file := filepath.Join(h.t.TempDir(), "values.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		h.t.Fatal(err)
	}
	return []string{"--values", file}
}

// template renders the chart as release r in namespace default.
func (h *helm) template(values string, flags ...string) objects {
	h.t.Helper()
	return decode(h.t, h.env.Run(h.t, h.path, append(append([]string{"template", "r", chart(h.t)}, h.values(values)...), flags...)...))
}

// refused renders invalid values and returns helm's message.
func (h *helm) refused(values string) string {
	h.t.Helper()
	return h.env.RunFailing(h.t, h.path, append([]string{"template", "r", chart(h.t)}, h.values(values)...)...)
}

// checkConfig runs slipway config check on the configuration of a pod, with stand-ins for the files
// of its secrets, and with the pod's own variables.
func checkConfig(t *testing.T, config string, env ...string) {
	t.Helper()
	dir := t.TempDir()
	key, cert := certificate(t)
	for name, text := range map[string]string{
		"htpasswd/htpasswd": users, "tls/tls.crt": cert, "tls/tls.key": key, "token/token.key": key,
		"s3/accesskey": "a", "s3/secretkey": "b", "swift/username": "u", "swift/password": "p",
		"postgres/url": "postgres://u:p@db/slipway", "cluster/secret": strings.Repeat("5", 64), "webhook/key": "w", "hub/password": "p",
		"prod/jwks.json": `{"keys": [{"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}`,
	} {
		file := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(dir, "config.yml")
	config = strings.NewReplacer("/run/secrets/slipway", dir, "/etc/slipway/users", filepath.Join(dir, "htpasswd", "htpasswd")).Replace(config)
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	e := tool.NewEnv(dir, env...)
	e.Run(t, slipway.Binary(t), "config", "check", file)
}

// podEnv returns the variables of a pod's first container, as NAME=value.
func podEnv(pod corev1.PodSpec) []string {
	var env []string
	for _, e := range pod.Containers[0].Env {
		env = append(env, e.Name+"="+strings.ReplaceAll(e.Value, "$(SLIPWAY_CLUSTER_ID)", "r-slipway-0"))
	}
	return env
}

// users holds bob, whose password is "secret".
const users = "bob:$2y$05$abcdefghijklmnopqrstuuOQiyCxlgf/oeuTqixKmWdcYUh4Hjl0a\n"

// certificate returns a self-signed certificate and its key, as PEM.
func certificate(t *testing.T) (key, cert string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"registry.example.com"}}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	b, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	enc := func(typ string, b []byte) string { return string(pem.EncodeToMemory(&pem.Block{Type: typ, Bytes: b})) }
	return enc("PRIVATE KEY", b), enc("CERTIFICATE", der)
}
