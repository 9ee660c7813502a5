package admin

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"example.org/slipway/registry/auth"
	"example.org/slipway/serve/dataroot"
)

// TokensReport lists API tokens.
type TokensReport struct {
	Tokens []dataroot.APIToken `json:"tokens"`
}

// RevokeArgs say which tokens are revoked: those with these ids, and all of robots with
// these names.
type RevokeArgs struct {
	Which []string `json:"which"`
}

// tokenTasks are the tasks of API tokens, which a data root's own process does, too.
type tokenTasks struct {
	root  *dataroot.Root
	audit *auth.AuditLog
	// accepted says that the server accepts API tokens.
	accepted bool
}

var errNotAccepted = errors.New("this server would not accept the token: nobody is asked for a password here; configure auth.htpasswd, auth.ldap or auth.oidc, or set auth.robots: true")

func (s tokenTasks) create(ctx context.Context, a dataroot.CreateTokenArgs) (dataroot.CreatedToken, error) {
	if !s.accepted {
		return dataroot.CreatedToken{}, errNotAccepted
	}
	a.Creator = callerOf(ctx)
	t, err := s.root.CreateToken(ctx, a)
	s.record(ctx, "create token", a.Robot+" "+t.ID, err)
	return t, err
}

func (s tokenTasks) list(ctx context.Context) (TokensReport, error) {
	list, err := s.root.APITokens(ctx)
	return TokensReport{list}, err
}

func (s tokenTasks) revoke(ctx context.Context, a RevokeArgs) (rep TokensReport, err error) {
	for _, which := range a.Which {
		list, err := s.root.RevokeTokens(ctx, which)
		for _, t := range list {
			s.record(ctx, "revoke token", t.Robot+" "+t.ID, nil)
		}
		rep.Tokens = append(rep.Tokens, list...)
		if err != nil {
			s.record(ctx, "revoke token", which, err)
			return rep, err
		}
	}
	return rep, nil
}

func (s tokenTasks) record(ctx context.Context, action, reference string, err error) {
	record(ctx, s.audit, action, reference, err)
}

// record writes an event of administration to the audit log.
func record(ctx context.Context, audit *auth.AuditLog, action, reference string, err error) {
	e := auth.Event{Event: "admin", Outcome: "success", Subject: callerOf(ctx), Method: "socket", Action: action, Reference: strings.TrimSpace(reference)}
	if err != nil {
		e.Outcome, e.Reason = "failure", err.Error()
	}
	audit.Record(e)
}

// Reloaded says what a server has read again.
type Reloaded struct {
	auth.Reloaded
	// Replication is the number of rules of replication.
	Replication        int  `json:"replication_rules"`
	ReplicationChanged bool `json:"replication_changed"`
}

// Reload makes the server that uses the data root read the access rules, the users and the
// rules of replication again.
func (a *Admin) Reload(ctx context.Context) (Reloaded, error) {
	if a.local != nil {
		return Reloaded{}, errors.New("no server uses this data directory; a server reads its configuration when it starts")
	}
	return askServer[struct{}, Reloaded](ctx, a, "reload", struct{}{}, nil)
}

// handleTokens adds the tasks of API tokens.
func (s *tasks) handleTokens(mux *http.ServeMux) {
	t := tokenTasks{s.root, s.o.Audit, s.o.Auth != nil && s.o.Auth.TakesRobots()}
	mux.Handle("POST /admin/token-create", task(whileWritable(s.writes, func(ctx context.Context, a dataroot.CreateTokenArgs, _ func(dataroot.CreatedToken)) (dataroot.CreatedToken, error) {
		return t.create(ctx, a)
	})))
	mux.Handle("POST /admin/token-list", task(func(ctx context.Context, _ struct{}, _ func(TokensReport)) (TokensReport, error) {
		return t.list(ctx)
	}))
	mux.Handle("POST /admin/token-revoke", task(whileWritable(s.writes, func(ctx context.Context, a RevokeArgs, _ func(TokensReport)) (TokensReport, error) {
		return t.revoke(ctx, a)
	})))
}

// audited does work on the data root that this process has opened, with its audit log,
// which is nil if there is none.
func (a *Admin) audited(do func(*auth.AuditLog) error) error {
	if a.cfg.Log.Audit.File == "" {
		return do(nil)
	}
	audit, err := auth.OpenAuditLog(a.cfg.Log.Audit.File, nil)
	if err != nil {
		return err
	}
	return errors.Join(do(audit), audit.Close())
}

// CreateToken creates an API token of a robot.
func (a *Admin) CreateToken(ctx context.Context, args dataroot.CreateTokenArgs) (c dataroot.CreatedToken, err error) {
	if a.local == nil {
		return askServer[dataroot.CreateTokenArgs, dataroot.CreatedToken](ctx, a, "token-create", args, nil)
	}
	err = a.audited(func(audit *auth.AuditLog) error {
		c, err = tokenTasks{a.local, audit, true}.create(ctx, args)
		return err
	})
	return c, err
}

// Tokens lists the API tokens.
func (a *Admin) Tokens(ctx context.Context) (TokensReport, error) {
	if a.local == nil {
		return askServer[struct{}, TokensReport](ctx, a, "token-list", struct{}{}, nil)
	}
	return tokenTasks{root: a.local}.list(ctx)
}

// RevokeTokens revokes API tokens.
func (a *Admin) RevokeTokens(ctx context.Context, args RevokeArgs) (rep TokensReport, err error) {
	if a.local == nil {
		return askServer[RevokeArgs, TokensReport](ctx, a, "token-revoke", args, nil)
	}
	err = a.audited(func(audit *auth.AuditLog) error {
		rep, err = tokenTasks{a.local, audit, true}.revoke(ctx, args)
		return err
	})
	return rep, err
}
