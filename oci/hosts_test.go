package oci_test

import (
	"testing"

	"example.org/slipway/oci"
)

func TestHostPattern(t *testing.T) {
	for _, c := range []struct {
		pattern, host, port string
		url                 string // an empty url means that the pattern does not match
	}{
		{"ghcr.io", "ghcr.io", "", "https://ghcr.io"},
		{"GHCR.io", "ghcr.io", "", "https://ghcr.io"},
		{"ghcr.io:443", "ghcr.io", "", "https://ghcr.io"},
		{"ghcr.io", "ghcr.io", "5000", ""},
		{"ghcr.io", "xghcr.io", "", ""},
		{"ghcr.io", "ghcr.io.evil.example", "", ""},
		{"ghcr.io", "ghcr-io", "", ""}, // the dot matches only a dot
		{"*.example.com", "a.example.com", "", "https://a.example.com"},
		{"*.example.com", "a.b.example.com", "", "https://a.b.example.com"},
		{"*.example.com", "example.com", "", ""},
		{"*.example.com", "aexample.com", "", ""},
		{"*.example.com", "a.example.com.evil", "", ""},
		{"*.example.com", "a.example.com", "5000", ""},
		{"*.example.com:5000", "a.example.com", "5000", "https://a.example.com:5000"},
		{"*.example.com:5000", "a.example.com", "", ""},
		{"*.example.com:*", "a.example.com", "8443", "https://a.example.com:8443"},
		{"*.example.com:*", "a.example.com", "", "https://a.example.com"},
		{"*.dkr.ecr.*.amazonaws.com", "1.dkr.ecr.eu-central-1.amazonaws.com", "", "https://1.dkr.ecr.eu-central-1.amazonaws.com"},
		{"*", "anything.example", "", "https://anything.example"},
		{"http://registry.local:5000", "registry.local", "5000", "http://registry.local:5000"},
		{"127.0.0.1:5000", "127.0.0.1", "5000", "http://127.0.0.1:5000"},
		{"localhost", "localhost", "", "http://localhost"},
	} {
		p, err := oci.ParseHostPattern(c.pattern)
		if err != nil {
			t.Errorf("%s: %v", c.pattern, err)
			continue
		}
		if got := p.Match(c.host, c.port); got != (c.url != "") {
			t.Errorf("%s fits %s port %q: %v", c.pattern, c.host, c.port, got)
		}
		if got := p.URL(c.host, c.port); c.url != "" && got != c.url {
			t.Errorf("%s: %s port %q is at %s, want %s", c.pattern, c.host, c.port, got, c.url)
		}
	}
	for _, bad := range []string{"", ":5000", "https://ghcr.io", "ghcr.io/org", "ghcr.io:0", "ghcr.io:65536", "ghcr.io:05", "ghcr.io:x", "a..b", "[::1]", "user@host", "http://*.example.com", "gh[cr].io", "a?b", "ghcr.io:5*"} {
		if _, err := oci.ParseHostPattern(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
	for pattern, want := range map[string]bool{"*": true, "*.com": true, "ghcr.*": true, "*.example.com": false, "ghcr.io": false, "a.*.com": true} {
		if p, err := oci.ParseHostPattern(pattern); err != nil || p.Broad() != want {
			t.Errorf("%s is broad: %v, %v", pattern, p.Broad(), err)
		}
	}
}
