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

	"example.org/slipway/registry/auth/ldap"
)

// The defaults of [Config].
const (
	// DefaultTokenExpiration is the default lifetime of an access token.
	DefaultTokenExpiration = 5 * time.Minute
	// DefaultMaxFailuresPerMinute is the default for how many wrong passwords one address
	// may send per minute.
	DefaultMaxFailuresPerMinute = 20
	// DefaultName is the realm, service and issuer if none is configured.
	DefaultName = "slipway"
)

// Config is the auth section of the configuration. The sections that Distribution also
// has keep their names and meaning. The zero value allows everything.
type Config struct {
	// HTPasswd checks user names and passwords against a file.
	HTPasswd *HTPasswdConfig `yaml:"htpasswd,omitempty"`
	// LDAP checks user names and passwords against a directory. A user who is in the file
	// of HTPasswd is not looked up in the directory.
	LDAP *ldap.Config `yaml:"ldap,omitempty"`
	// Token describes the built-in token service or an external one.
	Token *TokenConfig `yaml:"token,omitempty"`
	// OIDC lists the OpenID Connect issuers whose tokens are accepted.
	OIDC []OIDCConfig `yaml:"oidc,omitempty"`
	// MTLS, if set, makes identities from verified client certificates.
	MTLS *MTLSConfig `yaml:"mtls,omitempty"`
	// Robots says whether robots may use API tokens, as a password or as a bearer token.
	// Default: true if clients are asked for passwords or tokens anyway.
	Robots *bool `yaml:"robots,omitempty"`
	// Access lists the rules. They add up, and their order does not matter.
	Access []Rule `yaml:"access,omitempty"`
	// MaxFailuresPerMinute is how many wrong passwords an address may send per minute
	// before it gets a 429. Default: 20. A negative value means no limit. An IPv6 address
	// is counted by its /64.
	MaxFailuresPerMinute int `yaml:"max_failures_per_minute,omitempty"`
}

// HTPasswdConfig names a password file. Only bcrypt entries are accepted ("htpasswd -B").
// The file is read again when it changes.
type HTPasswdConfig struct {
	// Realm is the text that clients show to people. Default: "slipway".
	Realm string `yaml:"realm,omitempty"`
	// Path is the path of the file.
	Path string `yaml:"path"`
}

// TokenConfig describes the built-in token service or an external one.
type TokenConfig struct {
	// Builtin switches the built-in service on or off. If it is unset, the service is off
	// when an external service is described. Otherwise see the package comment.
	Builtin *bool `yaml:"builtin,omitempty"`
	// Realm is the URL that clients fetch tokens from. It is required for an external
	// service. By default the built-in service takes it from the request.
	Realm string `yaml:"realm,omitempty"`
	// Service is the audience of the tokens. Default: "slipway". It is required for an
	// external service.
	Service string `yaml:"service,omitempty"`
	// Issuer is the iss claim of the tokens. Default: "slipway". It is required for an
	// external service.
	Issuer string `yaml:"issuer,omitempty"`

	// Key is the PEM file of the built-in service's private keys: PKCS #8 or SEC 1,
	// Ed25519 or P-256. The first key signs, and all keys verify. If there is no file it
	// is created with mode 0600. Replicas must share it. Default: "token.key" in
	// Options.Dir. If Options.Dir is empty, too, the key is only in memory.
	Key string `yaml:"key,omitempty"`
	// Expiration is the lifetime of access tokens. Default: 5m. It is at least 1m and at
	// most 24h.
	Expiration time.Duration `yaml:"expiration,omitempty"`
	// RefreshExpiration is the lifetime of refresh tokens. htpasswd users get them when
	// they ask for offline access. A refresh token ends early when the user is removed or
	// the password changes. Default: 0, which means that no refresh tokens are given. The
	// reason for the default is that docker login stores a refresh token in place of the
	// password, and other tools cannot use it.
	RefreshExpiration time.Duration `yaml:"refresh_expiration,omitempty"`

	// RootCertBundle is a PEM file of certificates. An external service's key must be the
	// key of one of them, or be certified by one of them.
	RootCertBundle string `yaml:"rootcertbundle,omitempty"`
	// JWKS is a file with the public keys of an external service.
	JWKS string `yaml:"jwks,omitempty"`
	// SigningAlgorithms are the algorithms that are accepted from an external service.
	// Default: RS, PS, ES (256, 384, 512) and EdDSA.
	SigningAlgorithms []string `yaml:"signingalgorithms,omitempty"`
	// AutoRedirect says that the realm of an external service is made from the request's
	// host and AutoRedirectPath.
	AutoRedirect bool `yaml:"autoredirect,omitempty"`
	// AutoRedirectPath is the path for AutoRedirect. Default: "/auth/token".
	AutoRedirectPath string `yaml:"autoredirectpath,omitempty"`
}

// OIDCConfig describes an OpenID Connect issuer. Discovery happens at the first use, so
// the issuer need not be up when the registry starts.
type OIDCConfig struct {
	// Name is the issuer's name in subjects, "oidc:<name>:<user>". Default: the issuer's
	// host.
	Name string `yaml:"name,omitempty"`
	// Issuer is the issuer's URL. It must be https unless the host is a loopback host.
	Issuer string `yaml:"issuer"`
	// Audience and Audiences are the accepted audiences: a token's aud must contain one
	// of them. At least one is required, because an issuer's tokens are meant for many
	// services.
	Audience  string   `yaml:"audience,omitempty"`
	Audiences []string `yaml:"audiences,omitempty"`
	// CA is a PEM file of the authorities that the issuer's certificate is checked
	// against. Default: those of the system. JWKS is a file with the issuer's public
	// keys, for an issuer that cannot be reached; if it is set, the issuer is never
	// contacted. CA and JWKS exclude each other.
	CA   string `yaml:"ca,omitempty"`
	JWKS string `yaml:"jwks,omitempty"`
	// UsernameClaim is the claim with the user's name. Default: "sub". Here and below, a
	// name that begins with a slash is a JSON pointer (RFC 6901) to a claim within other
	// claims. A token of Kubernetes, for example, has its namespace at
	// /kubernetes.io/namespace.
	UsernameClaim string `yaml:"username_claim,omitempty"`
	// GroupsClaim is the claim with the user's groups, a string or a list of strings.
	// Default: "groups".
	GroupsClaim string `yaml:"groups_claim,omitempty"`
	// RequiredClaims are claims that a token must have with these values. A public
	// issuer, such as a CI service, signs tokens for everybody. The required claims
	// distinguish one's own tokens from the others.
	RequiredClaims map[string]string `yaml:"required_claims,omitempty"`
	// ClientID and ClientSecret identify the client that people log in with at the web
	// page. If they are empty, nobody can log in there with this issuer. The client's
	// redirect URI is the URL of the page /ui/login/done. Scopes are requested in
	// addition to openid.
	ClientID     string   `yaml:"client_id,omitempty"`
	ClientSecret string   `yaml:"client_secret,omitempty"`
	Scopes       []string `yaml:"scopes,omitempty"`
}

// MTLSConfig says which name of a verified client certificate is the subject. The
// certificate's organizational units are the groups.
type MTLSConfig struct {
	// Subject is "cn", "uri" or "dns": the common name, the first URI or the first DNS
	// name. Default: the first of these that the certificate has.
	Subject string `yaml:"subject,omitempty"`
}

// Rule grants actions on repositories to subjects.
type Rule struct {
	// Repositories are patterns. "*" stands for any characters within a path segment, "?"
	// for one character, and a segment "**" for any number of segments, including none.
	// Everything else is matched exactly.
	Repositories []string `yaml:"repositories,omitempty"`
	// Subjects are the subjects of the grant. The package comment lists their forms.
	Subjects []string `yaml:"subjects"`
	// Actions are pull, push and delete, or "*" for these three. volume permits getting a
	// credential for the storage of volumes. clone, together with volume, permits getting
	// a credential that may also make clones there. "*" includes neither. catalog
	// (listing the repositories that the subject may pull) and admin ignore Repositories.
	// "*" on the repositories "**" includes catalog, but not admin.
	Actions []string `yaml:"actions"`
}

// ConfigError is a mistake in a Config, or in a file that the Config names.
type ConfigError struct {
	// Key is the configuration key with the mistake, such as auth.token.realm or
	// auth.access[2].
	Key string
	Err error
}

// Error implements error.
func (e *ConfigError) Error() string { return e.Key + ": " + e.Err.Error() }

// Unwrap returns Err.
func (e *ConfigError) Unwrap() error { return e.Err }

// mistake returns a ConfigError. If the error in args is a ConfigError already, its key
// is kept, because it is more precise.
func mistake(key, format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	var inner *ConfigError
	if errors.As(err, &inner) {
		return inner
	}
	return &ConfigError{key, err}
}

// Options are the dependencies of New. The zero value works.
type Options struct {
	// Logger is for operational messages. Default: they are discarded.
	Logger *slog.Logger
	// Audit receives security-relevant events. Default: none.
	Audit *AuditLog
	// Clock returns the time. Default: time.Now.
	Clock func() time.Time
	// Dir is the directory in which a token key without a configured path is created.
	Dir string
	// Host, as scheme://host, and Prefix, a path without a closing slash, say where
	// clients find this server and the built-in token service. Default: the host of each
	// request, and no prefix.
	Host, Prefix string
	// HTTPClient reaches OIDC issuers. Default: http.DefaultTransport with a
	// timeout of 10 s.
	HTTPClient *http.Client
	// Tokens holds the API tokens. Default: there are none.
	Tokens TokenStore
	// Repository returns the repository that a name in a token request stands for, if
	// that repository has another name. Clients ask for tokens by the names that they
	// use, and show the same token for all their requests. But rights are checked for the
	// repository. Default: every name stands for the repository of that name.
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

// tokenMode says which token service a configuration has.
type tokenMode int

const (
	tokenNone tokenMode = iota
	tokenBuiltin
	tokenExternal
)

// tokenMode returns which token service there is. anonymous says whether the rules grant
// anything to anonymous.
func (c *Config) tokenMode(anonymous bool) (tokenMode, error) {
	passwords := c.HTPasswd != nil || c.LDAP != nil || len(c.OIDC) > 0 || c.Robots != nil && *c.Robots
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

// name returns the issuer's name, or "" if the issuer's URL has no host.
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

// groupsOfCertificates is the name of the source of groups for client certificates.
const groupsOfCertificates = "mtls"

// groupSources returns the names of the sources of groups.
func (c *Config) groupSources() (list []string) {
	for i := range c.OIDC {
		list = append(list, c.OIDC[i].name())
	}
	if c.LDAP != nil {
		list = append(list, directorySource)
	}
	if c.MTLS != nil {
		list = append(list, groupsOfCertificates)
	}
	return list
}

// groupsOf returns the groups of a source in the form that identities have.
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
