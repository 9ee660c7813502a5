package store

import (
	"fmt"
	"strings"
	"time"

	"example.org/slipway/workload/trace"
)

// row is one request as it is in a file. docs/trace.md describes the columns.
type row struct {
	Time     int64  `parquet:"time,timestamp(microsecond),delta,uncompressed"`
	Duration int64  `parquet:"duration,delta,uncompressed"`
	Host     string `parquet:"host,dict"`
	Client   string `parquet:"client,dict"`
	Method   string `parquet:"method,dict"`
	Kind     string `parquet:"kind,dict"`
	Repo     string `parquet:"repo,dict"`
	Ref      string `parquet:"ref,dict"`
	Digest   string `parquet:"digest,dict"`
	Size     int64  `parquet:"size,delta,uncompressed"`
	Status   int32  `parquet:"status,dict"`
	Agent    string `parquet:"agent,dict"`
	ID       string `parquet:"id,uncompressed"`
	URI      string `parquet:"uri,dict"`
}

// These are the keys under which the footer of each file holds what the schema does not
// say.
const (
	metaVersion = "slipway.trace.version"
	metaZone    = "slipway.trace.zone"
	metaDay     = "slipway.trace.day"
	metaHours   = "slipway.trace.hours"
	// version is the version of the layout of files and columns.
	version = "1"
)

// hour is one row group: the requests of one hour, or of a part of one if there are more
// than maxGroup. The footer has the hours of a file as JSON.
type hour struct {
	Rows  int64 `json:"rows"`
	First int64 `json:"first"` // microseconds since 1970
	Last  int64 `json:"last"`
}

const (
	// maxGroup bounds the rows of a row group, and so the memory of its reader: 13
	// columns of at most 8 bytes, 27 MB.
	maxGroup = 1 << 18
	// maxGroupText is about how many bytes of strings a column of a row group may have.
	maxGroupText = 128 << 20
	// These are the numbers of microseconds in an hour and in a day.
	microHour = int64(time.Hour / time.Microsecond)
	microDay  = 24 * microHour
)

const (
	zonePrefix = "zone="
	dayPrefix  = "day="
	fileSuffix = ".parquet"
	dayFormat  = "2006-01-02"
	// partPrefix begins the names of files that are being written.
	partPrefix = ".part-"
)

// CheckZone returns an error if a zone's name cannot be the name of a directory.
func CheckZone(zone string) error {
	const maxLen = 64
	if zone == "" || len(zone) > maxLen || zone[0] == '.' || zone[0] == '_' {
		return fmt.Errorf("zone %q: a name of 1 to %d letters, digits, '.', '_' and '-' that begins with a letter, a digit or '-' is needed", zone, maxLen)
	}
	for _, c := range []byte(zone) {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("._-", c) >= 0) {
			return fmt.Errorf("zone %q: %q is none of letters, digits, '.', '_' and '-'", zone, c)
		}
	}
	return nil
}

// dayName returns the name of the file with a day's requests.
func dayName(day int64) string {
	return dayPrefix + time.UnixMicro(day).UTC().Format(dayFormat) + fileSuffix
}

// record makes a record of a row. The URI is in the ten-field form.
func (r *row) record(dst *trace.Record) {
	*dst = trace.Record{
		Host: r.Host, Duration: time.Duration(r.Duration) * time.Microsecond, Method: r.Method, RemoteAddr: r.Client,
		UserAgent: r.Agent, Status: int(r.Status), Written: r.Size, ID: r.ID, Time: time.UnixMicro(r.Time).UTC(), URI: r.URI,
	}
	if r.Duration < 0 {
		dst.Duration = trace.Unknown
	}
	t := trace.Target{Kind: parseKind(r.Kind), Repo: r.Repo, Ref: r.Ref}
	if t.Kind != trace.Other {
		dst.URI = t.URI()
	}
	if r.Digest != digestOf(t, dst) { // the URI alone does not tell it
		dst.Digest = r.Digest
	}
}

// parseKind does the reverse of [trace.Kind.String]. It returns Other for an unknown
// kind.
func parseKind(s string) trace.Kind {
	for k := trace.Other; k <= trace.Catalog; k++ {
		if k.String() == s {
			return k
		}
	}
	return trace.Other
}

// digestOf returns the digest of a request's content, as far as it is known.
func digestOf(t trace.Target, r *trace.Record) string {
	switch {
	case t.Kind == trace.Blob:
		return t.Ref
	case r.Digest != "":
		return r.Digest
	case t.Kind == trace.Manifest && strings.IndexByte(t.Ref, ':') > 0:
		return t.Ref
	}
	return ""
}
