package replay_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"testing"
	"time"

	"example.org/slipway/workload/replay"
	"example.org/slipway/workload/replay/plan"
)

// authority issues certificates for 127.0.0.1 and for clients.
type authority struct {
	t    testing.TB
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	pool *x509.CertPool
}

func newAuthority(t testing.TB) *authority {
	a := &authority{t: t, pool: x509.NewCertPool()}
	made := a.issue(&x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	a.key, a.cert = made.PrivateKey.(*ecdsa.PrivateKey), made.Leaf
	a.pool.AddCert(a.cert)
	return a
}

// issue signs a certificate. The first one is self-signed.
func (a *authority) issue(c *x509.Certificate) tls.Certificate {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	c.SerialNumber, c.Subject = big.NewInt(time.Now().UnixNano()), pkix.Name{CommonName: "test"}
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = c, key
	}
	raw, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(raw)
	if err != nil {
		a.t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: key, Leaf: leaf}
}

func (a *authority) server() tls.Certificate {
	return a.issue(&x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
}

func (a *authority) client() tls.Certificate {
	return a.issue(&x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
}

// TestWorkerOverTLS checks that only a coordinator with the right certificate and the
// right secret gets in.
func TestWorkerOverTLS(t *testing.T) {
	url, seen := newRegistry(t, nil)
	ca, stranger := newAuthority(t), newAuthority(t)
	conf := &tls.Config{Certificates: []tls.Certificate{ca.server()}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: ca.pool}
	if err := replay.RequireSafe("0.0.0.0:1", "", conf); err != nil {
		t.Errorf("certificates are not enough beyond loopback: %v", err)
	}
	if replay.RequireSafe("0.0.0.0:1", "", &tls.Config{Certificates: conf.Certificates}) == nil {
		t.Error("TLS that lets everybody in is enough beyond loopback")
	}
	addr := serveWorker(t, &replay.WorkerOptions{Secret: "open sesame"}, conf).Addr().String()
	st := newStore(t, pings(5, 1))
	for _, c := range []struct {
		name   string
		tls    *tls.Config
		secret string
		good   bool
	}{
		{"neither TLS nor a certificate", nil, "open sesame", false},
		{"no certificate", &tls.Config{RootCAs: ca.pool}, "open sesame", false},
		{"a stranger's certificate", &tls.Config{RootCAs: ca.pool, Certificates: []tls.Certificate{stranger.client()}}, "open sesame", false},
		{"a worker of unknown origin", &tls.Config{RootCAs: stranger.pool, Certificates: []tls.Certificate{ca.client()}}, "open sesame", false},
		{"the wrong secret", &tls.Config{RootCAs: ca.pool, Certificates: []tls.Certificate{ca.client()}}, "sesame", false},
		{"all of it", &tls.Config{RootCAs: ca.pool, Certificates: []tls.Certificate{ca.client()}}, "open sesame", true},
	} {
		o := options(t, plan.L1, url)
		o.Workers, o.TLS, o.Secret = []string{addr}, c.tls, c.secret
		_, err := replay.Run(t.Context(), st, o)
		if (err == nil) != c.good {
			t.Errorf("%s: error %v, want one: %t", c.name, err, !c.good)
		}
		if n := seen.total(); !c.good && n != 0 {
			t.Errorf("%s: %d requests were sent", c.name, n)
		}
	}
}
