package wrongserver_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

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
