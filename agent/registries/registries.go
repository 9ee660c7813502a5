// Package registries reaches the registries that a node's images come from, each with the
// credential that the image was pulled with. What the rest of the agent gets of a registry
// is the index of a layer, the files of an image, its profile and its volumes.
package registries

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"example.org/slipway/config"
	gearclient "example.org/slipway/gear/client"
	"example.org/slipway/oci"
	"example.org/slipway/oci/client"
	"example.org/slipway/oci/volref"
	"example.org/slipway/oci/wire"
)

// place is a server that serves a registry's images.
type place struct {
	url  string
	reg  *client.Client
	gear *gearclient.Client
	// early holds profiles that were requested before a start needs them.
	early earlyProfiles
}

// Registry is a registry together with the credential that some images were pulled with.
type Registry struct {
	Host   string
	prefix string
	places []*place
	// login is the credential function for images that were pulled with a credential, and
	// nil for others. ends is when the credential expires, or zero if it does not say.
	login client.CredentialFunc
	ends  time.Time
}

// repo returns the name of a repository at the registry's places.
func (r *Registry) repo(name string) string { return r.prefix + name }

// Set opens registries and keeps them open.
type Set struct {
	settings []config.AgentRegistry
	keys     *Keychain
	any      bool // registries that are not in the settings may have Gear
	silent   bool // tells registries nothing about what containers open
	log      *slog.Logger

	mu   sync.Mutex
	open map[[sha256.Size]byte]*Registry // by host and credential
}

// New returns the registries of an agent. None of them is open yet.
func New(cfg *config.Agent, keys *Keychain, log *slog.Logger) *Set {
	return &Set{settings: cfg.Registries, keys: keys, any: cfg.AnyRegistry, silent: !cfg.Profiles.Record, log: log,
		open: map[[sha256.Size]byte]*Registry{}}
}

// Of returns the registry of an image with the credential for that image. Images with
// different credentials never share connections or tokens.
func (r *Set) Of(ref Reference) (*Registry, error) {
	cred, own := r.keys.Credential(ref)
	parts := []string{ref.Host, cred.Username, cred.Password, cred.RefreshToken, cred.AccessToken}
	ends := credentialEnd(cred)
	if !ends.IsZero() {
		parts = append(parts, ref.Repo) // the repository determines which credential replaces an expired one
	}
	key := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	r.mu.Lock()
	defer r.mu.Unlock()
	if reg := r.open[key]; reg != nil {
		return reg, nil
	}
	r.prune(time.Now())
	reg := &Registry{Host: ref.Host, ends: ends}
	if own {
		reg.login = func(ctx context.Context, asked string) (client.Credential, error) {
			return r.login(ctx, ref, cred, asked)
		}
	}
	if err := r.connect(reg, r.setting(ref.Host)); err != nil {
		return nil, fmt.Errorf("registry %s: %w", ref.Host, err)
	}
	r.open[key] = reg
	return reg, nil
}

// prune forgets registries whose credential has expired, as tokens of service accounts do
// every hour. A caller that already uses one continues with it. The caller holds mu.
func (r *Set) prune(now time.Time) {
	for key, reg := range r.open {
		if !reg.ends.IsZero() && now.After(reg.ends) {
			reg.close()
			delete(r.open, key)
		}
	}
}

// login returns the credential to use at host for an image that was pulled with cred.
// That is cred. If cred has expired, it is the credential with which the image was last
// pulled, or the credential of the configuration.
func (r *Set) login(ctx context.Context, ref Reference, cred client.Credential, asked string) (client.Credential, error) {
	now := time.Now()
	if !ended(cred, now) {
		return cred, nil
	}
	if last, ok := r.keys.Credential(ref); ok && !ended(last, now) {
		return last, nil
	}
	s := r.setting(ref.Host)
	if s.Username != "" {
		return client.Credential{Username: s.Username, Password: s.Password}, nil
	}
	ask, err := client.DockerCredential("")
	if err != nil {
		return client.Credential{}, err
	}
	return ask(ctx, asked)
}

// credentialEnd returns when a token that is used as a credential expires. It returns the zero
// time for other credentials.
func credentialEnd(c client.Credential) time.Time {
	for _, token := range []string{c.Password, c.AccessToken} {
		if ends := TokenEnd(token); !ends.IsZero() {
			return ends
		}
	}
	return time.Time{}
}

// TokenEnd returns when a JSON web token expires. It returns the zero time if s is not a
// token or does not expire. It verifies nothing; the registry does that.
func TokenEnd(token string) time.Time {
	_, rest, _ := strings.Cut(token, ".")
	payload, _, ok := strings.Cut(rest, ".")
	if !ok {
		return time.Time{}
	}
	b, err := base64.RawURLEncoding.DecodeString(payload)
	if err != nil {
		return time.Time{}
	}
	var claims struct {
		Exp float64 `json:"exp"` // seconds since 1970
	}
	if json.Unmarshal(b, &claims) != nil || claims.Exp <= 0 || claims.Exp > 1<<40 {
		return time.Time{}
	}
	return time.Unix(int64(claims.Exp), 0)
}

// ended reports whether a credential is no longer useful.
func ended(c client.Credential, now time.Time) bool {
	ends := credentialEnd(c)
	return !ends.IsZero() && !now.Before(ends)
}

// Domain returns the trust domain of a registry.
func (r *Set) Domain(host string) string {
	if d := r.setting(host).Domain; d != "" {
		return d
	}
	return "host " + host // not a possible domain name, because it has a blank
}

// Believed returns why an index of a registry is not trusted, or "" if it is.
func (r *Set) Believed(host string) string {
	known := slices.ContainsFunc(r.settings, func(s config.AgentRegistry) bool { return s.Host == host })
	if r.any || known || client.IsLoopback(host) {
		return ""
	}
	return fmt.Sprintf("registry %s is not listed under registries, and any_registry is false", host)
}

// Trusts returns why a registry is not trusted about volumes, or "" if it is trusted.
// Somebody who can change an answer in transit could make a node use any volume of the
// storage as the root of a container.
func (r *Set) Trusts(host string) string {
	for i := range r.settings {
		r := &r.settings[i]
		if r.Host != host {
			continue
		}
		if r.InsecureSkipVerify {
			return "its certificate is not verified (insecure_skip_verify), so it is not believed"
		}
		for _, u := range r.URLs {
			at, plain := strings.CutPrefix(u, "http://")
			at, _, _ = strings.Cut(at, "/")
			if plain && !client.IsLoopback(at) {
				return "it is reached in the clear, so it is not believed"
			}
		}
		return ""
	}
	if client.IsLoopback(host) {
		return ""
	}
	return "it is not among the agent's registries, and records of volumes are believed of those only"
}

// setting returns the settings of a host, or the defaults.
func (r *Set) setting(host string) config.AgentRegistry {
	for _, s := range r.settings {
		if s.Host == host {
			return s
		}
	}
	scheme := "https"
	if client.IsLoopback(host) {
		scheme = "http"
	}
	return config.AgentRegistry{Host: host, URLs: []string{scheme + "://" + host}}
}

// connect creates the clients of a registry. The credentials of its images take
// precedence over the credentials in the configuration and in docker's.
func (r *Set) connect(reg *Registry, s config.AgentRegistry) error {
	o := client.Options{InsecureSkipVerify: s.InsecureSkipVerify, UserAgent: "slipway-agent", Retries: 1, Logger: r.log}
	switch {
	case reg.login != nil:
		o.Credential = reg.login
	case s.Username != "":
		o.Username, o.Password = s.Username, s.Password
	default:
		o.DockerConfig = true
	}
	c, err := wire.ClientTLS(s.CA, s.Certificate, s.Key)
	if err != nil {
		return err
	}
	o.RootCAs, o.Certificates = c.RootCAs, c.Certificates
	reg.prefix = s.Prefix
	for _, u := range s.URLs {
		c, err := client.New(u, &o)
		if err != nil {
			reg.close()
			return err
		}
		reg.places = append(reg.places, &place{url: u, reg: c, gear: gearclient.New(c, nil)})
	}
	return nil
}

func (r *Registry) close() {
	for _, p := range r.places {
		p.reg.Close()
	}
}

// Close closes all registries.
func (r *Set) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, reg := range r.open {
		reg.close()
	}
	clear(r.open)
}

// plainConns is how many connections are kept open to a registry that is reached without TLS.
// HTTP/1.1 has one request on a connection, and a start begins with one for each layer, one for
// the profile and one for its files.
const plainConns = 8

// Connect asks the registries of the configuration for something small, so that a connection to
// each is open when an image comes. What they answer is used if it is needed.
func (r *Set) Connect(ctx context.Context) {
	var work sync.WaitGroup
	defer work.Wait()
	for i := range r.settings {
		reg, err := r.Of(Reference{Host: r.settings[i].Host})
		if err != nil {
			continue // the first image of the registry says so
		}
		for _, p := range reg.places {
			n := 1
			if strings.HasPrefix(p.url, "http://") {
				n = plainConns
			}
			for range n {
				work.Go(func() { _, _ = p.reg.GearInfo(ctx) })
			}
			work.Go(func() { _ = p.gear.Check(ctx) })
		}
	}
}

// try asks the places of a registry in order until one answers. A registry's statement
// about an image counts as an answer, even if it is a refusal.
func (r *Registry) try(ctx context.Context, ask func(*place) error) error {
	var errs []error
	for _, p := range r.places {
		err := ask(p)
		if err == nil || ctx.Err() != nil || isAnswer(err) {
			return err
		}
		errs = append(errs, fmt.Errorf("%s: %w", p.url, err))
	}
	return cmp.Or(errors.Join(errs...), fmt.Errorf("registry %s has no place", r.Host))
}

// Image looks an image up for a platform, or for this machine's if platform is nil.
func (r *Registry) Image(ctx context.Context, ref Reference, platform *oci.Platform) (img *gearclient.Image, err error) {
	err = r.try(ctx, func(at *place) (err error) {
		img, err = at.gear.One(ctx, r.repo(ref.Repo), ref.Ref, platform)
		return err
	})
	return img, err
}

// Volumes returns what the registry knows of an image's volumes.
func (r *Registry) Volumes(ctx context.Context, repo string, manifest oci.Digest) (st *client.VolumeStatus, err error) {
	err = r.try(ctx, func(at *place) (err error) {
		st, err = at.reg.Volumes(ctx, r.repo(repo), manifest)
		return err
	})
	return st, err
}

// VolumeCredential gets a credential for the storage of an image's volumes. refused is the
// user of a credential that the storage does not accept, or "".
func (r *Registry) VolumeCredential(ctx context.Context, repo string, manifest oci.Digest, clones bool, refused string) (c volref.Credential, err error) {
	err = r.try(ctx, func(at *place) (err error) {
		c, err = at.reg.VolumeCredential(ctx, r.repo(repo), manifest, clones, refused)
		return err
	})
	return c, err
}

// isAnswer reports whether an error is a registry's statement about an image. It returns
// false if this server merely cannot answer now.
func isAnswer(err error) bool {
	var said *oci.Error
	return errors.As(err, &said) && said.HTTPStatus() < http.StatusInternalServerError && said.HTTPStatus() != http.StatusTooManyRequests
}
