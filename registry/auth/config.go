package auth

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Defaults of [Config].
const (
	// DefaultTokenExpiration is the lifetime of an access token.
	DefaultTokenExpiration = 5 * time.Minute
	// DefaultMaxFailuresPerMinute is how many wrong passwords one address may send.
	DefaultMaxFailuresPerMinute = 20
	// DefaultName is the realm, service and issuer where none is configured.
	DefaultName = "slipway"
)

// Config is the auth section of the configuration. Sections that Distribution
// has keep its names and meaning. The zero value allows everything.
type Config struct {
	// HTPasswd checks user names and passwords against a file.
	HTPasswd *HTPasswdConfig `yaml:"htpasswd,omitempty"`
	// Token is the built-in or an external token service.
	Token *TokenConfig `yaml:"token,omitempty"`
	// OIDC are the OpenID Connect issuers whose tokens are accepted.
	OIDC []OIDCConfig `yaml:"oidc,omitempty"`
	// MTLS makes identities of verified client certificates.
	MTLS *MTLSConfig `yaml:"mtls,omitempty"`
	// Access are the rules. They add up; their order does not matter.
	Access []Rule `yaml:"access,omitempty"`
	// MaxFailuresPerMinute is how many wrong passwords an address may send per
	// minute before it is answered 429. Default 20; negative: no limit. IPv6
	// addresses are counted by their /64.
	MaxFailuresPerMinute int `yaml:"max_failures_per_minute,omitempty"`
}

// HTPasswdConfig names a password file. Only bcrypt entries are accepted
// ("htpasswd -B"). The file is read again when it changes.
type HTPasswdConfig struct {
	// Realm is shown to people by clients. Default "slipway".
	Realm string `yaml:"realm,omitempty"`
	// Path of the file.
	Path string `yaml:"path"`
}

// TokenConfig describes the built-in token service or an external one.
type TokenConfig struct {
	// Builtin switches the built-in service on or off. Unset: off when an
	// external service is described, else see the package comment.
	Builtin *bool `yaml:"builtin,omitempty"`
	// Realm is the URL clients fetch tokens from. Required for an external
	// service; the built-in one takes it from the request by default.
	Realm string `yaml:"realm,omitempty"`
	// Service is the tokens' audience. Default "slipway"; required for an
	// external service.
	Service string `yaml:"service,omitempty"`
	// Issuer is the tokens' iss claim. Default "slipway"; required for an
	// external service.
	Issuer string `yaml:"issuer,omitempty"`

	// Key is the built-in service's PEM file of PKCS #8 or SEC 1 private keys,
	// Ed25519 or P-256. The first signs, all verify. It is created, mode 0600,
	// when absent. Replicas must share it. Default "token.key" in Options.Dir,
	// or a key in memory only where that is empty, too.
	Key string `yaml:"key,omitempty"`
	// Expiration is the lifetime of access tokens. Default 5m, at least 1m,
	// at most 24h.
	Expiration time.Duration `yaml:"expiration,omitempty"`
	// RefreshExpiration is the lifetime of refresh tokens, which htpasswd users
	// get when they ask for offline access. They die earlier with the user or
	// the password. Default 0: none are given, because docker login stores one
	// in place of the password, and other tools cannot use what it stored.
	RefreshExpiration time.Duration `yaml:"refresh_expiration,omitempty"`

	// RootCertBundle is a PEM file of certificates that an external service's
	// keys are, or are certified by.
	RootCertBundle string `yaml:"rootcertbundle,omitempty"`
	// JWKS is a file with an external service's public keys.
	JWKS string `yaml:"jwks,omitempty"`
	// SigningAlgorithms accepted from an external service. Default: RS, PS, ES
	// (256, 384, 512) and EdDSA.
	SigningAlgorithms []string `yaml:"signingalgorithms,omitempty"`
	// AutoRedirect makes the realm of an external service from the request's
	// host and AutoRedirectPath.
	AutoRedirect bool `yaml:"autoredirect,omitempty"`
	// AutoRedirectPath is the path for AutoRedirect. Default "/auth/token".
	AutoRedirectPath string `yaml:"autoredirectpath,omitempty"`
}

// OIDCConfig describes an OpenID Connect issuer. Discovery happens at the
// first use, so the issuer need not be up when the registry starts.
type OIDCConfig struct {
	// Name of the issuer in subjects, "oidc:<name>:<user>". Default: the
	// issuer's host.
	Name string `yaml:"name,omitempty"`
	// Issuer is the issuer's URL, https but for loopback hosts.
	Issuer string `yaml:"issuer"`
	// Audience and Audiences are what a token's aud must hold one of. At least
	// one is required: an issuer's tokens are meant for many services.
	Audience  string   `yaml:"audience,omitempty"`
	Audiences []string `yaml:"audiences,omitempty"`
	// CA is a PEM file of the authorities that the issuer's certificate is checked
	// against. Default: those of the system. JWKS is a file with the issuer's public
	// keys, for one that cannot be asked; then it never is. They exclude each other.
	CA   string `yaml:"ca,omitempty"`
	JWKS string `yaml:"jwks,omitempty"`
	// UsernameClaim is the claim with the user's name. Default "sub". Here and below,
	// a name with a slash in front is a JSON pointer (RFC 6901) to a claim within
	// others: a token of Kubernetes has its namespace at /kubernetes.io/namespace.
	UsernameClaim string `yaml:"username_claim,omitempty"`
	// GroupsClaim is the claim with the user's groups, a string or a list.
	// Default "groups".
	GroupsClaim string `yaml:"groups_claim,omitempty"`
	// RequiredClaims must be in the token with these values. A public issuer
	// (a CI service) signs for everybody; this tells one's own from the rest.
	RequiredClaims map[string]string `yaml:"required_claims,omitempty"`
	// ClientID and ClientSecret are of the client that people log in with at the web
	// page; empty: they cannot at this issuer. Its redirect URI is that of the page
	// /ui/login/done. Scopes are asked for beside openid.
	ClientID     string   `yaml:"client_id,omitempty"`
	ClientSecret string   `yaml:"client_secret,omitempty"`
	Scopes       []string `yaml:"scopes,omitempty"`
}

// MTLSConfig tells which name of a verified client certificate is the subject.
// Its organizational units are the groups.
type MTLSConfig struct {
	// Subject is "cn", "uri" or "dns": the common name, the first URI or the
	// first DNS name. Default: the first of these that the certificate has.
	Subject string `yaml:"subject,omitempty"`
}

// Rule grants actions on repositories to subjects.
type Rule struct {
	// Repositories are patterns: "*" stands for any characters within a path
	// segment, "?" for one, and a segment "**" for any number of segments,
	// also none. Everything else is exact.
	Repositories []string `yaml:"repositories,omitempty"`
	// Subjects as the package comment lists them.
	Subjects []string `yaml:"subjects"`
	// Actions are pull, push, delete, or "*" for these three. volume (a credential for
	// the storage of volumes) and clone (one that may make clones there, with volume)
	// are always named. catalog (listing the repositories one may pull) and admin
	// ignore Repositories. "*" on the repositories "**" includes catalog; admin is
	// always named.
	Actions []string `yaml:"actions"`
}

// ConfigError is a mistake in a Config, or in a file that it names.
type ConfigError struct {
	// Key is where the mistake is, such as auth.token.realm or auth.access[2].
	Key string
	Err error
}

// Error implements error.
func (e *ConfigError) Error() string { return e.Key + ": " + e.Err.Error() }

// Unwrap returns Err.
func (e *ConfigError) Unwrap() error { return e.Err }

// mistake makes a ConfigError, of the innermost key that err tells already.
func mistake(key, format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	var inner *ConfigError
	if errors.As(err, &inner) {
		return inner
	}
	return &ConfigError{key, err}
}

// Options are what New needs from its surroundings. The zero value works.
type Options struct {
	// Logger for operational messages. Default: discarded.
	Logger *slog.Logger
	// Audit receives security-relevant events. Default: none.
	Audit *AuditLog
	// Clock tells the time. Default time.Now.
	Clock func() time.Time
	// Dir is where a token key is created that has no path of its own.
	Dir string
	// Host, as scheme://host, and Prefix, a path without a closing slash, are
	// where clients find this server and with it the built-in token service.
	// Default: the host each request names, and no prefix.
	Host, Prefix string
	// HTTPClient reaches OIDC issuers. Default: http.DefaultTransport with a
	// timeout of 10 s.
	HTTPClient *http.Client
	// Repository tells which repository a name stands for where tokens are asked for,
	// if not the one of that name. Clients ask by the names they have and show one
	// token all the time, while rights are checked for the repository. Default: no
	// name stands for another.
	Repository func(r *http.Request, name string) string
}

func (o *Options) orDefault() Options {
	var d Options
	if o != nil {
		d = *o
	}
	if d.Logger == nil {
		d.Logger = slog.New(slog.DiscardHandler)
	}
	if d.Clock == nil {
		d.Clock = time.Now
	}
	if d.HTTPClient == nil {
		d.HTTPClient = &http.Client{Timeout: issuerTimeout}
	}
	return d
}

// tokenMode is which token service a configuration means.
type tokenMode int

const (
	tokenNone tokenMode = iota
	tokenBuiltin
	tokenExternal
)

// tokenMode decides which service there is. anonymous reports whether the rules
// grant anything to anonymous.
func (c *Config) tokenMode(anonymous bool) (tokenMode, error) {
	passwords := c.HTPasswd != nil || len(c.OIDC) > 0
	t := c.Token
	if t == nil {
		if anonymous && passwords {
			return tokenBuiltin, nil
		}
		return tokenNone, nil
	}
	external := t.RootCertBundle != "" || t.JWKS != ""
	switch {
	case t.Builtin != nil && *t.Builtin && external:
		return 0, mistake("auth.token", "builtin excludes rootcertbundle and jwks, which describe an external service")
	case t.Builtin != nil && *t.Builtin:
		return tokenBuiltin, t.checkBuiltin()
	case external:
		return tokenExternal, t.checkExternal()
	case t.Builtin != nil:
		return tokenNone, nil
	}
	return 0, mistake("auth.token", "set builtin: true, or rootcertbundle or jwks for an external service")
}

func (t *TokenConfig) checkBuiltin() error {
	if t.Expiration != 0 && (t.Expiration < time.Minute || t.Expiration > 24*time.Hour) {
		return mistake("auth.token.expiration", "%v is not between 1m and 24h", t.Expiration)
	}
	if t.Realm == "" {
		return nil
	}
	if u, err := url.Parse(t.Realm); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return mistake("auth.token.realm", "%q is not an http or https URL", t.Realm)
	}
	return nil
}

func (t *TokenConfig) checkExternal() error {
	for _, f := range []struct{ name, value string }{
		{"service", t.Service}, {"issuer", t.Issuer},
	} {
		if f.value == "" {
			return mistake("auth.token."+f.name, "required for an external token service")
		}
	}
	if t.Realm == "" && !t.AutoRedirect {
		return mistake("auth.token.realm", "required for an external token service without autoredirect")
	}
	return nil
}

// check reports what is wrong with an issuer's configuration.
func (c *OIDCConfig) check() error {
	u, err := url.Parse(c.Issuer)
	if err != nil || u.Host == "" {
		return fmt.Errorf("issuer %q is not a URL", c.Issuer)
	}
	if u.Scheme != "https" && !(u.Scheme == "http" && loopback(u.Hostname())) {
		return fmt.Errorf("issuer %q: only https is safe beyond loopback", c.Issuer)
	}
	if c.ClientSecret != "" && c.ClientID == "" {
		return fmt.Errorf("issuer %q: client_secret is of no use without client_id", c.Issuer)
	}
	if c.JWKS != "" && (c.CA != "" || c.ClientID != "") {
		return fmt.Errorf("issuer %q: with its keys in jwks it is not asked, so ca and client_id are of no use", c.Issuer)
	}
	if len(c.audiences()) == 0 {
		return fmt.Errorf("issuer %q: audience is required", c.Issuer)
	}
	if strings.ContainsRune(c.Name, ':') {
		return fmt.Errorf("issuer %q: the name %q has a colon", c.Issuer, c.Name)
	}
	return nil
}

// name returns the issuer's name, "" where its URL has none.
func (c *OIDCConfig) name() string {
	if c.Name != "" {
		return c.Name
	}
	u, err := url.Parse(c.Issuer)
	if err != nil {
		return ""
	}
	return u.Hostname()
}

// groupsOfCertificates is the source of groups that client certificates name.
const groupsOfCertificates = "mtls"

// groupSources returns what tells of groups, by name.
func (c *Config) groupSources() (list []string) {
	for i := range c.OIDC {
		list = append(list, c.OIDC[i].name())
	}
	if c.MTLS != nil {
		list = append(list, groupsOfCertificates)
	}
	return list
}

// groupsOf returns groups of a source as identities have them.
func groupsOf(source string, groups []string) []string {
	out := make([]string, len(groups))
	for i, g := range groups {
		out[i] = source + ":" + g
	}
	return out
}

func (c *OIDCConfig) audiences() []string {
	var out []string
	for _, a := range append([]string{c.Audience}, c.Audiences...) {
		if a != "" {
			out = append(out, a)
		}
	}
	return out
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
