package yamlfile

import (
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
)

// These are prefixes of the variables that set keys. The first is Distribution's, and the
// second is the project's own. Variables with the second prefix override those with the
// first.
const (
	prefixDistribution = "REGISTRY_"
	prefixOwn          = "SLIPWAY_"
)

// kubernetesVar matches variables that Kubernetes sets in every container for a service
// with the name "registry" or "slipway". They are not meant as configuration.
var kubernetesVar = regexp.MustCompile(`_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

// EnvMap converts the strings of os.Environ to a map. If a name occurs twice, the last
// value counts.
func EnvMap(env []string) map[string]string {
	m := make(map[string]string, len(env))
	for _, kv := range env {
		if k, v, ok := strings.Cut(kv, "="); ok {
			m[k] = v
		}
	}
	return m
}

// ApplyEnv overlays the environment on the tree, in the order of rising precedence.
func (o *Overlay) ApplyEnv(env map[string]string) {
	o.applyOTel(env)
	names := slices.SortedFunc(maps.Keys(env), compareNames)
	for _, prefix := range []string{prefixDistribution, prefixOwn} {
		for _, name := range names {
			if rest, ok := strings.CutPrefix(name, prefix); ok {
				o.applyVar(name, prefix, rest, env[name])
			}
		}
	}
}

func (o *Overlay) applyVar(name, prefix, rest, value string) {
	at := Place{Name: "environment variable " + name}
	rt, ok := envRouter(o.Type).find(o.Type, nil, strings.ToUpper(rest))
	if ok {
		o.set(rt, value, at)
		o.Normalize()
		return
	}
	// podman, skopeo and buildah use REGISTRY_AUTH_FILE for the location of credentials.
	if kubernetesVar.MatchString(name) || value == "" || name == "REGISTRY_AUTH_FILE" {
		return
	}
	hint := ""
	if s := nearest(rest, envNames(o.Type, "")); s != "" {
		hint = " (did you mean " + prefix + s + "?)"
	}
	switch section, _, _ := strings.Cut(rest, "_"); {
	case prefix == prefixOwn && indexOf(FieldsOf(o.Type), strings.ToLower(section)) >= 0:
		o.AddProblem(at, "", "sets no key there is"+hint)
	case hint != "" || indexOf(FieldsOf(o.Type), strings.ToLower(section)) >= 0:
		// Distribution ignores names that it does not know, so a container may have many
		// of them.
		o.AddWarning(at, "", "ignored: it sets no key there is"+hint)
	}
}

// envNames lists the variables of all keys that have a name of their own.
func envNames(t reflect.Type, prefix string) []string {
	var names []string
	for _, f := range FieldsOf(t) {
		name := prefix + strings.ToUpper(f.Key)
		names = append(names, name)
		if ShapeOf(f.Type) == ShapeSection {
			names = append(names, envNames(deref(f.Type), name+"_")...)
		}
	}
	return names
}

// applyOTel applies the standard variables of OpenTelemetry. They have no effect unless
// tracing is switched on, here or by OTEL_TRACES_EXPORTER=otlp.
func (o *Overlay) applyOTel(env map[string]string) {
	set := func(name, key, value string) {
		o.set(route{steps: named(key), typ: typeAt(o.Type, named(key))}, value, Place{Name: "environment variable " + name})
	}
	const exporter = "OTEL_TRACES_EXPORTER"
	switch v := env[exporter]; v {
	case "":
	case "otlp":
		set(exporter, "tracing.enabled", "true")
	case "none":
		set(exporter, "tracing.enabled", "false")
	default:
		o.AddWarning(Place{Name: "environment variable " + exporter}, "", "ignored: the exporters are otlp and none")
	}
	if off, _ := parseBool(env["OTEL_SDK_DISABLED"]); off {
		set("OTEL_SDK_DISABLED", "tracing.enabled", "false")
	}
	if v := env["OTEL_EXPORTER_OTLP_ENDPOINT"]; v != "" {
		// SPEC: OTLP exporter: the signal's path is appended to the base URL.
		set("OTEL_EXPORTER_OTLP_ENDPOINT", "tracing.endpoint", strings.TrimSuffix(v, "/")+"/v1/traces")
	}
	if v := env["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"]; v != "" {
		set("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "tracing.endpoint", v)
	}
	if v := env["OTEL_SERVICE_NAME"]; v != "" {
		set("OTEL_SERVICE_NAME", "tracing.service_name", v)
	}
}
