// Package send sends the steps of a replay to registries and says how each request
// went. It repeats nothing: what fails is a result.
package send

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Target is a registry and how to reach it. It is sent to workers as JSON, with its
// secrets.
type Target struct {
	// Name is that of reports.
	Name string `json:"name"`
	// URL is http://host or https://host, with a path before /v2/ if there is one.
	URL string `json:"url"`
	// Username and Password are shown to the registry or its token service;
	// IdentityToken is exchanged for tokens instead.
	Username      string `json:"username,omitempty"`
	Password      string `json:"password,omitempty"`
	IdentityToken string `json:"identityToken,omitempty"`
	// CA verifies the server instead of the system's certificates; Cert and Key are
	// presented to it. All are PEM.
	CA   []byte `json:"ca,omitempty"`
	Cert []byte `json:"cert,omitempty"`
	Key  []byte `json:"key,omitempty"`
	// Insecure accepts any certificate.
	Insecure bool `json:"insecure,omitempty"`
	// HTTP1 never uses HTTP/2.
	HTTP1 bool `json:"http1,omitempty"`
}

// Secret tells whether the target has something that must not cross a network in
// the clear.
func (t *Target) Secret() bool {
	return t.Password != "" || t.IdentityToken != "" || len(t.Key) > 0
}

// parse checks the URL. Its errors do not contain it: people put passwords there.
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
	return &url.URL{Scheme: u.Scheme, Host: u.Host, Path: strings.TrimRight(u.Path, "/")}, nil
}

// Check returns what is wrong with the target.
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

// dockerConfig is what is read of Docker's config.json.
type dockerConfig struct {
	Auths map[string]struct {
		Auth          string `json:"auth"`
		IdentityToken string `json:"identitytoken"`
	} `json:"auths"`
	CredsStore  string            `json:"credsStore"`
	CredHelpers map[string]string `json:"credHelpers"`
}

// DockerCredentials fills in the credentials that Docker's config.json has for the
// target, in $DOCKER_CONFIG or ~/.docker, or that the helper gives which it names.
// Without any the target stays as it is.
func (t *Target) DockerCredentials() error {
	u, err := t.parse()
	if err != nil {
		return err
	}
	dir := os.Getenv("DOCKER_CONFIG")
	if dir == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return err
		}
		dir = filepath.Join(home, ".docker")
	}
	raw, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var c dockerConfig
	if err := json.Unmarshal(raw, &c); err != nil {
		return errors.New("docker's config.json is malformed")
	}
	return t.fromDocker(&c, u.Host)
}

func (t *Target) fromDocker(c *dockerConfig, host string) error {
	helper := c.CredHelpers[host]
	if helper == "" {
		helper = c.CredsStore
	}
	if helper != "" {
		return t.askHelper(helper, host)
	}
	for _, name := range []string{host, "https://" + host, "http://" + host} {
		a, ok := c.Auths[name]
		if !ok {
			continue
		}
		t.IdentityToken = a.IdentityToken
		raw, err := base64.StdEncoding.DecodeString(a.Auth)
		if err != nil {
			return fmt.Errorf("docker's config.json has a malformed entry for %s", host)
		}
		t.Username, t.Password, _ = strings.Cut(string(raw), ":")
		return nil
	}
	return nil
}

// askHelper runs a credential helper, docker-credential-NAME.
func (t *Target) askHelper(name, host string) error {
	if strings.ContainsAny(name, "/\\") {
		return errors.New("docker's config.json names a credential helper with a path")
	}
	cmd := exec.Command("docker-credential-"+name, "get")
	cmd.Stdin = strings.NewReader(host)
	out, err := cmd.Output()
	if err != nil {
		if strings.Contains(string(out), "credentials not found") {
			return nil
		}
		return fmt.Errorf("ask the credential helper %s: %w", name, err)
	}
	var a struct{ Username, Secret string }
	if err := json.Unmarshal(out, &a); err != nil {
		return fmt.Errorf("the credential helper %s gave no JSON", name)
	}
	if a.Username == "<token>" {
		t.IdentityToken = a.Secret
		return nil
	}
	t.Username, t.Password = a.Username, a.Secret
	return nil
}
