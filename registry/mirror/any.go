package mirror

import (
	"context"
	"strings"
	"sync"

	"example.org/slipway/oci"
)

// AnyHosts says which registries are mirrored without being listed: those whose hosts
// match a pattern. If a registry has a port other than 443, the names of its repositories
// have a hyphen in place of the colon: registry.example.com-5000/app.
type AnyHosts struct {
	Patterns []oci.HostPattern
	// Except has the names of registries that are never mirrored this way: those of this
	// server, and those of the listed upstreams.
	Except map[string]bool
}

// hubName is the name of Docker Hub. It also stands for the names of Docker Hub's hosts.
const hubName = "docker.io"

func isHub(host string) bool {
	return host == hubName || host == "index.docker.io" || host == "registry-1.docker.io"
}

// Name returns the first segment of the names that the repositories of a registry, HOST
// or HOST:PORT, have here. ok is false if the registry is not mirrored.
func (a *AnyHosts) Name(registry string) (name string, ok bool) {
	host, port, _ := strings.Cut(strings.ToLower(registry), ":")
	if port == "443" {
		port = ""
	}
	if isHub(host) && port == "" {
		host = hubName
	}
	if name = host; port != "" {
		name += "-" + port
	}
	if url, _ := a.where(name, host, port); url == "" {
		return "", false
	}
	return name, true
}

// Where returns the URL of the registry that a name stands for, or "". guarded reports
// whether a client chose the host, which then must have a public address.
func (a *AnyHosts) Where(name string) (url string, guarded bool) {
	if i := strings.LastIndexByte(name, '-'); i > 0 {
		if url, guarded = a.where(name, name[:i], name[i+1:]); url != "" {
			return url, guarded
		}
	}
	return a.where(name, name, "")
}

func (a *AnyHosts) where(name, host, port string) (url string, guarded bool) {
	// A host has a dot. Without a dot it is the first segment of a repository of this
	// server: team/app.
	if !strings.Contains(host, ".") && host != "localhost" || strings.Trim(port, "0123456789") != "" || len(port) > 5 {
		return "", false
	}
	if port == "443" || strings.HasPrefix(port, "0") { // Except has other spellings of the name
		return "", false
	}
	if a.Except[name] || !oci.ValidName(name) || strings.Contains(name, "/") {
		return "", false
	}
	for _, p := range a.Patterns {
		if !p.Match(host, port) {
			continue
		}
		if !p.Wild() {
			return p.URL(host, port), false // chosen by whoever wrote the configuration
		}
		if url == "" {
			url, guarded = p.URL(host, port), true
		}
	}
	return url, guarded
}

// Mirrored reports whether a repository belongs to one of these registries.
func (a *AnyHosts) Mirrored(repo string) bool {
	first, _, ok := strings.Cut(repo, "/")
	if !ok {
		return false
	}
	url, _ := a.Where(first)
	return url != ""
}

// Any makes sources of registries that are not listed when a client asks for their
// content.
type Any struct {
	AnyHosts
	// Open makes the source of a registry.
	Open func(name, url string, guarded bool) (*Source, error)
	// Close is called with a source that is forgotten. Reads of the source may still be
	// under way.
	Close func(*Source)
	// Stored lists the names of all registries, listed or not, of which the store has
	// content.
	Stored func(ctx context.Context) ([]string, error)
}

// anyMost bounds how many registries that are not listed are remembered, with what is
// known of their tags. If there are more, upstreams are asked more often, and nothing
// else changes.
const anyMost = 64

// anys holds the sources that were made for registries that are not listed. The zero
// value is ready.
type anys struct {
	mu      sync.Mutex // guards what follows
	sources map[string]*anySource
	clock   int64
}

type anySource struct {
	*source
	used int64
}

// unlisted returns the source of a registry that is not listed, or nil.
func (m *Registry) unlisted(name string) *source {
	o := m.opts.Any
	if o == nil || !strings.ContainsAny(name, ".-") && name != "localhost" { // like most names here
		return nil
	}
	a := &m.any
	a.mu.Lock()
	defer a.mu.Unlock()
	a.clock++
	if s := a.sources[name]; s != nil {
		s.used = a.clock
		return s.source
	}
	url, guarded := o.Where(name)
	if url == "" {
		return nil
	}
	v, err := o.Open(name, url, guarded)
	if err != nil {
		m.log.Error("open a registry that is not listed", "upstream", name, "err", err)
		return nil
	}
	if len(a.sources) >= anyMost {
		m.forgetUnlisted()
	}
	if a.sources == nil {
		a.sources = map[string]*anySource{}
	}
	s := &anySource{m.newSource(*v), a.clock}
	s.guarded = guarded
	s.tags.few, s.children.few, s.signed.few = true, true, true
	for k := range s.negative {
		s.negative[k].few = true
	}
	a.sources[name] = s
	return s.source
}

// forgetUnlisted forgets the registry that was used longest ago. It prefers registries
// that never gave anything. m.any.mu is held.
func (m *Registry) forgetUnlisted() {
	var out *anySource
	for _, s := range m.any.sources {
		if out == nil || s.gave() != out.gave() && !s.gave() || s.gave() == out.gave() && s.used < out.used {
			out = s
		}
	}
	delete(m.any.sources, out.Name)
	m.metrics.forget(out.Name)
	if f := m.opts.Any.Close; f != nil {
		f(&out.Source)
	}
}

func (s *anySource) gave() bool { return s.counts.pulled.Load() > 0 }

// all returns all sources by name, including those that were made for registries that are
// not listed.
func (m *Registry) all() map[string]*source {
	if m.opts.Any == nil {
		return m.sources
	}
	m.any.mu.Lock()
	defer m.any.mu.Unlock()
	list := make(map[string]*source, len(m.sources)+len(m.any.sources))
	for name, s := range m.sources {
		list[name] = s
	}
	for name, s := range m.any.sources {
		list[name] = s.source
	}
	return list
}

// Prefixes returns the prefixes of the names of all mirrored repositories that the store
// may have.
func (m *Registry) Prefixes(ctx context.Context) ([]string, error) {
	var list []string
	for name := range m.sources {
		list = append(list, name+"/")
	}
	if m.opts.Any == nil {
		return list, nil
	}
	stored, err := m.opts.Any.Stored(ctx)
	if err != nil {
		return nil, err
	}
	for _, name := range stored {
		if url, _ := m.opts.Any.Where(name); m.sources[name] == nil && url != "" {
			list = append(list, name+"/")
		}
	}
	return list, nil
}
