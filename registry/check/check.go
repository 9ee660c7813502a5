// Package check compares a registry with itself: its catalogue, its contents and its object
// store. It mends what can be mended while the registry serves.
package check

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"example.org/slipway/registry"

	"golang.org/x/sync/errgroup"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
)

// Kind says what is wrong.
type Kind string

// The kinds of problems, and what a repair does.
const (
	// ProblemCatalog: the catalogue's file is damaged. Nothing at all is
	// repaired then; restore a backup.
	ProblemCatalog Kind = "catalogue-damaged"
	// ProblemDangling: a row of the catalogue points at a row that is not
	// there. Repair deletes it.
	ProblemDangling Kind = "dangling-row"
	// ProblemMissing: the object of a content is not in the store. Repair
	// records that the content is absent, so that a push brings it back.
	ProblemMissing Kind = "content-missing"
	// ProblemCorrupt: a content does not have its digest. Repair moves it into
	// quarantine and records that it is absent.
	ProblemCorrupt Kind = "content-corrupt"
	// ProblemUnreadable: the store failed to give a content, twice. Where that is
	// an error of the disk (EIO), and the store can move what it cannot read,
	// repair moves it into quarantine and records that it is absent. Otherwise it
	// stays, since the next try may succeed, and the next push brings its bytes again.
	ProblemUnreadable Kind = "content-unreadable"
	// ProblemSize: a content has its digest, but not the size the catalogue
	// says. Repair corrects the catalogue.
	ProblemSize Kind = "size-wrong"
	// ProblemNotInline: a manifest's bytes are not in the catalogue. Repair
	// reads them from the object.
	ProblemNotInline Kind = "manifest-not-inline"
	// ProblemManifest: a manifest has its digest and yet is no manifest. There
	// is no repair but to delete it.
	ProblemManifest Kind = "manifest-malformed"
	// ProblemRefs: what the catalogue records as named by a manifest is not
	// what the manifest names. Repair follows the manifest.
	ProblemRefs Kind = "references-wrong"
	// ProblemUnlinked: a manifest names a content that is stored, but its
	// repository does not show. Repair shows it.
	ProblemUnlinked Kind = "content-not-linked"
	// ProblemIncomplete: a manifest needs a content that is not here. Push the
	// image again.
	ProblemIncomplete Kind = "image-incomplete"
	// ProblemReturned: the bytes of a content that the catalogue has as absent are
	// here and right. Repair records that, and shows it where a manifest names it.
	ProblemReturned Kind = "content-returned"
	// ProblemOrphan: the store has an object the catalogue does not know. Repair
	// moves it into quarantine, for a newer catalogue may know it, and deletes one
	// that does not have its digest and that nothing names.
	ProblemOrphan Kind = "object-unknown"
	// ProblemDuplicate: the store has an object of a content that is in the
	// catalogue. Repair deletes it, if the bytes there are right.
	ProblemDuplicate Kind = "object-duplicate"
	// ProblemLeak: a content that nothing shows or names is not queued for the
	// collector. Repair queues it.
	ProblemLeak Kind = "content-leaked"
)

// Problem is one thing that a check found.
type Problem struct {
	Kind Kind `json:"kind"`
	// Repo, Digest, and Key of the object, where the problem has them.
	Repo   string     `json:"repo,omitempty"`
	Digest oci.Digest `json:"digest,omitempty"`
	Key    string     `json:"key,omitempty"`
	// Detail is a phrase for a person.
	Detail string `json:"detail"`
	// Hurts are the images that cannot be pulled because of it, as repo:tag or
	// repo@digest; at most 100.
	Hurts []string `json:"hurts,omitempty"`
	// Repaired tells that it is a problem no more.
	Repaired bool `json:"repaired"`
}

// Limits of a report.
const (
	maxProblems = 1000
	maxHurts    = 100
)

// Options of [Run]. The zero value checks everything and repairs
// nothing.
type Options struct {
	// Quick looks at the sizes of objects and does not read them.
	Quick bool
	// Repair mends what can be mended. See the kinds of problems.
	Repair bool
	// From, if not nil, is asked by a repair for every content that is damaged or
	// missing, before that is given up. An error of it ends the check.
	From Source
	// EmptyQuarantine first removes for good what earlier repairs moved aside, but for
	// the only good copy of a content that is named.
	EmptyQuarantine bool
	// GiveUpMany lets a repair record as absent, or move aside, however many contents
	// are missing, damaged or unknown. Default: 1 % of them, at least 10 and at most
	// 10,000; where there are more the repair is refused with a *TooManyError, since
	// it may be the store or the catalogue that is wrong.
	GiveUpMany bool
	// AdoptStore first makes the object store this registry's, although it lacks the
	// registry's id; see AdoptStore.
	AdoptStore bool
	// Parallel is how many contents are read at once; default 4.
	Parallel int
	// Progress, if not nil, is called about ten times a second and at the end,
	// never twice at the same time. It delays the check.
	Progress func(Report)
}

// Report is how far a check has come, and what it found.
type Report struct {
	// Contents and Bytes that were checked, of the totals at the start. A quick
	// check counts the bytes of objects it did not read.
	Contents      int64 `json:"contents"`
	ContentsTotal int64 `json:"contents_total"`
	Bytes         int64 `json:"bytes"`
	BytesTotal    int64 `json:"bytes_total"`
	// Manifests that were checked.
	Manifests      int64 `json:"manifests"`
	ManifestsTotal int64 `json:"manifests_total"`
	// Objects of the store that were looked up in the catalogue.
	Objects int64 `json:"objects"`
	// Counts of problems by kind, and how many of each were repaired.
	Counts   map[Kind]int `json:"counts"`
	Repaired map[Kind]int `json:"repaired"`
	// Problems, at most 1000; the counts go on.
	Problems []Problem `json:"problems"`
	// Quarantined contents lie aside at the end, with their bytes; so many were
	// removed before.
	Quarantined        int64 `json:"quarantined"`
	QuarantinedBytes   int64 `json:"quarantined_bytes"`
	QuarantinedRemoved int64 `json:"quarantined_removed"`
	// RebuiltPacks of Gear files, with so many files, were unknown to the catalogue
	// and are recorded now.
	RebuiltPacks int64         `json:"rebuilt_packs"`
	RebuiltFiles int64         `json:"rebuilt_files"`
	Took         time.Duration `json:"took"`
}

// Clean tells whether no problem remains.
func (rep *Report) Clean() bool {
	for kind, n := range rep.Counts {
		if n > rep.Repaired[kind] {
			return false
		}
	}
	return true
}

// fsck is one check.
type fsck struct {
	stock
	reg    *registry.Registry
	o      Options
	start  time.Time
	extent catalog.Extent
	// shared says that Distribution's links lie in the same store, so that
	// objects this catalogue does not know may be needed all the same.
	shared bool
	began  time.Time // for the report, by the wall clock

	mu    sync.Mutex // guards what follows
	rep   Report
	shown time.Time
	// lost contents, and unknown objects, whose repair is put off.
	lost, unknown tally
}

// Run compares the catalogue with itself, with the contents, and with the
// object store, while the registry serves. What changes during the check is not
// taken for a problem: each finding is confirmed while nothing can change it.
// Memory is bounded, whatever the size of the registry. One check runs at a
// time; a second one gets an error.
//
// Objects in the storage of a Distribution registry, adopted in place, are never
// deleted as long as its directory of repositories is there. Errors: *StoreError where
// the object store is not the one that the catalogue describes, *TooManyError.
func Run(ctx context.Context, reg *registry.Registry, o Options) (Report, error) {
	if o.Parallel <= 0 {
		o.Parallel = 4
	}
	up := reg.Upkeep()
	if (o.Repair || o.EmptyQuarantine || o.AdoptStore) && up.Options.ReadOnly {
		return Report{}, up.Writable()
	}
	end, ok := up.BeginCheck()
	if !ok {
		return Report{}, errors.New("a check is under way already")
	}
	defer end()
	if o.AdoptStore {
		if err := reg.AdoptStore(ctx); err != nil {
			return Report{}, err
		}
	}
	if err := reg.CheckStore(ctx); err != nil {
		return Report{}, err
	}
	f := newFsck(reg, up, o)
	held, release := ctx, func() {}
	if o.Repair || o.EmptyQuarantine {
		var err error // no collector of another replica comes between finding and repair
		if held, release, err = up.AloneSoon(ctx, registry.LeaseCollect, "fsck"); err != nil {
			return Report{}, fmt.Errorf("wait for a collection to end: %w", err)
		}
	}
	defer release()
	err := registry.LeaseError(held, f.run(held))
	f.rep.Took = time.Since(f.began)
	f.shown = time.Time{}
	f.step(func(*Report) {})
	return f.report(), err
}

func newFsck(reg *registry.Registry, up *registry.Upkeep, o Options) *fsck {
	f := &fsck{reg: reg, stock: stock{up}, o: o, start: up.Now(), began: time.Now()}
	f.rep.Counts, f.rep.Repaired = map[Kind]int{}, map[Kind]int{}
	return f
}

func (f *fsck) run(ctx context.Context) (err error) {
	if f.extent, err = f.up.Catalog.Extent(ctx); err != nil {
		return fmt.Errorf("count the contents: %w", err)
	}
	f.rep.ContentsTotal, f.rep.BytesTotal, f.rep.ManifestsTotal = f.extent.Contents, f.extent.Bytes, f.extent.Manifests
	if f.shared, err = f.distribution(ctx); err != nil {
		return err
	}
	if f.o.EmptyQuarantine {
		if err := f.emptyQuarantine(ctx); err != nil {
			return fmt.Errorf("empty the quarantine: %w", err)
		}
	}
	// In an order in which a repair leaves nothing to those before it.
	for _, part := range []struct {
		doing string
		check func(context.Context) error
	}{
		{"check the catalogue's file", f.checkCatalog},
		{"check the catalogue's rows", f.checkRows},
		{"check contents", f.checkContents},
		{"check manifests", f.checkManifests},
		{"check the object store", f.checkObjects},
		{"look for leaked contents", f.checkLeaks},
		{"look into the quarantine", f.countQuarantine},
	} {
		if err := part.check(ctx); err != nil {
			return fmt.Errorf("%s: %w", part.doing, err)
		}
	}
	return nil
}

// report returns a copy of the report as it stands.
func (f *fsck) report() Report {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.copyReport()
}

func (f *fsck) copyReport() Report {
	rep := f.rep
	rep.Counts, rep.Repaired = maps.Clone(f.rep.Counts), maps.Clone(f.rep.Repaired)
	return rep
}

// step changes the report and shows it now and then.
func (f *fsck) step(change func(*Report)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(&f.rep)
	if now := time.Now(); f.o.Progress != nil && now.Sub(f.shown) >= progressEvery {
		f.shown = now
		f.o.Progress(f.copyReport())
	}
}

// progressEvery is how often progress is shown.
const progressEvery = 100 * time.Millisecond

// found adds a problem to the report, repaired first if that is wanted and
// possible: repair is nil where it is not. A repair that finds nothing to do
// says that the problem has gone, by itself or with another one.
func (f *fsck) found(ctx context.Context, p Problem, repair func(context.Context) (bool, error)) error {
	if f.o.Repair && repair != nil {
		done, err := repair(ctx)
		if err != nil {
			return fmt.Errorf("repair %s %s: %w", p.Kind, p.Digest, err)
		}
		if !done {
			return nil
		}
		p.Repaired = true
	}
	f.note(p)
	return nil
}

// note adds a problem to the report.
func (f *fsck) note(p Problem) {
	f.up.Log.Warn("fsck found a problem", "kind", p.Kind, "repo", p.Repo, "digest", p.Digest, "key", p.Key, "detail", p.Detail, "repaired", p.Repaired)
	f.step(func(rep *Report) {
		rep.Counts[p.Kind]++
		if p.Repaired {
			rep.Repaired[p.Kind]++
		}
		if len(rep.Problems) < maxProblems {
			rep.Problems = append(rep.Problems, p)
		}
	})
}

// settle confirms a problem with a content while no push publishes it and no
// collector deletes it, and repairs it before anything else can happen to it.
// Backups need every object to stay, so a repair waits for them. Locks are
// taken in the collector's order: collector.objects, then the digest's.
func (f *fsck) settle(ctx context.Context, p Problem, confirm, repair func(context.Context) (bool, error)) error {
	real := false
	err := func() (err error) {
		if f.o.Repair && repair != nil {
			release, err := f.up.Exclude(ctx)
			if err != nil {
				return err
			}
			defer release()
		}
		defer f.up.LockDigest(p.Digest)()
		if real, err = confirm(ctx); err != nil || !real || !f.o.Repair || repair == nil {
			return err
		}
		p.Repaired, err = repair(ctx)
		return err
	}()
	if err != nil {
		return fmt.Errorf("settle %s %s: %w", p.Kind, p.Digest, err)
	}
	if real {
		f.note(p)
	}
	return nil
}

func (f *fsck) checkCatalog(ctx context.Context) error {
	complaints, err := f.up.Catalog.Integrity(ctx, f.o.Quick, 100)
	if err != nil {
		return err
	}
	for _, c := range complaints {
		if err := f.found(ctx, Problem{Kind: ProblemCatalog, Detail: c}, nil); err != nil {
			return err
		}
	}
	if len(complaints) > 0 {
		f.o.Repair = false // on rows that may not be what they seem
	}
	return nil
}

func (f *fsck) checkRows(ctx context.Context) error {
	const page = 500
	var after *catalog.Dangling
	for {
		rows, err := f.up.Catalog.Dangling(ctx, after, page)
		if err != nil {
			return err
		}
		for _, row := range rows {
			p := Problem{Kind: ProblemDangling, Repo: row.Repo, Digest: row.Digest, Detail: row.String() + " points at nothing"}
			err := f.found(ctx, p, func(ctx context.Context) (bool, error) {
				done, err := f.up.Catalog.DeleteDangling(ctx, row)
				f.up.Dropped(row.Repo, row.Digest, row.Tag)
				return done, err
			})
			if err != nil {
				return err
			}
		}
		if len(rows) < page {
			return nil
		}
		after = &rows[len(rows)-1]
	}
}

func (f *fsck) checkContents(ctx context.Context) error {
	const page = 500
	for after := int64(0); ; {
		list, err := f.up.Catalog.Contents(ctx, after, page)
		if err != nil {
			return err
		}
		g, gctx := errgroup.WithContext(ctx)
		g.SetLimit(f.o.Parallel)
		for _, c := range list {
			after = c.ID
			if c.ID > f.extent.LastContent {
				break
			}
			g.Go(func() error {
				if err := f.checkContent(gctx, c); err != nil {
					return err
				}
				f.step(func(rep *Report) { rep.Contents++ })
				return nil
			})
		}
		if err := g.Wait(); err != nil {
			return err
		}
		if len(list) < page || after > f.extent.LastContent {
			return f.doFew(ctx, &f.lost, "are missing or damaged")
		}
	}
}

func (f *fsck) checkLeaks(ctx context.Context) error {
	const page = 500
	for after := int64(0); ; {
		list, err := f.up.Catalog.Leaks(ctx, after, page)
		if err != nil {
			return err
		}
		for _, l := range list {
			after = l.ID
			p := Problem{Kind: ProblemLeak, Digest: l.Digest, Detail: fmt.Sprintf("%d bytes that nothing needs", l.Size)}
			err := f.found(ctx, p, func(ctx context.Context) (bool, error) { return f.up.Catalog.QueueLeak(ctx, l) })
			if err != nil {
				return err
			}
		}
		if len(list) < page {
			return nil
		}
	}
}
