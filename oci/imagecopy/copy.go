// Package imagecopy copies images from one registry to another.
package imagecopy

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"example.org/slipway/oci"
	"example.org/slipway/oci/client"
)

// Image names images to copy.
type Image struct {
	// From is the repository at the source.
	From string
	// To is the repository at the destination; "" means the same name.
	To string
	// References are tags and digests, copied in this order. None means all
	// tags, with v9 before v10: registries do not tell when a tag was pushed, and
	// the destination takes the last one for the newest.
	References []string
}

// Options say what to copy and how. The zero value copies every tag of
// every repository of the source.
type Options struct {
	// Images to copy, in this order; none means all repositories.
	Images []Image
	// Referrers copies signatures, SBOMs and whatever else refers to a copied
	// manifest, and what refers to those.
	Referrers bool
	// Parallel is how many blobs of a manifest are copied at once, 0 means 4.
	Parallel int
	// ContinueOnError goes on with the next reference after an error. All
	// errors are returned at the end, joined.
	ContinueOnError bool
	// Check, if not nil, looks at contents that the destination may have, before it
	// is asked for them: what is damaged there must count as missing from then on. It
	// is called with a manifest's digest, and then with those of its blobs, and
	// returns those that are damaged.
	Check func(ctx context.Context, contents []oci.Digest) (damaged []oci.Digest, err error)
	// Partial, if not nil, tells which repositories of the destination may lack blobs that the
	// source lacks too, because they are copies of ones elsewhere. They count as Foreign.
	Partial func(repo string) bool
	// Tagged, if not nil, is called when a tag of the destination was set. Its error is one
	// of the reference.
	Tagged func(ctx context.Context, repo, tag string) error
	// Progress is called after every step, never twice at the same time. It
	// delays the copy.
	Progress func(Progress)
	// Logger gets a line for each reference; nil discards.
	Logger *slog.Logger
}

// Progress is how far a copy has come.
type Progress struct {
	// Repo and Reference are in hand, as the source calls them.
	Repo, Reference string
	// References that are done, and that failed.
	References, Failed int64
	// Manifests and Blobs that were sent, and Bytes of blobs, also of those
	// that are under way.
	Manifests, Blobs, Bytes int64
	// Mounted blobs came from another repository of the destination.
	Mounted int64
	// Present manifests and blobs were there already.
	Present int64
	// Foreign layers are not at the source either; they live elsewhere.
	Foreign int64
	// Absent manifests are named by an index that the source has without them.
	Absent int64
	// Damaged contents at the destination, which a copy replaces.
	Damaged int64
}

const (
	defaultParallel = 4
	// copyPage is how many names are listed at a time.
	copyPage = 1000
	// maxCopyDepth bounds indexes in indexes and referrers of referrers.
	maxCopyDepth = 16
	// copyStep is how many bytes of a blob make a call of Progress.
	copyStep = 4 << 20
)

// Copy copies images from one registry to another, blobs before the manifests
// that need them, manifests before the indexes. What the destination has is
// not sent again, so a copy that was interrupted is resumed by repeating it. What a
// manifest names is looked at also where the destination has the manifest.
//
// References are copied one after the other. An error says which repository
// and reference could not be copied. The progress returned is the final one.
func Copy(ctx context.Context, dst, src oci.Registry, o Options) (Progress, error) {
	c := &copier{dst: dst, src: src, o: o, held: make(map[oci.Digest]string), done: make(map[doneKey]bool), checked: make(map[oci.Digest]bool)}
	if c.o.Parallel <= 0 {
		c.o.Parallel = defaultParallel
	}
	if c.o.Logger == nil {
		c.o.Logger = slog.New(slog.DiscardHandler)
	}
	if d, ok := dst.(*client.Client); ok {
		if s, ok := src.(*client.Client); ok && d.URL() == s.URL() {
			c.same = true
		}
	}
	err := c.run(ctx)
	return c.progress, err
}

// copier is one call of Copy.
type copier struct {
	dst, src oci.Registry
	o        Options
	same     bool // source and destination are one registry, so it can mount
	// listed says that the source has listed the repositories. Distribution lists those
	// whose tags were deleted, too, and then answers that it does not know them.
	listed bool

	mu       sync.Mutex // guards what follows
	progress Progress
	held     map[oci.Digest]string // blob to a repository of the destination
	done     map[doneKey]bool      // blobs and manifests that are at the destination
	checked  map[oci.Digest]bool   // contents of the destination that were looked at
}

type doneKey struct {
	repo   string
	digest oci.Digest
}

// step changes the progress and shows it.
func (c *copier) step(change func(*Progress)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(&c.progress)
	if c.o.Progress != nil {
		c.o.Progress(c.progress)
	}
}

func (c *copier) run(ctx context.Context) error {
	images := c.o.Images
	if len(images) == 0 {
		c.listed = true
		repos, err := all(func(last string) ([]string, bool, error) { return c.src.Repositories(ctx, last, copyPage) })
		if err != nil {
			return fmt.Errorf("list repositories: %w", err)
		}
		for _, r := range repos {
			images = append(images, Image{From: r})
		}
	}
	var errs []error
	for _, im := range images {
		if im.To == "" {
			im.To = im.From
		}
		err := c.image(ctx, im)
		if err == nil {
			continue
		}
		errs = append(errs, err)
		if !c.o.ContinueOnError || ctx.Err() != nil {
			break
		}
	}
	return errors.Join(errs...)
}

// all collects a paged list.
func all(page func(last string) ([]string, bool, error)) ([]string, error) {
	var names []string
	for last := ""; ; last = names[len(names)-1] {
		some, more, err := page(last)
		if err != nil {
			return nil, err
		}
		names = append(names, some...)
		if !more || len(some) == 0 || some[len(some)-1] == last {
			return names, nil
		}
	}
}

// image copies the references of one repository.
func (c *copier) image(ctx context.Context, im Image) error {
	refs := im.References
	if len(refs) == 0 {
		var err error
		refs, err = all(func(last string) ([]string, bool, error) { return c.src.Tags(ctx, im.From, last, copyPage) })
		if errors.Is(err, client.ErrNothingListed) || c.listed && oci.HasCode(err, oci.CodeNameUnknown) {
			c.o.Logger.WarnContext(ctx, "the source lists no tags; the repository is taken for empty", "repo", im.From, "error", err)
			return nil
		}
		if err != nil {
			c.step(func(p *Progress) { p.Repo, p.Failed = im.From, p.Failed+1 })
			return fmt.Errorf("list tags of %s: %w", im.From, err)
		}
		slices.SortFunc(refs, byNumbers)
	}
	var errs []error
	for _, ref := range refs {
		c.step(func(p *Progress) { p.Repo, p.Reference = im.From, ref })
		err := c.reference(ctx, im, ref)
		if err == nil {
			c.step(func(p *Progress) { p.References++ })
			c.o.Logger.InfoContext(ctx, "image is copied", "repo", im.From, "ref", ref, "to", im.To)
			continue
		}
		c.step(func(p *Progress) { p.Failed++ })
		sep := ":"
		if oci.IsDigest(ref) {
			sep = "@"
		}
		errs = append(errs, fmt.Errorf("copy %s%s%s: %w", im.From, sep, ref, err))
		if !c.o.ContinueOnError || ctx.Err() != nil {
			break
		}
	}
	return errors.Join(errs...)
}

// byNumbers compares tags. Runs of digits are numbers, and a release follows its
// candidates, which have a hyphen behind its name.
func byNumbers(a, b string) int {
	inBytes := strings.Compare(a, b)
	for a != "" && b != "" {
		n, m := digits(a), digits(b)
		c := cmp.Compare(a[0], b[0])
		if n > 0 && m > 0 {
			x, y := strings.TrimLeft(a[:n], "0"), strings.TrimLeft(b[:m], "0")
			c = cmp.Or(cmp.Compare(len(x), len(y)), strings.Compare(x, y))
		} else {
			n, m = 1, 1
		}
		if c != 0 {
			return c
		}
		a, b = a[n:], b[m:]
	}
	switch {
	case strings.HasPrefix(a, "-"):
		return -1
	case strings.HasPrefix(b, "-"):
		return 1
	}
	return cmp.Or(cmp.Compare(len(a), len(b)), inBytes)
}

// digits returns how many digits a tag begins with.
func digits(s string) int { return len(s) - len(strings.TrimLeft(s, "0123456789")) }

// reference copies one tag or digest. A tag is resolved once, so that it may
// move meanwhile.
func (c *copier) reference(ctx context.Context, im Image, ref string) error {
	desc, err := c.src.ResolveManifest(ctx, im.From, ref)
	if err != nil {
		return err
	}
	if oci.IsDigest(ref) {
		return c.manifest(ctx, im, desc, "", 0)
	}
	there, err := c.dst.ResolveManifest(ctx, im.To, ref)
	switch {
	case err == nil && there.Digest == desc.Digest:
		ref = "" // it is tagged
	case err != nil && !oci.HasCode(err, oci.CodeManifestUnknown):
		return err
	}
	if err := c.manifest(ctx, im, desc, ref, 0); err != nil || ref == "" || c.o.Tagged == nil {
		return err
	}
	return c.o.Tagged(ctx, im.To, ref)
}

// manifest copies a manifest with all that it needs, tags it, and copies what
// refers to it.
func (c *copier) manifest(ctx context.Context, im Image, desc oci.Descriptor, tag string, depth int) error {
	if depth > maxCopyDepth {
		return oci.Errorf(oci.CodeManifestInvalid, "manifests are nested more than %d deep", maxCopyDepth)
	}
	if c.isDone(im.To, desc.Digest) && tag == "" {
		return nil
	}
	if err := c.check(ctx, desc.Digest); err != nil {
		return err
	}
	_, err := c.dst.ResolveManifest(ctx, im.To, string(desc.Digest))
	present := err == nil
	if !present && !oci.HasCode(err, oci.CodeManifestUnknown) {
		return err
	}
	if present && tag == "" {
		c.step(func(p *Progress) { p.Present++ })
	}
	m, err := c.src.GetManifest(ctx, im.From, string(desc.Digest))
	if err != nil {
		return err
	}
	if err := c.send(ctx, im, m, tag, present, depth); err != nil {
		return err
	}
	c.setDone(im.To, desc.Digest)
	if !c.o.Referrers {
		return nil
	}
	return c.referrers(ctx, im, desc.Digest, depth)
}

// referrersPage is how many referrers are asked for at once: practically all,
// because a [Client] reads the whole list for each page.
const referrersPage = 100_000

// referrers copies what refers to a manifest.
func (c *copier) referrers(ctx context.Context, im Image, subject oci.Digest, depth int) error {
	for last, more := "", true; more; {
		var list []oci.Descriptor
		var err error
		list, more, err = c.src.Referrers(ctx, im.From, subject, "", last, referrersPage)
		if err != nil {
			return fmt.Errorf("referrers of %s: %w", subject, err)
		}
		for _, r := range list {
			if err := c.manifest(ctx, im, r, "", depth+1); err != nil {
				return fmt.Errorf("referrer %s: %w", r.Digest, err)
			}
			last = string(r.Digest)
		}
		more = more && len(list) > 0
	}
	return nil
}

// send copies what a manifest needs, and then puts it.
func (c *copier) send(ctx context.Context, im Image, m *oci.Manifest, tag string, present bool, depth int) error {
	manifests, blobs, err := needs(m)
	if err != nil {
		return err
	}
	var absent []oci.Descriptor
	for _, d := range manifests {
		err := c.manifest(ctx, im, d, "", depth+1)
		var unknown *absentError
		switch {
		case oci.HasCode(err, oci.CodeManifestUnknown) && !errors.As(err, &unknown):
			// The source lacks this platform. Whether an index may, the
			// destination decides.
			absent = append(absent, d)
			c.step(func(p *Progress) { p.Absent++ })
			c.o.Logger.WarnContext(ctx, "source lacks a manifest of an index", "repo", im.From, "index", m.Digest, "manifest", d.Digest, "platform", oci.PlatformOf(d.Platform).String())
		case err != nil:
			return fmt.Errorf("manifest %s: %w", d.Digest, err)
		}
	}
	if err := c.blobs(ctx, im, blobs); err != nil || present && tag == "" {
		return err
	}
	put := oci.PutManifest{Bytes: m.Bytes, MediaType: m.MediaType, Digest: m.Digest}
	if tag != "" {
		put.Tags = []string{tag}
		if m.Digest == oci.SHA256(m.Bytes) {
			put.Digest = "" // is the default, and lets a client do with one request
		}
	}
	if _, err := c.dst.PutManifest(ctx, im.To, put); err != nil {
		if len(absent) > 0 && oci.HasCode(err, oci.CodeManifestBlobUnknown) {
			return &absentError{m.Digest, absent, len(manifests), err}
		}
		return err
	}
	c.step(func(p *Progress) { p.Manifests++ })
	return nil
}

// absentError reports that the destination refused an index because the source lacks
// some of its manifests.
type absentError struct {
	index  oci.Digest
	absent []oci.Descriptor
	of     int
	err    error
}

func (e *absentError) Error() string {
	const most = 10
	var names []string
	for _, d := range e.absent[:min(len(e.absent), most)] {
		names = append(names, strings.TrimSpace(string(d.Digest)+" "+oci.PlatformOf(d.Platform).String()))
	}
	if n := len(e.absent) - most; n > 0 {
		names = append(names, fmt.Sprintf("%d more", n))
	}
	return fmt.Sprintf("the source lacks %d of the %d manifests of index %s (%s), and the destination takes no index without them "+
		"(Slipway does with validation.manifests.indexes.platforms: none): %v",
		len(e.absent), e.of, e.index, strings.Join(names, ", "), e.err)
}

func (e *absentError) Unwrap() error { return e.err }

// blobs brings the blobs of a manifest to the destination.
func (c *copier) blobs(ctx context.Context, im Image, blobs []oci.Descriptor) error {
	digests := make([]oci.Digest, len(blobs))
	for i, d := range blobs {
		digests[i] = d.Digest
	}
	if err := c.check(ctx, digests...); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(c.o.Parallel)
	for _, d := range blobs {
		g.Go(func() error {
			if err := c.blob(ctx, im, d); err != nil {
				return fmt.Errorf("blob %s: %w", d.Digest, err)
			}
			return nil
		})
	}
	return g.Wait()
}

// check looks at contents of the destination that were not looked at before.
func (c *copier) check(ctx context.Context, digests ...oci.Digest) error {
	if c.o.Check == nil {
		return nil
	}
	var news []oci.Digest
	c.mu.Lock()
	for _, d := range digests {
		if !c.checked[d] {
			c.checked[d] = true
			news = append(news, d)
		}
	}
	c.mu.Unlock()
	if len(news) == 0 {
		return nil
	}
	damaged, err := c.o.Check(ctx, news)
	if err != nil {
		return fmt.Errorf("check what is here: %w", err)
	}
	if len(damaged) > 0 {
		c.step(func(p *Progress) { p.Damaged += int64(len(damaged)) })
	}
	return nil
}

// isManifest reports whether a registry keeps content of this type as manifest.
// Build caches are indexes whose entries are layers.
func isManifest(mediaType string) bool {
	return oci.IsIndex(mediaType) || mediaType == oci.MediaTypeOCIManifest ||
		mediaType == oci.MediaTypeDockerManifest || mediaType == client.MediaTypeOCIArtifact
}

// needs returns what must be at a registry before a manifest, each once.
func needs(m *oci.Manifest) (manifests, blobs []oci.Descriptor, err error) {
	if m.MediaType == oci.MediaTypeDockerManifestV1 || m.MediaType == oci.MediaTypeDockerManifestV1S {
		return nil, nil, oci.Errorf(oci.CodeUnsupported, "manifest %s has Docker's schema 1, which is not copied", m.Digest)
	}
	if !isManifest(m.MediaType) {
		return nil, nil, nil // its own business
	}
	var parsed struct {
		Manifests []oci.Descriptor `json:"manifests"`
		Config    *oci.Descriptor  `json:"config"`
		Layers    []oci.Descriptor `json:"layers"`
		Blobs     []oci.Descriptor `json:"blobs"`
	}
	if err := json.Unmarshal(m.Bytes, &parsed); err != nil {
		return nil, nil, &oci.Error{Code: oci.CodeManifestInvalid, Message: "manifest " + string(m.Digest) + " is malformed", Err: err}
	}
	list := slices.Concat(parsed.Manifests, parsed.Layers, parsed.Blobs)
	if parsed.Config != nil {
		list = slices.Insert(list, 0, *parsed.Config)
	}
	seen := make(map[oci.Digest]bool, len(list))
	for _, d := range list {
		if err := oci.CheckDigest(d.Digest); err != nil {
			return nil, nil, err
		}
		switch {
		case seen[d.Digest]:
			continue
		case oci.IsIndex(m.MediaType) && isManifest(d.MediaType):
			manifests = append(manifests, d)
		default:
			blobs = append(blobs, d)
		}
		seen[d.Digest] = true
	}
	return manifests, blobs, nil
}

// isForeign reports whether a layer may be missing at a registry.
func isForeign(d oci.Descriptor) bool {
	return len(d.URLs) > 0 || strings.Contains(d.MediaType, "nondistributable") || strings.Contains(d.MediaType, "rootfs.foreign")
}

func (c *copier) isDone(repo string, d oci.Digest) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.done[doneKey{repo, d}]
}

func (c *copier) setDone(repo string, d oci.Digest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.done[doneKey{repo, d}] = true
}

// blob brings one blob to the destination.
func (c *copier) blob(ctx context.Context, im Image, d oci.Descriptor) error {
	if c.isDone(im.To, d.Digest) {
		return nil
	}
	_, err := c.dst.ResolveBlob(ctx, im.To, d.Digest)
	switch {
	case err == nil:
		c.step(func(p *Progress) { p.Present++ })
	case !oci.HasCode(err, oci.CodeBlobUnknown):
		return err
	case c.mount(ctx, im, d.Digest):
		c.step(func(p *Progress) { p.Mounted++ })
	default:
		content, err := c.src.GetBlob(ctx, im.From, d.Digest)
		if oci.HasCode(err, oci.CodeBlobUnknown) && (isForeign(d) || c.o.Partial != nil && c.o.Partial(im.To)) {
			c.step(func(p *Progress) { p.Foreign++ })
			return nil
		}
		if oci.HasCode(err, oci.CodeBlobUnknown) {
			return fmt.Errorf("neither the source nor the destination has it: %w", err)
		}
		if err != nil {
			return err
		}
		if err := c.push(ctx, im.To, content); err != nil {
			return err
		}
		c.step(func(p *Progress) { p.Blobs++ })
	}
	c.setDone(im.To, d.Digest)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held[d.Digest] = im.To
	return nil
}

// mount tries to take a blob from another repository of the destination. If
// that does not work, for whatever reason, the blob is sent.
func (c *copier) mount(ctx context.Context, im Image, d oci.Digest) bool {
	c.mu.Lock()
	from := c.held[d]
	c.mu.Unlock()
	if from == "" && c.same {
		from = im.From
	}
	if from == "" || from == im.To {
		return false
	}
	_, err := c.dst.MountBlob(ctx, im.To, from, d)
	return err == nil
}

func (c *copier) push(ctx context.Context, to string, content oci.Content) error {
	defer func() { _ = content.Close() }() // it was read to its end, or push failed already
	r := &progressReader{r: content, c: c}
	defer r.flush()
	desc := content.Descriptor()
	_, err := c.dst.PushBlob(ctx, to, desc.Digest, desc.Size, r)
	return err
}

// progressReader counts what is read of a blob.
type progressReader struct {
	r    io.Reader
	c    *copier
	news int64 // bytes not shown yet
}

func (r *progressReader) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	r.news += int64(n)
	if r.news >= copyStep {
		r.flush()
	}
	return n, err
}

func (r *progressReader) flush() {
	n := r.news
	r.news = 0
	if n > 0 {
		r.c.step(func(p *Progress) { p.Bytes += n })
	}
}
