package wire

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
)

// Pool returns the certificates in PEM files.
func Pool(files ...string) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	for _, file := range files {
		if err := addCerts(pool, file); err != nil {
			return nil, err
		}
	}
	return pool, nil
}

// SystemPool returns the certificates in a PEM file together with those that the system
// trusts.
func SystemPool(file string) (*x509.CertPool, error) {
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool() // the system has no pool
	}
	return pool, addCerts(pool, file)
}

func addCerts(pool *x509.CertPool, file string) error {
	pem, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read certificates: %w", err)
	}
	if !pool.AppendCertsFromPEM(pem) {
		return fmt.Errorf("%s holds no PEM certificate", file)
	}
	return nil
}

// ClientTLS returns a client's TLS configuration from the PEM files of the authorities,
// the certificate and the key. If ca is "", the client trusts the system's authorities.
// If cert and key are "", it shows no certificate.
func ClientTLS(ca, cert, key string) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != "" {
		var err error
		if c.RootCAs, err = Pool(ca); err != nil {
			return nil, fmt.Errorf("authorities: %w", err)
		}
	}
	if cert != "" || key != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("certificate and key: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}
