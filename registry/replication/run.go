package replication

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"

	"example.org/slipway/oci"
	"example.org/slipway/oci/imagecopy"
)

// Counts is what a run did, or would do.
type Counts struct {
	// Repositories were looked at, and Present images were at the destination already.
	Repositories int64 `json:"repositories"`
	Present      int64 `json:"present"`
	// Images are tags, and referrers of images that were present.
	Images  int64 `json:"images"`
	Deleted int64 `json:"deleted"`
	Failed  int64 `json:"failed"`
	// Newer are tags that were changed later at the destination, and stay there.
	Newer int64 `json:"newer"`
	// Manifests, Blobs and Bytes were sent.
	Manifests int64 `json:"manifests"`
	Blobs     int64 `json:"blobs"`
	Bytes     int64 `json:"bytes"`
}

// Change is something that a run would do.
type Change struct {
	// Action is "copy", "delete", or "keep" for what the destination has newer.
	Action string `json:"action"`
	// Repository and Reference are names at the source, and To is the repository at the
	// destination.
	Repository string `json:"repository"`
	Reference  string `json:"reference"`
	To         string `json:"to"`
	// Reason says why.
	Reason string `json:"reason"`
}

// Args are the arguments of [Replicator.Replicate].
type Args struct {
	Rule string `json:"rule"`
	// DryRun reports what would be done, and does nothing.
	DryRun bool `json:"dry_run"`
	// DeleteMany permits a run to delete most of what the rule has copied here.
	DeleteMany bool `json:"delete_many"`
}

// Report is what a run did.
type Report struct {
	Rule   string `json:"rule"`
	DryRun bool   `json:"dry_run"`
	Counts
	// Changes are at most maxChanges of those of a dry run.
	Changes []Change `json:"changes,omitempty"`
	// Errors are at most maxErrors of the failures.
	Errors []string `json:"errors,omitempty"`
	// Doing is what the run does at the moment.
	Doing string `json:"doing,omitempty"`
}

const (
	maxChanges = 1000
	maxErrors  = 20
	// lookParallel is how many tags are compared at once.
	lookParallel = 8
	// givesUpAfter is how many requests in a row may get no answer before a run is broken
	// off, if the remote registry is away then. The run is repeated later.
	givesUpAfter = 10
	// A run that would delete more than half of the tags needs Args.DeleteMany, if these
	// are more than fewDeletes or the source has no tag at all.
	fewDeletes = 10
)

// A run is one comparison of both sides, with the copies that follow.
type run struct {
	r        *Replicator
	rule     *Rule
	args     Args
	src, dst oci.Registry
	// srcHistory and dstHistory are the histories of their tags.
	srcHistory, dstHistory HistoryFunc
	progress               func(Report)

	// looked are the images whose referrers were compared. unlisted are the repositories
	// of the source whose tags are not known.
	looked   map[place]bool
	unlisted map[string]bool

	mu     sync.Mutex
	report Report
	// unanswered is how many requests got no answer, in a row.
	unanswered int
}

// place is an image in a repository of the source.
type place struct {
	repo   string
	digest oci.Digest
}

func newRun(r *Replicator, rule *Rule, args Args, progress func(Report)) *run {
	x := &run{r: r, rule: rule, args: args, src: rule.Remote, dst: r.o.Local, srcHistory: rule.History, dstHistory: r.o.History, progress: progress,
		looked: map[place]bool{}, unlisted: map[string]bool{}, report: Report{Rule: rule.Name, DryRun: args.DryRun}}
	if rule.Push {
		x.src, x.dst = x.dst, x.src
		x.srcHistory, x.dstHistory = x.dstHistory, x.srcHistory
	}
	return x
}

// step changes the report, and reports it.
func (x *run) step(change func(*Report)) {
	x.mu.Lock()
	defer x.mu.Unlock()
	change(&x.report)
	if x.progress != nil {
		rep := x.report
		rep.Changes, rep.Errors = nil, nil
		x.progress(rep)
	}
}

// failed notes an error that does not end the run.
func (x *run) failed(err error) {
	x.step(func(rep *Report) {
		rep.Failed++
		if len(rep.Errors) < maxErrors {
			rep.Errors = append(rep.Errors, err.Error())
		}
	})
}

// errIncomplete says that a run has come to its end without some of the images. errAway
// says that it has not come to its end.
var (
	errIncomplete = errors.New("images were not copied")
	errAway       = errors.New("too many requests in a row failed; the run is broken off, and repeated later")
)

// ended notes how a piece of work has ended. An error means that the run is to end, too. An
// answer that refuses something does not end it, because the other images may be copied.
func (x *run) ended(ctx context.Context, repo string, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if err != nil {
		x.failed(err)
	}
	x.mu.Lock()
	x.unanswered++
	if err == nil || answered(err) {
		x.unanswered = 0
	}
	ask := x.unanswered >= givesUpAfter
	x.mu.Unlock()
	if !ask {
		return nil
	}
	if !x.rule.Push {
		repo, _ = x.rule.from(repo)
	}
	if _, _, err := x.rule.Remote.Tags(ctx, repo, "", 1); err != nil && !answered(err) {
		return fmt.Errorf("%w: %w", errAway, err)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.unanswered = 0
	return nil
}

// answered reports whether an error is the answer of a registry that works. If a password
// is wrong, further requests may lock the account.
func answered(err error) bool { return !away(err) && !oci.HasCode(err, oci.CodeUnauthorized) }

// context returns the context for both sides.
func (r *Replicator) context(ctx context.Context, rule *Rule, via []string) context.Context {
	ctx = oci.WithActor(r.o.Mark(ctx), &oci.Actor{Name: rule.actor()})
	if rule.Push {
		return r.sending(ctx, via)
	}
	return ctx
}

// do compares, and copies what differs.
func (x *run) do(ctx context.Context) (Report, error) {
	ctx = x.r.context(ctx, x.rule, nil)
	repos, err := x.repositories(ctx)
	if err != nil {
		return x.report, err
	}
	there := make(map[string][]string, len(repos)) // the tags of each repository at the source
	var images []imagecopy.Image
	for _, repo := range repos {
		to, _ := x.rule.to(repo)
		x.step(func(rep *Report) { rep.Doing = "comparing " + repo })
		tags, err := x.tags(ctx, repo)
		if err != nil {
			x.unlisted[repo] = true
			if err := x.ended(ctx, to, fmt.Errorf("list the tags of %s: %w", repo, err)); err != nil {
				return x.report, err
			}
			continue
		}
		there[repo] = tags
		refs, err := x.differing(ctx, repo, to, tags)
		if err != nil {
			return x.report, err
		}
		x.step(func(rep *Report) { rep.Repositories++ })
		if len(refs) > 0 {
			images = append(images, imagecopy.Image{From: repo, To: to, References: refs})
		}
	}
	if err := x.copy(ctx, images); err != nil {
		return x.report, err
	}
	if x.rule.Delete && !x.rule.Push {
		if err := x.deleteGone(ctx, there); err != nil {
			return x.report, err
		}
	}
	x.step(func(rep *Report) { rep.Doing = "" })
	if n := x.report.Failed; n > 0 {
		return x.report, fmt.Errorf("%d %w; the first: %s", n, errIncomplete, x.report.Errors[0])
	}
	return x.report, nil
}

// repositories returns the repositories of the source that the rule copies.
func (x *run) repositories(ctx context.Context) ([]string, error) {
	list := x.rule.Names
	if list == nil {
		var err error
		list, err = oci.AllNames(func(last string, n int) ([]string, bool, error) { return x.src.Repositories(ctx, last, n) })
		if err != nil {
			return nil, fmt.Errorf("list the repositories of the source (repositories without * in their names need no list): %w", err)
		}
	}
	var repos []string
	for _, repo := range list {
		to, ok := x.rule.to(repo)
		switch {
		case !ok || x.rule.Push && x.r.mirrored(repo):
		case !x.rule.Push && x.r.mirrored(to):
			return nil, fmt.Errorf("%s would be copied to %s, which is a mirror of another registry; give the rule a prefix", repo, to)
		default:
			repos = append(repos, repo)
		}
	}
	return repos, nil
}

// tags lists the tags of a repository of the source. A repository that is gone has none.
func (x *run) tags(ctx context.Context, repo string) ([]string, error) {
	tags, err := oci.AllNames(func(last string, n int) ([]string, bool, error) { return x.src.Tags(ctx, repo, last, n) })
	if oci.HasCode(err, oci.CodeNameUnknown) {
		return nil, nil
	}
	return tags, err
}

// fallbackTags are the tags under which registries without the referrers API keep lists of
// referrers. Clients maintain them, so they are not copied. attachedTags are those under
// which cosign keeps signatures, attestations and SBOMs.
var (
	fallbackTags = regexp.MustCompile(`^sha(256-[0-9a-f]{64}|512-[0-9a-f]{128})$`)
	attachedTags = regexp.MustCompile(`^(sha256)-([0-9a-f]{64})\.(sig|att|sbom)$`)
)

// subjectOf returns the digest of the image to which the name of a tag attaches it, or "".
func subjectOf(tag string) oci.Digest {
	if m := attachedTags.FindStringSubmatch(tag); m != nil {
		return oci.Digest(m[1] + ":" + m[2])
	}
	return ""
}

// picked reports whether the rule copies a tag for its name.
func (r *Rule) picked(tag string) bool {
	return !fallbackTags.MatchString(tag) && subjectOf(tag) == "" && (r.Tags == nil || r.Tags(tag))
}

// change notes a change of a dry run.
func (x *run) change(action, repo, ref, to, reason string) {
	if !x.args.DryRun {
		return
	}
	x.step(func(rep *Report) {
		switch action {
		case "delete":
			rep.Deleted++
		case "copy":
			rep.Images++
		}
		if len(rep.Changes) < maxChanges {
			rep.Changes = append(rep.Changes, Change{action, repo, ref, to, reason})
		}
	})
}

// copy copies images. Failures are noted, and do not keep it from copying the others.
func (x *run) copy(ctx context.Context, images []imagecopy.Image) error {
	if x.args.DryRun || len(images) == 0 {
		return nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	to := ""
	progress := func(p imagecopy.Progress) {
		x.step(func(rep *Report) {
			rep.Doing = strings.TrimSuffix("copying "+p.Repo+":"+p.Reference, ":")
			rep.Images, rep.Manifests, rep.Blobs, rep.Bytes = p.References, p.Manifests, p.Blobs, p.Bytes
		})
	}
	for i := range images {
		to = cmp.Or(to, images[i].To)
	}
	// The errors that are returned were noted by Done.
	p, _ := imagecopy.Copy(ctx, dated{x.dst, x.rule, x.srcHistory}, x.src, imagecopy.Options{Images: images, Referrers: x.rule.Referrers, ContinueOnError: true, Progress: progress,
		Done: func(err error) {
			if oci.HasCode(err, oci.CodeTagNewer) { // it was changed there meanwhile
				x.step(func(rep *Report) { rep.Newer++ })
				err = nil
			}
			if errors.Is(err, imagecopy.ErrGone) { // it was deleted since the comparison
				err = nil
			}
			if err := x.ended(ctx, to, err); err != nil {
				cancel(err)
			}
		}})
	progress(p)
	return context.Cause(ctx)
}

// heldTag is a tag here that a rule has set. from is its repository's name at the source.
type heldTag struct{ from, repo, name string }

// deleteGone deletes the tags here that this rule has set and the source does not have any
// more. there are the tags of each repository at the source.
func (x *run) deleteGone(ctx context.Context, there map[string][]string) error {
	x.step(func(rep *Report) { rep.Doing = "looking for what the source has deleted" })
	gone, kept, err := x.gone(ctx, there)
	if err != nil {
		return err
	}
	empty := !slices.ContainsFunc(slices.Collect(maps.Values(there)), func(tags []string) bool { return len(tags) > 0 })
	if len(gone) > kept && (len(gone) > fewDeletes || empty) && !x.args.DeleteMany && !x.args.DryRun {
		return fmt.Errorf("the source has lost %d of %d tags, so nothing is deleted here; if that is right: slipway replicate --delete-many %s", len(gone), len(gone)+kept, x.rule.Name)
	}
	for _, t := range gone {
		x.change("delete", t.from, t.name, t.repo, "the source does not have it any more")
		if x.args.DryRun {
			continue
		}
		if err := x.dst.DeleteTag(ctx, t.repo, t.name); err != nil && !absent(err) {
			x.failed(fmt.Errorf("delete %s:%s: %w", t.repo, t.name, err))
			continue
		}
		x.step(func(rep *Report) { rep.Deleted++ })
	}
	return nil
}

// gone returns the tags here that this rule has set and the source does not have any more.
// kept is how many tags the source has.
func (x *run) gone(ctx context.Context, there map[string][]string) (gone []heldTag, kept int, err error) {
	local, err := oci.AllNames(func(last string, n int) ([]string, bool, error) { return x.dst.Repositories(ctx, last, n) })
	if err != nil {
		return nil, 0, fmt.Errorf("list repositories: %w", err)
	}
	for _, repo := range local {
		from, ok := x.rule.from(repo)
		if !ok || x.unlisted[from] {
			continue
		}
		tags, err := oci.AllNames(func(last string, n int) ([]string, bool, error) { return x.dst.Tags(ctx, repo, last, n) })
		if err != nil && !oci.HasCode(err, oci.CodeNameUnknown) {
			return nil, 0, fmt.Errorf("list the tags of %s: %w", repo, err)
		}
		has := make(map[string]bool, len(there[from]))
		for _, t := range there[from] {
			has[t] = true
		}
		for _, t := range tags {
			if has[t] {
				kept++
				continue
			}
			set, err := x.dstHistory.changes(ctx, repo, t)
			if err != nil {
				return nil, 0, fmt.Errorf("look up who has set %s:%s: %w", repo, t, err)
			}
			if len(set) == 0 || set[0].By != x.rule.actor() {
				continue
			}
			// Lists may be old or incomplete.
			switch _, err := x.src.ResolveManifest(ctx, from, t); {
			case absent(err):
				gone = append(gone, heldTag{from, repo, t})
			case err == nil:
				kept++
			default:
				return nil, 0, fmt.Errorf("look whether the source has %s:%s: %w", from, t, err)
			}
		}
	}
	return gone, kept, nil
}
