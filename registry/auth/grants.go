package auth

import (
	"fmt"
	"slices"
	"strings"

	"example.org/slipway/registry/auth/patterns"
)

// Action is a set of actions.
type Action uint8

// The actions that exist.
const (
	// Pull reads blobs, manifests, tags and referrers of a repository.
	Pull Action = 1 << iota
	// Push writes blobs, manifests and tags of a repository.
	Push
	// Delete removes blobs, manifests and tags of a repository.
	Delete
	// Catalog lists repositories. It is not tied to a repository.
	Catalog
	// Admin manages the registry. It is not tied to a repository.
	Admin
	// Volume permits getting a credential that can read the storage of volumes. Clone,
	// together with Volume, permits getting a credential that can also make clones there.
	// Such a credential opens the volumes of all repositories. Anonymous clients never
	// have Volume or Clone, and "*" does not include them.
	Volume
	Clone

	contentActions    = Pull | Push | Delete
	repositoryActions = contentActions | Volume | Clone
	registryActions   = Catalog | Admin
	allActions        = repositoryActions | registryActions
)

// actionNames returns the names in the order in which they are written in scopes and
// logs.
func actionNames() [7]string {
	return [7]string{"pull", "push", "delete", "catalog", "admin", "volume", "clone"}
}

// String returns the actions' names with commas between them, such as "pull,push".
func (a Action) String() string {
	var names []string
	for i, name := range actionNames() {
		if a&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, ",")
}

// actionNamed returns the action with that name, or 0 if there is none. It does not know
// "*", whose meaning depends on the place.
func actionNamed(name string) Action {
	for i, n := range actionNames() {
		if n == name {
			return 1 << i
		}
	}
	return 0
}

// grant is a compiled Rule.
type grant struct {
	patterns      []patterns.Pattern
	actions       Action
	anonymous     bool // granted to everybody
	authenticated bool // granted to everybody who is authenticated
	users, groups map[string]bool
}

// actionsOn returns the actions of want that the grant gives on repo to its subjects.
func (g *grant) actionsOn(repo string, want Action) Action {
	got := g.actions & want & registryActions
	if onRepo := g.actions & want & repositoryActions; onRepo != 0 {
		for i := range g.patterns {
			if g.patterns[i].Match(repo) {
				return got | onRepo
			}
		}
	}
	return got
}

// covers reports whether id is a subject of the grant.
func (g *grant) covers(id *Identity) bool {
	if g.anonymous {
		return true
	}
	if id.Name == "" {
		return false
	}
	if g.authenticated || g.users[id.Name] {
		return true
	}
	for _, group := range id.Groups {
		if g.groups[group] {
			return true
		}
	}
	return false
}

// grants are the compiled rules. They are immutable.
type grants struct {
	rules     []Rule // what they were compiled from
	all       []*grant
	anonymous []*grant        // the grants that everybody has
	groups    map[string]bool // every group that some rule names
}

// compileRules compiles the rules into the form that requests are checked against.
// sources are the names of the sources of groups.
func compileRules(rules []Rule, sources []string) (*grants, error) {
	gs := &grants{rules: nilIfEmpty(rules), groups: map[string]bool{}}
	for i, r := range rules {
		g, err := compileRule(r, sources)
		if err != nil {
			return nil, mistake(fmt.Sprintf("auth.access[%d]", i), "%w", err)
		}
		gs.all = append(gs.all, g)
		if g.anonymous {
			gs.anonymous = append(gs.anonymous, g)
		}
		for name := range g.groups {
			gs.groups[name] = true
		}
	}
	return gs, nil
}

// everything returns the rules for a configuration with methods and without rules.
func everything() *grants {
	all, _ := patterns.Parse("**")
	return &grants{all: []*grant{{patterns: []patterns.Pattern{all}, actions: allActions, authenticated: true}}}
}

func compileRule(r Rule, sources []string) (*grant, error) {
	g := &grant{users: map[string]bool{}, groups: map[string]bool{}}
	whole := false // some pattern is "**"
	for _, s := range r.Repositories {
		p, err := patterns.Parse(s)
		if err != nil {
			return nil, err
		}
		g.patterns = append(g.patterns, p)
		whole = whole || s == "**"
	}
	if err := g.addSubjects(r.Subjects, sources); err != nil {
		return nil, err
	}
	for _, name := range r.Actions {
		a := actionNamed(name)
		if name == "*" {
			a = contentActions
			if whole {
				a |= Catalog
			}
		}
		if a == 0 {
			return nil, fmt.Errorf("unknown action %q; there are pull, push, delete, volume, clone, catalog, admin and *", name)
		}
		g.actions |= a
	}
	if g.actions == 0 {
		return nil, fmt.Errorf("no actions")
	}
	if named := g.actions & (Volume | Clone); named != 0 && g.anonymous {
		return nil, fmt.Errorf("%s is not granted to anonymous: a credential for the storage of volumes is given to users only", named)
	}
	if g.actions&repositoryActions != 0 && len(g.patterns) == 0 {
		return nil, fmt.Errorf("no repositories for %s", g.actions&repositoryActions)
	}
	return g, nil
}

func (g *grant) addSubjects(subjects, sources []string) error {
	if len(subjects) == 0 {
		return fmt.Errorf("no subjects")
	}
	for _, s := range subjects {
		group, isGroup := strings.CutPrefix(s, "group:")
		switch {
		case s == "" || isGroup && group == "":
			return fmt.Errorf("empty subject")
		case strings.HasPrefix(s, RobotPrefix):
			return fmt.Errorf("%s is a robot: what it may do is in its token (slipway token create)", s)
		case s == "anonymous":
			g.anonymous = true
		case s == "*":
			g.authenticated = true
		case isGroup:
			name, err := qualified(group, sources)
			if err != nil {
				return err
			}
			g.groups[name] = true
		default:
			g.users[s] = true
		}
	}
	return nil
}

// qualified returns the group of a rule in the form that identities have. A rule may
// leave out the source if there is only one.
func qualified(group string, sources []string) (string, error) {
	source, _, named := strings.Cut(group, ":")
	switch {
	case named && slices.Contains(sources, source) || len(sources) == 0:
		return group, nil
	case len(sources) == 1:
		return sources[0] + ":" + group, nil
	}
	return "", fmt.Errorf("group:%s could be a group of %s: say which, as group:%s:%[1]s", group, strings.Join(sources, " or "), sources[0])
}

// toAnonymous returns the actions of want that everybody has on repo.
func (gs *grants) toAnonymous(repo string, want Action) Action {
	return sum(gs.anonymous, nil, repo, want)
}

// to returns the actions of want that id has on repo.
func (gs *grants) to(id *Identity, repo string, want Action) Action {
	return sum(gs.all, id, repo, want)
}

// sum adds up grants until all of want is found. If id is nil, every grant counts.
func sum(list []*grant, id *Identity, repo string, want Action) Action {
	var got Action
	for _, g := range list {
		if g.actions&want&^got == 0 || id != nil && !g.covers(id) {
			continue
		}
		if got |= g.actionsOn(repo, want); got == want {
			break
		}
	}
	return got
}

// known returns the groups that some rule names. Only these are put into tokens, because
// a person can be in hundreds of groups and headers are bounded.
func (gs *grants) known(groups []string) []string {
	var out []string
	for _, g := range groups {
		if gs.groups[g] {
			out = append(out, g)
		}
	}
	return out
}
