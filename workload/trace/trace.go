// Package trace records registry requests, one [Record] each, in the ten-field
// form of the IBM registry traces (Anwar et al., FAST'18) or in Combined Log
// Format, so that an access log is a trace that can be analysed and replayed.
package trace

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Unknown is the Duration, Written or Received of a record whose source lacks it. An
// unknown Status is 0.
const Unknown = -1

// Record is one request to a registry.
type Record struct {
	// Host is the registry server that answered.
	Host string
	// Duration is the time from the arrival of the request to the end of the answer.
	Duration time.Duration
	// Method is the HTTP method.
	Method string
	// RemoteAddr is the client's address without a port.
	RemoteAddr string
	// User is the authenticated user, empty for none. Combined Log Format only.
	User string
	// URI is the request's path and query, with the leading slash.
	URI string
	// Proto is the HTTP version. Combined Log Format only.
	Proto string
	// UserAgent and Referer are the request's headers.
	UserAgent, Referer string
	// Status is the HTTP status of the answer.
	Status int
	// Written is the number of body bytes sent. The ten-field form has one field for the
	// content's size: Received if that is not 0, else Written.
	Written int64
	// Received is the number of body bytes that came with the request (PUT, PATCH, POST).
	// For the request that completes an upload it is the size of the whole blob.
	// Ten-field form only.
	Received int64
	// Digest is the digest of the content if the source has it and the URI does not: for
	// the request that ends an upload, and for a manifest by tag. Only the ten-field form
	// has it, as an eleventh field that is left out if it is empty.
	Digest string
	// ID identifies the request.
	ID string
	// Time is when the request arrived.
	Time time.Time
}

// Format is how records are written.
type Format string

// These are the formats.
const (
	// FormatCLF is the Combined Log Format of Apache and nginx.
	FormatCLF Format = "clf"
	// FormatTrace is one JSON object of the ten fields per line.
	FormatTrace Format = "trace"
)

// ParseFormat checks a format's name; "" and "combined" mean FormatCLF, "json"
// FormatTrace.
func ParseFormat(s string) (Format, error) {
	switch s {
	case "", "clf", "combined":
		return FormatCLF, nil
	case "trace", "json":
		return FormatTrace, nil
	}
	return "", fmt.Errorf("unknown access log format %q: use clf or trace", s)
}

// AppendCLF appends the record as a line of Combined Log Format.
func (r *Record) AppendCLF(b []byte) []byte {
	b = appendToken(b, r.RemoteAddr)
	b = append(b, " - "...)
	b = appendToken(b, r.User)
	b = append(b, " ["...)
	b = r.Time.AppendFormat(b, "02/Jan/2006:15:04:05 -0700")
	b = append(b, "] \""...)
	b = appendEscaped(b, r.Method)
	b = append(b, ' ')
	b = appendEscaped(b, r.URI)
	b = append(b, ' ')
	b = appendEscaped(b, r.Proto)
	b = append(b, "\" "...)
	b = strconv.AppendInt(b, int64(r.Status), 10)
	b = append(b, ' ')
	b = strconv.AppendInt(b, r.Written, 10)
	b = append(b, " \""...)
	b = appendOrDash(b, r.Referer)
	b = append(b, "\" \""...)
	b = appendOrDash(b, r.UserAgent)
	return append(b, "\"\n"...)
}

func appendOrDash(b []byte, s string) []byte {
	if s == "" {
		return append(b, '-')
	}
	return appendEscaped(b, s)
}

// appendToken appends a field without quotes between spaces.
func appendToken(b []byte, s string) []byte {
	if s == "" {
		return append(b, '-')
	}
	for i := 0; i < len(s); i++ {
		if s[i] == ' ' {
			b = append(b, `\x20`...)
		} else {
			b = appendEscaped(b, s[i:i+1])
		}
	}
	return b
}

// appendEscaped escapes as Apache does, so that a client cannot forge a line.
func appendEscaped(b []byte, s string) []byte {
	const hexDigits = "0123456789abcdef"
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c < 0x20 || c >= 0x7f:
			b = append(b, '\\', 'x', hexDigits[c>>4], hexDigits[c&15])
		default:
			b = append(b, c)
		}
	}
	return b
}

// AppendTrace appends the record as a line of JSON with the ten fields: the duration in
// seconds, the URI without its leading slash and query, the size of the content that was
// sent or received, the time in UTC with milliseconds. What is unknown is null. If the
// record has a digest, it is an eleventh field.
func (r *Record) AppendTrace(b []byte) []byte {
	uri, _, _ := strings.Cut(r.URI, "?")
	b = appendJSON(append(b, `{"host":`...), r.Host)
	b = append(b, `,"http.request.duration":`...)
	if r.Duration >= 0 {
		b = appendSeconds(b, r.Duration)
	} else {
		b = append(b, "null"...)
	}
	b = appendJSON(append(b, `,"http.request.method":`...), r.Method)
	b = appendJSON(append(b, `,"http.request.remoteaddr":`...), r.RemoteAddr)
	b = appendJSON(append(b, `,"http.request.uri":`...), strings.TrimPrefix(uri, "/"))
	b = appendJSON(append(b, `,"http.request.useragent":`...), r.UserAgent)
	b = appendKnown(append(b, `,"http.response.status":`...), int64(r.Status), r.Status != 0)
	content := r.Received
	if content == 0 {
		content = r.Written
	}
	b = appendKnown(append(b, `,"http.response.written":`...), content, content >= 0)
	b = appendJSON(append(b, `,"id":`...), r.ID)
	b = append(b, `,"timestamp":"`...)
	b = append(r.Time.UTC().AppendFormat(b, "2006-01-02T15:04:05.000Z"), '"')
	if r.Digest != "" {
		b = appendJSON(append(b, `,"digest":`...), r.Digest)
	}
	return append(b, "}\n"...)
}

// appendJSON appends a string. Most strings need no escape. encoding/json would take
// longer for the record than everything else for a log line.
func appendJSON(b []byte, s string) []byte {
	for i := 0; i < len(s); i++ {
		if c := s[i]; c < 0x20 || c >= 0x7f || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			quoted, _ := json.Marshal(s) // strings always marshal
			return append(b, quoted...)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}

// appendSeconds appends a duration that is not negative, to the nanosecond.
func appendSeconds(b []byte, d time.Duration) []byte {
	b = strconv.AppendInt(b, int64(d/time.Second), 10)
	nanos := int64(d % time.Second)
	if nanos == 0 {
		return b
	}
	b = append(b, '.')
	for unit := int64(1e8); nanos > 0; unit /= 10 {
		b = append(b, byte('0'+nanos/unit))
		nanos %= unit
	}
	return b
}

// appendKnown appends a number, or null if it is not known.
func appendKnown(b []byte, n int64, known bool) []byte {
	if !known {
		return append(b, "null"...)
	}
	return strconv.AppendInt(b, n, 10)
}
