// Package tokenfacts keeps the API tokens of robots in the catalogue.
package tokenfacts

import (
	"context"
	"database/sql"
	"time"

	"example.org/slipway/registry/catalog/engine"
)

// Tokens holds the API tokens of robots. All methods may run concurrently.
type Tokens struct{ db *engine.DB }

// New returns the Tokens of a database.
func New(db *engine.DB) Tokens { return Tokens{db} }

// Token is an API token. Times have milliseconds.
type Token struct {
	// ID is the public part of the token.
	ID string
	// Robot is the name of the account.
	Robot string
	// Hash is the SHA-256 of the token.
	Hash []byte
	// Rights is what the token permits, in a form that the catalogue does not know.
	Rights string
	// Creator is who created the token.
	Creator string
	Created time.Time
	// Expires is zero if the token does not expire, and Used is zero if it was never used.
	Expires, Used time.Time
}

const tokenColumns = `token_id, robot, hash, rights, creator, created_at, expires_at, used_at`

// Add records a token.
func (c Tokens) Add(ctx context.Context, n Token) error {
	return c.db.Write(ctx, func(t *engine.Tx) error {
		_, err := t.Exec(`INSERT INTO api_tokens (`+tokenColumns+`) VALUES (?, ?, ?, ?, ?, ?, ?, 0)`,
			n.ID, n.Robot, n.Hash, n.Rights, n.Creator, engine.ToMillis(n.Created), engine.ToMillis(n.Expires))
		return err
	})
}

// Get returns the token with an id, or ErrNotFound.
func (c Tokens) Get(ctx context.Context, id string) (Token, error) {
	list, err := c.list(ctx, `WHERE token_id = ?`, id)
	if err == nil && len(list) == 0 {
		err = engine.ErrNotFound
	}
	if err != nil {
		return Token{}, err
	}
	return list[0], nil
}

// List returns all tokens, ordered by robot and time.
func (c Tokens) List(ctx context.Context) ([]Token, error) {
	return c.list(ctx, `ORDER BY robot, created_at, token_id`)
}

func (c Tokens) list(ctx context.Context, which string, args ...any) (out []Token, err error) {
	err = c.db.Rows(ctx, `SELECT `+tokenColumns+` FROM api_tokens `+which, args, func(r *sql.Rows) error {
		t, err := scanToken(r)
		out = append(out, t)
		return err
	})
	return out, err
}

func scanToken(r *sql.Rows) (t Token, err error) {
	var created, expires, used int64
	err = r.Scan(&t.ID, &t.Robot, &t.Hash, &t.Rights, &t.Creator, &created, &expires, &used)
	t.Created, t.Expires, t.Used = engine.FromMillis(created), engine.FromMillis(expires), engine.FromMillis(used)
	return t, err
}

// Revoke compares which with ids and with names of robots. It removes the token with that
// id, and all tokens of the robot with that name. It returns the tokens that it removed,
// or ErrNotFound if there are none.
func (c Tokens) Revoke(ctx context.Context, which string) (out []Token, err error) {
	err = c.db.Write(ctx, func(t *engine.Tx) error {
		out = nil
		err := t.Rows(`SELECT `+tokenColumns+` FROM api_tokens WHERE token_id = ?1 OR robot = ?1 ORDER BY created_at, token_id`, []any{which}, func(r *sql.Rows) error {
			token, err := scanToken(r)
			out = append(out, token)
			return err
		})
		if err != nil {
			return err
		}
		if len(out) == 0 {
			return engine.ErrNotFound
		}
		_, err = t.Exec(`DELETE FROM api_tokens WHERE token_id = ?1 OR robot = ?1`, which)
		return err
	})
	return out, err
}

// NoteUse records when tokens were last used, by their ids. It skips tokens that are gone
// or whose recorded use is later. The change survives the end of the process, but perhaps
// not a power cut.
func (c Tokens) NoteUse(ctx context.Context, used map[string]time.Time) error {
	return c.db.WriteLazy(ctx, func(t *engine.Tx) error {
		for id, at := range used {
			if _, err := t.Exec(`UPDATE api_tokens SET used_at = ?1 WHERE token_id = ?2 AND used_at < ?1`, engine.ToMillis(at), id); err != nil {
				return err
			}
		}
		return nil
	})
}
