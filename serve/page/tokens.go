package page

import (
	"context"
	"time"

	"example.org/slipway/registry/auth"
	"example.org/slipway/serve/dataroot"
	"example.org/slipway/serve/gate"
	"example.org/slipway/web/manage"
)

// tokens is how the web page manages API tokens.
type tokens struct{ o *Options }

var _ manage.Tokens = tokens{}

// Accepted implements manage.Tokens.
func (t tokens) Accepted() bool { return t.o.Auth.TakesRobots() }

// List implements manage.Tokens.
func (t tokens) List(ctx context.Context) ([]manage.APIToken, error) {
	return shownTokens(t.o.Root.APITokens(ctx))
}

// Create implements manage.Tokens.
func (t tokens) Create(ctx context.Context, robot string, rights []auth.Right, lifetime time.Duration, creator string) (manage.APIToken, string, error) {
	c, err := gate.Do(t.o.Writes, func() (dataroot.CreatedToken, error) {
		return t.o.Root.CreateToken(ctx, dataroot.CreateTokenArgs{Robot: robot, Rights: rights, Lifetime: lifetime, Creator: creator})
	})
	return shownToken(c.APIToken), c.Token, err
}

// Revoke implements manage.Tokens.
func (t tokens) Revoke(ctx context.Context, which string) ([]manage.APIToken, error) {
	return shownTokens(gate.Do(t.o.Writes, func() ([]dataroot.APIToken, error) { return t.o.Root.RevokeTokens(ctx, which) }))
}

func shownTokens(list []dataroot.APIToken, err error) ([]manage.APIToken, error) {
	var out []manage.APIToken
	for _, t := range list {
		out = append(out, shownToken(t))
	}
	return out, err
}

func shownToken(t dataroot.APIToken) manage.APIToken {
	out := manage.APIToken{ID: t.ID, Robot: t.Robot, Rights: t.Rights, Creator: t.Creator, Created: t.Created}
	if t.Expires != nil {
		out.Expires = *t.Expires
	}
	if t.LastUsed != nil {
		out.Used = *t.LastUsed
	}
	return out
}
