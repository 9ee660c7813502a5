package edge

import (
	"net/http"
	"slices"
	"strings"
)

// CORS lets pages of other origins use the registry from a browser. Its policy comes from
// the configured Access-Control headers.
type CORS struct {
	// origins are the allowed origins; "*" allows any.
	origins []string
	// methods are the methods that http.headers allows to other origins.
	methods []string
	// fixed are the headers of every answer, except those that depend on the origin.
	fixed http.Header
}

// exposed are the additional headers of answers that pages may read. A few others are
// always allowed. exposed is used unless Access-Control-Expose-Headers is configured.
const exposed = "Docker-Content-Digest, Docker-Distribution-Api-Version, Docker-Upload-UUID, Etag, Link, Location, " +
	"OCI-Chunk-Min-Length, OCI-Filters-Applied, OCI-Subject, Range, Retry-After, WWW-Authenticate"

// sendable are the additional headers that pages may send with requests. A few others are
// always allowed. sendable is used unless Access-Control-Allow-Headers is configured. It
// includes Accept, because a list of manifest types is too long to be always allowed.
const sendable = "Accept, Authorization, Cache-Control, Content-Type, If-None-Match, Range"

const (
	allowOrigin  = "Access-Control-Allow-Origin"
	allowMethods = "Access-Control-Allow-Methods"
	allowHeaders = "Access-Control-Allow-Headers"
)

// NewCORS returns nil if the headers do not allow any other origin.
func NewCORS(h http.Header) *CORS {
	c := &CORS{origins: listed(h[allowOrigin]), methods: listed(h[allowMethods]), fixed: http.Header{}}
	if len(c.origins) == 0 {
		return nil
	}
	if len(c.methods) == 0 {
		c.methods = []string{http.MethodGet, http.MethodHead}
	}
	if h.Get("Access-Control-Expose-Headers") == "" {
		c.fixed.Set("Access-Control-Expose-Headers", exposed)
	}
	// A browser needs a list in one header. It understands several headers of the same
	// name in some cases and not in others.
	for k, v := range h {
		if strings.HasPrefix(k, "Access-Control-") {
			c.fixed[k] = []string{strings.Join(listed(v), ", ")}
		}
	}
	c.fixed.Del(allowOrigin)
	if !slices.Contains(c.origins, "*") {
		c.fixed["Vary"] = append(slices.Clone(h["Vary"]), "Origin")
	}
	return c
}

// listed returns the elements of headers that contain lists.
func listed(values []string) []string {
	var list []string
	for _, v := range values {
		for e := range strings.SplitSeq(v, ",") {
			if e = strings.TrimSpace(e); e != "" {
				list = append(list, e)
			}
		}
	}
	return list
}

// AddTo adds the headers to an answer to a request from this origin. An answer names at
// most one origin. If only one origin is configured, all answers name it.
func (c *CORS) AddTo(h http.Header, origin string) {
	for k, v := range c.fixed {
		h[k] = v
	}
	switch {
	case slices.Contains(c.origins, "*"):
		h.Set(allowOrigin, "*")
	case len(c.origins) == 1:
		h.Set(allowOrigin, c.origins[0])
	case origin != "" && slices.Contains(c.origins, origin):
		h.Set(allowOrigin, origin)
	default:
		h.Del(allowOrigin)
	}
}

// Preflight answers an OPTIONS request, with which a browser asks whether a page of
// another origin may send a request. The browser sends no credentials with it. has are
// the methods of the path, or nil if they are not known.
func (c *CORS) Preflight(w http.ResponseWriter, has []string) {
	h := w.Header()
	allow := c.methods
	if has != nil {
		allow = slices.DeleteFunc(slices.Clone(allow), func(m string) bool { return m != http.MethodOptions && !slices.Contains(has, m) })
		h.Set("Allow", strings.Join(append(slices.Clone(has), http.MethodOptions), ", "))
	}
	h.Set(allowMethods, strings.Join(allow, ", "))
	if h.Get(allowHeaders) == "" {
		h.Set(allowHeaders, sendable)
	}
	w.WriteHeader(http.StatusNoContent)
}

// Asks reports whether Preflight has to answer the request. c may be nil.
func (c *CORS) Asks(r *http.Request) bool { return c != nil && r.Method == http.MethodOptions }
