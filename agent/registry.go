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

	"example.org/slipway/config"
	"example.org/slipway/gear"
	gearclient "example.org/slipway/gear/client"
	"example.org/slipway/oci"
	"example.org/slipway/oci/client"
	"example.org/slipway/oci/wire"
)

// reference is an image as containerd writes it, with the registry in front.
type reference struct {
	host, repo string
	// ref is the tag or digest; a digest beside a tag is what counts.
	ref string
}

// parseReference takes HOST/REPOSITORY[:TAG][@DIGEST] apart.
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
	// early are profiles that were asked for before a start needs them.
	early earlyProfiles
}

// registry is a registry with the credential that some images were pulled with.
type registry struct {
	host   string
	prefix string
	places []*place
}

// repo is what a repository is called at its places.
func (r *registry) repo(name string) string { return r.prefix + name }

// registries opens registries and keeps them open.
type registries struct {
	settings []config.AgentRegistry
	keys     *keychain
	any      bool // those that are not in the settings may have Gear
	limits   *gear.Limits
	silent   bool // tells registries nothing of what containers open
	log      *slog.Logger

	mu   sync.Mutex
	open map[[sha256.Size]byte]*registry // by host and credential
}

func newRegistries(settings []config.AgentRegistry, keys *keychain, limits *gear.Limits, log *slog.Logger) *registries {
	return &registries{settings: settings, keys: keys, limits: limits, log: log, open: map[[sha256.Size]byte]*registry{}}
}

// of returns the registry of an image, with the credential for that image.
// Images with different credentials never share connections or tokens.
func (r *registries) of(ref reference) (*registry, error) {
	cred, own := r.keys.credential(ref)
	key := sha256.Sum256([]byte(strings.Join([]string{ref.host, cred.Username, cred.Password, cred.RefreshToken, cred.AccessToken}, "\x00")))
	r.mu.Lock()
	defer r.mu.Unlock()
	if reg := r.open[key]; reg != nil {
		return reg, nil
	}
	reg, err := r.connect(r.setting(ref.host), cred, own)
	if err != nil {
		return nil, fmt.Errorf("registry %s: %w", ref.host, err)
	}
	r.open[key] = reg
	return reg, nil
}

// domain is the trust domain of a registry.
func (r *registries) domain(host string) string {
	if d := r.setting(host).Domain; d != "" {
		return d
	}
	return "host " + host // which no domain can be called, as it has a blank
}

// believed returns why an index of a registry is not believed; "" if it is.
func (r *registries) believed(host string) string {
	known := slices.ContainsFunc(r.settings, func(s config.AgentRegistry) bool { return s.Host == host })
	if r.any || known || client.IsLoopback(host) {
		return ""
	}
	return fmt.Sprintf("registry %s is not listed under registries, and any_registry is false", host)
}

// setting is what the configuration says of a host, or what holds without.
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

// connect makes the clients of a registry. own tells that there is a credential
// for the image; it goes before those of the configuration and of docker.
func (r *registries) connect(s config.AgentRegistry, cred client.Credential, own bool) (*registry, error) {
	o := client.Options{InsecureSkipVerify: s.InsecureSkipVerify, UserAgent: "slipway-agent", Retries: 1, Logger: r.log}
	switch {
	case own:
		o.Credential = func(context.Context, string) (client.Credential, error) { return cred, nil }
	case s.Username != "":
		o.Username, o.Password = s.Username, s.Password
	default:
		o.DockerConfig = true
	}
	c, err := wire.ClientTLS(s.CA, s.Certificate, s.Key)
	if err != nil {
		return nil, err
	}
	o.RootCAs, o.Certificates = c.RootCAs, c.Certificates
	reg := &registry{host: s.Host, prefix: s.Prefix}
	for _, u := range s.URLs {
		c, err := client.New(u, &o)
		if err != nil {
			reg.close()
			return nil, err
		}
		reg.places = append(reg.places, &place{url: u, reg: c, gear: gearclient.New(c, &gearclient.Options{Limits: r.limits})})
	}
	return reg, nil
}

func (r *registry) close() {
	for _, p := range r.places {
		p.reg.Close()
	}
}

// close closes them all.
func (r *registries) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, reg := range r.open {
		reg.close()
	}
	clear(r.open)
}

// try asks the places of a registry in order until one answers. What a registry
// says of an image counts as an answer, also when it is no.
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

// isAnswer tells whether an error is what a registry says of an image, and not
// that this server cannot say anything now.
func isAnswer(err error) bool {
	var said *oci.Error
	return errors.As(err, &said) && said.HTTPStatus() < http.StatusInternalServerError && said.HTTPStatus() != http.StatusTooManyRequests
}
