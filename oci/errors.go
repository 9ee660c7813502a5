package oci

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// Code is an error code of the distribution specification ("Error Codes"), or
// one of the few that Docker's registry added and clients know.
type Code string

// The specification's codes, then the additions.
const (
	CodeBlobUnknown         Code = "BLOB_UNKNOWN"
	CodeBlobUploadInvalid   Code = "BLOB_UPLOAD_INVALID"
	CodeBlobUploadUnknown   Code = "BLOB_UPLOAD_UNKNOWN"
	CodeDigestInvalid       Code = "DIGEST_INVALID"
	CodeManifestBlobUnknown Code = "MANIFEST_BLOB_UNKNOWN"
	CodeManifestInvalid     Code = "MANIFEST_INVALID"
	CodeManifestUnknown     Code = "MANIFEST_UNKNOWN"
	CodeNameInvalid         Code = "NAME_INVALID"
	CodeNameUnknown         Code = "NAME_UNKNOWN"
	CodeSizeInvalid         Code = "SIZE_INVALID"
	CodeUnauthorized        Code = "UNAUTHORIZED"
	CodeDenied              Code = "DENIED"
	CodeUnsupported         Code = "UNSUPPORTED"
	CodeTooManyRequests     Code = "TOOMANYREQUESTS"

	CodeTagInvalid       Code = "TAG_INVALID"
	CodeTagNewer         Code = "TAG_NEWER"
	CodeRangeInvalid     Code = "RANGE_INVALID"
	CodePaginationNumber Code = "PAGINATION_NUMBER_INVALID"
	CodeUnavailable      Code = "UNAVAILABLE"
	CodeUnknown          Code = "UNKNOWN"
)

// statusOf maps each code to its HTTP status. There is no other such mapping.
var statusOf = map[Code]int{
	CodeBlobUnknown:         http.StatusNotFound,
	CodeBlobUploadInvalid:   http.StatusBadRequest,
	CodeBlobUploadUnknown:   http.StatusNotFound,
	CodeDigestInvalid:       http.StatusBadRequest,
	CodeManifestBlobUnknown: http.StatusNotFound,
	CodeManifestInvalid:     http.StatusBadRequest,
	CodeManifestUnknown:     http.StatusNotFound,
	CodeNameInvalid:         http.StatusBadRequest,
	CodeNameUnknown:         http.StatusNotFound,
	CodeSizeInvalid:         http.StatusBadRequest,
	CodeUnauthorized:        http.StatusUnauthorized,
	CodeDenied:              http.StatusForbidden,
	CodeUnsupported:         http.StatusMethodNotAllowed,
	CodeTooManyRequests:     http.StatusTooManyRequests,
	CodeTagInvalid:          http.StatusBadRequest,
	CodeTagNewer:            http.StatusConflict,
	CodeRangeInvalid:        http.StatusRequestedRangeNotSatisfiable,
	CodePaginationNumber:    http.StatusBadRequest,
	CodeUnavailable:         http.StatusServiceUnavailable,
	CodeUnknown:             http.StatusInternalServerError,
}

// Error is an error that a client may see.
type Error struct {
	// Code is what clients branch on.
	Code Code
	// Status overrides the code's HTTP status when it is not 0 (413 for an
	// oversized manifest, 507 for a full disk).
	Status int
	// Message says what is wrong and what to do, for a person.
	Message string
	// Detail is optional structured data for the error body.
	Detail any
	// RetryAfter is how long to wait before asking again. It becomes the header of that
	// name if the status is 429 or 503. 0 means soon.
	RetryAfter time.Duration
	// Err is the cause. It goes to the log and never to the client.
	Err error
}

// Errorf returns an Error with a formatted message. A %w operand at the end becomes its
// cause. The cause is no part of the message, because the message goes to the client.
func Errorf(code Code, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	e := &Error{Code: code, Message: err.Error(), Err: errors.Unwrap(err)}
	if e.Err != nil {
		e.Message = strings.TrimSuffix(strings.TrimSuffix(e.Message, e.Err.Error()), ": ")
	}
	return e
}

// Error implements error.
func (e *Error) Error() string {
	if e.Message == "" {
		return string(e.Code)
	}
	return string(e.Code) + ": " + e.Message
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is reports whether target is an Error with the same code, so that errors.Is(err,
// &Error{Code: c}) works.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code
}

// HTTPStatus returns the HTTP status of the answer.
func (e *Error) HTTPStatus() int {
	if e.Status != 0 {
		return e.Status
	}
	if s, ok := statusOf[e.Code]; ok {
		return s
	}
	return http.StatusInternalServerError
}

// HasCode reports whether err is, or wraps, an Error with one of the codes.
func HasCode(err error, codes ...Code) bool {
	var e *Error
	return errors.As(err, &e) && slices.Contains(codes, e.Code)
}

type wireError struct {
	Code    Code   `json:"code"`
	Message string `json:"message,omitempty"`
	Detail  any    `json:"detail,omitempty"`
}

type wireErrors struct {
	Errors []wireError `json:"errors"`
}

// MarshalErrors returns the specification's error body: {"errors":[{...}]}.
func MarshalErrors(errs ...*Error) []byte {
	var w wireErrors
	for _, e := range errs {
		w.Errors = append(w.Errors, wireError{e.Code, e.Message, e.Detail})
	}
	b, err := json.Marshal(w)
	if err != nil { // a Detail that cannot be marshalled: answer without it
		for i := range w.Errors {
			w.Errors[i].Detail = nil
		}
		b, _ = json.Marshal(w)
	}
	return append(b, '\n')
}

// UnmarshalError turns a registry's answer into an Error: its first error entry, or, if
// the body does not have the specified form, the code that the status suggests.
func UnmarshalError(status int, body []byte) *Error {
	var w struct {
		Errors []struct {
			Code    Code            `json:"code"`
			Message string          `json:"message"`
			Detail  json.RawMessage `json:"detail"`
		} `json:"errors"`
	}
	if json.Unmarshal(body, &w) == nil && len(w.Errors) > 0 && w.Errors[0].Code != "" {
		first := w.Errors[0]
		e := &Error{Code: first.Code, Status: status, Message: first.Message}
		if len(first.Detail) > 0 && string(first.Detail) != "null" {
			e.Detail = first.Detail
		}
		return e
	}
	code := CodeUnknown
	switch status {
	case http.StatusUnauthorized:
		code = CodeUnauthorized
	case http.StatusForbidden:
		code = CodeDenied
	case http.StatusNotFound:
		code = CodeNameUnknown
	case http.StatusMethodNotAllowed:
		code = CodeUnsupported
	case http.StatusTooManyRequests:
		code = CodeTooManyRequests
	case http.StatusRequestedRangeNotSatisfiable:
		code = CodeRangeInvalid
	case http.StatusServiceUnavailable, http.StatusBadGateway, http.StatusGatewayTimeout:
		code = CodeUnavailable
	}
	return &Error{Code: code, Status: status, Message: fmt.Sprintf("registry answered %d %s", status, http.StatusText(status))}
}
