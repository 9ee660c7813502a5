package storage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/objstore"
)

const (
	// maxTrusted bounds each of the two generations of trust. Together they take some 4
	// MB.
	maxTrusted = 16384
	// statFresh is how long the result of a stat of an object is valid for readers, if a
	// stat costs a request to another machine.
	statFresh = time.Minute
)

// witness is what this process last saw of an object.
type witness struct {
	size    int64
	modTime time.Time
	tag     string        // as in objstore.Info
	at      time.Duration // by Options.Steady
	// recorded says that the object has the tag that the catalogue recorded when the
	// object was stored, if it recorded one.
	recorded bool
	// hashed says that the object's bytes were compared with its digest since it was
	// last written, as far as size, modTime and tag show.
	hashed bool
}

// looksLike reports whether nothing shows that the object was written since. Caches
// provide no tags.
func (w witness) looksLike(info objstore.Info) bool {
	return w.size == info.Size && w.modTime.Equal(info.ModTime) && (w.tag == info.Tag || w.tag == "" || info.Tag == "")
}

// trust remembers what this process recently saw of objects.
type trust struct {
	mu        sync.Mutex
	now, past map[oci.Digest]witness

	// marking is held until RAM agrees with what Doubt recorded. A caller that finds the doubt
	// already recorded must not go on before RAM agrees.
	marking sync.Mutex
}

func (t *trust) get(d oci.Digest) (witness, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	w, ok := t.now[d]
	if !ok {
		if w, ok = t.past[d]; ok {
			t.set(d, w)
		}
	}
	return w, ok
}

// put notes what was just seen of an object. Results of earlier comparisons stay valid
// while the object looks the same.
func (t *trust) put(d oci.Digest, info objstore.Info, w witness) {
	w.size, w.modTime, w.tag = info.Size, info.ModTime, info.Tag
	if before, ok := t.get(d); ok && before.looksLike(info) {
		w.hashed, w.recorded = w.hashed || before.hashed, w.recorded || before.recorded
		if w.tag == "" {
			w.tag = before.tag
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.set(d, w)
}

// set is like put, for a caller that holds mu.
func (t *trust) set(d oci.Digest, w witness) {
	if _, ok := t.now[d]; !ok && len(t.now) >= maxTrusted {
		t.past, t.now = t.now, nil
	}
	if t.now == nil {
		t.now = map[oci.Digest]witness{}
	}
	t.now[d] = w
}

func (t *trust) drop(d oci.Digest) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.now, d)
	delete(t.past, d)
}

// saw notes what the store says about the object of d.
func (s *Storage) saw(d oci.Digest, info objstore.Info, hashed bool) {
	s.trust.put(d, info, witness{at: s.replica.Steady(), hashed: hashed})
}

// hashedBefore reports whether the bytes of the object, as it looks now, were compared
// with its digest.
func (s *Storage) hashedBefore(d oci.Digest, info objstore.Info) bool {
	w, ok := s.trust.get(d)
	return ok && w.hashed && w.looksLike(info)
}

// damagedError says that what the store has is not the content.
type damagedError struct{ msg string }

func (e *damagedError) Error() string { return e.msg }

func wrongSize(got, want int64) error {
	return &damagedError{fmt.Sprintf("%d bytes are stored, the catalogue says %d", got, want)}
}

func WrongBytes(d oci.Digest) error {
	return &damagedError{"the stored bytes do not have the digest " + string(d)}
}

// IsDamage reports whether an error of the store says that it has lost the content or
// cannot read it. Temporary failures, and errors that say nothing about the content, do
// not count.
func IsDamage(err error) bool {
	var damaged *damagedError
	if objstore.IsBusy(err) {
		return false
	}
	for _, e := range []error{objstore.ErrNotExist, objstore.ErrCorrupt, io.ErrUnexpectedEOF, fs.ErrPermission, syscall.EIO,
		syscall.EUCLEAN, syscall.EBADMSG, syscall.ENODATA} {
		if errors.Is(err, e) {
			return true
		}
	}
	return errors.As(err, &damaged)
}

// brokeOff reports whether the connection may be the cause of an error, and not the
// object.
func brokeOff(err error) bool {
	return errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, objstore.ErrNotExist)
}

// errReplaced ends the read of an object that was replaced by another.
var errReplaced = errors.New("the object was stored anew while it was read")

// Doubt makes a content suspect because of what the store said about it; see
// catalog.MarkSuspect. It returns an error only if the store as a whole is away.
func (s *Storage) Doubt(ctx context.Context, d oci.Digest, why error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	if err := s.UnlessAway(ctx); err != nil {
		return err
	}
	s.trust.drop(d)
	s.trust.marking.Lock()
	defer s.trust.marking.Unlock()
	marked, err := s.opts.Facts.MarkSuspect(ctx, d)
	if err != nil {
		s.log.Warn("note that a content is damaged", "digest", d, "damage", why, "err", err)
		return nil
	}
	if !marked {
		return nil // it was known, and logged
	}
	s.log.Error("a content is damaged or missing; pushing it again repairs it, and slipway fsck names the images that need it", "digest", d, "err", why)
	return nil
}

// Trust ends the suspicion of a content, because its bytes have just been read and are
// right.
func (s *Storage) Trust(d oci.Digest) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := s.opts.Facts.ClearSuspect(ctx, d); err != nil {
		s.log.Warn("note that a content is in order again", "digest", d, "err", err)
	}
}

// Look asks the store for the object of a content before a client is told of it. size is
// the size that the catalogue has. here is false if the object is missing, has another
// size or is damaged. The content is then suspect. The returned size is right even if the
// caller's was out of date.
func (s *Storage) Look(ctx context.Context, d oci.Digest, size int64) (now int64, here bool, err error) {
	if away := s.identity.away.Load(); away != nil {
		return 0, false, storeAway(away)
	}
	if w, ok := s.trust.get(d); s.distant && oci.IsForReading(ctx) && ok && w.size == size && s.replica.Steady()-w.at < statFresh {
		return size, true, nil
	}
	info, here, err := s.Glance(ctx, d, size)
	if here {
		here, err = s.inOrder(ctx, d, info)
	}
	if errors.Is(err, errChecking) {
		here, err = true, nil
	}
	return info.Size, here, err
}

// Glance is like Look, but does not read the object.
func (s *Storage) Glance(ctx context.Context, d oci.Digest, size int64) (info objstore.Info, here bool, err error) {
	info, err = s.store.Stat(ctx, BlobKey(d))
	if err == nil && info.Size != size {
		// RAM may be older than the row.
		if b, rowErr := s.cat.StoredBlob(ctx, d); rowErr != nil || b.Size != info.Size {
			err = wrongSize(info.Size, size)
		}
	}
	switch {
	case err == nil:
		s.saw(d, info, false)
		return info, true, nil
	case !IsDamage(err):
		return info, false, ClientError(fmt.Sprintf("look for blob %s", d), err)
	}
	return info, false, s.Doubt(ctx, d, err)
}

// Patience is how long a client waits for the comparison of an object before it is told
// that the object is here. It is enough for some 5 GB, and shorter than the timeout of
// clients.
const Patience = 10 * time.Second

// errChecking says that an object is still being compared with its digest.
var errChecking = errors.New("the object is being compared with its digest, which takes a while")

// inOrder compares an object with its digest before a client is told of it or reads a
// range of it, unless that was done before. If the comparison takes longer than Patience,
// inOrder returns errChecking and the comparison goes on. An object on another machine is
// compared only if its tag has changed since it was stored.
func (s *Storage) inOrder(ctx context.Context, d oci.Digest, info objstore.Info) (bool, error) {
	if info.Proven || s.hashedBefore(d, info) {
		return true, nil
	}
	if s.distant {
		if same, err := s.asRecorded(ctx, d, info); err != nil || same {
			return same, err
		}
	}
	c := s.check(d, info.Size)
	waiting, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	if err := Await(waiting, c.done); err != nil {
		return false, firstError(ctx.Err(), errChecking)
	}
	switch {
	case c.err == nil:
		s.RecordTag(ctx, d, c.info)
		return true, nil
	case brokeOff(c.err):
		_, here, err := s.Glance(ctx, d, info.Size)
		return here, err
	case !IsDamage(c.err):
		return false, ClientError(fmt.Sprintf("read blob %s", d), c.err)
	}
	return false, s.Doubt(ctx, d, c.err)
}

// asRecorded reports whether an object has the tag with which it was stored, as far as
// both tags are known.
func (s *Storage) asRecorded(ctx context.Context, d oci.Digest, info objstore.Info) (bool, error) {
	if w, ok := s.trust.get(d); info.Tag == "" || ok && w.recorded && w.looksLike(info) {
		return true, nil
	}
	tag, err := s.opts.Facts.ObjectTag(ctx, d)
	if err != nil {
		return false, ClientError(fmt.Sprintf("look up blob %s", d), err)
	}
	if tag != "" && tag != info.Tag {
		return false, nil
	}
	s.trust.put(d, info, witness{at: s.replica.Steady(), recorded: true})
	return true, nil
}

// RecordTag notes the tag of an object that was just compared with its digest. It was
// compared because its tag was not the one with which it was stored: somebody had copied
// the object.
func (s *Storage) RecordTag(ctx context.Context, d oci.Digest, info objstore.Info) {
	if info.Tag == "" {
		return
	}
	if err := s.opts.Facts.SetObjectTag(ctx, d, info.Tag); err != nil {
		s.log.Warn("note the tag of an object; it will be compared with its digest again", "digest", d, "err", err)
	}
}

// Missing returns the digests that the catalogue takes for stored and whose objects are
// gone or damaged. It looks for several objects at once.
func (s *Storage) Missing(ctx context.Context, digests []oci.Digest) ([]oci.Digest, error) {
	return s.MissingBy(ctx, digests, func(ctx context.Context, b catalog.Blob) (here bool, err error) {
		_, here, err = s.Look(ctx, b.Digest, b.Size)
		return here, err
	})
}

// MissingBy is like Missing, with a given way to look for an object.
func (s *Storage) MissingBy(ctx context.Context, digests []oci.Digest, look func(context.Context, catalog.Blob) (bool, error)) ([]oci.Digest, error) {
	stored, err := s.cat.Stored(ctx, digests)
	if err != nil {
		return nil, err
	}
	here := make([]bool, len(stored))
	err = each(ctx, len(stored), func(ctx context.Context, i int) (err error) {
		b := stored[i]
		if b.Content == nil && b.Size > 0 {
			here[i], err = look(ctx, b)
			return err
		}
		here[i] = int64(len(b.Content)) == b.Size && b.Digest.Algorithm().FromBytes(b.Content) == b.Digest
		if !here[i] {
			err = s.Doubt(ctx, b.Digest, WrongBytes(b.Digest))
		}
		return err
	})
	var list []oci.Digest
	for i, b := range stored {
		if !here[i] {
			list = append(list, b.Digest)
		}
	}
	return list, err
}

// proveStored makes sure that the object of a content that was just put into the store is
// there. Its bytes were hashed on the way. Stores behind a network have made sure
// themselves.
func (s *Storage) proveStored(ctx context.Context, d oci.Digest, size int64) error {
	if s.distant {
		s.trust.put(d, objstore.Info{Size: size}, witness{at: s.replica.Steady()})
		return nil
	}
	info, err := s.store.Stat(ctx, BlobKey(d))
	if err == nil && info.Size != size {
		err = wrongSize(info.Size, size)
	}
	if err != nil {
		s.trust.drop(d)
		return fmt.Errorf("look for the object just stored: %w", err)
	}
	s.saw(d, info, true)
	return nil
}

// lookAtOnce is how many requests to the store a client's request makes concurrently.
const lookAtOnce = 8

// each calls fn for 0 to n-1, several at a time.
func each(ctx context.Context, n int, fn func(ctx context.Context, i int) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(lookAtOnce)
	for i := range n {
		g.Go(func() error { return fn(ctx, i) })
	}
	return g.Wait()
}
