package wrongserver

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"syscall"
)

// Advice returns what a user can do about a network error. The text continues that of the
// error. It is "" if the error says itself what to do.
func Advice(err error) string {
	var op *net.OpError
	var host *net.DNSError
	var unknown x509.UnknownAuthorityError
	var other x509.HostnameError
	var record tls.RecordHeaderError
	switch {
	case errors.Is(err, http.ErrSchemeMismatch):
		return "; it speaks HTTP: write the address with http://, or use --plain-http where the command has it"
	case errors.Is(err, ErrNeedsTLS):
		return "; it speaks TLS: write the address with https://, or leave out --plain-http"
	case errors.As(err, &unknown):
		return "; the certificate is of an authority that this machine does not know: add that to the system's, or use --insecure where the command has it"
	case errors.As(err, &other):
		return "; the certificate is of another host: use a name that it has, or --insecure where the command has it"
	case errors.As(err, &record), errors.As(err, &op) && op.Op == "remote error":
		return "; it does not speak TLS as it was spoken to: check the port, and whether it is http:// or wants a client certificate"
	case errors.Is(err, syscall.EADDRINUSE):
		return "; another program, perhaps another server, uses the address: end it, or name another address"
	case errors.As(err, &host) && host.IsNotFound:
		return "; check the name of the host, and write images as REGISTRY/REPOSITORY:TAG"
	case errors.Is(err, syscall.ECONNREFUSED) && errors.As(err, &op) && op.Net == "tcp":
		return "; nothing listens there: start the registry (slipway serve), or name its address"
	case errors.As(err, &op) && op.Op == "dial" && op.Timeout():
		return "; nothing answers there: check the address, and whether a firewall is before it"
	case (errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH)) && errors.As(err, &op):
		return "; there is no way to that address from this machine: check the address, the network and whether a proxy is needed"
	}
	return ""
}
