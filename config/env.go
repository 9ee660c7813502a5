package config

import (
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
)

// Prefixes of the variables that set keys. The second, ours, outweighs the
// first, which is Distribution's.
const (
	prefixDistribution = "REGISTRY_"
	prefixOwn          = "SLIPWAY_"
)

// kubernetesVar matches what Kubernetes puts into every container for a service
// called "registry" or "slipway". Those are nobody's configuration.
var kubernetesVar = regexp.MustCompile(`_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

// envMap turns the strings of os.Environ into a map; the last of a name counts.
func envMap(env []string) map[string]string {
	m := make(map[string]string, len(env))
	for _, kv := range env {
		if k, v, ok := strings.Cut(kv, "="); ok {
			m[k] = v
		}
	}
	return m
}

// applyEnv lays the environment over the tree, the weakest names first.
func (o *overlay) applyEnv(env map[string]string) {
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

func (o *overlay) applyVar(name, prefix, rest, value string) {
	at := place{name: "environment variable " + name}
	rt, ok := envRouter.find(reflect.TypeFor[Config](), nil, strings.ToUpper(rest))
	if ok {
		o.set(rt, value, at)
		o.normalize()
		return
	}
	// REGISTRY_AUTH_FILE is where podman, skopeo and buildah keep credentials.
	if kubernetesVar.MatchString(name) || value == "" || name == "REGISTRY_AUTH_FILE" {
		return
	}
	hint := ""
	if s := nearest(rest, envNames(reflect.TypeFor[Config](), "")); s != "" {
		hint = " (did you mean " + prefix + s + "?)"
	}
	switch section, _, _ := strings.Cut(rest, "_"); {
	case prefix == prefixOwn && indexOf(fieldsOf(reflect.TypeFor[Config]()), strings.ToLower(section)) >= 0:
		o.problem(at, "", "sets no key there is"+hint)
	case hint != "" || indexOf(fieldsOf(reflect.TypeFor[Config]()), strings.ToLower(section)) >= 0:
		// Distribution passes over names it does not know, and so a container
		// may be full of them.
		o.warn(at, "", "ignored: it sets no key there is"+hint)
	}
}

// envNames lists the variables of all keys that have a name of their own.
func envNames(t reflect.Type, prefix string) []string {
	var names []string
	for _, f := range fieldsOf(t) {
		name := prefix + strings.ToUpper(f.key)
		names = append(names, name)
		if shapeOf(f.typ) == shapeSection {
			names = append(names, envNames(deref(f.typ), name+"_")...)
		}
	}
	return names
}

// applyOTel takes over the standard variables of OpenTelemetry. They have no
// effect unless tracing is switched on, here or by OTEL_TRACES_EXPORTER=otlp.
func (o *overlay) applyOTel(env map[string]string) {
	set := func(name, key, value string) {
		o.set(route{steps: named(key), typ: typeAt(named(key))}, value, place{name: "environment variable " + name})
	}
	const exporter = "OTEL_TRACES_EXPORTER"
	switch v := env[exporter]; v {
	case "":
	case "otlp":
		set(exporter, "tracing.enabled", "true")
	case "none":
		set(exporter, "tracing.enabled", "false")
	default:
		o.warn(place{name: "environment variable " + exporter}, "", "ignored: the exporters are otlp and none")
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
