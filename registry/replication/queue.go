package replication

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/oci/imagecopy"
)

const (
	// batch is how many entries of the queue are read at once.
	batch = 500
	// maxAhead bounds how many are read to find one behind those that wait.
	maxAhead = 64 * batch
	// maxHeld is how many are read to find those that failed.
	maxHeld = 4 * batch
)

// ahead returns the entries at the front of the queue. It reads on if none of them is due.
// more says that there may be others behind them.
func (w *worker) ahead(ctx context.Context) (list []queued, more bool, err error) {
	for n := batch; ; n *= 2 {
		items, err := w.r.o.Store.Next(ctx, w.rule.Name, n)
		if err != nil {
			return nil, false, err
		}
		list, stale := latest(items)
		if err := w.r.o.Store.Delete(ctx, stale...); err != nil {
			return nil, false, err
		}
		if len(items) < n || n >= maxAhead || slices.ContainsFunc(list, func(it queued) bool { return w.untilDue(&it) == 0 }) {
			return list, len(items) == n, nil
		}
	}
}

// held returns how many of the next entries of the queue failed before, and at most
// maxErrors of their failures. It looks at no more than maxHeld entries.
func (w *worker) held(ctx context.Context) (n int, failures []string, err error) {
	items, err := w.r.o.Store.Next(ctx, w.rule.Name, maxHeld)
	if err != nil {
		return 0, nil, err
	}
	list, _ := latest(items)
	for i := range list {
		if list[i].Attempts == 0 {
			continue
		}
		if n++; list[i].Error != "" && len(failures) < maxErrors { // earlier versions kept no reason
			failures = append(failures, list[i].failure())
		}
	}
	return n, failures, nil
}

// untilDue returns how long an entry still has to wait.
func (w *worker) untilDue(it *queued) time.Duration {
	if w.eager {
		return 0
	}
	return w.r.left(it.Due, w.r.o.RetryMaxWait)
}

// drain does what is in the queue, and returns when to look again.
func (w *worker) drain(ctx context.Context, st *state) (wait time.Duration, err error) {
	list, more, err := w.ahead(ctx)
	if err != nil {
		return 0, err
	}
	wait = lookAgain
	done := false
	for _, it := range list {
		if d := w.untilDue(&it); d > 0 {
			wait = min(wait, d)
			continue
		}
		retry, err := w.deliver(ctx, st, it)
		if err != nil {
			return 0, err
		}
		if retry > 0 {
			return retry, nil
		}
		done = true
	}
	if done && more {
		wait = 0
	}
	return wait, w.show(ctx, st)
}

// queued is an entry of the queue.
type queued struct {
	change
	id int64
}

// latest returns the entries that are to be done, in order. stale are the ids of those that
// a later one for the same name makes superfluous, and of those that cannot be read.
//
// An entry that failed was put at the end of the queue again, but it is older than one
// before it that has not been tried yet.
func latest(items []Item) (list []queued, stale []int64) {
	at := map[string]int{}
	for _, it := range items {
		q := queued{id: it.ID}
		if json.Unmarshal(it.Payload, &q.change) != nil {
			stale = append(stale, it.ID)
			continue
		}
		key := q.String()
		if i, ok := at[key]; ok {
			if q.Attempts > 0 && list[i].Attempts == 0 {
				stale = append(stale, q.id)
				continue
			}
			stale = append(stale, list[i].id)
			list[i] = queued{id: -1}
		}
		at[key] = len(list)
		list = append(list, q)
	}
	out := list[:0]
	for _, q := range list {
		if q.id >= 0 {
			out = append(out, q)
		}
	}
	return out, stale
}

// deliver does one entry of the queue. It returns for how long the whole queue has to wait
// if the remote registry is away.
func (w *worker) deliver(ctx context.Context, st *state, it queued) (retry time.Duration, err error) {
	counts, err := w.r.repeat(ctx, w.rule, &it.change)
	w.r.metrics.counted(w.rule.Name, counts)
	store := w.r.o.Store
	switch {
	case ctx.Err() != nil:
		return 0, ctx.Err()
	case err == nil:
		if st.Failures > 0 && !st.Failed {
			st.Away, st.Failures, st.RetryAt = false, 0, time.Time{}
			if err := w.save(ctx, st); err != nil {
				return 0, err
			}
		}
		return 0, store.Delete(ctx, it.id)
	case it.Deleted && it.Attempts >= maxUnsupported && oci.HasCode(err, oci.CodeUnsupported):
		w.r.o.Logger.Warn("the remote registry does not support deletions; one is left out", "rule", w.rule.Name, "ref", it.String(), "err", err)
		return 0, store.Delete(ctx, it.id)
	}
	return w.later(ctx, st, it, err)
}

// maxUnsupported is how often a deletion is tried that the remote registry says it does
// not support. With the pauses between them, that takes a day. A registry that is
// read-only for a while answers in the same way.
const maxUnsupported = 100

// later notes that an entry of the queue failed, and puts it at the end of the queue. So
// others need not wait for one that fails again and again.
func (w *worker) later(ctx context.Context, st *state, it queued, err error) (retry time.Duration, _ error) {
	it.Attempts++
	it.Error = err.Error()
	it.Due = w.r.o.Clock().Add(w.r.pause(it.Attempts))
	switch {
	case away(err):
		w.failed(st, err)
		st.Errors = []string{it.failure()}
		retry = w.r.left(st.RetryAt, w.r.o.RetryMaxWait)
	case st.Failed: // the state tells of the run
		w.r.o.Logger.Warn("replication failed", "rule", w.rule.Name, "remote", w.rule.URL, "ref", it.String(), "retry_at", it.Due, "err", err)
	default:
		w.failed(st, err)
		st.RetryAt, st.Errors = time.Time{}, []string{it.failure()}
	}
	if err := w.enqueue(ctx, it.change); err != nil {
		return 0, err
	}
	w.nudge() // the next look finds out when it is due
	return retry, errors.Join(w.r.o.Store.Delete(ctx, it.id), w.save(ctx, st))
}

// repeat repeats a push or a deletion at the remote registry.
func (r *Replicator) repeat(ctx context.Context, rule *Rule, c *change) (counts Counts, err error) {
	ctx = r.context(ctx, rule, c.Via)
	to, ok := rule.to(c.Repo)
	if !ok {
		return counts, nil // the rule has changed
	}
	if c.Deleted {
		if err = r.repeatDeletion(ctx, rule, c, to); err == nil {
			counts.Deleted = 1
		} else {
			counts.Failed = 1
		}
		return counts, err
	}
	ref := c.Tag
	if ref == "" {
		ref = string(c.Digest)
	}
	wanted, err := r.wanted(ctx, rule, c, to)
	if err != nil || !wanted {
		return counts, err
	}
	refs, err := r.withAttached(ctx, rule, c.Repo, ref)
	if err != nil {
		return counts, err
	}
	p, err := imagecopy.Copy(ctx, dated{rule.Remote, rule, r.o.History}, r.o.Local, imagecopy.Options{Referrers: rule.Referrers,
		Images: []imagecopy.Image{{From: c.Repo, To: to, References: refs}}})
	counts = Counts{Manifests: p.Manifests, Blobs: p.Blobs, Bytes: p.Bytes, Failed: p.Failed}
	if p.Manifests > 0 {
		counts.Images = p.References
	}
	if oci.HasCode(err, oci.CodeTagNewer) {
		return Counts{Newer: 1}, nil
	}
	if absent(err) {
		if _, gone := r.o.Local.ResolveManifest(ctx, c.Repo, ref); absent(gone) {
			return Counts{}, nil // it was deleted meanwhile
		}
	}
	return counts, err
}

// withAttached returns a reference and the tags under which cosign keeps what it attached to
// that image.
func (r *Replicator) withAttached(ctx context.Context, rule *Rule, repo, ref string) ([]string, error) {
	refs := []string{ref}
	if !rule.Referrers || subjectOf(ref) != "" {
		return refs, nil
	}
	desc, err := r.o.Local.ResolveManifest(ctx, repo, ref)
	if absent(err) {
		return refs, nil // the copy finds that out
	}
	if err != nil {
		return nil, err
	}
	parts, err := partsOf(ctx, r.o.Local, repo, desc)
	if err != nil {
		return nil, err
	}
	for _, d := range append([]oci.Digest{desc.Digest}, parts...) {
		for _, kind := range []string{".sig", ".att", ".sbom"} {
			tag := strings.Replace(string(d), ":", "-", 1) + kind
			switch _, err := r.o.Local.ResolveManifest(ctx, repo, tag); {
			case err == nil:
				refs = append(refs, tag)
			case !absent(err):
				return nil, err
			}
		}
	}
	return refs, nil
}

// wanted reports whether a push is copied: one of a tag that the rule picks, or of
// something that refers to an image which the remote registry has.
func (r *Replicator) wanted(ctx context.Context, rule *Rule, c *change, to string) (bool, error) {
	if c.Tag != "" && rule.picked(c.Tag) {
		return true, nil
	}
	subject := subjectOf(c.Tag)
	if c.Tag == "" {
		m, err := r.o.Local.GetManifest(ctx, c.Repo, string(c.Digest))
		if absent(err) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		var doc struct {
			Subject *oci.Descriptor `json:"subject"`
		}
		if json.Unmarshal(m.Bytes, &doc) == nil && doc.Subject != nil {
			subject = doc.Subject.Digest
		}
	}
	if subject == "" || !rule.Referrers {
		return false, nil
	}
	_, err := rule.Remote.ResolveManifest(ctx, to, string(subject))
	if absent(err) {
		return false, nil
	}
	return err == nil, err
}

// repeatDeletion deletes at the remote registry what was deleted here, unless it is here
// again.
func (r *Replicator) repeatDeletion(ctx context.Context, rule *Rule, c *change, to string) error {
	ref := c.Tag
	if ref == "" {
		ref = string(c.Digest)
	}
	switch _, err := r.o.Local.ResolveManifest(ctx, c.Repo, ref); {
	case err == nil:
		return nil
	case !absent(err):
		return err
	}
	var err error
	if c.Tag != "" {
		gone, ok, unknown := r.o.History.last(ctx, c.Repo, c.Tag, "")
		if unknown != nil {
			return unknown
		}
		if ok {
			ctx = oci.ChangedAt(ctx, gone.At)
		}
		err = rule.Remote.DeleteTag(ctx, to, c.Tag)
	} else {
		err = rule.Remote.DeleteManifest(ctx, to, c.Digest)
	}
	if absent(err) || oci.HasCode(err, oci.CodeTagNewer) {
		return nil
	}
	return err
}
