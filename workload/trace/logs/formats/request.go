package formats

import (
	"net/url"
	"strings"
	"time"

	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/logs/internal/values"
)

// setRequest reads a request line into the record: the method, the target, which may
// have blanks, and the protocol, which may be missing.
func setRequest(request string, rec *trace.Record) error {
	method, uri, _ := strings.Cut(request, " ")
	proto := ""
	if i := strings.LastIndexByte(uri, ' '); i >= 0 {
		uri, proto = uri[:i], uri[i+1:]
	}
	if proto != "" && !strings.HasPrefix(proto, "HTTP/") {
		return notUnderstood("the protocol is %.40q", proto)
	}
	return setTarget(method, uri, proto, rec)
}

// setTarget sets what a client requested.
func setTarget(method, uri, proto string, rec *trace.Record) error {
	if !isToken(method) || uri == "" || uri == "-" {
		return notUnderstood("the request is %.60q, without a method or a URI", method+" "+uri)
	}
	rec.Method, rec.URI, rec.Proto = method, pathOf(uri), proto
	return nil
}

// isToken reports whether s can be a method: RFC 9110, section 5.6.2.
func isToken(s string) bool {
	if s == "" || len(s) > 40 {
		return false
	}
	for i := range len(s) {
		if c := s[i]; c <= ' ' || c >= 0x7f || strings.IndexByte(`"(),/:;<=>?@[\]{}`, c) >= 0 {
			return false
		}
	}
	return s != "-"
}

// pathOf returns the path and query of a request's target. A proxy writes the whole URL.
// Artifactory and Nexus have the registry's repositories below their own paths; there, the name of
// their repository becomes the first segment of the registry's repository. Any other registry may
// be below a path of a proxy, or have one of its own, which is left out.
func pathOf(uri string) string {
	if scheme, rest, ok := strings.Cut(uri, "://"); ok && !strings.ContainsAny(scheme, "/?") {
		i := strings.IndexAny(rest, "/?")
		if i < 0 {
			return "/"
		}
		uri = rest[i:]
	}
	for _, below := range []string{"/artifactory/api/docker/", "/api/docker/", "/repository/", "/nexus/repository/"} {
		rest, ok := strings.CutPrefix(uri, below)
		if !ok {
			continue
		}
		repo, rest, ok := strings.Cut(rest, "/v2/")
		if !ok || strings.ContainsAny(repo, "/?") {
			continue
		}
		if rest == "" || rest == "_catalog" || rest[0] == '?' {
			return "/v2/" + rest
		}
		return "/v2/" + repo + "/" + rest
	}
	if path, _, _ := strings.Cut(uri, "?"); !strings.HasPrefix(path, "/v2/") {
		if i := strings.Index(path, "/v2/"); i >= 0 {
			return uri[i:]
		}
	}
	return uri
}

// setAnswer sets the status and the size of the answer.
func setAnswer(status, size string, rec *trace.Record) error {
	var ok bool
	if rec.Status, ok = values.Status(status); !ok {
		return notUnderstood("the status is %.40q", status)
	}
	if rec.Written, ok = values.SizeOrNone(size); !ok {
		return notUnderstood("the size is %.40q", size)
	}
	rec.Duration = trace.Unknown
	answered(rec)
	return nil
}

// setReceived sets the size of what came with a request. If nothing came with the request that ends
// an upload, the content came before, and its size is unknown.
func setReceived(size string, rec *trace.Record) error {
	if size == "-1" {
		return nil
	}
	n, ok := values.SizeOrNone(size)
	if !ok {
		return notUnderstood("the size of the request is %.40q", size)
	}
	if rec.Written == trace.Unknown && n > 0 { // of an upload
		rec.Received = n
	}
	return nil
}

// ended sets the duration of a record whose time is the end of the request.
func ended(took string, unit time.Duration, rec *trace.Record) error {
	d, ok := values.Duration(took, unit)
	if !ok {
		return notUnderstood("the duration is %.40q", took)
	}
	rec.Duration, rec.Time = d, rec.Time.Add(-d)
	return nil
}

// answered corrects a record of a log that only has the size of the answer's body: what came with
// an upload is not known.
func answered(rec *trace.Record) {
	switch rec.Method {
	case "PUT", "PATCH", "POST":
		rec.Written = trace.Unknown
		rec.Digest = queryDigest(rec.URI)
	}
}

// queryDigest returns the digest in the query of the request that ends an upload.
func queryDigest(uri string) string {
	_, query, ok := strings.Cut(uri, "?")
	if !ok || !strings.Contains(query, "digest=") {
		return ""
	}
	q, err := url.ParseQuery(query)
	if err != nil {
		return ""
	}
	return q.Get("digest")
}

// notUnderstood returns the error for a line that cannot have the format.
func notUnderstood(format string, args ...any) error {
	return trace.BadLine.Errorf(format, args...)
}

// notRequest returns the error for a line that describes something else.
func notRequest(format string, args ...any) error {
	return trace.BadOther.Errorf(format, args...)
}
