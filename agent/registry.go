package agent

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"example.org/slipway/config"
	"example.org/slipway/gear"
	gearclient "example.org/slipway/gear/client"
	"example.org/slipway/oci"
	"example.org/slipway/oci/client"
	"example.org/slipway/oci/wire"
)

// reference is an image in the form that containerd uses, with the registry in front.
type reference struct {
	host, repo string
	// ref is the tag or digest. If there are both, it is the digest.
	ref string
}

// parseReference parses HOST/REPOSITORY[:TAG][@DIGEST].
func parseReference(s string) (reference, error) {
	host, rest, ok := strings.Cut(s, "/")
	if !ok || host != "localhost" && !strings.ContainsAny(host, ".:") {
		return reference{}, fmt.Errorf("%q names no registry; write an image as REGISTRY/REPOSITORY:TAG", s)
	}
	r := reference{host: host, repo: rest, ref: "latest"}
	if repo, digest, ok := strings.Cut(rest, "@"); ok {
		if !oci.ValidDigest(oci.Digest(digest)) {
			return reference{}, fmt.Errorf("%q: %q is no digest", s, digest)
		}
		r.repo, r.ref = repo, digest
	}
	if i := strings.LastIndexByte(r.repo, ':'); i >= 0 {
		tag := r.repo[i+1:]
		if !oci.ValidTag(tag) {
			return reference{}, fmt.Errorf("%q: %q is no tag", s, tag)
		}
		r.repo = r.repo[:i]
		if !oci.IsDigest(r.ref) {
			r.ref = tag
		}
	}
	if !oci.ValidName(r.repo) {
		return reference{}, fmt.Errorf("%q: %q is no name of a repository", s, r.repo)
	}
	return r, nil
}

// place is a server that serves a registry's images.
type place struct {
	url  string
	reg  *client.Client
	gear *gearclient.Client
	// early holds profiles that were requested before a start needs them.
	early earlyProfiles
}

// registry is a registry together with the credential that some images were pulled with.
type registry struct {
	host   string
	prefix string
	places []*place
	// login is the credential function for images that were pulled with a credential, and
	// nil for others. ends is when the credential expires, or zero if it does not say.
	login client.CredentialFunc
	ends  time.Time
}

// repo returns the name of a repository at the registry's places.
func (r *registry) repo(name string) string { return r.prefix + name }

// registries opens registries and keeps them open.
type registries struct {
	settings []config.AgentRegistry
	keys     *keychain
	any      bool // registries that are not in the settings may have Gear
	limits   *gear.Limits
	silent   bool // tells registries nothing about what containers open
	log      *slog.Logger

	mu   sync.Mutex
	open map[[sha256.Size]byte]*registry // by host and credential
}

func newRegistries(settings []config.AgentRegistry, keys *keychain, limits *gear.Limits, log *slog.Logger) *registries {
	return &registries{settings: settings, keys: keys, limits: limits, log: log, open: map[[sha256.Size]byte]*registry{}}
}

// of returns the registry of an image with the credential for that image. Images with
// different credentials never share connections or tokens.
func (r *registries) of(ref reference) (*registry, error) {
	cred, own := r.keys.credential(ref)
	parts := []string{ref.host, cred.Username, cred.Password, cred.RefreshToken, cred.AccessToken}
	ends := credentialEnd(cred)
	if !ends.IsZero() {
		parts = append(parts, ref.repo) // the repository determines which credential replaces an expired one
	}
	key := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	r.mu.Lock()
	defer r.mu.Unlock()
	if reg := r.open[key]; reg != nil {
		return reg, nil
	}
	r.prune(time.Now())
	reg := &registry{host: ref.host, ends: ends}
	if own {
		reg.login = func(ctx context.Context, asked string) (client.Credential, error) {
			return r.login(ctx, ref, cred, asked)
		}
	}
	if err := r.connect(reg, r.setting(ref.host)); err != nil {
		return nil, fmt.Errorf("registry %s: %w", ref.host, err)
	}
	r.open[key] = reg
	return reg, nil
}

// prune forgets registries whose credential has expired, as tokens of service accounts do
// every hour. A caller that already uses one continues with it. The caller holds mu.
func (r *registries) prune(now time.Time) {
	for key, reg := range r.open {
		if !reg.ends.IsZero() && now.After(reg.ends) {
			reg.close()
			delete(r.open, key)
		}
	}
}

// login returns the credential to use at host for an image that was pulled with cred.
// That is cred. If cred has expired, it is the credential with which the image was last
// pulled, or the one of the configuration.
func (r *registries) login(ctx context.Context, ref reference, cred client.Credential, asked string) (client.Credential, error) {
	now := time.Now()
	if !ended(cred, now) {
		return cred, nil
	}
	if last, ok := r.keys.credential(ref); ok && !ended(last, now) {
		return last, nil
	}
	s := r.setting(ref.host)
	if s.Username != "" {
		return client.Credential{Username: s.Username, Password: s.Password}, nil
	}
	ask, err := client.DockerCredential("")
	if err != nil {
		return client.Credential{}, err
	}
	return ask(ctx, asked)
}

// credentialEnd returns when a credential expires that is a token. It returns the zero
// time for other credentials.
func credentialEnd(c client.Credential) time.Time {
	for _, token := range []string{c.Password, c.AccessToken} {
		if ends := tokenEnd(token); !ends.IsZero() {
			return ends
		}
	}
	return time.Time{}
}

// ended reports whether a credential is no longer useful.
func ended(c client.Credential, now time.Time) bool {
	ends := credentialEnd(c)
	return !ends.IsZero() && !now.Before(ends)
}

// domain returns the trust domain of a registry.
func (r *registries) domain(host string) string {
	if d := r.setting(host).Domain; d != "" {
		return d
	}
	return "host " + host // not a possible domain name, because it has a blank
}

// believed returns why an index of a registry is not trusted, or "" if it is.
func (r *registries) believed(host string) string {
	known := slices.ContainsFunc(r.settings, func(s config.AgentRegistry) bool { return s.Host == host })
	if r.any || known || client.IsLoopback(host) {
		return ""
	}
	return fmt.Sprintf("registry %s is not listed under registries, and any_registry is false", host)
}

// setting returns the settings of a host, or the defaults.
func (r *registries) setting(host string) config.AgentRegistry {
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
// precedence over those of the configuration and of docker.
func (r *registries) connect(reg *registry, s config.AgentRegistry) error {
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
		reg.places = append(reg.places, &place{url: u, reg: c, gear: gearclient.New(c, &gearclient.Options{Limits: r.limits})})
	}
	return nil
}

func (r *registry) close() {
	for _, p := range r.places {
		p.reg.Close()
	}
}

// close closes all registries.
func (r *registries) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, reg := range r.open {
		reg.close()
	}
	clear(r.open)
}

// try asks the places of a registry in order until one answers. A registry's statement
// about an image counts as an answer, even if it is a refusal.
func (r *registry) try(ctx context.Context, ask func(*place) error) error {
	var errs []error
	for _, p := range r.places {
		err := ask(p)
		if err == nil || ctx.Err() != nil || isAnswer(err) {
			return err
		}
		errs = append(errs, fmt.Errorf("%s: %w", p.url, err))
	}
	return cmp.Or(errors.Join(errs...), fmt.Errorf("registry %s has no place", r.host))
}

// isAnswer reports whether an error is a registry's statement about an image. It returns
// false if this server merely cannot answer now.
func isAnswer(err error) bool {
	var said *oci.Error
	return errors.As(err, &said) && said.HTTPStatus() < http.StatusInternalServerError && said.HTTPStatus() != http.StatusTooManyRequests
}
