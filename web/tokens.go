package web

import (
	"net/http"
	"strconv"
	"time"

	"example.org/slipway/registry/auth"
	"example.org/slipway/web/manage"
)

func noTokens() error { return notFound("This server keeps no API tokens.") }

// tokens shows the API tokens, or asks whether some are to be revoked.
func (q *request) tokens() error {
	if q.h.opts.System.Tokens == nil {
		return noTokens()
	}
	if which := q.r.FormValue("revoke"); which != "" {
		d, err := q.toRevoke(which)
		if err != nil {
			return err
		}
		q.show(http.StatusOK, "revoke", "Revoke API tokens", d)
		return nil
	}
	d := &manage.TokensPage{Form: manage.NewTokenForm()}
	if n, err := strconv.Atoi(q.r.FormValue("revoked")); err == nil && n > 0 {
		d.Revoked = n
	}
	return q.showTokens(http.StatusOK, d)
}

// showTokens shows the list with what else is known.
func (q *request) showTokens(status int, d *manage.TokensPage) (err error) {
	d.Accepted = q.h.opts.System.Tokens.Accepted()
	if d.Tokens, err = manage.ListTokens(q.ctx(), q.h.opts.System.Tokens, q.h.opts.Clock(), ""); err != nil {
		return err
	}
	q.show(status, "tokens", "API tokens", d)
	return nil
}

// toRevoke returns what a revocation would revoke.
func (q *request) toRevoke(which string) (*manage.Revocation, error) {
	d, err := manage.ToRevoke(q.ctx(), q.h.opts.System.Tokens, q.h.opts.Clock(), which)
	if err == nil && d == nil {
		err = notFound("There is no such API token any more.")
	}
	return d, err
}

// parseForm reads the form of a page for administrators.
func (q *request) parseForm() error {
	q.r.Body = http.MaxBytesReader(q.w, q.r.Body, maxForm)
	if err := q.r.ParseForm(); err != nil {
		return &problem{status: http.StatusBadRequest, text: "The form could not be read.", err: err}
	}
	return nil
}

// doTokens creates a token or revokes some.
func (q *request) doTokens() error {
	if q.h.opts.System.Tokens == nil {
		return noTokens()
	}
	if err := q.parseForm(); err != nil {
		return err
	}
	switch q.r.PostForm.Get("do") {
	case "create":
		return q.createToken()
	case "revoke":
		return q.revokeTokens(q.r.PostForm.Get("which"))
	}
	return q.showTokens(http.StatusBadRequest, &manage.TokensPage{Form: manage.NewTokenForm(), Problem: "Say what is to be done: choose one of the buttons."})
}

// createToken creates the token of the form. The answer is the page with the token and no
// redirection, because the secret is kept nowhere.
func (q *request) createToken() error {
	f := manage.ReadTokenForm(q.r.PostForm)
	if !q.h.opts.System.Tokens.Accepted() {
		return q.showTokens(http.StatusConflict, &manage.TokensPage{Form: f})
	}
	lifetime := time.Duration(f.Days) * 24 * time.Hour
	if err := auth.CheckAPIToken(f.Robot, f.Permits(), lifetime); err != nil {
		return q.showTokens(http.StatusBadRequest, &manage.TokensPage{Form: f, Problem: "Nothing was created: " + err.Error() + "."})
	}
	t, secret, err := q.h.opts.System.Tokens.Create(q.ctx(), f.Robot, f.Permits(), lifetime, q.user())
	if err != nil {
		q.record("admin", "failure", "create token", "", f.Robot)
		return err
	}
	q.record("admin", "success", "create token", "", t.Robot+" "+t.ID)
	return q.showTokens(http.StatusOK, &manage.TokensPage{Form: manage.NewTokenForm(), Created: &manage.CreatedToken{APIToken: t, Secret: secret, Host: q.host()}})
}

// revokeTokens revokes a token, or all tokens of a robot.
func (q *request) revokeTokens(which string) error {
	if _, err := q.toRevoke(which); err != nil {
		return err
	}
	list, err := q.h.opts.System.Tokens.Revoke(q.ctx(), which)
	for _, t := range list {
		q.record("admin", "success", "revoke token", "", t.Robot+" "+t.ID)
	}
	if err != nil {
		q.record("admin", "failure", "revoke token", "", which)
		return err
	}
	http.Redirect(q.w, q.r, q.h.opts.Prefix+Root+"tokens?revoked="+strconv.Itoa(len(list)), http.StatusSeeOther)
	return nil
}
