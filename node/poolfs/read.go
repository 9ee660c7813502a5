package poolfs

import (
	"context"
	"errors"
	"fmt"
	"io"

	"example.org/slipway/node/fuse"
)

func (s *Server) serveRead(o *fuse.Op, node uint64, off int64, size uint32) {
	defer s.conn.End(o)
	// The process gets its answer when the bound passes or the process is killed, even if
	// the content ignores the context.
	stop := context.AfterFunc(o.Ctx, func() { s.endRead(o, node, context.Cause(o.Ctx)) })
	defer stop()
	t := &s.table
	t.mu.Lock()
	ino, err := s.join(o.Ctx, node, true)
	if err != nil {
		t.unlock()
		s.endRead(o, node, err)
		return
	}
	c, total := ino.content, ino.size
	t.unlock()
	if err := s.readContent(o, c, total, off, size); err != nil {
		s.endRead(o, node, err)
	}
	t.mu.Lock()
	t.letGo(ino)
	t.unlock()
}

// readContent reads and answers. It is an error if bytes are missing, because the kernel
// would take a short answer for the end of the file and show zeros.
func (s *Server) readContent(o *fuse.Op, c Content, total, off int64, size uint32) error {
	if off < 0 || int64(size) > int64(s.o.MaxReadBytes) {
		return fmt.Errorf("read of %d bytes at %d", size, off)
	}
	n := int(min(int64(size), max(total-off, 0)))
	if err := s.readMem.Acquire(o.Ctx, int64(n)); err != nil {
		return context.Cause(o.Ctx)
	}
	defer s.readMem.Release(int64(n))
	buf := s.readBuf.Get().(*[]byte)
	defer s.readBuf.Put(buf)
	b := (*buf)[:fuse.OutHeaderLen+n]
	if err := readFull(o.Ctx, c, b[fuse.OutHeaderLen:], off); err != nil {
		return err
	}
	if o.Claim() {
		s.stats.readBytes.Add(uint64(n))
		s.conn.Answer(o.Unique(), b)
	}
	return nil
}

func readFull(ctx context.Context, c Content, p []byte, off int64) error {
	var n int
	var err error
	if f := c.File(); f != nil {
		n, err = f.ReadAt(p, off)
	} else {
		n, err = c.ReadAt(ctx, p, off)
	}
	if n == len(p) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("%d bytes of %d at %d: %w", n, len(p), off, err)
}
