package mirrors

import (
	"context"
	"log/slog"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"example.org/slipway/config"
	"example.org/slipway/oci"
	"example.org/slipway/registry/mirror"
	"example.org/slipway/registry/mirror/upstream"
)

// anyHosts returns the registries that are mirrored without being listed.
func anyHosts(cfg *config.Config) *mirror.AnyHosts {
	a := &mirror.AnyHosts{Except: map[string]bool{}}
	for _, s := range cfg.Proxy.Any {
		if p, err := oci.ParseHostPattern(s); err == nil { // Validate has refused patterns that do not parse
			a.Patterns = append(a.Patterns, p)
		}
	}
	except := func(name string) { a.Except[strings.ReplaceAll(strings.ToLower(name), ":", "-")] = true }
	for own := range ownNames(cfg) {
		except(own)
	}
	for _, u := range cfg.Proxy.All() { // the rules of a listed upstream apply under all its names
		for _, name := range slices.Concat(u.Hosts, u.Namespaces(), []string{u.Name}) {
			except(name)
		}
	}
	return a
}

// openAny makes the mirrors open unlisted registries when they are requested.
func (m *Mirrors) openAny(cfg *config.Config, log *slog.Logger) *mirror.Any {
	return &mirror.Any{
		AnyHosts: *anyHosts(cfg),
		Open: func(name, url string, guarded bool) (*mirror.Source, error) {
			u := config.Unlisted(name, url)
			s, up, err := openSource(&u, guarded, log)
			if err != nil {
				return nil, err
			}
			m.mu.Lock()
			defer m.mu.Unlock()
			m.unlisted[name] = up
			return s, nil
		},
		Close: func(s *mirror.Source) {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.unlisted[s.Name].Close()
			delete(m.unlisted, s.Name)
		},
		Stored: m.firstParts,
	}
}

// firstParts lists the first parts of the names of stored repositories, up to the first
// slash.
func (s *Stored) firstParts(ctx context.Context) ([]string, error) {
	const page = 100
	var list []string
	for last := ""; ; {
		names, err := s.Catalog.Repositories(ctx, last, page)
		if err != nil || len(names) == 0 {
			return list, err
		}
		for _, name := range names {
			if first, _, ok := strings.Cut(name, "/"); ok && (len(list) == 0 || list[len(list)-1] != first) {
				list = append(list, first)
			}
		}
		last = names[len(names)-1]
		if first, _, ok := strings.Cut(names[0], "/"); ok && strings.HasPrefix(last, first+"/") {
			last = first + "0" // '0' follows '/', so this follows all names with that first part
		}
	}
}

// Describe implements prometheus.Collector. It describes nothing, because the upstreams
// are not known beforehand.
func (m *Mirrors) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector, for upstreams that are not listed.
func (m *Mirrors) Collect(ch chan<- prometheus.Metric) {
	m.mu.Lock()
	list := make([]*upstream.Upstream, 0, len(m.unlisted))
	for _, u := range m.unlisted {
		list = append(list, u)
	}
	m.mu.Unlock()
	for _, u := range list {
		for _, c := range u.Collectors() {
			c.Collect(ch)
		}
	}
}
