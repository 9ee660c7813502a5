// Package manage has what the pages for administrators show of nodes, webhooks, API tokens
// and the audit log, and reads their forms. Package web decides who may see and do that.
package manage

import (
	"context"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"example.org/slipway/registry/auth"
)

// Tokens manages the API tokens of robots.
type Tokens interface {
	// Accepted reports whether the server accepts API tokens.
	Accepted() bool
	// List lists the tokens, ordered by robot and time.
	List(ctx context.Context) ([]APIToken, error)
	// Create creates a token for a user, and returns it with its secret, which nobody can
	// read again. The arguments have passed auth.CheckAPIToken.
	Create(ctx context.Context, robot string, rights []auth.Right, lifetime time.Duration, creator string) (t APIToken, secret string, err error)
	// Revoke revokes the token with an id, or all tokens of a robot, and returns them.
	Revoke(ctx context.Context, which string) ([]APIToken, error)
}

// APIToken is an API token without its secret.
type APIToken struct {
	ID, Robot string
	Rights    []auth.Right
	Creator   string
	Created   time.Time
	// Expires is zero if the token does not expire, and Used is zero if it was never used.
	Expires, Used time.Time
}

// maxRights is how many rights the form of a new token has: one for what a robot pushes
// to, and one for what it only pulls. The command takes any number.
const maxRights = 2

// TokenForm is what somebody enters for a new token.
type TokenForm struct {
	Robot  string
	Rights [maxRights]RightForm
	// Days is the lifetime; 0 is for ever.
	Days    int
	Choices []int
}

// RightForm is a right as it is entered. Repositories are patterns with spaces between.
type RightForm struct {
	Repositories       string
	Pull, Push, Delete bool
}

// NewTokenForm returns the form with its defaults.
func NewTokenForm() *TokenForm {
	f := &TokenForm{Days: 90, Choices: []int{7, 30, 90, 365, 0}}
	f.Rights[0].Pull = true
	return f
}

// ReadTokenForm returns what was entered, with at most the lifetimes of the form.
func ReadTokenForm(form url.Values) *TokenForm {
	f := NewTokenForm()
	f.Robot = strings.TrimSpace(form.Get("robot"))
	for i := range f.Rights {
		n := strconv.Itoa(i)
		actions := form["actions"+n]
		f.Rights[i] = RightForm{form.Get("repositories" + n), slices.Contains(actions, "pull"), slices.Contains(actions, "push"), slices.Contains(actions, "delete")}
	}
	if n, err := strconv.Atoi(form.Get("days")); err == nil && slices.Contains(f.Choices, n) {
		f.Days = n
	}
	return f
}

// Permits returns what a form permits. Rows without a pattern permit nothing.
func (f *TokenForm) Permits() (list []auth.Right) {
	for _, r := range f.Rights {
		right := auth.Right{Repositories: strings.Fields(r.Repositories)}
		if len(right.Repositories) == 0 {
			continue
		}
		for name, on := range map[string]bool{"pull": r.Pull, "push": r.Push, "delete": r.Delete} {
			if on {
				right.Actions = append(right.Actions, name)
			}
		}
		slices.Sort(right.Actions)
		list = append(list, right)
	}
	return list
}

// CreatedToken is a new token, with the secret that is shown once.
type CreatedToken struct {
	APIToken
	Secret, Host string
}

// TokensPage is what the page of API tokens shows.
type TokensPage struct {
	Accepted bool
	Tokens   []TokenRow
	Form     *TokenForm
	// Problem says what was wrong with the form, and Revoked is how many tokens were
	// revoked just now.
	Problem string
	Created *CreatedToken
	Revoked int
}

// TokenRow is a token in the list.
type TokenRow struct {
	APIToken
	Expired bool
}

// Revocation is what the confirmation of a revocation shows.
type Revocation struct {
	Which  string
	Robot  bool // Which is a robot, and not the id of a token
	Tokens []TokenRow
}

// ListTokens returns the rows of all tokens. If an id or a robot is given as which, it
// returns only the rows of that token, or of the tokens of that robot.
func ListTokens(ctx context.Context, t Tokens, now time.Time, which string) (rows []TokenRow, err error) {
	list, err := t.List(ctx)
	for _, t := range list {
		if which == "" || t.ID == which || t.Robot == which {
			rows = append(rows, TokenRow{t, !t.Expires.IsZero() && !now.Before(t.Expires)})
		}
	}
	return rows, err
}

// ToRevoke returns what a revocation would revoke, or nil if that is nothing.
func ToRevoke(ctx context.Context, t Tokens, now time.Time, which string) (*Revocation, error) {
	rows, err := ListTokens(ctx, t, now, which)
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	return &Revocation{Which: which, Robot: rows[0].ID != which, Tokens: rows}, nil
}
