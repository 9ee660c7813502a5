package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/auth"
	"example.org/slipway/registry/mirror"
	"example.org/slipway/registry/mirror/airgap"
)

// MirrorLoadArgs are the arguments of [Admin.LoadMirrors].
type MirrorLoadArgs struct {
	// Images are written REPOSITORY[:TAG|@DIGEST], with names as clients may write them.
	Images []string
	// Platforms are the platforms of images to fetch, OS/ARCHITECTURE[/VARIANT]. If it is
	// empty, the configured platforms are fetched.
	Platforms []string
	// Parallel is how many images are fetched at a time; default 4.
	Parallel int
}

// MirrorFailure is an image that could not be fetched.
type MirrorFailure struct {
	Image  string `json:"image"`
	Reason string `json:"reason"`
}

// MirrorLoadReport is the progress of fetching images.
type MirrorLoadReport struct {
	// Images is how many of ImagesTotal are done or have failed.
	Images      int `json:"images"`
	ImagesTotal int `json:"images_total"`
	Failed      int `json:"failed"`
	// Blobs and Bytes are the amounts that are here, out of the totals known so far.
	Blobs      int   `json:"blobs"`
	BlobsTotal int   `json:"blobs_total"`
	Bytes      int64 `json:"bytes"`
	BytesTotal int64 `json:"bytes_total"`
	// Failures lists all images that failed.
	Failures []MirrorFailure `json:"failures,omitempty"`
	Took     time.Duration   `json:"took"`
}

// MirrorListArgs are the arguments of [Admin.ListMirrors].
type MirrorListArgs struct {
	// Pattern selects repositories, as in access rules. If it is empty, all are selected.
	Pattern string
	// After is Next of the previous page.
	After string
	// LeastUsed lists the images first that were used longest ago.
	LeastUsed bool
}

// MirrorImage is a mirrored image.
type MirrorImage struct {
	Repository string     `json:"repository"`
	Digest     oci.Digest `json:"digest"`
	MediaType  string     `json:"media_type"`
	Tags       []string   `json:"tags"`
	// Size is how many bytes of the image are here. Missing is how many of its parts are
	// not.
	Size    int64 `json:"size"`
	Missing int64 `json:"missing"`
	// Stored is when the image came. Pulled is when it was last pulled, or zero if never.
	Stored time.Time `json:"stored"`
	Pulled time.Time `json:"pulled,omitzero"`
}

// MirrorListReport is a page of mirrored images. Next is empty on the last page.
type MirrorListReport struct {
	Images []MirrorImage `json:"images"`
	Next   string        `json:"next,omitempty"`
}

// MirrorPruneArgs are the arguments of [Admin.PruneMirrors]. An image is removed if it
// meets all conditions that are set.
type MirrorPruneArgs struct {
	// OlderThan is how long ago the image must have come; 0 means any time.
	OlderThan time.Duration
	// NotPulledSince is how long the image must not have been pulled; 0 means any time.
	NotPulledSince time.Duration
	// Pattern selects repositories. If it is empty, all are selected.
	Pattern string
	DryRun  bool
}

// MirrorPruneReport says what was removed or would be removed.
type MirrorPruneReport struct {
	Images []MirrorImage `json:"images"`
	// Bytes is how much content this frees, which is the content that nothing else has.
	Bytes int64         `json:"bytes"`
	Took  time.Duration `json:"took"`
}

// MirrorStatus is the state of the mirrors.
type MirrorStatus struct {
	mirror.Status
	// Usage is what mirrors take of the store. MaxBytes is the limit, or 0 for none.
	Usage    registry.MirrorUsage `json:"usage"`
	MaxBytes int64                `json:"max_bytes"`
}

// MirrorExportArgs are the arguments of [Admin.ExportMirrors].
type MirrorExportArgs struct {
	// Path is the absolute path of the file.
	Path string
	// Images are written REPOSITORY[:TAG|@DIGEST]. If it is empty, all images that match
	// Pattern are exported.
	Images  []string
	Pattern string
}

// MirrorImportArgs are the arguments of [Admin.ImportMirrors].
type MirrorImportArgs struct {
	// Path is the absolute path of the file.
	Path string
}

// openedMirrors returns the mirrors of a data root that no server uses.
func (a *Admin) openedMirrors() (*mirrors, error) {
	if err := a.local.openMirrors(a.cfg, newWriteGate(), a.log); err != nil {
		return nil, err
	}
	return a.local.needMirrors()
}

// needMirrors returns the mirrors, or an error if there are none.
func (r *root) needMirrors() (*mirrors, error) {
	if r.mirrors == nil {
		return nil, errors.New("no registry is mirrored here; proxy.upstreams of the configuration names them")
	}
	return r.mirrors, nil
}

// LoadMirrors fetches images from upstreams. An image that cannot be fetched does not
// stop the others; the report names it.
func (a *Admin) LoadMirrors(ctx context.Context, args MirrorLoadArgs, progress func(MirrorLoadReport)) (MirrorLoadReport, error) {
	if a.local == nil {
		return askServer(ctx, a, "mirror-load", args, progress)
	}
	m, err := a.openedMirrors()
	if err != nil {
		return MirrorLoadReport{}, err
	}
	return m.load(ctx, args, progress)
}

// ListMirrors lists a page of the mirrored images.
func (a *Admin) ListMirrors(ctx context.Context, args MirrorListArgs) (MirrorListReport, error) {
	if a.local == nil {
		return askServer[MirrorListArgs, MirrorListReport](ctx, a, "mirror-list", args, nil)
	}
	return a.local.listMirrors(ctx, args)
}

// PruneMirrors removes mirrored images.
func (a *Admin) PruneMirrors(ctx context.Context, args MirrorPruneArgs) (MirrorPruneReport, error) {
	if a.local == nil {
		return askServer[MirrorPruneArgs, MirrorPruneReport](ctx, a, "mirror-prune", args, nil)
	}
	m, err := a.openedMirrors()
	if err != nil {
		return MirrorPruneReport{}, err
	}
	return m.prune(ctx, args)
}

// MirrorStatus returns the state of the mirrors of the server that uses the data root.
func (a *Admin) MirrorStatus(ctx context.Context) (MirrorStatus, error) {
	if a.local == nil {
		return askServer[struct{}, MirrorStatus](ctx, a, "mirror-status", struct{}{}, nil)
	}
	if _, err := a.openedMirrors(); err != nil {
		return MirrorStatus{}, err
	}
	return a.local.mirrorStatus(ctx)
}

// ExportMirrors writes mirrored images into a file, for a server without a network.
func (a *Admin) ExportMirrors(ctx context.Context, args MirrorExportArgs, progress func(airgap.Progress)) (airgap.Progress, error) {
	if a.local == nil {
		return askServer(ctx, a, "mirror-export", args, progress)
	}
	return a.local.exportMirrors(ctx, args, progress)
}

// ImportMirrors adds the images of a file written by ExportMirrors to the mirrors.
func (a *Admin) ImportMirrors(ctx context.Context, args MirrorImportArgs, progress func(airgap.Progress)) (airgap.Progress, error) {
	if a.local == nil {
		return askServer(ctx, a, "mirror-import", args, progress)
	}
	if _, err := a.openedMirrors(); err != nil {
		return airgap.Progress{}, err
	}
	return a.local.importMirrors(ctx, args, progress)
}

// loadParallel is the default number of images that are fetched at a time.
const loadParallel = 4

func (m *mirrors) load(ctx context.Context, args MirrorLoadArgs, progress func(MirrorLoadReport)) (MirrorLoadReport, error) {
	l := &loading{show: progress, began: time.Now(), under: map[string]mirror.Progress{}}
	l.rep.ImagesTotal = len(args.Images)
	var platforms []oci.Platform
	for _, s := range args.Platforms {
		p, err := oci.ParsePlatform(s)
		if err != nil {
			return l.rep, err
		}
		platforms = append(platforms, p)
	}
	if args.Parallel <= 0 {
		args.Parallel = loadParallel
	}
	var g errgroup.Group
	g.SetLimit(args.Parallel)
	for _, image := range args.Images {
		g.Go(func() error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			err := m.Load(ctx, m.reference(image), &mirror.LoadOptions{Platforms: platforms, Progress: func(p mirror.Progress) { l.note(image, p) }})
			l.end(image, err)
			return ctx.Err()
		})
	}
	err := g.Wait()
	l.rep.Took = time.Since(l.began)
	if err == nil && l.rep.Failed > 0 {
		f := l.rep.Failures[0]
		err = fmt.Errorf("%d of %d images could not be fetched, first %s: %s", l.rep.Failed, l.rep.ImagesTotal, f.Image, f.Reason)
	}
	return l.rep, err
}

// reference returns an image under the repository name that is used here. It changes the
// name only if the image's registry is written as in ?ns=: with a port, or as one of the
// other names of Docker Hub.
func (m *mirrors) reference(image string) string {
	host, rest, ok := strings.Cut(image, "/")
	name := rest
	if i := strings.IndexAny(rest, ":@"); i >= 0 {
		name = rest[:i]
	}
	if !ok || !strings.ContainsAny(host, ".:") && host != "localhost" || m.Mirrored(m.NameToPush(host+"/"+name)) {
		return image
	}
	if repo, ok := m.at(host, name); ok {
		return repo + rest[len(name):]
	}
	return image
}

// loading adds up the progress of several images.
type loading struct {
	show  func(MirrorLoadReport)
	began time.Time

	mu    sync.Mutex // guards the fields below
	rep   MirrorLoadReport
	under map[string]mirror.Progress // images under way
}

// note records the progress of an image.
func (l *loading) note(image string, p mirror.Progress) {
	l.mu.Lock()
	defer l.mu.Unlock()
	was := l.under[image]
	l.under[image] = p
	l.rep.Blobs += p.Blobs - was.Blobs
	l.rep.BlobsTotal += p.Total - was.Total
	l.rep.Bytes += p.Bytes - was.Bytes
	l.rep.BytesTotal += p.TotalBytes - was.TotalBytes
	l.tell()
}

// end records the outcome of an image.
func (l *loading) end(image string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rep.Images++
	if err != nil {
		l.rep.Failed++
		l.rep.Failures = append(l.rep.Failures, MirrorFailure{image, err.Error()})
	}
	l.tell()
}

func (l *loading) tell() {
	if l.show != nil {
		rep := l.rep
		rep.Failures, rep.Took = nil, time.Since(l.began) // failures are all reported at the end
		l.show(rep)
	}
}

// mirrorPage is how many images are listed at a time.
const mirrorPage = 500

func (r *root) listMirrors(ctx context.Context, args MirrorListArgs) (rep MirrorListReport, err error) {
	matches := func(string) bool { return true }
	if args.Pattern != "" {
		if matches, err = auth.CompilePattern(args.Pattern); err != nil {
			return rep, err
		}
	}
	rep.Images = []MirrorImage{}
	if r.isMirror == nil {
		return rep, nil
	}
	only := func(repo string) bool { return r.isMirror(repo) && matches(repo) }
	list, next, err := r.reg.MirrorImages(ctx, registry.MirrorQuery{Only: only, After: args.After, Limit: mirrorPage, LeastUsed: args.LeastUsed})
	if err != nil {
		return rep, err
	}
	rep.Next = next
	for _, i := range list {
		rep.Images = append(rep.Images, mirrorImage(i))
	}
	return rep, nil
}

func mirrorImage(i registry.MirrorImage) MirrorImage {
	if i.Tags == nil {
		i.Tags = []string{}
	}
	return MirrorImage{Repository: i.Repo, Digest: i.Digest, MediaType: i.MediaType, Tags: i.Tags, Size: i.Size, Missing: i.Missing,
		Stored: i.Stored, Pulled: i.LastPull}
}

func (m *mirrors) prune(ctx context.Context, args MirrorPruneArgs) (MirrorPruneReport, error) {
	rep := MirrorPruneReport{Images: []MirrorImage{}}
	if args.OlderThan <= 0 && args.NotPulledSince <= 0 && args.Pattern == "" {
		return rep, errors.New("say what is to go: by age, by the last pull, or by a pattern")
	}
	began := time.Now()
	done, err := m.Prune(ctx, mirror.PruneOptions{OlderThan: args.OlderThan, NotPulledSince: args.NotPulledSince, Pattern: args.Pattern, DryRun: args.DryRun,
		Each: func(i registry.MirrorImage) { rep.Images = append(rep.Images, mirrorImage(i)) }})
	rep.Took = time.Since(began)
	rep.Bytes = done.Bytes
	slices.SortFunc(rep.Images, func(a, b MirrorImage) int {
		return cmp.Or(cmp.Compare(a.Repository, b.Repository), cmp.Compare(a.Digest, b.Digest))
	})
	return rep, err
}

func (r *root) mirrorStatus(ctx context.Context) (MirrorStatus, error) {
	m, err := r.needMirrors()
	if err != nil {
		return MirrorStatus{}, err
	}
	st := MirrorStatus{Status: m.Status(), MaxBytes: int64(m.cfg.MaxBytes)}
	prefixes, err := m.Prefixes(ctx)
	if err != nil {
		return MirrorStatus{}, err
	}
	st.Usage, err = r.reg.MirrorUsage(ctx, prefixes...)
	return st, err
}
