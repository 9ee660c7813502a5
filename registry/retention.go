package registry

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	"example.org/slipway/cache"
	"example.org/slipway/catalog"
	"example.org/slipway/oci"
)

// RetentionRule says which tags of some repositories are kept. A tag is kept if
// any clause keeps it; a clause with its zero value keeps nothing.
type RetentionRule struct {
	// Repositories tells which repositories the rule is about. Required.
	Repositories func(repo string) bool
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
	Repo    string     `json:"repo"`
	Tag     string     `json:"tag"`
	Digest  oci.Digest `json:"digest"`
	Removed bool       `json:"removed"`
	// Reason is a phrase such as "one of the 3 newest".
	Reason string `json:"reason"`
}

// maxDecisions is how many decisions a report lists; about 20 MB.
const maxDecisions = 100_000

// RetentionReport is what Retain did, or would do.
type RetentionReport struct {
	// Rules there are.
	Rules int `json:"rules"`
	// Repositories that some rule is about.
	Repositories int `json:"repositories"`
	// Kept and Removed tags of these.
	Kept    int `json:"kept"`
	Removed int `json:"removed"`
	// Manifests removed because nothing else needed them. 0 in a dry run.
	Manifests int `json:"manifests"`
	// Decisions on tags, at most 100,000; the counts go on.
	Decisions []TagDecision `json:"decisions"`
	// Elsewhere tells that another replica was at it, and this one did nothing.
	Elsewhere bool `json:"elsewhere,omitempty"`
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
		if r.Repositories == nil {
			return fmt.Errorf("retention rule %d names no repositories", i+1)
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
// on an image, sha256-<hex> with or without .sig, .att or .sbom, stay as long as
// the repository has the image, and go in the run that removes it. Where their
// image is in another repository they are tags like any other. A tag pushed
// again, or whose manifest a client has just been told of, is left for the next
// time; as for the collector, that is everything within a grace period of the
// start.
func (r *Registry) Retain(ctx context.Context, rules []RetentionRule, o RetainOptions) (RetentionReport, error) {
	rep := RetentionReport{Rules: len(rules)}
	if err := CheckRetention(rules); err != nil {
		return rep, err
	}
	if err := r.deletable(); err != nil && !o.DryRun {
		return rep, err
	}
	if !o.DryRun {
		if err := r.CheckStore(ctx); err != nil {
			return rep, err
		}
	}
	if err := r.flushPulls(ctx); err != nil {
		return rep, fmt.Errorf("record the times of last pulls: %w", err)
	}
	if !o.DryRun {
		held, release, mine, err := r.alone(ctx, leaseRetain, "retain")
		if !mine || err != nil {
			rep.Elsewhere = err == nil
			return rep, err
		}
		defer release()
		ctx = held
	}
	err := because(ctx, r.retainAll(ctx, rules, o, &rep))
	return rep, err
}

func (r *Registry) retainAll(ctx context.Context, rules []RetentionRule, o RetainOptions, rep *RetentionReport) error {
	const page = 500
	for last := ""; ; {
		names, err := r.cat.Repositories(ctx, last, page)
		if err != nil {
			return fmt.Errorf("list repositories: %w", err)
		}
		for _, repo := range names {
			var about []RetentionRule
			for _, rule := range rules {
				if rule.Repositories(repo) {
					about = append(about, rule)
				}
			}
			if len(about) == 0 {
				continue
			}
			rep.Repositories++
			if err := r.retainIn(ctx, repo, about, o, rep); err != nil {
				return fmt.Errorf("apply the retention rules to %s: %w", repo, err)
			}
		}
		if len(names) < page {
			return nil
		}
		last = names[len(names)-1]
	}
}

// attached are the tags under which tools without the referrers API keep what
// belongs to an image.
var attached = regexp.MustCompile(`^sha256-([0-9a-f]{64})(\.(sig|att|sbom))?$`)

// retaining is one run of Retain in one repository.
type retaining struct {
	r         *Registry
	repo      string
	rules     []RetentionRule
	o         RetainOptions
	rep       *RetentionReport
	immutable func(tag string) bool // or nil
	// gone are the manifests that this run removed or, in a dry run, would.
	gone map[oci.Digest]bool
}

// retainIn applies the rules to one repository.
func (r *Registry) retainIn(ctx context.Context, repo string, rules []RetentionRule, o RetainOptions, rep *RetentionReport) error {
	tags, err := r.cat.RetentionInfos(ctx, repo)
	if err != nil {
		return err
	}
	run := &retaining{r: r, repo: repo, rules: rules, o: o, rep: rep, immutable: r.immutableIn(repo), gone: map[oci.Digest]bool{}}
	now := r.judgingTime()
	stays := map[oci.Digest]bool{} // images some tag of which stays
	var hung []catalog.TagInfo
	rank := 0
	for _, t := range tags {
		if err := ctx.Err(); err != nil {
			return err
		}
		belongs, err := run.belongs(ctx, t)
		if err != nil {
			return err
		}
		if belongs {
			hung = append(hung, t)
			continue
		}
		d, err := run.decide(ctx, t, keepReason(rules, t, rank, now))
		if err != nil {
			return err
		}
		rank++
		if !d.Removed {
			stays[t.Digest] = true
			delete(run.gone, t.Digest)
		} else if o.DryRun && !stays[t.Digest] {
			run.gone[t.Digest] = true
		}
	}
	// Oldest first: what belongs to a signature was pushed after it.
	for _, t := range slices.Backward(hung) {
		reason := ""
		if image := imageOf(t); !run.gone[image] {
			reason = "belongs to " + image.String()
		}
		d, err := run.decide(ctx, t, reason)
		if err != nil {
			return err
		}
		if d.Removed && o.DryRun {
			run.gone[t.Digest] = true
		}
	}
	return nil
}

// imageOf is the image that an attached tag belongs to by its name.
func imageOf(t catalog.TagInfo) oci.Digest {
	return oci.Digest("sha256:" + attached.FindStringSubmatch(t.Name)[1])
}

// belongs tells whether a tag is attached to an image of its own repository.
// Signatures may be kept in a repository of their own, where their images never
// are: that says nothing about the images.
func (run *retaining) belongs(ctx context.Context, t catalog.TagInfo) (bool, error) {
	if !attached.MatchString(t.Name) {
		return false, nil
	}
	image := imageOf(t)
	if run.gone[image] {
		return true, nil
	}
	_, err := run.r.cat.Manifest(ctx, run.repo, image)
	if errors.Is(err, catalog.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// decide removes a tag unless there is a reason to keep it, and reports that.
func (run *retaining) decide(ctx context.Context, t catalog.TagInfo, keep string) (TagDecision, error) {
	d := TagDecision{Repo: run.repo, Tag: t.Name, Digest: t.Digest, Reason: keep}
	if run.immutable != nil && run.immutable(t.Name) {
		d.Reason = "immutable"
	}
	if d.Reason == "" {
		var err error
		if d, err = run.retire(ctx, d, t); err != nil {
			return d, err
		}
	}
	run.rep.add(d)
	return d, nil
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

// retire removes a tag that nothing keeps, and tells what came of it.
func (run *retaining) retire(ctx context.Context, d TagDecision, t catalog.TagInfo) (TagDecision, error) {
	d.Removed, d.Reason = true, "no rule keeps it"
	if run.o.DryRun {
		return d, nil
	}
	r := run.r
	manifests, err := r.retireTag(ctx, d.Repo, t, run.o.Now)
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
	run.rep.Manifests += len(manifests)
	if err := r.emit(ctx, Event{Action: ActionDelete, Repo: d.Repo, Tag: d.Tag}); err != nil {
		return d, err
	}
	for _, m := range manifests {
		run.gone[m] = true
		if err := r.emit(ctx, Event{Action: ActionDelete, Repo: d.Repo, Descriptor: oci.Descriptor{Digest: m}}); err != nil {
			return d, err
		}
	}
	return d, nil
}

// retireTag removes a tag and what only that kept, unless a client was told of
// it lately. Meanwhile nobody is told that what goes is there.
func (r *Registry) retireTag(ctx context.Context, repo string, t catalog.TagInfo, now bool) (manifests []oci.Digest, err error) {
	var keep func(oci.Digest) bool
	if !now {
		r.collects.condemning.Lock()
		defer r.collects.condemning.Unlock()
		defer r.seen.settle()
		at := r.judgingTime()
		keep = func(m oci.Digest) bool {
			_, keep := r.keepOrCondemn(repo, m, at)
			return keep
		}
	}
	if manifests, err = r.cat.RetireTag(ctx, repo, t, keep); err != nil {
		return nil, err
	}
	r.ram.Drop(cache.Key{Kind: kindTag, Repo: repo, Ref: t.Name})
	for _, m := range manifests {
		r.ram.Drop(cache.Key{Kind: kindManifest, Repo: repo, Ref: string(m)})
	}
	return manifests, nil
}
