package gearregistry

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"example.org/slipway/catalog"
	"example.org/slipway/filestore"
	"example.org/slipway/gear"
	"example.org/slipway/oci"
)

// retryAfter is when a client should ask again for an index in the making.
const retryAfter = time.Second

// PendingError says that a layer has no index.
type PendingError struct {
	// RetryAfter is when to ask again; 0: the conversion has failed.
	RetryAfter time.Duration
	Reason     string
}

// Error implements error.
func (e *PendingError) Error() string {
	if e.RetryAfter > 0 {
		return "the layer is being converted"
	}
	return "the layer could not be converted: " + e.Reason
}

// Layer opens the index of a layer that a repository shows. Errors:
// BLOB_UNKNOWN, *PendingError.
func (s *Service) Layer(ctx context.Context, repo string, d oci.Digest) (*Content, error) {
	if _, err := s.cat.Blob(ctx, repo, d); errors.Is(err, catalog.ErrNotFound) || errors.Is(err, catalog.ErrNoRepository) {
		return nil, oci.Errorf(oci.CodeBlobUnknown, "%s has no layer %s", repo, d)
	} else if err != nil {
		return nil, err
	}
	l, err := s.cat.GearLayer(ctx, d)
	if errors.Is(err, catalog.ErrNotFound) {
		return nil, s.pending(ctx, repo, d)
	}
	if err != nil {
		return nil, err
	}
	if l.Embedded {
		active, _ := s.isActive(d) // it is recorded before it is known who may use it
		ok, err := s.cat.GearGranted(ctx, repo, d)
		if err != nil {
			return nil, err
		}
		if !ok && active {
			return nil, &PendingError{RetryAfter: retryAfter}
		}
		if !ok {
			return nil, &PendingError{Reason: errForeign.Error()}
		}
	}
	c, err := s.open(ctx, l.Index)
	var damaged *filestore.CorruptError // for the first who reads it
	if errors.Is(err, filestore.ErrLost) || errors.As(err, &damaged) {
		return nil, s.remaking(ctx, d)
	}
	if err != nil {
		return nil, err
	}
	c.diffID = l.DiffID
	return c, nil
}

// pending says why a layer has no index. One that nobody asked for is queued.
func (s *Service) pending(ctx context.Context, repo string, d oci.Digest) error {
	wait := &PendingError{RetryAfter: retryAfter}
	if active, _ := s.isActive(d); active {
		return wait
	}
	job, err := s.cat.GearJob(ctx, d)
	switch {
	case errors.Is(err, catalog.ErrNotFound) && s.opts.Mode(repo) == Off:
		return &PendingError{Reason: "conversion is off for " + repo + " (gear.convert); slipway convert --all does it once, for all images"}
	case errors.Is(err, catalog.ErrNotFound) && s.opts.ReadOnly:
		return &PendingError{Reason: "the registry is read-only, so that nothing is converted"}
	case errors.Is(err, catalog.ErrNotFound):
		// Of what somebody asks for it is not known that it is a layer.
		if like, err := s.likeLayer(ctx, d); err != nil || !like {
			return cmp.Or(err, error(&PendingError{Reason: "it is no layer"}))
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

// whyFailed makes the answer for a layer whose conversion waits or has failed.
// What is wrong with the layer the client may know; other reasons are for the
// operator, who finds them in the log and in the status.
func (s *Service) whyFailed(job catalog.GearJob) error {
	switch {
	case job.Attempts == 0:
		return &PendingError{RetryAfter: retryAfter}
	case job.Failure == errForeign.Error() || s.final(job):
		return &PendingError{Reason: job.Failure}
	}
	return &PendingError{Reason: "for a reason that may pass; it will be tried again"}
}

// remaking says how far it is with an index that was damaged.
func (s *Service) remaking(ctx context.Context, d oci.Digest) error {
	if active, _ := s.isActive(d); active {
		return &PendingError{RetryAfter: retryAfter}
	}
	job, err := s.cat.GearJob(ctx, d)
	if errors.Is(err, catalog.ErrNotFound) { // it is being queued, or was made again just now
		return &PendingError{RetryAfter: retryAfter}
	}
	if err != nil {
		return err
	}
	return s.whyFailed(job)
}

// likeLayer tells whether a blob begins like a layer.
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
	if !s.seen.has(repo, name) {
		may, err := s.visible(ctx, repo, []gear.Name{name})
		if err != nil {
			return nil, err
		}
		if !may[0] {
			return nil, errNoFile
		}
	}
	c, err := s.open(ctx, name)
	if errors.Is(err, filestore.ErrNotFound) {
		return nil, errNoFile
	}
	return c, err
}

var errNoFile = &oci.Error{Code: oci.CodeBlobUnknown, Message: "the repository has no such file"}

// visible tells which files a repository may read.
func (s *Service) visible(ctx context.Context, repo string, names []gear.Name) ([]bool, error) {
	out := make([]bool, len(names))
	at := make([]int, 0, len(names))
	ask := make([]gear.Name, 0, len(names))
	for i, n := range names {
		if out[i] = s.seen.has(repo, n); !out[i] {
			at, ask = append(at, i), append(ask, n)
		}
	}
	if len(ask) == 0 {
		return out, nil
	}
	began, epoch, refused := time.Now(), s.seen.epoch(), false
	may, err := s.cat.GearVisible(ctx, repo, ask)
	if err != nil {
		return nil, fmt.Errorf("look up who may read files: %w", err)
	}
	for i, ok := range may {
		if out[at[i]] = ok; ok {
			s.seen.add(repo, ask[i], epoch)
		}
		refused = refused || !ok
	}
	if refused {
		return out, hush(ctx, began, len(ask))
	}
	return out, nil
}

// Looking up a file that another repository has takes a few microseconds longer
// than one that nobody has. An answer that refuses some is therefore given at a
// multiple of hushStep for each so many files, which is more than either takes.
const (
	hushStep  = 5 * time.Millisecond
	hushFiles = 64
)

// hush waits until the time since began tells nothing about n look-ups.
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

// Fetch writes files as a stream; those that the repository may not read are
// missing in it.
func (s *Service) Fetch(ctx context.Context, repo string, names []gear.Name, w io.Writer) error {
	return s.files.Stream(ctx, w, names, &filestore.StreamOptions{Allow: func(ctx context.Context, names []gear.Name) ([]bool, error) {
		return s.visible(ctx, repo, names)
	}})
}

// Missing tells which files a repository needs uploaded: those it may not read,
// wherever else they are, and those that were found damaged.
func (s *Service) Missing(ctx context.Context, repo string, names []gear.Name) ([]bool, error) {
	out, err := s.visible(ctx, repo, names)
	if err != nil {
		return nil, err
	}
	var ask []gear.Name
	for i, may := range out {
		if out[i] = !may && names[i] != gear.Empty().Name; may { // the empty one nobody needs to send
			ask = append(ask, names[i])
		}
	}
	files, err := s.cat.GearFiles(ctx, ask)
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

// open opens a file whoever may read it.
func (s *Service) open(ctx context.Context, name gear.Name) (*Content, error) {
	f, err := s.files.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	c := &Content{name: name, file: f}
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
	file   *filestore.File
	small  []byte // all of it, if it is small
}

// Name is the content's SHA-256.
func (c *Content) Name() gear.Name { return c.name }

// DiffID of an index is the SHA-256 of the uncompressed layer.
func (c *Content) DiffID() [32]byte { return c.diffID }

// Size in bytes.
func (c *Content) Size() int64 { return c.file.Size() }

// WriteRange writes the n bytes from off on, which lie within the content.
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

// Bounds of what is remembered of access. What a repository may read changes when
// something is deleted, which forgets all, or collected, hence the time.
const (
	seenEntries = 32 << 10
	seenFor     = 30 * time.Second
)

// visible remembers which files which repositories may read, so that a hot file
// costs no look-up.
type visible struct {
	clock    func() time.Time
	mu       sync.RWMutex
	now, old map[seenKey]struct{}
	turn     time.Time
	changes  uint64
}

type seenKey struct {
	repo string
	name gear.Name
}

func (v *visible) init(clock func() time.Time) {
	v.clock, v.now, v.turn = clock, map[seenKey]struct{}{}, clock()
}

func (v *visible) has(repo string, name gear.Name) bool {
	k := seenKey{repo, name}
	v.mu.RLock()
	defer v.mu.RUnlock()
	if v.clock().Sub(v.turn) > seenFor {
		return false // the next add turns
	}
	_, ok := v.now[k]
	if !ok {
		_, ok = v.old[k]
	}
	return ok
}

// epoch is taken before a look-up and given to add with what it said.
func (v *visible) epoch() uint64 {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.changes
}

func (v *visible) add(repo string, name gear.Name, epoch uint64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.changes != epoch {
		return
	}
	now := v.clock()
	switch {
	case now.Sub(v.turn) > seenFor: // also what is in now may be older than that
		v.now, v.old, v.turn = map[seenKey]struct{}{}, nil, now
	case len(v.now) >= seenEntries:
		v.now, v.old = map[seenKey]struct{}{}, v.now
	}
	v.now[seenKey{repo, name}] = struct{}{}
}

func (v *visible) forget() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.changes++
	v.now, v.old = map[seenKey]struct{}{}, nil
}
