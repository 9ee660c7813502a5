package config

import (
	"fmt"
	"regexp"
	"slices"
	"time"

	"example.org/slipway/oci/warm"
	"example.org/slipway/registry/auth/patterns"
)

// Warm configures orders that nodes have images.
type Warm struct {
	Rules []WarmRule `yaml:"rules" doc:"Orders that are made when a tag is pushed, as slipway warm makes them. Each rule that matches makes one."`
}

// WarmRule orders an image when a tag is pushed.
type WarmRule struct {
	Repositories []string      `yaml:"repositories" doc:"Patterns of repositories, as in storage.immutable_tags. Empty means all." example:"team/**"`
	Tags         []string      `yaml:"tags" doc:"Regular expressions that must match the tag as a whole. Empty means all." example:"v[0-9]+\\.[0-9]+\\.[0-9]+"`
	Nodes        string        `yaml:"nodes" doc:"Which nodes, by their labels: KEY=VALUE, KEY!=VALUE, KEY and !KEY, with commas between conditions that must all be met. The label name is the node's name. Empty means all." example:"zone=eu-1a,!gpu"`
	All          bool          `yaml:"all" doc:"True fetches whole images, and not only the files that their containers open when they start."`
	For          time.Duration `yaml:"for" min:"0s" doc:"How long the order holds, also for nodes that appear later. 0 means 6h." example:"12h"`
}

// Matches returns a function that reports whether a rule is about a tag of a repository.
func (r *WarmRule) Matches() (func(repo, tag string) bool, error) {
	repos, err := patterns.CompileAll(r.Repositories)
	if err != nil {
		return nil, err
	}
	tags, err := CompileWhole(r.Tags)
	if err != nil {
		return nil, err
	}
	return func(repo, tag string) bool {
		return repos(repo) && (len(tags) == 0 || slices.ContainsFunc(tags, func(re *regexp.Regexp) bool { return re.MatchString(tag) }))
	}, nil
}

func (v *validator) warmValues(w *Warm) {
	for i, r := range w.Rules {
		key := fmt.Sprintf("warm.rules[%d]", i)
		v.patterns(key+".repositories", r.Repositories)
		v.regexps(key+".tags", r.Tags)
		_, err := warm.ParseSelector(r.Nodes)
		v.check(key+".nodes", err)
		if r.For > warm.MaxLifetime {
			v.bad(key+".for", fmt.Sprintf("must be at most %v", warm.MaxLifetime))
		}
	}
}
