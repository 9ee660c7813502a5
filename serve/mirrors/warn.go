package mirrors

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"example.org/slipway/config"
)

// mirroredFile is a file in Dir. It lists the upstreams of the last start, one on
// each line.
const mirroredFile = "upstreams"

// warnedRepositories is how many repositories a warning names.
const warnedRepositories = 10

// WarnOfPushed looks for repositories below the names of upstreams that are new since the
// last start, and warns of them. Users who pushed them hardly want them to be mirrors,
// which accept no pushes and are removed to save space. m may be nil.
func (m *Mirrors) WarnOfPushed(ctx context.Context, log *slog.Logger) error {
	if m == nil {
		return nil
	}
	file := filepath.Join(m.Dir, Dir, mirroredFile)
	text, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("read which upstreams there were: %w", err)
	}
	before := strings.Fields(string(text))
	var now []string
	for _, u := range m.cfg.All() {
		now = append(now, u.Name)
		if slices.Contains(before, u.Name) {
			continue
		}
		names, err := m.below(ctx, u.Name+"/")
		if err != nil {
			return fmt.Errorf("look for repositories of upstream %s: %w", u.Name, err)
		}
		if len(names) > 0 {
			log.Warn("repositories begin with the name of an upstream that this server did not mirror before: they are its mirrors, "+
				"take no pushes, and proxy.ttl, proxy.max_bytes and slipway mirror prune remove them; "+
				"if they were pushed, give the upstream another name",
				"upstream", u.Name, "repositories", names)
		}
	}
	if any := m.cfg.Any; len(any) > 0 {
		now = append(now, any...)
		if slices.ContainsFunc(any, func(pattern string) bool { return !slices.Contains(before, pattern) }) {
			if err := m.warnOfHosts(ctx, log); err != nil {
				return err
			}
		}
	}
	if slices.Equal(before, now) {
		return nil
	}
	next := file + ".new"
	if err := os.WriteFile(next, []byte(strings.Join(now, "\n")+"\n"), 0o600); err != nil {
		return fmt.Errorf("note which upstreams there are: %w", err)
	}
	if err := os.Rename(next, file); err != nil {
		return fmt.Errorf("note which upstreams there are: %w", err)
	}
	return nil
}

// warnOfHosts looks for repositories whose names begin with hosts that match proxy.any,
// and warns of them.
func (m *Mirrors) warnOfHosts(ctx context.Context, log *slog.Logger) error {
	parts, err := m.firstParts(ctx)
	if err != nil {
		return fmt.Errorf("look for repositories of registries that are not listed: %w", err)
	}
	prefixes, err := m.Prefixes(ctx)
	if err != nil {
		return fmt.Errorf("look for repositories of registries that are not listed: %w", err)
	}
	parts = slices.DeleteFunc(parts, func(part string) bool {
		return !slices.Contains(prefixes, part+"/") || slices.ContainsFunc(m.cfg.All(), func(u config.Upstream) bool { return u.Name == part })
	})
	if len(parts) > 0 {
		log.Warn("repositories begin with hosts that proxy.any fits: they are mirrors, take no pushes, and proxy.ttl, proxy.max_bytes and "+
			"slipway mirror prune remove them; if they were pushed, make the patterns of proxy.any fit less", "begin", parts[:min(len(parts), warnedRepositories)])
	}
	return nil
}

// below returns the first repositories whose names begin with a prefix.
func (s *Stored) below(ctx context.Context, prefix string) ([]string, error) {
	list, err := s.Catalog.Repositories(ctx, prefix, warnedRepositories)
	if i := slices.IndexFunc(list, func(name string) bool { return !strings.HasPrefix(name, prefix) }); i >= 0 {
		list = list[:i]
	}
	return list, err
}
