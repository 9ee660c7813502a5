package peers

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"time"

	"example.org/slipway/oci/peering"
)

// identity is the key that a node shows to other nodes. The node makes it itself; the
// registry says which node has which key. It lives as long as the process.
type identity struct {
	cert    tls.Certificate
	private ed25519.PrivateKey
	key     peering.Key
}

func newIdentity() (*identity, error) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	// Nobody checks the times. They only have to be valid whatever the clocks say.
	t := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "slipway node"},
		NotBefore: now.AddDate(-10, 0, 0), NotAfter: now.AddDate(20, 0, 0), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, t, t, public, private)
	if err != nil {
		return nil, fmt.Errorf("make the certificate of this node: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &identity{tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private, Leaf: cert}, private, keyOf(cert)}, nil
}

// keyOf returns the key of a certificate.
func keyOf(c *x509.Certificate) peering.Key { return sha256.Sum256(c.RawSubjectPublicKeyInfo) }

// errStranger says that a node has another key than the registry said.
var errStranger = errors.New("another node answers at this address")

// clientTLS returns how to connect to the node with a key. The key takes the place of names
// and authorities.
func (id *identity) clientTLS(key peering.Key) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{id.cert},
		InsecureSkipVerify: true, // VerifyConnection checks more
		VerifyConnection: func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) == 0 || keyOf(s.PeerCertificates[0]) != key {
				return errStranger
			}
			return nil
		}}
}

// serverTLS returns how to accept other nodes. Who they are is checked with their grants.
func (id *identity) serverTLS() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{id.cert}, ClientAuth: tls.RequireAnyClientCert,
		NextProtos: []string{"http/1.1"}}
}
