package mirror

import (
	"context"
	"strings"
	"sync"

	"example.org/slipway/oci"
)

// AnyHosts are the registries that are mirrored without being listed: those whose hosts
// fit a pattern. One on another port than the usual has a hyphen for the colon in the names of
// its repositories: registry.example.com-5000/app.
type AnyHosts struct {
	Patterns []oci.HostPattern
	// Except has names of registries that are never mirrored so: those of this server, and
	// of the upstreams that are listed.
	Except map[string]bool
}

// hubName is what Docker Hub is called, also where somebody writes the name of one of its hosts.
const hubName = "docker.io"

func isHub(host string) bool {
	return host == hubName || host == "index.docker.io" || host == "registry-1.docker.io"
}

// Name returns the name of a registry, HOST or HOST:PORT, with which its repositories
// begin here. ok is false if it is not mirrored.
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

// Where returns the URL of the registry that a name stands for, or "". guarded says that whoever asked chose
// the host, so that it must have a public address.
func (a *AnyHosts) Where(name string) (url string, guarded bool) {
	if i := strings.LastIndexByte(name, '-'); i > 0 {
		if url, guarded = a.where(name, name[:i], name[i+1:]); url != "" {
			return url, guarded
		}
	}
	return a.where(name, name, "")
}

func (a *AnyHosts) where(name, host, port string) (url string, guarded bool) {
	// What has no dot is the name of a repository here: team/app.
	if !strings.Contains(host, ".") && host != "localhost" || strings.Trim(port, "0123456789") != "" || len(port) > 5 {
		return "", false
	}
	if port == "443" || strings.HasPrefix(port, "0") { // Except has what the registry is called else
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
			return p.URL(host, port), false // somebody who configures us has chosen it
		}
		if url == "" {
			url, guarded = p.URL(host, port), true
		}
	}
	return url, guarded
}

// Mirrored reports whether a repository is of one of the registries.
func (a *AnyHosts) Mirrored(repo string) bool {
	first, _, ok := strings.Cut(repo, "/")
	if !ok {
		return false
	}
	url, _ := a.Where(first)
	return url != ""
}

// Any makes sources of registries that are not listed, when somebody asks for their content.
type Any struct {
	AnyHosts
	// Open makes the source of a registry.
	Open func(name, url string, guarded bool) (*Source, error)
	// Close is called for a source that is forgotten; reads of it may still be under way.
	Close func(*Source)
	// Stored lists the names of registries of which something is stored, listed or not.
	Stored func(ctx context.Context) ([]string, error)
}

// anyMost is how many registries that are not listed are remembered, with what is known of
// their tags. More cost no more than asking again.
const anyMost = 64

// anys are the sources that were made. The zero value is ready.
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
	if o == nil || !strings.ContainsAny(name, ".-") && name != "localhost" { // most names of repositories here
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

// forgetUnlisted forgets the registry that was used longest ago, one that never gave
// anything before one that did. m.any.mu is held.
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

// all returns the sources by name, those included that are not listed and were made.
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

// Prefixes returns what the names of all mirrored repositories begin with that are stored.
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
