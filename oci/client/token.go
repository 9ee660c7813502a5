package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const (
	// MaxTokenAnswer bounds the bytes of a token service's answer. Docker Hub's answers
	// have 5 KiB.
	MaxTokenAnswer = 128 << 10
	// LongestToken bounds the lifetime that a token service may give a token.
	LongestToken = 24 * time.Hour
	// tokenLife is the lifetime of a token if the token service does not say it. SPEC
	// (token authentication): "If omitted, this defaults to 60 seconds."
	tokenLife = time.Minute
)

// TokenRequest is a request to a token service. It is for clients that keep their tokens
// themselves.
type TokenRequest struct {
	Realm *url.URL
	// Service and Scope come from the challenge. Scope may hold several scopes, with
	// spaces between them.
	Service, Scope string
	// ClientID is the name by which the program identifies itself when a refresh token is
	// exchanged.
	ClientID   string
	Credential Credential
}

// HTTP returns the HTTP request: a GET, or a POST if a refresh token is exchanged
// (OAuth2).
func (t *TokenRequest) HTTP(ctx context.Context) (*http.Request, error) {
	u := *t.Realm
	u.Fragment = ""
	if t.Credential.RefreshToken != "" {
		form := url.Values{"service": {t.Service}, "scope": {t.Scope}, "client_id": {t.ClientID},
			"grant_type": {"refresh_token"}, "refresh_token": {t.Credential.RefreshToken}}
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, u.String(), strings.NewReader(form.Encode()))
		if err == nil {
			req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		}
		return req, err
	}
	q := u.Query()
	if t.Service != "" {
		q.Set("service", t.Service)
	}
	for _, s := range strings.Fields(t.Scope) {
		q.Add("scope", s)
	}
	u.RawQuery = q.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err == nil && (t.Credential.Username != "" || t.Credential.Password != "") {
		req.SetBasicAuth(t.Credential.Username, t.Credential.Password)
	}
	return req, err
}

// ReadToken parses a token service's answer. It returns the token and its lifetime. Its
// errors do not quote the answer.
func ReadToken(r io.Reader) (value string, life time.Duration, err error) {
	b, err := io.ReadAll(io.LimitReader(r, MaxTokenAnswer))
	if err != nil {
		return "", 0, err
	}
	var answer struct {
		Token       string      `json:"token"`
		AccessToken string      `json:"access_token"`
		ExpiresIn   json.Number `json:"expires_in"`
	}
	if json.Unmarshal(b, &answer) != nil {
		return "", 0, errors.New("its answer is not a token")
	}
	if value = answer.AccessToken; value == "" {
		value = answer.Token
	}
	if value == "" {
		return "", 0, errors.New("its answer has no token")
	}
	if strings.ContainsFunc(value, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", 0, errors.New("its token has characters that a header cannot have")
	}
	life = tokenLife
	if s, err := answer.ExpiresIn.Float64(); err == nil && s > 0 {
		life = LongestToken
		if s < LongestToken.Seconds() {
			life = max(time.Second, time.Duration(s*float64(time.Second)))
		}
	}
	return value, life, nil
}
