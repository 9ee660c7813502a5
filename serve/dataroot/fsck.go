package dataroot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"example.org/slipway/gear/filestore"
	"example.org/slipway/gear/recipes"
	"example.org/slipway/oci"
	"example.org/slipway/oci/client"
	"example.org/slipway/registry/backup"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/repair"
	"example.org/slipway/registry/check"
)

// FsckSource is where a repair gets good copies of damaged or missing content: a backup
// or another registry.
type FsckSource struct {
	// Backup is the absolute path of a backup's directory. It is empty if the source is a
	// registry.
	Backup string
	// Registry is the URL of the registry. If Repo is set, all content is looked up in
	// that repository. Otherwise content is looked up in repositories of the same names
	// as here.
	Registry, Repo string
	Credential     client.Credential
	Insecure       bool // do not verify the certificate
}

// open opens the source. The caller must call close.
func (s *FsckSource) open(ctx context.Context) (src check.Source, close func(context.Context) error, err error) {
	if s.Backup != "" {
		r, close, err := backup.Open(ctx, s.Backup, slog.New(slog.DiscardHandler))
		if err != nil {
			return nil, nil, err
		}
		return check.Stored(r), close, nil
	}
	c, err := client.New(s.Registry, &client.Options{InsecureSkipVerify: s.Insecure,
		Credential: func(context.Context, string) (client.Credential, error) { return s.Credential, nil }})
	if err != nil {
		return nil, nil, err
	}
	return check.Other(c, s.Repo), func(context.Context) error { c.Close(); return nil }, nil
}

// rebuilt is a source that rebuilds layers from their recipes. It asks another source, if
// there is one, for what it cannot rebuild.
type rebuilt struct {
	store *recipes.Store
	next  check.Source
}

// Content implements check.Source.
func (s rebuilt) Content(ctx context.Context, d oci.Digest, images []repair.Use) (io.ReadCloser, error) {
	l, err := s.store.Recipe(ctx, d)
	if err == nil {
		var body io.ReadCloser
		if body, err = s.store.Rebuilt(ctx, &l); err == nil {
			return body, nil
		}
	} else if !errors.Is(err, catalog.ErrNotFound) {
		return nil, err
	}
	switch {
	case ctx.Err() != nil:
		return nil, err
	case s.next == nil:
		return nil, check.ErrNoCopy
	}
	return s.next.Content(ctx, d, images)
}

func (r *Root) fsck(ctx context.Context, args FsckArgs, progress func(check.Report)) (_ check.Report, err error) {
	o := check.Options{Quick: args.Quick, Repair: args.Repair, EmptyQuarantine: args.EmptyQuarantine,
		GiveUpMany: args.GiveUpMany, AdoptStore: args.AdoptStore, Parallel: args.Parallel, Progress: progress}
	if args.From != nil {
		src, closeSource, openErr := args.From.open(ctx)
		if openErr != nil {
			return check.Report{}, fmt.Errorf("open the source of the repair: %w", openErr)
		}
		defer func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
			defer cancel()
			err = errors.Join(err, closeSource(ctx))
		}()
		o.From = src
	}
	o.From = rebuilt{r.recipes, o.From}
	return check.Run(ctx, r.Registry, o)
}

// These are the kinds of problems of the Gear side. Package registry has others.
const (
	// ProblemGear means that a pack, or a content in it, is damaged. A repair records the
	// content as lost, and it is made again from a layer that holds it.
	ProblemGear check.Kind = "gear-damaged"
	// ProblemGearUnknown means that the store has a pack that the catalogue does not
	// know. A repair deletes it.
	ProblemGearUnknown check.Kind = "gear-pack-unknown"
)

// maxGearProblems is how many problems of packs a report lists; further problems are
// only counted. Package registry has the same limit.
const maxGearProblems = 1000

// gearCheck adds the problems of packs to a report.
type gearCheck struct {
	rep    *check.Report
	repair bool
	listed int
	// pack is the last pack that is damaged as a whole. at is its place in rep's list, or
	// -1.
	pack string
	at   int
}

func (g *gearCheck) found(p filestore.Problem) {
	out := check.Problem{Kind: ProblemGear, Key: "slipway/gear/packs/" + p.Pack, Detail: p.What, Repaired: g.repair && !p.Needed && !p.Awaited}
	if p.Awaited {
		out.Key = ""
		out.Detail += "; a dropped layer consists of it: the server makes it again from a layer that has its blob"
	}
	if p.Needed {
		out.Detail += "; a dropped layer consists of it: bring the pack back from a backup"
	}
	switch {
	case p.Parity:
		out.Key, out.Repaired = "slipway/gear/parity/"+p.Pack, p.Restored
	case p.Orphan:
		out.Kind = ProblemGearUnknown
	case p.Name != "":
		out.Digest = oci.Digest("sha256:" + p.Name)
		if out.Repaired && p.Pack == g.pack { // the contents are damaged because the pack is
			g.repaired(ProblemGear)
			if g.at >= 0 {
				g.rep.Problems[g.at].Repaired = true
			}
			g.pack = ""
		}
	default:
		g.pack, out.Repaired = p.Pack, p.Restored
	}
	g.rep.Counts[out.Kind]++
	if out.Repaired {
		g.repaired(out.Kind)
	}
	at := -1
	if g.listed < maxGearProblems {
		g.listed++
		at = len(g.rep.Problems)
		g.rep.Problems = append(g.rep.Problems, out)
	}
	if p.Name == "" && !p.Orphan && !p.Parity {
		g.at = at
	}
}

func (g *gearCheck) repaired(kind check.Kind) { g.rep.Repaired[kind]++ }

// rebuild records the packs that the catalogue does not know and then checks everything.
func (r *Root) rebuild(ctx context.Context, args FsckArgs, progress func(check.Report)) (check.Report, error) {
	began := time.Now()
	if err := r.Registry.CheckStore(ctx); err != nil {
		return check.Report{}, err
	}
	// Damaged packs are not reported here, because the check finds them again among the
	// unknown packs.
	packs, files, err := r.files.Rebuild(ctx, func(filestore.Problem) {})
	if err != nil {
		return check.Report{}, fmt.Errorf("record the packs that the catalogue does not know: %w", err)
	}
	took := time.Since(began)
	args.Rebuild = false
	rep, err := r.Fsck(ctx, args, progress)
	rep.RebuiltPacks, rep.RebuiltFiles, rep.Took = int64(packs), int64(files), rep.Took+took
	return rep, err
}

// progressEvery is how often the progress within packs is shown.
const progressEvery = 100 * time.Millisecond

// Fsck checks everything. Packs come last, because by then the repairs before them
// have freed space; the totals of the progress include them from the beginning.
func (r *Root) Fsck(ctx context.Context, args FsckArgs, progress func(check.Report)) (check.Report, error) {
	ctx = PastCache(ctx)
	if args.Rebuild {
		return r.rebuild(ctx, args, progress)
	}
	packs, err := r.Gear.Status(ctx)
	if err != nil {
		return check.Report{}, fmt.Errorf("count the packs of Gear files: %w", err)
	}
	show := func(rep check.Report, read filestore.VerifyReport) {
		if progress != nil {
			rep.Objects += int64(read.Packs)
			rep.Bytes, rep.BytesTotal = rep.Bytes+read.Bytes, rep.BytesTotal+max(packs.PackBytes, read.Bytes)
			progress(rep)
		}
	}
	rep, err := r.fsck(ctx, args, func(rep check.Report) { show(rep, filestore.VerifyReport{}) })
	if err != nil {
		return rep, err
	}
	began := time.Now()
	shown := began
	g := &gearCheck{rep: &rep, repair: args.Repair}
	n, err := r.files.Verify(ctx, filestore.VerifyOptions{Contents: !args.Quick, Repair: args.Repair, Found: g.found, Progress: func(read filestore.VerifyReport) {
		if now := time.Now(); now.Sub(shown) >= progressEvery {
			shown = now
			show(rep, read)
		}
	}})
	rep.Objects += int64(n.Packs)
	rep.Bytes, rep.BytesTotal = rep.Bytes+n.Bytes, rep.BytesTotal+n.Bytes
	rep.Took += time.Since(began)
	if err != nil {
		return rep, fmt.Errorf("check the packs of Gear files: %w", err)
	}
	return rep, nil
}
