package config

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"

	"example.org/slipway/oci"
	"example.org/slipway/registry/auth/patterns"
)

// proxyValues checks the section proxy.
func (v *validator) proxyValues(p *Proxy) {
	names := make(map[string]bool)
	hosts := make(map[string]bool)
	for i := range p.Upstreams {
		key := fmt.Sprintf("proxy.upstreams[%d]", i)
		v.upstreamName(key, p.Upstreams[i].Name, names)
		v.upstreamValues(key, &p.Upstreams[i])
	}
	for name := range names { // clients send them in ?ns= as they send hosts
		hosts[name] = true
	}
	if p.RemoteURL != "" {
		hosts[remoteName(p.RemoteURL)] = true
	}
	for i := range p.Upstreams {
		u := &p.Upstreams[i]
		delete(hosts, u.Name) // an upstream may list its own name as a host
		v.hostNames(fmt.Sprintf("proxy.upstreams[%d].hosts", i), u.Hosts, hosts)
		hosts[u.Name] = true
	}
	v.hostNames("proxy.own_names", p.OwnNames, hosts)
	for i, s := range p.Any {
		_, err := oci.ParseHostPattern(s)
		v.check(fmt.Sprintf("proxy.any[%d]", i), err)
	}
	v.keepsForGood(p)
	if p.RemoteURL != "" {
		v.check("proxy.remoteurl", checkUpstreamURL(p.RemoteURL))
		if name := remoteName(p.RemoteURL); !validUpstreamName(name) {
			v.bad("proxy.remoteurl", "has a host that cannot be part of a repository name; use proxy.upstreams and give the upstream a name")
		} else if names[name] {
			v.bad("proxy.remoteurl", "is also one of proxy.upstreams: write proxy.default instead")
		} else {
			names[name] = true
		}
	}
	v.remoteCredentials(p)
	if p.Default != "" && !names[p.Default] {
		v.bad("proxy.default", "is the name of no upstream")
	} else if p.Default != "" && p.RemoteURL != "" && p.Default != remoteName(p.RemoteURL) {
		v.bad("proxy.default", "is another upstream than proxy.remoteurl, which is the default by itself")
	}
	v.mappings(p.Mappings, names)
}

// keepsForGood refuses settings that remove content which would not be fetched again from
// any upstream.
func (v *validator) keepsForGood(p *Proxy) {
	const reason = "cannot be used with %s, which removes images: they could not be fetched again; leave it out and use slipway mirror prune"
	for _, limit := range []struct {
		key string
		set bool
	}{{"proxy.ttl", p.TTL > 0}, {"proxy.max_bytes", p.MaxBytes > 0}} {
		if !limit.set {
			continue
		}
		if p.Offline {
			v.bad("proxy.offline", fmt.Sprintf(reason, limit.key))
		}
		for i, u := range p.Upstreams {
			if u.Offline {
				v.bad(fmt.Sprintf("proxy.upstreams[%d].offline", i), fmt.Sprintf(reason, limit.key))
			}
		}
	}
}

// remoteCredentials checks the credentials for remoteurl.
func (v *validator) remoteCredentials(p *Proxy) {
	if p.Exec.Command == "" {
		v.password("proxy", p.Username, p.Password)
	} else if p.Username != "" || p.Password != "" {
		v.bad("proxy.exec", "stands beside username and password; use one of them")
	}
	if p.RemoteURL == "" && (p.Username != "" || p.Password != "" || p.Exec.Command != "") {
		v.bad("proxy.remoteurl", "is missing: there are credentials for it; each of proxy.upstreams has its own")
	}
}

// upstreamName checks a name, and notes it.
func (v *validator) upstreamName(key, name string, names map[string]bool) {
	switch {
	case name == "":
		v.bad(key+".name", "is missing")
	case !validUpstreamName(name):
		v.bad(key+".name", "must be one part of a repository name: lower-case letters and digits with single dots, hyphens or underscores between them; a port goes into url only")
	case names[name]:
		v.bad(key+".name", "is the name of another upstream too")
	}
	names[name] = true
}

func validUpstreamName(name string) bool { return oci.ValidName(name) && !strings.Contains(name, "/") }

// upstreamValues checks an upstream except for its name.
func (v *validator) upstreamValues(key string, u *Upstream) {
	if u.URL != "" {
		v.check(key+".url", checkUpstreamURL(u.URL))
	}
	for i, m := range u.Mirrors {
		v.check(fmt.Sprintf("%s.mirrors[%d]", key, i), checkUpstreamURL(m))
	}
	v.credentials(key, u)
	if (u.TLS.Certificate == "") != (u.TLS.Key == "") {
		missing := ".tls.key"
		if u.TLS.Certificate == "" {
			missing = ".tls.certificate"
		}
		v.bad(key+missing, "is missing: a client certificate needs both")
	}
	if u.HTTPProxy != "" && u.HTTPProxy != NoProxy {
		v.check(key+".http_proxy", checkProxyURL(u.HTTPProxy))
	}
	for i, s := range u.Redirects {
		_, err := parseNetwork(s)
		v.check(fmt.Sprintf("%s.redirects[%d]", key, i), err)
	}
	v.imageRules(key+".allow", u.Allow)
	v.imageRules(key+".deny", u.Deny)
	for i, s := range u.Platforms {
		v.check(fmt.Sprintf("%s.platforms[%d]", key, i), checkPlatform(s))
	}
}

// NoProxy as http_proxy of an upstream disables proxies.
const NoProxy = "none"

// credentials checks that an upstream has at most one source of credentials.
func (v *validator) credentials(key string, u *Upstream) {
	command := len(u.Command.Command) > 0
	if command {
		if u.Command.Command[0] == "" {
			v.bad(key+".credential_command.command[0]", "is missing: it is the program")
		}
		if u.Password != "" {
			v.bad(key+".password", "stands beside credential_command; use one of them")
		}
	} else {
		v.password(key, u.Username, u.Password)
	}
	if u.DockerConfig != "" && (command || u.Username != "" || u.Password != "") {
		v.bad(key+".docker_config", "stands beside another source of credentials; use one of them")
	}
}

// password checks that a name and a password come together.
func (v *validator) password(key, username string, password Secret) {
	switch {
	case username != "" && password == "":
		v.bad(key+".password", "is missing: there is a username")
	case username == "" && password != "":
		v.bad(key+".username", "is missing: there is a password")
	}
}

func (v *validator) imageRules(key string, rules []ImageRule) {
	for i, r := range rules {
		at := fmt.Sprintf("%s[%d]", key, i)
		if len(r.Repositories) == 0 && len(r.Tags) == 0 {
			v.bad(at, "says nothing: give repositories, tags or both")
		}
		v.patterns(at+".repositories", r.Repositories)
		v.regexps(at+".tags", r.Tags)
	}
}

// hostNames checks host names and records them. Each name may lead to one place only.
func (v *validator) hostNames(key string, list []string, seen map[string]bool) {
	for i, h := range list {
		at, name := fmt.Sprintf("%s[%d]", key, i), strings.ToLower(h)
		if u, err := url.Parse("//" + h); err != nil || h == "" || u.Host != h || u.User != nil {
			v.bad(at, "must be a host name, with a port if it is not the usual one")
		} else if seen[name] {
			v.bad(at, "is given twice, or the name of an upstream: it can lead to one place only")
		}
		seen[name] = true
	}
}

// mappings checks that each mapping leads to an upstream, and that none hides another.
func (v *validator) mappings(list []ProxyMapping, names map[string]bool) {
	for i, m := range list {
		key := fmt.Sprintf("proxy.mappings[%d]", i)
		from, any := strings.CutSuffix(m.From, "/*")
		to, anyTo := strings.CutSuffix(m.To, "/*")
		first, _, _ := strings.Cut(to, "/")
		switch {
		case !oci.ValidName(from):
			v.bad(key+".from", "must be a repository name, or the beginning of one and /*")
		case hidden(m.From, list[:i]):
			v.bad(key+".from", "is mapped already: the first mapping that fits a name holds, so what says more goes first")
		case !oci.ValidName(to):
			v.bad(key+".to", "must be a repository name, or the beginning of one and /*")
		case any != anyTo:
			v.bad(key+".to", "must end with /* exactly where from does")
		case !names[first] && !v.c.Proxy.mirrorsAny(first):
			v.bad(key+".to", "must begin with the name of an upstream")
		}
	}
}

// hidden reports whether a mapping is never used, because an earlier mapping matches
// every name that it matches.
func hidden(from string, before []ProxyMapping) bool {
	return slices.ContainsFunc(before, func(b ProxyMapping) bool {
		prefix, any := strings.CutSuffix(b.From, "*")
		return b.From == from || any && strings.HasSuffix(prefix, "/") && strings.HasPrefix(from, prefix)
	})
}

// proxyRelations checks what mirrors require of other sections.
func (v *validator) proxyRelations(p *Proxy) {
	if !p.Enabled() {
		return
	}
	if v.c.Storage.Maintenance.ReadOnly.Enabled && !p.offlineOnly() {
		v.bad(v.proxyKey(p), "cannot be used with storage.maintenance.readonly: a mirror stores what it fetches; use proxy.offline to serve what is here")
	}
	own := ""
	if u, err := url.Parse(v.c.HTTP.Host); err == nil {
		own = strings.ToLower(u.Hostname())
	}
	for i, u := range p.Upstreams {
		for j, h := range u.Hosts {
			if at, err := url.Parse("//" + h); own != "" && err == nil && strings.ToLower(at.Hostname()) == own {
				v.bad(fmt.Sprintf("proxy.upstreams[%d].hosts[%d]", i, j), "is the host of http.host: clients could not reach the repositories that are pushed here")
			}
		}
	}
	v.eachCredentialed(p, func(key string, u *Upstream) {
		if v.anonymousPulls(u.Name) && !u.Anonymous {
			v.bad(key+".insecure_open_to_anonymous", "is missing: the upstream has credentials, and anonymous clients may pull from it, including private images. "+
				"Change auth.access so that anonymous has no pull on "+u.Name+"/**, or take the credentials out, or say insecure_open_to_anonymous: true")
		}
	})
}

// mirrorsAny reports whether a registry that is not listed is mirrored under a name.
func (p *Proxy) mirrorsAny(name string) bool {
	return slices.ContainsFunc(p.Any, func(s string) bool {
		pattern, err := oci.ParseHostPattern(s)
		return err == nil && strings.Contains(name, ".") && pattern.Match(name, "")
	})
}

// offlineOnly reports whether no upstream is ever contacted.
func (p *Proxy) offlineOnly() bool {
	return p.Offline || p.RemoteURL == "" && len(p.Any) == 0 && !slices.ContainsFunc(p.Upstreams, func(u Upstream) bool { return !u.Offline })
}

// proxyKey returns the key of the configuration that sets up mirrors.
func (v *validator) proxyKey(p *Proxy) string {
	if len(p.Upstreams) > 0 {
		return "proxy.upstreams"
	}
	if p.RemoteURL == "" {
		return "proxy.any"
	}
	return "proxy.remoteurl"
}

// eachCredentialed visits the upstreams to which this server authenticates itself.
func (v *validator) eachCredentialed(p *Proxy, do func(key string, u *Upstream)) {
	for i, u := range p.All() {
		key := "proxy"
		if i < len(p.Upstreams) {
			key = fmt.Sprintf("proxy.upstreams[%d]", i)
		}
		if u.Credentialed() {
			do(key, &u)
		}
	}
}

// anonymousPulls reports whether an unauthenticated client on another machine may pull
// repositories that begin with a name.
func (v *validator) anonymousPulls(name string) bool {
	c := v.c
	if noAuth(&c.Auth) {
		return c.openToNetwork()
	}
	for _, r := range c.Auth.Access {
		if slices.Contains(r.Subjects, "anonymous") && (slices.Contains(r.Actions, "pull") || slices.Contains(r.Actions, "*")) &&
			slices.ContainsFunc(r.Repositories, func(p string) bool { return reaches(p, name) }) {
			return true
		}
	}
	return false
}

// reaches reports whether a pattern can match a repository below a name of one part.
func reaches(pattern, name string) bool {
	first, rest, _ := strings.Cut(pattern, "/")
	if first == "**" {
		return true
	}
	match, err := patterns.Compile(first)
	return err == nil && rest != "" && match(name)
}

// proxyWarnings warns of what is valid but hardly intended.
func (v *validator) proxyWarnings(p *Proxy, warn func(key, reason string)) {
	for i, s := range p.Any {
		if pattern, err := oci.ParseHostPattern(s); err == nil && pattern.Broad() {
			warn(fmt.Sprintf("proxy.any[%d]", i), "anybody can register a host that matches: everybody who may pull here can make this server fetch and keep what such a host offers")
		}
	}
	for i := range p.Upstreams {
		u, key := &p.Upstreams[i], fmt.Sprintf("proxy.upstreams[%d]", i)
		if u.TLS.InsecureSkipVerify {
			warn(key+".tls.insecure_skip_verify", "whoever is on the way to the upstream can give this server other images, and see its credentials")
		}
		if u.TTL == 0 && u.StaleIfError == 0 {
			warn(key+".stale_if_error", "no tag is served while the upstream cannot be reached")
		}
	}
	v.eachCredentialed(p, func(key string, u *Upstream) {
		for _, s := range append(slices.Clone(u.Mirrors), u.URL) {
			if at, err := url.Parse(s); err == nil && at.Scheme == "http" && !loopbackHost(at.Hostname()) {
				warn(key, "credentials cross the network to the upstream in clear: its URL is not https")
				break
			}
		}
		switch {
		case u.Anonymous && v.anonymousPulls(u.Name):
			warn(key+".insecure_open_to_anonymous", "anonymous clients can pull everything that the upstream's credentials give access to, including private images")
		case noAuth(&v.c.Auth):
			warn(key, "everything that the upstream's credentials open can be pulled by everybody on this machine: auth is empty")
		}
	})
}

// loopbackHost reports whether a host is this machine.
func loopbackHost(host string) bool { return !beyondLoopback("tcp", net.JoinHostPort(host, "0")) }

func checkUpstreamURL(s string) error {
	if err := checkURL(s); err != nil {
		return err
	}
	u, err := url.Parse(s)
	if err != nil {
		return errors.New("must be an http or https URL")
	}
	switch {
	case u.User != nil:
		return errors.New("must hold no credentials: they have keys of their own")
	case u.RawQuery != "" || u.Fragment != "":
		return errors.New("must be a URL without a query")
	}
	return nil
}

func checkProxyURL(s string) error {
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || !slices.Contains([]string{"http", "https", "socks5", "socks5h"}, u.Scheme) {
		return errors.New("must be an http, https or socks5 URL, or none")
	}
	return nil
}

// checkPlatform checks OS/ARCHITECTURE[/VARIANT].
func checkPlatform(s string) error {
	parts := strings.Split(s, "/")
	if len(parts) < 2 || len(parts) > 3 || slices.Contains(parts, "") || strings.ToLower(s) != s || strings.ContainsAny(s, " *") {
		return errors.New("must be OS/ARCHITECTURE or OS/ARCHITECTURE/VARIANT in lower case")
	}
	return nil
}
