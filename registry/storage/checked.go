package storage

import (
	"context"
	"hash"
	"io"
	"sync"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/verify"
)

// Bytes that this process has not compared with their digest are never sent to the end
// before that comparison is done. Short objects, and objects on another machine, are
// hashed while they are sent, because reading them twice would cost more. Of other
// objects, sendfile sends all but the end. Meanwhile a check, which all readers of the
// object share, hashes the object.
const (
	// heldBack is how many bytes at the end of an object wait for its check.
	heldBack = 64 << 10
	// hashedInline is the longest object, in bytes, that is hashed while it is sent.
	hashedInline = 1 << 20
	// firstChunk is how much of a longer object is hashed before its first byte is sent,
	// so that the first byte does not wait.
	firstChunk = 16 << 10
)

// checks are the comparisons of objects with their digests that are in progress.
type checks struct {
	mu      sync.Mutex
	running map[oci.Digest]*check
}

// check is one comparison. err and info are set when done is closed. info describes the
// object that was read.
type check struct {
	done chan struct{}
	err  error
	info objstore.Info
}

// check begins a comparison, or joins one that is in progress.
func (s *Storage) check(d oci.Digest, size int64) *check {
	cs := &s.checks
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c := cs.running[d]
	if c == nil {
		c = &check{done: make(chan struct{})}
		if cs.running == nil {
			cs.running = map[oci.Digest]*check{}
		}
		cs.running[d] = c
		s.background.Add(1)
		go func() {
			defer s.background.Done()
			c.info, c.err = s.compare(d, size)
			cs.mu.Lock()
			delete(cs.running, d)
			cs.mu.Unlock()
			close(c.done)
		}()
	}
	return c
}

// recheck compares a suspect content with its digest before anything is sent.
func (s *Storage) recheck(ctx context.Context, d oci.Digest, size int64) error {
	c := s.check(d, size)
	if err := Await(ctx, c.done); err != nil || c.err != nil {
		return firstError(err, c.err)
	}
	s.Trust(d)
	return nil
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// compare reads an object and notes whether it has its digest.
func (s *Storage) compare(d oci.Digest, size int64) (objstore.Info, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan struct{})
	defer close(done)
	go func() {
		select {
		case <-s.stop:
			cancel()
		case <-done:
		}
	}()
	info, err := s.compareOnce(ctx, d, size)
	if err != nil && IsDamage(err) && info.Key != "" {
		if now, statErr := s.store.Stat(ctx, BlobKey(d)); statErr == nil && !now.ModTime.Equal(info.ModTime) {
			info, err = s.compareOnce(ctx, d, size) // the object was stored again meanwhile
		}
	}
	s.readFailed(d, size, err)
	return info, err
}

func (s *Storage) compareOnce(ctx context.Context, d oci.Digest, size int64) (objstore.Info, error) {
	obj, err := s.store.Get(ctx, BlobKey(d), 0, -1)
	if err != nil {
		return objstore.Info{}, err
	}
	defer obj.Close()
	info := obj.Info()
	if info.Size != size {
		return info, wrongSize(info.Size, size)
	}
	n, match, err := verify.Copy(ctx, nil, obj, d, func(int) {})
	switch {
	case err != nil:
		return info, err
	case n != size:
		return info, wrongSize(n, size)
	case !match:
		return info, WrongBytes(d)
	}
	s.saw(d, info, true)
	return info, nil
}

// readFailed notes that a read of a content failed. The network may have cut off the
// body, so readFailed asks the store about the object.
func (s *Storage) readFailed(d oci.Digest, size int64, err error) {
	if err == nil || !IsDamage(err) {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if brokeOff(err) {
		s.trust.drop(d)
		_, _, err = s.Glance(ctx, d, size)
	} else {
		err = s.Doubt(ctx, d, err)
	}
	if err != nil {
		s.log.Warn("find out why a blob could not be read", "digest", d, "err", err)
	}
}

// openWhole opens the object of a content to send all of it. obj is open already.
func (s *Storage) openWhole(ctx context.Context, d oci.Digest, obj objstore.Object) (oci.Content, error) {
	info := obj.Info()
	switch {
	case info.Proven || s.hashedBefore(d, info):
		return &storeContent{Object: obj, s: s, digest: d}, nil
	case s.distant || info.Size <= hashedInline || s.opener == nil:
		return &hashedContent{obj: obj, s: s, digest: d, sum: verify.NewHash(d), left: info.Size}, nil
	}
	obj.Close()
	return s.openHeld(ctx, d, info.Size)
}

// openHeld opens the object of a content to send all of it. It holds back the end until
// the check is done.
func (s *Storage) openHeld(ctx context.Context, d oci.Digest, size int64) (oci.Content, error) {
	c := &heldContent{digest: d}
	for try := 0; ; try++ {
		head, err := s.store.Get(ctx, BlobKey(d), 0, size-heldBack)
		if err != nil {
			return nil, err
		}
		c.head = &storeContent{Object: head, s: s, digest: d}
		if c.whole, err = s.opener.OpenAt(ctx, BlobKey(d)); err != nil {
			head.Close()
			return nil, err
		}
		tail, err := s.store.Get(ctx, BlobKey(d), size-heldBack, heldBack)
		if err != nil {
			return nil, firstError(err, head.Close(), c.whole.Close())
		}
		c.tail = &storeContent{Object: tail, s: s, digest: d}
		if now := tail.Info(); c.of(now) && now.Size == size { // so this is also the object of whole, which was opened in between
			c.check = s.check(d, size)
			return c, nil
		}
		if err := c.Close(); err != nil || try == 10 {
			return nil, firstError(err, &objstore.BusyError{Err: errReplaced})
		}
	}
}

// hashedContent is an object that is hashed while it is read. Its end is not returned
// before its digest is known to be right.
type hashedContent struct {
	obj    objstore.Object
	s      *Storage
	digest oci.Digest
	sum    hash.Hash
	left   int64 // not yet read from obj
	buf    *[]byte
	rest   []byte // read and hashed, but not yet returned
}

func (c *hashedContent) Descriptor() oci.Descriptor {
	return BlobDescriptor(c.digest, c.obj.Info().Size)
}

func (c *hashedContent) Close() error {
	if c.buf != nil {
		verify.Release(c.buf)
		c.buf, c.rest, c.left = nil, nil, 0
	}
	return c.obj.Close()
}

// fill reads and hashes the next bytes. It returns io.EOF at the end.
func (c *hashedContent) fill() error {
	if c.left == 0 {
		return io.EOF
	}
	limit := int64(firstChunk)
	if c.buf != nil {
		limit = int64(len(*c.buf))
	} else {
		c.buf = verify.Buffer()
	}
	p := (*c.buf)[:min(c.left, limit)]
	if _, err := io.ReadFull(c.obj, p); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		c.s.readFailed(c.digest, c.obj.Info().Size, err)
		return err
	}
	c.sum.Write(p)
	if c.left -= int64(len(p)); c.left == 0 {
		if verify.Sum(c.digest, c.sum) != c.digest {
			err := WrongBytes(c.digest)
			c.s.readFailed(c.digest, c.obj.Info().Size, err)
			return err
		}
		c.s.saw(c.digest, c.obj.Info(), true)
	}
	c.rest = p
	return nil
}

func (c *hashedContent) Read(p []byte) (int, error) {
	if len(c.rest) == 0 {
		if err := c.fill(); err != nil {
			return 0, err
		}
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

func (c *hashedContent) WriteTo(w io.Writer) (sent int64, err error) {
	for {
		n, err := w.Write(c.rest)
		sent += int64(n)
		c.rest = c.rest[n:]
		if err != nil {
			return sent, err
		}
		switch err := c.fill(); err {
		case nil:
		case io.EOF:
			return sent, nil
		default:
			return sent, err
		}
	}
}

// heldContent is an object whose end waits for its check.
type heldContent struct {
	digest     oci.Digest
	head, tail *storeContent
	// whole is the same object, opened again. It is used if the check was of another
	// object, which has taken the place of this one.
	whole   objstore.ReadAtCloser
	check   *check
	checked bool
}

func (c *heldContent) Descriptor() oci.Descriptor { return c.head.Descriptor() }

func (c *heldContent) Close() error {
	return firstError(c.head.Close(), c.tail.Close(), c.whole.Close())
}

// of reports whether the object that is sent looks like info.
func (c *heldContent) of(info objstore.Info) bool {
	mine := c.head.Info()
	return mine.Size == info.Size && mine.ModTime.Equal(info.ModTime)
}

// await waits for the check. If the check read another object than the one being sent,
// await hashes the one being sent.
func (c *heldContent) await() error {
	if c.checked {
		return nil
	}
	<-c.check.done
	if !c.of(c.check.info) {
		size := c.head.Info().Size
		_, match, err := verify.Copy(context.Background(), nil, io.NewSectionReader(c.whole, 0, size), c.digest, func(int) {})
		if err == nil && !match {
			err = WrongBytes(c.digest)
		}
		c.checked = err == nil
		return err
	}
	c.checked = c.check.err == nil
	return c.check.err
}

func (c *heldContent) Read(p []byte) (int, error) {
	n, err := c.head.Read(p)
	if err != io.EOF {
		return n, err
	}
	if n > 0 {
		return n, nil
	}
	if err := c.await(); err != nil {
		return 0, err
	}
	return c.tail.Read(p)
}

func (c *heldContent) WriteTo(w io.Writer) (int64, error) {
	sent, err := c.head.WriteTo(w)
	if err == nil {
		err = c.await()
	}
	if err != nil {
		return sent, err
	}
	n, err := c.tail.WriteTo(w)
	return sent + n, err
}
