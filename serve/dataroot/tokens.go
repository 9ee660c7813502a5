package dataroot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"example.org/slipway/registry/auth"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/tokenfacts"
)

// CreateTokenArgs are what a new API token is to be.
type CreateTokenArgs struct {
	// Robot is the account, which need not exist.
	Robot string `json:"robot"`
	// Rights are what the token permits.
	Rights []auth.Right `json:"rights"`
	// Lifetime is 0 for a token that does not expire.
	Lifetime time.Duration `json:"lifetime"`
	// Creator is who creates it.
	Creator string `json:"creator,omitempty"`
}

// APIToken is an API token as it is listed: without the secret.
type APIToken struct {
	ID      string       `json:"id"`
	Robot   string       `json:"robot"`
	Rights  []auth.Right `json:"rights"`
	Creator string       `json:"creator,omitempty"`
	Created time.Time    `json:"created"`
	// Expires is nil if the token does not expire, and LastUsed is nil if it was never used.
	Expires  *time.Time `json:"expires,omitempty"`
	LastUsed *time.Time `json:"last_used,omitempty"`
}

// CreatedToken is a new API token with its secret, which nobody can read again.
type CreatedToken struct {
	APIToken
	Token string `json:"token"`
}

// CreateToken creates an API token.
func (r *Root) CreateToken(ctx context.Context, args CreateTokenArgs) (CreatedToken, error) {
	secret, t, err := auth.NewAPIToken(args.Robot, args.Rights, time.Now(), args.Lifetime)
	if err != nil {
		return CreatedToken{}, err
	}
	rights, err := json.Marshal(t.Rights)
	if err != nil {
		return CreatedToken{}, err
	}
	row := tokenfacts.Token{ID: t.ID, Robot: t.Robot, Hash: t.Hash, Rights: string(rights), Creator: args.Creator, Created: t.Created, Expires: t.Expires}
	if err := tokenfacts.New(r.Catalog.DB).Add(ctx, row); err != nil {
		return CreatedToken{}, fmt.Errorf("record the token: %w", err)
	}
	listed, err := listedToken(row)
	return CreatedToken{listed, secret}, err
}

// APITokens lists the API tokens, ordered by robot and time.
func (r *Root) APITokens(ctx context.Context) ([]APIToken, error) {
	rows, err := tokenfacts.New(r.Catalog.DB).List(ctx)
	if err != nil {
		return nil, err
	}
	return listedTokens(rows)
}

// RevokeTokens revokes the token with an id, or all tokens of a robot, and returns them.
func (r *Root) RevokeTokens(ctx context.Context, which string) ([]APIToken, error) {
	rows, err := tokenfacts.New(r.Catalog.DB).Revoke(ctx, which)
	if errors.Is(err, catalog.ErrNotFound) {
		return nil, fmt.Errorf("there is no token with the id %q and no robot of that name; slipway token ls lists them", which)
	}
	if err != nil {
		return nil, err
	}
	return listedTokens(rows)
}

func listedTokens(rows []tokenfacts.Token) ([]APIToken, error) {
	list := make([]APIToken, 0, len(rows))
	for _, row := range rows {
		t, err := listedToken(row)
		if err != nil {
			return nil, err
		}
		list = append(list, t)
	}
	return list, nil
}

func listedToken(row tokenfacts.Token) (APIToken, error) {
	t := APIToken{ID: row.ID, Robot: row.Robot, Creator: row.Creator, Created: row.Created.UTC(), Expires: orNil(row.Expires), LastUsed: orNil(row.Used)}
	if err := json.Unmarshal([]byte(row.Rights), &t.Rights); err != nil {
		return t, fmt.Errorf("the rights of token %s: %w", row.ID, err)
	}
	return t, nil
}

func orNil(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

// TokenStore returns the API tokens as the access control looks them up.
func (r *Root) TokenStore() auth.TokenStore {
	return tokenStore{tokenfacts.New(r.Catalog.DB), r.cfg.Storage.Maintenance.ReadOnly.Enabled}
}

type tokenStore struct {
	tokens   tokenfacts.Tokens
	readOnly bool
}

var _ auth.TokenStore = tokenStore{}

// APIToken implements auth.TokenStore.
func (s tokenStore) APIToken(ctx context.Context, id string) (t auth.APIToken, ok bool, err error) {
	row, err := s.tokens.Get(ctx, id)
	if errors.Is(err, catalog.ErrNotFound) {
		return t, false, nil
	}
	if err != nil {
		return t, false, err
	}
	t = auth.APIToken{ID: row.ID, Robot: row.Robot, Hash: row.Hash, Created: row.Created, Expires: row.Expires}
	if err := json.Unmarshal([]byte(row.Rights), &t.Rights); err != nil {
		return t, false, fmt.Errorf("the rights of token %s: %w", id, err)
	}
	return t, true, nil
}

// NoteUse implements auth.TokenStore.
func (s tokenStore) NoteUse(ctx context.Context, used map[string]time.Time) error {
	if s.readOnly {
		return nil
	}
	return s.tokens.NoteUse(ctx, used)
}
