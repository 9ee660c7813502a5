package mirror

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/mirror/route"
	"example.org/slipway/registry/mirror/upstream"
)

// The questions that a flight can ask.
const (
	flyManifest = iota // a manifest by tag or digest
	flyBlob            // whether a repository has a blob
	flyTag             // what a tag that the store has stands for now
)

// ResolveManifest implements oci.Reader.
func (m *Registry) ResolveManifest(ctx context.Context, repo, ref string) (oci.Descriptor, error) {
	s, name := m.source(repo)
	if s == nil {
		return m.store.ResolveManifest(ctx, repo, ref)
	}
	mf, err := m.manifest(ctx, s, name, repo, ref, func(ctx context.Context, repo, ref string) (*oci.Manifest, error) {
		d, err := m.store.ResolveManifest(ctx, repo, ref)
		return &oci.Manifest{Descriptor: d}, err
	})
	if err != nil {
		return oci.Descriptor{}, err
	}
	return mf.Descriptor, nil
}

// GetManifest implements oci.Reader.
func (m *Registry) GetManifest(ctx context.Context, repo, ref string) (*oci.Manifest, error) {
	s, name := m.source(repo)
	if s == nil {
		return m.store.GetManifest(ctx, repo, ref)
	}
	noted := false
	mf, err := m.manifest(ctx, s, name, repo, ref, func(ctx context.Context, repo, ref string) (*oci.Manifest, error) {
		mf, err := m.store.GetManifest(ctx, repo, ref)
		noted = noted || err == nil
		return mf, err
	})
	if err != nil {
		return nil, err
	}
	if !noted { // the store does not have the manifest yet
		m.store.NotePull(repo, ref)
		m.ahead(ctx, s, name, repo, mf)
	}
	s.counts.pushed.Add(mf.Size)
	if s.strict {
		s.noteChildren(repo, mf)
	}
	return mf, nil
}

// read reads a manifest from the store.
type read func(ctx context.Context, repo, ref string) (*oci.Manifest, error)

// manifest returns a manifest of a mirrored repository. It takes it from the store if the
// stored one may be served.
func (m *Registry) manifest(ctx context.Context, s *source, name, repo, ref string, stored read) (*oci.Manifest, error) {
	if oci.IsDigest(ref) {
		return m.ofDigest(ctx, s, name, repo, oci.Digest(ref), stored)
	}
	if !oci.ValidTag(ref) { // ref would become part of a URL
		return nil, unknownManifest(repo, ref, "")
	}
	return m.ofTag(ctx, s, name, repo, ref, stored)
}

// ofDigest returns a manifest by digest. A manifest that the store has cannot have
// changed, so the upstream is not asked for it.
func (m *Registry) ofDigest(ctx context.Context, s *source, name, repo string, d oci.Digest, stored read) (*oci.Manifest, error) {
	if mf := m.pending.get(repo, d); mf != nil {
		s.counts.add(kindManifest, resultHit)
		return mf, nil
	}
	mf, err := stored(ctx, repo, string(d))
	if err == nil {
		s.counts.add(kindManifest, resultHit)
		return mf, nil
	}
	if !oci.HasCode(err, oci.CodeManifestUnknown) {
		return nil, err
	}
	if err := oci.CheckDigest(d); err != nil {
		return nil, err
	}
	if err := m.cannotAsk(ctx, s, kindManifest, repo, string(d), m.now(), unknownManifest); err != nil {
		return nil, err
	}
	if c, ok := s.children.get(childKey{repo, d}); ok && !c.wanted {
		s.counts.add(kindManifest, resultDenied)
		return nil, unknownManifest(repo, string(d), fmt.Sprintf("; its platform %s is not one that %s is mirrored for", c.platform, s.Name))
	}
	mf, began, err := m.fly(ctx, flightKey{flyManifest, contentKey{repo, string(d)}}, func(ctx context.Context) (*oci.Manifest, error) {
		if mf := m.arrived(ctx, repo, d); mf != nil {
			return mf, nil
		}
		return m.fetch(ctx, s, name, repo, string(d), "")
	})
	s.counts.fetched(kindManifest, began, err)
	return mf, err
}

// arrived returns a manifest that has been fetched since the store was asked for it, or
// nil.
func (m *Registry) arrived(ctx context.Context, repo string, d oci.Digest) *oci.Manifest {
	if mf := m.pending.get(repo, d); mf != nil {
		return mf
	}
	if m.recent.has(contentKey{repo, string(d)}) {
		if mf, err := m.store.GetManifest(ctx, repo, string(d)); err == nil {
			return mf
		}
	}
	return nil
}

// ofTag returns a manifest by tag. It asks the upstream what the tag stands for unless it
// did so lately.
func (m *Registry) ofTag(ctx context.Context, s *source, name, repo, tag string, stored read) (*oci.Manifest, error) {
	for range maxLooks {
		now := m.now()
		st, known := s.tags.get(repo, tag)
		if s.Offline || m.self.Back(ctx) || known && now.Before(st.until) {
			mf, err := m.confirmed(ctx, repo, tag, st.digest, stored)
			if err == nil {
				s.counts.add(kindManifest, st.result())
				return mf, nil
			}
			if !oci.HasCode(err, oci.CodeManifestUnknown) {
				return nil, err
			}
		}
		if err := m.cannotAsk(ctx, s, kindManifest, repo, tag, now, unknownManifest); err != nil {
			return nil, err
		}
		mf, began, err := m.fly(ctx, flightKey{flyManifest, contentKey{repo, tag}}, func(ctx context.Context) (*oci.Manifest, error) {
			return m.revalidate(ctx, s, name, repo, tag)
		})
		if err != nil || mf.Bytes != nil {
			s.counts.fetched(kindManifest, began, err)
			return mf, err
		}
		// The store has the manifest, unless it was forgotten just now.
		mf, err = m.confirmed(ctx, repo, tag, mf.Digest, stored)
		if err == nil {
			st, _ = s.tags.get(repo, tag)
			s.counts.add(kindManifest, st.result())
			return mf, nil
		}
		if !oci.HasCode(err, oci.CodeManifestUnknown) {
			return nil, err
		}
		s.tags.drop(repo, tag)
	}
	return nil, errChanging
}

// result returns how a request that is answered from this state is counted.
func (st tagState) result() result {
	if st.stale {
		return resultStale
	}
	return resultHit
}

// confirmed returns the manifest d that a tag was last confirmed to stand for. If d is
// empty, it returns what the store has under the tag.
func (m *Registry) confirmed(ctx context.Context, repo, tag string, d oci.Digest, stored read) (*oci.Manifest, error) {
	if d != "" {
		if mf := m.pending.get(repo, d); mf != nil {
			return mf, nil
		}
	}
	mf, err := stored(ctx, repo, tag)
	if d != "" && (err != nil || mf.Digest != d) {
		// The manifest d is about to be stored, or another replica has learned something
		// newer.
		if other, otherErr := stored(ctx, repo, string(d)); otherErr == nil {
			return other, nil
		}
	}
	return mf, err
}

// revalidate asks the upstream what a tag stands for. The manifest that it returns has no
// bytes if the store has them.
func (m *Registry) revalidate(ctx context.Context, s *source, name, repo, tag string) (*oci.Manifest, error) {
	st, known := s.tags.get(repo, tag)
	known = known && m.now().Before(st.until) // confirmed by a flight that has just ended
	if known {
		if mf := m.arrived(ctx, repo, st.digest); mf != nil {
			return mf, nil
		}
	}
	coming := m.pending.get(repo, st.digest) // before the store: a manifest leaves pending once stored
	have, err := m.store.ResolveManifest(ctx, repo, tag)
	answer := &oci.Manifest{Descriptor: have}
	if coming != nil {
		have, answer, err = coming.Descriptor, coming, nil
	}
	if err != nil && !oci.HasCode(err, oci.CodeManifestUnknown) {
		return nil, err
	}
	if err != nil {
		return m.fetch(ctx, s, name, repo, tag, tag)
	}
	if known && st.digest == have.Digest {
		return answer, nil
	}
	q := question{s: s, name: name, repo: repo, tag: tag, have: have}
	now, err := m.ask(ctx, q)
	if err == nil && now.Digest == have.Digest {
		m.confirm(s, repo, tag, have.Digest)
		return answer, nil
	}
	return m.follow(ctx, q, now.Digest, err)
}

// question asks what a tag that the store has stands for now.
type question struct {
	s         *source
	name      string // of the repository upstream
	repo, tag string
	have      oci.Descriptor
}

// follow acts on the upstream's answer that a tag stands for something else, or on its
// error.
func (m *Registry) follow(ctx context.Context, q question, now oci.Digest, err error) (*oci.Manifest, error) {
	s, repo, tag := q.s, q.repo, q.tag
	if err != nil {
		return m.stale(ctx, s, repo, tag, q.have, err)
	}
	mf := m.pending.get(repo, now)
	if mf == nil {
		mf, err = m.store.GetManifest(ctx, repo, string(now))
	}
	if err == nil {
		m.keep(s, repo, mf, tag)
	} else {
		mf, err = m.fetch(ctx, s, q.name, repo, string(now), tag)
		// Either the tag has been moved again, or the registry refuses manifests by
		// digest.
		if k := upstream.KindOf(err); k == upstream.NotFound || k == upstream.Denied {
			mf, err = m.fetch(ctx, s, q.name, repo, tag, tag)
		}
		if err != nil {
			return m.stale(ctx, s, repo, tag, q.have, err)
		}
	}
	m.event(Event{Action: ActionMoved, Upstream: s.Name, Repo: repo, Ref: tag, Digest: mf.Digest})
	return mf, nil
}

const (
	// confirmWithin bounds how long a client waits for an upstream to confirm a tag that
	// could be served as it was.
	confirmWithin = 5 * time.Second
	// confirmBehind replaces confirmWithin while the upstream has left another such
	// question unanswered for longer than confirmWithin.
	confirmBehind = 2 * time.Second
)

// ask asks the upstream what a tag stands for. If the answer comes when nobody waits for
// it any more, it is noted for later requests.
func (m *Registry) ask(ctx context.Context, q question) (oci.Descriptor, error) {
	resolve := func(ctx context.Context) (oci.Descriptor, error) {
		began := time.Now()
		now, err := q.s.Upstream.ResolveManifest(ctx, q.name, q.tag)
		m.metrics.observe(q.s, kindManifest, time.Since(began))
		return now, err
	}
	if q.s.StaleIfError <= 0 {
		return resolve(ctx)
	}
	wait := confirmWithin
	if q.s.overdue.Load() > 0 {
		wait = confirmBehind
	}
	short, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	mf, _, err := m.fly(short, flightKey{flyTag, contentKey{q.repo, q.tag}}, func(ctx context.Context) (*oci.Manifest, error) {
		owed := time.AfterFunc(confirmWithin, func() { q.s.overdue.Add(1) })
		now, err := resolve(ctx)
		if !owed.Stop() {
			q.s.overdue.Add(-1)
		}
		if short.Err() != nil && ctx.Err() == nil {
			m.late(ctx, q, now.Digest, err)
		}
		return &oci.Manifest{Descriptor: now}, err
	})
	switch {
	case err == nil:
		return mf.Descriptor, nil
	case short.Err() != nil && ctx.Err() == nil && upstream.KindOf(err) == 0:
		err = &upstream.Error{Kind: upstream.Unavailable, Upstream: q.s.Name, Err: err}
	}
	return oci.Descriptor{}, err
}

// late notes an answer for which nobody waited.
func (m *Registry) late(ctx context.Context, q question, now oci.Digest, err error) {
	switch k := upstream.KindOf(err); {
	case err == nil && now == q.have.Digest:
		m.confirm(q.s, q.repo, q.tag, now)
	case err == nil, k == upstream.NotFound, k == upstream.Denied:
		_, _ = m.follow(ctx, q, now, err) // follow notes what it finds
	}
}

// fetch gets a manifest from the upstream, checks it against the rules, and has it
// stored. It is stored under tag unless tag is empty.
func (m *Registry) fetch(ctx context.Context, s *source, name, repo, ref, tag string) (*oci.Manifest, error) {
	if err := s.allowed(name, tag); err != nil {
		return nil, m.refused(s, kindManifest, repo, ref, err)
	}
	began := time.Now()
	var mf *oci.Manifest
	err := upstream.Patiently(ctx, m.opts.Patience, func() error {
		var err error
		mf, _, _, err = s.Upstream.Manifest(ctx, name, ref, "")
		return err
	})
	took := time.Since(began)
	m.metrics.observe(s, kindManifest, took)
	if err != nil {
		m.refuse(ctx, s, kindManifest, repo, ref, err)
		return nil, err
	}
	s.counts.pulled.Add(mf.Size)
	if s.strict {
		err := m.admit(ctx, s, name, repo, mf)
		if upstream.KindOf(err) == upstream.NotFound { // something that the manifest names is missing
			m.log.Warn("a manifest is incomplete upstream", "upstream", s.Name, "repo", repo, "digest", mf.Digest, "err", err)
			err = refuse(oci.CodeManifestUnknown, "%s/%s@%s is incomplete upstream, so that the rules of %s cannot be applied", s.Name, name, mf.Digest, s.Name)
		}
		if err != nil {
			return nil, m.refused(s, kindManifest, repo, ref, err)
		}
	}
	m.keep(s, repo, mf, tag)
	m.event(Event{Action: ActionFetched, Upstream: s.Name, Repo: repo, Ref: ref, Digest: mf.Digest, Bytes: mf.Size, Duration: took})
	return mf, nil
}

// refuse remembers that the upstream does not have something, or does not let us have it.
// That a question has come back is remembered only if a client asked it: whether it comes
// back depends on the way that it came.
func (m *Registry) refuse(ctx context.Context, s *source, k kind, repo, ref string, err error) {
	if len(route.From(ctx)) > 0 && upstream.IsBack(err) {
		return
	}
	if why := upstream.KindOf(err); why == upstream.NotFound || why == upstream.Denied {
		s.negative[k].set(repo, ref, err, m.now(), s.NegativeTTL)
	}
}

// refused notes that the rules did not let something in. It returns err, and notes
// nothing if err is another error.
func (m *Registry) refused(s *source, k kind, repo, ref string, err error) error {
	if isRefusal(err) {
		s.negative[k].set(repo, ref, err, m.now(), s.NegativeTTL)
		m.event(Event{Action: ActionRefused, Upstream: s.Name, Repo: repo, Ref: ref, Err: err.Error()})
	}
	return err
}

// stale decides what to do about a tag that the store has and the upstream does not
// confirm.
func (m *Registry) stale(ctx context.Context, s *source, repo, tag string, have oci.Descriptor, err error) (*oci.Manifest, error) {
	mf := &oci.Manifest{Descriptor: have}
	if ctx.Err() != nil {
		return nil, err
	}
	now, again := m.now(), min(s.TTL, staleFor)
	st, known := s.tags.get(repo, tag)
	if !known { // this process has not asked yet: treat the tag as confirmed when it started
		st.confirmed = m.started
	}
	switch kind := upstream.KindOf(err); {
	case isRefusal(err): // the tag was moved to something that the rules keep out
		m.log.Warn("tag stays where it was, because of what it was moved to", "upstream", s.Name, "repo", repo, "tag", tag, "err", err)
		again = s.TTL // the upstream did answer
	case kind == upstream.NotFound && (s.KeepDeleted || upstream.IsBack(err)):
		again = s.TTL
	case kind == upstream.NotFound:
		m.refuse(ctx, s, kindManifest, repo, tag, err)
		s.tags.drop(repo, tag)
		if err := m.store.ForgetTag(ctx, repo, tag); err != nil {
			m.log.Warn("drop a tag that is gone upstream", "repo", repo, "tag", tag, "err", err)
		}
		m.event(Event{Action: ActionGone, Upstream: s.Name, Repo: repo, Ref: tag, Digest: have.Digest})
		return nil, err
	case kind == upstream.Denied:
		m.refuse(ctx, s, kindManifest, repo, tag, err)
		st.digest, st.until = have.Digest, time.Time{} // ask the upstream again next time
		s.tags.set(repo, tag, st, now)
		m.revoke(ctx, repo, tag)
		return nil, err
	case s.StaleIfError <= 0 || now.Sub(st.confirmed) > s.StaleIfError || m.revoked.Has(repo, tag):
		return nil, err
	default:
		m.log.Warn("serve a tag that cannot be confirmed", "upstream", s.Name, "repo", repo, "tag", tag, "confirmed", st.confirmed, "err", err)
	}
	m.event(Event{Action: ActionStale, Upstream: s.Name, Repo: repo, Ref: tag, Digest: have.Digest, Err: err.Error()})
	// Keep further requests from waiting for an upstream that is down.
	st.digest, st.stale, st.until = have.Digest, true, now.Add(max(upstream.RetryAfter(err), again))
	s.tags.set(repo, tag, st, now)
	return mf, nil
}

// staleFor is how long a tag that could not be confirmed is served before the upstream is
// asked again, unless the upstream said how long to wait.
const staleFor = 10 * time.Second

// confirm notes what a tag stands for.
func (m *Registry) confirm(s *source, repo, tag string, d oci.Digest) {
	now := m.now()
	s.tags.set(repo, tag, tagState{digest: d, confirmed: now, until: now.Add(s.TTL)}, now)
	s.negative[kindManifest].drop(repo, tag)
	if err := m.revoked.Set(repo, tag, false); err != nil {
		m.log.Warn("note that a tag is confirmed again", "repo", repo, "tag", tag, "err", err)
	}
}

// revoke notes that the upstream has refused a tag. Until the upstream confirms the tag,
// it is not served when the upstream fails.
func (m *Registry) revoke(ctx context.Context, repo, tag string) {
	err := m.revoked.Set(repo, tag, true)
	if err == nil {
		return
	}
	m.log.Warn("drop a tag that the upstream has refused, because that cannot be noted", "repo", repo, "tag", tag, "err", err)
	if err := m.store.ForgetTag(ctx, repo, tag); err != nil {
		m.log.Warn("drop a tag that the upstream has refused", "repo", repo, "tag", tag, "err", err)
	}
}

// keep stores a manifest in the background, because clients need not wait until it is
// durable.
func (m *Registry) keep(s *source, repo string, mf *oci.Manifest, tag string) {
	if mf.Digest.Algorithm().FromBytes(mf.Bytes) != mf.Digest {
		return // a signed schema 1 manifest, whose digest cannot be checked here
	}
	p := oci.PutManifest{Bytes: mf.Bytes, MediaType: mf.MediaType, Digest: mf.Digest}
	m.pending.add(repo, mf)
	if tag != "" {
		p.Tags = []string{tag}
		m.confirm(s, repo, tag, mf.Digest)
	}
	store := func() {
		defer m.pending.remove(repo, mf.Digest)
		m.gate.pass(m.ctx)
		if st, ok := s.tags.get(repo, tag); !ok || st.digest != mf.Digest {
			p.Tags = nil // the tag is gone, or has been moved since
		}
		ctx, cancel := m.storing()
		defer cancel()
		if _, err := m.store.PutManifest(ctx, repo, p); err != nil {
			m.log.Warn("store a manifest; it is fetched again", "repo", repo, "digest", mf.Digest, "err", err)
			s.tags.drop(repo, tag)
			return
		}
		m.recent.add(contentKey{repo, string(mf.Digest)})
		if _, ok := s.tags.get(repo, tag); !ok && len(p.Tags) > 0 { // it was dropped meanwhile
			if err := m.store.ForgetTag(ctx, repo, tag); err != nil {
				m.log.Warn("drop a tag that is gone upstream", "repo", repo, "tag", tag, "err", err)
			}
		}
	}
	if !m.spawn(store) { // the registry is being closed
		m.pending.remove(repo, mf.Digest)
	}
}

// cannotAsk returns the error for a request about which the upstream is not asked, or nil
// if it may be asked.
func (m *Registry) cannotAsk(ctx context.Context, s *source, k kind, repo, ref string, now time.Time, unknown func(repo, ref, why string) error) error {
	if s.Offline {
		s.counts.add(k, resultOffline)
		return unknown(repo, ref, "; it was never fetched, and "+s.Name+" is offline")
	}
	if m.self.Back(ctx) {
		s.counts.add(k, resultNegative)
		err := unknown(repo, ref, "; the question came from here, through another registry that mirrors this one")
		var o *oci.Error
		if errors.As(err, &o) {
			o.Status = http.StatusLoopDetected // see upstream.IsBack
		}
		return err
	}
	if err := s.negative[k].get(repo, ref, now); err != nil {
		s.counts.add(k, resultNegative)
		return onward(ctx, err)
	}
	return nil
}

func unknownManifest(repo, ref, why string) error {
	if err := oci.CheckName(repo); err != nil {
		return err
	}
	return oci.Errorf(oci.CodeManifestUnknown, "repository %s has no manifest %.140s%s", repo, ref, why)
}

func unknownBlob(repo, ref, why string) error {
	if err := oci.CheckName(repo); err != nil {
		return err
	}
	return oci.Errorf(oci.CodeBlobUnknown, "repository %s has no blob %.140s%s", repo, ref, why)
}
