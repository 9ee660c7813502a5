package agent

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/config"
	"example.org/slipway/oci/client"
)

// tokenUntil returns the form of a token; nobody here verifies its signature.
func tokenUntil(end time.Time, id string) string {
	part := base64.RawURLEncoding.EncodeToString
	return part([]byte(`{"alg":"RS256"}`)) + "." + part(fmt.Appendf(nil, `{"exp":%d,"jti":%q}`, end.Unix(), id)) + "." + part([]byte("signature"))
}

func TestProvideCredential(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_700_000_000, 0)
	good := tokenUntil(now.Add(time.Hour), "1")
	request := func(image, token string) string {
		b, err := json.Marshal(map[string]any{
			"kind": "CredentialProviderRequest", "apiVersion": credentialAPI, "image": image, "serviceAccountToken": token,
			"serviceAccountAnnotations": map[string]string{"a": "b"}, "later": true,
		})
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	for name, c := range map[string]struct{ in, host, duration, fails string }{
		"as kubelet asks":   {in: request("r.example/team/app", good), host: "r.example", duration: "59m0s"},
		"with port and tag": {in: request("r.example:5000/team/app:1", good), host: "r.example:5000", duration: "59m0s"},
		"with digest":       {in: request("localhost/a@sha256:"+strings.Repeat("a", 64), good), host: "localhost", duration: "59m0s"},
		"about to end":      {in: request("r.example/a", tokenUntil(now.Add(time.Second), "1")), host: "r.example", duration: "0s"},
		"no account":        {in: request("r.example/a", ""), fails: "tokenAttributes"},
		"no token":          {in: request("r.example/a", "secret"), fails: "no token with an end"},
		"no end":            {in: request("r.example/a", "e30.e30.x"), fails: "no token with an end"},
		"no registry":       {in: request("team/app", good), fails: "names no registry"},
		"older version":     {in: strings.Replace(request("r.example/a", good), credentialAPI, credentialAPI+"beta1", 1), fails: "apiVersion: " + credentialAPI},
		"no request":        {in: "", fails: "read the request"},
	} {
		var out bytes.Buffer
		err := ProvideCredential(strings.NewReader(c.in), &out, now)
		if c.fails != "" {
			if err == nil || !strings.Contains(err.Error(), c.fails) || out.Len() > 0 {
				t.Errorf("%s: error %v and the answer %q, want no answer and an error with %q", name, err, &out, c.fails)
			}
			if err != nil && strings.Contains(err.Error(), good) {
				t.Errorf("%s: the error holds the token", name)
			}
			continue
		}
		var got map[string]any
		if err != nil || json.Unmarshal(out.Bytes(), &got) != nil {
			t.Errorf("%s: error %v, answer %q", name, err, &out)
			continue
		}
		secret, _ := got["auth"].(map[string]any)[c.host].(map[string]any)
		if secret["password"] == "" || secret["username"] == "" {
			t.Errorf("%s: no secret for %s in %v", name, c.host, got["auth"])
		}
		delete(got, "auth")
		want := map[string]any{"kind": "CredentialProviderResponse", "apiVersion": credentialAPI, "cacheKeyType": "Registry", "cacheDuration": c.duration}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
}

func FuzzTokenEnd(f *testing.F) {
	f.Add(tokenUntil(time.Now(), "1"))
	f.Add("..")
	f.Add("a.eyJleHAiOjFlMzB9.b")
	f.Fuzz(func(t *testing.T, s string) {
		if ends := tokenEnd(s); !ends.IsZero() && ends.Before(time.Unix(1, 0)) {
			t.Errorf("%q ends at %v", s, ends)
		}
	})
}

// TestTokensAreRenewed has an image pulled with tokens that end. What is fetched after the end is
// fetched with the token that came last, or else as the configuration says; and registries do not
// add up.
func TestTokensAreRenewed(t *testing.T) {
	t.Parallel()
	shown := make(chan string, 8) // passwords
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, pass, ok := r.BasicAuth(); ok {
			shown <- pass
			return
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
		w.WriteHeader(http.StatusUnauthorized)
	}))
	defer srv.Close()
	keys, err := openKeychain(filepath.Join(t.TempDir(), "k"))
	if err != nil {
		t.Fatal(err)
	}
	app := reference{host: "r.example", repo: "team/app", ref: "1"}
	settings := []config.AgentRegistry{{Host: "r.example", URLs: []string{srv.URL}, Username: "node", Password: "of the node"}}
	r := newRegistries(settings, keys, nil, slog.New(slog.DiscardHandler))
	defer r.close()
	learn := func(token string) {
		t.Helper()
		if err := keys.learn(app, client.Credential{Username: "kubernetes", Password: token}); err != nil {
			t.Fatal(err)
		}
	}
	// fetch logs in anew, as it must when a registry refuses what it took before.
	fetch := func(reg *registry) string {
		t.Helper()
		fresh, err := client.New(srv.URL, &client.Options{Credential: reg.login})
		if err != nil {
			t.Fatal(err)
		}
		defer fresh.Close()
		if err := fresh.Ping(t.Context()); err != nil || len(shown) != 1 {
			t.Fatalf("the registry was shown %d passwords, error %v", len(shown), err)
		}
		return <-shown
	}
	learn(tokenUntil(time.Now().Add(-time.Minute), "first"))
	mounted, err := r.of(app)
	if err != nil {
		t.Fatal(err)
	}
	if got := fetch(mounted); got != "of the node" {
		t.Errorf("when all tokens have ended, %q is shown", got)
	}
	second := tokenUntil(time.Now().Add(time.Hour), "second")
	learn(second)
	if got := fetch(mounted); got != second {
		t.Errorf("an image whose token has ended is fetched with %q, not with the last one", got)
	}
	if reg, err := r.of(app); err != nil || fetch(reg) != second {
		t.Errorf("the last token is not used, error %v", err)
	}
	for i := range 50 {
		learn(tokenUntil(time.Now().Add(-time.Minute), fmt.Sprint(i)))
		if _, err := r.of(app); err != nil {
			t.Fatal(err)
		}
	}
	if len(r.open) > 2 {
		t.Errorf("%d registries are open after 50 tokens, want the last and the good one", len(r.open))
	}
}
