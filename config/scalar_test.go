package config_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v4"

	"example.org/slipway/config"
	"example.org/slipway/config/yamlfile"
)

func TestParseSize(t *testing.T) {
	for in, want := range map[string]config.Size{
		"0": 0, "12": 12, "-1": -1, "1b": 1, "8mb": 8 << 20, "8MB": 8 << 20, "200MiB": 200 << 20, "1k": 1 << 10,
		"1.5 GiB": 3 << 29, " 2tb ": 2 << 40, "9223372036854775807": math.MaxInt64,
	} {
		if got, err := yamlfile.ParseSize(in); err != nil || got != want {
			t.Errorf("ParseSize(%q): got %d, %v; want %d", in, got, err, want)
		}
	}
	for _, in := range []string{"", "mb", "1.5", "8xb", "1e3", "nan", "NaNkb", "infmb", "9223372036854775807k", "9e99tb", "1 2", "0x10"} {
		if got, err := yamlfile.ParseSize(in); err == nil {
			t.Errorf("ParseSize(%q): got %d, want an error", in, got)
		}
	}
	for s, want := range map[config.Size]string{0: "0", 1: "1", 1 << 10: "1KiB", 16 << 20: "16MiB", 1<<20 + 1: "1048577", -1 << 30: "-1GiB"} {
		if got := s.String(); got != want {
			t.Errorf("Size(%d).String(): got %s, want %s", int64(s), got, want)
		}
	}
}

func TestParseDuration(t *testing.T) {
	for in, want := range map[string]time.Duration{
		"0": 0, "30s": 30 * time.Second, "7d": 168 * time.Hour, "1d12h": 36 * time.Hour, "0.5d": 12 * time.Hour,
		"-1d1h": -25 * time.Hour, "1500": 1500, "-5m": -5 * time.Minute, "106751d": 106751 * 24 * time.Hour,
	} {
		if got, err := yamlfile.ParseDuration(in); err != nil || got != want {
			t.Errorf("ParseDuration(%q): got %v, %v; want %v", in, got, err, want)
		}
	}
	for _, in := range []string{"", "d", "x", "1d-1h", "1d+1h", "1d1d", "106752d", "106751d24h", "nand", "infd", "1w"} {
		if got, err := yamlfile.ParseDuration(in); err == nil {
			t.Errorf("ParseDuration(%q): got %v, want an error", in, got)
		}
	}
}

func TestReferences(t *testing.T) {
	files := map[string]string{"/s": "from file\n", "/crlf": "x\r\n", "/ref": "${env:A}", "/two": "a\n\n"}
	read := func(path string) ([]byte, error) {
		if s, ok := files[path]; ok {
			return []byte(s), nil
		}
		return nil, errors.New("no such file")
	}
	for in, want := range map[string]string{
		"plain":               "plain",
		"${file:/s}":          "from file",
		"a ${file:/crlf} b":   "a x b",
		"${file:/two}":        "a\n",
		"${file:/ref}":        "${env:A}", // the result is not expanded again
		"${env:A}${env:A}":    "aa",
		"$${env:A} ${env:A}":  "${env:A} a",
		"${other} $ ${ $5 {}": "${other} $ ${ $5 {}",
		"$${file:/s":          "${file:/s",
	} {
		text, err := json.Marshal(map[string]any{"version": "0.1", "http": map[string]any{"secret": in}})
		if err != nil {
			t.Fatal(err)
		}
		c, _, err := config.Parse(strings.NewReader(string(text)), &config.Options{Env: []string{"A=a"}, ReadFile: read})
		if err != nil || c.HTTP.Secret.Reveal() != want {
			t.Errorf("%q: got %v, %v; want %q", in, c, err, want)
		}
	}
}

// TestSecretsAreNotShown checks that no way of printing a configuration shows a secret.
func TestSecretsAreNotShown(t *testing.T) {
	c, _, err := parse(`version: 0.1
http: {secret: hush, headers: {X-Shown: [shown]}}
tracing: {headers: {Authorization: hush}, endpoint: "http://user:hush@c/v1/traces"}
notifications: {endpoints: [{name: a, url: "http://user:hush@a/", headers: {Authorization: [Bearer hush]}, secret: hush}]}
health: {http: [{uri: "http://h", headers: {Authorization: [hush]}}]}
`)
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	slog.New(slog.NewJSONHandler(&log, nil)).Info("start", "config", c, "value", *c, "secret", c.HTTP.Secret)
	asJSON, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	asYAML, err := yaml.Dump(c)
	if err != nil {
		t.Fatal(err)
	}
	for name, out := range map[string]string{
		"slog": log.String(), "json": string(asJSON), "yaml": string(asYAML), "String": c.String(),
		"%v": fmt.Sprintf("%v", c), "%+v": fmt.Sprintf("%+v", *c), "%#v": fmt.Sprintf("%#v", c),
	} {
		if strings.Contains(out, "hush") || !strings.Contains(out, "shown") || !strings.Contains(out, "******") {
			t.Errorf("%s shows a secret, or too little:\n%s", name, out)
		}
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d", "%T|%v"} {
		if out := fmt.Sprintf(verb, c.HTTP.Secret); strings.Contains(out, "hush") || strings.Contains(out, "68757368") {
			t.Errorf("%s of a secret: got %s", verb, out)
		}
	}
	if got := config.Secret("").String(); got != "" {
		t.Errorf("an empty secret: got %q, want nothing", got)
	}
}

func TestProxies(t *testing.T) {
	h := config.HTTP{TrustedProxies: []string{"10.1.2.3/8", "192.0.2.1", "::ffff:192.0.2.2", "unix", "2001:db8::1"}}
	got, unix := h.Proxies()
	want := []string{"10.0.0.0/8", "192.0.2.1/32", "192.0.2.2/32", "2001:db8::1/128"}
	var text []string
	for _, p := range got {
		text = append(text, p.String())
	}
	if d := cmp.Diff(want, text); d != "" || !unix {
		t.Errorf("unix %v, networks (-want +got):\n%s", unix, d)
	}
}
