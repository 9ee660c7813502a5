package faultfs

import (
	"context"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// node is a file or directory. Operations that it does not define pass through.
type node struct {
	*fs.LoopbackNode
	f *FS
}

var (
	_ fs.NodeWrapChilder    = (*node)(nil)
	_ fs.NodeCreater        = (*node)(nil)
	_ fs.NodeOpener         = (*node)(nil)
	_ fs.NodeOpendirHandler = (*node)(nil)
	_ fs.NodeMkdirer        = (*node)(nil)
	_ fs.NodeRenamer        = (*node)(nil)
	_ fs.NodeLinker         = (*node)(nil)
	_ fs.NodeUnlinker       = (*node)(nil)
	_ fs.NodeRmdirer        = (*node)(nil)
	_ fs.NodeSetattrer      = (*node)(nil)
)

// WrapChild makes every node of the tree a node of this package.
func (n *node) WrapChild(_ context.Context, ops fs.InodeEmbedder) fs.InodeEmbedder {
	return &node{LoopbackNode: ops.(*fs.LoopbackNode), f: n.f}
}

// path returns the path of the node, or of a name in it, below the root.
func (n *node) path(name ...string) string {
	return path.Join(append([]string{n.Path(nil)}, name...)...)
}

// backing returns the path of a name in the node in the backing directory.
func (n *node) backing(name string) string { return filepath.Join(n.f.backing, n.path(name)) }

// meet calls FS.meet for the node itself or a name in it.
func (n *node) meet(op Op, name ...string) fault {
	return n.f.meet(op, func() []string { return []string{n.path(name...)} })
}

func (n *node) Create(ctx context.Context, name string, flags uint32, mode uint32, out *fuse.EntryOut) (*fs.Inode, fs.FileHandle, uint32, syscall.Errno) {
	x := n.meet(Create, name)
	if x.stops() {
		return nil, nil, 0, x.err
	}
	_, statErr := os.Lstat(n.backing(name))
	inode, fh, _, errno := n.LoopbackNode.Create(ctx, name, flags, mode, out)
	if errno != 0 {
		return nil, nil, 0, errno
	}
	if statErr != nil {
		n.f.names.made(n.backing(name))
	}
	if x.err != 0 {
		fh.(*fs.LoopbackFile).Release(ctx)
		return nil, nil, 0, x.err
	}
	h, fuseFlags := n.f.newFile(inode.Operations().(*node), fh, name)
	return inode, h, fuseFlags, 0
}

func (n *node) Open(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	fh, _, errno := n.LoopbackNode.Open(ctx, flags)
	if errno != 0 {
		return nil, 0, errno
	}
	h, fuseFlags := n.f.newFile(n, fh, n.path())
	return h, fuseFlags, 0
}

// dir is an open directory.
type dir struct {
	fs.FileReaddirenter
	fs.FileReleasedirer
	fs.FileSeekdirer
	fs.FileFsyncdirer
	n *node
}

func (n *node) OpendirHandle(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	fh, fuseFlags, errno := n.LoopbackNode.OpendirHandle(ctx, flags)
	if errno != 0 {
		return nil, 0, errno
	}
	return dir{fh.(fs.FileReaddirenter), fh.(fs.FileReleasedirer), fh.(fs.FileSeekdirer), fh.(fs.FileFsyncdirer), n}, fuseFlags, 0
}

func (d dir) Fsyncdir(ctx context.Context, flags uint32) syscall.Errno {
	x := d.n.meet(SyncDir)
	if x.err == 0 {
		d.n.f.names.synced(filepath.Join(d.n.f.backing, d.n.path()))
	}
	if x.err != 0 || d.n.f.opts.Volatile {
		return x.err
	}
	return d.FileFsyncdirer.Fsyncdir(ctx, flags)
}

func (n *node) Mkdir(ctx context.Context, name string, mode uint32, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	x := n.meet(Create, name)
	if x.stops() {
		return nil, x.err
	}
	inode, errno := n.LoopbackNode.Mkdir(ctx, name, mode, out)
	if errno == 0 {
		n.f.names.made(n.backing(name))
	}
	return inode, x.or(errno)
}

func (n *node) Rename(ctx context.Context, name string, to fs.InodeEmbedder, newName string, flags uint32) syscall.Errno {
	x := n.f.meet(Rename, func() []string { return []string{n.path(name), to.(*node).path(newName)} })
	if x.stops() {
		return x.err
	}
	from, target := n.backing(name), to.(*node).backing(newName)
	replaced := n.f.names.keeping(target)
	errno := n.LoopbackNode.Rename(ctx, name, to, newName, flags)
	if errno == 0 {
		n.f.names.renamed(from, target, replaced)
	}
	if errno == 0 && x.err != 0 {
		// The library moves its own entry only if the rename reports success.
		n.MvChild(name, to.EmbeddedInode(), newName, true)
	}
	return x.or(errno)
}

func (n *node) Link(ctx context.Context, target fs.InodeEmbedder, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	x := n.meet(Link, name)
	if x.stops() {
		return nil, x.err
	}
	inode, errno := n.LoopbackNode.Link(ctx, target, name, out)
	if errno == 0 {
		n.f.names.made(n.backing(name))
	}
	return inode, x.or(errno)
}

func (n *node) Unlink(ctx context.Context, name string) syscall.Errno {
	x := n.meet(Unlink, name)
	if x.stops() {
		return x.err
	}
	path := n.backing(name)
	gone := n.f.names.keeping(path)
	errno := n.LoopbackNode.Unlink(ctx, name)
	if errno == 0 {
		n.f.names.removed(path, gone)
	}
	return x.or(errno)
}

func (n *node) Rmdir(ctx context.Context, name string) syscall.Errno {
	x := n.meet(Unlink, name)
	if x.stops() {
		return x.err
	}
	return x.or(n.LoopbackNode.Rmdir(ctx, name))
}

func (n *node) Setattr(ctx context.Context, fh fs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	size, resize := in.GetSize()
	if !resize {
		return n.LoopbackNode.Setattr(ctx, fh, in, out)
	}
	x := n.meet(Truncate)
	if x.stops() {
		return x.err
	}
	if h, ok := fh.(*file); ok && h.unsynced != nil {
		h.unsynced.truncate(int64(size))
	}
	return x.or(n.LoopbackNode.Setattr(ctx, fh, in, out))
}

// file is an open file.
type file struct {
	*fs.LoopbackFile
	n        *node
	unsynced *unsynced // nil unless the file system is volatile
}

var (
	_ fs.FileReader    = (*file)(nil)
	_ fs.FileWriter    = (*file)(nil)
	_ fs.FileFlusher   = (*file)(nil)
	_ fs.FileFsyncer   = (*file)(nil)
	_ fs.FileAllocater = (*file)(nil)
	_ fs.FileReleaser  = (*file)(nil)
)

// newFile returns the handle of an opened file, and the flags that say how the kernel must treat
// it.
func (f *FS) newFile(n *node, fh fs.FileHandle, name string) (*file, uint32) {
	h := &file{LoopbackFile: fh.(*fs.LoopbackFile), n: n}
	if strings.HasSuffix(name, "-shm") {
		// Several connections map this file at once. They see each other's writes through
		// the kernel's cache, so its content must stay there when another connection
		// opens it. Other files are read anew after each open, so that rules for Read can
		// strike.
		return h, fuse.FOPEN_KEEP_CACHE
	}
	if f.opts.Volatile {
		h.unsynced = f.lossesOf(h)
	}
	return h, 0
}

// PassthroughFd keeps the kernel from bypassing this file system.
func (h *file) PassthroughFd() (int, bool) { return 0, false }

func (h *file) Read(ctx context.Context, buf []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	if x := h.n.meet(Read); x.err != 0 {
		return nil, x.err
	}
	return h.LoopbackFile.Read(ctx, buf, off)
}

func (h *file) Write(ctx context.Context, data []byte, off int64) (uint32, syscall.Errno) {
	x := h.n.meet(Write)
	if x.stops() {
		return 0, x.err
	}
	if x.short {
		data = data[:max(1, len(data)/2)]
	}
	var n uint32
	fd, _ := h.LoopbackFile.PassthroughFd()
	errno := h.unsynced.write(fd, off, int64(len(data)), func() (errno syscall.Errno) {
		n, errno = h.LoopbackFile.Write(ctx, data, off)
		return errno
	})
	return n, x.or(errno)
}

func (h *file) Fsync(ctx context.Context, flags uint32) syscall.Errno {
	x := h.n.meet(Sync)
	if h.unsynced != nil {
		h.unsynced.sync(x.err == 0)
		return x.err
	}
	if x.err != 0 {
		return x.err
	}
	return h.LoopbackFile.Fsync(ctx, flags)
}

func (h *file) Flush(ctx context.Context) syscall.Errno {
	x := h.n.meet(Flush)
	if x.stops() {
		return x.err
	}
	return x.or(h.LoopbackFile.Flush(ctx))
}

func (h *file) Allocate(ctx context.Context, off uint64, size uint64, mode uint32) syscall.Errno {
	x := h.n.meet(Allocate)
	if x.stops() {
		return x.err
	}
	return x.or(h.LoopbackFile.Allocate(ctx, off, size, mode))
}

func (h *file) Release(ctx context.Context) syscall.Errno {
	h.unsynced.released()
	return h.LoopbackFile.Release(ctx)
}
