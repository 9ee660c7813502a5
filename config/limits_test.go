package config_test

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"example.org/slipway/config"
	"example.org/slipway/config/yamlfile"
)

// bomb returns a short YAML text that expands to ten to the power of levels values.
func bomb(levels int) string {
	var b strings.Builder
	b.WriteString("version: 0.1\nlog:\n  fields:\n    a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n")
	for i := 1; i < levels; i++ {
		refs := strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i-1), 10), ", ")
		fmt.Fprintf(&b, "    a%d: &a%d [%s]\n", i, i, refs)
	}
	return b.String()
}

func TestLimits(t *testing.T) {
	for _, tc := range []struct{ name, text, want string }{
		{"file size", strings.Repeat("#", yamlfile.MaxFileBytes+1), "c.yml: larger than 1048576 bytes"},
		{"aliases", bomb(9), "more than 100000 values, counting what aliases repeat"},
		{"merges", strings.ReplaceAll(bomb(9), "[*", "[<<: *"), "c.yml"},
		{"alias within itself", "version: 0.1\nlog: &a {fields: *a}", "c.yml"},
		{"nesting of lists", "version: 0.1\nlog: " + strings.Repeat("[", 100_000), "nested deeper than 64 levels"},
		{"nesting of sections", "version: 0.1\n" + strings.Repeat("? ", 100_000), "nested deeper than 64 levels"},
		{"many values", "version: 0.1\nlog: [" + strings.Repeat("a,", 150_000) + "]", "more than 100000 values"},
		{"many unknown keys", "version: 0.1\n" + unknownKeys(5_000), "there are more problems; these are the first"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, _, err := parse(tc.text)
			runtime.ReadMemStats(&after)
			var ps config.Problems
			if !errors.As(err, &ps) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got error %.300v, want %s", err, tc.want)
			}
			// This counts all allocations, freed or not: 1 MiB of YAML costs the parser
			// some hundred bytes for each of its values.
			if got := after.TotalAlloc - before.TotalAlloc; got > 1<<30 {
				t.Errorf("allocated %d MiB", got>>20)
			}
		})
	}
}

func unknownKeys(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "key%d: 1\n", i)
	}
	return b.String()
}

// FuzzParse looks for texts that crash the parser. It also looks for texts that the
// parser accepts although the result is invalid or cannot be written.
func FuzzParse(f *testing.F) {
	f.Add(config.Example(), "SLIPWAY_HTTP_ADDR=127.0.0.1:1")
	f.Add(bomb(3), "REGISTRY_AUTH=htpasswd")
	f.Add("version: 0.1\nstorage: {root: /a, inmemory: , s3: {}}\nloglevel: info\nauth: none", "SLIPWAY_STORAGE={root: /b}")
	f.Add("version: 0.1\nhttp: {secret: '${env:A}$${file:/x}', addr: ':5000', headers: {a: [b]}}", "SLIPWAY_HTTP_TLS_CLIENTCAS_0=a")
	f.Add("version: 0.1\nhealth: {tcp: [&t {addr: 'a:1'}, {<<: *t, addr: 'b:1'}]}", "REGISTRY_HEALTH_TCP_1_ADDR=c:1")
	f.Add("", "OTEL_EXPORTER_OTLP_ENDPOINT=http://x")
	f.Fuzz(func(t *testing.T, text, env string) {
		c, _, err := parse(text, env)
		var ps config.Problems
		switch {
		case err != nil && !errors.As(err, &ps):
			t.Fatalf("error %v is no Problems", err)
		case err != nil && (c != nil || len(ps) == 0):
			t.Fatalf("error %v, and yet a configuration %v", err, c)
		case err != nil:
			return
		}
		if err := c.Validate(); err != nil {
			t.Fatalf("accepted, and not valid: %v", err)
		}
		if _, err := c.Redacted(); err != nil {
			t.Fatalf("accepted, and cannot be written: %v", err)
		}
	})
}
