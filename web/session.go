package web

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/oci/wire"
	"example.org/slipway/registry/auth"
	"example.org/slipway/registry/auth/passwords"
)

// Logins lets users log in. *auth.Auth implements it.
type Logins interface {
	// PasswordLogin reports whether there are users with passwords. LoginIssuers returns
	// the issuers with which other users can log in.
	PasswordLogin() bool
	LoginIssuers() []string
	Login(r *http.Request, user, password string) (*auth.Identity, error)
	BeginLogin(ctx context.Context, issuer, redirect, next string) (address, state string, err error)
	FinishLogin(r *http.Request, state string, answer url.Values, redirect string) (id *auth.Identity, next string, err error)
	NewSession(id *auth.Identity, lifetime time.Duration) (token string, expires time.Time, err error)
	Session(token string) (*auth.Identity, error)
	EndSession(token string)
}

// These are the cookies, below the page's root: one for a session, and one for a login at
// an issuer.
const (
	sessionCookie = "slipway_session"
	loginCookie   = "slipway_login"
)

// identify finds out who the user is, by the session or else as in any request. If the
// session has ended, it is dropped and the user is anonymous.
func (q *request) identify() error {
	if q.h.access == nil {
		return nil
	}
	defer func() {
		// What the user changes is recorded and reported under the user's name.
		if a := oci.ActorFrom(q.ctx()); a != nil && q.id != nil {
			a.Name = q.id.Name
		}
	}()
	if c, err := q.r.Cookie(sessionCookie); err == nil && q.h.logins != nil {
		if q.id, err = q.h.logins.Session(c.Value); err == nil {
			return nil
		}
		q.setCookie(sessionCookie, "", time.Time{})
	}
	id, err := q.h.access.Authenticate(q.r)
	q.id = id
	return err
}

// setCookie sets a cookie of the page; an empty value deletes it.
func (q *request) setCookie(name, value string, expires time.Time) {
	c := &http.Cookie{Name: name, Value: value, Path: q.h.opts.Prefix + Root, HttpOnly: true, Secure: q.encrypted(),
		SameSite: http.SameSiteLaxMode, Expires: expires} // Strict would lose the session on the way back from an issuer
	if value == "" {
		c.MaxAge = -1
	}
	http.SetCookie(q.w, c)
}

// encrypted reports whether the browser speaks TLS, either to this server or to a proxy.
func (q *request) encrypted() bool {
	return q.r.TLS != nil || strings.HasPrefix(q.h.opts.Host, "https://")
}

// origin returns the address of this server as the browser knows it, scheme://host.
func (q *request) origin() string {
	switch {
	case q.h.opts.Host != "":
		return q.h.opts.Host
	case q.r.TLS != nil:
		return "https://" + q.r.Host
	default:
		return "http://" + q.r.Host
	}
}

// loginForm is what the login page shows.
type loginForm struct {
	Passwords     bool
	Issuers       []string
	User, Problem string
	// Next is the page to go to afterwards, as a path below the page's root.
	Next string
}

func (q *request) showLogin(status int, user, problem string) error {
	q.show(status, "login", "Log in", &loginForm{Passwords: q.h.logins.PasswordLogin(), Issuers: q.h.logins.LoginIssuers(),
		User: user, Problem: problem, Next: q.next()})
	return nil
}

// next returns the page to which the request asks to go after a login, as a path below
// the page's root.
func (q *request) next() string { return q.ownPath(q.r.FormValue("next")) }

// ownPath returns next if it is a path below the page's root. Otherwise it returns the
// path of the first page, so that nobody is sent to another site.
func (q *request) ownPath(next string) string {
	u, err := url.Parse(next)
	root := q.h.opts.Prefix + Root
	if err != nil || u.Scheme != "" || u.Host != "" || u.User != nil || !strings.HasPrefix(next, root) || strings.ContainsAny(next, "\\\r\n\t") {
		return root
	}
	return next
}

// maxForm is the size limit of the page's forms in bytes.
const maxForm = 64 << 10

// doLogin logs in with the form, which has a user and a password.
func (q *request) doLogin() error {
	if q.h.logins == nil {
		return notFound("Nobody needs to log in here.")
	}
	if q.rest != "" {
		return notFound("There is no page of that name.")
	}
	q.r.Body = http.MaxBytesReader(q.w, q.r.Body, maxForm)
	if err := q.r.ParseForm(); err != nil {
		return &problem{status: http.StatusBadRequest, text: "The form could not be read.", err: err}
	}
	user := q.r.PostForm.Get("user")
	id, err := q.h.logins.Login(q.r, user, q.r.PostForm.Get("password"))
	if err != nil {
		return q.loginFailed(user, err)
	}
	if id.Anonymous() {
		return q.showLogin(http.StatusUnauthorized, user, "Enter a user and a password.")
	}
	return q.enter(id, q.next())
}

// loginFailed shows the form again, with the error.
func (q *request) loginFailed(user string, err error) error {
	var reply *oci.Error
	if !errors.As(err, &reply) {
		return err
	}
	var retry *passwords.RetryError
	if errors.As(err, &retry) {
		q.w.Header().Set("Retry-After", wire.Seconds(retry.After))
	}
	return q.showLogin(reply.HTTPStatus(), user, reply.Message)
}

// leave sends the browser to an issuer.
func (q *request) leave(issuer string) error {
	address, state, err := q.h.logins.BeginLogin(q.ctx(), issuer, q.returnTo(), q.next())
	if err != nil {
		return q.loginFailed("", err)
	}
	q.setCookie(loginCookie, state, time.Time{})
	http.Redirect(q.w, q.r, address, http.StatusSeeOther)
	return nil
}

// returnTo returns the address to which issuers send the browser back.
func (q *request) returnTo() string { return q.origin() + q.h.opts.Prefix + Root + "login/done" }

// loginPage serves the form, the way to issuers, and the address to which issuers send
// browsers back. The way to an issuer is a link and not a form, because the policy does
// not let forms go to other sites.
func (q *request) loginPage() error {
	if q.h.logins == nil {
		return notFound("Nobody needs to log in here.")
	}
	issuer, leave := strings.CutPrefix(q.rest, "at/")
	switch {
	case q.rest == "":
		return q.showLogin(http.StatusOK, "", "")
	case q.rest == "done":
		return q.comeBack()
	case leave:
		return q.leave(issuer)
	}
	return notFound("There is no page of that name.")
}

// comeBack completes a login at an issuer.
func (q *request) comeBack() error {
	c, err := q.r.Cookie(loginCookie)
	if err != nil {
		return q.showLogin(http.StatusBadRequest, "", "This login was not begun here, or took too long. Begin again.")
	}
	q.setCookie(loginCookie, "", time.Time{})
	id, next, err := q.h.logins.FinishLogin(q.r, c.Value, q.r.URL.Query(), q.returnTo())
	if err != nil {
		return q.loginFailed("", err)
	}
	return q.enter(id, q.ownPath(next))
}

// enter begins a session and redirects to a page.
func (q *request) enter(id *auth.Identity, next string) error {
	token, expires, err := q.h.logins.NewSession(id, q.h.opts.Session)
	if err != nil {
		return err
	}
	q.id = id
	q.record("login", "success", "", "", "")
	q.setCookie(sessionCookie, token, expires)
	http.Redirect(q.w, q.r, next, http.StatusSeeOther)
	return nil
}

// logout ends a session.
func (q *request) logout() error {
	if c, err := q.r.Cookie(sessionCookie); err == nil && q.h.logins != nil {
		q.h.logins.EndSession(c.Value)
	}
	q.setCookie(sessionCookie, "", time.Time{})
	http.Redirect(q.w, q.r, q.h.opts.Prefix+Root, http.StatusSeeOther)
	return nil
}

// record writes an event to the audit log.
func (q *request) record(event, outcome, action, repo, reference string) {
	if q.h.opts.Audit != nil {
		e := q.event(event, action, reference)
		e.Outcome, e.Repo = outcome, repo
		q.h.opts.Audit.Record(e)
	}
}

// event returns an event of this request, without its outcome.
func (q *request) event(event, action, reference string) auth.Event {
	e := auth.Event{Event: event, Action: action, Reference: reference, Addr: q.r.RemoteAddr}
	if actor := oci.ActorFrom(q.ctx()); actor != nil {
		e.RequestID = actor.RequestID
	}
	if !q.id.Anonymous() {
		e.Subject, e.Method = q.id.Name, q.id.Method
	}
	return e
}

// user returns the name of who asks, or "".
func (q *request) user() string {
	if q.id.Anonymous() {
		return ""
	}
	return q.id.Name
}
