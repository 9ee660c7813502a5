package edge_test

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"example.org/slipway/oci"
	"example.org/slipway/registry/server/edge"
)

func TestSiteKnows(t *testing.T) {
	s := edge.NewSite("https://Registry.Example.com:8443/x", []string{"node1", "cache.test."}, nil)
	for host, want := range map[string]bool{
		"": true, "localhost": true, "LOCALHOST:5000": true, "a.localhost:1": true, "localhost.": true,
		"127.0.0.1:5000": true, "[::1]:5000": true, "[fe80::1%25eth0]:1": true, "192.0.2.1": true,
		"registry.example.com": true, "registry.example.com:1": true, "node1:5000": true, "cache.test": true, "CACHE.test.:1": true,
		"evil.example": false, "localhost.evil.example": false, "evil-localhost": false, "127.0.0.1.evil.example": false, "127.1": false,
		"x.registry.example.com": false, "registry.example.com.evil.example": false, "node1.evil.example:5000": false, "evil@127.0.0.1": false,
		"*": false, "[::1].evil.example": false,
	} {
		if got := s.Knows(host); got != want {
			t.Errorf("%q: got %t, want %t", host, got, want)
		}
	}
	if !edge.NewSite("", []string{edge.AnyName}, nil).Knows("evil.example") {
		t.Error("the name for every name does not admit one")
	}
}

// TestSiteOrigins checks that an invalid origin admits no page.
func TestSiteOrigins(t *testing.T) {
	s := edge.NewSite("https://own.test/", nil, []string{"*", "null", "", "https://ui.test", "https://path.test/x"})
	for origin, want := range map[string]bool{"https://own.test": true, "https://ui.test": true, "http://ui.test": false, "null": false,
		"*": false, "https://evil.example": false, "http://here.test": true, "https://ui.test.evil.example": false} {
		r := httptest.NewRequest("DELETE", "http://here.test/v2/", nil)
		r.Header.Set("Origin", origin)
		err := s.Check(r)
		var wire *oci.Error
		if (err == nil) != want || err != nil && (!errors.As(err, &wire) || wire.HTTPStatus() != http.StatusForbidden) {
			t.Errorf("a page of %s: got %v, want it taken: %t", origin, err, want)
		}
	}
}

// TestNeedsHost checks that host names matter only where a browser could have been led here.
func TestNeedsHost(t *testing.T) {
	loopback, network, unix := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}, &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1)}, &net.UnixAddr{}
	for _, c := range []struct {
		local  net.Addr
		method string
		origin string
		tls    bool
		want   bool
	}{
		{loopback, "GET", "", false, true}, {loopback, "PUT", "", false, true}, {loopback, "PUT", "http://x", true, false},
		{&net.TCPAddr{IP: net.IPv6loopback}, "GET", "", false, true},
		{network, "GET", "", false, false}, {network, "GET", "http://x", false, false}, {network, "PUT", "", false, false},
		{network, "DELETE", "http://x", false, true}, {unix, "GET", "", false, false}, {nil, "GET", "", false, false},
	} {
		r := httptest.NewRequest(c.method, "http://x/", nil)
		if c.local != nil {
			r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, c.local))
		}
		if c.origin != "" {
			r.Header.Set("Origin", c.origin)
		}
		if c.tls {
			r.TLS = &tls.ConnectionState{}
		}
		if got := edge.NeedsHost(r); got != c.want {
			t.Errorf("%+v: got %t", c, got)
		}
	}
}
