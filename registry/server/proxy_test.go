package server_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"example.org/slipway/registry/auth"
	"example.org/slipway/registry/server"
	"example.org/slipway/workload/trace"
)

// addrLog collects the addresses of an access log.
type addrLog struct{ addrs []string }

func (l *addrLog) Write(r *trace.Record) { l.addrs = append(l.addrs, r.RemoteAddr) }

func prefixes(list ...string) (out []netip.Prefix) {
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func TestClientBehindProxies(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	trusted := prefixes("10.0.0.0/8", "192.0.2.1/32", "fd00::/8")
	for _, tc := range []struct {
		name, peer string
		unix       bool
		header     []string
		want       string
	}{
		{"a client without a proxy", "198.51.100.7:1234", false, nil, "198.51.100.7"},
		{"a client that pretends", "198.51.100.7:1234", false, []string{"203.0.113.1"}, "198.51.100.7"},
		{"one proxy", "10.1.2.3:1234", false, []string{"203.0.113.1"}, "203.0.113.1"},
		{"a client that pretends to a proxy", "10.1.2.3:1234", false, []string{"8.8.8.8, 203.0.113.1"}, "203.0.113.1"},
		{"two proxies", "10.1.2.3:1234", false, []string{"8.8.8.8, 203.0.113.1 ,192.0.2.1"}, "203.0.113.1"},
		{"several lines", "10.1.2.3:1234", false, []string{"8.8.8.8", "203.0.113.1", "192.0.2.1, 10.9.9.9"}, "203.0.113.1"},
		{"only proxies", "10.1.2.3:1234", false, []string{"10.0.0.7, 192.0.2.1"}, "10.0.0.7"},
		{"with a port", "10.1.2.3:1234", false, []string{"203.0.113.1:5555"}, "203.0.113.1"},
		{"IPv6", "[fd00::1]:1234", false, []string{"2001:db8::5"}, "2001:db8::5"},
		{"IPv6 in brackets", "[fd00::1]:1234", false, []string{"[2001:db8::5]"}, "2001:db8::5"},
		{"IPv6 with a port", "[fd00::1]:1234", false, []string{"[2001:db8::5]:99"}, "2001:db8::5"},
		{"IPv4 within IPv6", "[::ffff:10.1.2.3]:1234", false, []string{"::ffff:203.0.113.1, ::ffff:192.0.2.1"}, "203.0.113.1"},
		{"a proxy that names nobody", "10.1.2.3:1234", false, nil, "10.1.2.3"},
		{"a proxy that hides its client", "10.1.2.3:1234", false, []string{"8.8.8.8, unknown"}, "10.1.2.3"},
		{"a hidden client behind two", "10.1.2.3:1234", false, []string{"8.8.8.8, unknown, 192.0.2.1"}, "192.0.2.1"},
		{"empty", "10.1.2.3:1234", false, []string{""}, "10.1.2.3"},
		{"a unix socket that is trusted", "@", true, []string{"203.0.113.1"}, "203.0.113.1"},
		{"a unix socket that is not", "@", false, []string{"203.0.113.1"}, "@"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			log := new(addrLog)
			b := newBed(t, setup{server: server.Options{TrustedProxies: trusted, TrustUnixPeers: tc.unix, AccessLog: log}})
			r := httptest.NewRequest("GET", "/v2/", nil)
			r.RemoteAddr = tc.peer
			r.Header["X-Forwarded-For"] = tc.header
			b.srv.ServeHTTP(httptest.NewRecorder(), r)
			if len(log.addrs) != 1 || log.addrs[0] != tc.want {
				t.Errorf("from %s with X-Forwarded-For %q: got the client %q, want %q", tc.peer, tc.header, log.addrs, tc.want)
			}
			if r.RemoteAddr != tc.peer {
				t.Errorf("the request of net/http was changed to %s", r.RemoteAddr)
			}
		})
	}
}

// throughProxy sends a request as a client behind the proxy 10.1.2.3 would.
func throughProxy(h http.Handler, client, target string, basic ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest("GET", target, nil)
	r.RemoteAddr = "10.1.2.3:1234"
	r.Header.Set("X-Forwarded-For", client)
	if len(basic) == 2 {
		r.SetBasicAuth(basic[0], basic[1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// auditAddrs collects the addresses of an audit log.
type auditAddrs struct{ lines []string }

func (a *auditAddrs) Record(e auth.Event) { a.lines = append(a.lines, e.Event+" "+e.Addr) }

// TestLimitsBehindProxy checks that a client behind a proxy does not use up the limit of another
// one behind the same proxy.
func TestLimitsBehindProxy(t *testing.T) {
	audit := new(auditAddrs)
	b := newBed(t, setup{server: server.Options{TrustedProxies: prefixes("10.0.0.0/8"), RequestsPerSecond: 0.01, Burst: 2, Audit: audit}})
	for i, tc := range []struct {
		client string
		want   int
	}{{"203.0.113.1", 200}, {"203.0.113.1", 200}, {"203.0.113.1", 429}, {"203.0.113.2", 200}, {"2001:db8::1", 200}, {"2001:db8::2", 200}, {"2001:db8::3", 429}} {
		if got := throughProxy(b.srv, tc.client, "/v2/").Code; got != tc.want {
			t.Errorf("request %d, of %s: got %d, want %d", i, tc.client, got, tc.want)
		}
	}
	r := httptest.NewRequest("POST", "/v2/a/blobs/uploads/?digest=sha256:2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881", strings.NewReader("x"))
	r.RemoteAddr = "10.1.2.3:1234"
	r.Header.Set("X-Forwarded-For", "203.0.113.3")
	w := httptest.NewRecorder()
	b.srv.ServeHTTP(w, r)
	if w.Code != 201 || len(audit.lines) != 1 || audit.lines[0] != "push 203.0.113.3" {
		t.Errorf("push: %d, audit log %q", w.Code, audit.lines)
	}
}

// TestLoginsBehindProxy checks that wrong passwords count against the client and not the proxy.
func TestLoginsBehindProxy(t *testing.T) {
	off := false
	a := newAuth(t, auth.Config{Token: &auth.TokenConfig{Builtin: &off}, MaxFailuresPerMinute: 1})
	b := newBed(t, setup{server: server.Options{TrustedProxies: prefixes("10.0.0.0/8"), Auth: a}})
	for i, tc := range []struct {
		client, password string
		want             int
	}{{"203.0.113.1", "wrong", 401}, {"203.0.113.1", "alice's password", 429}, {"203.0.113.2", "alice's password", 200}} {
		w := throughProxy(b.srv, tc.client, "/v2/", "alice", tc.password)
		if w.Code != tc.want {
			t.Errorf("login %d, of %s: got %d, want %d", i, tc.client, w.Code, tc.want)
		}
	}
}

// FuzzForwardedFor checks that a client is counted under an address whatever it sends through a
// trusted proxy. It can never choose that address if the proxy wrote another.
func FuzzForwardedFor(f *testing.F) {
	for _, s := range []string{"", "unknown", "1.2.3.4", "[::1]:80", ",,", "1.2.3.4,", "fe80::1%eth0", " 10.0.0.1\t, x"} {
		f.Add(s)
	}
	log := new(addrLog)
	h := server.New(nil, &server.Options{TrustedProxies: prefixes("10.0.0.0/8"), AccessLog: log})
	f.Fuzz(func(t *testing.T, sent string) {
		for appended, want := range map[string]string{sent + ", 203.0.113.1": "203.0.113.1", sent: ""} {
			log.addrs = nil
			throughProxy(h, appended, "/")
			got := log.addrs[0]
			if want != "" && got != want {
				t.Errorf("X-Forwarded-For %q: got %q, want %q", appended, got, want)
			}
			if a, err := netip.ParseAddr(got); err != nil || a.Zone() != "" {
				b, _ := json.Marshal(appended)
				t.Errorf("X-Forwarded-For %s: %q is no address", b, got)
			}
		}
	})
}

// TestOriginBehindProxy checks what a client sees as its registry's address through
// proxies with different habits. The server must use only the headers of trusted proxies,
// and only those that they set.
func TestOriginBehindProxy(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	const proxy, stranger = "10.1.2.3:1234", "198.51.100.7:1234"
	for _, tc := range []struct {
		name, peer string
		headers    []string
		want       string
	}{
		{"nothing", proxy, nil, "http://registry.test"},
		{"a scheme", proxy, []string{"X-Forwarded-Proto: https"}, "https://registry.test"},
		{"a chain", proxy, []string{"X-Forwarded-Proto: https,http"}, "https://registry.test"},
		{"a chain without TLS in front", proxy, []string{"X-Forwarded-Proto: http, https"}, "http://registry.test"},
		{"a chain of lines", proxy, []string{"X-Forwarded-Proto: https", "X-Forwarded-Proto: http"}, "https://registry.test"},
		{"capitals", proxy, []string{"X-Forwarded-Proto: HTTPS"}, "https://registry.test"},
		{"another scheme", proxy, []string{"X-Forwarded-Proto: javascript"}, "http://registry.test"},
		{"a host", proxy, []string{"X-Forwarded-Host: r.example"}, "http://r.example"},
		{"a host with a port", proxy, []string{"X-Forwarded-Host: r.example:8443", "X-Forwarded-Proto: https"}, "https://r.example:8443"},
		{"a list of hosts", proxy, []string{"X-Forwarded-Host: r.example, inner:5000"}, "http://r.example"},
		{"IPv6", proxy, []string{"X-Forwarded-Host: [2001:db8::1]:5000"}, "http://[2001:db8::1]:5000"},
		{"no host", proxy, []string{"X-Forwarded-Host: "}, "http://registry.test"},
		{"a host that is a path", proxy, []string{"X-Forwarded-Host: r.example/x"}, "http://registry.test"},
		{"a host with a user", proxy, []string{"X-Forwarded-Host: a@r.example"}, "http://registry.test"},
		{"a host with a quote", proxy, []string{`X-Forwarded-Host: r".example`}, "http://registry.test"},
		{"a host with a malformed port", proxy, []string{"X-Forwarded-Host: r.example:x"}, "http://registry.test"},
		{"half an address", proxy, []string{"X-Forwarded-Host: [2001:db8::1"}, "http://registry.test"},
		{"Forwarded", proxy, []string{`Forwarded: for=192.0.2.60;Proto=https;host="r.example:8443";by=203.0.113.43, for=10.0.0.1;proto=http;host=inner`}, "https://r.example:8443"},
		{"Forwarded, IPv6", proxy, []string{`Forwarded: for="[2001:db8:cafe::17]:4711";host="[2001:db8::1]:5000"`}, "http://[2001:db8::1]:5000"},
		{"Forwarded, quotes with separators", proxy, []string{`Forwarded: for="_a,;b";proto=https`}, "https://registry.test"},
		{"Forwarded, malformed", proxy, []string{`Forwarded: host="r.example`, "Forwarded: proto"}, "http://r.example"},
		{"Forwarded beside X-Forwarded", proxy, []string{"Forwarded: proto=http;host=other", "X-Forwarded-Proto: https", "X-Forwarded-Host: r.example"}, "https://r.example"},
		{"a stranger", stranger, []string{"X-Forwarded-Proto: https,http", "X-Forwarded-Host: r.example", "Forwarded: proto=https;host=r.example"}, "http://registry.test"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			yes := true
			a := newAuth(t, auth.Config{Token: &auth.TokenConfig{Builtin: &yes}})
			b := newBed(t, setup{server: server.Options{TrustedProxies: prefixes("10.0.0.0/8"), Auth: a}})
			r := httptest.NewRequest("GET", "http://registry.test/v2/", nil)
			r.RemoteAddr = tc.peer
			for _, line := range tc.headers {
				name, value, _ := strings.Cut(line, ": ")
				r.Header.Add(name, value)
			}
			before := r.Clone(t.Context())
			w := httptest.NewRecorder()
			b.srv.ServeHTTP(w, r)
			if got := w.Header().Get("Www-Authenticate"); !strings.HasPrefix(got, `Bearer realm="`+tc.want+`/token"`) {
				t.Errorf("%q: got %s, want the realm %s/token", tc.headers, got, tc.want)
			}
			if r.Host != before.Host || len(r.Header) != len(before.Header) {
				t.Errorf("the request of net/http was changed to %s, %v", r.Host, r.Header)
			}
		})
	}
}

// FuzzForwardedOrigin checks that the realm of a challenge is always a URL of a host, whatever a
// proxy passes on.
func FuzzForwardedOrigin(f *testing.F) {
	f.Add("https,http", "r.example:8443", `for=1.2.3.4;proto=https;host="[::1]:5000"`)
	f.Add("", "a b", `host="x`)
	f.Add("", "r.example::8443", "host=r.example:")
	var seen *http.Request
	h := server.New(nil, &server.Options{TrustedProxies: prefixes("10.0.0.0/8"), Web: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen = r }),
		IsWeb: func(string) bool { return true }})
	f.Fuzz(func(t *testing.T, proto, host, forwarded string) {
		r := httptest.NewRequest("GET", "http://registry.test/ui/", nil)
		r.RemoteAddr = "10.1.2.3:1234"
		r.Header["X-Forwarded-Proto"], r.Header["X-Forwarded-Host"], r.Header["Forwarded"] = []string{proto}, []string{host}, []string{forwarded}
		h.ServeHTTP(httptest.NewRecorder(), r)
		u, err := url.Parse("http://" + seen.Host + "/")
		if err != nil || u.Host != seen.Host || u.Hostname() == "" {
			t.Errorf("%q, %q: the host is %q", host, forwarded, seen.Host)
		}
		if list := seen.Header["X-Forwarded-Proto"]; len(list) > 1 || len(list) == 1 && list[0] != "http" && list[0] != "https" && list[0] != proto {
			t.Errorf("%q, %q: the scheme is %q", proto, forwarded, list)
		}
	})
}
