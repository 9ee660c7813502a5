package client

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"syscall"
)

// ErrNeedsTLS is that of a registry which was spoken to over HTTP and speaks TLS.
var ErrNeedsTLS = errors.New("it speaks TLS")

// Unreachable reports whether an error says that nobody answers at an address, or not in
// the protocol that was spoken: asking again does not help, unless the server is about to
// start.
func Unreachable(err error) bool {
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		for _, no := range []error{syscall.ECONNREFUSED, syscall.EHOSTUNREACH, syscall.ENETUNREACH} {
			if errors.Is(err, no) {
				return true
			}
		}
	}
	return misdirected(err)
}

// misdirected reports whether an error says that the address is wrong, or the server's
// certificate or protocol is: no server that starts later changes that.
func misdirected(err error) bool {
	var cert *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	var alert *net.OpError // crypto/tls has this one for what the other side complains of
	var dns *net.DNSError
	switch {
	case errors.As(err, &cert), errors.As(err, &record), errors.Is(err, http.ErrSchemeMismatch), errors.Is(err, ErrNeedsTLS):
		return true
	case errors.As(err, &alert) && alert.Op == "remote error":
		return true
	}
	return errors.As(err, &dns) && dns.IsNotFound
}

// needsTLS marks the error of a connection without TLS on which the answer was a message of
// TLS. The package net/http has no type for it.
func needsTLS(err error) error {
	if strings.Contains(err.Error(), `malformed HTTP response "\x15\x03`) {
		return fmt.Errorf("%w: %w", ErrNeedsTLS, err)
	}
	return err
}

// saysNeedsTLS reports whether an answer is that of a server to a request without TLS, as
// Go, Apache and nginx write it.
func saysNeedsTLS(scheme string, status int, body []byte) bool {
	if scheme != "http" || status != http.StatusBadRequest {
		return false
	}
	for _, text := range []string{"HTTP request to an HTTPS server", "plain HTTP request was sent to HTTPS port", "speaking plain HTTP to an SSL-enabled server port"} {
		if bytes.Contains(body, []byte(text)) {
			return true
		}
	}
	return false
}
