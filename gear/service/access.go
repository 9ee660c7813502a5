package service

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/gear/filestore"
	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/gearfacts"
	"example.org/slipway/registry/storage"
)

// retryAfter is how long a client should wait before it asks again for an index that is
// being made.
const retryAfter = time.Second

// holdFor is how long a request for an index that is being made is held. Most layers are
// converted in that time, so that their clients need not ask again.
const holdFor = 2 * time.Second

// Layer opens the index of a layer that a repository shows. If the index is being made,
// Layer waits for it for at most two seconds. Errors: BLOB_UNKNOWN, *gear.PendingError.
func (s *Service) Layer(ctx context.Context, repo string, d oci.Digest) (*Content, error) {
	c, err := s.heldLayer(ctx, repo, d)
	return c, storage.Unavailable(err)
}

func (s *Service) heldLayer(ctx context.Context, repo string, d oci.Digest) (*Content, error) {
	_, changed := s.isActive(d) // before the look-up, so that no end of a conversion is missed
	c, err := s.layer(ctx, repo, d)
	if !inTheMaking(err) {
		return c, err
	}
	t := time.NewTimer(holdFor)
	defer t.Stop()
	idle := s.unattended()
	for {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-s.ctx.Done():
			return nil, err
		case <-t.C:
			return nil, err
		case <-idle:
			// Nobody works on the queue, but an active conversion ends by itself.
			if active, _ := s.isActive(d); !active {
				return s.layer(ctx, repo, d)
			}
			idle = nil
			continue
		case <-changed:
		}
		var active bool
		if active, changed = s.isActive(d); active && s.earlyIndex(d) == nil {
			continue // another conversion has ended
		}
		if c, err = s.layer(ctx, repo, d); !inTheMaking(err) {
			return c, err
		}
	}
}

// inTheMaking reports whether an index is worth waiting for.
func inTheMaking(err error) bool {
	var p *gear.PendingError
	return errors.As(err, &p) && p.RetryAfter > 0
}

// layer is like Layer, but does not wait.
func (s *Service) layer(ctx context.Context, repo string, d oci.Digest) (*Content, error) {
	if _, err := s.cat.Blob(ctx, repo, d); errors.Is(err, catalog.ErrNotFound) || errors.Is(err, catalog.ErrNoRepository) {
		return nil, oci.Errorf(oci.CodeBlobUnknown, "%s has no layer %s", repo, d)
	} else if err != nil {
		return nil, err
	}
	l, err := s.facts.Layer(ctx, d)
	if errors.Is(err, catalog.ErrNotFound) {
		if c := s.earlyIndex(d); c != nil {
			return c, nil
		}
		return nil, s.pending(ctx, repo, d)
	}
	if err != nil {
		return nil, err
	}
	if l.Embedded {
		if err := s.mayUse(ctx, repo, d); err != nil {
			return nil, err
		}
	}
	c, err := s.open(ctx, l.Index)
	var damaged *filestore.CorruptError // only the first reader gets it
	if errors.Is(err, filestore.ErrLost) || errors.As(err, &damaged) {
		return nil, s.remaking(ctx, d)
	}
	if err != nil {
		return nil, err
	}
	c.diffID = l.DiffID
	return c, nil
}

// pending returns an error that says why a layer has no index. It queues the layer if
// nobody asked for it yet.
func (s *Service) pending(ctx context.Context, repo string, d oci.Digest) error {
	wait := &gear.PendingError{RetryAfter: retryAfter}
	if active, _ := s.isActive(d); active {
		return wait
	}
	job, err := s.facts.Job(ctx, d)
	switch {
	case errors.Is(err, catalog.ErrNotFound) && s.opts.Mode(repo) == Off:
		return &gear.PendingError{Reason: "conversion is off for " + repo + " (gear.convert); slipway convert --all does it once, for all images"}
	case errors.Is(err, catalog.ErrNotFound) && s.opts.ReadOnly:
		return &gear.PendingError{Reason: "the registry is read-only, so that nothing is converted"}
	case errors.Is(err, catalog.ErrNotFound):
		// A client may ask for any blob, so it is not known whether this one is a layer.
		if like, err := s.likeLayer(ctx, d); err != nil || !like {
			return cmp.Or(err, error(&gear.PendingError{Reason: "it is no layer"}))
		}
		if err := s.Queue(ctx, repo, []oci.Digest{d}); err != nil {
			return err
		}
		return wait
	case err != nil:
		return err
	}
	return s.whyFailed(job)
}

// whyFailed returns the answer for a layer whose conversion waits or has failed. The
// client may know what is wrong with the layer. Other reasons are for the operator, who
// finds them in the log and in the status.
func (s *Service) whyFailed(job gearfacts.Job) error {
	switch {
	case job.Attempts == 0:
		return &gear.PendingError{RetryAfter: retryAfter}
	case s.ofLayer(job):
		return &gear.PendingError{Reason: job.Failure}
	}
	return &gear.PendingError{Reason: "for a reason that may pass; it will be tried again"}
}

// ofLayer reports whether a conversion failed because of the layer itself. Clients may
// know such a reason. Errors of the server name its files and stores.
func (s *Service) ofLayer(job gearfacts.Job) bool {
	return job.Failure == errForeign.Error() || s.final(job)
}

// told returns what a client may know about why a conversion failed.
func (s *Service) told(job gearfacts.Job) string {
	if s.ofLayer(job) {
		return job.Failure
	}
	return "the registry could not read or store it; its log says why"
}

// waiting returns the answer for a layer whose job is in the queue. It says when to ask
// again, if that helps, and why the conversion has failed so far.
func (s *Service) waiting(job gearfacts.Job) error {
	switch {
	case job.Attempts == 0:
		return &gear.PendingError{RetryAfter: retryAfter}
	case s.final(job):
		return &gear.PendingError{Reason: job.Failure}
	}
	return &gear.PendingError{RetryAfter: max(retryAfter, job.Due.Sub(s.opts.Clock())), Reason: s.told(job)}
}

// remaking returns an error that says how far the repair of a damaged index is.
func (s *Service) remaking(ctx context.Context, d oci.Digest) error {
	if active, _ := s.isActive(d); active {
		return &gear.PendingError{RetryAfter: retryAfter}
	}
	job, err := s.facts.Job(ctx, d)
	if errors.Is(err, catalog.ErrNotFound) { // it is being queued, or was repaired just now
		return &gear.PendingError{RetryAfter: retryAfter}
	}
	if err != nil {
		return err
	}
	return s.whyFailed(job)
}

// likeLayer reports whether a blob begins like a layer.
func (s *Service) likeLayer(ctx context.Context, d oci.Digest) (bool, error) {
	body, _, err := s.blobs.OpenBlob(ctx, d, 0)
	if errors.Is(err, catalog.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer body.Close()
	head := make([]byte, 512) // the header of a tar's first member
	n, err := io.ReadFull(body, head)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return false, err
	}
	return isLayer(head[:n]), nil
}

// File opens a file that a repository may read. Errors: BLOB_UNKNOWN.
func (s *Service) File(ctx context.Context, repo string, name gear.Name) (*Content, error) {
	names, may := [1]gear.Name{name}, [1]bool{}
	if s.seen.has(repo, names[:], may[:]) > 0 {
		may, err := s.visible(ctx, repo, []gear.Name{name})
		if err != nil {
			return nil, storage.Unavailable(err)
		}
		if !may[0] {
			return nil, errNoFile
		}
	}
	c, err := s.open(ctx, name)
	if errors.Is(err, filestore.ErrNotFound) {
		return nil, errNoFile
	}
	return c, storage.Unavailable(err)
}

var errNoFile = &oci.Error{Code: oci.CodeBlobUnknown, Message: "the repository has no such file"}

// visible reports which files a repository may read. It waits for files that are being
// stored.
func (s *Service) visible(ctx context.Context, repo string, names []gear.Name) ([]bool, error) {
	return s.look(ctx, repo, names, true)
}

// look is like visible, but waits only if wait is set.
func (s *Service) look(ctx context.Context, repo string, names []gear.Name, wait bool) ([]bool, error) {
	out := make([]bool, len(names))
	unknown := s.seen.has(repo, names, out)
	if unknown == 0 {
		return out, nil
	}
	at, ask := make([]int, 0, unknown), make([]gear.Name, 0, unknown)
	for i, known := range out {
		if !known {
			at, ask = append(at, i), append(ask, names[i])
		}
	}
	began, epoch, refused := time.Now(), s.seen.epoch(), false
	may, err := s.contents.Visible(ctx, repo, ask)
	if err != nil {
		return nil, fmt.Errorf("look up who may read files: %w", err)
	}
	s.seen.add(repo, ask, may, epoch)
	for i, ok := range may {
		out[at[i]] = ok
		refused = refused || !ok
	}
	if refused && wait {
		came, err := s.arriving(ctx, repo, ask)
		if err != nil {
			return nil, err
		}
		if came {
			return s.look(ctx, repo, names, false)
		}
	}
	if refused {
		return out, hush(ctx, began, len(ask))
	}
	return out, nil
}

// hushStep and hushFiles hide a difference in time: looking up a file that another
// repository has takes a few microseconds longer than looking up a file that nobody has.
// Therefore an answer that refuses some files is given at a multiple of hushStep for
// every hushFiles files. That is more time than either look-up takes.
const (
	hushStep  = 5 * time.Millisecond
	hushFiles = 64
)

// hush waits until the time since began reveals nothing about n look-ups.
func hush(ctx context.Context, began time.Time, n int) error {
	step := hushStep * time.Duration((n+hushFiles-1)/hushFiles)
	left := step - time.Since(began)%step
	t := time.NewTimer(left)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// Fetch writes files as a stream. Files that the repository may not read are marked as
// missing.
func (s *Service) Fetch(ctx context.Context, repo string, names []gear.Name, w io.Writer) error {
	return s.files.Stream(ctx, w, names, &filestore.StreamOptions{Allow: func(ctx context.Context, names []gear.Name) ([]bool, error) {
		return s.visible(ctx, repo, names)
	}})
}

// packBytes bounds the files of a pack, in bytes of content. A client that wants one of
// the last waits for the others.
const packBytes = 64 << 20

// Pack returns those of the names in an image's profile whose files are sent in one stream
// to a client that has none of them, each once, up to 64 MiB: files of the image that the
// repository may read, among the first [gear.PackFiles] names. A report may have named others. Large files are not among them,
// because clients fetch parts of them. Errors: MANIFEST_UNKNOWN.
func (s *Service) Pack(ctx context.Context, repo string, manifest oci.Digest, names []gear.Name) ([]gear.Name, error) {
	m, err := s.cat.Manifest(ctx, repo, manifest)
	if errors.Is(err, catalog.ErrNotFound) || errors.Is(err, catalog.ErrNoRepository) {
		return nil, oci.Errorf(oci.CodeManifestUnknown, "%s has no manifest %s", repo, manifest)
	}
	if err != nil {
		return nil, storage.Unavailable(err)
	}
	var image struct {
		Layers []oci.Descriptor `json:"layers"`
	}
	if json.Unmarshal(m.Content, &image) != nil {
		return nil, nil
	}
	names = names[:min(len(names), gear.PackFiles)]
	layers := make([]oci.Digest, len(image.Layers))
	for i := range layers {
		layers[i] = image.Layers[i].Digest
	}
	may, err := s.visible(ctx, repo, names)
	if err != nil {
		return nil, storage.Unavailable(err)
	}
	files, err := s.contents.InLayers(ctx, names, layers)
	if err != nil {
		return nil, fmt.Errorf("look up the files of a profile: %w", err)
	}
	sizes := make(map[gear.Name]int64, len(files))
	for i := range files {
		if f := &files[i]; f.Size < gear.LargeFile && f.Pack != (gear.Name{}) {
			sizes[f.Name] = f.Size
		}
	}
	var pack []gear.Name
	left := int64(packBytes)
	for i, n := range names {
		size, ok := sizes[n]
		if !ok || !may[i] {
			continue
		}
		delete(sizes, n)
		if left -= size; left < 0 {
			break
		}
		pack = append(pack, n)
	}
	return pack, nil
}

// Missing reports which files must be uploaded to a repository: files that it may not
// read, wherever else they are, and files that were found damaged.
func (s *Service) Missing(ctx context.Context, repo string, names []gear.Name) ([]bool, error) {
	out, err := s.visible(ctx, repo, names)
	if err != nil {
		return nil, storage.Unavailable(err)
	}
	var ask []gear.Name
	for i, may := range out {
		if out[i] = !may && names[i] != gear.Empty().Name; may { // nobody needs to send the empty file
			ask = append(ask, names[i])
		}
	}
	files, err := s.contents.Files(ctx, ask)
	if err != nil {
		return nil, fmt.Errorf("look up files: %w", err)
	}
	lost := map[gear.Name]bool{}
	for i := range files {
		if files[i].Pack == (gear.Name{}) {
			lost[files[i].Name] = true
		}
	}
	for i, n := range names {
		out[i] = out[i] || lost[n]
	}
	return out, nil
}

// open opens a file without checking who may read it.
func (s *Service) open(ctx context.Context, name gear.Name) (*Content, error) {
	if b := s.files.Cached(name); b != nil {
		return &Content{name: name, size: int64(len(b)), small: b}, nil
	}
	f, err := s.files.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	c := &Content{name: name, size: f.Size(), file: f}
	if f.Size() < gear.LargeFile {
		if c.small, err = f.Content(ctx); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// Content is an open file or index. It holds nothing that must be closed.
type Content struct {
	name   gear.Name
	diffID [32]byte
	size   int64
	file   *filestore.File // nil if the content was in RAM
	small  []byte          // the whole content, if it is small
}

// Name returns the content's SHA-256.
func (c *Content) Name() gear.Name { return c.name }

// DiffID returns the SHA-256 of the uncompressed layer of an index.
func (c *Content) DiffID() [32]byte { return c.diffID }

// Size returns the size of the content in bytes.
func (c *Content) Size() int64 { return c.size }

// WriteRange writes the n bytes from off on. The range must be within the content.
func (c *Content) WriteRange(ctx context.Context, w io.Writer, off, n int64) error {
	if off < 0 || n < 0 || n > c.Size()-off {
		return fmt.Errorf("%d bytes from %d on are not within a content of %d", n, off, c.Size())
	}
	if c.small != nil {
		_, err := w.Write(c.small[off : off+n])
		return err
	}
	_, err := c.file.WriteRange(ctx, w, off, n)
	return err
}

// WriteChunks writes n chunks in their stored form, beginning with the chunk first.
// Errors: RANGE_INVALID.
func (c *Content) WriteChunks(ctx context.Context, w io.Writer, first, n int, begin func(length int64)) error {
	if c.file == nil {
		return errNoChunk
	}
	err := c.file.WriteChunks(ctx, w, first, n, begin)
	if errors.Is(err, filestore.ErrNoChunk) {
		return errNoChunk
	}
	return err
}

var errNoChunk = &oci.Error{Code: oci.CodeRangeInvalid, Message: "the file has no such chunks; those of 4 MiB or more have one for each MiB"}

// Close implements io.Closer.
func (c *Content) Close() error { return nil }

func parseName(s string) (n gear.Name, err error) {
	b, err := hex.DecodeString(s)
	if err == nil && len(b) != len(n) {
		err = fmt.Errorf("%q is not a SHA-256", s)
	}
	copy(n[:], b)
	return n, err
}

// These constants bound the cache of access rights. What a repository may read changes if
// something is deleted or collected. A deletion clears the cache. After a collection,
// only the age of the cache bounds how long it is wrong. The time is short if other
// processes delete, too, because this process does not notice their deletions.
const (
	seenEntries = 32 << 10
	seenFor     = 30 * time.Second
	seenShared  = 5 * time.Second
)

// visible remembers which files the repositories may read, so that a hot file needs no
// look-up.
type visible struct {
	clock    func() time.Time
	lasts    time.Duration
	mu       sync.RWMutex
	now, old seen
	turn     time.Time
	changes  uint64
}

// seen has the files of each repository.
type seen struct {
	repos map[string]*seenFiles
	n     int
}

// seenFiles has files in the order in which they were added. They are mostly requested
// again in this order.
type seenFiles struct {
	names []gear.Name
	// at finds a file by the beginning of its name. Two names with the same beginning
	// displace each other.
	at map[uint64]int32
}

// find returns the index of a file, which may be the hint, or -1 if the file is not
// there.
func (f *seenFiles) find(name *gear.Name, hint int) int {
	if f == nil {
		return -1
	}
	if hint < len(f.names) && f.names[hint] == *name {
		return hint
	}
	i, ok := f.at[binary.LittleEndian.Uint64(name[:])]
	if !ok || f.names[i] != *name {
		return -1
	}
	return int(i)
}

func (s *seen) add(repo string, name *gear.Name) {
	f := s.repos[repo]
	if f == nil {
		f = &seenFiles{at: map[uint64]int32{}}
		if s.repos == nil {
			s.repos = map[string]*seenFiles{}
		}
		s.repos[repo] = f
	}
	if f.find(name, 0) < 0 {
		f.at[binary.LittleEndian.Uint64(name[:])] = int32(len(f.names))
		f.names = append(f.names, *name)
		s.n++
	}
}

func (v *visible) init(clock func() time.Time, shared bool) {
	v.clock, v.turn, v.lasts = clock, clock(), seenFor
	if shared {
		v.lasts = seenShared
	}
}

// has sets an element of out for each name that a repository is known to be allowed to
// read. It returns the number of names for which that is not known. out is as long as
// names.
func (v *visible) has(repo string, names []gear.Name, out []bool) (unknown int) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	if v.clock().Sub(v.turn) > v.lasts {
		return len(names) // too old; the next call of add starts anew
	}
	now, old := v.now.repos[repo], v.old.repos[repo]
	next, nextOld := 0, 0
	for i := range names {
		if k := now.find(&names[i], next); k >= 0 {
			out[i], next = true, k+1
		} else if k := old.find(&names[i], nextOld); k >= 0 {
			out[i], nextOld = true, k+1
		} else {
			out[i] = false
			unknown++
		}
	}
	return unknown
}

// epoch returns the state to pass to add. It is called before a look-up whose result is
// added.
func (v *visible) epoch() uint64 {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.changes
}

// add records which of the names a repository may read.
func (v *visible) add(repo string, names []gear.Name, may []bool, epoch uint64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.changes != epoch {
		return
	}
	if now := v.clock(); now.Sub(v.turn) > v.lasts { // the entries of v.now may be too old, too
		v.now, v.old, v.turn = seen{}, seen{}, now
	}
	for i := range names {
		if !may[i] {
			continue
		}
		if v.now.n >= seenEntries {
			v.now, v.old = seen{}, v.now
		}
		v.now.add(repo, &names[i])
	}
}

func (v *visible) forget() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.changes++
	v.now, v.old = seen{}, seen{}
}
