// Package check checks that a registry is consistent: its catalogue, its contents and its object
// store. It repairs what it can while the registry serves.
package check

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/catalog/repair"
	"example.org/slipway/registry/replica"
)

// Kind says what is wrong.
type Kind string

// These are the kinds of problems, and what a repair does.
const (
	// ProblemCatalog: the catalogue's file is damaged. Nothing at all is repaired then; restore a
	// backup.
	ProblemCatalog Kind = "catalogue-damaged"
	// ProblemDangling: a row of the catalogue points at a row that does not exist. Repair deletes
	// it.
	ProblemDangling Kind = "dangling-row"
	// ProblemMissing: the object of a content is not in the store. Repair
	// records that the content is absent, so that a push brings it back.
	ProblemMissing Kind = "content-missing"
	// ProblemCorrupt: a content does not have its digest. Repair moves it into
	// quarantine and records that it is absent.
	ProblemCorrupt Kind = "content-corrupt"
	// ProblemUnreadable: the store failed twice to return a content. If that is an error
	// of the disk (EIO), and the store can move what it cannot read, repair moves the
	// content into quarantine and records that it is absent. Otherwise the content stays,
	// because the next try may succeed, and the next push brings its bytes again.
	ProblemUnreadable Kind = "content-unreadable"
	// ProblemSize: a content has its digest, but not the size in the catalogue. Repair corrects the
	// catalogue.
	ProblemSize Kind = "size-wrong"
	// ProblemNotInline: a manifest's bytes are not in the catalogue. Repair
	// reads them from the object.
	ProblemNotInline Kind = "manifest-not-inline"
	// ProblemManifest: a manifest has its digest but is not a valid manifest. The only repair is to
	// delete it.
	ProblemManifest Kind = "manifest-malformed"
	// ProblemRefs: the catalogue's record of what a manifest names differs from what the
	// manifest names. Repair follows the manifest.
	ProblemRefs Kind = "references-wrong"
	// ProblemUnlinked: a manifest names a stored content that its repository does not
	// show. Repair makes the repository show it.
	ProblemUnlinked Kind = "content-not-linked"
	// ProblemIncomplete: a manifest needs a content that the registry lacks. A push of
	// the image repairs it.
	ProblemIncomplete Kind = "image-incomplete"
	// ProblemReturned: the catalogue records a content as absent, but its bytes are here
	// and right. Repair records that, and shows the content in the repositories whose
	// manifests name it.
	ProblemReturned Kind = "content-returned"
	// ProblemOrphan: the store has an object that the catalogue does not know. Repair
	// moves it into quarantine, because a newer catalogue may know it. But repair deletes
	// an object if nothing names it and its bytes do not have its digest.
	ProblemOrphan Kind = "object-unknown"
	// ProblemDuplicate: the store has an object for a content that is in the catalogue. Repair
	// deletes the object if the bytes in the catalogue are right.
	ProblemDuplicate Kind = "object-duplicate"
	// ProblemLeak: a content that nothing shows or names is not queued for the
	// collector. Repair queues it.
	ProblemLeak Kind = "content-leaked"
)

// Problem is a problem that a check found.
type Problem struct {
	Kind Kind `json:"kind"`
	// Repo, Digest and Key are set if the problem has them. Key is the key of the object.
	Repo   string     `json:"repo,omitempty"`
	Digest oci.Digest `json:"digest,omitempty"`
	Key    string     `json:"key,omitempty"`
	// Detail describes the problem for people.
	Detail string `json:"detail"`
	// Hurts lists at most 100 images that cannot be pulled because of the problem, as repo:tag or
	// repo@digest.
	Hurts []string `json:"hurts,omitempty"`
	// Repaired says that the problem has been solved.
	Repaired bool `json:"repaired"`
}

// These are the limits of a report.
const (
	maxProblems = 1000
	maxHurts    = 100
)

// Options are the options of [Run]. The zero value checks everything and repairs nothing.
type Options struct {
	// Quick checks the sizes of objects without reading them.
	Quick bool
	// Repair repairs what it can. See the kinds of problems.
	Repair bool
	// From, if not nil, is where a repair looks for every damaged or missing content
	// before it gives the content up. A content that From refuses to give is not given
	// up, and remains a problem. Any other error of From ends the check.
	From Source
	// EmptyQuarantine first deletes what earlier repairs moved aside. It keeps a copy if
	// it is the only good one of a content that is named.
	EmptyQuarantine bool
	// GiveUpMany lets a repair record as absent, or move aside, any number of contents that are
	// missing, damaged or unknown. By default the limit is 1 % of the contents, but at least 10 and
	// at most 10,000. If there are more, the repair is refused with a *TooManyError, because the
	// store or the catalogue itself may be wrong.
	GiveUpMany bool
	// AdoptStore first makes the object store belong to this registry, although the store
	// lacks the registry's id; see registry.Registry.AdoptStore.
	AdoptStore bool
	// Parallel is the number of contents that are read at the same time; default 4.
	Parallel int
	// Progress, if not nil, is called about ten times a second and at the end,
	// never twice at the same time. It delays the check.
	Progress func(Report)
}

// Report says how far a check has come, and what it found.
type Report struct {
	// Contents and Bytes count what was checked. ContentsTotal and BytesTotal are the
	// totals at the start. A quick check also counts the bytes of objects that it did not
	// read.
	Contents      int64 `json:"contents"`
	ContentsTotal int64 `json:"contents_total"`
	Bytes         int64 `json:"bytes"`
	BytesTotal    int64 `json:"bytes_total"`
	// Manifests counts the checked manifests.
	Manifests      int64 `json:"manifests"`
	ManifestsTotal int64 `json:"manifests_total"`
	// Objects counts the store's objects that were looked up in the catalogue.
	Objects int64 `json:"objects"`
	// Counts holds the number of problems of each kind. Repaired holds how many of them
	// were repaired.
	Counts   map[Kind]int `json:"counts"`
	Repaired map[Kind]int `json:"repaired"`
	// Problems lists at most 1000 problems; the counts cover all of them.
	Problems []Problem `json:"problems"`
	// Quarantined counts the contents that are in quarantine at the end, and
	// QuarantinedBytes counts their bytes. QuarantinedRemoved counts the contents that
	// were deleted before.
	Quarantined        int64 `json:"quarantined"`
	QuarantinedBytes   int64 `json:"quarantined_bytes"`
	QuarantinedRemoved int64 `json:"quarantined_removed"`
	// Foreign counts objects that the catalogue does not know, but that stay because the
	// links of a Distribution registry are in the same storage. ForeignBytes counts their
	// bytes.
	Foreign      int64 `json:"foreign"`
	ForeignBytes int64 `json:"foreign_bytes"`
	// RebuiltPacks counts packs of Gear files that the catalogue did not know and now
	// records. RebuiltFiles counts their files.
	RebuiltPacks int64         `json:"rebuilt_packs"`
	RebuiltFiles int64         `json:"rebuilt_files"`
	Took         time.Duration `json:"took"`
}

// Clean reports whether no problem remains.
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
	extent repair.Extent
	// shared says that Distribution's links are in the same store. Then an object that
	// this catalogue does not know may still be needed, and is not a problem.
	shared bool
	began  time.Time // for the report, by the wall clock

	mu    sync.Mutex // guards the fields below
	rep   Report
	shown time.Time
	// lost and unknown hold the postponed repairs of lost contents and of unknown
	// objects.
	lost, unknown tally
}

// Run compares the catalogue with itself, with the contents, and with the object store,
// while the registry serves. Changes during the check do not count as problems, because
// each problem is confirmed while nothing can change it. Memory is bounded, whatever the
// size of the registry. Only one check runs at a time. A second one gets an error.
//
// The store may be the adopted storage of a Distribution registry. Its objects are then
// never deleted as long as its directory of repositories exists. Errors: *StoreError if
// the object store is not the one that the catalogue describes, *TooManyError.
func Run(ctx context.Context, reg *registry.Registry, o Options) (Report, error) {
	if o.Parallel <= 0 {
		o.Parallel = 4
	}
	up := reg.Upkeep()
	if (o.Repair || o.EmptyQuarantine || o.AdoptStore) && up.Options.ReadOnly {
		return Report{}, up.Storage.Writable()
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
		var err error // keep collectors of other replicas away between the check and the repair
		if held, release, err = up.Replica.AloneSoon(ctx, replica.LeaseCollect, "fsck"); err != nil {
			return Report{}, fmt.Errorf("wait for a collection to end: %w", err)
		}
	}
	defer release()
	err := replica.LeaseError(held, f.run(held))
	f.rep.Took = time.Since(f.began)
	f.shown = time.Time{}
	f.step(func(*Report) {})
	return f.report(), err
}

func newFsck(reg *registry.Registry, up *registry.Upkeep, o Options) *fsck {
	f := &fsck{reg: reg, stock: stock{up, repair.New(up.Catalog.DB)}, o: o, start: up.Replica.Now(), began: time.Now()}
	f.rep.Counts, f.rep.Repaired = map[Kind]int{}, map[Kind]int{}
	return f
}

func (f *fsck) run(ctx context.Context) (err error) {
	if f.extent, err = f.facts.Extent(ctx); err != nil {
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
	// The parts are in such an order that no repair creates problems for the parts before
	// it.
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

// step changes the report, and shows it if it is time to do so.
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

// found adds a problem to the report. If a repair is wanted and possible, found first
// repairs the problem. repair is nil if no repair is possible. If a repair finds nothing
// to do, the problem has gone, by itself or with another problem.
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

// settle confirms a problem with a content, and repairs it before anything else can
// happen to the content. No push can publish the content and no collector can delete it
// meanwhile. A repair waits for backups, which need every object to stay. settle takes
// locks in the collector's order: collector.objects first, then the digest's lock.
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
		defer f.up.Storage.Locks.Lock(p.Digest)()
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
	complaints, err := f.up.Catalog.DB.Integrity(ctx, f.o.Quick, 100)
	if err != nil {
		return err
	}
	for _, c := range complaints {
		if err := f.found(ctx, Problem{Kind: ProblemCatalog, Detail: c}, nil); err != nil {
			return err
		}
	}
	if len(complaints) > 0 {
		f.o.Repair = false // the rows may not be what they seem
	}
	return nil
}

func (f *fsck) checkRows(ctx context.Context) error {
	const page = 500
	var after *repair.Dangling
	for {
		rows, err := f.facts.Dangling(ctx, after, page)
		if err != nil {
			return err
		}
		for _, row := range rows {
			p := Problem{Kind: ProblemDangling, Repo: row.Repo, Digest: row.Digest, Detail: row.String() + " points at nothing"}
			err := f.found(ctx, p, func(ctx context.Context) (bool, error) {
				done, err := f.facts.DeleteDangling(ctx, row)
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
		list, err := f.facts.Contents(ctx, after, page)
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
		list, err := f.facts.Leaks(ctx, after, page)
		if err != nil {
			return err
		}
		for _, l := range list {
			after = l.ID
			p := Problem{Kind: ProblemLeak, Digest: l.Digest, Detail: fmt.Sprintf("%d bytes that nothing needs", l.Size)}
			err := f.found(ctx, p, func(ctx context.Context) (bool, error) { return f.facts.QueueLeak(ctx, l) })
			if err != nil {
				return err
			}
		}
		if len(list) < page {
			return nil
		}
	}
}
