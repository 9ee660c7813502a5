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
	InsecureOpenToNetwork bool          `yaml:"insecure_open_to_network" doc:"Must be true to listen beyond loopback with an empty auth section: everybody who reaches the address can then read, push and, where enabled, delete."`
	Prefix                string        `yaml:"prefix" doc:"Path before /v2/, beginning and ending with a slash. Empty means none." example:"/registry/"`
	Host                  string        `yaml:"host" doc:"URL under which clients reach the server, put before the paths of Location headers and into notifications, and where clients are sent for tokens. Empty sends paths only, which pass through any proxy." example:"https://registry.example.com"`
	Names                 []string      `yaml:"names" doc:"Other host names under which clients reach the server, without a port. Only where nobody is asked for a password it takes no other than these, that in host, that of this machine, localhost and addresses, so that no site can have a browser here use it under the site's own name. * admits every name." example:"registry.local"`
	Secret                Secret        `yaml:"secret" doc:"Accepted from Distribution's files. Nothing here is signed with it: the state of uploads is in the catalogue." example:"${file:/run/secrets/http}"`
	RelativeURLs          bool          `yaml:"relativeurls" doc:"Makes Location headers without scheme and host, as they are anyway while host is empty."`
	DrainTimeout          time.Duration `yaml:"draintimeout" default:"60s" min:"0s" doc:"How long requests may take to end when the server stops. 0 means not at all."`
	TLS                   TLS           `yaml:"tls" doc:"Encryption. Empty means plain HTTP."`
	Headers               http.Header   `yaml:"headers" doc:"Headers added to every answer, each with a list of values. With Access-Control-Allow-Origin, which may list several origins, browsers' preflight requests (OPTIONS) are answered without credentials, and pages may read what is in the errors and headers of answers." example:"X-Content-Type-Options: [nosniff]"`
	TrustedProxies        []string      `yaml:"trusted_proxies" doc:"Addresses and networks of the proxies in front, and unix for those that come through a unix socket. From them the client's address is taken from X-Forwarded-For: the right-most address that is not one of these. It counts for limits, logs and events. Also from them only, the client's scheme and host are taken from X-Forwarded-Proto and X-Forwarded-Host, or Forwarded. Empty believes nobody, but for X-Forwarded-Proto." example:"10.0.0.0/8"`
	Debug                 Debug         `yaml:"debug" doc:"A second server with metrics, health and profiles, without a password."`
	HTTP2                 HTTP2         `yaml:"http2" doc:"HTTP/2 over TLS."`
	H2C                   H2C           `yaml:"h2c" doc:"HTTP/2 without TLS, for some load balancers."`
	RateLimit             RateLimit     `yaml:"ratelimit" doc:"What one client may do. A client is an address, or the /64 of an IPv6 address. More is answered 429 with Retry-After."`
	Limits                Limits        `yaml:"limits" doc:"What one request may take."`
}

// TLS configures encryption.
type TLS struct {
	Certificate  string   `yaml:"certificate" doc:"PEM file of the certificate and those that lead to its root." example:"/etc/slipway/tls.crt"`
	Key          string   `yaml:"key" doc:"PEM file of its private key." example:"/etc/slipway/tls.key"`
	ClientCAs    []string `yaml:"clientcas" doc:"PEM files of the authorities whose client certificates are accepted. Empty asks for none."`
	ClientAuth   string   `yaml:"clientauth" default:"require-and-verify-client-cert" enum:"request-client-cert|require-any-client-cert|verify-client-cert-if-given|require-and-verify-client-cert" doc:"What is done about client certificates when there are clientcas."`
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
	Disabled bool `yaml:"disabled" doc:"True speaks HTTP/1.1 only."`
}

// H2C configures HTTP/2 without TLS.
type H2C struct {
	Enabled bool `yaml:"enabled" doc:"Speaks it."`
}

// RateLimit bounds the requests of one client.
type RateLimit struct {
	RequestsPerSecond float64 `yaml:"requests_per_second" default:"0" min:"0" doc:"Requests per second in the long run. 0 means no limit."`
	Burst             int     `yaml:"burst" default:"0" min:"0" doc:"Requests that may come at once. 0 means as many as requests_per_second."`
	Uploads           int     `yaml:"uploads" default:"0" min:"0" doc:"Uploads a client may send at the same time. 0 means no limit."`
	MaxConnections    int     `yaml:"max_connections" default:"0" min:"0" doc:"Connections the server holds open in all. 0 means no limit."`
}

// Limits bounds the resources of requests.
type Limits struct {
	ManifestBytes   Size          `yaml:"manifest_bytes" default:"4MiB" min:"1KiB" doc:"Largest manifest, in bytes."`
	UploadSessions  int           `yaml:"upload_sessions" default:"100000" min:"1" doc:"Unfinished uploads in memory. One leaves it when it ends, when nobody has asked for it for 5 minutes, and after a few bytes; it can be continued all the same. One client may hold a quarter of them."`
	BodyIdleTimeout time.Duration `yaml:"body_idle_timeout" default:"60s" min:"1s" doc:"Longest pause in a request's or an answer's body before the connection is closed."`
	BodyMinRate     Size          `yaml:"body_min_rate" default:"1KiB" min:"0" doc:"Least bytes a second of a request's body, on average over body_idle_timeout. 0 asks for one byte in that time."`
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
