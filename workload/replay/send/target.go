// Package send sends the steps of a replay to registries and says how each request went.
// It does not retry: a failure is a result.
package send

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"example.org/slipway/oci/client"
)

// Target is a registry and how to reach it. It is sent to workers as JSON, with its
// secrets.
type Target struct {
	// Name is the target's name in reports.
	Name string `json:"name"`
	// URL is http://host or https://host, with a path before /v2/ if there is one.
	URL string `json:"url"`
	// Username and Password are sent to the registry or its token service. Instead,
	// IdentityToken is exchanged for tokens, or AccessToken is used as it is.
	Username      string `json:"username,omitempty"`
	Password      string `json:"password,omitempty"`
	IdentityToken string `json:"identityToken,omitempty"`
	AccessToken   string `json:"accessToken,omitempty"`
	// CA verifies the server in place of the system's certificates. Cert and Key are
	// presented to the server. All are PEM.
	CA   []byte `json:"ca,omitempty"`
	Cert []byte `json:"cert,omitempty"`
	Key  []byte `json:"key,omitempty"`
	// Insecure accepts any certificate.
	Insecure bool `json:"insecure,omitempty"`
	// HTTP1 never uses HTTP/2.
	HTTP1 bool `json:"http1,omitempty"`
}

// Secret reports whether the target has anything that must not cross a network in the
// clear.
func (t *Target) Secret() bool {
	return t.Password != "" || t.IdentityToken != "" || t.AccessToken != "" || len(t.Key) > 0
}

// parse parses the URL. Its errors do not contain the URL, because people put passwords
// there.
func (t *Target) parse() (*url.URL, error) {
	u, err := url.Parse(t.URL)
	switch {
	case err != nil:
		return nil, fmt.Errorf("the URL of target %s is malformed", t.Name)
	case u.User != nil:
		return nil, fmt.Errorf("the URL of target %s has a user name; give credentials apart", t.Name)
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "":
		return nil, fmt.Errorf("the URL of target %s is not http://HOST or https://HOST", t.Name)
	}
	return &url.URL{Scheme: u.Scheme, Host: client.APIHost(u.Host), Path: strings.TrimRight(u.Path, "/")}, nil
}

// Check returns an error if the target is invalid.
func (t *Target) Check() error {
	if _, err := t.parse(); err != nil {
		return err
	}
	_, err := t.tls()
	return err
}

func (t *Target) tls() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: t.Insecure}
	if len(t.CA) > 0 {
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(t.CA) {
			return nil, fmt.Errorf("the CA of target %s has no certificate", t.Name)
		}
	}
	if len(t.Cert) > 0 || len(t.Key) > 0 {
		pair, err := tls.X509KeyPair(t.Cert, t.Key)
		if err != nil {
			return nil, fmt.Errorf("the client certificate for target %s: %w", t.Name, err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// transport makes connections as they are needed, without a bound, and keeps them.
func (t *Target) transport() (*http.Transport, error) {
	c, err := t.tls()
	if err != nil {
		return nil, err
	}
	tr := &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		TLSClientConfig:     c,
		TLSHandshakeTimeout: 30 * time.Second,
		MaxIdleConnsPerHost: 4096,
		IdleConnTimeout:     90 * time.Second,
		DisableCompression:  true, // digests are of the bytes as they are stored
		ReadBufferSize:      32 << 10,
		WriteBufferSize:     32 << 10,
	}
	tr.Protocols = new(http.Protocols)
	tr.Protocols.SetHTTP1(true)
	tr.Protocols.SetHTTP2(!t.HTTP1)
	return tr, nil
}
