package auth

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"example.org/slipway/oci"
)

// An API token is slipway_ID_SECRET. The prefix lets scanners of source code find tokens
// that were checked in. The id is not secret; the secret has 260 random bits, so a plain
// SHA-256 of the token is as hard to invert as a slow hash of a password.
const (
	apiTokenPrefix = "slipway_"
	apiTokenIDLen  = 16 // characters of base32, 80 bits
)

// RobotPrefix begins the names of robots in rules, logs and events. No htpasswd user, OIDC
// user or certificate has a name that begins so.
const RobotPrefix = "robot:"

// maxRobotName bounds the name of a robot, in bytes.
const maxRobotName = 64

// Right is what an API token permits on some repositories.
type Right struct {
	// Repositories are patterns as in Rule.
	Repositories []string `json:"repositories"`
	// Actions are pull, push and delete, or "*" for these three.
	Actions []string `json:"actions"`
}

// APIToken is a token of a robot, as it is stored: without the secret.
type APIToken struct {
	// ID is the part of the token that is not secret.
	ID string
	// Robot is the account, and the user name for clients that send the token as a
	// password.
	Robot string
	// Hash is the SHA-256 of the token.
	Hash []byte
	// Rights add up.
	Rights []Right
	// Created is the time of its creation. Expires is zero if the token does not expire.
	Created, Expires time.Time
}

// TokenStore holds the API tokens. Its methods may run concurrently.
type TokenStore interface {
	// APIToken returns the token with an id. ok is false if there is none, because it was
	// revoked or never existed. A token that another server has revoked is not returned.
	APIToken(ctx context.Context, id string) (t APIToken, ok bool, err error)
	// NoteUse records when tokens were last used, by their ids.
	NoteUse(ctx context.Context, used map[string]time.Time) error
}

// NewAPIToken returns a new token of a robot, and what is stored of it. The lifetime is 0
// for a token that does not expire.
func NewAPIToken(robot string, rights []Right, now time.Time, lifetime time.Duration) (token string, t APIToken, err error) {
	if err := CheckAPIToken(robot, rights, lifetime); err != nil {
		return "", t, err
	}
	t = APIToken{ID: strings.ToLower(rand.Text()[:apiTokenIDLen]), Robot: robot, Rights: rights, Created: now}
	if lifetime > 0 {
		t.Expires = now.Add(lifetime)
	}
	token = apiTokenPrefix + t.ID + "_" + rand.Text() + rand.Text()
	sum := sha256.Sum256([]byte(token))
	t.Hash = sum[:]
	return token, t, nil
}

// CheckAPIToken returns what is wrong with the arguments of NewAPIToken.
func CheckAPIToken(robot string, rights []Right, lifetime time.Duration) error {
	if err := checkRobotName(robot); err != nil {
		return err
	}
	if _, err := compileRights(rights); err != nil {
		return err
	}
	if lifetime < 0 {
		return errors.New("the token's lifetime is negative")
	}
	return nil
}

// checkRobotName returns an error unless a robot may have the name. It is a user name that
// needs no quotes in a shell and no escapes in a header.
func checkRobotName(name string) error {
	if name == "" || len(name) > maxRobotName {
		return fmt.Errorf("a robot's name has 1 to %d characters", maxRobotName)
	}
	for _, c := range []byte(name) {
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("._-", c) >= 0) {
			return fmt.Errorf("the robot's name %q has characters other than letters, digits, \".\", \"_\" and \"-\"", name)
		}
	}
	return nil
}

// compileRights compiles what a token permits.
func compileRights(rights []Right) (*grants, error) {
	if len(rights) == 0 {
		return nil, errors.New("the token would permit nothing: say on which repositories it permits what")
	}
	gs := &grants{}
	for _, r := range rights {
		for _, name := range r.Actions {
			if name != "*" && actionNamed(name)&contentActions == 0 {
				return nil, fmt.Errorf("a token cannot permit %q; there are pull, push, delete and *", name)
			}
		}
		g, err := compileRule(Rule{Repositories: r.Repositories, Subjects: []string{"*"}, Actions: r.Actions}, nil)
		if err != nil {
			return nil, err
		}
		g.actions &= contentActions
		gs.all = append(gs.all, g)
	}
	return gs, nil
}

// robots authenticates robots. It is safe for concurrent use.
type robots struct {
	store TokenStore
	clock func() time.Time

	mu   sync.Mutex
	used map[string]time.Time // since the last flush
}

// isAPIToken reports whether a password or bearer token looks like an API token.
func isAPIToken(secret string) bool { return strings.HasPrefix(secret, apiTokenPrefix) }

var (
	errNoAPIToken      = errors.New("the API token is not valid, or was revoked")
	errAPITokenExpired = errors.New("the API token has expired")
	errNoRobots        = errors.New("API tokens are not accepted here: auth.robots is false")
)

// verify returns the identity that an API token stands for. Unless user is empty, the
// token must belong to the robot of that name.
func (b *robots) verify(ctx context.Context, user, secret string) (*Identity, error) {
	if b == nil {
		return nil, errNoRobots
	}
	id, _, ok := strings.Cut(strings.TrimPrefix(secret, apiTokenPrefix), "_")
	if !ok || len(id) != apiTokenIDLen || len(secret) > maxCredentialBytes {
		return nil, errNoAPIToken
	}
	t, found, err := b.find(ctx, id)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256([]byte(secret))
	if subtle.ConstantTimeCompare(sum[:], t.Hash) != 1 || !found {
		return nil, errNoAPIToken
	}
	if user != "" && user != t.Robot {
		return nil, fmt.Errorf("%w: it belongs to another robot", errNoAPIToken)
	}
	return b.identity(t)
}

// present returns the identity of a token of the built-in service that was given to a
// robot. It has the rights that the robot's API token has now.
func (b *robots) present(ctx context.Context, id *Identity) (*Identity, error) {
	if b == nil {
		return nil, errNoRobots
	}
	t, found, err := b.find(ctx, id.token)
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, errNoAPIToken
	}
	now, err := b.identity(t)
	if err != nil {
		return nil, err
	}
	out := *id
	out.own = now.own
	return &out, nil
}

func (b *robots) find(ctx context.Context, id string) (APIToken, bool, error) {
	t, found, err := b.store.APIToken(ctx, id)
	if err != nil {
		return t, false, &oci.Error{Code: oci.CodeUnavailable, Message: "API tokens cannot be looked up at the moment; try again", Err: err}
	}
	return t, found, nil
}

func (b *robots) identity(t APIToken) (*Identity, error) {
	now := b.clock()
	if !t.Expires.IsZero() && !now.Before(t.Expires) {
		return nil, errAPITokenExpired
	}
	own, err := compileRights(t.Rights)
	if err != nil {
		return nil, fmt.Errorf("the rights of API token %s: %w", t.ID, err)
	}
	b.mu.Lock()
	b.used[t.ID] = now
	b.mu.Unlock()
	return &Identity{Name: RobotPrefix + t.Robot, Method: MethodRobot, Expires: t.Expires, own: own, token: t.ID}, nil
}

// flush records the last uses. If that fails, they are recorded the next time.
func (b *robots) flush(ctx context.Context) error {
	b.mu.Lock()
	used := b.used
	b.used = map[string]time.Time{}
	b.mu.Unlock()
	if len(used) == 0 {
		return nil
	}
	err := b.store.NoteUse(ctx, used)
	if err != nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		for id, at := range used {
			if at.After(b.used[id]) {
				b.used[id] = at
			}
		}
	}
	return err
}

// noteEvery is how often the last uses of API tokens are recorded.
const noteEvery = 30 * time.Second

// Run records when API tokens were last used, until ctx ends and then once more.
func (a *Auth) Run(ctx context.Context) {
	if a.robots == nil {
		return
	}
	note := func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, noteEvery)
		defer cancel()
		if err := a.robots.flush(ctx); err != nil {
			a.log.Warn("the last use of API tokens is not recorded; it is tried again", "error", err)
		}
	}
	tick := time.NewTicker(noteEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			note(context.WithoutCancel(ctx))
			return
		case <-tick.C:
			note(ctx)
		}
	}
}

// addRobots adds a method for API tokens, unless the configuration says otherwise. By
// default they are a method if clients are asked for passwords or tokens anyway.
// Otherwise API tokens would change the challenge.
func (a *Auth) addRobots(cfg Config, o Options) {
	on := a.takesHeader()
	if cfg.Robots != nil {
		on = *cfg.Robots
	}
	if on && o.Tokens != nil {
		a.robots = &robots{store: o.Tokens, clock: o.Clock, used: map[string]time.Time{}}
	}
}

// TakesRobots reports whether API tokens are accepted.
func (a *Auth) TakesRobots() bool { return a.robots != nil }

// to returns the actions of want that id has on repo. A robot has what its API token
// permits and what everybody has; rules for "*" do not apply to it.
func (a *Auth) to(id *Identity, repo string, want Action) Action {
	if id != nil && id.own != nil {
		return a.grants.Load().toAnonymous(repo, want) | id.own.to(id, repo, want)
	}
	return a.grants.Load().to(id, repo, want)
}
