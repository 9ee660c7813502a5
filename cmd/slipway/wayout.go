package main

import (
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"syscall"
)

// wayOut adds to the error of a command what can be done about it, where the error is of
// the network and does not tell itself.
func wayOut(err error) string {
	var op *net.OpError
	var host *net.DNSError
	var unknown x509.UnknownAuthorityError
	switch {
	case errors.Is(err, http.ErrSchemeMismatch):
		return "; it speaks HTTP: write the address with http://, or use --plain-http where the command has it"
	case errors.As(err, &unknown):
		return "; the certificate is of an authority that this machine does not know: add that to the system's, or use --insecure where the command has it"
	case errors.Is(err, syscall.EADDRINUSE):
		return "; another program, perhaps another server, uses the address: end it, or name another address"
	case errors.As(err, &host) && host.IsNotFound:
		return "; check the name of the host, and write images as REGISTRY/REPOSITORY:TAG"
	case errors.Is(err, syscall.ECONNREFUSED) && errors.As(err, &op) && op.Net == "tcp":
		return "; nothing listens there: start the registry (slipway serve), or name its address"
	}
	return ""
}
