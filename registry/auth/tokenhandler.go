package auth

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/oci/wire"
	"example.org/slipway/registry/auth/passwords"
)

// maxTokenForm bounds the body of POST /token. It is ample for the scopes of a push with
// many mounts and an OIDC token.
const maxTokenForm = 64 << 10

// TokenHandler returns the endpoint of the built-in token service, to be served at
// TokenPath. It returns nil if there is no such service. The endpoint answers
//
//	GET  /token?service=...&scope=...&offline_token=true   Docker's token specification
//	POST /token  grant_type=password|refresh_token          its OAuth 2 form
//
// The token is for those of the requested rights that are granted. These may be none,
// because clients log in with such a request. An error has the body of Docker's
// specification, and in addition OAuth's error and error_description.
func (a *Auth) TokenHandler() http.Handler {
	if a.issuer == nil {
		return nil
	}
	return tokenHandler{a}
}

type tokenHandler struct{ a *Auth }

// tokenRequest is a request for a token, in either form.
type tokenRequest struct {
	id      *Identity
	scopes  []scope
	offline bool
	oauth   bool
}

// tokenResponse is the answer to both forms. Docker's clients read token or access_token,
// OAuth clients read access_token.
type tokenResponse struct {
	Token        string `json:"token"`
	AccessToken  string `json:"access_token"`
	TokenType    string `json:"token_type,omitempty"`
	Scope        string `json:"scope,omitempty"`
	ExpiresIn    int64  `json:"expires_in"` // seconds
	IssuedAt     string `json:"issued_at"`  // RFC 3339
	RefreshToken string `json:"refresh_token,omitempty"`
}

// ServeHTTP implements http.Handler.
func (h tokenHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var req tokenRequest
	var err error
	switch r.Method {
	case http.MethodGet:
		req, err = h.get(r)
	case http.MethodPost:
		r.Body = http.MaxBytesReader(w, r.Body, maxTokenForm)
		req, err = h.post(r)
	default:
		w.Header().Set("Allow", "GET, POST")
		err = &oci.Error{Code: oci.CodeUnsupported, Message: "the token endpoint takes GET and POST"}
	}
	var answer tokenResponse
	if err == nil {
		answer, err = h.answer(r, req)
	}
	if err != nil {
		h.fail(w, err)
		return
	}
	h.write(w, http.StatusOK, answer)
}

// get parses the form of Docker's token specification.
func (h tokenHandler) get(r *http.Request) (tokenRequest, error) {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return tokenRequest{}, badRequest("invalid_request", "the query is malformed")
	}
	req, err := h.common(q)
	if err != nil {
		return req, err
	}
	req.offline, _ = strconv.ParseBool(q.Get("offline_token"))
	if req.id, err = h.a.Authenticate(r); err != nil {
		return req, err
	}
	if req.id.limited { // otherwise a token could renew itself for ever
		return req, &oci.Error{Code: oci.CodeUnauthorized, Message: "a token cannot be used to get another one"}
	}
	if req.id.Name == "" && len(h.a.grants.Load().anonymous) == 0 {
		return req, &oci.Error{Code: oci.CodeUnauthorized, Message: "authentication required"}
	}
	return req, nil
}

// post parses the OAuth 2 form.
func (h tokenHandler) post(r *http.Request) (tokenRequest, error) {
	if err := r.ParseForm(); err != nil {
		return tokenRequest{}, badRequest("invalid_request", "the form is malformed or too large")
	}
	f := r.PostForm
	req, err := h.common(f)
	if err != nil {
		return req, err
	}
	req.oauth = true
	switch f.Get("grant_type") {
	case "password":
		req.offline = f.Get("access_type") == "offline"
		req.id, err = h.a.password(r, f.Get("username"), f.Get("password"))
	case "refresh_token":
		req.id, err = h.a.refreshed(r, f.Get("refresh_token"))
	default:
		err = badRequest("unsupported_grant_type", "grant_type is neither password nor refresh_token")
	}
	return req, err
}

// common parses the parameters that both forms have.
func (h tokenHandler) common(v url.Values) (req tokenRequest, err error) {
	if s := v.Get("service"); s != "" && s != h.a.issuer.service {
		return req, badRequest("invalid_request", "tokens are given for the service "+strconv.Quote(h.a.issuer.service)+" only")
	}
	var ok bool
	if req.scopes, ok = parseScopes(v["scope"]); !ok {
		return req, badRequest("invalid_scope", "more than "+strconv.Itoa(maxScopes)+" resources in one request")
	}
	return req, nil
}

// refreshed authenticates a client by a refresh token.
func (a *Auth) refreshed(r *http.Request, token string) (*Identity, error) {
	err := errors.New("refresh tokens are given to htpasswd users only")
	if a.htpasswd != nil {
		var name string
		if name, err = a.issuer.verifyRefresh(token, a.htpasswd.Hash); err == nil {
			return inFile(name), nil
		}
	}
	e := eventOf(r, "login")
	e.Outcome, e.Reason = "failure", "refresh token"
	a.audit.Record(e)
	return nil, &oci.Error{Code: oci.CodeUnauthorized, Message: "the refresh token is not valid; log in again", Err: err}
}

// withMeant adds the repositories that the names in scopes stand for. Their rights are
// looked up like all others, so the caller gets nothing that it could not have asked for
// by the repository's own name.
func (a *Auth) withMeant(r *http.Request, scopes []scope) []scope {
	if a.repository == nil {
		return scopes
	}
	out := slices.Clone(scopes)
	for _, s := range scopes {
		if s.repo == "" {
			continue
		}
		if name := a.repository(r, s.repo); name != s.repo && oci.ValidName(name) {
			out = append(out, scope{name, s.actions})
		}
	}
	return out
}

// answer issues the token.
func (h tokenHandler) answer(r *http.Request, req tokenRequest) (tokenResponse, error) {
	a := h.a
	var granted []scope
	var texts []string
	for _, s := range a.withMeant(r, req.scopes) {
		s.actions = a.to(req.id, s.repo, s.actions)
		if s.actions != 0 {
			granted = append(granted, s)
			texts = append(texts, s.String())
		}
	}
	t, err := a.issuer.issue(req.id, granted, a.grants.Load().known(req.id.Groups))
	if err != nil {
		return tokenResponse{}, &oci.Error{Code: oci.CodeUnknown, Message: "the token could not be made", Err: err}
	}
	out := tokenResponse{
		Token: t.token, AccessToken: t.token,
		ExpiresIn: int64(t.expire.Sub(t.at) / time.Second),
		IssuedAt:  t.at.UTC().Format(time.RFC3339),
	}
	if req.oauth {
		out.TokenType, out.Scope = "Bearer", strings.Join(texts, " ")
	}
	if req.offline && req.id.Method == MethodHTPasswd && a.issuer.refreshLifetime > 0 {
		if hash, ok := a.htpasswd.Hash(req.id.Name); ok {
			if out.RefreshToken, err = a.issuer.refresh(req.id.Name, hash); err != nil {
				return tokenResponse{}, &oci.Error{Code: oci.CodeUnknown, Message: "the token could not be made", Err: err}
			}
		}
	}
	e := eventOf(r, "token")
	e.Subject, e.Method, e.Outcome = req.id.Name, req.id.Method, "issued"
	e.Action, e.Reference = strings.Join(texts, " "), t.id
	a.audit.Record(e)
	return out, nil
}

// oauthError carries OAuth's error code to the answer.
type oauthError struct{ code string }

func (e *oauthError) Error() string { return e.code }

// badRequest returns a 400 error with OAuth's error code.
func badRequest(code, message string) *oci.Error {
	return &oci.Error{Code: oci.CodeUnsupported, Status: http.StatusBadRequest, Message: message, Err: &oauthError{code}}
}

// fail answers with an error.
func (h tokenHandler) fail(w http.ResponseWriter, err error) {
	var e *oci.Error
	if !errors.As(err, &e) {
		e = &oci.Error{Code: oci.CodeUnknown, Message: "the token could not be made", Err: err}
	}
	status := e.HTTPStatus()
	code := "invalid_grant"
	var oauth *oauthError
	var retry *passwords.RetryError
	switch {
	case errors.As(err, &oauth):
		code = oauth.code
	case errors.As(err, &retry):
		code = "temporarily_unavailable"
		w.Header().Set("Retry-After", wire.Seconds(retry.After))
	case status >= 500:
		code = "server_error"
		h.a.log.Error("token endpoint failed", "error", err, "cause", e.Err)
	}
	if status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", h.a.basicChallenge())
	}
	body := struct {
		Errors      []map[string]string `json:"errors"`
		Error       string              `json:"error"`
		Description string              `json:"error_description"`
	}{[]map[string]string{{"code": string(e.Code), "message": e.Message}}, code, e.Message}
	h.write(w, status, body)
}

func (h tokenHandler) write(w http.ResponseWriter, status int, body any) {
	b, err := json.Marshal(body)
	if err != nil {
		h.a.log.Error("token answer cannot be encoded", "error", err)
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	w.WriteHeader(status)
	if _, err := w.Write(b); err != nil {
		h.a.log.Debug("token answer not delivered", "error", err)
	}
}
