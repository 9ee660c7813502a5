package store

import (
	"context"
	"errors"
	"fmt"
	"path"
	"time"

	"example.org/slipway/workload/trace"
)

// CopyOptions say which requests are copied. The zero value copies all as they are.
type CopyOptions struct {
	// Zones are the zones that are copied; none means all.
	Zones []string
	// From and To bound the time of arrival: From is included, To is not. A zero time is
	// no bound.
	From, To time.Time
	// Repos are patterns of [path.Match]. A request is copied if its repository matches
	// one. Without patterns all requests are copied, including requests that have no
	// repository.
	Repos []string
	// Change is called for each record before it is written, and may change it; nil for
	// none.
	Change func(*trace.Record)
	// Progress is called now and then with the numbers of records that were read and
	// written; nil for nobody.
	Progress func(read, written int64)
}

// Copy writes requests of a store to another, and closes w.
func (s *Store) Copy(ctx context.Context, w *Writer, o *CopyOptions) (Written, error) {
	if o == nil {
		o = &CopyOptions{}
	}
	err := s.copy(ctx, w, o)
	err = errors.Join(err, w.Close())
	return w.Written(), err
}

func (s *Store) copy(ctx context.Context, w *Writer, o *CopyOptions) error {
	zones := o.Zones
	if len(zones) == 0 {
		for _, z := range s.zones {
			zones = append(zones, z.name)
		}
	}
	for _, pattern := range o.Repos {
		if _, err := path.Match(pattern, ""); err != nil {
			return fmt.Errorf("repository pattern %q: %w", pattern, err)
		}
	}
	matches := map[string]bool{}
	var read, written int64
	for _, z := range zones {
		err := s.Records(ctx, Query{Zone: z, From: o.From, To: o.To}, func(r *trace.Record) error {
			read++
			if o.Progress != nil && read%4096 == 0 {
				o.Progress(read, written)
			}
			if len(o.Repos) > 0 && !matchRepo(matches, o.Repos, trace.ParseURI(r.URI).Repo) {
				return nil
			}
			if o.Change != nil {
				o.Change(r)
			}
			written++
			return w.Add(z, r)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// matchRepo reports whether a repository matches a pattern. known caches the answers.
func matchRepo(known map[string]bool, patterns []string, repo string) bool {
	if repo == "" {
		return false
	}
	if m, ok := known[repo]; ok {
		return m
	}
	m := false
	for _, p := range patterns {
		if ok, err := path.Match(p, repo); err == nil && ok {
			m = true
			break
		}
	}
	const most = 1 << 20
	if len(known) < most {
		known[repo] = m
	}
	return m
}
