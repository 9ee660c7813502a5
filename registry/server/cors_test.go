package server_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"example.org/slipway/registry/auth"
	"example.org/slipway/registry/server"
)

// corsPaths returns paths of every kind and their methods.
func corsPaths(digest string) map[string]string {
	return map[string]string{
		"/v2/":                            "GET, HEAD",
		"/v2/_catalog":                    "GET, HEAD",
		"/v2/alice/a/blobs/" + digest:     "GET, HEAD, DELETE",
		"/v2/alice/a/manifests/x":         "GET, HEAD, PUT, DELETE",
		"/v2/alice/a/blobs/uploads/":      "POST",
		"/v2/alice/a/blobs/uploads/some":  "GET, HEAD, PUT, PATCH, DELETE",
		"/v2/alice/a/tags/list":           "GET, HEAD",
		"/v2/alice/a/referrers/" + digest: "GET, HEAD",
		"/v2/_oci/ext/discover":           "GET",
		"/token":                          "GET, POST",
	}
}

func TestPreflight(t *testing.T) {
	const origin = "http://ui.example:8000"
	configured := []string{"HEAD", "GET", "OPTIONS", "DELETE"}
	a := newAuth(t, auth.Config{})
	b := newBed(t, setup{server: server.Options{Auth: a, Token: a.TokenHandler(), TokenPath: auth.TokenPath, Headers: http.Header{
		"access-control-allow-origin":      {origin}, // in any spelling
		"Access-Control-Allow-Methods":     configured,
		"Access-Control-Allow-Headers":     {"Authorization", "Accept"},
		"Access-Control-Allow-Credentials": {"true"},
	}}})
	d := string(b.push("alice/a", []byte("x")))
	for target, methods := range corsPaths(d) {
		allow := slices.DeleteFunc(slices.Clone(configured), func(m string) bool {
			return m != "OPTIONS" && !slices.Contains(strings.Split(methods, ", "), m)
		})
		got := b.ask("OPTIONS", target, nil, "Origin: "+origin, "Access-Control-Request-Method: DELETE", "Access-Control-Request-Headers: authorization")
		got.want(t, "OPTIONS "+target, 204, map[string]string{
			"Access-Control-Allow-Origin":      origin,
			"Access-Control-Allow-Methods":     strings.Join(allow, ", "),
			"Access-Control-Allow-Headers":     "Authorization, Accept",
			"Access-Control-Allow-Credentials": "true",
			"Allow":                            methods + ", OPTIONS",
			"Vary":                             "Origin",
			"Www-Authenticate":                 "",
		})
	}
	b.ask("OPTIONS", "/v2/A/blobs/"+d, nil, "Origin: "+origin).want(t, "a malformed name", 204, nil)

	// A page can read every answer, including errors.
	for target, status := range map[string]int{
		"/v2/": 401, "/v2/alice/a/tags/list": 401, "/v2/public/none/tags/list": 404, "/v2/A/tags/list": 400, "/token": 200, "/token?service=other": 400, "/elsewhere": 404,
	} {
		got := b.ask("GET", target, nil, "Origin: "+origin)
		got.want(t, "GET "+target, status, map[string]string{"Access-Control-Allow-Origin": origin, "Access-Control-Allow-Credentials": "true", "Vary": "Origin"})
		exposed := got.Header.Get("Access-Control-Expose-Headers")
		for _, name := range []string{"Docker-Content-Digest", "WWW-Authenticate", "Link", "Location"} {
			if !strings.Contains(exposed, name) {
				t.Errorf("GET %s: %s is not among the exposed headers %q", target, name, exposed)
			}
		}
	}
}

// TestAllowedOrigins checks that an answer names one origin, as browsers want it, and never a
// disallowed one.
func TestAllowedOrigins(t *testing.T) {
	for _, tt := range []struct {
		name       string
		configured []string
		origin     string
		want, vary string
	}{
		{"the only one", []string{"https://a"}, "https://a", "https://a", "Origin"},
		{"another", []string{"https://a"}, "https://b", "https://a", "Origin"},
		{"no browser", []string{"https://a"}, "", "https://a", "Origin"},
		{"any", []string{"*"}, "https://b", "*", ""},
		{"the first of two", []string{"https://a", "https://b"}, "https://a", "https://a", "Origin"},
		{"the second of a list", []string{"https://a, https://b"}, "https://b", "https://b", "Origin"},
		{"none of two", []string{"https://a", "https://b"}, "https://c", "", "Origin"},
		{"two and no browser", []string{"https://a", "https://b"}, "", "", "Origin"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBed(t, setup{server: server.Options{Headers: http.Header{"Access-Control-Allow-Origin": tt.configured}}})
			var headers []string
			if tt.origin != "" {
				headers = append(headers, "Origin: "+tt.origin)
			}
			for method, status := range map[string]int{"GET": 200, "OPTIONS": 204} {
				got := b.ask(method, "/v2/", nil, headers...)
				got.want(t, method, status, map[string]string{"Access-Control-Allow-Origin": tt.want, "Vary": tt.vary})
				if may := got.Header.Get("Access-Control-Allow-Headers"); method == "OPTIONS" && !strings.Contains(may, "Authorization") {
					t.Errorf("a page can send the headers %q, and cannot say who it is", may)
				}
				if n := len(got.Header.Values("Access-Control-Allow-Origin")); n > 1 {
					t.Errorf("%s: %d headers name origins", method, n)
				}
			}
		})
	}
}

func TestNoPreflightUnconfigured(t *testing.T) {
	b := newBed(t, setup{server: server.Options{Headers: http.Header{"X-Extra": {"yes"}}}})
	d := string(b.push("alice/a", []byte("x")))
	for target := range corsPaths(d) {
		if target == "/token" {
			continue
		}
		b.ask("OPTIONS", target, nil, "Origin: http://ui.example").want(t, target, 405, map[string]string{"Access-Control-Allow-Origin": "", "Vary": "", "X-Extra": "yes"})
	}
}
