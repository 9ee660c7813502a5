package serve

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"example.org/slipway/config"
	"example.org/slipway/oci"
	"example.org/slipway/oci/client"
	"example.org/slipway/oci/wire"
	"example.org/slipway/registry"
	"example.org/slipway/registry/mirror"
	"example.org/slipway/registry/mirror/upstream"
)

// mirrorDir is the directory in a data root for incoming blobs of upstreams.
const mirrorDir = "slipway/mirror"

// mirrors holds the mirrored registries of a data root.
type mirrors struct {
	*mirror.Registry
	cfg       *config.Proxy
	upstreams []*upstream.Upstream
	// own contains the host names of this registry itself, in lower case.
	own map[string]bool
	// virtual contains the host names under which this registry acts as one of the
	// upstreams.
	virtual map[string]bool
	// namespaces maps the other names of upstreams in ?ns= to the upstreams' names.
	namespaces map[string]string
	feed       feed

	mu sync.Mutex // guards the fields below
	// unlisted contains the upstreams that are not in the configuration, by name.
	unlisted map[string]*upstream.Upstream
}

// mirrored returns a function that reports whether a repository is a mirror.
func mirrored(cfg *config.Config) func(repo string) bool {
	if !cfg.Proxy.Enabled() {
		return nil
	}
	var names []string
	for _, u := range cfg.Proxy.All() {
		names = append(names, u.Name)
	}
	listed, others := mirror.Names(names...), anyHosts(cfg)
	return func(repo string) bool { return listed(repo) || others.Mirrored(repo) }
}

// openMirrors puts the mirrored registries, if there are any, in front of the stored
// registry. Their writes go through the gate.
func (r *root) openMirrors(cfg *config.Config, gate *writeGate, log *slog.Logger) (err error) {
	c := &cfg.Proxy
	if !c.Enabled() || r.mirrors != nil {
		return nil
	}
	m := &mirrors{cfg: c, own: ownNames(cfg), virtual: map[string]bool{}, namespaces: c.Namespaces(), unlisted: map[string]*upstream.Upstream{}}
	defer func() {
		if err != nil {
			m.closeUpstreams()
		}
	}()
	o := &mirror.Options{Dir: filepath.Join(r.dir, mirrorDir), KeepFree: keepFree(r.dir), Default: c.DefaultName(),
		Offline: c.Offline, MaxBytes: int64(c.MaxBytes), Ahead: int64(c.Ahead), Logger: log, OnEvent: m.feed.publish}
	for _, p := range c.Mappings {
		o.Mappings = append(o.Mappings, mirror.Mapping{From: p.From, To: p.To})
	}
	if len(c.Any) > 0 {
		o.Any = m.openAny(r, cfg, log)
	}
	for i, u := range c.All() {
		key := fmt.Sprintf("proxy.upstreams[%d]", i)
		if i >= len(c.Upstreams) {
			key = "proxy"
		}
		source, err := m.openListed(&u, log)
		if err != nil {
			return cfg.Problem(key, err.Error())
		}
		o.Sources = append(o.Sources, *source)
	}
	store := mirrorStore{stoppable{r.watched(), gate}, r.reg, gate}
	if m.Registry, err = mirror.New(store, o); err != nil {
		return fmt.Errorf("open the mirrors: %w", err)
	}
	r.mirrors = m
	return nil
}

// ownNames returns the names under which clients may mean this registry itself.
func ownNames(cfg *config.Config) map[string]bool {
	own := make(map[string]bool)
	for _, h := range slices.Concat(cfg.Proxy.OwnNames, cfg.HTTP.Names) {
		own[strings.ToLower(h)] = true
	}
	if u, err := url.Parse(cfg.HTTP.Host); err == nil && u.Host != "" {
		own[strings.ToLower(u.Host)] = true
	}
	return own
}

// openListed opens an upstream that the configuration lists.
func (m *mirrors) openListed(u *config.Upstream, log *slog.Logger) (*mirror.Source, error) {
	s, up, err := openSource(u, false, log)
	if err != nil {
		return nil, err
	}
	m.upstreams = append(m.upstreams, up)
	for _, h := range u.Hosts {
		m.virtual[strings.ToLower(h)] = true
	}
	return s, nil
}

// openSource opens an upstream and compiles its rules. guarded is set if the client
// chooses the upstream's address.
func openSource(u *config.Upstream, guarded bool, log *slog.Logger) (_ *mirror.Source, up *upstream.Upstream, err error) {
	o, err := upstreamOptions(u, log)
	if err != nil {
		return nil, nil, err
	}
	o.PublicOnly = guarded
	if up, err = upstream.New(o); err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			up.Close()
		}
	}()
	others := slices.DeleteFunc(slices.Clone(u.Hosts), func(h string) bool { return strings.EqualFold(h, u.Name) })
	s := &mirror.Source{
		Name: u.Name, Hosts: others, Upstream: up, TTL: orNone(u.TTL), NegativeTTL: orNone(u.NegativeTTL), StaleIfError: orNone(u.StaleIfError),
		Offline: u.Offline, Library: u.UsesLibrary(), KeepDeleted: u.KeepDeleted, MinAge: u.MinAge, OnlySigned: u.OnlySigned,
	}
	if s.Allow, err = mirrorRules(u.Allow); err != nil {
		return nil, nil, fmt.Errorf("allow: %w", err)
	}
	if s.Deny, err = mirrorRules(u.Deny); err != nil {
		return nil, nil, fmt.Errorf("deny: %w", err)
	}
	for _, text := range u.Platforms {
		p, err := oci.ParsePlatform(text)
		if err != nil {
			return nil, nil, fmt.Errorf("platforms: %w", err)
		}
		s.Platforms = append(s.Platforms, p)
	}
	return s, up, nil
}

// orNone converts a duration for package mirror, which would take 0 as its default.
func orNone(d time.Duration) time.Duration {
	if d == 0 {
		return -1
	}
	return d
}

// mirrorRules makes a rule of each combination of a repository and a tag.
func mirrorRules(list []config.ImageRule) ([]mirror.Rule, error) {
	var rules []mirror.Rule
	for _, r := range list {
		names := r.Repositories
		if len(names) == 0 {
			names = []string{"**"}
		}
		tags, err := wholeMatches(r.Tags)
		if err != nil {
			return nil, err
		}
		if len(tags) == 0 {
			tags = []*regexp.Regexp{nil} // all
		}
		for _, name := range names {
			for _, tag := range tags {
				rules = append(rules, mirror.Rule{Name: name, Tag: tag})
			}
		}
	}
	return rules, nil
}

func upstreamOptions(u *config.Upstream, log *slog.Logger) (_ *upstream.Options, err error) {
	o := &upstream.Options{
		Name: u.Name, URL: u.URL, Mirrors: u.Mirrors, Concurrent: u.Concurrency, RequestsPerSecond: u.RequestsPerSecond, Burst: u.Burst,
		Redirects: u.Networks(), ConnectTimeout: u.ConnectTimeout, HeaderTimeout: u.HeaderTimeout, StallTimeout: u.StallTimeout, Logger: log,
	}
	if err := upstreamTLS(&u.TLS, o); err != nil {
		return nil, err
	}
	if o.Credential, err = upstreamCredential(u, log); err != nil {
		return nil, err
	}
	switch u.HTTPProxy {
	case "":
	case config.NoProxy:
		o.Proxy = func(*http.Request) (*url.URL, error) { return nil, nil }
	default:
		at, err := url.Parse(u.HTTPProxy)
		if err != nil {
			return nil, errors.New("http_proxy is not a URL") // the original error may quote a password
		}
		o.Proxy = http.ProxyURL(at)
	}
	return o, nil
}

// upstreamTLS reads the files of a section. The upstream may redirect to other servers,
// so its authorities are accepted for these in addition to the system's.
func upstreamTLS(c *config.UpstreamTLS, o *upstream.Options) error {
	if *c == (config.UpstreamTLS{}) {
		return nil
	}
	t := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: c.InsecureSkipVerify}
	if c.CA != "" {
		var err error
		if t.RootCAs, err = wire.Pool(c.CA); err == nil {
			o.OtherRoots, err = wire.SystemPool(c.CA)
		}
		if err != nil {
			return fmt.Errorf("tls.ca: %w", err)
		}
	}
	o.TLS = t
	if c.Certificate == "" {
		return nil
	}
	pair, err := tls.LoadX509KeyPair(c.Certificate, c.Key)
	if err != nil {
		return fmt.Errorf("tls.certificate and tls.key: %w", err)
	}
	t.Certificates = []tls.Certificate{pair}
	return nil
}

// upstreamCredential returns the source of the credentials for an upstream, or nil.
func upstreamCredential(u *config.Upstream, log *slog.Logger) (client.CredentialFunc, error) {
	at, err := url.Parse(u.URL)
	if err != nil {
		return nil, errors.New("url is not a URL")
	}
	switch {
	case len(u.Command.Command) > 0:
		return client.CommandCredential(at.Host, client.CommandOptions{Command: u.Command.Command, Username: u.Username,
			Every: u.Command.Every, Timeout: u.Command.Timeout, Logger: log})
	case u.DockerConfig != "":
		if _, err := os.Stat(u.DockerConfig); err != nil {
			return nil, fmt.Errorf("docker_config: %w", err)
		}
		return client.DockerCredential(u.DockerConfig)
	case u.Username != "":
		return client.StaticCredential(at.Host, u.Username, u.Password.Reveal()), nil
	}
	return nil, nil
}

// checkMirrors opens what the section proxy names, to check it, and nothing else.
func checkMirrors(cfg *config.Config) error {
	m := &mirrors{virtual: map[string]bool{}}
	defer m.closeUpstreams()
	for i, u := range cfg.Proxy.All() {
		if _, err := m.openListed(&u, slog.New(slog.DiscardHandler)); err != nil {
			key := "proxy"
			if i < len(cfg.Proxy.Upstreams) {
				key = fmt.Sprintf("proxy.upstreams[%d]", i)
			}
			return cfg.Problem(key, err.Error())
		}
	}
	return nil
}

func (m *mirrors) closeUpstreams() {
	for _, u := range m.upstreams {
		u.Close()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, u := range m.unlisted {
		u.Close()
	}
}

// close ends the fetches under way. m may be nil.
func (m *mirrors) close(ctx context.Context) error {
	if m == nil {
		return nil
	}
	err := m.Close(ctx)
	m.closeUpstreams()
	return err
}

// metrics returns the collectors of the mirrors and their upstreams. m may be nil.
func (m *mirrors) metrics() []prometheus.Collector {
	if m == nil {
		return nil
	}
	list := append(m.Metrics(), m)
	for _, u := range m.upstreams {
		list = append(list, u.Collectors()...)
	}
	return list
}

// failing returns a line for each upstream that cannot be reached. m may be nil.
func (m *mirrors) failing() []string {
	if m == nil {
		return nil
	}
	var lines []string
	for _, st := range m.Status().Sources {
		if st.State.Bad() && !st.State.Works() {
			lines = append(lines, fmt.Sprintf("upstream %s is %s; what was fetched from it before is served", st.Name, st.State))
		}
	}
	return lines
}

// namespaceParam is the query parameter in which clients of a mirror name the registry
// that they mean.
const namespaceParam = "ns"

// repository implements server.RepositoryFunc. The query parameter has priority over the
// host of the request, and the host over the name.
func (m *mirrors) repository(r *http.Request, name string) (string, error) {
	repo, plain, err := m.meant(r, name)
	if err != nil || !plain || writes(r) {
		return repo, err
	}
	return m.Name(r.Context(), name), nil
}

// byDefault implements server.DefaultedFunc.
func (m *mirrors) byDefault(r *http.Request, name string) bool {
	repo, plain, err := m.meant(r, name)
	return err == nil && plain && m.cfg.DefaultName() != "" && !m.Mirrored(repo)
}

// forToken returns the repository that a name in a token's scope stands for. The request
// does not say whether the token is for reading or for pushing, but the token is valid
// for the name itself anyway.
func (m *mirrors) forToken(r *http.Request, name string) string {
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
// default upstream. plain reports that only the name says so.
func (m *mirrors) meant(r *http.Request, name string) (repo string, plain bool, err error) {
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
func (m *mirrors) looksLike(name, reached string) string {
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
func (m *mirrors) named(look func(registry, name string) (string, bool), registry, name string) (string, bool) {
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
func (m *mirrors) isOwn(name, host string) bool {
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

// mirrorStore is the registry that stores mirrored content. While writes are stopped, it
// stores nothing.
type mirrorStore struct {
	stoppable
	stored *registry.Registry
	gate   *writeGate
}

var _ mirror.Store = mirrorStore{}

// AdoptBlob implements mirror.Store.
func (s mirrorStore) AdoptBlob(ctx context.Context, repo string, d oci.Digest, size int64, path string) (oci.Descriptor, error) {
	return guarded(s.gate, func() (oci.Descriptor, error) { return s.stored.AdoptBlob(ctx, repo, d, size, path) })
}

// AdoptBytes implements mirror.Store.
func (s mirrorStore) AdoptBytes(ctx context.Context, repo string, d oci.Digest, content []byte) (oci.Descriptor, error) {
	return guarded(s.gate, func() (oci.Descriptor, error) { return s.stored.AdoptBytes(ctx, repo, d, content) })
}

// LinkStored implements mirror.Store.
func (s mirrorStore) LinkStored(ctx context.Context, repo string, d oci.Digest) (oci.Descriptor, error) {
	return guarded(s.gate, func() (oci.Descriptor, error) { return s.stored.LinkStored(ctx, repo, d) })
}

// ForgetTag implements mirror.Store.
func (s mirrorStore) ForgetTag(ctx context.Context, repo, tag string) error {
	_, err := guarded(s.gate, func() (struct{}, error) { return struct{}{}, s.stored.ForgetTag(ctx, repo, tag) })
	return err
}

// Forget implements mirror.Store.
func (s mirrorStore) Forget(ctx context.Context, repo string, o registry.ForgetOptions, digests ...oci.Digest) (registry.Forgotten, error) {
	return guarded(s.gate, func() (registry.Forgotten, error) { return s.stored.Forget(ctx, repo, o, digests...) })
}

// ForgetBlob implements mirror.Store.
func (s mirrorStore) ForgetBlob(ctx context.Context, repo string, d oci.Digest) error {
	_, err := guarded(s.gate, func() (struct{}, error) { return struct{}{}, s.stored.ForgetBlob(ctx, repo, d) })
	return err
}

// NotePull implements mirror.Store.
func (s mirrorStore) NotePull(repo, ref string) { s.stored.NotePull(repo, ref) }

// MirrorImages implements mirror.Store.
func (s mirrorStore) MirrorImages(ctx context.Context, q registry.MirrorQuery) ([]registry.MirrorImage, string, error) {
	return s.stored.MirrorImages(ctx, q)
}

// MirrorUsage implements mirror.Store.
func (s mirrorStore) MirrorUsage(ctx context.Context, prefixes ...string) (registry.MirrorUsage, error) {
	return s.stored.MirrorUsage(ctx, prefixes...)
}

// NamedBy implements mirror.Store.
func (s mirrorStore) NamedBy(ctx context.Context, repo string, d oci.Digest) ([]oci.Digest, error) {
	return s.stored.NamedBy(ctx, repo, d)
}

// MirrorAdded implements mirror.Store.
func (s mirrorStore) MirrorAdded() int64 { return s.stored.MirrorAdded() }
