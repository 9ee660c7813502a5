package config_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

	"example.org/slipway/config"
)

// conform checks a value against the part of JSON Schema that Schema uses, and returns
// the violations.
func conform(schema map[string]any, value any, path string) []string {
	var bad []string
	if types := oneOrMore(schema["type"]); len(types) > 0 && !slices.ContainsFunc(types, func(t string) bool { return isType(value, t) }) {
		return []string{fmt.Sprintf("%s: %T is none of %v", path, value, types)}
	}
	if enum, ok := schema["enum"].([]any); ok && !slices.ContainsFunc(enum, func(e any) bool { return fmt.Sprint(e) == fmt.Sprint(value) }) {
		bad = append(bad, fmt.Sprintf("%s: %v is none of %v", path, value, enum))
	}
	if p, ok := schema["pattern"].(string); ok {
		if s, isText := value.(string); isText && !regexp.MustCompile(p).MatchString(s) {
			bad = append(bad, fmt.Sprintf("%s: %q does not match %s", path, s, p))
		}
	}
	if least, ok := schema["minimum"].(float64); ok {
		if n, isNum := number(value); isNum && n < least {
			bad = append(bad, fmt.Sprintf("%s: %v is below %v", path, n, least))
		}
	}
	switch v := value.(type) {
	case map[string]any:
		props, _ := schema["properties"].(map[string]any)
		for key, val := range v {
			sub, known := props[key].(map[string]any)
			if more, ok := schema["additionalProperties"].(map[string]any); !known && ok {
				sub, known = more, true
			}
			if !known && schema["additionalProperties"] != false {
				continue
			}
			if !known {
				bad = append(bad, path+"."+key+": not in the schema")
				continue
			}
			bad = append(bad, conform(sub, val, path+"."+key)...)
		}
		for _, key := range oneOrMore(schema["required"]) {
			if _, ok := v[key]; !ok {
				bad = append(bad, path+"."+key+": is missing")
			}
		}
	case []any:
		items, _ := schema["items"].(map[string]any)
		for i, it := range v {
			bad = append(bad, conform(items, it, fmt.Sprintf("%s[%d]", path, i))...)
		}
	}
	return bad
}

func oneOrMore(x any) []string {
	switch x := x.(type) {
	case string:
		return []string{x}
	case []any:
		var out []string
		for _, e := range x {
			out = append(out, fmt.Sprint(e))
		}
		return out
	}
	return nil
}

func number(x any) (float64, bool) {
	v := reflect.ValueOf(x)
	switch {
	case v.IsValid() && v.CanInt():
		return float64(v.Int()), true
	case v.IsValid() && v.CanFloat():
		return v.Float(), true
	}
	return 0, false
}

func isType(x any, name string) bool {
	n, isNum := number(x)
	switch name {
	case "null":
		return x == nil
	case "object":
		_, ok := x.(map[string]any)
		return ok
	case "array":
		_, ok := x.([]any)
		return ok
	case "string":
		_, ok := x.(string)
		return ok
	case "boolean":
		_, ok := x.(bool)
		return ok
	case "integer":
		return isNum && n == float64(int64(n))
	default:
		return name == "number" && isNum
	}
}

func SchemaOf(t *testing.T) map[string]any {
	t.Helper()
	var s map[string]any
	if err := json.Unmarshal(config.Schema(), &s); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSchema(t *testing.T) {
	s := SchemaOf(t)
	for _, tc := range []struct{ name, text, bad string }{
		{"example", config.Example(), ""},
		{"another name, foreign keys and words", "version: 0.1\nstorage: {root: /x, inmemory: , cache: {blobdescriptor: redis}}\nredis: {addr: a}\nauth: htpasswd", ""},
		{"unknown key", "version: 0.1\nhttp: {adr: x}", "$.http.adr: not in the schema"},
		{"wrong type", "version: 0.1\nhttp: {relativeurls: 3}", "$.http.relativeurls: int is none of [boolean]"},
		{"wrong word", "version: 0.1\nlog: {level: loud}", "$.log.level: loud is none of [error warn info debug]"},
		{"wrong duration", "version: 0.1\nhttp: {draintimeout: soon}", `$.http.draintimeout: "soon" does not match`},
		{"too small", "version: 0.1\nhttp: {limits: {upload_sessions: 0}}", "$.http.limits.upload_sessions: 0 is below 1"},
		{"no version", "http: {}", "$.version: is missing"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var doc any
			if err := yaml.Load([]byte(tc.text), &doc); err != nil {
				t.Fatal(err)
			}
			got := strings.Join(conform(s, doc, "$"), "\n")
			if tc.bad == "" && got != "" || !strings.HasPrefix(got, tc.bad) {
				t.Errorf("got %q, want %q", got, tc.bad)
			}
		})
	}
}

// TestEveryKeyIsDescribed checks that every key is described, also those whose structs
// belong to other packages.
func TestEveryKeyIsDescribed(t *testing.T) {
	var walk func(s map[string]any, path string) int
	walk = func(s map[string]any, path string) int {
		n := 0
		props, _ := s["properties"].(map[string]any)
		for key, sub := range props {
			n++
			p := sub.(map[string]any)
			if d, _ := p["description"].(string); len(d) < 5 {
				t.Errorf("%s.%s has no description", path, key)
			}
			n += walk(p, path+"."+key)
		}
		if items, ok := s["items"].(map[string]any); ok {
			n += walk(items, path+"[]")
		}
		return n
	}
	if n := walk(SchemaOf(t), ""); n < 150 {
		t.Errorf("the schema has %d keys only", n)
	}
}

func TestExampleIsDefault(t *testing.T) {
	c, ws, err := parse(config.Example())
	if err != nil || len(ws) > 0 {
		t.Fatalf("Parse(Example()): %v, warnings %v", err, ws)
	}
	if d := diff(config.Default(), c); d != "" {
		t.Errorf("Example differs from Default (-default +example):\n%s", d)
	}
	//lint:ignore SA4000 two calls are compared
	if config.Example() != config.Example() || string(config.Schema()) != string(config.Schema()) {
		t.Error("Example or Schema differ from call to call")
	}
}

// TestExampleComments checks that the commented samples of the example work after
// removing "# ". A line of a description may begin with "Example:", which is not a key.
func TestExampleComments(t *testing.T) {
	yamlKey := regexp.MustCompile(`^( *)# ( *)(- |-$|[a-z_A-Z0-9-]+:( |$))(.*)$`)
	var out []string
	for line := range strings.Lines(config.Example()) {
		line = strings.TrimSuffix(line, "\n")
		if m := yamlKey.FindStringSubmatch(line); m != nil && !strings.Contains(line, "# # ") && !strings.Contains(m[5], ";") && m[3] != "Example: " {
			// The sample replaces the default of the same key.
			if i := len(out) - 1; i >= 0 && strings.HasPrefix(out[i], m[1]+m[2]+strings.TrimSpace(m[3])+" ") {
				out = out[:i]
			}
			line = m[1] + m[2] + m[3] + m[5]
		}
		out = append(out, line)
	}
	text := strings.Join(out, "\n")
	c, _, err := config.Parse(strings.NewReader(text), &config.Options{
		// The example shows alternatives, so choose one driver, and add what auth.mtls
		// needs.
		Env: []string{
			"SLIPWAY_STORAGE=filesystem", "SLIPWAY_HTTP_TLS_CLIENTCAS_0=/ca",
			"SLIPWAY_HTTP_TLS_CERTIFICATE=/c", "SLIPWAY_HTTP_TLS_KEY=/k",
		},
		ReadFile: func(string) ([]byte, error) { return []byte("x"), nil },
	})
	if err != nil {
		t.Fatalf("the example uncommented: %v\n%s", err, text)
	}
	for name, n := range map[string]int{
		"log.fields": len(c.Log.Fields), "storage.immutable_tags": len(c.Storage.ImmutableTags),
		"storage.retention": len(c.Storage.Retention), "http.headers": len(c.HTTP.Headers),
		"http.tls.ciphersuites": len(c.HTTP.TLS.CipherSuites), "auth.oidc": len(c.Auth.OIDC), "auth.access": len(c.Auth.Access),
		"notifications.endpoints": len(c.Notifications.Endpoints), "health.http": len(c.Health.HTTP),
		"validation.manifests.indexes.platformlist": len(c.Validation.Manifests.Indexes.PlatformList),
		"tracing.headers": len(c.Tracing.Headers),
	} {
		if n != 1 {
			t.Errorf("the example uncommented: %s has %d entries, want 1\n%s", name, n, text)
		}
	}
	if c.Auth.HTPasswd == nil || c.Auth.Token == nil || c.Auth.MTLS == nil {
		t.Errorf("the example uncommented lacks sections of auth: %+v", c.Auth)
	}
}
