package catalog

import (
	"context"
	"database/sql"
	"regexp"
	"strings"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog/engine"
)

// Retention removes tags and images that are no longer kept. All methods may run
// concurrently.
type Retention struct{ DB *engine.DB }

// ErrChanged is returned if a tag has changed since the decision to remove it.
var ErrChanged = engine.NewVerdict("the tag has changed since")

// ErrInUse is returned if a client was just told that a manifest is there.
var ErrInUse = engine.NewVerdict("a client was just told of it")

// hungTag matches the tags of HungOn. A tag has no room for a whole SHA-512. Tools cut
// the digest to the 64 digits of oci.ReferrersTag, or to what fits.
var hungTag = regexp.MustCompile(`^(sha256-[0-9a-f]{64}|sha512-[0-9a-f]{64})([0-9a-f]*)([._-].+)?$`)

// prefixedTag matches the tags that cosign makes with --attachment-tag-prefix. It
// requires one of cosign's own suffixes, because other tools may make tags that end with
// a digest.
var prefixedTag = regexp.MustCompile(`^.+?(sha256-[0-9a-f]{64})\.(?:sig|att|sbom)$`)

// HungOn returns the tag that oci.ReferrersTag makes of an image's digest, if the given
// tag is that tag, or begins with it and continues with ".", "-" or "_". Signing tools
// keep signatures, attestations and SBOMs under such tags, and name the image in the tag.
// HungOn does the same for a tag that prefixedTag matches. For any other tag it returns
// "".
func HungOn(tag string) string {
	m := hungTag.FindStringSubmatch(tag)
	if m == nil {
		if m = prefixedTag.FindStringSubmatch(tag); m == nil {
			return ""
		}
		return m[1]
	}
	if m[2] != "" && strings.HasPrefix(tag, "sha256-") {
		return ""
	}
	return m[1]
}

// RetireOptions are the conditions of a retirement.
type RetireOptions struct {
	// Keep may veto the removal of a manifest, and so of the tag. nil means no veto.
	Keep func(oci.Digest) bool
	// Immutable reports whether a tag stays whatever it points at. nil means that none
	// does.
	Immutable func(tag string) bool
}

// Retired is what was removed with a tag.
type Retired struct {
	// Tags begins with the tag that was to be removed. The tags that hang on a removed
	// manifest follow.
	Tags      []TagInfo
	Manifests []oci.Digest
}

// RetireTag removes a tag if the tag has not changed since it was read. Then it removes
// the tag's manifest and whatever only that manifest kept in the repository: the
// manifests that an index names, the manifests that refer to it, and the tags that hang
// on it with their manifests. A manifest stays if another tag or another index names it,
// or if it has another subject. Errors: ErrChanged, ErrInUse, ErrNotFound.
func (c *Retention) RetireTag(ctx context.Context, repo string, tag TagInfo, o RetireOptions) (out Retired, err error) {
	err = c.DB.Write(ctx, func(t *engine.Tx) error {
		p := newRetirement(t, o)
		var gone []retired
		var err error
		if out, gone, err = p.retire(repo, tag); err != nil {
			return err
		}
		due := t.Due()
		origin := Origin{Cause: oci.CauseRetention}
		for _, m := range gone { // with their tags, so that both can be restored together
			t.Changed(engine.ChangeManifest, repo, string(m.digest))
			if err := RemoveManifest(t, p.repoID, m.id, m.blobID, due, origin); err != nil {
				return err
			}
		}
		for _, tag := range out.Tags {
			if err := removeTag(t, repo, p.repoID, tag.Name, due, origin); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return Retired{}, err
	}
	return out, nil
}

// removeTag deletes a tag and queues its manifest.
func removeTag(t *engine.Tx, repo string, repoID int64, tag string, due int64, o Origin) error {
	t.Changed(engine.ChangeTag, repo, tag)
	if err := recordTags(t, o, "", `t.repo_id = ? AND t.name = ?`, repoID, tag); err != nil {
		return err
	}
	if _, err := t.Exec(`INSERT INTO gc_queue (kind, repo_id, blob_id, due_at) SELECT 1, m.repo_id, m.blob_id, ? FROM tags t JOIN manifests m ON m.id = t.manifest_id
		WHERE t.repo_id = ? AND t.name = ? ON CONFLICT (kind, repo_id, blob_id) DO UPDATE SET due_at = excluded.due_at`, due, repoID, tag); err != nil {
		return err
	}
	_, err := t.Exec(`DELETE FROM tags WHERE repo_id = ? AND name = ?`, repoID, tag)
	return err
}

// Rehearsal reports what retirements of tags of one repository would do, one after the
// other. It changes nothing.
type Rehearsal struct {
	p    *retirement
	repo string
}

// Rehearse begins a rehearsal for a repository.
func (c *Retention) Rehearse(ctx context.Context, repo string, o RetireOptions) *Rehearsal {
	return &Rehearsal{newRetirement(c.DB.Reader(ctx), o), repo}
}

// RetireTag is like [Retention.RetireTag], as if everything that the rehearsal retired
// before were gone.
func (r *Rehearsal) RetireTag(tag TagInfo) (Retired, error) {
	out, _, err := r.p.retire(r.repo, tag)
	return out, err
}

// retirement finds what is removed with a tag or a manifest. It only reads, and considers
// what it found before as gone.
type retirement struct {
	engine.Rower
	o      RetireOptions
	repoID int64
	tags   map[string]bool // gone
	gone   map[int64]bool  // ids of manifests
}

type retired struct {
	id, blobID int64
	digest     oci.Digest
}

func newRetirement(r engine.Rower, o RetireOptions) *retirement {
	if o.Immutable == nil {
		o.Immutable = func(string) bool { return false }
	}
	return &retirement{Rower: r, o: o, tags: map[string]bool{}, gone: map[int64]bool{}}
}

// retire finds what is removed with a tag. If it returns an error, it considers none of
// that as gone.
func (p *retirement) retire(repo string, tag TagInfo) (out Retired, gone []retired, err error) {
	if p.tags[tag.Name] {
		return out, nil, ErrChanged
	}
	var start retired
	err = engine.Row(p, `SELECT t.repo_id, m.id, m.blob_id, b.digest FROM repositories r JOIN tags t ON t.repo_id = r.id
		JOIN manifests m ON m.id = t.manifest_id JOIN blobs b ON b.id = m.blob_id
		WHERE r.name = ? AND t.name = ? AND t.updated_at = ? AND b.digest = ?`,
		[]any{repo, tag.Name, tag.Updated.UnixMilli(), string(tag.Digest)}, &p.repoID, &start.id, &start.blobID, &start.digest)
	if err == ErrNotFound {
		return out, nil, ErrChanged
	}
	if err != nil {
		return out, nil, err
	}
	p.tags[tag.Name] = true
	out.Tags = append(out.Tags, tag)
	gone, err = p.follow([]retired{start}, &out)
	for _, m := range gone {
		if err == nil && p.o.Keep != nil && p.o.Keep(m.digest) {
			err = ErrInUse
		}
	}
	if err != nil {
		for _, t := range out.Tags {
			delete(p.tags, t.Name)
		}
		for _, m := range gone {
			delete(p.gone, m.id)
		}
		return Retired{}, nil, err
	}
	return out, gone, nil
}

// follow treats the manifests of queue that nothing keeps as removed, and continues with
// what they kept.
func (p *retirement) follow(queue []retired, out *Retired) (gone []retired, err error) {
	for len(queue) > 0 {
		m := queue[0]
		queue = queue[1:]
		if p.gone[m.id] {
			continue
		}
		kept, err := p.kept(m)
		if err != nil {
			return gone, err
		}
		if kept {
			continue
		}
		next, err := p.take(m, out)
		gone = append(gone, m)
		if err != nil {
			return gone, err
		}
		queue = append(queue, next...)
	}
	return gone, nil
}

// take considers a manifest as gone, together with the tags that hang on it. It returns
// the manifests that these tags and the manifest kept.
func (p *retirement) take(m retired, out *Retired) (next []retired, err error) {
	p.gone[m.id] = true
	out.Manifests = append(out.Manifests, m.digest)
	if next, err = p.keptBy(m); err != nil {
		return next, err
	}
	base := oci.ReferrersTag(m.digest)
	// 'g' sorts after every character that HungOn accepts after the base.
	err = p.Rows(`SELECT t.name, t.updated_at, c.id, c.blob_id, b.digest FROM tags t JOIN manifests c ON c.id = t.manifest_id JOIN blobs b ON b.id = c.blob_id
		WHERE t.repo_id = ? AND t.name >= ? AND t.name < ? ORDER BY t.name`, []any{p.repoID, base, base + "g"}, func(r *sql.Rows) error {
		var t TagInfo
		var updated int64
		var c retired
		if err := r.Scan(&t.Name, &updated, &c.id, &c.blobID, &c.digest); err != nil {
			return err
		}
		if HungOn(t.Name) != base || p.tags[t.Name] || p.o.Immutable(t.Name) {
			return nil
		}
		t.Updated, t.Digest = engine.FromMillis(updated), c.digest
		p.tags[t.Name] = true
		out.Tags = append(out.Tags, t)
		next = append(next, c)
		return nil
	})
	return next, err
}

// kept reports whether a tag, an index or a subject that is not gone keeps a manifest. A
// tag that hangs on the manifest itself does not keep it, because such tags are made for
// images that exist for another reason.
func (p *retirement) kept(m retired) (kept bool, err error) {
	keeps := func(is bool) error {
		if is {
			kept = true
			return engine.ErrEnough
		}
		return nil
	}
	base := oci.ReferrersTag(m.digest)
	err = p.Rows(`SELECT name FROM tags WHERE manifest_id = ?`, []any{m.id}, func(r *sql.Rows) error {
		var name string
		if err := r.Scan(&name); err != nil {
			return err
		}
		return keeps(!p.tags[name] && (HungOn(name) != base || p.o.Immutable(name)))
	})
	if kept || err != nil {
		return kept, err
	}
	err = p.Rows(`SELECT f.manifest_id FROM refs f WHERE f.repo_id = ? AND f.blob_id = ?
		UNION ALL SELECT s.id FROM manifests m JOIN blobs b ON b.digest = m.subject JOIN manifests s ON s.repo_id = m.repo_id AND s.blob_id = b.id WHERE m.id = ?`,
		[]any{p.repoID, m.blobID, m.id}, func(r *sql.Rows) error {
			var by int64
			if err := r.Scan(&by); err != nil {
				return err
			}
			return keeps(!p.gone[by])
		})
	return kept, err
}

// keptBy returns the manifests that m names, and those that refer to m.
func (p *retirement) keptBy(m retired) ([]retired, error) {
	var out []retired
	err := p.Rows(`SELECT c.id, c.blob_id, b.digest FROM refs f JOIN manifests c ON c.repo_id = f.repo_id AND c.blob_id = f.blob_id
			JOIN blobs b ON b.id = c.blob_id WHERE f.manifest_id = ?
		UNION SELECT s.id, s.blob_id, b.digest FROM manifests s JOIN blobs b ON b.id = s.blob_id WHERE s.repo_id = ? AND s.subject = ?`,
		[]any{m.id, p.repoID, string(m.digest)}, func(r *sql.Rows) error {
			var c retired
			err := r.Scan(&c.id, &c.blobID, &c.digest)
			out = append(out, c)
			return err
		})
	return out, err
}

// RetentionInfo is a tag with the facts that retention rules need.
type RetentionInfo struct {
	TagInfo
	// Hung is the result of HungOn for the tag. Here reports whether the repository has
	// that image. Elsewhere reports whether another repository has it. Self reports
	// whether the tag points at that image.
	Hung                  string
	Here, Elsewhere, Self bool
	// Part reports whether an index of the repository names the manifest, or the
	// manifest's subject is there.
	Part bool
}

// Infos returns all tags of a repository, newest first. LastPull counts pulls of the
// manifest by digest and by each of its tags. For an index it also counts pulls of the
// manifests that the index names at any depth, because many clients ask for a tag with
// HEAD and pull by digest. gone, if not nil, reports whether a manifest of another
// repository counts as removed already, as in a dry run.
func (c *Retention) Infos(ctx context.Context, repo string, gone func(repo string, d oci.Digest) bool) ([]RetentionInfo, error) {
	at, here, err := c.pullsIn(ctx, repo)
	if err != nil {
		return nil, err
	}
	var out []RetentionInfo
	err = c.DB.Rows(ctx, `SELECT t.name, b.digest, t.updated_at, m.id,
			EXISTS (SELECT 1 FROM refs f WHERE f.repo_id = m.repo_id AND f.blob_id = m.blob_id)
			OR EXISTS (SELECT 1 FROM blobs s JOIN manifests o ON o.repo_id = m.repo_id AND o.blob_id = s.id WHERE s.digest = m.subject)
		FROM repositories r
		JOIN tags t ON t.repo_id = r.id
		JOIN manifests m ON m.id = t.manifest_id
		JOIN blobs b ON b.id = m.blob_id
		WHERE r.name = ? ORDER BY t.updated_at DESC, t.name DESC`, []any{repo}, func(r *sql.Rows) error {
		var t RetentionInfo
		var updated, id int64
		err := r.Scan(&t.Name, &t.Digest, &updated, &id, &t.Part)
		t.Updated, t.LastPull = engine.FromMillis(updated), engine.FromMillis(at.of(id))
		t.Hung = HungOn(t.Name)
		t.Self = t.Hung != "" && t.Hung == oci.ReferrersTag(t.Digest)
		t.Here = here[t.Hung]
		out = append(out, t)
		return err
	})
	for i := range out {
		if t := &out[i]; err == nil && t.Hung != "" && !t.Here {
			t.Elsewhere, err = c.hasImage(ctx, t.Hung, gone)
		}
	}
	return out, err
}

// SetTagTimes gives a tag the times of its push and its last pull in another catalogue,
// unless the tag points elsewhere by now. A later pull in this catalogue takes
// precedence.
func (c *Retention) SetTagTimes(ctx context.Context, repo string, tag TagInfo) error {
	pulled := engine.ToMillis(tag.LastPull)
	return c.DB.Write(ctx, func(t *engine.Tx) error {
		_, err := t.Exec(`UPDATE tags SET updated_at = ?, pulled_at = CASE WHEN pulled_at > ? THEN pulled_at ELSE ? END
			WHERE repo_id = (SELECT id FROM repositories WHERE name = ?) AND name = ?
			AND EXISTS (SELECT 1 FROM manifests m JOIN blobs b ON b.id = m.blob_id WHERE m.id = tags.manifest_id AND b.digest = ?)`,
			engine.ToMillis(tag.Updated), pulled, pulled, repo, tag.Name, string(tag.Digest))
		return err
	})
}

// hasImage reports whether some repository has the image that a tag hangs on. Such a tag
// has at most the first half of a SHA-512.
func (c *Retention) hasImage(ctx context.Context, hung string, gone func(repo string, d oci.Digest) bool) (has bool, err error) {
	from := strings.Replace(hung, "-", ":", 1)
	err = c.DB.Rows(ctx, `SELECT r.name, b.digest FROM blobs b JOIN manifests m ON m.blob_id = b.id JOIN repositories r ON r.id = m.repo_id
		WHERE b.digest >= ? AND b.digest < ?`, []any{from, from + "g"}, func(r *sql.Rows) error {
		var repo string
		var d oci.Digest
		if err := r.Scan(&repo, &d); err != nil {
			return err
		}
		if has = gone == nil || !gone(repo, d); has {
			return engine.ErrEnough
		}
		return nil
	})
	return has, err
}

// imagePulls holds the times of the last pulls of manifests, by id.
type imagePulls struct {
	at    map[int64]int64
	names map[int64][]int64 // manifests that an index names
	done  map[int64]bool
}

// of returns when a manifest, or one that it names at any depth, was last pulled.
func (p *imagePulls) of(id int64) int64 {
	if !p.done[id] {
		p.done[id] = true
		for _, c := range p.names[id] {
			p.at[id] = max(p.at[id], p.of(c))
		}
	}
	return p.at[id]
}

// pullsIn reads when each manifest of a repository was pulled. here holds the tags that
// HungOn returns for tags that hang on these manifests.
func (c *Retention) pullsIn(ctx context.Context, repo string) (p imagePulls, here map[string]bool, err error) {
	p = imagePulls{map[int64]int64{}, map[int64][]int64{}, map[int64]bool{}}
	here = map[string]bool{}
	err = c.DB.Rows(ctx, `SELECT m.id, b.digest, m.pulled_at, COALESCE((SELECT MAX(t.pulled_at) FROM tags t WHERE t.manifest_id = m.id), 0)
		FROM repositories r JOIN manifests m ON m.repo_id = r.id JOIN blobs b ON b.id = m.blob_id WHERE r.name = ?`, []any{repo}, func(r *sql.Rows) error {
		var id, byDigest, byTag int64
		var d oci.Digest
		err := r.Scan(&id, &d, &byDigest, &byTag)
		p.at[id], here[oci.ReferrersTag(d)] = max(byDigest, byTag), true
		return err
	})
	if err != nil {
		return p, here, err
	}
	err = c.DB.Rows(ctx, `SELECT f.manifest_id, c.id FROM repositories r CROSS JOIN manifests c ON c.repo_id = r.id
		CROSS JOIN refs f ON f.repo_id = c.repo_id AND f.blob_id = c.blob_id WHERE r.name = ?`, []any{repo}, func(r *sql.Rows) error {
		var index, part int64
		err := r.Scan(&index, &part)
		p.names[index] = append(p.names[index], part)
		return err
	})
	return p, here, err
}

// Newest returns the latest time at which a tag was set, or an image arrived or was
// pulled, in any repository. It returns 0 if there is none. It reads all tags and
// manifests.
func (c *Retention) Newest(ctx context.Context) (ms int64, err error) {
	err = c.DB.Row(engine.Whole(ctx), `SELECT COALESCE(MAX(at), 0) FROM (SELECT MAX(updated_at) AS at FROM tags UNION ALL SELECT MAX(pulled_at) FROM tags
		UNION ALL SELECT MAX(created_at) FROM manifests UNION ALL SELECT MAX(pulled_at) FROM manifests) n`, nil, &ms)
	return ms, err
}

// checkParts refuses to remove a manifest if an immutable tag points at it, or at an
// index that contains it at any depth.
func checkParts(t *engine.Tx, id int64, immutable func(string) bool) error {
	if immutable == nil {
		return nil
	}
	var fixed *ImmutableError
	err := t.Rows(`WITH RECURSIVE whole(id) AS (SELECT m.id FROM manifests m WHERE m.id = ?
			UNION SELECT f.manifest_id FROM whole w CROSS JOIN manifests m ON m.id = w.id
			CROSS JOIN refs f ON f.repo_id = m.repo_id AND f.blob_id = m.blob_id)
		SELECT t.name, w.id FROM whole w CROSS JOIN tags t ON t.manifest_id = w.id ORDER BY t.name`, []any{id}, func(r *sql.Rows) error {
		var name string
		var at int64
		if err := r.Scan(&name, &at); err != nil {
			return err
		}
		if immutable(name) {
			fixed = &ImmutableError{Tag: name, Part: at != id}
			return engine.ErrEnough
		}
		return nil
	})
	if err == nil && fixed != nil {
		return fixed
	}
	return err
}
