package mirror

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"example.org/slipway/oci"
)

// Mapping renames repositories. From and To are names, or both end in "*", which stands
// for the rest of the name.
type Mapping struct {
	From, To string
}

func checkMappings(list []Mapping) error {
	for _, p := range list {
		from, fromAll := strings.CutSuffix(p.From, "*")
		to, toAll := strings.CutSuffix(p.To, "*")
		if fromAll != toAll || from+to == "" || strings.Contains(from, "*") || strings.Contains(to, "*") {
			return fmt.Errorf("mapping %q to %q: both are names, or both end in one *", p.From, p.To)
		}
	}
	return nil
}

func (p Mapping) apply(repo string) (string, bool) {
	prefix, all := strings.CutSuffix(p.From, "*")
	if !all {
		return p.To, repo == prefix
	}
	rest, ok := strings.CutPrefix(repo, prefix)
	return strings.TrimSuffix(p.To, "*") + rest, ok && rest != ""
}

// NameToPush returns the repository that a name stands for in a push. A name without the
// name of an upstream stands for a repository of this server, whatever the default is.
func (m *Registry) NameToPush(repo string) string {
	for _, p := range m.opts.Mappings {
		if name, ok := p.apply(repo); ok {
			repo = name
			break
		}
	}
	first, name, ok := strings.Cut(repo, "/")
	if s := m.sources[first]; ok && s != nil {
		return s.canonical(name)
	}
	if first == hubName && m.Mirrored(repo) {
		return canonical(first, name, true)
	}
	return repo
}

// Name returns the repository that a name stands for in a request that reads or deletes.
// Access rules are to be checked for that repository.
func (m *Registry) Name(ctx context.Context, repo string) string {
	repo = m.NameToPush(repo)
	if m.opts.Default == "" || m.Mirrored(repo) {
		return repo
	}
	if m.isLocal(ctx, repo) {
		return repo
	}
	return m.sources[m.opts.Default].canonical(repo)
}

// NameFor returns the repository here that stands for repo at a registry, HOST or
// HOST:PORT. A registry on another port is another registry. ok is false if no source has
// that registry.
func (m *Registry) NameFor(registry, repo string) (name string, ok bool) {
	registry = strings.ToLower(registry)
	s := m.hosts[registry]
	if s == nil {
		s = m.hosts[strings.TrimSuffix(registry, usualPort)]
	}
	if s == nil {
		return "", false
	}
	return s.canonical(repo), true
}

// usualPort is the port that the name of a registry may leave out.
const usualPort = ":443"

// NameForAny is like NameFor, for a registry that is mirrored and not listed.
func (m *Registry) NameForAny(ns, repo string) (name string, ok bool) {
	if m.opts.Any == nil {
		return "", false
	}
	registry, ok := m.opts.Any.Name(ns)
	return canonical(registry, repo, registry == hubName), ok
}

func (s *source) canonical(name string) string { return canonical(s.Name, name, s.Library) }

// canonical returns the name that a registry's repository has here.
func canonical(registry, name string, library bool) string {
	if library && !strings.Contains(name, "/") {
		return registry + "/library/" + name
	}
	return registry + "/" + name
}

// localNames remembers which names are repositories of this server, because every request
// has a name and the store need not be asked each time.
type localNames struct {
	mu    sync.RWMutex
	known map[string]localName
	// pushes counts pushes. A result that was read before a push is not remembered after
	// it.
	pushes int64
}

type localName struct {
	local bool
	until time.Time
}

const (
	// localFor is how long a replica may fail to notice that another replica was given
	// the first push under a name, or has deleted the last content under it.
	localFor = 10 * time.Second
	maxNames = 50_000 // about 8 MB
)

func (l *localNames) get(repo string, now time.Time) (local, ok bool, pushes int64) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	n, ok := l.known[repo]
	return n.local, ok && now.Before(n.until), l.pushes
}

func (l *localNames) set(repo string, local bool, until time.Time, pushes int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pushes != pushes {
		return
	}
	if l.known == nil || len(l.known) >= maxNames {
		l.known = map[string]localName{}
	}
	l.known[repo] = localName{local, until}
}

// forget drops what is known of a name. It is called after a push under the name.
func (l *localNames) forget(repo string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pushes++
	delete(l.known, repo)
}

// isLocal reports whether the store has a repository.
func (m *Registry) isLocal(ctx context.Context, repo string) bool {
	now := m.now()
	local, ok, pushes := m.names.get(repo, now)
	if ok {
		return local
	}
	_, _, err := m.store.Tags(ctx, repo, "", 1)
	if err != nil && !oci.HasCode(err, oci.CodeNameUnknown) {
		// The store fails, and the reader will get its error. A repository of this server
		// must not be taken for an upstream's because of that.
		return true
	}
	m.names.set(repo, err == nil, now.Add(localFor), pushes)
	return err == nil
}
