package edge

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"example.org/slipway/oci"
)

// Site distinguishes pages of this server from pages of other sites. A browser lets the
// pages of any site send requests to any server, with the credentials that the browser
// has for that server. A site can also make its own name resolve to any address. Docker,
// containerd and other clients that are not browsers are never taken for another site.
type Site struct {
	origins *http.CrossOriginProtection
	names   map[string]bool
	any     bool
}

// AnyName makes a Site admit every name, if it is among the names of the Site.
const AnyName = "*"

// NewSite returns the Site of a server. The server's pages are at the address own, which
// is scheme://host or empty. The server is also reached under names, which are host names
// without a port. Pages of origins, each scheme://host, may change things here. An
// element of origins that is not an origin, such as "*" or "null", has no effect.
func NewSite(own string, names, origins []string) *Site {
	s := &Site{origins: http.NewCrossOriginProtection(), names: map[string]bool{}}
	for _, origin := range append([]string{own}, origins...) {
		u, err := url.Parse(strings.TrimSpace(origin))
		if err == nil && u.Host != "" {
			// AddTrustedOrigin refuses what is not an origin.
			_ = s.origins.AddTrustedOrigin(u.Scheme + "://" + strings.ToLower(u.Host))
		}
	}
	if u, err := url.Parse(own); err == nil {
		names = append([]string{u.Hostname()}, names...)
	}
	for _, name := range names {
		s.names[plainName(name)] = true
		s.any = s.any || name == AnyName
	}
	return s
}

// Check returns an error for a request by which a page of another site would change
// something. It looks at Sec-Fetch-Site and Origin. It does not look at credentials,
// because a page can make the browser add them. The error is DENIED.
func (s *Site) Check(r *http.Request) error {
	if s.origins.Check(r) == nil {
		return nil
	}
	from := r.Header.Get("Origin")
	if from == "" {
		from = "another site"
	}
	return &oci.Error{Code: oci.CodeDenied, Message: fmt.Sprintf("a page of %.200s may not change anything here; "+
		"if it is to, name its origin in http.headers: Access-Control-Allow-Origin", from)}
}

// CheckHost returns an error if host is not known to be this server. It is for requests
// for which nobody has to prove who they are. The error is DENIED.
func (s *Site) CheckHost(host string) error {
	if s.Knows(host) {
		return nil
	}
	return &oci.Error{Code: oci.CodeDenied, Status: http.StatusMisdirectedRequest, Message: fmt.Sprintf("%.200q is not known as a name of this server, "+
		"which asks nobody for a password; if it is one, add it to http.names", host)}
}

// Knows reports whether host, with or without a port, is an address, localhost, or one of
// the server's names. Nobody can make one of these names stand for another server.
func (s *Site) Knows(host string) bool {
	if s.any || host == "" { // no browser leaves the host out
		return true
	}
	name := plainName((&url.URL{Host: host}).Hostname())
	_, err := netip.ParseAddr(name)
	return err == nil || name == "localhost" || strings.HasSuffix(name, ".localhost") || s.names[name]
}

// plainName returns a name in the form in which names are compared.
func plainName(name string) string { return strings.ToLower(strings.TrimSuffix(name, ".")) }

// NeedsHost reports whether the Host header must be checked for a request. Only the Host
// header shows whether a request comes from a page whose site made its own name resolve
// to this server. It must be checked if the client may be a browser on this machine, or
// if the request says that a page sent it and may change something. Over TLS it need not
// be checked, because the browser compares the name with the certificate.
func NeedsHost(r *http.Request) bool {
	if r.TLS != nil {
		return false
	}
	addr, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	return ok && addr.IP.IsLoopback() || pageChanges(r)
}

// pageChanges reports whether a request says that a page sent it, and may change
// something.
func pageChanges(r *http.Request) bool {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		return false
	}
	return r.Header.Get("Origin") != "" || r.Header.Get("Sec-Fetch-Site") != ""
}
