package send

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"time"

	"example.org/slipway/oci/client"
	"example.org/slipway/oci/wire"
)

// authority answers a registry that wants credentials. Safe for concurrent use.
type authority struct {
	target *Target
	base   *url.URL // of the registry
	via    http.RoundTripper

	mu     sync.Mutex
	basic  bool
	tokens map[string]*token // by scope
}

// token is the token of a scope. It is empty until it is fetched. The lock of the
// authority is not held while a token is fetched, so that requests of other scopes go on.
type token struct {
	mu      sync.Mutex // held while the token is fetched: others that need the token wait
	value   string
	expires time.Time
}

// header returns the header of the token, or "" if there is no valid token. The caller
// holds mu.
func (t *token) header() string {
	if t.value == "" || time.Until(t.expires) <= 0 {
		return ""
	}
	return "Bearer " + t.value
}

// scope returns the scope of the token that a request needs.
func scope(repo string, write bool) string {
	switch {
	case repo == "":
		return ""
	case write:
		return "repository:" + repo + ":pull,push"
	}
	return "repository:" + repo + ":pull"
}

// maxTokens bounds the tokens that are kept.
const maxTokens = 100_000

// header returns the credentials that are sent unasked. It returns none until the
// registry has asked for credentials once.
func (a *authority) header(scope string) string {
	if a.target.AccessToken != "" {
		return "Bearer " + a.target.AccessToken
	}
	a.mu.Lock()
	basic, t := a.basic, a.tokens[scope]
	a.mu.Unlock()
	switch {
	case basic:
		return a.basicHeader()
	case t == nil:
		return ""
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.header()
}

// token returns the token of a scope.
func (a *authority) token(scope string) *token {
	a.mu.Lock()
	defer a.mu.Unlock()
	t := a.tokens[scope]
	if t == nil {
		if a.tokens == nil || len(a.tokens) >= maxTokens {
			a.tokens = map[string]*token{}
		}
		t = &token{}
		a.tokens[scope] = t
	}
	return t
}

func (a *authority) basicHeader() string {
	r := http.Request{Header: http.Header{}}
	r.SetBasicAuth(a.target.Username, a.target.Password)
	return r.Header.Get("Authorization")
}

// answer returns the credentials that satisfy the challenges in an answer from a URL.
// refused are the credentials that were sent in vain. It returns "" if there are no
// others.
func (a *authority) answer(ctx context.Context, challenges []string, from *url.URL, scope, refused string) (string, error) {
	c := wire.ChooseChallenge(challenges, from)
	switch c.Scheme {
	case "basic":
		if a.target.Username == "" {
			return "", nil
		}
		a.mu.Lock()
		a.basic = true
		a.mu.Unlock()
		return a.basicHeader(), nil
	case "bearer":
		t := a.token(scope)
		t.mu.Lock()
		defer t.mu.Unlock()
		if h := t.header(); h != "" && h != refused { // others have fetched it meanwhile
			return h, nil
		}
		if err := a.fetch(ctx, t, c.Params, scope); err != nil {
			return "", err
		}
		return "Bearer " + t.value, nil
	}
	return "", nil
}

// fetch gets a token from the token service. The caller has locked the token.
func (a *authority) fetch(ctx context.Context, t *token, params map[string]string, scope string) error {
	realm, err := url.Parse(params["realm"])
	if err != nil || realm.Host == "" || realm.Scheme != "https" && realm.Scheme != "http" {
		return errors.New("the registry names no valid token service")
	}
	if a.base.Scheme == "https" && realm.Scheme != "https" {
		return errors.New("the registry names a token service without TLS; credentials are not sent there")
	}
	if params["scope"] != "" {
		scope = params["scope"]
	}
	ask := client.TokenRequest{Realm: realm, Service: params["service"], Scope: scope, ClientID: "slipway",
		Credential: client.Credential{Username: a.target.Username, Password: a.target.Password, RefreshToken: a.target.IdentityToken}}
	req, err := ask.HTTP(ctx)
	if err != nil {
		return err
	}
	resp, err := a.via.RoundTrip(req)
	if err != nil {
		return fmt.Errorf("ask for a token: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("ask for a token: status %d", resp.StatusCode)
	}
	value, life, err := client.ReadToken(resp.Body)
	if err != nil {
		return fmt.Errorf("ask for a token: %w", err)
	}
	t.value, t.expires = value, time.Now().Add(life-life/10)
	return nil
}
