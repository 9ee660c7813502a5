package volfs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"golang.org/x/sys/unix"

	"example.org/slipway/node/fuse"
	"example.org/slipway/volume/block"
)

// attrSeconds is how long the kernel may remember the attributes of a file, which do not
// change. The kernel asks for names each time, because names come and go.
const attrSeconds = 86400

// handle answers one request, here or in its own goroutine if it may have to wait.
func (s *Server) handle(r *fuse.Request) {
	switch r.Op {
	case fuse.OpLookup:
		s.lookup(r)
	case fuse.OpGetattr, fuse.OpSetattr:
		s.attributes(r)
	case fuse.OpOpen:
		s.openFile(r)
	case fuse.OpRelease:
		s.released(r.Handle)
		s.conn.Fail(r.Unique, 0)
	case fuse.OpRead:
		s.read(r)
	case fuse.OpWrite:
		s.write(r)
	case fuse.OpFsync, fuse.OpFlush:
		s.flush(r)
	case fuse.OpFallocate:
		s.fallocate(r)
	case fuse.OpReaddir:
		s.readdir(r)
	case fuse.OpStatfs:
		var b [fuse.StatfsLen]byte
		fuse.PutStatfs(b[:], maxName)
		s.conn.Answer(r.Unique, b[:])
	case fuse.OpOpendir:
		var b [fuse.OpenLen]byte
		s.conn.Answer(r.Unique, b[:])
	case fuse.OpReleasedir, fuse.OpFsyncdir, fuse.OpAccess, fuse.OpDestroy:
		s.conn.Fail(r.Unique, 0)
	case fuse.OpCreate, fuse.OpMknod, fuse.OpMkdir, fuse.OpSymlink, fuse.OpLink, fuse.OpUnlink, fuse.OpRmdir, fuse.OpRename, fuse.OpRename2:
		s.conn.Fail(r.Unique, unix.EPERM)
	default:
		s.conn.Fail(r.Unique, unix.ENOSYS) // the kernel does not ask again
	}
}

// attr returns what stat shows of a file.
func (f *file) attr() fuse.Attr {
	a := fuse.Attr{Node: f.node, Size: f.size, Mode: unix.S_IFREG | 0o400}
	if f.mapped().Writable {
		a.Mode |= 0o200
	}
	return a
}

func (s *Server) file(node uint64) *file {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.files[node]
}

func (s *Server) lookup(r *fuse.Request) {
	s.mu.Lock()
	f := s.named[string(r.Name)]
	s.mu.Unlock()
	if r.Node != fuse.RootNode || f == nil {
		s.conn.Fail(r.Unique, unix.ENOENT)
		return
	}
	var b [fuse.EntryLen]byte
	fuse.PutEntry(b[:], f.attr(), 0, attrSeconds)
	s.conn.Answer(r.Unique, b[:])
}

// attributes answers GETATTR, and SETATTR of attributes without effect: times.
func (s *Server) attributes(r *fuse.Request) {
	const harmless = 1<<4 | 1<<5 | 1<<6 | 1<<7 | 1<<8 | 1<<9 | 1<<10 // ATIME, MTIME, FH, both NOW, LOCKOWNER, CTIME
	a := fuse.Attr{Node: r.Node, Mode: unix.S_IFDIR | 0o700}
	if r.Node != fuse.RootNode {
		f := s.file(r.Node)
		if f == nil {
			s.conn.Fail(r.Unique, unix.ESTALE)
			return
		}
		a = f.attr()
	}
	if r.Op == fuse.OpSetattr && r.Valid&^harmless != 0 {
		s.conn.Fail(r.Unique, unix.EPERM)
		return
	}
	var b [fuse.AttrLen]byte
	fuse.PutAttr(b[:], a, attrSeconds)
	s.conn.Answer(r.Unique, b[:])
}

// readdir lists the files in order of node id. The offset of a file in the listing is its
// node id.
func (s *Server) readdir(r *fuse.Request) {
	s.mu.Lock()
	files := make([]*file, 0, len(s.files))
	for _, f := range s.files {
		if int64(f.node) > r.Off {
			files = append(files, f)
		}
	}
	s.mu.Unlock()
	slices.SortFunc(files, func(a, b *file) int { return cmp.Compare(a.node, b.node) })
	b := make([]byte, fuse.OutHeaderLen)
	limit := fuse.OutHeaderLen + int(min(r.Size, fuse.MaxRead))
	for _, f := range files {
		var ok bool
		if b, ok = fuse.AppendDirent(b, limit, f.attr(), f.node, f.mapped().Name); !ok {
			break
		}
	}
	s.conn.Answer(r.Unique, b)
}

// openFile answers OPEN without asking the storage.
func (s *Server) openFile(r *fuse.Request) {
	f := s.file(r.Node)
	if f == nil {
		s.conn.Fail(r.Unique, unix.ESTALE)
		return
	}
	writable := f.mapped().Writable
	if !writable && r.Flags&unix.O_ACCMODE != unix.O_RDONLY {
		s.conn.Fail(r.Unique, unix.EROFS)
		return
	}
	ok, err := s.opened(r.Handle, f)
	if err != nil {
		s.log.Error("open a volume's file", "err", err)
		s.conn.Fail(r.Unique, unix.EIO)
		return
	}
	if !ok {
		s.conn.Fail(r.Unique, unix.ESTALE)
		return
	}
	// A close requests nothing. Otherwise it would wait for the storage, and so would
	// each program that a process with the file open starts. FSYNC makes data durable,
	// and so do flushes of a loop device and Remove.
	flags := uint32(fuse.OpenNoFlush)
	if !writable {
		flags |= fuse.OpenKeepCache
	}
	var b [fuse.OpenLen]byte
	fuse.PutOpen(b[:], r.Handle, flags, 0)
	if !s.conn.Answer(r.Unique, b[:]) {
		s.released(r.Handle) // the request is gone, so nobody will release it
	}
}

// These are the sizes of the buffers for metadata and for what is read ahead.
const (
	smallIO = 64 << 10
	largeIO = fuse.MaxRead
)

func newBuffer(n int) *[]byte {
	b := make([]byte, fuse.OutHeaderLen+n)
	return &b
}

// bufferSize returns the size of the buffer for n bytes.
func bufferSize(n int) int64 {
	if n > smallIO {
		return largeIO
	}
	return smallIO
}

// buffer lends a buffer with room for a header and n bytes, up to fuse.MaxRead.
func (s *Server) buffer(n int) (b *[]byte, giveBack func()) {
	p := &s.small
	if bufferSize(n) > smallIO {
		p = &s.large
	}
	b = p.Get().(*[]byte)
	return b, func() { p.Put(b) }
}

func (s *Server) read(r *fuse.Request) {
	f := s.file(r.Node)
	switch {
	case f == nil:
		s.conn.Fail(r.Unique, unix.ESTALE)
		return
	case r.Off < 0 || r.Size > fuse.MaxRead:
		s.conn.Fail(r.Unique, unix.EINVAL)
		return
	}
	off, n := r.Off, int(min(int64(r.Size), max(f.size-r.Off, 0)))
	s.begin(r, f, func(o *fuse.Op) error {
		weight := bufferSize(n)
		if err := f.memory.Acquire(o.Ctx, weight); err != nil {
			return context.Cause(o.Ctx)
		}
		defer f.memory.Release(weight)
		buf, giveBack := s.buffer(n)
		defer giveBack()
		b := (*buf)[:fuse.OutHeaderLen+n]
		err := f.retry(o.Ctx, func(v block.Volume) error { return readFull(v, b[fuse.OutHeaderLen:], off) })
		if err == nil && o.Claim() {
			f.readBytes.Add(int64(n))
			s.conn.Answer(o.Unique(), b)
		}
		return err
	})
}

// readFull reads all of p. Anything less is an error, because the kernel would take it
// for the end of the file and show zeros.
func readFull(v block.Volume, p []byte, off int64) error {
	n, err := v.ReadAt(p, off)
	if n == len(p) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("read %d bytes at %d: %w", len(p), off, err)
}

// writable returns the file of a request that changes it, or refuses the request.
func (s *Server) writable(r *fuse.Request) *file {
	f := s.file(r.Node)
	switch {
	case f == nil:
		s.conn.Fail(r.Unique, unix.ESTALE)
	case !f.mapped().Writable:
		s.conn.Fail(r.Unique, unix.EROFS)
	case r.Off < 0 || r.Len < 0:
		s.conn.Fail(r.Unique, unix.EINVAL)
	default:
		return f
	}
	return nil
}

// write answers WRITE. It holds as many writes in memory as the kernel sends at once. The
// queue depth of the loop device bounds their number.
func (s *Server) write(r *fuse.Request) {
	f := s.writable(r)
	if f == nil {
		return
	}
	if r.Off >= f.size && len(r.Data) > 0 || len(r.Data) > fuse.MaxWrite {
		s.conn.Fail(r.Unique, unix.ENOSPC)
		return
	}
	off, n := r.Off, int(max(min(int64(len(r.Data)), f.size-r.Off), 0))
	buf, giveBack := s.buffer(n)
	data := (*buf)[:n]
	copy(data, r.Data)
	s.begin(r, f, func(o *fuse.Op) error {
		defer giveBack()
		err := f.retry(o.Ctx, func(v block.Volume) error {
			m, err := v.WriteAt(data, off)
			if err == nil && m < len(data) {
				err = io.ErrShortWrite
			}
			if err != nil {
				return fmt.Errorf("write %d bytes at %d: %w", n, off, err)
			}
			return nil
		})
		if err == nil && o.Claim() {
			f.writtenBytes.Add(int64(n))
			var b [fuse.WriteLen]byte
			fuse.PutWrite(b[:], uint32(n))
			s.conn.Answer(o.Unique(), b[:])
		}
		return err
	})
}

// flush answers FSYNC, and FLUSH if the kernel ignores OpenNoFlush.
func (s *Server) flush(r *fuse.Request) {
	f := s.file(r.Node)
	if f == nil || !f.mapped().Writable {
		s.conn.Fail(r.Unique, 0)
		return
	}
	s.change(r, f, func(v block.Volume) error { return v.Flush() })
}

// fallocate answers FALLOCATE. Punching a hole and writing zeros are the same here, and
// space is never reserved.
func (s *Server) fallocate(r *fuse.Request) {
	f := s.writable(r)
	if f == nil {
		return
	}
	off, n := r.Off, r.Len
	switch {
	case n > f.size-off && r.Flags&unix.FALLOC_FL_KEEP_SIZE == 0:
		s.conn.Fail(r.Unique, unix.ENOSPC)
		return
	case r.Flags&(unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_ZERO_RANGE) != 0:
		n = min(n, f.size-off)
	case r.Flags&^unix.FALLOC_FL_KEEP_SIZE == 0:
		n = 0
	default:
		s.conn.Fail(r.Unique, unix.EOPNOTSUPP)
		return
	}
	if n <= 0 {
		s.conn.Fail(r.Unique, 0)
		return
	}
	s.change(r, f, func(v block.Volume) error { return v.Zero(off, n) })
}

// change answers a request whose answer has no body.
func (s *Server) change(r *fuse.Request, f *file, do func(block.Volume) error) {
	s.begin(r, f, func(o *fuse.Op) error {
		err := f.retry(o.Ctx, do)
		if err == nil && o.Claim() {
			s.conn.Fail(o.Unique(), 0)
		}
		return err
	})
}
