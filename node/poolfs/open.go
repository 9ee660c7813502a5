package poolfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"

	"example.org/slipway/node/fuse"
)

// open answers OPEN. It answers at once if the inode is in use or registered with the
// kernel. Otherwise it starts a goroutine that waits for the backend.
func (s *Server) open(r *fuse.Request) {
	s.stats.opens.Add(1)
	t := &s.table
	t.mu.Lock()
	if ino := t.inodes[r.Node]; ino != nil && (ino.backing > 0 || ino.content != nil) {
		t.hold(ino)
		tell := s.o.Opened != nil && s.identify(ino)
		name := ino.key.Name
		s.answerOpen(r.Unique, ino)
		if tell {
			s.o.Opened(name)
		}
		return
	}
	t.unlock()
	ctx, cancel := context.WithCancelCause(s.conn.Context())
	o := s.conn.Begin(r, ctx, cancel)
	go s.openSlowly(o, r.Node)
}

func (s *Server) openSlowly(o *fuse.Op, node uint64) {
	defer s.conn.End(o)
	s.stats.waiting.Add(1)
	defer s.stats.waiting.Add(-1)
	t := &s.table
	t.mu.Lock()
	ino, err := s.join(o.Ctx, node, false)
	if !o.Claim() {
		if err == nil {
			t.letGo(ino)
		}
		t.unlock()
		return
	}
	if err == nil {
		s.answerOpen(o.Unique(), ino)
		return
	}
	t.unlock()
	// The predecessor may have counted a resent request.
	t.released(fuse.HandleOf(o.Unique()))
	s.openFailed(o.Unique(), node, err)
}

func (s *Server) openFailed(unique, node uint64, err error) {
	s.stats.failed.Add(1)
	if !errors.Is(err, fuse.ErrKilled) {
		s.log.Warn("open", "node", fmt.Sprintf("%x", node), "err", err)
	}
	s.conn.Fail(unique, errnoOf(err))
}

// answerOpen counts a file handle of an inode that is held and ready, and answers the
// request. It releases the caller's lock and hold.
func (s *Server) answerOpen(unique uint64, ino *inode) {
	t := &s.table
	fh := fuse.HandleOf(unique)
	err := t.opened(fh, ino)
	backing, node := ino.backing, ino.node
	t.letGo(ino)
	t.unlock()
	if err != nil {
		s.openFailed(unique, node, err)
		return
	}
	flags := uint32(fuse.OpenKeepCache | fuse.OpenNoFlush)
	if backing > 0 {
		flags = fuse.OpenPassthrough | fuse.OpenNoFlush
		s.stats.passthrough.Add(1)
	} else {
		s.stats.cached.Add(1)
	}
	var b [fuse.OpenLen]byte
	fuse.PutOpen(b[:], fh, flags, backing)
	if !s.conn.Answer(unique, b[:]) {
		t.released(fh) // the request is gone, so the kernel will send no RELEASE
	}
}

// join waits until an inode can be used, and returns it held. An inode can be used when
// it has a backing file or its content is open. With needContent its content must be
// open. The lock is held before and after, but released while join waits.
func (s *Server) join(ctx context.Context, node uint64, needContent bool) (*inode, error) {
	t := &s.table
	ino := t.get(node)
	t.hold(ino)
	if ino.content != nil || ino.backing > 0 && !needContent {
		return ino, nil
	}
	if ino.backing > 0 {
		t.letGo(ino)
		return nil, errors.New("a read of a file that the kernel reads itself")
	}
	if ino.flight == nil {
		if err := s.launch(ino); err != nil {
			t.letGo(ino)
			return nil, err
		}
	}
	f := ino.flight
	f.waiters++
	t.unlock()
	select {
	case <-f.done:
	case <-ctx.Done():
	}
	t.mu.Lock()
	f.waiters--
	err := f.err
	if !f.over {
		err = context.Cause(ctx)
		if f.waiters == 0 {
			f.over = true
			ino.flight = nil
			f.cancel(errAbandoned)
		}
	}
	if err == nil && ino.content == nil && needContent {
		err = errors.New("a read of a file that the kernel reads itself")
	}
	if err != nil {
		t.letGo(ino)
		return nil, err
	}
	return ino, nil
}

// identify determines the content of an inode. The lock is held.
func (s *Server) identify(ino *inode) bool {
	if !ino.named {
		ino.key, ino.size, ino.named = s.resolver.Resolve(ino.node)
	}
	return ino.named
}

// launch starts to open a content. The lock is held.
func (s *Server) launch(ino *inode) error {
	if s.refuse {
		return errors.New("no worker serves the pool")
	}
	if !s.identify(ino) {
		return fmt.Errorf("no image refers to the content any more: %w", fs.ErrNotExist)
	}
	if err := context.Cause(s.conn.Context()); err != nil {
		return err
	}
	key := ino.key
	ctx, cancel := watched(s.conn.Context(), s.o.Bound)
	f := &flight{done: make(chan struct{}), cancel: cancel}
	ino.flight = f
	// The waiting requests are answered at the bound, even if Open does not return.
	stop := context.AfterFunc(ctx, func() { s.deliver(ino, f, nil, context.Cause(ctx)) })
	s.conn.Go(func() {
		c, err := s.backend.Open(ctx, key)
		if err == nil && c == nil {
			err = errors.New("the backend opened nothing")
		}
		stop()
		s.deliver(ino, f, c, err)
		cancel(errDone)
	})
	return nil
}

// deliver ends a flight with a content or an error. It closes a content that comes too
// late.
func (s *Server) deliver(ino *inode, f *flight, c Content, err error) {
	t := &s.table
	t.mu.Lock()
	defer t.unlock()
	if f.over {
		if c != nil {
			t.closing = append(t.closing, c)
		}
		return
	}
	f.over, f.err = true, err
	ino.flight = nil
	close(f.done)
	if err != nil {
		return // the waiting requests release the inode
	}
	file := c.File()
	if ino.opens > 0 || file == nil || !t.passthrough() {
		ino.content = c // the mode stays while the inode is open
		return
	}
	if err := t.register(ino, file); err != nil {
		s.log.Warn("FUSE passthrough", "err", err)
		ino.content = c
		return
	}
	t.closing = append(t.closing, c)
}

func (s *Server) release(r *fuse.Request) {
	s.table.released(r.Handle)
	s.conn.Fail(r.Unique, 0)
}

// Evict is called when the file of a content is about to be deleted or was deleted. It
// makes the kernel release the file, at once if no process has it open, or else with its
// last user. A later open calls the backend again.
func (s *Server) Evict(name [32]byte) {
	for _, view := range s.resolver.Views() {
		s.table.evictNode(NodeID(Key{view, name}))
	}
}

// errRenewed ends the waits for a content that is renewed.
var errRenewed = errors.New("the known state of the content has changed")

// Renew is called when an index's description of a content is no longer believed. A
// process that has a part of the content open then reads what the backend opens for it
// next, and the kernel forgets the cached pages and the size. Renew waits for running
// reads. The backend makes them fail first. A complete file that the kernel reads itself
// stays, because it is the right content whatever an index says.
func (s *Server) Renew(k Key) {
	node := NodeID(k)
	s.table.renew(node)
	if s.conn.Context().Err() != nil {
		return
	}
	if err := s.conn.Invalidate(node); err != nil {
		s.log.Warn("a content is not renewed", "node", fmt.Sprintf("%x", node), "err", err)
	}
}

// startRead answers READ in a goroutine, because even a complete file may have to wait
// for the disk.
func (s *Server) startRead(r *fuse.Request) {
	s.stats.reads.Add(1)
	ctx, cancel := watched(s.conn.Context(), s.o.Bound)
	o := s.conn.Begin(r, ctx, cancel)
	go s.serveRead(o, r.Node, r.Off, r.Size)
}

// endRead answers a read that failed.
func (s *Server) endRead(o *fuse.Op, node uint64, err error) {
	if !o.Claim() {
		return
	}
	if !errors.Is(err, fuse.ErrKilled) {
		s.log.Warn("read", "node", fmt.Sprintf("%x", node), "err", err)
	}
	errno := errnoOf(err)
	if errno == unix.ENOENT {
		errno = unix.EIO // a process does not expect a read to report a missing file
	}
	s.conn.Fail(o.Unique(), errno)
}
