package yamlfile

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strconv"
	"strings"
	"time"
)

// redacted is the text that is printed in place of a secret.
const redacted = "******"

// Secret is text that must not be shown. Printed, logged or marshalled, it reads
// "******", or "" if it is empty.
type Secret string

// Reveal returns the secret itself.
func (s Secret) Reveal() string { return string(s) }

// String implements fmt.Stringer.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return redacted
}

// GoString implements fmt.GoStringer.
func (s Secret) GoString() string { return strconv.Quote(s.String()) }

// Format implements fmt.Formatter, so that no verb shows the secret.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(s.String())) }

// MarshalText implements encoding.TextMarshaler, which encoding/json uses.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// MarshalYAML implements yaml.Marshaler.
func (s Secret) MarshalYAML() (any, error) { return s.String(), nil }

// LogValue implements slog.LogValuer.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// Size is an amount of data in bytes.
type Size int64

// sizeUnits are the units of a size. Distribution reads "8mb" as 8 MiB, so the short
// forms are powers of 1024 here, too.
var sizeUnits = map[string]int64{
	"": 1, "b": 1,
	"k": 1 << 10, "kb": 1 << 10, "kib": 1 << 10,
	"m": 1 << 20, "mb": 1 << 20, "mib": 1 << 20,
	"g": 1 << 30, "gb": 1 << 30, "gib": 1 << 30,
	"t": 1 << 40, "tb": 1 << 40, "tib": 1 << 40,
}

var errSize = errors.New("not a size (like 8mb, 200MiB or a number of bytes)")

// ParseSize reads a size: a number and a unit in any case. The number may have a fraction
// if a unit follows.
func ParseSize(s string) (Size, error) {
	s = strings.TrimSpace(s)
	num := strings.TrimRight(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
	unit, ok := sizeUnits[strings.ToLower(s[len(num):])]
	if !ok {
		return 0, errSize
	}
	num = strings.TrimSpace(num)
	if n, err := strconv.ParseInt(num, 10, 64); err == nil {
		if n > math.MaxInt64/unit || n < math.MinInt64/unit {
			return 0, errSize
		}
		return Size(n * unit), nil
	}
	f, err := strconv.ParseFloat(num, 64)
	if err != nil || unit == 1 || math.IsNaN(f) || math.Abs(f)*float64(unit) >= math.MaxInt64 {
		return 0, errSize
	}
	return Size(f * float64(unit)), nil
}

// String returns the size in the largest binary unit that divides it: "16MiB".
func (s Size) String() string {
	for _, u := range []struct {
		name  string
		bytes Size
	}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if s != 0 && s%u.bytes == 0 {
			return strconv.FormatInt(int64(s/u.bytes), 10) + u.name
		}
	}
	return strconv.FormatInt(int64(s), 10)
}

// MarshalText implements encoding.TextMarshaler.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// MarshalYAML implements yaml.Marshaler.
func (s Size) MarshalYAML() (any, error) { return s.String(), nil }

// Present is true if its key is present, whatever its value is, as with Distribution's
// "inmemory:".
type Present bool

var errDuration = errors.New("not a duration (like 30s, 5m, 12h or 7d)")

// ParseDuration reads a duration like time.ParseDuration, and also accepts the unit d for
// days of 24 hours. A number without a unit counts nanoseconds.
func ParseDuration(s string) (time.Duration, error) {
	s = strings.TrimSpace(s)
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		return time.Duration(n), nil
	}
	days, rest, found := strings.Cut(s, "d")
	if !found {
		d, err := time.ParseDuration(s)
		if err != nil {
			return 0, errDuration
		}
		return d, nil
	}
	n, err := strconv.ParseFloat(days, 64)
	const maxDays = float64(math.MaxInt64 / (24 * int64(time.Hour)))
	if err != nil || math.IsNaN(n) || math.Abs(n) > maxDays {
		return 0, errDuration
	}
	total := time.Duration(n * 24 * float64(time.Hour))
	if rest == "" {
		return total, nil
	}
	more, err := time.ParseDuration(rest)
	if err != nil || more < 0 || strings.HasPrefix(rest, "+") {
		return 0, errDuration
	}
	if n < 0 {
		more = -more
	}
	if sum := total + more; (sum < total) == (more < 0) {
		return sum, nil
	}
	return 0, errDuration
}

// FormatDuration writes a duration without its empty parts: 24h, not 24h0m0s.
func FormatDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// parseBool reads YAML's booleans, including the old words.
func parseBool(s string) (value, ok bool) {
	switch strings.ToLower(strings.TrimSpace(s)) {
	case "true", "yes", "on":
		return true, true
	case "false", "no", "off":
		return false, true
	}
	return false, false
}

// ForeignOnly is a section of Distribution in which no key means anything here. Its known
// keys are accepted, with a warning if they request something.
type ForeignOnly struct{}
