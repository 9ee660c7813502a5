package config

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"example.org/slipway/registry/auth/patterns"
)

// CompileWhole compiles regular expressions that must match the whole text.
func CompileWhole(exprs []string) ([]*regexp.Regexp, error) {
	var list []*regexp.Regexp
	for _, e := range exprs {
		re, err := regexp.Compile(`^(?:` + e + `)$`)
		if err != nil {
			return nil, fmt.Errorf("expression %q: %w", e, err)
		}
		list = append(list, re)
	}
	return list, nil
}

// Immutable returns a function that reports whether a tag of a repository must not be changed. It
// returns nil if all tags may be.
func (s *Storage) Immutable() (func(repo, tag string) bool, error) {
	type rule struct {
		repos func(string) bool
		tags  []*regexp.Regexp
	}
	var list []rule
	for i, c := range s.ImmutableTags {
		repos, err := patterns.CompileAll(c.Repositories)
		if err != nil {
			return nil, fmt.Errorf("storage.immutable_tags.%d.repositories: %w", i, err)
		}
		tags, err := CompileWhole(c.Tags)
		if err != nil {
			return nil, fmt.Errorf("storage.immutable_tags.%d.tags: %w", i, err)
		}
		list = append(list, rule{repos, tags})
	}
	if len(list) == 0 {
		return nil, nil
	}
	return func(repo, tag string) bool {
		for _, r := range list {
			if r.repos(repo) && (len(r.tags) == 0 || slices.ContainsFunc(r.tags, func(re *regexp.Regexp) bool { return re.MatchString(tag) })) {
				return true
			}
		}
		return false
	}, nil
}

// NoSlash returns the configured path or URL, such as "/registry/", without its trailing
// slash, so that "/v2/" can follow.
func NoSlash(p string) string { return strings.TrimRight(p, "/") }
