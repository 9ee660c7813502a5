package upstream_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"example.org/slipway/registry/mirror/upstream"
)

// authority is a certificate authority.
type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	pool *x509.CertPool
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{pool: x509.NewCertPool()}
	var der []byte
	var err error
	a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	ok(t, err)
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign}
	der, err = x509.CreateCertificate(rand.Reader, tmpl, tmpl, &a.key.PublicKey, a.key)
	ok(t, err)
	a.cert, err = x509.ParseCertificate(der)
	ok(t, err)
	a.pool.AddCert(a.cert)
	return a
}

// issue makes a certificate for 127.0.0.1 that is valid until the given time.
func (a *authority) issue(t *testing.T, name string, until time.Time) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	ok(t, err)
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: until, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, &key.PublicKey, a.key)
	ok(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func serveTLS(t *testing.T, conf *tls.Config, h http.HandlerFunc) *server {
	t.Helper()
	s, rec := record(h)
	s.Server = httptest.NewUnstartedServer(rec)
	s.TLS = conf
	s.Config.ErrorLog = quiet
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

func TestCertificates(t *testing.T) {
	ca := newAuthority(t)
	good, expired := ca.issue(t, "server", time.Now().Add(time.Hour)), ca.issue(t, "server", time.Now().Add(-time.Hour))
	trust := &tls.Config{RootCAs: ca.pool}
	for name, tt := range map[string]struct {
		cert tls.Certificate
		conf *tls.Config
		say  string
	}{
		"trusted":           {good, trust, ""},
		"unknown":           {good, nil, "unknown authority"},
		"expired":           {expired, trust, "expired"},
		"nothing is looked": {expired, &tls.Config{InsecureSkipVerify: true}, ""},
		"other name":        {good, &tls.Config{RootCAs: ca.pool, ServerName: "registry.example.com"}, "registry.example.com"},
	} {
		t.Run(name, func(t *testing.T) {
			s := serveTLS(t, &tls.Config{Certificates: []tls.Certificate{tt.cert}}, image)
			u := open(t, s.URL, upstream.Options{TLS: tt.conf})
			err := getManifest(u, "v1")
			if tt.say == "" {
				ok(t, err)
				return
			}
			unavailable(t, err, tt.say)
			if n := u.Status().Requests; n != 1 { // a retry would not help
				t.Errorf("got %d requests, want 1", n)
			}
		})
	}
}

// TestOtherHosts redirects to another host. The trust in the registry does not extend to it.
func TestOtherHosts(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	conf := func(a *authority) *tls.Config {
		return &tls.Config{Certificates: []tls.Certificate{a.issue(t, "server", time.Now().Add(time.Hour))}}
	}
	elsewhere := serveTLS(t, conf(other), image)
	s := serveTLS(t, conf(ca), func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, elsewhere.URL+r.URL.Path, http.StatusFound)
	})
	for name, tt := range map[string]struct {
		conf  *tls.Config
		roots *x509.CertPool
		good  bool
	}{
		"roots of their own":     {&tls.Config{RootCAs: ca.pool}, other.pool, true},
		"the registry's":         {&tls.Config{RootCAs: ca.pool}, ca.pool, false},
		"the system's":           {&tls.Config{RootCAs: ca.pool}, nil, false},
		"the registry by any":    {&tls.Config{InsecureSkipVerify: true}, nil, false},
		"and them by their root": {&tls.Config{InsecureSkipVerify: true}, other.pool, true},
	} {
		t.Run(name, func(t *testing.T) {
			err := getManifest(open(t, s.URL, upstream.Options{TLS: tt.conf, OtherRoots: tt.roots, Redirects: here}), "v1")
			if tt.good {
				ok(t, err)
			} else {
				unavailable(t, err, "unknown authority")
			}
		})
	}
}

// TestClientCertificate uses a registry that wants a client certificate and redirects to another
// host, which must not see it.
func TestClientCertificate(t *testing.T) {
	ca := newAuthority(t)
	var shown atomic.Int32
	elsewhere := serveTLS(t, &tls.Config{Certificates: []tls.Certificate{ca.issue(t, "elsewhere", time.Now().Add(time.Hour))}, ClientAuth: tls.RequestClientCert},
		func(w http.ResponseWriter, r *http.Request) {
			shown.Add(int32(len(r.TLS.PeerCertificates)))
			image(w, r)
		})
	plain := serve(t, image)
	s := serveTLS(t, &tls.Config{Certificates: []tls.Certificate{ca.issue(t, "server", time.Now().Add(time.Hour))}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: ca.pool},
		func(w http.ResponseWriter, r *http.Request) {
			switch {
			case strings.HasSuffix(r.URL.Path, "/away"):
				http.Redirect(w, r, elsewhere.URL+"/v2/x/manifests/v1", http.StatusFound)
			case strings.HasSuffix(r.URL.Path, "/plain"):
				http.Redirect(w, r, plain.URL+"/v2/x/manifests/v1", http.StatusFound)
			default:
				image(w, r)
			}
		})
	me := &tls.Config{RootCAs: ca.pool, Certificates: []tls.Certificate{ca.issue(t, "me", time.Now().Add(time.Hour))}}
	u := open(t, s.URL, upstream.Options{TLS: me, OtherRoots: ca.pool, Redirects: here})
	ok(t, getManifest(u, "v1"))
	ok(t, getManifest(u, "away"))
	if len(elsewhere.requests()) != 1 || shown.Load() != 0 {
		t.Errorf("the other host got %d requests and saw %d certificates, want 1 and 0", len(elsewhere.requests()), shown.Load())
	}
	unavailable(t, getManifest(u, "plain"), "from https to http")
	anonymous := open(t, s.URL, upstream.Options{TLS: &tls.Config{RootCAs: ca.pool}})
	unavailable(t, getManifest(anonymous, "v1"), "certificate")
}
