package web

import "net/http"

// policy is the content security policy of every page. It allows nothing from elsewhere,
// no inline script or style, no frame around the page, and no form to another site.
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

// ownForm refuses a POST that a page of another site sent.
func (q *request) ownForm() error {
	if err := q.h.opts.Site.Check(q.r); err != nil {
		return &problem{status: http.StatusForbidden, text: "This form was sent by another site. Open the page here and try again.", err: err}
	}
	if q.h.access == nil && !q.h.opts.Site.Knows(q.r.Host) {
		return &problem{status: http.StatusForbidden, text: "Without users, changes are taken under an address, localhost, or a name in http.host or http.names only."}
	}
	return nil
}
