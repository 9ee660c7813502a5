// Package retention removes the tags that no rule keeps, together with what only they kept.
package retention

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/replica"
	"example.org/slipway/registry/storage"
)

// Rule says which tags of some repositories are kept. A tag is kept if any clause keeps
// it. A clause with its zero value keeps nothing.
type Rule struct {
	// Repositories reports whether the rule applies to a repository. It is required.
	Repositories func(repo string) bool
	// KeepNewest keeps this many tags of each repository: those that were pushed last,
	// whether or not another clause also keeps them. Tags that hang on an image do not
	// count.
	KeepNewest int
	// KeepTags keeps the tags that one of the expressions matches. An expression may
	// match at any position unless it is anchored.
	KeepTags []*regexp.Regexp
	// KeepYounger keeps tags pushed less than this time ago.
	KeepYounger time.Duration
	// KeepPulledWithin keeps tags whose image was pulled less than this time
	// ago, by any tag or by digest, with GET or HEAD. The push counts as a pull.
	KeepPulledWithin time.Duration
}

// Options are the options of [Apply]. The zero value removes what is due.
type Options struct {
	// DryRun reports what would go and changes nothing.
	DryRun bool
	// Now also removes images that a client may have just learnt about. That is safe only
	// while nobody pushes.
	Now bool
	// TrustClock continues even if the clock is far from what the catalogue records.
	TrustClock bool
}

// Decision says what happened to a tag, and why.
type Decision struct {
	Repo    string     `json:"repo"`
	Tag     string     `json:"tag"`
	Digest  oci.Digest `json:"digest"`
	Removed bool       `json:"removed"`
	// Reason is a phrase such as "one of the 3 newest".
	Reason string `json:"reason"`
}

// maxDecisions is the maximum number of decisions in a report; about 20 MB.
const maxDecisions = 100_000

// Report says what Apply did, or would do.
type Report struct {
	// Rules is the number of rules.
	Rules int `json:"rules"`
	// Repositories is the number of repositories to which some rule applies.
	Repositories int `json:"repositories"`
	// Kept and Removed count the tags of these repositories.
	Kept    int `json:"kept"`
	Removed int `json:"removed"`
	// Manifests counts the manifests that were removed because nothing else needed them.
	Manifests int `json:"manifests"`
	// Decisions lists at most 100,000 decisions on tags; the counts cover all of them.
	Decisions []Decision `json:"decisions"`
	// Elsewhere says that another replica was already applying the rules, and this one did nothing.
	Elsewhere bool `json:"elsewhere,omitempty"`
}

func (rep *Report) add(d Decision) {
	if d.Removed {
		rep.Removed++
	} else {
		rep.Kept++
	}
	if len(rep.Decisions) < maxDecisions {
		rep.Decisions = append(rep.Decisions, d)
	}
}

// Check returns an error if the rules are invalid.
func Check(rules []Rule) error {
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

// Apply removes the tags that the rules do not keep. With each tag it removes its
// manifest, the manifests that an index names, and the manifests that refer to it
// (signatures, SBOMs), unless something else needs them. The space is free after the next
// collection that follows the grace period. It does not matter whether the collector
// removes untagged manifests.
//
// A tag is kept if a clause of any rule for its repository keeps it, if no rule applies
// to its repository, or if it is immutable. A tag that was pushed again, or whose
// manifest a client has just learnt about, is left for the next run. For a grace period
// after the start, that applies to every manifest, as it does for the collector.
//
// Tags that hang on an image (catalog.HungOn: sha256-<hex>, also with a suffix such as
// .sig or -att) are not images and take no image's place. They stay as long as a
// repository has the image. They go in the run that removes the image from their own
// repository. If the image is in no repository, they go by themselves a grace period
// after they were pushed. If the repository holds nothing but such tags, the images may
// be in another registry. Then the rules judge the tags, and all tags that hang on the
// same image count as one.
//
// Some tools make a tag sha256-<hex> that points at that very image when they copy it.
// Such a tag does not keep the image. If the image has no other tag and is part of no
// index, the tag counts as an ordinary tag of the image.
//
// Errors: ErrClock.
func Apply(ctx context.Context, reg *registry.Registry, rules []Rule, o Options) (Report, error) {
	rep := Report{Rules: len(rules)}
	up := reg.Upkeep()
	if err := Check(rules); err != nil {
		return rep, err
	}
	if err := up.Deletable(); err != nil && !o.DryRun {
		return rep, err
	}
	if !o.DryRun {
		if err := reg.CheckStore(ctx); err != nil {
			return rep, err
		}
	}
	if err := up.FlushPulls(ctx); err != nil {
		return rep, fmt.Errorf("record the times of last pulls: %w", err)
	}
	if !o.DryRun {
		held, release, mine, err := up.Replica.Alone(ctx, replica.LeaseRetain, "retain")
		if !mine || err != nil {
			rep.Elsewhere = err == nil
			return rep, err
		}
		defer release()
		ctx = held
	}
	if err := checkClock(ctx, up, o); err != nil {
		return rep, err
	}
	err := replica.LeaseError(ctx, applyAll(ctx, up, rules, o, &rep))
	return rep, err
}

func applyAll(ctx context.Context, up *registry.Upkeep, rules []Rule, o Options, rep *Report) error {
	const page = 500
	rehearsed := map[manifestOf]bool{}
	for last := ""; ; {
		names, err := up.Catalog.Repositories(ctx, last, page)
		if err != nil {
			return fmt.Errorf("list repositories: %w", err)
		}
		for _, repo := range names {
			var about []Rule
			for _, rule := range rules {
				if rule.Repositories(repo) {
					about = append(about, rule)
				}
			}
			if len(about) == 0 {
				continue
			}
			rep.Repositories++
			if err := applyIn(ctx, up, repo, about, o, rep, rehearsed); err != nil {
				return fmt.Errorf("apply the retention rules to %s: %w", repo, err)
			}
		}
		if len(names) < page {
			return nil
		}
		last = names[len(names)-1]
	}
}

// manifestOf is a manifest of a repository.
type manifestOf struct {
	repo   string
	digest oci.Digest
}

// retaining is one run of Apply in one repository.
type retaining struct {
	up        *registry.Upkeep
	repo      string
	rules     []Rule
	o         Options
	rep       *Report
	now       time.Time
	rehearsal *catalog.Rehearsal // for a dry run
	gone      map[string]bool    // tags that were removed, or would be, together with another one
	// rehearsed holds the manifests that a dry run would have removed from any repository
	// so far.
	rehearsed map[manifestOf]bool
}

// applyIn applies the rules to one repository.
func applyIn(ctx context.Context, up *registry.Upkeep, repo string, rules []Rule, o Options, rep *Report, rehearsed map[manifestOf]bool) error {
	tags, err := up.Catalog.Retention.Infos(ctx, repo, func(repo string, d oci.Digest) bool { return rehearsed[manifestOf{repo, d}] })
	if err != nil {
		return err
	}
	run := &retaining{up: up, repo: repo, rules: rules, o: o, rep: rep, now: up.JudgingTime(), gone: map[string]bool{}, rehearsed: rehearsed}
	if o.DryRun {
		run.rehearsal = up.Rehearse(ctx, repo, o.Now)
	}
	images, orphans, hung := sortTags(tags)
	for i, t := range images {
		if err := run.decide(ctx, t.TagInfo, keepReason(rules, t, i, run.now)); err != nil {
			return err
		}
	}
	ranks := map[string]int{} // ranks of images elsewhere, by the newest tag that hangs on each
	for _, t := range orphans {
		rank, ranked := ranks[t.Hung]
		if !ranked {
			rank = len(ranks)
			ranks[t.Hung] = rank
		}
		reason := ""
		switch {
		case t.Elsewhere:
			reason = "belongs to " + strings.Replace(t.Hung, "-", ":", 1) + " in another repository"
		case len(images) == 0:
			reason = keepReason(rules, t, rank, run.now)
		case !o.Now && run.now.Sub(t.Updated) < up.Options.Grace:
			reason = "its image may still come"
		default:
			reason = matchReason(rules, t.Name)
		}
		if err := run.decide(ctx, t.TagInfo, reason); err != nil {
			return err
		}
	}
	for _, t := range hung { // those that are left after the images were removed
		if !run.gone[t.Name] {
			run.rep.add(Decision{Repo: repo, Tag: t.Name, Digest: t.Digest, Reason: "belongs to " + strings.Replace(t.Hung, "-", ":", 1)})
		}
	}
	return nil
}

// sortTags separates three lists: the tags of images, the tags that hang on an image in
// the repository, and the tags that hang on an image that is not in it.
func sortTags(tags []catalog.RetentionInfo) (images, orphans, hung []catalog.RetentionInfo) {
	tagged := map[oci.Digest]bool{} // by a tag other than the image's own sha256-<hex>
	for _, t := range tags {
		if !t.Self {
			tagged[t.Digest] = true
		}
	}
	for _, t := range tags {
		switch {
		case t.Self && !t.Part && !tagged[t.Digest]:
			tagged[t.Digest] = true
			images = append(images, t)
		case t.Hung == "":
			images = append(images, t)
		case t.Here:
			hung = append(hung, t)
		default:
			orphans = append(orphans, t)
		}
	}
	return images, orphans, hung
}

// decide removes a tag unless there is a reason to keep it. It reports the decision and
// what was removed with the tag.
func (run *retaining) decide(ctx context.Context, t catalog.TagInfo, keep string) error {
	if run.gone[t.Name] {
		return nil // already reported with the tag that took this one along
	}
	d := Decision{Repo: run.repo, Tag: t.Name, Digest: t.Digest, Reason: keep}
	if run.up.Immutable(run.repo, t.Name) {
		d.Reason = "immutable"
	}
	if d.Reason != "" {
		run.rep.add(d)
		return nil
	}
	var went catalog.Retired
	var err error
	if run.o.DryRun {
		went, err = run.rehearsal.RetireTag(t)
	} else if err = ctx.Err(); err == nil {
		went, err = run.up.Retire(ctx, run.repo, t, run.o.Now)
	}
	switch {
	case errors.Is(err, catalog.ErrChanged):
		d.Reason = "pushed or removed meanwhile"
		run.rep.add(d)
		return nil
	case errors.Is(err, catalog.ErrInUse):
		d.Reason = "a client may be about to use its manifest"
		run.rep.add(d)
		return nil
	case err != nil:
		return storage.ClientError("remove tag "+d.Tag, err)
	}
	return run.report(ctx, went)
}

// report counts what a retirement removed. It announces the removal unless it was a
// rehearsal.
func (run *retaining) report(ctx context.Context, went catalog.Retired) error {
	run.rep.Manifests += len(went.Manifests)
	for i, t := range went.Tags {
		d := Decision{Repo: run.repo, Tag: t.Name, Digest: t.Digest, Removed: true, Reason: "no rule keeps it"}
		if i > 0 {
			d.Reason = "goes with what it belongs to"
		}
		run.gone[t.Name] = true
		run.rep.add(d)
		if run.o.DryRun {
			continue
		}
		if err := run.up.Emit(ctx, registry.Event{Action: registry.ActionDelete, Repo: run.repo, Tag: t.Name}); err != nil {
			return err
		}
	}
	for _, m := range went.Manifests {
		if run.o.DryRun {
			run.rehearsed[manifestOf{run.repo, m}] = true
			continue
		}
		if err := run.up.Emit(ctx, registry.Event{Action: registry.ActionDelete, Repo: run.repo, Descriptor: oci.Descriptor{Digest: m}}); err != nil {
			return err
		}
	}
	return nil
}

// matchReason returns which expression of the rules keeps a tag, or "".
func matchReason(rules []Rule, tag string) string {
	for _, r := range rules {
		for _, re := range r.KeepTags {
			if re.MatchString(tag) {
				return "matches " + re.String()
			}
		}
	}
	return ""
}

// keepReason returns why one of the rules keeps a tag, or "". rank is the number of newer
// tags of its kind. An image that was not pulled after its push is judged by its push.
func keepReason(rules []Rule, t catalog.RetentionInfo, rank int, now time.Time) string {
	if reason := matchReason(rules, t.Name); reason != "" {
		return reason
	}
	for _, r := range rules {
		switch {
		case rank < r.KeepNewest:
			return fmt.Sprintf("one of the %d newest", r.KeepNewest)
		case r.KeepYounger > 0 && now.Sub(t.Updated) < r.KeepYounger:
			return fmt.Sprintf("pushed within %s", r.KeepYounger)
		case r.KeepPulledWithin > 0 && !t.LastPull.IsZero() && now.Sub(t.LastPull) < r.KeepPulledWithin:
			return fmt.Sprintf("pulled within %s", r.KeepPulledWithin)
		case r.KeepPulledWithin > 0 && now.Sub(t.Updated) < r.KeepPulledWithin:
			return fmt.Sprintf("pushed within %s, and not pulled since", r.KeepPulledWithin)
		}
	}
	return ""
}
