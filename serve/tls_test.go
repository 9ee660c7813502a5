package serve_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"example.org/slipway/serve"
)

// authority signs certificates.
type authority struct {
	t    testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t testing.TB) *authority {
	a := &authority{t: t}
	certPEM, keyPEM := a.sign(&x509.Certificate{Subject: pkix.Name{CommonName: "test authority"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	pair, err := tls.X509KeyPair([]byte(certPEM), []byte(keyPEM))
	if err != nil {
		t.Fatal(err)
	}
	a.cert, a.key = pair.Leaf, pair.PrivateKey.(*ecdsa.PrivateKey)
	return a
}

// sign completes a certificate and returns it and its key as PEM.
func (a *authority) sign(tmpl *x509.Certificate) (cert, key string) {
	a.t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	tmpl.SerialNumber = big.NewInt(time.Now().UnixNano())
	tmpl.NotBefore, tmpl.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = tmpl, k
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, k.Public(), signer)
	if err != nil {
		a.t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		a.t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}))
}

func (a *authority) server(name string) (cert, key string) {
	return a.sign(&x509.Certificate{Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
}

func (a *authority) client(name string, groups ...string) tls.Certificate {
	a.t.Helper()
	cert, key := a.sign(&x509.Certificate{Subject: pkix.Name{CommonName: name, OrganizationalUnit: groups},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	pair, err := tls.X509KeyPair([]byte(cert), []byte(key))
	if err != nil {
		a.t.Fatal(err)
	}
	return pair
}

func (a *authority) pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.cert)
	return p
}

// trust makes the instance's client trust the authority.
func (s *instance) trust(a *authority, certs ...tls.Certificate) {
	s.client.CloseIdleConnections()
	s.client.Transport = &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: a.pool(), Certificates: certs}}
}

func TestCertificateReload(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "crt"), filepath.Join(dir, "key")
	use := func(name string) {
		cert, key := a.server(name)
		writeFile(t, keyFile, key)
		writeFile(t, certFile, cert)
	}
	use("first")
	s := start(t, setup{yaml: "http: {tls: {certificate: " + certFile + ", key: " + keyFile + "}}",
		opts: serve.Options{CertificateCheck: time.Millisecond}})
	var expires time.Time
	served := func() string {
		c, err := tls.Dial("tcp", s.Addr().String(), &tls.Config{RootCAs: a.pool()})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		leaf := c.ConnectionState().PeerCertificates[0]
		expires = leaf.NotAfter
		return leaf.Subject.CommonName
	}
	if got := served(); got != "first" {
		t.Fatalf("served %q, want the first", got)
	}
	metric := "slipway_tls_certificate_expiry_timestamp_seconds " + strconv.FormatFloat(float64(expires.Unix()), 'g', -1, 64)
	if page := s.want(200, "GET", s.debug+"/metrics", "").body; !strings.Contains(page, metric) {
		t.Errorf("the metrics lack %s", metric)
	}
	use("second")
	poll(t, "the new certificate is served", func() bool { return served() == "second" })
	writeFile(t, certFile, "broken")
	poll(t, "the broken file is complained about", func() bool { return strings.Contains(s.log.String(), "cannot be loaded") })
	if got := served(); got != "second" {
		t.Errorf("with a broken file %q is served, want the second", got)
	}
	remove(t, certFile)
	if got := served(); got != "second" {
		t.Errorf("without a file %q is served, want the second", got)
	}
	use("third")
	poll(t, "the repaired file is served", func() bool { return served() == "third" })
	if n := strings.Count(s.log.String(), "cannot be loaded"); n > 6 { // broken, missing, and mismatched halves of a pair
		t.Errorf("the log complains %d times about the same file", n)
	}
}

func TestHTTP2(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	dir := t.TempDir()
	cert, key := a.server("registry")
	writeFile(t, filepath.Join(dir, "crt"), cert)
	writeFile(t, filepath.Join(dir, "key"), key)
	pair := "tls: {certificate: " + dir + "/crt, key: " + dir + "/key}"
	for _, c := range []struct {
		yaml  string
		major int
	}{
		{"http: {" + pair + "}", 2},
		{"http: {" + pair + ", http2: {disabled: true}}", 1},
	} {
		s := start(t, setup{yaml: c.yaml})
		s.trust(a)
		s.pushImage("a", "v1", strings.Repeat("layer", 100_000))
		resp, err := s.client.Get(s.url + "/v2/a/manifests/v1")
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.ProtoMajor != c.major || resp.StatusCode != 200 {
			t.Errorf("%s: got %s %s, want HTTP/%d", c.yaml, resp.Proto, resp.Status, c.major)
		}
	}
	s := start(t, setup{yaml: "http: {h2c: {enabled: true}}"})
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	s.client.Transport = &http.Transport{Protocols: &p}
	s.pushImage("a", "v1", "layer")
	if got := s.want(200, "GET", "/v2/a/manifests/v1", ""); got.body != imageOf("layer") {
		t.Errorf("over h2c: got %q", got.body)
	}
	// HTTP/2 drains too: first the running request ends, then the server.
	if err := s.stop(); err != nil {
		t.Error(err)
	}
}

func TestMTLS(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	a, stranger := newAuthority(t), newAuthority(t)
	dir := t.TempDir()
	cert, key := a.server("registry")
	writeFile(t, filepath.Join(dir, "crt"), cert)
	writeFile(t, filepath.Join(dir, "key"), key)
	ca := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw}))
	writeFile(t, filepath.Join(dir, "ca"), ca)
	tlsKeys := "http: {tls: {certificate: " + dir + "/crt, key: " + dir + "/key, clientcas: [" + dir + "/ca], clientauth: "
	rules := `}}
auth:
  mtls: {}
  access:
    - {repositories: ["team/**"], subjects: [alice], actions: [pull, push]}
    - {repositories: ["**"], subjects: ["group:auditors"], actions: [pull]}
`
	s := start(t, setup{yaml: tlsKeys + "verify-client-cert-if-given" + rules})
	s.trust(a)
	s.want(401, "GET", "/v2/team/app/tags/list", "")
	s.trust(a, a.client("alice"))
	s.pushImage("team/app", "v1", "layer")
	s.want(403, "POST", "/v2/other/blobs/uploads/", "")
	s.want(403, "DELETE", "/v2/team/app/manifests/v1", "")
	s.trust(a, a.client("bob", "auditors"))
	s.want(200, "GET", "/v2/team/app/manifests/v1", "")
	s.want(403, "POST", "/v2/team/app/blobs/uploads/", "")
	s.trust(a, a.client("mallory"))
	s.want(403, "GET", "/v2/team/app/manifests/v1", "")
	s.trust(a, stranger.client("alice"))
	if resp, err := s.client.Get(s.url + "/v2/team/app/manifests/v1"); err == nil {
		resp.Body.Close()
		t.Errorf("a stranger's certificate: got %s, want the handshake to fail", resp.Status)
	}
	// Requested but unverified certificates prove nothing.
	s = start(t, setup{yaml: tlsKeys + "request-client-cert" + rules})
	s.trust(a, stranger.client("alice"))
	s.want(401, "GET", "/v2/team/app/tags/list", "")
	s = start(t, setup{yaml: tlsKeys + "require-and-verify-client-cert}}"})
	s.trust(a)
	if resp, err := s.client.Get(s.url + "/v2/"); err == nil {
		resp.Body.Close()
		t.Errorf("no certificate where one is required: got %s", resp.Status)
	}
}
