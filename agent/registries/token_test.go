package registries

import (
	"encoding/base64"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	"example.org/slipway/config"
	"example.org/slipway/oci/client"
)

// tokenUntil returns the form of a token; nobody here verifies its signature.
func tokenUntil(end time.Time, id string) string {
	part := base64.RawURLEncoding.EncodeToString
	return part([]byte(`{"alg":"RS256"}`)) + "." + part(fmt.Appendf(nil, `{"exp":%d,"jti":%q}`, end.Unix(), id)) + "." + part([]byte("signature"))
}

func FuzzTokenEnd(f *testing.F) {
	f.Add(tokenUntil(time.Now(), "1"))
	f.Add("..")
	f.Add("a.eyJleHAiOjFlMzB9.b")
	f.Fuzz(func(t *testing.T, s string) {
		if ends := TokenEnd(s); !ends.IsZero() && ends.Before(time.Unix(1, 0)) {
			t.Errorf("%q ends at %v", s, ends)
		}
	})
}

// TestTokensAreRenewed pulls an image with tokens that expire. After that, the last token is
// used, or else the configured password; and registries do not accumulate.
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
	keys, err := OpenKeychain(filepath.Join(t.TempDir(), "k"))
	if err != nil {
		t.Fatal(err)
	}
	app := Reference{Host: "r.example", Repo: "team/app", Ref: "1"}
	settings := []config.AgentRegistry{{Host: "r.example", URLs: []string{srv.URL}, Username: "node", Password: "of the node"}}
	r := New(&config.Agent{Registries: settings}, keys, slog.New(slog.DiscardHandler))
	defer r.Close()
	learn := func(token string) {
		t.Helper()
		if _, err := keys.Try(app, client.Credential{Username: "kubernetes", Password: token}); err != nil {
			t.Fatal(err)
		}
	}
	// fetch logs in anew, as it must when a registry refuses what it took before.
	fetch := func(reg *Registry) string {
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
	mounted, err := r.Of(app)
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
	if reg, err := r.Of(app); err != nil || fetch(reg) != second {
		t.Errorf("the last token is not used, error %v", err)
	}
	for i := range 50 {
		learn(tokenUntil(time.Now().Add(-time.Minute), fmt.Sprint(i)))
		if _, err := r.Of(app); err != nil {
			t.Fatal(err)
		}
	}
	if len(r.open) > 2 {
		t.Errorf("%d registries are open after 50 tokens, want the last and the good one", len(r.open))
	}
}
