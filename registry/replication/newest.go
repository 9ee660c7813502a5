package replication

import (
	"context"
	"fmt"
	"time"

	"example.org/slipway/oci"
)

// HistoryFunc returns the changes of a tag, the last one first. Errors: UNSUPPORTED if the
// registry keeps no history, MANIFEST_UNKNOWN if it has none of the tag.
type HistoryFunc func(ctx context.Context, repo, tag string) ([]oci.TagChange, error)

// changes returns the changes of a tag, or none if the registry does not tell any.
func (f HistoryFunc) changes(ctx context.Context, repo, tag string) ([]oci.TagChange, error) {
	if f == nil {
		return nil, nil
	}
	list, err := f(ctx, repo, tag)
	if err == nil || answered(err) {
		return list, nil
	}
	return nil, fmt.Errorf("history of %s:%s: %w", repo, tag, err)
}

// last returns the last change of a tag to a digest, or to nothing if d is "". ok is false
// if the registry does not tell.
func (f HistoryFunc) last(ctx context.Context, repo, tag string, d oci.Digest) (c oci.TagChange, ok bool, err error) {
	list, err := f.changes(ctx, repo, tag)
	for _, c := range list {
		if c.Digest == d {
			return c, true, nil
		}
	}
	return c, false, err
}

// later reports whether a change was made after another one, by the rule of
// [oci.ChangedAt]: of changes at the same time, that to the greater digest is the later.
func later(a, b oci.TagChange) bool {
	x, y := a.At.UnixMilli(), b.At.UnixMilli()
	return x > y || x == y && a.Digest > b.Digest
}

// newer reports whether the destination's change of a tag is later than the source's. It
// is false if one of them does not tell, because the source counts then.
func (x *run) newer(ctx context.Context, repo, to, tag string, here, there oci.Digest) (bool, error) {
	a, ok, err := x.srcHistory.last(ctx, repo, tag, here)
	if err != nil || !ok {
		return false, err
	}
	b, ok, err := x.dstHistory.last(ctx, to, tag, there)
	return ok && later(b, a), err
}

// dated is the destination of copies. It is told when the source set each tag, so that it
// can refuse what is older than its own.
type dated struct {
	oci.Registry
	rule *Rule
	from HistoryFunc
}

// PutManifest implements oci.Registry.
func (r dated) PutManifest(ctx context.Context, repo string, m oci.PutManifest) (oci.PutResult, error) {
	d := m.Digest
	if d == "" {
		d = oci.SHA256(m.Bytes)
	}
	for _, tag := range m.Tags { // copies set one at a time
		from, _ := r.rule.from(repo)
		change, ok, err := r.from.last(ctx, from, tag, d)
		if err != nil {
			return oci.PutResult{}, err
		}
		if ok {
			ctx = oci.ChangedAt(ctx, change.At)
		}
	}
	return r.Registry.PutManifest(ctx, repo, m)
}

// timeHeader says when the registry that sends a change of a tag made it itself, or when
// that one did from which it came. It is in RFC 3339.
const timeHeader = "Slipway-Replicated-At"

// parseTime returns the time in timeHeader, or the zero time.
func parseTime(s string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil || t.Year() < 1970 || t.Year() > 9999 {
		return time.Time{}
	}
	return t
}
