package upstream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/oci/client"
	"example.org/slipway/oci/wire"
)

// Kind says what went wrong, in the terms in which a mirror decides what to do.
type Kind uint8

// The kinds of error.
const (
	// NotFound: the upstream says that the content does not exist.
	NotFound Kind = iota + 1
	// Denied: the upstream does not let us have it (401, 403).
	Denied
	// Busy: the upstream asks for a pause (429, or 503 with a Retry-After).
	Busy
	// Unavailable: there is no answer, or the answer is not a registry's. This covers
	// failed connections, TLS errors, timeouts, 5xx, web pages, and redirects that are
	// not followed.
	Unavailable
	// Wrong: the answer has another digest, length or type than the requested content.
	Wrong
)

// String returns the kind as used in metrics and logs.
func (k Kind) String() string {
	names := [...]string{"ok", "not_found", "denied", "busy", "unavailable", "wrong"}
	if int(k) < len(names) {
		return names[k]
	}
	return "unknown"
}

// Error says why an upstream did not deliver. It also wraps the [oci.Error] for our
// client (errors.As), which names the upstream.
type Error struct {
	// Kind is what callers branch on.
	Kind Kind
	// Upstream is the upstream's name.
	Upstream string
	// Status is the upstream's HTTP status, or 0 if it gave none.
	Status int
	// RetryAfter is how long to wait before asking again, for Busy and Unavailable. 0
	// means that asking again at once makes sense.
	RetryAfter time.Duration
	// Err is the cause, for logs. It may be nil.
	Err error

	what string   // what was requested: "manifest v1 of library/nginx"
	code oci.Code // the error code for what is not found
	slow bool     // it took a timeout to find out
	sure bool     // the endpoint itself says so, and works as it should
	back bool     // the client is a mirror, and is told that its question came back
}

// KindOf returns the kind of an upstream's error, or 0 for any other error.
func KindOf(err error) Kind {
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return 0
}

// IsBack reports whether an upstream does not have something and would have to ask this
// registry for it, because it mirrors this one. So what this registry has is not gone.
func IsBack(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Status == http.StatusLoopDetected
}

// Onward returns the error for a client that is a mirror itself. It tells this client if the
// question came back to a mirror, because the client may have the content itself.
func Onward(err error) error {
	var e *Error
	if !errors.As(err, &e) || !IsBack(err) {
		return err
	}
	onward := *e
	onward.back = true
	return &onward
}

// Error implements error.
func (e *Error) Error() string {
	s := "upstream " + e.Upstream + ": "
	if e.what != "" {
		s += e.what + ": "
	}
	s += e.Kind.String()
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap returns the error for the client, and the cause.
func (e *Error) Unwrap() []error {
	if e.Err == nil {
		return []error{e.wire()}
	}
	return []error{e.wire(), e.Err}
}

// wire returns the error for the client. It has what the client can understand and act
// upon, and does not reveal where requests to the upstream went.
func (e *Error) wire() *oci.Error {
	w := &oci.Error{RetryAfter: e.RetryAfter}
	what := e.what
	if what == "" {
		what = "what was asked for"
	}
	switch e.Kind {
	case NotFound:
		w.Code, w.Status = e.code, http.StatusNotFound
		if e.back {
			w.Status = http.StatusLoopDetected
		}
		if w.Code == "" {
			w.Code = oci.CodeNameUnknown
		}
		w.Message = fmt.Sprintf("%s has no %s", e.Upstream, what)
	case Denied:
		w.Code = oci.CodeDenied
		w.Message = fmt.Sprintf("%s does not let this registry have %s, or there is no such repository", e.Upstream, what)
	case Busy:
		w.Code = oci.CodeTooManyRequests
		w.Message = fmt.Sprintf("%s takes no requests of this registry for the moment (%s)", e.Upstream, what)
		if e.RetryAfter > 0 {
			w.Message += fmt.Sprintf("; try again in %v", max(time.Second, e.RetryAfter.Round(time.Second)))
		}
	case Wrong:
		w.Code, w.Status = oci.CodeUnavailable, http.StatusBadGateway
		if oci.HasCode(e.Err, oci.CodeRangeInvalid) {
			w.Code, w.Status = oci.CodeRangeInvalid, 0
		}
		w.Message = fmt.Sprintf("%s delivers something other than %s", e.Upstream, what)
	default:
		w.Code, w.Status = oci.CodeUnavailable, http.StatusBadGateway
		w.Message = fmt.Sprintf("%s cannot be reached, or does not answer as a registry does (%s)", e.Upstream, what)
		switch {
		case e.RetryAfter > 0:
			w.Status = 0 // 503, which may carry a Retry-After
		case e.slow:
			w.Status = http.StatusGatewayTimeout
			w.Message = fmt.Sprintf("%s does not answer in time (%s)", e.Upstream, what)
		}
	}
	return w
}

// subject is what a request is about, for error messages.
type subject struct {
	noun, ref, repo string // ref may be ""
	notFound        oci.Code
}

// String returns "manifest v1 of library/app".
func (s subject) String() string {
	switch {
	case s.noun == "":
		return ""
	case s.ref == "":
		return s.noun + " of " + s.repo
	}
	return s.noun + " " + s.ref + " of " + s.repo
}

// error returns an error about an endpoint's answer, or the lack of one.
func (e *endpoint) error(k Kind, status int, s subject, err error) *Error {
	if err != nil {
		err = client.Redact(err)
		if e != e.up.own() {
			err = fmt.Errorf("mirror %s: %w", e.name, err)
		}
	}
	return &Error{Kind: k, Upstream: e.up.name, Status: status, Err: err, what: s.String(), code: s.notFound}
}

// answered turns an error answer into an Error, in the terms of the client.
func (e *endpoint) answered(s subject, o *oci.Error) *Error {
	k := Unavailable
	switch o.Status {
	case http.StatusNotFound, http.StatusGone, http.StatusLoopDetected:
		k = NotFound
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusUnavailableForLegalReasons:
		k = Denied
	case http.StatusRequestedRangeNotSatisfiable:
		k, o.Code = Wrong, oci.CodeRangeInvalid
	case http.StatusBadRequest:
		switch o.Code { // a name that this registry refuses is a name that it does not have
		case oci.CodeNameInvalid, oci.CodeNameUnknown, oci.CodeTagInvalid, oci.CodeManifestUnknown, oci.CodeBlobUnknown:
			k = NotFound
		}
	}
	out := e.error(k, o.Status, s, fmt.Errorf("it answered %d: %w", o.Status, o))
	out.sure = o.Status/100 != 5 && o.Status != http.StatusRequestTimeout || o.Status == http.StatusNotImplemented || o.Status == http.StatusLoopDetected
	return out
}

// explain turns any outcome of a request into an Error. It does not change errors of the
// caller's context, or errors about what the caller asked for.
func (e *endpoint) explain(ctx context.Context, s subject, err error) error {
	if gone(ctx) {
		return fmt.Errorf("upstream %s: %s: %w", e.up.name, s, ctx.Err())
	}
	var known *Error
	if errors.As(err, &known) {
		if known.what != "" {
			return known
		}
		about := *known // others may share this error
		about.what, about.code = s.String(), s.notFound
		return &about
	}
	var o *oci.Error
	if errors.As(err, &o) {
		if o.Status != 0 {
			return e.answered(s, o)
		}
		switch o.Code {
		case oci.CodeDigestInvalid, oci.CodeManifestInvalid, oci.CodeSizeInvalid:
			out := e.error(Wrong, 0, s, err)
			out.sure = o.Code == oci.CodeSizeInvalid // it will be as large the next time
			return out
		case oci.CodeNameInvalid, oci.CodeTagInvalid, oci.CodePaginationNumber:
			return err
		}
	}
	out := e.error(Unavailable, 0, s, err)
	out.slow = slow(err)
	return out
}

// gone reports whether a request ended because its caller no longer wants it, as opposed
// to our own timeout.
func gone(ctx context.Context) bool {
	return ctx.Err() != nil && context.Cause(ctx) != wire.ErrStalled
}

// slow reports whether an error came after a long wait. Nobody else should have to wait
// as long for it.
func slow(err error) bool {
	var n net.Error
	return errors.Is(err, wire.ErrStalled) || errors.As(err, &n) && n.Timeout()
}
