package send

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

// authority answers a registry that wants credentials. Safe for concurrent use.
type authority struct {
	target *Target
	secure bool // the registry is spoken to over TLS
	via    http.RoundTripper

	mu     sync.Mutex
	basic  bool
	tokens map[string]token // by scope
}

type token struct {
	value   string
	expires time.Time
}

// scope is what a request needs of a token.
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

// header is what is sent without being asked: nothing before the registry wanted
// something for the first time.
func (a *authority) header(scope string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.basic {
		return a.basicHeader()
	}
	if t, ok := a.tokens[scope]; ok && time.Until(t.expires) > 0 {
		return "Bearer " + t.value
	}
	return ""
}

func (a *authority) basicHeader() string {
	r := http.Request{Header: http.Header{}}
	r.SetBasicAuth(a.target.Username, a.target.Password)
	return r.Header.Get("Authorization")
}

// answer is what a challenge is answered with; empty if there is nothing to show.
func (a *authority) answer(ctx context.Context, challenges []string, scope string) (string, error) {
	for _, c := range challenges {
		scheme, params := parseChallenge(c)
		switch scheme {
		case "basic":
			if a.target.Username == "" {
				continue
			}
			a.mu.Lock()
			defer a.mu.Unlock()
			a.basic = true
			return a.basicHeader(), nil
		case "bearer":
			// One at a time: requests that wait for the same token then find it.
			a.mu.Lock()
			defer a.mu.Unlock()
			if t, ok := a.tokens[scope]; ok && time.Until(t.expires) > 0 {
				return "Bearer " + t.value, nil
			}
			t, err := a.fetch(ctx, params, scope)
			if err != nil {
				return "", err
			}
			if a.tokens == nil || len(a.tokens) >= maxTokens {
				a.tokens = map[string]token{}
			}
			a.tokens[scope] = t
			return "Bearer " + t.value, nil
		}
	}
	return "", nil
}

// maxTokenAnswer bounds what a token service may say, in bytes.
const maxTokenAnswer = 1 << 20

// fetch asks the token service.
func (a *authority) fetch(ctx context.Context, params map[string]string, scope string) (t token, err error) {
	realm, err := url.Parse(params["realm"])
	if err != nil || realm.Host == "" || realm.Scheme != "https" && realm.Scheme != "http" {
		return t, errors.New("the registry names no valid token service")
	}
	if a.secure && realm.Scheme != "https" {
		return t, errors.New("the registry names a token service without TLS; credentials are not sent there")
	}
	if params["scope"] != "" {
		scope = params["scope"]
	}
	req, err := a.tokenRequest(ctx, realm, params["service"], scope)
	if err != nil {
		return t, err
	}
	resp, err := a.via.RoundTrip(req)
	if err != nil {
		return t, fmt.Errorf("ask for a token: %w", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxTokenAnswer))
	if err != nil {
		return t, fmt.Errorf("ask for a token: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return t, fmt.Errorf("ask for a token: status %d", resp.StatusCode)
	}
	var answer struct {
		Token       string `json:"token"`
		AccessToken string `json:"access_token"`
		ExpiresIn   int    `json:"expires_in"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return t, errors.New("the token service's answer is malformed")
	}
	t.value = answer.Token
	if t.value == "" {
		t.value = answer.AccessToken
	}
	if t.value == "" {
		return t, errors.New("the token service gave no token")
	}
	if answer.ExpiresIn <= 0 {
		answer.ExpiresIn = 60 // the token specification's default
	}
	life := time.Duration(answer.ExpiresIn) * time.Second
	t.expires = time.Now().Add(life - life/10)
	return t, nil
}

func (a *authority) tokenRequest(ctx context.Context, realm *url.URL, service, scope string) (*http.Request, error) {
	q := url.Values{"service": {service}}
	if scope != "" {
		q.Set("scope", scope)
	}
	if a.target.IdentityToken != "" {
		q.Set("grant_type", "refresh_token")
		q.Set("client_id", "slipway")
		q.Set("refresh_token", a.target.IdentityToken)
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, realm.String(), strings.NewReader(q.Encode()))
		if err == nil {
			req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		}
		return req, err
	}
	for k, v := range realm.Query() {
		q[k] = v
	}
	u := *realm
	u.RawQuery = q.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err == nil && a.target.Username != "" {
		req.SetBasicAuth(a.target.Username, a.target.Password)
	}
	return req, err
}

// parseChallenge reads a WWW-Authenticate header of one challenge: its scheme in
// lower case and its parameters.
func parseChallenge(s string) (scheme string, params map[string]string) {
	scheme, rest, _ := strings.Cut(strings.TrimSpace(s), " ")
	params = map[string]string{}
	for rest != "" {
		name, after, ok := strings.Cut(rest, "=")
		if !ok {
			break
		}
		name = strings.ToLower(strings.Trim(name, " ,\t"))
		after = strings.TrimLeft(after, " ")
		value := ""
		if strings.HasPrefix(after, `"`) {
			value, rest = quoted(after[1:])
		} else {
			value, rest, _ = strings.Cut(after, ",")
			value = strings.TrimSpace(value)
		}
		params[name] = value
	}
	return strings.ToLower(scheme), params
}

// quoted reads up to the closing quote.
func quoted(s string) (value, rest string) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '\\' && i+1 < len(s):
			i++
			b.WriteByte(s[i])
		case s[i] == '"':
			return b.String(), s[i+1:]
		default:
			b.WriteByte(s[i])
		}
	}
	return b.String(), ""
}
