package web

import (
	"net/http"
	"net/netip"
	"net/url"
	"strings"
)

// policy is the content security policy of every page: nothing from elsewhere, no
// script or style within a page, no frame around it, no form to anybody else.
const policy = "default-src 'none'; img-src 'self' data:; style-src 'self'; script-src 'self'; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// secure sets the headers that protect a page.
func (h *Handler) secure(to http.Header) {
	to.Set("Content-Security-Policy", policy)
	to.Set("X-Content-Type-Options", "nosniff")
	to.Set("X-Frame-Options", "DENY")
	to.Set("Referrer-Policy", "same-origin")
	to.Set("Cross-Origin-Opener-Policy", "same-origin")
	to.Set("Cross-Origin-Resource-Policy", "same-origin")
	to.Set("Cache-Control", "no-store")
}

// crossOrigin tells forms of other sites from the page's own.
var crossOrigin = http.NewCrossOriginProtection()

// ownForm refuses a POST that another site's page sent.
func (q *request) ownForm() error {
	if err := crossOrigin.Check(q.r); err != nil {
		return &problem{status: http.StatusForbidden, text: "This form was sent by another site. Open the page here and try again.", err: err}
	}
	if q.h.access == nil && !q.ownHost() {
		return &problem{status: http.StatusForbidden, text: "Without users, changes are taken under an address, localhost, or the name in http.host only."}
	}
	return nil
}

// ownHost tells whether a request names this server in a way that no other site can take
// over by resolving its own name to this address.
func (q *request) ownHost() bool {
	host := (&url.URL{Host: q.r.Host}).Hostname()
	_, err := netip.ParseAddr(host)
	u, _ := url.Parse(q.h.opts.Host)
	return err == nil || host == "localhost" || strings.HasSuffix(host, ".localhost") || u != nil && u.Host != "" && host == u.Hostname()
}
