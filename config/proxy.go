package config

import (
	"errors"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"time"

	"example.org/slipway/config/yamlfile"
)

// Proxy configures mirrors: repositories of other registries that are fetched on demand
// and kept.
type Proxy struct {
	Upstreams []Upstream     `yaml:"upstreams" doc:"Registries that are mirrored, beside the repositories pushed here. The mirrored repositories begin with the upstream's name: docker.io/library/nginx."`
	Any       []string       `yaml:"any" doc:"Hosts of registries that are mirrored as well, although upstreams does not list them: HOST or HOST:PORT. In the host, * stands for any number of characters, including dots; as the port it stands for any port. Without a port, the usual one of https is meant. Their repositories begin with the host, with a hyphen for the colon before a port. Hosts that match a pattern with * must have public addresses." example:"*.example.com"`
	Mappings  []ProxyMapping `yaml:"mappings" doc:"Other names of mirrored repositories. The first entry that matches a name applies."`
	Default   string         `yaml:"default" doc:"Name of the upstream whose repositories can also be pulled without the upstream's name before theirs, unless a repository of that name was pushed here. Empty: there is none." example:"docker.io"`
	OwnNames  []string       `yaml:"own_names" doc:"Host names of this registry that clients may send as ?ns=, beside that of http.host and the one they connect to. Any other name that no upstream has is answered 404, so that the client tries the next registry and does not get another image of the same name." example:"registry.example.com"`
	Offline   bool           `yaml:"offline" doc:"True never asks an upstream: this server serves what it has, whatever its age."`
	MaxBytes  Size           `yaml:"max_bytes" default:"0" min:"0" doc:"Limit of the bytes of mirrored content. Above it, the images that nobody has pulled for the longest time are removed. Content that pushed repositories hold as well does not count. 0 means no limit."`
	Ahead     Size           `yaml:"ahead" default:"1MiB" min:"0" doc:"Layers and configs up to this size are fetched as soon as a client gets the manifest of an image that has several of them, because the client is about to request them. 0 fetches only what is requested."`
	TTL       time.Duration  `yaml:"ttl" default:"0s" min:"0s" doc:"Mirrored images that nobody has pulled for this long are removed. 0 keeps them."`

	RemoteURL string    `yaml:"remoteurl" doc:"Distribution's way to name one upstream, which is also the default. As in Distribution, its tags are looked up at each pull. Its name is docker.io, or the host with a hyphen for the colon; ?ns= has the host as it is." example:"https://registry-1.docker.io"`
	Username  string    `yaml:"username" doc:"User name for remoteurl."`
	Password  Secret    `yaml:"password" doc:"Password for remoteurl." example:"${file:/run/secrets/hub}"`
	Exec      ProxyExec `yaml:"exec" doc:"Distribution's way to get the credentials for remoteurl from a credential helper."`
	Anonymous bool      `yaml:"insecure_open_to_anonymous" doc:"As insecure_open_to_anonymous of an upstream, for remoteurl."`
}

// ProxyExec configures a credential helper in Distribution's way.
type ProxyExec struct {
	Command  string        `yaml:"command" doc:"Credential helper, run with the argument get." example:"/usr/local/bin/docker-credential-ecr-login"`
	Lifetime time.Duration `yaml:"lifetime" default:"6h" min:"0s" doc:"How long a password is used. 0 runs the helper each time a password is needed."`
}

// Upstream is a registry that is mirrored.
type Upstream struct {
	Name    string   `yaml:"name" doc:"Name of the upstream, with which its repositories begin here: one part of a repository name." example:"docker.io"`
	URL     string   `yaml:"url" doc:"URL of the upstream. Empty means https:// and its name, and Docker Hub for docker.io. A prefix of its repositories may follow /v2/: https://harbor.example.com/v2/hub-cache." example:"https://registry-1.docker.io"`
	Mirrors []string `yaml:"mirrors" doc:"URLs of registries with the same content, which are asked first, in this order. If one lacks the content or fails, the next is asked; url is the last." example:"https://mirror.example.com"`
	Hosts   []string `yaml:"hosts" doc:"Host names of this server under which it looks like the upstream itself, and other names of the upstream in ?ns=. The host and port of the upstream's URL are such names anyway, and so are all names of Docker Hub." example:"docker-mirror.example.com"`
	Library *bool    `yaml:"library" doc:"Puts library/ before names of one part. Unset: for docker.io only." example:"true"`

	Username     string            `yaml:"username" doc:"User name at the upstream. It and the password are sent to url, not to mirrors; docker_config may hold credentials for the mirrors, too." example:"reader"`
	Password     Secret            `yaml:"password" doc:"Password or token at the upstream." example:"${file:/run/secrets/hub}"`
	DockerConfig string            `yaml:"docker_config" doc:"Path of a config.json, as docker login writes it, with the credentials; the credential helpers that it names are run. It excludes username and password."`
	Command      CredentialCommand `yaml:"credential_command" doc:"A command that prints the password, for registries whose passwords expire."`
	Anonymous    bool              `yaml:"insecure_open_to_anonymous" doc:"Must be true if anonymous clients may pull from an upstream with credentials. Everything that the credentials give access to, including private images, is then open to everybody who reaches this server."`
	TLS          UpstreamTLS       `yaml:"tls" doc:"Encryption towards the upstream."`
	HTTPProxy    string            `yaml:"http_proxy" doc:"Proxy on the way to the upstream, an http, https or socks5 URL. Empty takes HTTP_PROXY, HTTPS_PROXY and NO_PROXY of the environment; none uses no proxy." example:"http://proxy.example.com:3128"`
	Redirects    []string          `yaml:"redirects" doc:"Private, loopback or link-local networks that the upstream may redirect to. Public addresses need not be named. Token services may also be in a network like the upstream's own; everything else is refused." example:"10.0.0.0/8"`

	Concurrency       int           `yaml:"concurrency" default:"32" min:"1" doc:"Number of blobs fetched from the upstream at the same time. As many other requests may be under way, too."`
	RequestsPerSecond float64       `yaml:"requests_per_second" default:"0" min:"0" doc:"Requests per second to the upstream in the long run. 0 means no limit. In any case, after an answer of 429 no further requests of that kind are sent for as long as the upstream says."`
	Burst             int           `yaml:"burst" default:"0" min:"0" doc:"Requests that may be sent at once. 0 means as many as requests_per_second."`
	ConnectTimeout    time.Duration `yaml:"connect_timeout" default:"5s" min:"1ms" doc:"Longest time to connect."`
	HeaderTimeout     time.Duration `yaml:"header_timeout" default:"30s" min:"1ms" doc:"Longest time until an answer begins."`
	StallTimeout      time.Duration `yaml:"stall_timeout" default:"30s" min:"1ms" doc:"Longest time without a byte of a blob. Then the connection is given up, and the download continues on another."`

	TTL          time.Duration `yaml:"ttl" default:"1h" min:"0s" doc:"How long a tag is used before the upstream is asked whether it has moved. 0 asks at each pull. What has a digest never changes, so it is fetched only once."`
	NegativeTTL  time.Duration `yaml:"negative_ttl" default:"10s" min:"0s" doc:"How long an upstream's answer that something does not exist is used."`
	StaleIfError time.Duration `yaml:"stale_if_error" default:"720h" min:"0s" doc:"How long after its ttl a tag is still served while the upstream cannot be reached. 0 does not serve it."`
	KeepDeleted  bool          `yaml:"keep_deleted" doc:"True continues to serve a tag that was deleted upstream."`
	Offline      bool          `yaml:"offline" doc:"True never asks this upstream."`

	Allow      []ImageRule   `yaml:"allow" doc:"Images that may be fetched. Empty means all."`
	Deny       []ImageRule   `yaml:"deny" doc:"Images that may not be fetched, even if allow has them."`
	Platforms  []string      `yaml:"platforms" doc:"Platforms, OS/ARCHITECTURE[/VARIANT], whose images are fetched. Indexes stay as they are; images of other platforms are not found. Empty means all." example:"linux/amd64"`
	MinAge     time.Duration `yaml:"min_age" default:"0s" min:"0s" doc:"Least age of an image, by its creation date, before it is fetched. 0 means any."`
	OnlySigned bool          `yaml:"only_signed" doc:"True fetches only images that have a signature, as a referrer or as cosign's tag; attestations do not count. Clients must verify who signed."`
}

// CredentialCommand configures a command that prints a password.
type CredentialCommand struct {
	Command []string      `yaml:"command" doc:"Program and its arguments, run without a shell. It gets the host on its standard input and prints the password on one line (aws ecr get-login-password, with username: AWS), or the JSON object of Docker's credential helpers (docker-credential-ecr-login get). It excludes password."`
	Every   time.Duration `yaml:"every" default:"6h" min:"1s" doc:"How long a password is used before the command is run again. The passwords of cloud registries are valid for 1 to 12 h."`
	Timeout time.Duration `yaml:"timeout" default:"30s" min:"1s" doc:"Longest time that the command may take."`
}

// UpstreamTLS configures encryption towards an upstream.
type UpstreamTLS struct {
	CA                 string `yaml:"ca" doc:"PEM file of the authorities that certify the upstream. Empty means the system's. Hosts that the upstream redirects to, and a token service on another host, may be certified by either." example:"/etc/slipway/upstream-ca.crt"`
	Certificate        string `yaml:"certificate" doc:"PEM file of a client certificate for the upstream." example:"/etc/slipway/upstream.crt"`
	Key                string `yaml:"key" doc:"PEM file of its private key." example:"/etc/slipway/upstream.key"`
	InsecureSkipVerify bool   `yaml:"insecure_skip_verify" doc:"True accepts any certificate of the upstream, but not of hosts that it redirects to or of a token service on another host. Anybody on the way can then give this server other tags than the upstream's, and see its credentials."`
}

// ImageRule describes images of an upstream.
type ImageRule struct {
	Repositories []string `yaml:"repositories" doc:"Patterns of repositories without the upstream's name, as in storage.immutable_tags. Empty means all." example:"library/*"`
	Tags         []string `yaml:"tags" doc:"Regular expressions that must match a tag as a whole. A request by digest is judged by its repository alone, so a deny rule with tags does not refuse it. Empty means all." example:"v?[0-9.]+"`
}

// ProxyMapping is another name of repositories.
type ProxyMapping struct {
	From string `yaml:"from" doc:"Name that clients use. At its end, /* stands for any rest." example:"hub/*"`
	To   string `yaml:"to" doc:"Name on this server, which begins with the name of an upstream. It must end in /* if from does." example:"docker.io/*"`
}

// DockerHub is the name of Docker Hub in image names and in containerd.
const DockerHub = "docker.io"

// dockerHubNames are the names that people use for Docker Hub.
var dockerHubNames = []string{DockerHub, "index.docker.io", "registry-1.docker.io"}

// dockerHubURL is the URL of Docker Hub.
const dockerHubURL = "https://registry-1.docker.io"

// Enabled reports whether there are mirrors.
func (p *Proxy) Enabled() bool { return len(p.Upstreams) > 0 || len(p.Any) > 0 || p.RemoteURL != "" }

// All lists the upstreams, each with its URL. The upstream of remoteurl is the last.
func (p *Proxy) All() []Upstream {
	list := make([]Upstream, 0, len(p.Upstreams)+1)
	list = append(list, p.Upstreams...)
	if p.RemoteURL != "" {
		var u Upstream
		yamlfile.SetDefaults(reflect.ValueOf(&u).Elem())
		u.Name, u.URL, u.Username, u.Password, u.Anonymous = remoteName(p.RemoteURL), p.RemoteURL, p.Username, p.Password, p.Anonymous
		if p.Exec.Command != "" {
			u.Command.Command, u.Command.Every = []string{p.Exec.Command, "get"}, max(p.Exec.Lifetime, time.Nanosecond)
		}
		u.TTL = 0 // as Distribution does
		list = append(list, u)
	}
	for i := range list {
		list[i].URL = list[i].Where()
	}
	return list
}

// Unlisted returns an upstream that is not in the configuration, with the defaults of
// listed ones.
func Unlisted(name, url string) Upstream {
	var u Upstream
	yamlfile.SetDefaults(reflect.ValueOf(&u).Elem())
	if u.Name = name; name != DockerHub {
		u.URL = url
	}
	u.URL = u.Where()
	return u
}

// Hosts returns the host names under which this server looks like an upstream.
func (p *Proxy) Hosts() []string {
	var list []string
	for i := range p.Upstreams {
		list = append(list, p.Upstreams[i].Hosts...)
	}
	return list
}

// Namespaces returns upstream names by the additional names that clients send in ?ns=:
// the hosts of the upstreams' URLs, in the form of image names, and all names of Docker
// Hub. Names and hosts from the configuration are not included, and neither is a name
// that could mean several upstreams.
func (p *Proxy) Namespaces() map[string]string {
	all := p.All()
	hub := slices.ContainsFunc(all, func(u Upstream) bool { return u.Name == DockerHub })
	found := map[string]string{}
	for i := range all {
		u := &all[i]
		for _, ns := range u.Namespaces() {
			if hub && u.Name != DockerHub && slices.Contains(dockerHubNames, ns) {
				continue
			}
			if other, ok := found[ns]; ok && other != u.Name {
				found[ns] = ""
				continue
			}
			found[ns] = u.Name
		}
	}
	for i := range all { // configured names precede derived names
		delete(found, all[i].Name)
		for _, h := range all[i].Hosts {
			delete(found, strings.ToLower(h))
		}
	}
	maps.DeleteFunc(found, func(_, name string) bool { return name == "" })
	return found
}

// Namespaces returns the names that follow from an upstream's name and URL. It returns
// none for a registry that is not at the root of its host, or of which only a part is
// mirrored, because image names cannot refer to such a registry.
func (u *Upstream) Namespaces() []string {
	var list []string
	if at, err := url.Parse(u.URL); err == nil && (strings.Trim(at.Path, "/") == "" || strings.Trim(at.Path, "/") == "v2") {
		host, port := strings.ToLower(at.Hostname()), at.Port()
		usual := "443"
		if at.Scheme == "http" {
			usual = "80"
		}
		if port == "" || port == usual {
			list, port = append(list, host), usual
		}
		list = append(list, net.JoinHostPort(host, port))
	}
	if u.Name == DockerHub || slices.ContainsFunc(list, func(ns string) bool { return slices.Contains(dockerHubNames, ns) }) {
		list = append(list, dockerHubNames...)
	}
	return list
}

// DefaultName returns the name of the default upstream, or "".
func (p *Proxy) DefaultName() string {
	if p.Default == "" && p.RemoteURL != "" {
		return remoteName(p.RemoteURL)
	}
	return p.Default
}

// Where returns the URL of an upstream. It replaces docker.io, which people write,
// because there is no registry at docker.io.
func (u *Upstream) Where() string {
	switch {
	case strings.TrimRight(strings.ToLower(u.URL), "/") == "https://"+DockerHub, u.URL == "" && u.Name == DockerHub:
		return dockerHubURL
	case u.URL != "" || u.Name == "":
		return u.URL
	}
	return "https://" + u.Name
}

// UsesLibrary reports whether names of one part are below library/.
func (u *Upstream) UsesLibrary() bool {
	if u.Library != nil {
		return *u.Library
	}
	return u.Name == DockerHub
}

// Credentialed reports whether this server authenticates itself to the upstream.
func (u *Upstream) Credentialed() bool {
	return u.Username != "" || u.Password != "" || u.DockerConfig != "" || len(u.Command.Command) > 0 || u.TLS.Certificate != ""
}

// Networks returns redirects as networks.
func (u *Upstream) Networks() []netip.Prefix { return networks(u.Redirects) }

// networks parses networks that Validate has accepted.
func networks(texts []string) []netip.Prefix {
	var list []netip.Prefix
	for _, s := range texts {
		if p, err := parseNetwork(s); err == nil {
			list = append(list, p)
		}
	}
	return list
}

// remoteName makes the name of an upstream from its URL.
func remoteName(remote string) string {
	u, err := url.Parse(remote)
	if err != nil {
		return ""
	}
	host := strings.ToLower(u.Host)
	if slices.Contains(dockerHubNames, host) {
		return DockerHub
	}
	if strings.HasPrefix(host, "[") { // an IPv6 address is not a name
		return ""
	}
	return strings.ReplaceAll(host, ":", "-")
}

// parseNetwork reads an address or a network.
func parseNetwork(s string) (netip.Prefix, error) {
	p, err := parseProxy(s)
	if err != nil {
		return p, errors.New("must be an address (192.0.2.1) or a network (10.0.0.0/8)")
	}
	return p, nil
}
