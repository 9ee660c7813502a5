package upstream

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"example.org/slipway/oci/client"
	"example.org/slipway/oci/wire"
)

const (
	// maxTokens is how many tokens are kept for an endpoint, of 2 to 4 KiB each.
	maxTokens = 512
	// refusalLife is how long a token service that refused a credential is not asked
	// again, because accounts are locked after a number of attempts.
	refusalLife = 5 * time.Second
	// failureLife is how long the failure of a token service counts for everybody who
	// wants the same token.
	failureLife = 200 * time.Millisecond
	// freshToken is the age below which a token cannot have expired. If a registry
	// refuses such a token, the reason is another one.
	freshToken = 10 * time.Second
	// basicLife is how long a user name and password are used before they are read again
	// from their source, which may be a program.
	basicLife = 5 * time.Minute
)

// keyring holds what an endpoint accepts, and our credentials for it. The first challenge
// says how to authenticate. From then on requests authenticate in that way.
type keyring struct {
	e   *endpoint
	ask client.CredentialFunc

	mu         sync.Mutex // guards what follows
	scheme     string     // "", "basic" or "bearer"
	realm      *url.URL
	service    string
	usual      bool // scopes are as the specification says, so they need no challenge
	basic      string
	basicUntil time.Time
	tokens     map[string]*token // by repository
}

// token is a token for one repository, or the need for one.
type token struct {
	value      string
	got, until time.Time
	scope      string        // the scope of the last challenge, or the expected one
	fetch      chan struct{} // is closed when the fetch under way ends; nil: none
	err        error         // the error of the last fetch, which holds until errUntil
	errUntil   time.Time
}

func (k *keyring) init(e *endpoint, ask client.CredentialFunc) {
	k.e, k.ask, k.tokens = e, ask, map[string]*token{}
}

// credential returns our credential for the endpoint.
func (k *keyring) credential(ctx context.Context) (client.Credential, error) {
	if k.ask == nil {
		return client.Credential{}, nil
	}
	cr, err := k.ask(ctx, k.e.base.Host)
	if err != nil && ctx.Err() == nil {
		err = fmt.Errorf("get the credential for %s: %w", k.e.base.Host, err)
	}
	return cr, err
}

// authorization returns the header that a request about a repository carries, or "".
func (k *keyring) authorization(ctx context.Context, repo string) (string, error) {
	k.mu.Lock()
	scheme := k.scheme
	if t := k.tokens[repo]; scheme == "bearer" && !k.usual && t == nil {
		scheme = "" // the challenge will tell the scope
	}
	k.mu.Unlock()
	switch scheme {
	case "basic":
		return k.basicHeader(ctx)
	case "bearer":
		return k.bearer(ctx, repo, "")
	}
	return "", nil
}

// basicHeader returns the header of a user name and password, or "" if we have none.
func (k *keyring) basicHeader(ctx context.Context) (string, error) {
	now := k.e.up.clock()
	k.mu.Lock()
	h, until := k.basic, k.basicUntil
	k.mu.Unlock()
	if now.Before(until) {
		return h, nil
	}
	cr, err := k.credential(ctx)
	if err != nil {
		return "", err
	}
	h = ""
	switch {
	case cr.Username != "" || cr.Password != "":
		h = "Basic " + base64.StdEncoding.EncodeToString([]byte(cr.Username+":"+cr.Password))
	case cr.AccessToken != "":
		h = "Bearer " + cr.AccessToken
	}
	k.mu.Lock()
	k.basic, k.basicUntil = h, now.Add(basicLife)
	k.mu.Unlock()
	return h, nil
}

// challenged returns what to show to an endpoint that answered 401 to a request with the
// header shown. It returns "" if there is nothing else to show.
func (k *keyring) challenged(ctx context.Context, repo string, h http.Header, shown string) (string, error) {
	c := wire.ChooseChallenge(h.Values("Www-Authenticate"), k.e.base)
	switch c.Scheme {
	case "":
		return "", nil
	case "bearer":
		if !k.learn(repo, c, shown) {
			return "", nil
		}
		again, err := k.bearer(ctx, repo, strings.TrimPrefix(shown, "Bearer "))
		if again == shown {
			again = ""
		}
		return again, err
	}
	k.mu.Lock()
	k.scheme = "basic"
	if shown == k.basic { // the source may have another one by now
		k.basicUntil = time.Time{}
	}
	k.mu.Unlock()
	again, err := k.basicHeader(ctx)
	if again == shown {
		again = ""
	}
	return again, err
}

// learn notes a challenge, and reports whether another token may help.
func (k *keyring) learn(repo string, c wire.Challenge, shown string) bool {
	realm, err := url.Parse(c.Params["realm"])
	if err != nil {
		realm = nil // bearer says what is wrong
	}
	scope := c.Params["scope"]
	now := k.e.up.clock()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.scheme, k.realm, k.service = "bearer", realm, c.Params["service"]
	k.usual = scope == "" || scope == scopeOf(repo)
	t := k.entry(repo)
	changed := scope != "" && t.scope != scope
	if changed {
		t.scope = scope
	}
	if shown == "" || changed {
		return true
	}
	// A token that was made just now for exactly this request is refused. The next one
	// will be, too.
	return shown != "Bearer "+t.value || now.Sub(t.got) > freshToken
}

func scopeOf(repo string) string { return "repository:" + repo + ":pull" }

// entry returns the token of a repository, which may be empty. k.mu is held.
func (k *keyring) entry(repo string) *token {
	t := k.tokens[repo]
	if t != nil {
		return t
	}
	if len(k.tokens) >= maxTokens {
		k.evict()
	}
	t = &token{scope: scopeOf(repo)}
	k.tokens[repo] = t
	return t
}

// evict makes room. It removes all expired tokens, or any token if none has expired. It
// keeps a token that is about to be fetched, because of what the challenge said. k.mu is
// held.
func (k *keyring) evict() {
	now := k.e.up.clock()
	done := func(t *token) bool { return t.fetch == nil && (t.value != "" || !t.errUntil.IsZero()) }
	for repo, t := range k.tokens {
		if done(t) && !now.Before(t.until) {
			delete(k.tokens, repo)
		}
	}
	for repo, t := range k.tokens {
		if len(k.tokens) < maxTokens {
			return
		}
		if done(t) {
			delete(k.tokens, repo)
		}
	}
}

// bearer returns the header with a token for a repository other than the refused one. If
// several callers want it at the same time, one fetches it.
func (k *keyring) bearer(ctx context.Context, repo, refused string) (string, error) {
	for {
		now := k.e.up.clock()
		k.mu.Lock()
		t := k.entry(repo)
		switch {
		case t.value != "" && t.value != refused && now.Before(t.until):
			k.mu.Unlock()
			return "Bearer " + t.value, nil
		case t.fetch != nil:
			done := t.fetch
			k.mu.Unlock()
			select {
			case <-done:
				continue
			case <-ctx.Done():
				return "", context.Cause(ctx)
			}
		case now.Before(t.errUntil):
			err := t.err
			k.mu.Unlock()
			return "", err
		}
		t.fetch = make(chan struct{})
		g := grant{realm: k.realm, service: k.service, scope: t.scope}
		k.mu.Unlock()

		value, life, err := k.fetch(ctx, g)

		k.mu.Lock()
		close(t.fetch)
		t.fetch, t.value = nil, value
		switch {
		case err == nil:
			// The token is renewed a little early, because it must still be valid when it
			// arrives.
			t.got, t.until = now, now.Add(life-min(life/4, 30*time.Second))
			t.err, t.errUntil = nil, time.Time{}
		case ctx.Err() != nil: // the caller gave up, which is no failure for the others
			t.err, t.errUntil = nil, now
		default:
			t.err, t.errUntil = err, k.e.up.clock().Add(failureLife)
			if KindOf(err) == Denied {
				t.errUntil = k.e.up.clock().Add(refusalLife)
			}
		}
		k.mu.Unlock()
		k.e.up.metrics.token(err)
		if err != nil {
			return "", err
		}
		return "Bearer " + value, nil
	}
}

// grant is what a token is requested with.
type grant struct {
	realm          *url.URL
	service, scope string
}

// fetch gets a token and its lifetime.
func (k *keyring) fetch(ctx context.Context, g grant) (string, time.Duration, error) {
	if err := k.checkRealm(g.realm); err != nil {
		return "", 0, err
	}
	if err := k.e.closed(k.e.health.look(ofTokens)); err != nil {
		return "", 0, err
	}
	cr, err := k.credential(ctx)
	if err != nil {
		return "", 0, err
	}
	if cr.AccessToken != "" {
		return cr.AccessToken, basicLife, nil
	}
	resp, err := k.request(ctx, g, cr)
	if err != nil {
		return "", 0, fmt.Errorf("token service: %w", err)
	}
	defer resp.Body.Close()
	if err := k.refused(resp); err != nil {
		drain(resp)
		return "", 0, err
	}
	value, life, err := client.ReadToken(resp.Body)
	if err != nil {
		return "", 0, fmt.Errorf("token service %s: %w", g.realm.Host, err)
	}
	return value, life, nil
}

// checkRealm refuses token services to which no password must be shown.
func (k *keyring) checkRealm(realm *url.URL) error {
	switch {
	case realm == nil:
		return errors.New("the URL of its token service is malformed")
	case realm.Scheme != "http" && realm.Scheme != "https" || realm.Hostname() == "":
		return fmt.Errorf("its token service has a %q URL", realm.Scheme)
	case realm.User != nil:
		return errors.New("the URL of its token service has a user name")
	case realm.Scheme == "http" && k.e.base.Scheme == "https":
		return fmt.Errorf("its token service, at %s, is without TLS and it is not", realm.Host)
	}
	return nil
}

// request requests a token: by GET, or by POST if a refresh token is exchanged (OAuth2).
// It follows redirects only within the token service's own scheme, host and port, so that
// passwords go nowhere else.
func (k *keyring) request(ctx context.Context, g grant, cr client.Credential) (*http.Response, error) {
	r := tokens
	if k.e.at(g.realm) {
		r = peer
	}
	ask := client.TokenRequest{Realm: g.realm, Service: g.service, Scope: g.scope, ClientID: k.e.up.agent, Credential: cr}
	req, err := ask.HTTP(ctx)
	if err != nil {
		return nil, err
	}
	req.Header.Set("User-Agent", k.e.up.agent)
	if req.Method == http.MethodPost {
		return k.e.send(req, r)
	}
	for range 3 {
		resp, err := k.e.send(req, r)
		if err != nil {
			return nil, err
		}
		next, err := location(resp)
		if next == nil && err == nil {
			return resp, nil
		}
		drain(resp)
		if err != nil {
			return nil, err
		}
		if origin(next) != origin(g.realm) {
			return nil, fmt.Errorf("%w: it leads from the token service to %s", errRedirect, next.Host)
		}
		req = newRequest(ctx, http.MethodGet, next, req.Header)
	}
	return nil, fmt.Errorf("%w: there were 3 before it", errRedirect)
}

// refused returns the error of an answer without a token.
func (k *keyring) refused(resp *http.Response) error {
	status := resp.StatusCode
	if status == http.StatusOK {
		return nil
	}
	kind := Unavailable
	switch {
	case status == http.StatusTooManyRequests, status == http.StatusServiceUnavailable && pause(resp.Header, k.e.up.clock()) > 0:
		return k.e.busy(pause(resp.Header, k.e.up.clock()), status, ofTokens)
	case status == http.StatusBadRequest, status == http.StatusUnauthorized, status == http.StatusForbidden, status == http.StatusNotFound:
		kind = Denied
	}
	return k.e.error(kind, status, subject{}, fmt.Errorf("the token service, %s, answered %d", resp.Request.URL.Host, status))
}
