// Package patterns compiles patterns of repository names, as rules and many other keys of the
// configuration have them: "*" stands for any characters within a segment, "?" for one
// character, and the segment "**" for any number of segments, including none. Everything else
// is matched exactly.
package patterns

import (
	"fmt"
	"slices"
	"strings"
)

// Pattern is a compiled repository pattern. Each segment is a glob for one segment of a
// name, or "**" for any number of segments.
type Pattern struct {
	exact    string   // the whole pattern if it has no wildcard
	segments []string // otherwise its segments
}

// Parse compiles s. It returns an error if no repository name can match s, because
// such a pattern is a mistake.
func Parse(s string) (Pattern, error) {
	if s == "" {
		return Pattern{}, fmt.Errorf("empty repository pattern")
	}
	segments := strings.Split(s, "/")
	for _, seg := range segments {
		if seg == "" {
			return Pattern{}, fmt.Errorf("repository pattern %q has an empty segment", s)
		}
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		if !('a' <= c && c <= 'z' || '0' <= c && c <= '9') && strings.IndexByte("._-/*?", c) < 0 {
			return Pattern{}, fmt.Errorf("repository pattern %q has a character that no repository name has", s)
		}
	}
	if !strings.ContainsAny(s, "*?") {
		return Pattern{exact: s}, nil
	}
	return Pattern{segments: segments}, nil
}

// Match reports whether the pattern matches all of name. It takes at most len(name) *
// len(pattern) steps and does not allocate. After a mismatch, only the last "**" or "*"
// can take more of the name. So there is always only one place to go back to, and never a
// tree of places.
func (p *Pattern) Match(name string) bool {
	if p.exact != "" {
		return p.exact == name
	}
	if name == "" {
		return false
	}
	si, pos := 0, 0        // the segments of pattern and name to compare next
	retry, taken := -1, 0  // where to go on in pattern and name after the last "**"
	for pos <= len(name) { // pos == len(name)+1 is after the last segment
		if si < len(p.segments) && p.segments[si] == "**" {
			si++
			retry, taken = si, pos
			continue
		}
		end := segmentEnd(name, pos)
		switch {
		case si < len(p.segments) && glob(p.segments[si], name[pos:end]):
			si++
			pos = end + 1
		case retry >= 0:
			taken = segmentEnd(name, taken) + 1
			si, pos = retry, taken
		default:
			return false
		}
	}
	for si < len(p.segments) && p.segments[si] == "**" {
		si++
	}
	return si == len(p.segments)
}

// segmentEnd returns the end of the segment that begins at pos.
func segmentEnd(name string, pos int) int {
	if i := strings.IndexByte(name[pos:], '/'); i >= 0 {
		return pos + i
	}
	return len(name)
}

// glob reports whether pat, which may contain "*" and "?", matches all of s.
func glob(pat, s string) bool {
	pi, i := 0, 0
	retry, taken := -1, 0
	for i < len(s) {
		switch {
		case pi < len(pat) && pat[pi] == '*':
			pi++
			retry, taken = pi, i
		case pi < len(pat) && (pat[pi] == '?' || pat[pi] == s[i]):
			pi++
			i++
		case retry >= 0:
			taken++
			pi, i = retry, taken
		default:
			return false
		}
	}
	for pi < len(pat) && pat[pi] == '*' {
		pi++
	}
	return pi == len(pat)
}

// Compile returns a function that reports whether a repository name matches a pattern.
func Compile(s string) (func(repo string) bool, error) {
	p, err := Parse(s)
	if err != nil {
		return nil, err
	}
	return p.Match, nil
}

// CompileAll returns a function that reports whether a repository name matches any of the
// patterns. Without patterns, every name matches.
func CompileAll(texts []string) (func(repo string) bool, error) {
	if len(texts) == 0 {
		return func(string) bool { return true }, nil
	}
	var list []Pattern
	for _, s := range texts {
		p, err := Parse(s)
		if err != nil {
			return nil, fmt.Errorf("pattern %q: %w", s, err)
		}
		list = append(list, p)
	}
	return func(repo string) bool {
		return slices.ContainsFunc(list, func(p Pattern) bool { return p.Match(repo) })
	}, nil
}
