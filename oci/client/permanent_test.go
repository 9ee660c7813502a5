package client_test

import (
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"example.org/slipway/oci/client"
	"example.org/slipway/oci/client/wrongserver"
)

// roundTrip is a transport made of a function.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

func dialError(errno syscall.Errno) error {
	return &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", errno)}
}

// closedPort returns an address at which nothing listens.
func closedPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// TestWhatIsPermanentIsSaidAtOnce checks that the client asks only once if the registry
// cannot be reached at its address or in the protocol of the URL. Errors that may pass
// are retried.
func TestWhatIsPermanentIsSaidAtOnce(t *testing.T) {
	ok := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	plain := httptest.NewServer(ok)
	defer plain.Close()
	secure := httptest.NewTLSServer(ok)
	defer secure.Close()
	wantsCert := httptest.NewUnstartedServer(ok)
	wantsCert.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert, MaxVersion: tls.VersionTLS12}
	wantsCert.StartTLS()
	defer wantsCert.Close()
	trusting := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	defer trusting.CloseIdleConnections()
	fails := func(err error) http.RoundTripper {
		return roundTrip(func(*http.Request) (*http.Response, error) { return nil, err })
	}
	host := func(s *httptest.Server) string { u, _ := url.Parse(s.URL); return u.Host }
	for name, c := range map[string]struct {
		url   string
		via   http.RoundTripper
		again bool
	}{
		"refused":                 {"http://" + closedPort(t), http.DefaultTransport, false},
		"no route to the host":    {"http://r.test", fails(dialError(syscall.EHOSTUNREACH)), false},
		"no route to the network": {"http://r.test", fails(dialError(syscall.ENETUNREACH)), false},
		"unknown host":            {"http://r.test", fails(&net.DNSError{Err: "no such host", Name: "r.test", IsNotFound: true}), false},
		"https to http":           {"https://" + host(plain), http.DefaultTransport, false},
		"http to https":           {"http://" + host(secure), http.DefaultTransport, false},
		"unknown authority":       {secure.URL, http.DefaultTransport, false},
		"a certificate is wanted": {wantsCert.URL, trusting, false},
		"the resolver is away":    {"http://r.test", fails(&net.DNSError{Err: "server misbehaving", Name: "r.test", IsTemporary: true}), true},
		"reset":                   {"http://r.test", fails(&net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}), true},
		"dialling takes too long": {"http://r.test", fails(&net.OpError{Op: "dial", Net: "tcp", Err: os.ErrDeadlineExceeded}), true},
	} {
		var tries atomic.Int64
		r, err := client.New(c.url, &client.Options{RetryWait: time.Millisecond, Transport: roundTrip(func(req *http.Request) (*http.Response, error) {
			tries.Add(1)
			return c.via.RoundTrip(req)
		})})
		if err != nil {
			t.Fatal(err)
		}
		err = r.Ping(t.Context())
		if err == nil || (tries.Load() > 1) != c.again {
			t.Errorf("%s: asked %d times, %v; asked again is to be %v", name, tries.Load(), err, c.again)
		}
		if name == "http to https" && !errors.Is(err, wrongserver.ErrNeedsTLS) {
			t.Errorf("%s: the error does not tell that it speaks TLS: %v", name, err)
		}
	}
}

// TestARegistryThatAnsweredIsWaitedFor checks that the client retries when a registry
// that has answered before is gone, since it may come back.
func TestARegistryThatAnsweredIsWaitedFor(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer srv.Close()
	tries := 0
	r, err := client.New(srv.URL, &client.Options{RetryWait: time.Millisecond, Transport: roundTrip(func(req *http.Request) (*http.Response, error) {
		if tries++; tries == 2 || tries == 3 { // the registry is being restarted
			return nil, dialError(syscall.ECONNREFUSED)
		}
		return http.DefaultTransport.RoundTrip(req)
	})})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := r.Ping(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if tries != 4 {
		t.Errorf("asked %d times, want 4", tries)
	}
}
