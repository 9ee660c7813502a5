// Package format formats values for people, as the pages show them: sizes, counts, shares
// and times. It also makes untrusted text visible.
package format

import (
	"fmt"
	"html/template"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// Bytes formats a size in bytes for people, in powers of 1024: "12.3 MiB".
func Bytes(n int64) string {
	const units = "KMGTPE"
	if n < 1024 {
		return strconv.FormatInt(n, 10) + " B"
	}
	v, u := float64(n)/1024, 0
	for v >= 1023.95 && u < len(units)-1 {
		v, u = v/1024, u+1
	}
	return strconv.FormatFloat(v, 'f', 1, 64) + " " + units[u:u+1] + "iB"
}

// Time formats a time for people, in UTC to the minute. The zero time is "never".
func Time(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return t.UTC().Format("2006-01-02 15:04")
}

// ShortDigest returns the part of a digest that people compare.
func ShortDigest(d string) string {
	if len(d) > 19 {
		return d[:19]
	}
	return d
}

// ShortReference returns a reference with no more of a digest than the part that people compare.
// The reference is a tag, a digest, or TAG@DIGEST.
func ShortReference(ref string) string {
	if i := strings.LastIndex(ref, "sha256:"); i == 0 || i > 0 && ref[i-1] == '@' {
		return ref[:i] + ShortDigest(ref[i:])
	}
	return ref
}

// Breaks returns a name as HTML in which a line may end behind each separator, so that names
// break there before they break within a word.
func Breaks(name string) template.HTML {
	var b strings.Builder
	for len(name) > 0 {
		n := strings.IndexAny(name, "/.-_+:@[=") + 1
		if n == 0 {
			n = len(name)
		}
		b.WriteString(template.HTMLEscapeString(name[:n]))
		if name = name[n:]; name != "" {
			b.WriteString("<wbr>")
		}
	}
	return template.HTML(b.String()) // all of the name is escaped
}

// Some formats a number of things, such as "1 tag" or "1 234 tags". The number is an integer of
// any kind.
func Some(n any, one, many string) string {
	v := reflect.ValueOf(n).Int()
	if v == 1 {
		return "1 " + one
	}
	return Count(v) + " " + many
}

// Share returns a part's share of a whole, from 0 to 1.
func Share(part, whole int64) float64 {
	if whole <= 0 {
		return 0
	}
	return min(1, max(0, float64(part)/float64(whole)))
}

// Percent formats a share for people.
func Percent(v float64) string {
	if v > 0.995 && v < 1 || v > 0 && v < 0.095 {
		return strconv.FormatFloat(v*100, 'f', 1, 64) + " %"
	}
	return strconv.FormatFloat(v*100, 'f', 0, 64) + " %"
}

// Count formats a number for people, with thin spaces between thousands.
func Count(n int64) string {
	s := strconv.FormatInt(n, 10)
	head := len(s) % 3
	if s[0] == '-' {
		return s
	}
	out := s[:head]
	for i := head; i < len(s); i += 3 {
		if out != "" {
			out += "\u202f"
		}
		out += s[i : i+3]
	}
	return out
}

// Took formats a duration for people, in at most two units. Units below a second
// appear only alone.
func Took(d time.Duration) string {
	switch {
	case d < 0:
		return "0 s"
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%d min %d s", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h %d min", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%d days", int(d.Hours()/24))
}
