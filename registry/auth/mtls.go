package auth

import (
	"crypto/tls"
	"crypto/x509"
	"slices"
	"strings"
)

// mtls makes identities from verified client certificates.
type mtls struct{ subject string }

func newMTLS(c *MTLSConfig) (*mtls, error) {
	switch c.Subject {
	case "", "cn", "uri", "dns":
		return &mtls{c.Subject}, nil
	}
	return nil, mistake("auth.mtls.subject", "%q is not one of cn, uri, dns", c.Subject)
}

// takenPrefixes returns what the names of users of other methods begin with. A certificate
// with such a name would have the rights of somebody else.
func takenPrefixes() []string { return []string{oidcPrefix, directorySource + ":", RobotPrefix} }

// identity returns the identity of a connection. It returns nil if there is no verified
// certificate with a usable name.
func (m *mtls) identity(state *tls.ConnectionState) *Identity {
	if state == nil || len(state.VerifiedChains) == 0 || len(state.VerifiedChains[0]) == 0 {
		return nil
	}
	cert := state.VerifiedChains[0][0]
	name := m.name(cert)
	if !printable(name) || slices.ContainsFunc(takenPrefixes(), func(p string) bool { return strings.HasPrefix(name, p) }) {
		return nil
	}
	return &Identity{Name: name, Groups: groupsOf(groupsOfCertificates, cert.Subject.OrganizationalUnit), Method: MethodMTLS, Expires: cert.NotAfter}
}

func (m *mtls) name(cert *x509.Certificate) string {
	if cn := cert.Subject.CommonName; m.subject == "cn" || m.subject == "" && cn != "" {
		return cn
	}
	if len(cert.URIs) > 0 && m.subject != "dns" {
		return cert.URIs[0].String()
	}
	if len(cert.DNSNames) > 0 && m.subject != "uri" {
		return cert.DNSNames[0]
	}
	return ""
}
