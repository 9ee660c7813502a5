package config

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"reflect"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"

	"example.org/slipway/config/yamlfile"
	"example.org/slipway/registry/auth"
)

// Validate checks what the type of a single key cannot ensure: ranges, patterns,
// addresses, and which keys fit together. Load and Parse call it; call it again after
// changing a Config in code. The error is Problems.
//
// It does not open files that the configuration names.
func (c *Config) Validate() error {
	v := &validator{Report: new(yamlfile.Report), places: c.places, c: c}
	v.values()
	v.relations()
	return v.Err()
}

// validator collects what is wrong with the values of a configuration.
type validator struct {
	*yamlfile.Report
	places yamlfile.Places
	c      *Config // nil for an agent's
}

// Problem makes a problem with a key, located where the key was set. It is for problems
// that only users of the configuration can find.
func (c *Config) Problem(key, message string) Problem {
	return Problem{Where: c.places.Of(key).String(), Key: key, Message: message}
}

func (v *validator) bad(key, message string) { v.AddProblem(v.places.Of(key), key, message) }

// check reports err for key, unless err is nil.
func (v *validator) check(key string, err error) {
	if err != nil {
		v.bad(key, err.Error())
	}
}

// values checks each value by itself.
func (v *validator) values() {
	c := v.c
	v.tags(reflect.ValueOf(c).Elem(), "")
	v.httpValues(&c.HTTP)
	v.storageValues(&c.Storage)
	v.proxyValues(&c.Proxy)
	v.gearValues(&c.Gear)
	v.volumesValues(&c.Volumes)
	v.warmValues(&c.Warm)
	v.healthValues(&c.Health)
	v.replicationValues(c.Replication)
	v.signatureValues(c.Signatures)

	names := make(map[string]bool)
	for i, e := range c.Notifications.Endpoints {
		key := fmt.Sprintf("notifications.endpoints[%d]", i)
		if e.Name == "" {
			v.bad(key+".name", "is missing")
		} else if names[e.Name] {
			v.bad(key+".name", "is the name of another endpoint too")
		}
		names[e.Name] = true
		v.check(key+".url", checkURL(e.URL))
	}
	for i, s := range c.Notifications.Networks {
		_, err := parseNetwork(s)
		v.check(fmt.Sprintf("notifications.networks[%d]", i), err)
	}
	v.regexps("validation.manifests.urls.allow", c.Validation.Manifests.URLs.Allow)
	v.regexps("validation.manifests.urls.deny", c.Validation.Manifests.URLs.Deny)
	if c.Tracing.Enabled {
		v.check("tracing.endpoint", checkURL(c.Tracing.Endpoint))
	}
	if c.Tracing.SampleRatio > 1 {
		v.bad("tracing.sample_ratio", "must be between 0 and 1")
	}
	for i, r := range c.Auth.Access {
		v.patterns(fmt.Sprintf("auth.access[%d].repositories", i), r.Repositories)
	}
}

func (v *validator) httpValues(h *HTTP) {
	v.check("http.addr", checkAddr(h.Net, h.Addr))
	if h.Prefix != "" && (!strings.HasPrefix(h.Prefix, "/") || !strings.HasSuffix(h.Prefix, "/")) {
		v.bad("http.prefix", "must begin and end with a slash")
	}
	if h.Host != "" {
		v.check("http.host", checkURL(h.Host))
	}
	v.hostNames("http.names", h.Names, map[string]bool{})
	if h.Debug.Addr != "" {
		v.check("http.debug.addr", checkAddr("tcp", h.Debug.Addr))
	}
	if !strings.HasPrefix(h.Debug.Prometheus.Path, "/") {
		v.bad("http.debug.prometheus.path", "must begin with a slash")
	}
	for i, s := range h.TrustedProxies {
		if s != proxyUnix {
			_, err := parseProxy(s)
			v.check(fmt.Sprintf("http.trusted_proxies[%d]", i), err)
		}
	}
	for i, name := range h.TLS.CipherSuites {
		if s, _ := cipherSuite(name); s == nil {
			v.bad(fmt.Sprintf("http.tls.ciphersuites[%d]", i), "is not a known cipher suite")
		}
	}
}

func (v *validator) gearValues(g *Gear) {
	for i, r := range g.Rules {
		v.patterns(fmt.Sprintf("gear.rules[%d].repositories", i), r.Repositories)
	}
	if g.Settle.Share > 100 {
		v.bad("gear.settle.share", "must be at most 100")
	}
}

func (v *validator) healthValues(h *Health) {
	for i, f := range h.File {
		if f.File == "" {
			v.bad(fmt.Sprintf("health.file[%d].file", i), "is missing")
		}
	}
	for i, u := range h.HTTP {
		v.check(fmt.Sprintf("health.http[%d].uri", i), checkURL(u.URI))
	}
	for i, t := range h.TCP {
		v.check(fmt.Sprintf("health.tcp[%d].addr", i), checkAddr("tcp", t.Addr))
	}
}

// relations checks that keys fit together.
func (v *validator) relations() {
	c := v.c
	if t := &c.HTTP.TLS; (t.Certificate == "") != (t.Key == "") {
		missing, given := "http.tls.key", "http.tls.certificate"
		if t.Certificate == "" {
			missing, given = given, missing
		}
		v.bad(missing, "is missing: "+given+" alone gives no encryption")
	} else if !t.Enabled() && len(t.ClientCAs) > 0 {
		v.bad("http.tls.clientcas", "needs http.tls.certificate and http.tls.key: there are no client certificates without TLS")
	}
	if c.openToNetwork() && !c.HTTP.InsecureOpenToNetwork {
		v.bad("http.addr", "is reachable from other machines, and nobody is asked for a password: "+
			"configure auth, or listen on 127.0.0.1, or say http.insecure_open_to_network: true (SLIPWAY_HTTP_INSECURE_OPEN_TO_NETWORK=true)")
	}
	v.storageRelations(&c.Storage)
	v.rebuildRelations(&c.Storage)
	v.clusterValues(&c.Cluster, &c.Storage)
	v.proxyRelations(&c.Proxy)
	if ix := c.Validation.Manifests.Indexes; ix.Platforms == "list" && len(ix.PlatformList) == 0 {
		v.bad("validation.manifests.indexes.platformlist", "is missing: platforms: list needs it")
	}
	if c.Auth.HTPasswd != nil && c.Auth.HTPasswd.Path == "" {
		v.bad("auth.htpasswd.path", "is missing")
	}
	if c.Auth.MTLS != nil && len(c.HTTP.TLS.ClientCAs) == 0 {
		v.bad("auth.mtls", "needs http.tls.clientcas, which say whose certificates count")
	}
}

// openToNetwork reports whether somebody on another machine may do everything without
// authentication. Client certificates that are required and verified count as
// authentication.
func (c *Config) openToNetwork() bool {
	verified := c.HTTP.TLS.Enabled() && len(c.HTTP.TLS.ClientCAs) > 0 &&
		c.HTTP.TLS.ClientAuth == "require-and-verify-client-cert"
	return noAuth(&c.Auth) && !verified && beyondLoopback(c.HTTP.Net, c.HTTP.Addr)
}

// noAuth reports whether a configuration lets everybody do everything: it has
// neither a method nor a rule.
func noAuth(a *auth.Config) bool {
	return a.HTPasswd == nil && a.LDAP == nil && a.Token == nil && len(a.OIDC) == 0 && a.MTLS == nil && len(a.Access) == 0
}

// warnings warns of what is valid but hardly intended.
func (v *validator) warnings() {
	h := &v.c.HTTP
	warn := func(key, reason string) { v.AddWarning(v.places.Of(key), key, reason) }
	if h.Debug.Addr != "" && beyondLoopback("tcp", h.Debug.Addr) {
		warn("http.debug.addr", "metrics and profiles are reachable from other machines without a password")
	}
	if v.c.Auth.HTPasswd != nil && !h.TLS.Enabled() && beyondLoopback(h.Net, h.Addr) {
		warn("auth.htpasswd", "passwords cross the network in clear unless a proxy in front speaks TLS")
	}
	if v.c.Auth.LDAP != nil && !h.TLS.Enabled() && beyondLoopback(h.Net, h.Addr) {
		warn("auth.ldap", "passwords cross the network in clear unless a proxy in front speaks TLS")
	}
	for i, name := range h.TLS.CipherSuites {
		if _, insecure := cipherSuite(name); insecure {
			warn(fmt.Sprintf("http.tls.ciphersuites[%d]", i), "this cipher suite has known weaknesses")
		}
	}
	v.storageWarnings(&v.c.Storage, warn)
	v.proxyWarnings(&v.c.Proxy, warn)
	v.replicationWarnings(v.c.Replication, warn)
	if h.TLS.MinimumTLS == "tls1.0" || h.TLS.MinimumTLS == "tls1.1" {
		warn("http.tls.minimumtls", "this version of TLS has known weaknesses")
	}
}

// tags checks the enum and min tags of all fields below x.
func (v *validator) tags(x reflect.Value, path string) {
	switch yamlfile.ShapeOf(x.Type()) {
	case yamlfile.ShapeSection:
		if x.Kind() == reflect.Pointer {
			if x.IsNil() {
				return
			}
			x = x.Elem()
		}
		for _, f := range yamlfile.FieldsOf(x.Type()) {
			fv, key := x.FieldByIndex(f.Index), yamlfile.Join(path, f.Key)
			v.tag(fv, f, key)
			v.tags(fv, key)
		}
	case yamlfile.ShapeList:
		for i := range x.Len() {
			v.tags(x.Index(i), fmt.Sprintf("%s[%d]", path, i))
		}
	}
}

func (v *validator) tag(x reflect.Value, f yamlfile.Field, key string) {
	if len(f.Enum) > 0 && !slices.Contains(f.Enum, x.String()) {
		v.bad(key, "must be "+yamlfile.OneOf(f.Enum))
	}
	if f.Min == "" {
		return
	}
	least := reflect.New(f.Type).Elem()
	if msg := yamlfile.SetScalar(f.Min, least, f); msg != "" {
		v.bad(key, "has a limit that cannot be read: "+msg)
		return
	}
	if below(x, least) {
		v.bad(key, "must be at least "+yamlfile.FormatScalar(least))
	}
}

// below compares numbers of the same type.
func below(x, least reflect.Value) bool {
	if x.CanFloat() {
		return x.Float() < least.Float()
	}
	return x.CanInt() && x.Int() < least.Int()
}

func (v *validator) regexps(key string, exprs []string) {
	for i, e := range exprs {
		if _, err := regexp.Compile(e); err != nil {
			msg := "is not a regular expression"
			var se *syntax.Error
			if errors.As(err, &se) { // only its code is used, because the rest quotes the value
				msg += ": " + string(se.Code)
			}
			v.bad(fmt.Sprintf("%s[%d]", key, i), msg)
		}
	}
}

func (v *validator) patterns(key string, patterns []string) {
	for i, p := range patterns {
		v.check(fmt.Sprintf("%s[%d]", key, i), checkPattern(p))
	}
}

// checkPattern refuses a repository pattern that cannot match any repository, because it
// must be a mistake.
func checkPattern(p string) error {
	if p == "" || strings.HasPrefix(p, "/") || strings.HasSuffix(p, "/") || strings.Contains(p, "//") {
		return errors.New("matches no repository: a part between slashes is empty")
	}
	for _, r := range p {
		if !strings.ContainsRune("abcdefghijklmnopqrstuvwxyz0123456789._-/*?", r) {
			return errors.New("matches no repository: it has a character that no repository name has")
		}
	}
	return nil
}

func checkAddr(network, addr string) error {
	if addr == "" {
		return errors.New("is missing")
	}
	if network == "unix" {
		return nil
	}
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return errors.New("must be HOST:PORT")
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || strings.HasPrefix(port, "+") || n > 65535 {
		return errors.New("must end with a port from 0 to 65535")
	}
	return nil
}

func checkURL(s string) error {
	if s == "" {
		return errors.New("is missing")
	}
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return errors.New("must be an http or https URL")
	}
	return nil
}
