package auth

import (
	"slices"
	"strings"

	"example.org/slipway/oci"
)

// maxScopes bounds the resources of one token. A push that mounts from many repositories
// names a few resources. No honest client asks for more than maxScopes.
const maxScopes = 128

// access is an entry of a token's access claim, in the form of Docker's token
// specification.
type access struct {
	Type    string   `json:"type"`
	Class   string   `json:"class,omitempty"`
	Name    string   `json:"name"`
	Actions []string `json:"actions"`
}

// scope is a compiled access entry: actions on a repository, or on the registry if repo
// is empty.
type scope struct {
	repo    string
	actions Action
}

// parseScopes parses the scope parameters of a token request. Each parameter holds any
// number of "type(class):name:actions" with spaces between them. As the specification
// requires, a scope is left out if it is malformed or unknown, or if no repository can
// have its name. Scopes for the same resource are merged. ok is false if there are more
// than maxScopes resources.
func parseScopes(params []string) (scopes []scope, ok bool) {
	for _, p := range params {
		for s := range strings.SplitSeq(p, " ") {
			sc, known := parseScope(s)
			if !known {
				continue
			}
			i := slices.IndexFunc(scopes, func(o scope) bool { return o.repo == sc.repo })
			switch {
			case i >= 0:
				scopes[i].actions |= sc.actions
			case len(scopes) == maxScopes:
				return nil, false
			default:
				scopes = append(scopes, sc)
			}
		}
	}
	return scopes, true
}

// parseScope parses one scope. A name may contain colons; types and actions cannot.
func parseScope(s string) (scope, bool) {
	kind, rest, ok := strings.Cut(s, ":")
	i := strings.LastIndexByte(rest, ':')
	if !ok || i < 0 {
		return scope{}, false
	}
	if k, class, has := strings.Cut(kind, "("); has && strings.HasSuffix(class, ")") {
		kind = k
	}
	return compileScope(kind, rest[:i], strings.Split(rest[i+1:], ","))
}

// compileScope returns the scope of one resource. It returns false if the scope has no
// meaning here.
func compileScope(kind, name string, actions []string) (scope, bool) {
	switch kind {
	case "repository":
		if !oci.ValidName(name) {
			return scope{}, false
		}
		var acts Action
		for _, a := range actions {
			if a == "*" {
				acts |= contentActions
			}
			acts |= actionNamed(a) & repositoryActions
		}
		return scope{name, acts}, acts != 0
	case "registry":
		acts := actionNamed(name) & registryActions
		return scope{"", acts}, acts != 0 && slices.Contains(actions, "*")
	}
	return scope{}, false
}

// claim returns the access entries that are equivalent to s.
func (s scope) claim() []access {
	if s.repo != "" {
		return []access{{Type: "repository", Name: s.repo, Actions: strings.Split(s.actions.String(), ",")}}
	}
	var out []access
	for name := range strings.SplitSeq(s.actions.String(), ",") {
		out = append(out, access{Type: "registry", Name: name, Actions: []string{"*"}})
	}
	return out
}

// String returns the scope in the form of a parameter or challenge.
func (s scope) String() string {
	var parts []string
	for _, a := range s.claim() {
		parts = append(parts, a.Type+":"+a.Name+":"+strings.Join(a.Actions, ","))
	}
	return strings.Join(parts, " ")
}

// compileAccess returns the scopes of a token's access claim.
func compileAccess(claim []access) []scope {
	var out []scope
	for _, a := range claim {
		if s, ok := compileScope(a.Type, a.Name, a.Actions); ok {
			out = append(out, s)
		}
	}
	return out
}

// inScopes returns the actions of want that scopes contain for repo.
func inScopes(scopes []scope, repo string, want Action) Action {
	var got Action
	for _, s := range scopes {
		switch s.repo {
		case "":
			got |= s.actions & registryActions
		case repo:
			got |= s.actions & repositoryActions
		}
	}
	return got & want
}
