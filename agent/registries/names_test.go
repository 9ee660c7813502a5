package registries

import (
	"strings"
	"testing"
)

const someDigest = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

func TestParseReference(t *testing.T) {
	for in, want := range map[string]Reference{
		"r.example/app":                            {"r.example", "app", "latest"},
		"r.example:5000/team/app:1.2":              {"r.example:5000", "team/app", "1.2"},
		"localhost/app:v":                          {"localhost", "app", "v"},
		"127.0.0.1:5000/app@" + someDigest:         {"127.0.0.1:5000", "app", someDigest},
		"r.example/team/app:tag@" + someDigest:     {"r.example", "team/app", someDigest},
		"[::1]:5000/app:v1":                        {"[::1]:5000", "app", "v1"},
		"docker.io/library/nginx:1.27.0-alpine3.1": {"docker.io", "library/nginx", "1.27.0-alpine3.1"},
	} {
		if got, err := Parse(in); err != nil || got != want {
			t.Errorf("%q is %+v, error %v, want %+v", in, got, err, want)
		}
	}
	for _, in := range []string{"", "app", "team/app:v1", "r.example/", "r.example/App", "r.example/a:b:c", "r.example/app@sha256:12",
		"r.example/../app", "r.example/app:", "r.example/app:ta g", "r.example/app@" + someDigest + "x", "r.example//app", "/app", "r.example/app@"} {
		if got, err := Parse(in); err == nil {
			t.Errorf("%q is taken for %+v", in, got)
		}
	}
}

func FuzzParseReference(f *testing.F) {
	f.Add("r.example/team/app:tag@" + someDigest)
	f.Fuzz(func(t *testing.T, s string) {
		r, err := Parse(s)
		if err == nil && (r.Host == "" || r.Repo == "" || r.Ref == "" || strings.Contains(r.Repo, "..") || !strings.HasPrefix(s, r.Host+"/"+r.Repo)) {
			t.Errorf("%q is %+v", s, r)
		}
	})
}
