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

// Image names the images of a repository that are to be copied.
type Image struct {
	// From is the name of the repository at the source.
	From string
	// To is the name of the repository at the destination. "" means the same name.
	To string
	// References are the tags and digests to copy, in this order. None means all tags,
	// with v9 before v10. The order matters because registries do not say when a tag was
	// pushed, and the destination treats the last one as the newest.
	References []string
}

// Options say what to copy and how. With the zero value every tag of every repository of
// the source is copied.
type Options struct {
	// Images lists the images to copy, in this order. None means all repositories.
	Images []Image
	// Referrers says that signatures, SBOMs and whatever else refers to a copied manifest
	// are copied, too, and also what refers to these.
	Referrers bool
	// Parallel is how many blobs of a manifest are copied at once. 0 means 4.
	Parallel int
	// ContinueOnError says that the copy continues with the next reference after an
	// error. At the end all errors are returned, joined.
	ContinueOnError bool
	// Check, if not nil, checks contents that the destination may have and returns those
	// that are damaged. From then on the destination must report damaged contents as
	// missing. Check is called with the digest of a manifest, and then with the digests
	// of its blobs, before the destination is asked for them.
	Check func(ctx context.Context, contents []oci.Digest) (damaged []oci.Digest, err error)
	// Partial, if not nil, reports whether a repository of the destination is a copy of a
	// repository elsewhere and may therefore lack blobs that the source lacks, too. Such
	// blobs count as Foreign.
	Partial func(repo string) bool
	// Tagged, if not nil, is called when a tag of the destination has been set. An error
	// of Tagged is an error of that reference.
	Tagged func(ctx context.Context, repo, tag string) error
	// Done, if not nil, is called after each reference of Images, with its error or nil.
	Done func(err error)
	// Progress is called after every step, and never concurrently. The copy waits for it.
	Progress func(Progress)
	// Logger gets a line for each reference. nil discards it.
	Logger *slog.Logger
}

// Progress says how far a copy has come.
type Progress struct {
	// Repo and Reference are being copied. They are the names at the source.
	Repo, Reference string
	// Repository and Tag are their numbers, counted from 1: of the Repositories to copy,
	// and of the Tags and other references that are copied of this one.
	Repository, Repositories, Tag, Tags int
	// References is the number of references that are done, and Failed is the number that
	// failed.
	References, Failed int64
	// Manifests and Blobs count what was sent. Bytes counts the bytes of blobs, including
	// blobs under way.
	Manifests, Blobs, Bytes int64
	// Mounted counts blobs that were mounted from another repository of the destination.
	Mounted int64
	// Present counts manifests and blobs that the destination already had.
	Present int64
	// Foreign counts layers that the source does not have either, because they are kept
	// elsewhere.
	Foreign int64
	// Absent counts manifests that an index names and the source lacks.
	Absent int64
	// Damaged counts damaged contents at the destination, which the copy replaces.
	Damaged int64
}

const (
	defaultParallel = 4
	// maxCopyDepth bounds the nesting of indexes, and of referrers of referrers.
	maxCopyDepth = 16
	// copyStep is how many bytes of a blob are copied between two calls of Progress.
	copyStep = 4 << 20
)

// Copy copies images from one registry to another. It copies blobs before the manifests
// that need them, and manifests before the indexes that name them. It does not send what
// the destination already has, so repeating an interrupted copy resumes it. If the
// destination has a manifest, Copy still checks what the manifest names.
//
// References are copied one after the other. An error says which repository and reference
// could not be copied. The progress that is returned is the final one.
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

// copier is the state of one call of Copy.
type copier struct {
	dst, src oci.Registry
	o        Options
	same     bool // source and destination are one registry, so blobs can be mounted
	// listed says that the repositories come from the source's list. Distribution also
	// lists repositories whose tags were all deleted, and then answers that it does not
	// know them.
	listed bool

	mu       sync.Mutex // guards what follows
	progress Progress
	held     map[oci.Digest]string // a repository of the destination that has the blob
	done     map[doneKey]bool      // blobs and manifests that are at the destination
	checked  map[oci.Digest]bool   // contents of the destination that were checked
}

type doneKey struct {
	repo   string
	digest oci.Digest
}

// step changes the progress and reports it.
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
		repos, err := oci.AllNames(func(last string, n int) ([]string, bool, error) { return c.src.Repositories(ctx, last, n) })
		if err != nil {
			return fmt.Errorf("list repositories: %w", err)
		}
		for _, r := range repos {
			images = append(images, Image{From: r})
		}
	}
	var errs []error
	for i, im := range images {
		if im.To == "" {
			im.To = im.From
		}
		c.step(func(p *Progress) {
			p.Repo, p.Reference, p.Repository, p.Repositories, p.Tag, p.Tags = im.From, "", i+1, len(images), 0, 0
		})
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

// image copies the references of one repository.
func (c *copier) image(ctx context.Context, im Image) error {
	refs := im.References
	if len(refs) == 0 {
		var err error
		refs, err = oci.AllNames(func(last string, n int) ([]string, bool, error) { return c.src.Tags(ctx, im.From, last, n) })
		if errors.Is(err, client.ErrNothingListed) || c.listed && oci.HasCode(err, oci.CodeNameUnknown) {
			c.o.Logger.WarnContext(ctx, "the source lists no tags; the repository is taken for empty", "repo", im.From, "error", err)
			return nil
		}
		if err != nil {
			c.step(func(p *Progress) { p.Failed++ })
			return fmt.Errorf("list tags of %s: %w", im.From, err)
		}
		SortTags(refs)
	}
	var errs []error
	looks := 0
	for i, ref := range refs {
		c.step(func(p *Progress) { p.Reference, p.Tag, p.Tags = ref, i+1, len(refs) })
		err := c.gone(ctx, im.From, ref, c.reference(ctx, im, ref), &looks)
		if errors.Is(err, ErrGone) && len(im.References) == 0 {
			c.o.Logger.InfoContext(ctx, "a tag was deleted during the copy", "repo", im.From, "ref", ref)
			continue
		}
		if err == nil {
			c.step(func(p *Progress) { p.References++ })
			c.o.Logger.InfoContext(ctx, "image is copied", "repo", im.From, "ref", ref, "to", im.To)
			c.ended(nil)
			continue
		}
		c.step(func(p *Progress) { p.Failed++ })
		sep := ":"
		if oci.IsDigest(ref) {
			sep = "@"
		}
		err = fmt.Errorf("copy %s%s%s: %w", im.From, sep, ref, err)
		errs = append(errs, err)
		c.ended(err)
		if !c.o.ContinueOnError || ctx.Err() != nil {
			break
		}
	}
	return errors.Join(errs...)
}

// ended reports how the copy of a reference has ended.
func (c *copier) ended(err error) {
	if c.o.Done != nil {
		c.o.Done(err)
	}
}

// SortTags sorts tags in the order in which they are copied, with v9 before v10.
func SortTags(tags []string) { slices.SortFunc(tags, byNumbers) }

// byNumbers compares tags. It compares runs of digits as numbers. A release comes after
// its candidates, whose names are the release's name with a hyphen and more.
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

// digits returns the number of digits at the beginning of a tag.
func digits(s string) int { return len(s) - len(strings.TrimLeft(s, "0123456789")) }

// ErrGone is in the chain of errors about a tag that was deleted during the copy.
var ErrGone = errors.New("the tag was deleted")

// maxLooks bounds how often the tags of a repository are listed again.
const maxLooks = 16

// gone returns the error of the copy of a tag, with ErrGone if the source does not list the
// tag any more. A tag that it lists and cannot give is a loss, and not gone. looks
// counts the lists.
func (c *copier) gone(ctx context.Context, repo, tag string, err error, looks *int) error {
	if !oci.HasCode(err, oci.CodeManifestUnknown, oci.CodeNameUnknown) || oci.IsDigest(tag) || *looks >= maxLooks {
		return err
	}
	*looks++
	tags, now := oci.AllNames(func(last string, n int) ([]string, bool, error) { return c.src.Tags(ctx, repo, last, n) })
	if now != nil && !oci.HasCode(now, oci.CodeNameUnknown) || slices.Contains(tags, tag) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrGone, err)
}

// reference copies one tag or digest. It resolves a tag only once, so that the tag may
// move during the copy.
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

// manifest copies a manifest with everything that it needs, tags it, and copies what
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

// referrersPage is how many referrers one request asks for. It is practically all of
// them, because a [client.Client] reads the whole list for each page.
const referrersPage = 100_000

// referrers copies the manifests that refer to a manifest.
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

// send copies everything that a manifest needs, and then puts the manifest.
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
			// The source lacks this platform. The destination decides whether an index
			// may lack it.
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
			put.Digest = "" // the default digest; a client then needs only one request
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

// absentError says that the destination refused an index because the source lacks some of
// its manifests.
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

// blobs copies the blobs of a manifest.
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

// check calls Options.Check with those contents that have not been checked before.
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

// isManifest reports whether registries store content of this type as a manifest. The
// indexes of build caches also name layers.
func isManifest(mediaType string) bool {
	return oci.IsIndex(mediaType) || mediaType == oci.MediaTypeOCIManifest ||
		mediaType == oci.MediaTypeDockerManifest || mediaType == client.MediaTypeOCIArtifact
}

// needs returns what a registry must have before it accepts a manifest, each once.
func needs(m *oci.Manifest) (manifests, blobs []oci.Descriptor, err error) {
	if m.MediaType == oci.MediaTypeDockerManifestV1 || m.MediaType == oci.MediaTypeDockerManifestV1S {
		return nil, nil, oci.Errorf(oci.CodeUnsupported, "manifest %s has Docker's schema 1, which is not copied", m.Digest)
	}
	if !isManifest(m.MediaType) {
		return nil, nil, nil // what other types need is not known
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

// isForeign reports whether a registry may lack a layer.
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

// blob copies one blob.
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

// mount tries to mount a blob from another repository of the destination. It returns
// false if that does not work, for whatever reason, and the blob is then sent.
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
	defer func() { _ = content.Close() }() // read to its end, or the push has failed already
	r := &progressReader{r: content, c: c}
	defer r.flush()
	desc := content.Descriptor()
	_, err := c.dst.PushBlob(ctx, to, desc.Digest, desc.Size, r)
	return err
}

// progressReader counts the bytes that are read of a blob.
type progressReader struct {
	r    io.Reader
	c    *copier
	news int64 // bytes not reported yet
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
