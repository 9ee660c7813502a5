package wire

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
)

// Pool returns the certificates of files in PEM form.
func Pool(files ...string) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	for _, file := range files {
		if err := addCerts(pool, file); err != nil {
			return nil, err
		}
	}
	return pool, nil
}

// SystemPool returns the certificates of a file in PEM form, added to those that the
// system trusts.
func SystemPool(file string) (*x509.CertPool, error) {
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool() // a system without any
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

// ClientTLS returns a client's TLS configuration: the authorities it trusts, and its
// certificate with the key. Each file may be "": then the client trusts the system's
// authorities, and shows no certificate.
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
