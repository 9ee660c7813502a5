// Package wrongserver recognises errors that say that an address leads to no server, or to a
// server of another protocol.
package wrongserver

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"
)

// dialTimeout bounds how long a connection may take. A lost packet is sent again after one
// second and after three, so two may be lost; then the client asks again. The system alone
// tries for two minutes.
const dialTimeout = 5 * time.Second

// Dial connects to a server, and gives up after 5 s.
func Dial(ctx context.Context, network, address string) (net.Conn, error) {
	d := net.Dialer{Timeout: dialTimeout}
	return d.DialContext(ctx, network, address)
}

// ErrNeedsTLS is the error for a registry that expects TLS and was used over HTTP.
var ErrNeedsTLS = errors.New("it speaks TLS")

// Unreachable reports whether an error says that there is no server at an address, or
// that the server uses another protocol. A repetition does not help, unless the server is
// about to start.
func Unreachable(err error) bool {
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		for _, no := range []error{syscall.ECONNREFUSED, syscall.EHOSTUNREACH, syscall.ENETUNREACH} {
			if errors.Is(err, no) {
				return true
			}
		}
	}
	return Misdirected(err)
}

// Misdirected reports whether an error says that the address, or the server's certificate
// or protocol, is wrong. A server that starts later does not change that.
func Misdirected(err error) bool {
	var cert *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	var alert *net.OpError // crypto/tls uses this type for the peer's alerts
	var dns *net.DNSError
	switch {
	case errors.As(err, &cert), errors.As(err, &record), errors.Is(err, http.ErrSchemeMismatch), errors.Is(err, ErrNeedsTLS):
		return true
	case errors.As(err, &alert) && alert.Op == "remote error":
		return true
	}
	return errors.As(err, &dns) && dns.IsNotFound
}

// NeedsTLS wraps the error of a connection without TLS on which the server answered with
// a TLS message. Package net/http has no type for that error.
func NeedsTLS(err error) error {
	if strings.Contains(err.Error(), `malformed HTTP response "\x15\x03`) {
		return fmt.Errorf("%w: %w", ErrNeedsTLS, err)
	}
	return err
}

// SaysNeedsTLS reports whether an answer is what Go, Apache and nginx send for a request
// without TLS to a server with TLS.
func SaysNeedsTLS(scheme string, status int, body []byte) bool {
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
