package values

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// timeLayouts are the forms in which logs write times, except numbers.
var timeLayouts = []string{
	time.RFC3339Nano, clfTime, "2006-01-02T15:04:05.999999999-0700", "02/Jan/2006:15:04:05.999999999 -0700",
	"02/Jan/2006:15:04:05.999999999 MST", "2006-01-02T15:04:05.999999999", "2006-01-02 15:04:05.999999999Z07:00",
	"2006-01-02 15:04:05.999999999 -0700", "2006-01-02 15:04:05.999999999", "2006/01/02 15:04:05.999999999",
	"02/Jan/2006:15:04:05.999999999",
}

// Time parses a time as logs write it: in one of the forms above, or as seconds since 1970 with a
// fraction, or in milliseconds, microseconds or nanoseconds. A time without a zone is in UTC.
func Time(s string) (time.Time, bool) {
	if s == "" || len(s) > 64 {
		return time.Time{}, false
	}
	if t, ok := FastTime([]byte(s)); ok {
		return t, true
	}
	if whole, fraction, _ := strings.Cut(s, "."); IsDigits(whole) && len(whole) >= 9 && (fraction == "" || IsDigits(fraction)) {
		return epoch(whole, fraction)
	}
	s = strings.Replace(s, ",", ".", 1) // as Python and Java write fractions
	for _, layout := range timeLayouts {
		if t, err := time.Parse(layout, s); err == nil && knownZone(t) {
			return t.UTC(), true
		}
	}
	return time.Time{}, false
}

// knownZone reports whether a time has a known offset. Parse accepts any abbreviation as a zone,
// and treats unknown ones as UTC.
func knownZone(t time.Time) bool {
	name, offset := t.Zone()
	return offset != 0 || name == "" || name == "UTC" || name == "GMT" || name == "Z" || name[0] == '+' || name[0] == '-'
}

// epoch parses a time in seconds since 1970, or in milliseconds, microseconds or
// nanoseconds. 14 digits are a date and a time instead.
func epoch(whole, fraction string) (time.Time, bool) {
	n, err := strconv.ParseInt(whole, 10, 64)
	if err != nil || len(fraction) > 18 || fraction != "" && len(whole) > 10 {
		return time.Time{}, false
	}
	switch len(whole) {
	case 9, 10:
		ns, err := strconv.ParseInt((fraction + "000000000")[:9], 10, 64)
		return time.Unix(n, ns).UTC(), err == nil
	case 12, 13:
		return time.UnixMilli(n).UTC(), true
	case 14:
		when, err := time.Parse("20060102150405", whole)
		return when, err == nil
	case 15, 16:
		return time.UnixMicro(n).UTC(), true
	case 18, 19:
		return time.Unix(0, n).UTC(), true
	}
	return time.Time{}, false
}

// clfTime is the time layout of Combined Log Format.
const clfTime = "02/Jan/2006:15:04:05 -0700"

// CLFTime parses 12/Jun/2024:09:45:01 +0000, and leaves everything else to Time.
func CLFTime(b []byte) (time.Time, bool) {
	if len(b) != len(clfTime) || b[2] != '/' || b[6] != '/' || b[11] != ':' || b[14] != ':' || b[17] != ':' || b[20] != ' ' ||
		b[21] != '+' && b[21] != '-' {
		return time.Time{}, false
	}
	month := Month(b[3:6])
	day, year := Digits(b[0:2]), Digits(b[7:11])
	hour, minute, second := Digits(b[12:14]), Digits(b[15:17]), Digits(b[18:20])
	zone := Digits(b[22:24])*3600 + Digits(b[24:26])*60
	if month == 0 || year < 0 || day < 1 || day > 28 || hour < 0 || hour > 23 || minute < 0 || minute > 59 || second < 0 || second > 59 ||
		zone < 0 || zone > 14*3600 {
		return time.Time{}, false
	}
	if b[21] == '-' {
		zone = -zone
	}
	return time.Date(year, month, day, hour, minute, second-zone, 0, time.UTC), true
}

// Month returns the month for three letters, or 0.
func Month(b []byte) time.Month {
	const months = "JanFebMarAprMayJunJulAugSepOctNovDec"
	if i := strings.Index(months, string(b)); len(b) == 3 && i >= 0 && i%3 == 0 {
		return time.Month(i/3 + 1)
	}
	return 0
}

// FastTime reads 2017-06-20T01:28:15.962Z, with 1 to 9 digits after the point or
// without them, and leaves everything else to time.Parse.
func FastTime(b []byte) (time.Time, bool) {
	if len(b) < 20 || b[4] != '-' || b[7] != '-' || b[10] != 'T' || b[13] != ':' || b[16] != ':' || b[len(b)-1] != 'Z' {
		return time.Time{}, false
	}
	year := Digits(b[0:4])
	month, day := Digits(b[5:7]), Digits(b[8:10])
	hour, minute, second := Digits(b[11:13]), Digits(b[14:16]), Digits(b[17:19])
	nanos := 0
	if fraction := b[19 : len(b)-1]; len(fraction) > 0 {
		if fraction[0] != '.' || len(fraction) == 1 || len(fraction) > 10 {
			return time.Time{}, false
		}
		nanos = Digits(fraction[1:])
		for range 10 - len(fraction) {
			nanos *= 10
		}
	}
	// Days that not every month has are left to time.Parse.
	if year < 0 || month < 1 || month > 12 || day < 1 || day > 31 || day > 28 && (month == 2 || day == 31) ||
		hour < 0 || hour > 23 || minute < 0 || minute > 59 || second < 0 || second > 59 || nanos < 0 {
		return time.Time{}, false
	}
	return time.Date(year, time.Month(month), day, hour, minute, second, nanos, time.UTC), true
}

// Seconds reads digits, a point and digits.
func Seconds(s string) (time.Duration, bool) {
	whole, fraction, ok := strings.Cut(s, ".")
	if !ok || len(whole) > 9 || len(fraction) > 9 || !IsDigits(whole) || !IsDigits(fraction) {
		return 0, false
	}
	f, err := strconv.ParseFloat(s, 64)
	return FromSeconds(f), err == nil
}

// Duration reads a number of units, or a duration with its unit.
func Duration(s string, unit time.Duration) (time.Duration, bool) {
	if f, err := strconv.ParseFloat(s, 64); err == nil {
		d := FromSeconds(f * unit.Seconds())
		return d, d >= 0 && f >= 0
	}
	d, err := time.ParseDuration(s)
	return d, err == nil && d >= 0 && d < 1e9*time.Second
}

// FromSeconds converts seconds. An invalid duration becomes negative, but not Unknown.
func FromSeconds(seconds float64) time.Duration {
	const maxSeconds = 1e9 // 31 years
	if seconds < 0 || seconds > maxSeconds {
		return -2
	}
	return time.Duration(math.Round(seconds * 1e9))
}
