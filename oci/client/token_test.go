package client

import (
	"bytes"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestTokenRequest checks what a token service is asked, and that a password goes into a header and a refresh
// token into the body.
func TestTokenRequest(t *testing.T) {
	realm, err := url.Parse("https://auth.example.com/token?tenant=a#part")
	if err != nil {
		t.Fatal(err)
	}
	r := TokenRequest{Realm: realm, Service: "registry", Scope: "repository:a:pull repository:b:pull", ClientID: "slipway",
		Credential: Credential{Username: "me", Password: "secret"}}
	req, err := r.HTTP(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := url.Values{"tenant": {"a"}, "service": {"registry"}, "scope": {"repository:a:pull", "repository:b:pull"}}
	user, password, _ := req.BasicAuth()
	if diff := cmp.Diff(want, req.URL.Query()); diff != "" || req.Method != http.MethodGet || req.URL.Fragment != "" || user != "me" || password != "secret" {
		t.Errorf("%s %s by %s:%s: -want +got\n%s", req.Method, req.URL, user, password, diff)
	}
	r.Credential = Credential{RefreshToken: "refresh"}
	if req, err = r.HTTP(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := req.ParseForm(); err != nil {
		t.Fatal(err)
	}
	want = url.Values{"service": {"registry"}, "scope": {r.Scope}, "client_id": {"slipway"}, "grant_type": {"refresh_token"}, "refresh_token": {"refresh"}}
	if diff := cmp.Diff(want, req.PostForm); diff != "" || req.Method != http.MethodPost || strings.Contains(req.URL.String(), "refresh") {
		t.Errorf("%s %s: -want +got\n%s", req.Method, req.URL, diff)
	}
}

func FuzzToken(f *testing.F) {
	f.Add([]byte(`{"token":"a.b.c","expires_in":300,"issued_at":"2026-01-02T03:04:05Z"}`))
	f.Add([]byte(`{"access_token":"a","expires_in":"1e99"}`))
	f.Add([]byte(`{"token":"a\nb"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		value, life, err := ReadToken(bytes.NewReader(b))
		if err != nil {
			if value != "" {
				t.Errorf("got %q and %v", value, err)
			}
			return
		}
		if value == "" || strings.ContainsAny(value, "\r\n \x00") || life < time.Second || life > LongestToken {
			t.Errorf("got %q for %v", value, life)
		}
	})
}
