package mirrors

import (
	"cmp"
	"net"
	"net/http"
	"path"
	"strings"

	"example.org/slipway/oci"
)

// namespaceParam is the query parameter in which clients of a mirror name the registry
// that they mean.
const namespaceParam = "ns"

// Repository implements server.RepositoryFunc. The query parameter takes precedence over
// the host of the request, and the host takes precedence over the name.
func (m *Mirrors) Repository(r *http.Request, name string) (string, error) {
	repo, plain, err := m.meant(r, name)
	if err != nil || !plain || writes(r) {
		return repo, err
	}
	return m.Name(r.Context(), name), nil
}

// ByDefault implements server.DefaultedFunc.
func (m *Mirrors) ByDefault(r *http.Request, name string) bool {
	repo, plain, err := m.meant(r, name)
	return err == nil && plain && m.cfg.DefaultName() != "" && !m.Mirrored(repo)
}

// ForToken returns the repository that a name in a token's scope stands for. The request
// does not say whether the token is for reading or for pushing, but the token is valid
// for the name itself anyway.
func (m *Mirrors) ForToken(r *http.Request, name string) string {
	repo, plain, err := m.meant(r, name)
	if err != nil || !plain {
		return repo
	}
	return m.Name(r.Context(), name)
}

// writes reports whether a request is part of a push. A push never means the default
// upstream, whose answers would be about a different repository. A client that pushes
// uses HEAD to find out whether a blob must be sent, and GET and DELETE for uploads.
func writes(r *http.Request) bool {
	switch r.Method {
	case http.MethodPost, http.MethodPut, http.MethodPatch:
		return true
	}
	dir := path.Dir(r.URL.Path)
	return strings.HasSuffix(dir, "/blobs/uploads") || r.Method == http.MethodHead && strings.HasSuffix(dir, "/blobs")
}

// meant returns the repository that a request means by a name, without regard to the
// default upstream. plain reports that nothing but the name determines the repository.
func (m *Mirrors) meant(r *http.Request, name string) (repo string, plain bool, err error) {
	asOurs := false
	if strings.Contains(r.URL.RawQuery, namespaceParam+"=") {
		if ns := r.URL.Query().Get(namespaceParam); ns != "" {
			if repo, ok := m.named(m.NameFor, cmp.Or(m.looksLike(ns, r.Host), ns), name); ok {
				return repo, false, nil
			}
			if !m.isOwn(ns, r.Host) {
				if repo, ok := m.named(m.NameForAny, ns, name); ok {
					return repo, false, nil
				}
				return name, false, oci.Errorf(oci.CodeNameUnknown, "ns=%.80q names no registry that is mirrored here", ns)
			}
			asOurs = true
		}
	}
	if host := m.looksLike(r.Host, r.Host); !asOurs && host != "" {
		if repo, ok := m.named(m.NameFor, host, name); ok {
			return repo, false, nil
		}
	}
	return m.NameToPush(name), true, nil
}

// looksLike returns the host of the upstream that a name stands for, or "". reached is
// the name under which the client has reached this server; it may be the same name. The
// upstream's host need not have the port of reached.
func (m *Mirrors) looksLike(name, reached string) string {
	name = strings.ToLower(name)
	host, port := splitPort(name)
	_, own := splitPort(reached)
	switch {
	case m.virtual[name]:
		return name
	case m.virtual[host] && port == own:
		return host
	}
	return ""
}

// named returns the repository for a name at a mirrored registry. A client that is
// configured with a path of this server for that registry names the registry twice.
func (m *Mirrors) named(look func(registry, name string) (string, bool), registry, name string) (string, bool) {
	registry = strings.ToLower(registry)
	for _, ns := range []string{registry, strings.TrimSuffix(registry, ":443")} {
		if upstream, ok := m.namespaces[ns]; ok {
			registry = upstream
			break
		}
	}
	repo, ok := look(registry, name)
	if !ok {
		return "", false
	}
	// Mappings apply to complete names. Mapped names may look like other names here.
	if source, _, _ := strings.Cut(repo, "/"); strings.HasPrefix(name, source+"/") {
		return m.NameToPush(name), true
	}
	return m.NameToPush(repo), true
}

// isOwn reports whether a name of a registry is a name of this registry. host is the name
// under which the client has reached it.
func (m *Mirrors) isOwn(name, host string) bool {
	name = strings.ToLower(name)
	bare, _ := splitPort(name)
	return m.own[name] || m.own[bare] || name == strings.ToLower(host)
}

// splitPort splits a host from its port, which is "" if there is none.
func splitPort(s string) (host, port string) {
	if host, port, err := net.SplitHostPort(s); err == nil {
		return host, port
	}
	return s, ""
}
