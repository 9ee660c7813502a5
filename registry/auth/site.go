package auth

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"example.org/slipway/oci"
)

// Site tells this server from other sites. A browser lets the pages of any site
// send requests to any server, with the credentials that it has for that server,
// and a site can have its own name resolve to any address. Docker, containerd and
// other clients that are no browsers are never taken for another site.
type Site struct {
	origins *http.CrossOriginProtection
	names   map[string]bool
	any     bool
}

// AnyName among the names of a Site admits every name.
const AnyName = "*"

// NewSite returns the Site of a server whose pages are at own, scheme://host or
// empty, and which is also reached under names, host names without a port. Pages of
// origins, each scheme://host, may change things here; what is no origin, such as
// "*" or "null", lets nobody do so.
func NewSite(own string, names, origins []string) *Site {
	s := &Site{origins: http.NewCrossOriginProtection(), names: map[string]bool{}}
	for _, origin := range append([]string{own}, origins...) {
		u, err := url.Parse(strings.TrimSpace(origin))
		if err == nil && u.Host != "" {
			// It refuses what is no origin, which then stays another site.
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

// Check refuses a request by which a page of another site would change something.
// It goes by Sec-Fetch-Site and Origin, and not by credentials: a page can have the
// browser add those. The error is DENIED.
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

// CheckHost refuses a request, for which nobody has to prove who they are, to a host
// that is not known to be this server. The error is DENIED.
func (s *Site) CheckHost(host string) error {
	if s.Knows(host) {
		return nil
	}
	return &oci.Error{Code: oci.CodeDenied, Status: http.StatusMisdirectedRequest, Message: fmt.Sprintf("%.200q is not known as a name of this server, "+
		"which asks nobody for a password; if it is one, add it to http.names", host)}
}

// Knows reports whether host, with or without a port, is an address, localhost, or
// one of the server's names. Nobody can make one of these stand for another server.
func (s *Site) Knows(host string) bool {
	if s.any || host == "" { // no browser leaves it out
		return true
	}
	name := plainName((&url.URL{Host: host}).Hostname())
	_, err := netip.ParseAddr(name)
	return err == nil || name == "localhost" || strings.HasSuffix(name, ".localhost") || s.names[name]
}

// plainName returns the one form in which names are compared.
func plainName(name string) string { return strings.ToLower(strings.TrimSuffix(name, ".")) }

// NeedsHost reports whether nothing but the Host header tells a request from that of
// a page whose site had its own name resolve to this server: the page is in a browser
// on this machine, or the request says that it is of a page and changes something.
// Over TLS the browser compares names with the certificate.
func NeedsHost(r *http.Request) bool {
	if r.TLS != nil {
		return false
	}
	addr, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	return ok && addr.IP.IsLoopback() || pageChanges(r)
}

// pageChanges reports whether a request says that it is of a page, and may change
// something.
func pageChanges(r *http.Request) bool {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		return false
	}
	return r.Header.Get("Origin") != "" || r.Header.Get("Sec-Fetch-Site") != ""
}
