package auth

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseScopes(t *testing.T) {
	many := make([]string, maxScopes+1)
	for i := range many {
		many[i] = "repository:r" + strings.Repeat("x", i) + ":pull"
	}
	for _, c := range []struct {
		name   string
		params []string
		want   []scope
		ok     bool
	}{
		{"none", nil, nil, true},
		{"one", []string{"repository:a/b:pull,push"}, []scope{{"a/b", Pull | Push}}, true},
		{"star", []string{"repository:a:*"}, []scope{{"a", contentActions}}, true},
		{"merged", []string{"repository:a:pull repository:b:pull", "repository:a:push"}, []scope{{"a", Pull | Push}, {"b", Pull}}, true},
		{"class", []string{"repository(plugin):a:pull"}, []scope{{"a", Pull}}, true},
		{"catalog and admin", []string{"registry:catalog:* registry:admin:*"}, []scope{{"", Catalog | Admin}}, true},
		{"catalog is no repository action", []string{"repository:a:catalog,admin,pull"}, []scope{{"a", Pull}}, true},
		{"unknown", []string{"repository:a:fly", "thing:a:pull", "registry:x:*", "registry:catalog:pull", "", "::", "a", "repository:a"}, nil, true},
		{"impossible names", []string{"repository:A:pull", "repository:host:5000/a:pull", "repository:../x:pull", "repository:*:pull"}, nil, true},
		{"too many", []string{strings.Join(many, " ")}, nil, false},
	} {
		got, ok := parseScopes(c.params)
		if ok != c.ok {
			t.Errorf("%s: ok = %v, want %v", c.name, ok, c.ok)
		}
		if d := cmp.Diff(c.want, got, cmp.AllowUnexported(scope{})); d != "" {
			t.Errorf("%s: %q (-want +got):\n%s", c.name, c.params, d)
		}
	}
}

func FuzzParseScopes(f *testing.F) {
	f.Add("repository:a/b:pull,push registry:catalog:*")
	f.Add("repository(x):a:*  ::: repository:a")
	f.Fuzz(func(t *testing.T, s string) {
		scopes, ok := parseScopes([]string{s})
		if !ok {
			return
		}
		var texts []string
		for _, sc := range scopes {
			if sc.actions == 0 {
				t.Errorf("%q: scope without actions for %q", s, sc.repo)
			}
			texts = append(texts, sc.String())
		}
		again, _ := parseScopes(texts)
		if d := cmp.Diff(scopes, again, cmp.AllowUnexported(scope{})); d != "" {
			t.Errorf("%q does not survive its own notation (-first +again):\n%s", s, d)
		}
	})
}

func TestParseAuthorization(t *testing.T) {
	for _, c := range []struct {
		header string
		want   credentials
		err    error
	}{
		{"Basic YWxpY2U6c2VjcmV0", credentials{user: "alice", secret: "secret"}, nil},
		{"basic YWxpY2U6YTpi", credentials{user: "alice", secret: "a:b"}, nil},
		{"Basic Og==", credentials{}, nil},
		{"BEARER a.b.c", credentials{bearer: true, secret: "a.b.c"}, nil},
		{"Bearer ", credentials{}, errHeaderBearer},
		{"Bearer a b", credentials{}, errHeaderBearer},
		{"Bearer a\"b", credentials{}, errHeaderBearer},
		{"Basic !!!", credentials{}, errHeaderBasic},
		{"Basic YWxpY2U=", credentials{}, errHeaderBasic},
		{"Basic YQpiOmM=", credentials{}, errHeaderBasic}, // "a\nb:c"
		{"Digest x", credentials{}, errHeaderScheme},
		{"", credentials{}, errHeaderScheme},
		{"Bearer " + strings.Repeat("x", maxCredentialBytes), credentials{}, errHeaderLong},
	} {
		got, err := parseAuthorization(c.header)
		if got != c.want || err != c.err {
			t.Errorf("%.40q: got %+v, %v; want %+v, %v", c.header, got, err, c.want, c.err)
		}
	}
}

func FuzzParseAuthorization(f *testing.F) {
	f.Add("Basic YWxpY2U6c2VjcmV0")
	f.Add("Bearer a.b.c==")
	f.Fuzz(func(t *testing.T, h string) {
		c, err := parseAuthorization(h)
		if err != nil {
			if c != (credentials{}) {
				t.Errorf("%q: error and %+v", h, c)
			}
			return
		}
		if c.bearer && (c.user != "" || !strings.Contains(h, c.secret)) {
			t.Errorf("%q: %+v", h, c)
		}
		if !c.bearer && (strings.ContainsAny(c.user, ":\n\x00") || strings.Contains(c.secret, "\n")) {
			t.Errorf("%q: %+v", h, c)
		}
	})
}
