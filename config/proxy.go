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
	Any       []string       `yaml:"any" doc:"Hosts of registries that are mirrored as well, although they are not listed: HOST or HOST:PORT, where * in the host stands for any number of characters, dots too, and as the port for any. Without a port it is the usual one of https. Their repositories begin with the host, with a hyphen for the colon before a port. Hosts of a pattern with * must have public addresses." example:"*.example.com"`
	Mappings  []ProxyMapping `yaml:"mappings" doc:"Other names of mirrored repositories. The first that fits a name holds."`
	Default   string         `yaml:"default" doc:"Name of the upstream whose repositories also go by their names there, without the upstream's before them, where no repository of that name was pushed here. Empty: they do not." example:"docker.io"`
	OwnNames  []string       `yaml:"own_names" doc:"Host names of this registry that clients may send as ?ns=, beside that of http.host and the one they connect to. Any other that no upstream has is answered 404, so that the client goes on to the next registry and is not given another image of the same name." example:"registry.example.com"`
	Offline   bool           `yaml:"offline" doc:"True never asks an upstream: what is here is served, whatever its age."`
	MaxBytes  Size           `yaml:"max_bytes" default:"0" min:"0" doc:"Most bytes that mirrored content takes. Above it the images go that nobody has pulled for the longest time. What pushed repositories hold as well does not count. 0 means no limit."`
	Ahead     Size           `yaml:"ahead" default:"1MiB" min:"0" doc:"Largest layers and configs of an image that are fetched as soon as a client was given its manifest, if there are several; it is about to ask for them. 0 fetches what was asked for and nothing else."`
	TTL       time.Duration  `yaml:"ttl" default:"0s" min:"0s" doc:"Mirrored images that nobody has pulled for this long are removed. 0 keeps them."`

	RemoteURL string    `yaml:"remoteurl" doc:"Distribution's way to name one upstream, which is also the default. Its tags are asked for at each pull, as Distribution does. Its name is docker.io, or the host with a hyphen for the colon; ?ns= has the host as it is." example:"https://registry-1.docker.io"`
	Username  string    `yaml:"username" doc:"User name for remoteurl."`
	Password  Secret    `yaml:"password" doc:"Password for remoteurl." example:"${file:/run/secrets/hub}"`
	Exec      ProxyExec `yaml:"exec" doc:"Distribution's way to have a credential helper tell the credentials for remoteurl."`
	Anonymous bool      `yaml:"insecure_open_to_anonymous" doc:"As that of an upstream, for remoteurl."`
}

// ProxyExec configures a credential helper in Distribution's way.
type ProxyExec struct {
	Command  string        `yaml:"command" doc:"Credential helper, run with the argument get." example:"/usr/local/bin/docker-credential-ecr-login"`
	Lifetime time.Duration `yaml:"lifetime" default:"6h" min:"0s" doc:"How long what it printed is used. 0 runs it each time a password is needed."`
}

// Upstream is a registry that is mirrored.
type Upstream struct {
	Name    string   `yaml:"name" doc:"Name of the upstream, with which its repositories begin here: one part of a repository name." example:"docker.io"`
	URL     string   `yaml:"url" doc:"Where it is. Empty means https:// and its name, and Docker Hub for docker.io. Behind /v2/ may stand what its repositories begin with there: https://harbor.example.com/v2/hub-cache." example:"https://registry-1.docker.io"`
	Mirrors []string `yaml:"mirrors" doc:"URLs of registries with the same content, which are asked first, in this order. What one does not have, or while it fails, the next is asked for; url is the last." example:"https://mirror.example.com"`
	Hosts   []string `yaml:"hosts" doc:"Host names of this server under which it looks like the upstream itself, and other names of the upstream in ?ns=. There it is also known by the host and port of its URL, and Docker Hub by all its names." example:"docker-mirror.example.com"`
	Library *bool    `yaml:"library" doc:"Puts library/ before names of one part. Unset: for docker.io only." example:"true"`

	Username     string            `yaml:"username" doc:"User name there. It and the password are sent to url and not to mirrors; docker_config may hold credentials for those, too." example:"reader"`
	Password     Secret            `yaml:"password" doc:"Password or token there." example:"${file:/run/secrets/hub}"`
	DockerConfig string            `yaml:"docker_config" doc:"Path of a config.json as docker login writes it, from which the credentials are taken; the credential helpers it names are run. It stands instead of username and password."`
	Command      CredentialCommand `yaml:"credential_command" doc:"A command that prints the password, for registries whose passwords expire."`
	Anonymous    bool              `yaml:"insecure_open_to_anonymous" doc:"Must be true where anybody may pull from an upstream with credentials without proving who they are: everything these credentials open, private images too, is then open to everybody who reaches this server."`
	TLS          UpstreamTLS       `yaml:"tls" doc:"Encryption towards the upstream."`
	HTTPProxy    string            `yaml:"http_proxy" doc:"Proxy on the way to the upstream, an http, https or socks5 URL. Empty takes HTTP_PROXY, HTTPS_PROXY and NO_PROXY of the environment; none uses none." example:"http://proxy.example.com:3128"`
	Redirects    []string          `yaml:"redirects" doc:"Private, loopback or link-local networks that the upstream may redirect to. Public addresses need not be named. Token services may also be in a network like the upstream's own; everything else is refused." example:"10.0.0.0/8"`

	Concurrency       int           `yaml:"concurrency" default:"32" min:"1" doc:"Blobs fetched from the upstream at the same time, and as many other requests beside them."`
	RequestsPerSecond float64       `yaml:"requests_per_second" default:"0" min:"0" doc:"Requests per second to the upstream in the long run. 0 means no limit. Whatever it is, an upstream that answers 429 is not asked for more of the same for as long as it says."`
	Burst             int           `yaml:"burst" default:"0" min:"0" doc:"Requests that may be sent at once. 0 means as many as requests_per_second."`
	ConnectTimeout    time.Duration `yaml:"connect_timeout" default:"5s" min:"1ms" doc:"Longest time to connect."`
	HeaderTimeout     time.Duration `yaml:"header_timeout" default:"30s" min:"1ms" doc:"Longest time until an answer begins."`
	StallTimeout      time.Duration `yaml:"stall_timeout" default:"30s" min:"1ms" doc:"Longest time a blob may deliver no byte. The connection is then given up and the blob continued on another."`

	TTL          time.Duration `yaml:"ttl" default:"1h" min:"0s" doc:"How long a tag holds before the upstream is asked whether it has moved. 0 asks at each pull. What is asked for by digest never changes and is never asked for again."`
	NegativeTTL  time.Duration `yaml:"negative_ttl" default:"10s" min:"0s" doc:"How long it holds that something is not there."`
	StaleIfError time.Duration `yaml:"stale_if_error" default:"720h" min:"0s" doc:"How long after its ttl a tag is still served while the upstream cannot be asked. 0 does not serve it then."`
	KeepDeleted  bool          `yaml:"keep_deleted" doc:"True goes on serving a tag that was deleted upstream."`
	Offline      bool          `yaml:"offline" doc:"True never asks this upstream."`

	Allow      []ImageRule   `yaml:"allow" doc:"Images that may be fetched. Empty means all."`
	Deny       []ImageRule   `yaml:"deny" doc:"Images that may not, also where allow says they may."`
	Platforms  []string      `yaml:"platforms" doc:"Platforms, OS/ARCHITECTURE[/VARIANT], whose images are fetched. Indexes stay as they are; images of other platforms are not found. Empty means all." example:"linux/amd64"`
	MinAge     time.Duration `yaml:"min_age" default:"0s" min:"0s" doc:"Least age of an image, by its creation date, before it is fetched. 0 means any."`
	OnlySigned bool          `yaml:"only_signed" doc:"True fetches only images with a signature beside them, as a referrer or as cosign's tag; attestations are none. Whose signature it is is for the clients to verify."`
}

// CredentialCommand configures a command that prints a password.
type CredentialCommand struct {
	Command []string      `yaml:"command" doc:"Program and its arguments, run without a shell. It gets the host on its standard input and prints the password on one line (aws ecr get-login-password, with username: AWS), or the JSON object of Docker's credential helpers (docker-credential-ecr-login get). It stands instead of password."`
	Every   time.Duration `yaml:"every" default:"6h" min:"1s" doc:"How long what it printed is used before it is run again. The passwords of cloud registries are good for 1 to 12 h."`
	Timeout time.Duration `yaml:"timeout" default:"30s" min:"1s" doc:"Longest time it may take."`
}

// UpstreamTLS configures encryption towards an upstream.
type UpstreamTLS struct {
	CA                 string `yaml:"ca" doc:"PEM file of the authorities that certify the upstream. Empty means the system's. Hosts that it redirects to and its token service elsewhere may be certified by either." example:"/etc/slipway/upstream-ca.crt"`
	Certificate        string `yaml:"certificate" doc:"PEM file of a client certificate for the upstream." example:"/etc/slipway/upstream.crt"`
	Key                string `yaml:"key" doc:"PEM file of its private key." example:"/etc/slipway/upstream.key"`
	InsecureSkipVerify bool   `yaml:"insecure_skip_verify" doc:"True takes any certificate for the upstream's, though not for that of a host it redirects to or a token service elsewhere: whoever is on the way can then give this server other tags than the upstream's, and sees its credentials."`
}

// ImageRule describes images of an upstream.
type ImageRule struct {
	Repositories []string `yaml:"repositories" doc:"Patterns of repositories without the upstream's name, as in storage.immutable_tags. Empty means all." example:"library/*"`
	Tags         []string `yaml:"tags" doc:"Regular expressions that must match a tag as a whole. What is asked for by digest is judged by its repository; deny then counts only without tags. Empty means all." example:"v?[0-9.]+"`
}

// ProxyMapping is another name of repositories.
type ProxyMapping struct {
	From string `yaml:"from" doc:"Name as clients have it. At the end /* stands for any rest." example:"hub/*"`
	To   string `yaml:"to" doc:"Name here, which begins with that of an upstream; with /* at its end where from has it." example:"docker.io/*"`
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
// mirrored, because image names cannot mean it.
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
func (u *Upstream) Networks() []netip.Prefix {
	var list []netip.Prefix
	for _, s := range u.Redirects {
		if p, err := parseNetwork(s); err == nil { // Validate has refused the others
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
