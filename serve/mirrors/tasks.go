package mirrors

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
	"example.org/slipway/registry/auth/patterns"
	"example.org/slipway/registry/mirror"
)

// LoadArgs are the arguments of [Mirrors.LoadImages].
type LoadArgs struct {
	// Images are written REPOSITORY[:TAG|@DIGEST], with names as clients may write them.
	Images []string
	// Platforms are the platforms of images to fetch, OS/ARCHITECTURE[/VARIANT]. If it is
	// empty, the configured platforms are fetched.
	Platforms []string
	// Parallel is how many images are fetched at a time; default 4.
	Parallel int
}

// Failure is an image that could not be fetched.
type Failure struct {
	Image  string `json:"image"`
	Reason string `json:"reason"`
}

// LoadReport is the progress of fetching images.
type LoadReport struct {
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
	Failures []Failure     `json:"failures,omitempty"`
	Took     time.Duration `json:"took"`
}

// ListArgs are the arguments of [Stored.List].
type ListArgs struct {
	// Pattern selects repositories, as in access rules. If it is empty, all are selected.
	Pattern string
	// After is Next of the previous page.
	After string
	// LeastUsed puts the images that were used longest ago first.
	LeastUsed bool
}

// Image is a mirrored image.
type Image struct {
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

// ListReport is a page of mirrored images. Next is empty on the last page.
type ListReport struct {
	Images []Image `json:"images"`
	Next   string  `json:"next,omitempty"`
}

// PruneArgs are the arguments of [Mirrors.PruneImages]. An image is removed if it
// meets all conditions that are set.
type PruneArgs struct {
	// OlderThan is how long ago the image must have come; 0 means any time.
	OlderThan time.Duration
	// NotPulledSince is how long the image must not have been pulled; 0 means any time.
	NotPulledSince time.Duration
	// Pattern selects repositories. If it is empty, all are selected.
	Pattern string
	DryRun  bool
}

// PruneReport says what was removed or would be removed.
type PruneReport struct {
	Images []Image `json:"images"`
	// Bytes is how much content this frees, which is the content that nothing else has.
	Bytes int64         `json:"bytes"`
	Took  time.Duration `json:"took"`
}

// Status is the state of the mirrors.
type Status struct {
	mirror.Status
	// Usage is what mirrors take of the store. MaxBytes is the limit, or 0 for none.
	Usage    registry.MirrorUsage `json:"usage"`
	MaxBytes int64                `json:"max_bytes"`
}

// ExportArgs are the arguments of [Stored.Export].
type ExportArgs struct {
	// Path is the absolute path of the file.
	Path string
	// Images are written REPOSITORY[:TAG|@DIGEST]. If it is empty, all images that match
	// Pattern are exported.
	Images  []string
	Pattern string
}

// ImportArgs are the arguments of [Mirrors.Import].
type ImportArgs struct {
	// Path is the absolute path of the file.
	Path string
}

// loadParallel is the default number of images that are fetched at a time.
const loadParallel = 4

// LoadImages fetches images from upstreams. An image that cannot be fetched does not stop the others;
// the report names it.
func (m *Mirrors) LoadImages(ctx context.Context, args LoadArgs, progress func(LoadReport)) (LoadReport, error) {
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
func (m *Mirrors) reference(image string) string {
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
	show  func(LoadReport)
	began time.Time

	mu    sync.Mutex // guards the fields below
	rep   LoadReport
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
		l.rep.Failures = append(l.rep.Failures, Failure{image, err.Error()})
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

// page is how many images are listed at a time.
const page = 500

// List lists a page of the mirrored images.
func (s *Stored) List(ctx context.Context, args ListArgs) (rep ListReport, err error) {
	matches := func(string) bool { return true }
	if args.Pattern != "" {
		if matches, err = patterns.Compile(args.Pattern); err != nil {
			return rep, err
		}
	}
	rep.Images = []Image{}
	if s.IsMirror == nil {
		return rep, nil
	}
	only := func(repo string) bool { return s.IsMirror(repo) && matches(repo) }
	list, next, err := s.Registry.MirrorImages(ctx, registry.MirrorQuery{Only: only, After: args.After, Limit: page, LeastUsed: args.LeastUsed})
	if err != nil {
		return rep, err
	}
	rep.Next = next
	for _, i := range list {
		rep.Images = append(rep.Images, image(i))
	}
	return rep, nil
}

func image(i registry.MirrorImage) Image {
	if i.Tags == nil {
		i.Tags = []string{}
	}
	return Image{Repository: i.Repo, Digest: i.Digest, MediaType: i.MediaType, Tags: i.Tags, Size: i.Size, Missing: i.Missing,
		Stored: i.Stored, Pulled: i.LastPull}
}

// PruneImages removes mirrored images.
func (m *Mirrors) PruneImages(ctx context.Context, args PruneArgs) (PruneReport, error) {
	rep := PruneReport{Images: []Image{}}
	if args.OlderThan <= 0 && args.NotPulledSince <= 0 && args.Pattern == "" {
		return rep, errors.New("say what to remove: by age, by the last pull, or by a pattern")
	}
	began := time.Now()
	done, err := m.Prune(ctx, mirror.PruneOptions{OlderThan: args.OlderThan, NotPulledSince: args.NotPulledSince, Pattern: args.Pattern, DryRun: args.DryRun,
		Each: func(i registry.MirrorImage) { rep.Images = append(rep.Images, image(i)) }})
	rep.Took = time.Since(began)
	rep.Bytes = done.Bytes
	slices.SortFunc(rep.Images, func(a, b Image) int {
		return cmp.Or(cmp.Compare(a.Repository, b.Repository), cmp.Compare(a.Digest, b.Digest))
	})
	return rep, err
}

// StatusAndUsage returns the state of the mirrors, and what they take of the store.
func (m *Mirrors) StatusAndUsage(ctx context.Context) (Status, error) {
	st := Status{Status: m.Status(), MaxBytes: int64(m.cfg.MaxBytes)}
	prefixes, err := m.Prefixes(ctx)
	if err != nil {
		return Status{}, err
	}
	st.Usage, err = m.Stored.Registry.MirrorUsage(ctx, prefixes...)
	return st, err
}
