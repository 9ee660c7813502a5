package edge

import (
	"net/http"
	"slices"
	"strings"
)

// CORS lets pages of other origins use the registry from a browser. It takes its
// policy from the Access-Control headers that are configured.
type CORS struct {
	// origins that are allowed; "*" is any.
	origins []string
	// methods that http.headers allows to other origins.
	methods []string
	// fixed are the headers of every answer but those that depend on the origin.
	fixed http.Header
}

// exposed are the headers of answers that pages may read besides the few that they
// always may, unless Access-Control-Expose-Headers is configured.
const exposed = "Docker-Content-Digest, Docker-Distribution-Api-Version, Docker-Upload-UUID, Etag, Link, Location, " +
	"OCI-Chunk-Min-Length, OCI-Filters-Applied, OCI-Subject, Range, Retry-After, WWW-Authenticate"

// sendable are the headers of requests that pages may send besides the few that they
// always may, unless Access-Control-Allow-Headers is configured. A list of manifests'
// types in Accept is too long to be one of those few.
const sendable = "Accept, Authorization, Cache-Control, Content-Type, If-None-Match, Range"

const (
	allowOrigin  = "Access-Control-Allow-Origin"
	allowMethods = "Access-Control-Allow-Methods"
	allowHeaders = "Access-Control-Allow-Headers"
)

// NewCORS returns nil if the headers allow no other origin.
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
	// A browser wants a list as one value: of several headers of one name it
	// understands some and not others.
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

// listed returns the elements of headers that are lists.
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

// AddTo adds the headers of an answer to a request of this origin. An answer names
// one origin at most; a single one that is configured is named to everybody.
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

// Preflight answers OPTIONS, with which a browser asks whether a page of another
// origin may send a request. The browser sends no credentials with it. has are the
// methods of the path, nil if it is not known which.
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

// Asks reports whether Preflight is to answer the request. c may be nil.
func (c *CORS) Asks(r *http.Request) bool { return c != nil && r.Method == http.MethodOptions }
