package registries

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"example.org/slipway/config"
	"example.org/slipway/oci"
	"example.org/slipway/oci/client"
)

func TestRegistriesKeepCredentialsApart(t *testing.T) {
	keys, err := OpenKeychain(filepath.Join(t.TempDir(), "k"))
	if err != nil {
		t.Fatal(err)
	}
	app, other := Reference{Host: "r.example", Repo: "team/app"}, Reference{Host: "r.example", Repo: "team/other"}
	r := New(&config.Agent{Registries: []config.AgentRegistry{{Host: "r.example", URLs: []string{"https://a.example", "https://b.example"}, Prefix: "mirror/"}}}, keys, slog.New(slog.DiscardHandler))
	defer r.Close()
	before, err := r.Of(app)
	if err != nil {
		t.Fatal(err)
	}
	if same, err := r.Of(other); err != nil || same != before {
		t.Errorf("two images without credentials have two registries, error %v", err)
	}
	if _, err := keys.Try(app, client.Credential{Username: "alice", Password: "a"}); err != nil {
		t.Fatal(err)
	}
	mine, err := r.Of(app)
	if err != nil {
		t.Fatal(err)
	}
	if mine == before {
		t.Error("a learnt credential is not used")
	}
	if theirs, err := r.Of(other); err != nil || theirs != before {
		t.Errorf("another image gets the credential's registry, error %v", err)
	}
	if _, err := keys.Try(app, client.Credential{Username: "alice", Password: "renewed"}); err != nil {
		t.Fatal(err)
	}
	if renewed, err := r.Of(app); err != nil || renewed == mine {
		t.Errorf("a renewed credential is not used, error %v", err)
	}
	if got := mine.repo("team/app"); got != "mirror/team/app" || len(mine.places) != 2 {
		t.Errorf("the repository is %s at %d places", got, len(mine.places))
	}
	for host, want := range map[string]string{"127.0.0.1:5000": "http://127.0.0.1:5000", "localhost": "http://localhost", "[::1]:1": "http://[::1]:1", "x.example": "https://x.example", "10.0.0.1": "https://10.0.0.1"} {
		if got := r.setting(host).URLs; len(got) != 1 || got[0] != want {
			t.Errorf("%s is asked at %q, want %s", host, got, want)
		}
	}
}

// TestRegistryPlaces has the places of a registry answer in several ways.
func TestRegistryPlaces(t *testing.T) {
	down := errors.New("connection refused")
	no := &oci.Error{Code: oci.CodeManifestUnknown}
	busy := &oci.Error{Code: oci.CodeTooManyRequests}
	for name, w := range map[string]struct {
		answers []error
		asked   int
		want    error
	}{
		"the first answers":  {[]error{nil, down}, 1, nil},
		"the first is down":  {[]error{down, nil}, 2, nil},
		"the first is busy":  {[]error{busy, nil}, 2, nil},
		"the first says no":  {[]error{no, nil}, 1, no},
		"all are down":       {[]error{down, down}, 2, down},
		"the second says no": {[]error{down, no}, 2, no},
	} {
		reg := &Registry{Host: "r.example", places: []*place{{url: "a"}, {url: "b"}}}
		asked := 0
		err := reg.try(t.Context(), func(*place) error { asked++; return w.answers[asked-1] })
		if asked != w.asked || !errors.Is(err, w.want) {
			t.Errorf("%s: %d places were asked, want %d; error %v, want %v", name, asked, w.asked, err, w.want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	asked := 0
	reg := &Registry{places: []*place{{url: "a"}, {url: "b"}}}
	if err := reg.try(ctx, func(*place) error { asked++; return ctx.Err() }); asked != 1 || err == nil {
		t.Errorf("%d places were asked for somebody who is gone, error %v", asked, err)
	}
	if err := (&Registry{Host: "r.example"}).try(t.Context(), nil); err == nil {
		t.Error("a registry without places answers")
	}
}

// TestBelieved checks whose indexes are believed.
func TestBelieved(t *testing.T) {
	r := New(&config.Agent{Registries: []config.AgentRegistry{{Host: "known.example"}, {Host: "shared.example", Domain: "d"}, {Host: "too.example:5000", Domain: "d"}}}, &Keychain{}, slog.New(slog.DiscardHandler))
	for host, want := range map[string]bool{"known.example": true, "known.example:443": false, "other.example": false, "localhost:5000": true,
		"127.0.0.1": true, "[::1]:5000": true, "127.0.0.1.example": false, "too.example:5000": true, "too.example": false} {
		for _, any := range []bool{false, true} {
			r.any = any
			if reason := r.Believed(host); (reason == "") != (want || any) {
				t.Errorf("%s, any_registry %v: %q", host, any, reason)
			}
		}
	}
	if r.Domain("shared.example") != r.Domain("too.example:5000") || r.Domain("known.example") == r.Domain("other.example") || r.Domain("d") == r.Domain("shared.example") {
		t.Error("domains are mixed up")
	}
}

func TestTrusts(t *testing.T) {
	settings := []config.AgentRegistry{
		{Host: "good.example", URLs: []string{"https://good.example"}},
		{Host: "near.example", URLs: []string{"http://127.0.0.1:5000"}},
		{Host: "plain.example", URLs: []string{"https://good.example", "http://10.0.0.1:5000/x"}, InsecureAllowPlaintext: true},
		{Host: "any.example", URLs: []string{"https://any.example"}, InsecureSkipVerify: true},
	}
	r := New(&config.Agent{Registries: settings}, &Keychain{}, slog.New(slog.DiscardHandler))
	for host, want := range map[string]string{
		"good.example": "", "near.example": "", "127.0.0.1:5000": "", "localhost:5000": "", "[::1]:5000": "",
		"plain.example": "in the clear", "any.example": "not verified", "other.example": "not among",
	} {
		if got := r.Trusts(host); (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%s: got %q, want %q", host, got, want)
		}
	}
}
