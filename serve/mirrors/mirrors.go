// Package mirrors is the part of a data root that is copied from other registries. It opens the
// configured upstreams for registry/mirror, decides which repository a request means, and does what
// administration does with mirrors: load, list, prune, and carry them in files.
package mirrors

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
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
	"example.org/slipway/oci/client/command"
	"example.org/slipway/oci/wire"
	"example.org/slipway/registry"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/mirror"
	"example.org/slipway/registry/mirror/upstream"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/serve/gate"
)

// Dir is the directory in a data root for incoming blobs of upstreams.
const Dir = "slipway/mirror"

// Stored is where mirrored images are stored.
type Stored struct {
	// Dir is the data root, and KeepFree is how many bytes of its disk stay free.
	Dir      string
	KeepFree int64
	Registry *registry.Registry
	Catalog  *catalog.Catalog
	Store    objstore.Store
	// IsMirror is the function that Mirrored returned.
	IsMirror func(repo string) bool
}

// Mirrors holds the mirrored registries of a data root.
type Mirrors struct {
	*mirror.Registry
	Stored
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

// Mirrored returns a function that reports whether a repository is a mirror. It returns nil if
// nothing is mirrored.
func Mirrored(cfg *config.Config) func(repo string) bool {
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

// Open puts the mirrored registries in front of another registry. That registry, front,
// is the stored registry for clients. Open returns nil if nothing is mirrored. Writes go
// through the gate.
func Open(cfg *config.Config, stored Stored, front oci.Registry, writes *gate.Writes, log *slog.Logger) (_ *Mirrors, err error) {
	c := &cfg.Proxy
	if !c.Enabled() {
		return nil, nil
	}
	m := &Mirrors{Stored: stored, cfg: c, own: ownNames(cfg), virtual: map[string]bool{}, namespaces: c.Namespaces(), unlisted: map[string]*upstream.Upstream{}}
	defer func() {
		if err != nil {
			m.closeUpstreams()
		}
	}()
	o := &mirror.Options{Dir: filepath.Join(stored.Dir, Dir), KeepFree: stored.KeepFree, Default: c.DefaultName(),
		Offline: c.Offline, MaxBytes: int64(c.MaxBytes), Ahead: int64(c.Ahead), Logger: log, OnEvent: m.feed.publish}
	for _, p := range c.Mappings {
		o.Mappings = append(o.Mappings, mirror.Mapping{From: p.From, To: p.To})
	}
	if len(c.Any) > 0 {
		o.Any = m.openAny(cfg, log)
	}
	for i, u := range c.All() {
		key := fmt.Sprintf("proxy.upstreams[%d]", i)
		if i >= len(c.Upstreams) {
			key = "proxy"
		}
		source, err := m.openListed(&u, log)
		if err != nil {
			return nil, cfg.Problem(key, err.Error())
		}
		o.Sources = append(o.Sources, *source)
	}
	if m.Registry, err = mirror.New(store{writes.Registry(front), stored.Registry, writes}, o); err != nil {
		return nil, fmt.Errorf("open the mirrors: %w", err)
	}
	return m, nil
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
func (m *Mirrors) openListed(u *config.Upstream, log *slog.Logger) (*mirror.Source, error) {
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
		tags, err := config.CompileWhole(r.Tags)
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
	if o.Credential, err = Credential(u, log); err != nil {
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

// Credential returns the source of the credentials for an upstream, or nil.
func Credential(u *config.Upstream, log *slog.Logger) (client.CredentialFunc, error) {
	at, err := url.Parse(u.URL)
	if err != nil {
		return nil, errors.New("url is not a URL")
	}
	switch {
	case len(u.Command.Command) > 0:
		return command.Credential(at.Host, command.Options{Command: u.Command.Command, Username: u.Username,
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

// Check opens what the section proxy names, to check it, and nothing else.
func Check(cfg *config.Config) error {
	m := &Mirrors{virtual: map[string]bool{}}
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

func (m *Mirrors) closeUpstreams() {
	for _, u := range m.upstreams {
		u.Close()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, u := range m.unlisted {
		u.Close()
	}
}

// Close ends the fetches under way. m may be nil.
func (m *Mirrors) Close(ctx context.Context) error {
	if m == nil {
		return nil
	}
	err := m.Registry.Close(ctx)
	m.closeUpstreams()
	return err
}

// Metrics returns the collectors of the mirrors and their upstreams. m may be nil.
func (m *Mirrors) Metrics() []prometheus.Collector {
	if m == nil {
		return nil
	}
	list := append(m.Registry.Metrics(), m)
	for _, u := range m.upstreams {
		list = append(list, u.Collectors()...)
	}
	return list
}

// Failing returns a line for each upstream that cannot be reached. m may be nil.
func (m *Mirrors) Failing() []string {
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
