package auth

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/golang-jwt/jwt/v5"
	"golang.org/x/oauth2"

	"example.org/slipway/oci"
)

// loginPatience is how long a person may take at the issuer's page.
const loginPatience = 10 * time.Minute

// loginClaims are the values that are needed again when a browser comes back from an
// issuer.
type loginClaims struct {
	jwt.RegisteredClaims        // the subject is the issuer's name
	State                string `json:"state"`
	Nonce                string `json:"nonce"`
	Verifier             string `json:"verifier"`
	Next                 string `json:"next"`
}

// LoginIssuers returns the names of the OIDC issuers at which people can log in with a
// browser. These are the issuers with a client_id.
func (a *Auth) LoginIssuers() []string {
	var names []string
	for _, v := range a.verifiers {
		if i, ok := v.(*oidcIssuer); ok && i.cfg.ClientID != "" {
			names = append(names, i.cfg.Name)
		}
	}
	slices.Sort(names)
	return names
}

func (a *Auth) loginIssuer(name string) (*oidcIssuer, error) {
	for _, v := range a.verifiers {
		if i, ok := v.(*oidcIssuer); ok && i.cfg.ClientID != "" && i.cfg.Name == name {
			return i, nil
		}
	}
	return nil, &oci.Error{Code: oci.CodeUnauthorized, Message: "nobody can log in at an issuer of that name"}
}

// BeginLogin starts a login at an issuer. The browser is to go to address. The issuer
// then sends it to redirect, and there the browser must present state, which
// [Auth.FinishLogin] needs. FinishLogin also returns next. SPEC: OpenID Connect Core 3.1,
// with PKCE.
func (a *Auth) BeginLogin(ctx context.Context, issuer, redirect, next string) (address, state string, err error) {
	i, err := a.loginIssuer(issuer)
	if err != nil {
		return "", "", err
	}
	client, err := i.oauth(ctx, redirect)
	if err != nil {
		return "", "", err
	}
	c := loginClaims{State: rand.Text(), Nonce: rand.Text(), Verifier: oauth2.GenerateVerifier()}
	now := a.clock()
	t, err := a.sessions.sign(jwt.MapClaims{"state": c.State, "nonce": c.Nonce, "verifier": c.Verifier, "next": next},
		issuer, a.sessions.service+loginAudience, now, now.Add(loginPatience))
	if err != nil {
		return "", "", err
	}
	return client.AuthCodeURL(c.State, oidc.Nonce(c.Nonce), oauth2.S256ChallengeOption(c.Verifier)), t.token, nil
}

// FinishLogin returns the identity of the person who came back from an issuer. answer is
// the issuer's answer, and state is the state that BeginLogin returned. Errors are
// *oci.Error.
func (a *Auth) FinishLogin(r *http.Request, state string, answer url.Values, redirect string) (id *Identity, next string, err error) {
	id, next, err = a.finishLogin(r.Context(), state, answer, redirect)
	if err == nil {
		return id, next, nil
	}
	var wire *oci.Error
	if !errors.As(err, &wire) {
		wire = &oci.Error{Code: oci.CodeUnauthorized, Message: "the login did not succeed; begin again", Err: err}
	}
	a.log.Info("a login with a browser failed", "error", err)
	e := eventOf(r, "login")
	e.Method, e.Outcome, e.Reason = MethodOIDC, "failure", string(wire.Code)
	a.audit.Record(e)
	return nil, "", wire
}

func (a *Auth) finishLogin(ctx context.Context, state string, answer url.Values, redirect string) (id *Identity, next string, err error) {
	if a.sessions == nil || len(state) > maxCredentialBytes {
		return nil, "", errNoSessions
	}
	var c loginClaims
	if _, err := a.sessions.parse(state, a.sessions.service+loginAudience, &c); err != nil {
		return nil, "", err
	}
	if subtle.ConstantTimeCompare([]byte(answer.Get("state")), []byte(c.State)) != 1 {
		return nil, "", errors.New("the issuer's answer is to another login")
	}
	if why := answer.Get("error"); why != "" {
		return nil, "", fmt.Errorf("the issuer says %.100q", why)
	}
	i, err := a.loginIssuer(c.Subject)
	if err != nil {
		return nil, "", err
	}
	id, err = i.redeem(ctx, answer.Get("code"), &c, redirect)
	return id, c.Next, err
}

// oauth returns the OAuth 2 client for logging in at an issuer with a browser.
func (i *oidcIssuer) oauth(ctx context.Context, redirect string) (*oauth2.Config, error) {
	if _, err := i.discovered(ctx); err != nil {
		return nil, i.unavailable(err)
	}
	at := i.endpoint
	if i.cfg.ClientSecret == "" {
		at.AuthStyle = oauth2.AuthStyleInParams // a public client has no secret to put into a header
	}
	return &oauth2.Config{ClientID: i.cfg.ClientID, ClientSecret: i.cfg.ClientSecret, RedirectURL: redirect,
		Endpoint: at, Scopes: append([]string{oidc.ScopeOpenID}, i.cfg.Scopes...)}, nil
}

// redeem exchanges a code for an ID token, and returns the identity in that token.
func (i *oidcIssuer) redeem(ctx context.Context, code string, c *loginClaims, redirect string) (*Identity, error) {
	client, err := i.oauth(ctx, redirect)
	if err != nil {
		return nil, err
	}
	// This request does not go through documents, which repeats answers.
	direct := &http.Client{Transport: i.documents.next, Timeout: i.client.Timeout}
	t, err := client.Exchange(oidc.ClientContext(ctx, direct), code, oauth2.VerifierOption(c.Verifier))
	if err != nil {
		return nil, fmt.Errorf("exchange the code: %.300s", err.Error())
	}
	raw, _ := t.Extra("id_token").(string)
	if raw == "" || len(raw) > maxCredentialBytes {
		return nil, errors.New("the issuer gave no ID token")
	}
	id, nonce, err := i.verifyFor(ctx, raw, []string{i.cfg.ClientID})
	if err != nil {
		return nil, err
	}
	if subtle.ConstantTimeCompare([]byte(nonce), []byte(c.Nonce)) != 1 {
		return nil, errors.New("the ID token is of another login")
	}
	return id, nil
}
