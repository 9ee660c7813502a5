package oci

import (
	"path"
	"strings"
)

// MatchSegments reports whether a name matches a pattern. The segment ** stands for any
// number of segments. All other segments match as in [path.Match]. A malformed segment
// matches nothing. It backtracks only to the last **, so it takes at most as many steps
// as the product of both numbers of segments.
func MatchSegments(pattern, name string) bool {
	parts, names := strings.Split(pattern, "/"), strings.Split(name, "/")
	pi, ni := 0, 0
	retry, taken := -1, 0
	for ni < len(names) {
		if pi < len(parts) && parts[pi] == "**" {
			pi++
			retry, taken = pi, ni
			continue
		}
		ok := false
		if pi < len(parts) {
			var err error
			ok, err = path.Match(parts[pi], names[ni])
			ok = ok && err == nil
		}
		switch {
		case ok:
			pi++
			ni++
		case retry >= 0:
			taken++
			pi, ni = retry, taken
		default:
			return false
		}
	}
	for pi < len(parts) && parts[pi] == "**" {
		pi++
	}
	return pi == len(parts)
}
