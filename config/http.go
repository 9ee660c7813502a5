package config

import (
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"
)

// HTTP configures the server.
type HTTP struct {
	Addr                  string        `yaml:"addr" default:"127.0.0.1:5000" doc:"Address to listen on: HOST:PORT, or the path of a socket when net is unix. An empty host means all interfaces."`
	Net                   string        `yaml:"net" default:"tcp" enum:"tcp|unix" doc:"Kind of address: tcp or unix."`
	InsecureOpenToNetwork bool          `yaml:"insecure_open_to_network" doc:"Must be true to listen beyond loopback with an empty auth section. Everybody who reaches the address can then pull, push and, if it is enabled, delete."`
	Prefix                string        `yaml:"prefix" doc:"Path before /v2/, beginning and ending with a slash. Empty means none." example:"/registry/"`
	Host                  string        `yaml:"host" doc:"URL under which clients reach the server. Location headers and notifications begin with it, and clients fetch tokens there. If it is empty, Location headers have only paths, which work behind any proxy." example:"https://registry.example.com"`
	Names                 []string      `yaml:"names" doc:"Other host names under which clients reach the server, without a port. A server that asks for no password accepts only these, the name in host, this machine's name, localhost, and addresses. So no web site can make a browser use the server under the site's own name. * accepts every name." example:"registry.local"`
	Secret                Secret        `yaml:"secret" doc:"Accepted because Distribution's files have it. It has no effect here: the state of uploads is in the catalogue." example:"${file:/run/secrets/http}"`
	RelativeURLs          bool          `yaml:"relativeurls" doc:"Omits scheme and host from Location headers, as is always done if host is empty."`
	DrainTimeout          time.Duration `yaml:"draintimeout" default:"60s" min:"0s" doc:"How long requests may take to end when the server stops. 0 ends them at once."`
	DrainDelay            time.Duration `yaml:"drain_delay" default:"0s" min:"0s" doc:"How long a server that has been told to stop still accepts requests, while /readyz says that it is stopping. In this time load balancers notice, and send requests elsewhere. draintimeout begins afterwards."`
	TLS                   TLS           `yaml:"tls" doc:"Encryption. Empty means plain HTTP."`
	Headers               http.Header   `yaml:"headers" doc:"Headers added to every answer, each with a list of values. With Access-Control-Allow-Origin, which may list several origins, browsers' preflight requests (OPTIONS) are answered without credentials, and pages may read what is in the errors and headers of answers." example:"X-Content-Type-Options: [nosniff]"`
	TrustedProxies        []string      `yaml:"trusted_proxies" doc:"Addresses and networks of the proxies in front of the server; unix means proxies that use a unix socket. In requests from these, the client's address is the right-most address of X-Forwarded-For that is not a trusted proxy. Limits, logs and events use that address. Only in requests from these, the client's scheme and host are taken from X-Forwarded-Proto and X-Forwarded-Host, or from Forwarded. Empty trusts nobody, except for X-Forwarded-Proto." example:"10.0.0.0/8"`
	Debug                 Debug         `yaml:"debug" doc:"A second server with metrics, health and profiles, without a password."`
	HTTP2                 HTTP2         `yaml:"http2" doc:"HTTP/2 over TLS."`
	H2C                   H2C           `yaml:"h2c" doc:"HTTP/2 without TLS, for some load balancers."`
	RateLimit             RateLimit     `yaml:"ratelimit" doc:"Limits of what one client may do. A client is an address, or the /64 of an IPv6 address. Requests above a limit are answered 429 with Retry-After."`
	Limits                Limits        `yaml:"limits" doc:"What one request may take."`
}

// TLS configures encryption.
type TLS struct {
	Certificate  string   `yaml:"certificate" doc:"PEM file of the certificate and of the intermediate certificates up to its root." example:"/etc/slipway/tls.crt"`
	Key          string   `yaml:"key" doc:"PEM file of its private key." example:"/etc/slipway/tls.key"`
	ClientCAs    []string `yaml:"clientcas" doc:"PEM files of the authorities whose client certificates are accepted. Empty requests no client certificates."`
	ClientAuth   string   `yaml:"clientauth" default:"require-and-verify-client-cert" enum:"request-client-cert|require-any-client-cert|verify-client-cert-if-given|require-and-verify-client-cert" doc:"How client certificates are checked if there are clientcas."`
	MinimumTLS   string   `yaml:"minimumtls" default:"tls1.2" enum:"tls1.0|tls1.1|tls1.2|tls1.3" doc:"Oldest version accepted: tls1.0 to tls1.3."`
	CipherSuites []string `yaml:"ciphersuites" doc:"Names of the cipher suites for TLS 1.2 and older. Empty means Go's choice." example:"TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"`
}

// Enabled reports whether the server speaks TLS.
func (t *TLS) Enabled() bool { return t.Certificate != "" || t.Key != "" }

// MinVersion returns minimumtls as a number of crypto/tls.
func (t *TLS) MinVersion() uint16 {
	switch t.MinimumTLS {
	case "tls1.0":
		return tls.VersionTLS10
	case "tls1.1":
		return tls.VersionTLS11
	case "tls1.3":
		return tls.VersionTLS13
	default:
		return tls.VersionTLS12
	}
}

// ClientAuthType returns clientauth as a value of crypto/tls. It is tls.NoClientCert if
// there are no clientcas.
func (t *TLS) ClientAuthType() tls.ClientAuthType {
	if len(t.ClientCAs) == 0 {
		return tls.NoClientCert
	}
	switch t.ClientAuth {
	case "request-client-cert":
		return tls.RequestClientCert
	case "require-any-client-cert":
		return tls.RequireAnyClientCert
	case "verify-client-cert-if-given":
		return tls.VerifyClientCertIfGiven
	default:
		return tls.RequireAndVerifyClientCert
	}
}

// Proxies returns trusted_proxies as networks, and reports whether they include the peers
// of a unix socket.
func (h *HTTP) Proxies() (networks []netip.Prefix, unix bool) {
	for _, s := range h.TrustedProxies {
		if s == proxyUnix {
			unix = true
		} else if p, err := parseProxy(s); err == nil { // Validate has refused the others
			networks = append(networks, p)
		}
	}
	return networks, unix
}

// proxyUnix stands for the peers of a unix socket.
const proxyUnix = "unix"

// parseProxy reads an address or a network. IPv4 within IPv6 counts as IPv4.
func parseProxy(s string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" {
		a = a.Unmap()
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil || p.Addr().Is4In6() {
		return p, errors.New("must be an address (192.0.2.1), a network (10.0.0.0/8) or unix")
	}
	return p.Masked(), nil
}

// CipherSuiteIDs returns the numbers of the cipher suites, or nil for Go's choice.
func (t *TLS) CipherSuiteIDs() []uint16 {
	var ids []uint16
	for _, name := range t.CipherSuites {
		if s, _ := cipherSuite(name); s != nil {
			ids = append(ids, s.ID)
		}
	}
	return ids
}

// cipherSuite finds a cipher suite by its name.
func cipherSuite(name string) (suite *tls.CipherSuite, insecure bool) {
	for _, s := range tls.CipherSuites() {
		if s.Name == name {
			return s, false
		}
	}
	for _, s := range tls.InsecureCipherSuites() {
		if s.Name == name {
			return s, true
		}
	}
	return nil, false
}

// Debug configures the second server.
type Debug struct {
	Addr       string     `yaml:"addr" doc:"Address to listen on, HOST:PORT. Empty starts no second server." example:"127.0.0.1:5001"`
	Prometheus Prometheus `yaml:"prometheus" doc:"Metrics."`
}

// Prometheus configures the metrics.
type Prometheus struct {
	Enabled bool   `yaml:"enabled" default:"true" doc:"Serves metrics."`
	Path    string `yaml:"path" default:"/metrics" doc:"Path of the metrics."`
}

// HTTP2 configures HTTP/2 over TLS.
type HTTP2 struct {
	Disabled bool `yaml:"disabled" doc:"True serves only HTTP/1.1."`
}

// H2C configures HTTP/2 without TLS.
type H2C struct {
	Enabled bool `yaml:"enabled" doc:"Serves HTTP/2 without TLS."`
}

// RateLimit bounds the requests of one client.
type RateLimit struct {
	RequestsPerSecond float64 `yaml:"requests_per_second" default:"0" min:"0" doc:"Requests per second in the long run. 0 means no limit."`
	Burst             int     `yaml:"burst" default:"0" min:"0" doc:"Requests that may come at once. 0 means as many as requests_per_second."`
	Uploads           int     `yaml:"uploads" default:"0" min:"0" doc:"Uploads a client may send at the same time. 0 means no limit."`
	MaxConnections    int     `yaml:"max_connections" default:"0" min:"0" doc:"Limit of the server's open connections, of all clients together. 0 means no limit."`
}

// Limits bounds the resources of requests.
type Limits struct {
	ManifestBytes   Size          `yaml:"manifest_bytes" default:"4MiB" min:"1KiB" doc:"Largest manifest, in bytes."`
	UploadSessions  int           `yaml:"upload_sessions" default:"100000" min:"1" doc:"Limit of unfinished uploads whose state is in memory. The state leaves memory when the upload ends, after 5 minutes without a request, and after a few bytes; the upload can still be continued. One client may hold a quarter of them."`
	BodyIdleTimeout time.Duration `yaml:"body_idle_timeout" default:"60s" min:"1s" doc:"Longest pause in a request's or an answer's body before the connection is closed."`
	BodyMinRate     Size          `yaml:"body_min_rate" default:"1KiB" min:"0" doc:"Minimum rate of a request's body, in bytes a second, on average over body_idle_timeout. 0 requires one byte in that time."`
}

// beyondLoopback reports whether an address can be reached from other machines. It
// returns true for a name other than localhost, because the name may resolve to anything.
func beyondLoopback(network, addr string) bool {
	if network == "unix" {
		return false
	}
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false // checked and reported elsewhere
	}
	host, _, _ = strings.Cut(host, "%")
	ip := net.ParseIP(host)
	return !strings.EqualFold(host, "localhost") && (ip == nil || !ip.IsLoopback())
}
