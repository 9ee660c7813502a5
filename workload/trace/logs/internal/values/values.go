// Package values parses the values in the fields of logs: clients, times, sizes, and fields in
// quotes. A function's ok is false for a value that its field cannot hold.
package values

import (
	"math"
	"strconv"
)

// IsDigits reports whether s is decimal digits and nothing else.
func IsDigits(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}

// maxSize is the largest size that a field can have: 1 PiB.
const maxSize = 1 << 50

// Size reads a number of bytes.
func Size(s string) (int64, bool) {
	if !IsDigits(s) {
		return 0, false
	}
	n, err := strconv.ParseInt(s, 10, 64)
	return n, err == nil && n <= maxSize
}

// SizeOrNone is like Size, for logs that write nothing, or "-", if nothing was sent.
func SizeOrNone(s string) (int64, bool) {
	if s == "" || s == "-" {
		return 0, true
	}
	return Size(s)
}

// Status parses a status. 0, which proxies write for a client that has gone, is unknown.
func Status(s string) (int, bool) {
	if s == "0" || s == "000" || s == "-" || s == "-1" {
		return 0, true
	}
	if len(s) != 3 || !IsDigits(s) || s[0] == '0' {
		return 0, false
	}
	n, err := strconv.Atoi(s)
	return n, err == nil
}

// Digits returns the value of at most nine decimal digits. It is far below 0 if one of them is not
// a digit.
func Digits(b []byte) int {
	n := 0
	for _, c := range b {
		if c < '0' || c > '9' {
			return math.MinInt32
		}
		n = n*10 + int(c-'0')
	}
	return n
}
