package load

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/oci/client"
	"example.org/slipway/oci/client/wrongserver"
	"example.org/slipway/workload/load/wire"
)

// Target says which registry to use and how to reach it.
type Target struct {
	// Name is the registry's name in reports. "" means the URL's host.
	Name string
	// URL is http://host or https://host, followed by the path before /v2/, if there is
	// one. A host alone means HTTP if it is an address of this machine, and else HTTPS.
	URL string
	// Namespace is sent as ?ns= with requests that read or delete, as containerd does for
	// a mirror. If it is "", no ?ns= is sent.
	Namespace string
	// Prefix is put before the names of repositories, as a mirror may need, such as
	// "docker.io/". Registries that name an upstream by its address also accept
	// "localhost:5000/".
	Prefix string
	// TLS is the configuration for https. nil means the system's certificates.
	TLS *tls.Config
	// Username and Password are sent to the registry or its token service. If they are
	// empty and DockerConfig is true, credentials are taken from Docker's config.json.
	Username, Password string
	DockerConfig       bool
}

// endpoint is a target that has been opened.
type endpoint struct {
	Target
	url  *url.URL
	host wire.Host
	// ns is the query of requests that read, including the question mark.
	ns string
	// patient repeats failed requests. hasty does not, so that failures are counted.
	patient, hasty *client.Client
	learner        *learner
	transport      *http.Transport
}

// open checks a target and makes the clients for it. It makes no request.
func open(t *Target, timeout time.Duration) (*endpoint, error) {
	e := &endpoint{Target: *t}
	var err error
	if !strings.Contains(e.URL, "://") { // the address alone, as in the name of an image
		host, _, _ := strings.Cut(e.URL, "/")
		scheme := "https://"
		if client.IsLoopback(host) {
			scheme = "http://"
		}
		e.URL = scheme + e.URL
	}
	if e.url, err = url.Parse(e.URL); err != nil {
		return nil, errors.New("the target's URL is malformed") // people put passwords into it
	}
	e.url.Host, e.url.Path = client.APIHost(e.url.Host), strings.TrimRight(e.url.Path, "/")
	if e.host, err = wire.HostOf(e.url); err != nil {
		return nil, err
	}
	if e.Name == "" {
		e.Name = e.url.Host
	}
	if t.Namespace != "" {
		e.ns = "?ns=" + url.QueryEscape(t.Namespace)
	}
	if err := checkPrefix(t.Prefix); err != nil {
		return nil, err
	}
	if proxy, err := http.ProxyFromEnvironment(&http.Request{URL: e.url}); err != nil || proxy != nil {
		return nil, fmt.Errorf("a proxy is configured for %s, and its limits would be measured instead of the registry's; set NO_PROXY", e.url.Host)
	}
	e.transport = transport(t.TLS, timeout)
	e.learner = &learner{next: e.transport, e: e, repos: map[string]string{}}
	o := client.Options{Username: t.Username, Password: t.Password, DockerConfig: t.DockerConfig, Transport: e.learner, UserAgent: userAgent}
	if e.patient, err = client.New(e.URL, &o); err != nil {
		return nil, err
	}
	o.Retries = -1
	e.hasty, err = client.New(e.URL, &o)
	return e, err
}

// userAgent is the User-Agent of all requests.
const userAgent = "slipway-load"

// transport returns a transport that opens connections as needed and keeps them.
func transport(conf *tls.Config, timeout time.Duration) *http.Transport {
	t := &http.Transport{
		DialContext:           (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
		TLSHandshakeTimeout:   10 * time.Second,
		ResponseHeaderTimeout: timeout,
		MaxIdleConnsPerHost:   1024,
		IdleConnTimeout:       90 * time.Second,
		DisableCompression:    true,
	}
	if conf != nil {
		t.TLSClientConfig = conf.Clone()
	}
	return t
}

// checkPrefix returns an error if s contains bytes that would need escaping in a path.
func checkPrefix(s string) error {
	for _, c := range []byte(s) {
		switch {
		case 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || strings.IndexByte("._-:/[]", c) >= 0:
		default:
			return fmt.Errorf("%q cannot stand before the name of a repository", s)
		}
	}
	return nil
}

// reachTime bounds the attempt to reach a registry.
const reachTime = 10 * time.Second

// reach returns an error if the registry cannot be reached at its address. Other errors
// are left to later requests.
func (e *endpoint) reach(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, reachTime)
	defer cancel()
	if err := e.hasty.Ping(ctx); wrongserver.Unreachable(err) {
		return fmt.Errorf("%s cannot be reached: %w", e.Name, err)
	}
	return nil
}

func (e *endpoint) close() { e.transport.CloseIdleConnections() }

// authorization returns the credentials for a repository, or "" if they are not known.
func (e *endpoint) authorization(repo string) string { return e.learner.get(repo) }

// authorize finds out which credentials the registry wants for a repository. refused are
// the credentials that it refused, or "" for none. The client package asks for a
// manifest, and the learner notes the credentials that it sends. If other lanes have
// learned newer credentials meanwhile, authorize does nothing.
func (e *endpoint) authorize(ctx context.Context, repo, ref, refused string) error {
	if now := e.learner.get(repo); now != "" && now != refused {
		return nil
	}
	e.learner.forget(repo, refused)
	_, err := e.hasty.ResolveManifest(ctx, repo, ref)
	if e.learner.get(repo) != "" {
		return nil // even if the manifest could not be read
	}
	if err == nil {
		err = errors.New("the registry wants credentials for one request and not for another")
	}
	return err
}

// learner is the transport of the clients. It adds the namespace if there is one. It
// notes the credentials that a registry accepted, so that lanes can send them without the
// work of finding them.
type learner struct {
	next http.RoundTripper
	e    *endpoint

	mu    sync.RWMutex
	basic string            // for all repositories
	repos map[string]string // tokens
}

// RoundTrip implements [http.RoundTripper].
func (l *learner) RoundTrip(req *http.Request) (*http.Response, error) {
	own := req.URL.Host == l.e.url.Host && req.URL.Scheme == l.e.url.Scheme
	if own && l.e.Namespace != "" && (req.Method == http.MethodGet || req.Method == http.MethodHead || req.Method == http.MethodDelete) {
		req = req.Clone(req.Context())
		q := req.URL.Query()
		q.Set("ns", l.e.Namespace)
		req.URL.RawQuery = q.Encode()
	}
	resp, err := l.next.RoundTrip(req)
	if err == nil && own && resp.StatusCode != http.StatusUnauthorized {
		l.note(req.URL, req.Header.Get("Authorization"))
	}
	return resp, err
}

func (l *learner) note(u *url.URL, authorization string) {
	if authorization == "" || strings.ContainsAny(authorization, "\r\n") {
		return
	}
	rest, ok := strings.CutPrefix(u.Path, l.e.url.Path)
	r, known, err := oci.Parse(&url.URL{Path: rest})
	if !ok || !known || err != nil || r.Repo == "" {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if strings.HasPrefix(authorization, "Basic ") {
		l.basic = authorization
		return
	}
	l.repos[r.Repo] = authorization
}

func (l *learner) get(repo string) string {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.basic != "" {
		return l.basic
	}
	return l.repos[repo]
}

// forget forgets refused credentials. Credentials that were learned since stay.
func (l *learner) forget(repo, refused string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.basic == refused {
		l.basic = ""
	}
	if l.repos[repo] == refused {
		delete(l.repos, repo)
	}
}
