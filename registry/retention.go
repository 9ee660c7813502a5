package registry

import (
	"context"
	"errors"
	"fmt"
	"path"
	"regexp"
	"strings"
	"time"

	"example.org/slipway/cache"
	"example.org/slipway/catalog"
	"example.org/slipway/oci"
)

// RetentionRule says which tags of some repositories are kept. A tag is kept if
// any clause keeps it; a clause with its zero value keeps nothing.
type RetentionRule struct {
	// Repositories are patterns of the repositories the rule is about: "*" is
	// any part of a name between slashes, "**" any number of such parts, also
	// none. At least one.
	Repositories []string
	// KeepNewest keeps so many tags of each repository, those pushed last,
	// whether or not another clause keeps them too.
	KeepNewest int
	// KeepTags keeps the tags that one of the expressions matches, anywhere
	// unless it is anchored.
	KeepTags []*regexp.Regexp
	// KeepYounger keeps tags pushed less than this time ago.
	KeepYounger time.Duration
	// KeepPulledWithin keeps tags whose image was pulled less than this time
	// ago, by tag or by digest.
	KeepPulledWithin time.Duration
}

// RetainOptions of [Registry.Retain]. The zero value removes what is due.
type RetainOptions struct {
	// DryRun reports what would go and changes nothing.
	DryRun bool
	// Now also removes images that a client may just have been told of. It is
	// safe only while nobody pushes.
	Now bool
}

// TagDecision is what became of a tag, and why.
type TagDecision struct {
	Repo, Tag string
	Digest    oci.Digest
	Removed   bool
	// Reason is a phrase such as "one of the 3 newest".
	Reason string
}

// maxDecisions is how many decisions a report lists; about 20 MB.
const maxDecisions = 100_000

// RetentionReport is what Retain did, or would do.
type RetentionReport struct {
	// Repositories that some rule is about.
	Repositories int
	// Kept and Removed tags of these.
	Kept, Removed int
	// Manifests removed because nothing else needed them. 0 in a dry run.
	Manifests int
	// Decisions on tags, at most 100,000; the counts go on.
	Decisions []TagDecision
}

func (rep *RetentionReport) add(d TagDecision) {
	if d.Removed {
		rep.Removed++
	} else {
		rep.Kept++
	}
	if len(rep.Decisions) < maxDecisions {
		rep.Decisions = append(rep.Decisions, d)
	}
}

// CheckRetention returns what is wrong with rules, or nil.
func CheckRetention(rules []RetentionRule) error {
	for i, r := range rules {
		if len(r.Repositories) == 0 {
			return fmt.Errorf("retention rule %d names no repositories", i+1)
		}
		for _, p := range r.Repositories {
			if err := checkPattern(p); err != nil {
				return fmt.Errorf("retention rule %d: %w", i+1, err)
			}
		}
		if r.KeepNewest < 0 || r.KeepYounger < 0 || r.KeepPulledWithin < 0 {
			return fmt.Errorf("retention rule %d has a negative number or time", i+1)
		}
		if r.KeepNewest == 0 && len(r.KeepTags) == 0 && r.KeepYounger == 0 && r.KeepPulledWithin == 0 {
			return fmt.Errorf("retention rule %d keeps nothing: give it one of keep newest, tags, younger, pulled within", i+1)
		}
	}
	return nil
}

// Retain removes the tags that the rules do not keep, and with each its
// manifest, the manifests an index names and the manifests that refer to it
// (signatures, SBOMs), unless something else needs them. The space is free
// after the next collection that follows the grace period; whether the
// collector takes untagged manifests does not matter.
//
// A tag is kept if a clause of any rule for its repository keeps it, if no rule
// is about its repository, or if it is immutable. Tags that signing tools hang
// on an image, sha256-<hex> with or without .sig, .att or .sbom, are no images
// of their own: they go with the image. A tag pushed again, or whose manifest
// a client has just been told of, is left for the next time; as for the
// collector, that is everything within a grace period of the start.
func (r *Registry) Retain(ctx context.Context, rules []RetentionRule, o RetainOptions) (RetentionReport, error) {
	var rep RetentionReport
	if err := CheckRetention(rules); err != nil {
		return rep, err
	}
	if err := r.deletable(); err != nil && !o.DryRun {
		return rep, err
	}
	if err := r.flushPulls(ctx); err != nil {
		return rep, fmt.Errorf("record the times of last pulls: %w", err)
	}
	const page = 500
	for last := ""; ; {
		names, err := r.cat.Repositories(ctx, last, page)
		if err != nil {
			return rep, fmt.Errorf("list repositories: %w", err)
		}
		for _, repo := range names {
			var about []RetentionRule
			for _, rule := range rules {
				if rule.about(repo) {
					about = append(about, rule)
				}
			}
			if len(about) == 0 {
				continue
			}
			rep.Repositories++
			if err := r.retainIn(ctx, repo, about, o, &rep); err != nil {
				return rep, fmt.Errorf("apply the retention rules to %s: %w", repo, err)
			}
		}
		if len(names) < page {
			return rep, nil
		}
		last = names[len(names)-1]
	}
}

// attached are the tags under which tools without the referrers API keep what
// belongs to an image.
var attached = regexp.MustCompile(`^sha256-([0-9a-f]{64})(\.(sig|att|sbom))?$`)

// retainIn applies the rules to one repository.
func (r *Registry) retainIn(ctx context.Context, repo string, rules []RetentionRule, o RetainOptions, rep *RetentionReport) error {
	tags, err := r.cat.RetentionInfos(ctx, repo)
	if err != nil {
		return err
	}
	now := r.opts.Clock()
	immutable := r.immutableIn(repo)
	going := map[oci.Digest]bool{} // images whose every tag goes
	var hung []catalog.TagInfo
	rank := 0
	for _, t := range tags {
		if err := ctx.Err(); err != nil {
			return err
		}
		if attached.MatchString(t.Name) {
			hung = append(hung, t)
			continue
		}
		d := TagDecision{Repo: repo, Tag: t.Name, Digest: t.Digest}
		if immutable != nil && immutable(t.Name) {
			d.Reason = "immutable"
		} else {
			d.Reason = keepReason(rules, t, rank, now)
		}
		rank++
		if d.Reason == "" {
			if d, err = r.retire(ctx, d, t, o, rep); err != nil {
				return err
			}
		}
		if _, known := going[t.Digest]; !known || !d.Removed {
			going[t.Digest] = d.Removed
		}
		rep.add(d)
	}
	for _, t := range hung {
		if err := r.retainHung(ctx, repo, t, going, o, rep); err != nil {
			return err
		}
	}
	return nil
}

// retainHung removes a tag that belongs to an image if the image is gone.
func (r *Registry) retainHung(ctx context.Context, repo string, t catalog.TagInfo, going map[oci.Digest]bool, o RetainOptions, rep *RetentionReport) error {
	d := TagDecision{Repo: repo, Tag: t.Name, Digest: t.Digest}
	image := oci.Digest("sha256:" + attached.FindStringSubmatch(t.Name)[1])
	immutable := r.immutableIn(repo)
	_, err := r.cat.Manifest(ctx, repo, image)
	switch {
	case err != nil && !errors.Is(err, catalog.ErrNotFound):
		return err
	case immutable != nil && immutable(t.Name):
		d.Reason = "immutable"
	case err == nil && !(o.DryRun && going[image]):
		d.Reason = "belongs to " + image.String()
	default:
		if d, err = r.retire(ctx, d, t, o, rep); err != nil {
			return err
		}
	}
	rep.add(d)
	return nil
}

// keepReason returns why one of the rules keeps a tag, or "". rank counts the
// newer tags of its repository.
func keepReason(rules []RetentionRule, t catalog.TagInfo, rank int, now time.Time) string {
	for _, r := range rules {
		for _, re := range r.KeepTags {
			if re.MatchString(t.Name) {
				return "matches " + re.String()
			}
		}
		switch {
		case rank < r.KeepNewest:
			return fmt.Sprintf("one of the %d newest", r.KeepNewest)
		case r.KeepYounger > 0 && now.Sub(t.Updated) < r.KeepYounger:
			return fmt.Sprintf("pushed within %s", r.KeepYounger)
		case r.KeepPulledWithin > 0 && !t.LastPull.IsZero() && now.Sub(t.LastPull) < r.KeepPulledWithin:
			return fmt.Sprintf("pulled within %s", r.KeepPulledWithin)
		}
	}
	return ""
}

// retire removes a tag that no rule keeps, and tells what came of it.
func (r *Registry) retire(ctx context.Context, d TagDecision, t catalog.TagInfo, o RetainOptions, rep *RetentionReport) (TagDecision, error) {
	d.Removed, d.Reason = true, "no rule keeps it"
	if o.DryRun {
		return d, nil
	}
	var keep func(oci.Digest) bool
	if !o.Now {
		keep = func(m oci.Digest) bool {
			_, keep := r.keep(d.Repo, m)
			return keep
		}
	}
	manifests, err := r.cat.RetireTag(ctx, d.Repo, t, keep)
	switch {
	case errors.Is(err, catalog.ErrChanged):
		d.Removed, d.Reason = false, "pushed or removed meanwhile"
		return d, nil
	case errors.Is(err, catalog.ErrInUse):
		d.Removed, d.Reason = false, "a client may be about to use its manifest"
		return d, nil
	case err != nil:
		return d, storeError("remove tag "+d.Tag, err)
	}
	rep.Manifests += len(manifests)
	r.ram.Drop(cache.Key{Kind: kindTag, Repo: d.Repo, Ref: d.Tag})
	for _, m := range manifests {
		r.ram.Drop(cache.Key{Kind: kindManifest, Repo: d.Repo, Ref: string(m)})
	}
	if err := r.emit(ctx, Event{Action: ActionDelete, Repo: d.Repo, Tag: d.Tag}); err != nil {
		return d, err
	}
	for _, m := range manifests {
		if err := r.emit(ctx, Event{Action: ActionDelete, Repo: d.Repo, Descriptor: oci.Descriptor{Digest: m}}); err != nil {
			return d, err
		}
	}
	return d, nil
}

func checkPattern(p string) error {
	for _, seg := range strings.Split(p, "/") {
		if seg == "" || strings.Trim(seg, "abcdefghijklmnopqrstuvwxyz0123456789._-*") != "" {
			return fmt.Errorf("repository pattern %q can match no repository", p)
		}
		if seg != "**" && strings.Contains(seg, "**") {
			return fmt.Errorf("repository pattern %q: ** must stand alone between slashes", p)
		}
	}
	return nil
}

func (r *RetentionRule) about(repo string) bool {
	for _, p := range r.Repositories {
		if matchRepository(strings.Split(p, "/"), strings.Split(repo, "/")) {
			return true
		}
	}
	return false
}

// matchRepository tells whether a pattern matches a name, both split at their
// slashes. After a "**" was met, only the last one can need another try, so
// the work is at most the product of the two lengths.
func matchRepository(pattern, name []string) bool {
	p, n := 0, 0
	retry, taken := -1, 0 // behind the last "**" in the pattern, and where it ends in the name
	for n < len(name) {
		if p < len(pattern) && pattern[p] == "**" {
			p++
			retry, taken = p, n
			continue
		}
		ok := false
		if p < len(pattern) {
			ok, _ = path.Match(pattern[p], name[n]) // checkPattern lets nothing through that is malformed
		}
		switch {
		case ok:
			p, n = p+1, n+1
		case retry >= 0:
			taken++
			p, n = retry, taken
		default:
			return false
		}
	}
	for p < len(pattern) && pattern[p] == "**" {
		p++
	}
	return p == len(pattern)
}
