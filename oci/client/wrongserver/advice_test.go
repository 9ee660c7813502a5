package wrongserver_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"example.org/slipway/oci/client/wrongserver"
)

// TestAdvice makes real connections that fail, and one that does not.
func TestAdvice(t *testing.T) {
	t.Parallel()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	plain, tls := httptest.NewServer(http.NotFoundHandler()), httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(plain.Close)
	t.Cleanup(tls.Close)
	for url, want := range map[string]string{
		"http://" + closed.Addr().String():               "nothing listens there",
		strings.Replace(plain.URL, "http:", "https:", 1): "it speaks HTTP",
		tls.URL:                 "an authority that this machine does not know",
		"http://nosuch.invalid": "check the name of the host",
	} {
		req, err := http.NewRequestWithContext(t.Context(), "GET", url, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err = http.DefaultClient.Do(req); err == nil {
			t.Fatalf("%s answered", url)
		}
		if got := wrongserver.Advice(err); !strings.HasPrefix(got, "; ") || !strings.Contains(got, want) {
			t.Errorf("%v: the advice is %q, want %q", err, got, want)
		}
	}
	if got := wrongserver.Advice(context.Canceled); got != "" {
		t.Errorf("an error of another kind: %q", got)
	}
}

// TestDialGivesUp connects to a server that drops packets. Dial must give up long before the
// system does, and the advice must say what that means.
func TestDialGivesUp(t *testing.T) {
	t.Parallel()
	address := deaf(t)
	began := time.Now()
	_, err := wrongserver.Dial(context.Background(), "tcp", address)
	if err == nil {
		t.Fatal("it answered")
	}
	if took := time.Since(began); took < 3*time.Second || took > 30*time.Second {
		t.Errorf("it took %v: %v", took, err)
	}
	if !strings.Contains(wrongserver.Advice(err), "nothing answers there") {
		t.Errorf("%v: the advice is %q", err, wrongserver.Advice(err))
	}
}

// deaf returns the address of a socket whose queue of connections is full, so that the kernel drops
// further ones without an answer.
func deaf(t *testing.T) string {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", name.(*syscall.SockaddrInet4).Port)
	for range 20 {
		c, err := net.DialTimeout("tcp", address, 500*time.Millisecond)
		if err != nil {
			return address
		}
		t.Cleanup(func() { c.Close() })
	}
	t.Fatal("the queue does not get full")
	return ""
}
