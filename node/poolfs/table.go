package poolfs

import (
	"container/list"
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"example.org/slipway/node/fuse"
)

// table is what the server knows about files that are open or registered with the kernel.
// An inode is in passthrough mode while it has a backing id. Otherwise it is in cached
// mode while it has opens. Only an inode without users can change its mode.
type table struct {
	o   *Options
	slg *slog.Logger

	mu     sync.Mutex // held during system calls that do not wait: calls that register files or write the log
	log    *stateLog
	conn   struct{ minor, flags uint64 }
	ready  bool // INIT is done
	master int  // descriptor for registering files
	broken bool // files cannot be registered at all: every new inode is in cached mode
	lastID uint64

	inodes map[uint64]*inode
	opens  map[uint64]*inode // by file handle
	idle   list.List         // of *inode with a backing id and no users, the longest unused first

	closing []Content // to be closed after unlock
}

// inode is a file with users, or one with a backing id.
type inode struct {
	node    uint64
	backing int32     // > 0: passthrough mode
	content Content   // cached mode; nil after a hand-over or a renewal, until it is needed
	stale   []Content // replaced by a renewal; reads may still use them
	key     Key
	size    int64
	named   bool    // key and size are known, as they are when there is a content
	opens   int     // live file handles
	pending int     // requests that are about to use the inode
	flight  *flight // opening of the content
	evict   bool    // the file was deleted: close the backing id with the last user
	elem    *list.Element
}

// flight is one call of Backend.Open. All requests that need the content wait for it.
type flight struct {
	done    chan struct{} // closed when err is set or the inode has what the requests need
	err     error
	over    bool // delivered or abandoned
	waiters int
	cancel  context.CancelCauseFunc
}

func (t *table) load(path string, conn uint32, o *Options) error {
	t.o, t.slg = o, o.Log
	t.inodes, t.opens = map[uint64]*inode{}, map[uint64]*inode{}
	t.idle.Init()
	var err error
	var s snapshot
	if t.log, s, err = openState(path, conn, t.snapshot); err != nil {
		return err
	}
	t.conn.minor, t.conn.flags, t.ready, t.lastID = s.minor, s.flags, s.inited, s.lastID
	for node, id := range s.backing {
		t.get(node).backing = id
	}
	for fh, node := range s.opens {
		ino := t.get(node)
		ino.opens++
		t.opens[fh] = ino
	}
	for _, ino := range t.inodes {
		if ino.opens == 0 {
			ino.elem = t.idle.PushBack(ino)
		}
	}
	return nil
}

// snapshot returns the whole state. The lock is held.
func (t *table) snapshot() snapshot {
	s := snapshot{minor: t.conn.minor, flags: t.conn.flags, inited: t.ready, lastID: t.lastID,
		backing: make(map[uint64]int32), opens: make(map[uint64]uint64, len(t.opens))}
	for node, ino := range t.inodes {
		if ino.backing > 0 {
			s.backing[node] = ino.backing
		}
	}
	for fh, ino := range t.opens {
		s.opens[fh] = ino.node
	}
	return s
}

// settled returns what a predecessor agreed on in INIT, or nil if there was none.
func (t *table) settled() *fuse.Settled {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.ready {
		return nil
	}
	return &fuse.Settled{Minor: t.conn.minor, Flags: t.conn.flags}
}

func (t *table) setInit(s fuse.Settled) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.log.append(recInit, s.Minor, s.Flags); err != nil {
		return err
	}
	t.conn.minor, t.conn.flags, t.ready = s.Minor, s.Flags, true
	return nil
}

// passthrough reports whether new inodes may be in passthrough mode. The lock is held.
func (t *table) passthrough() bool {
	return t.conn.flags&fuse.FlagPassthrough != 0 && !t.o.NoPassthrough && !t.broken
}

// unlock releases the lock and then closes what is no longer used.
func (t *table) unlock() {
	c := t.closing
	t.closing = nil
	t.mu.Unlock()
	for _, c := range c {
		if err := c.Close(); err != nil {
			t.slg.Warn("close a content", "err", err)
		}
	}
}

func (t *table) get(node uint64) *inode {
	ino := t.inodes[node]
	if ino == nil {
		ino = &inode{node: node}
		t.inodes[node] = ino
	}
	return ino
}

// hold keeps an inode unchanged until letGo. The lock is held.
func (t *table) hold(ino *inode) {
	ino.pending++
	if ino.elem != nil {
		t.idle.Remove(ino.elem)
		ino.elem = nil
	}
}

// letGo undoes one hold. The lock is held.
func (t *table) letGo(ino *inode) {
	if ino.pending--; ino.pending == 0 {
		t.closing = append(t.closing, ino.stale...)
		ino.stale = nil
	}
	t.settle(ino)
}

// settle updates an inode that may have lost its last user. The lock is held.
func (t *table) settle(ino *inode) {
	if ino.pending > 0 || ino.opens > 0 || ino.flight != nil {
		return
	}
	if ino.content != nil {
		t.closing = append(t.closing, ino.content)
		ino.content = nil
	}
	if ino.backing > 0 {
		ino.elem = t.idle.PushBack(ino)
	}
	if ino.backing == 0 || ino.evict {
		t.forget(ino)
	}
	t.trim(t.o.IdleBacking)
}

// trim closes the backing ids of all but the last n inodes without users. The lock is held.
func (t *table) trim(n int) {
	for t.idle.Len() > n && t.forget(t.idle.Front().Value.(*inode)) {
	}
}

// forget drops an inode without users, and its backing id. It returns false if the inode
// has to stay. The lock is held.
func (t *table) forget(ino *inode) bool {
	if ino.backing > 0 {
		// The log is written first: a successor would use an id that is closed in the
		// kernel but not in the log, and fail.
		err := t.log.append(recClosed, ino.node, 0)
		if err == nil {
			err = t.closeID(uint32(ino.backing))
		}
		if err != nil {
			t.slg.Error("close a backing file", "err", err)
			return false
		}
		ino.backing = 0
	}
	if ino.elem != nil {
		t.idle.Remove(ino.elem)
		ino.elem = nil
	}
	delete(t.inodes, ino.node)
	t.compact()
	return true
}

func (t *table) compact() {
	if !t.log.due(len(t.inodes) + len(t.opens)) {
		return
	}
	if err := t.log.compact(); err != nil {
		t.slg.Error("compact the pool's state", "err", err)
	}
}

// register makes a complete file the backing file of an inode without users. The lock is
// held.
func (t *table) register(ino *inode, f *os.File) error {
	fd, err := fuse.RawFD(f)
	if err != nil {
		return err
	}
	m := struct { // struct fuse_backing_map
		fd    int32
		flags uint32
		pad   uint64
	}{fd: int32(fd)}
	id, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(t.master), iocBackingOpen, uintptr(unsafe.Pointer(&m)))
	if errno != 0 {
		// If the privilege is missing, or the cache directory lies on a stacked file
		// system, registering fails for every file.
		t.broken = errno == unix.EPERM || errno == unix.ELOOP || errno == unix.EOPNOTSUPP || errno == unix.ENOTTY
		return errno
	}
	if err := t.log.append(recBacking, ino.node, uint64(id)); err != nil {
		return errors.Join(err, t.closeID(uint32(id)))
	}
	ino.backing, ino.evict = int32(id), false
	t.lastID = max(t.lastID, uint64(id))
	return nil
}

func (t *table) closeID(id uint32) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(t.master), iocBackingClose, uintptr(unsafe.Pointer(&id))); errno != 0 {
		return errno
	}
	return nil
}

// lostIDs is how many ids after the last known one are tried. A killed server can have
// left one id that it registered and did not log. So can each of its predecessors that
// logged nothing either.
const lostIDs = 64

// reclaim closes backing files that a killed predecessor registered but did not log. This
// works because the kernel assigns ids in ascending order and files are registered one at
// a time. If passthrough is no longer wanted, reclaim also closes the backing files
// without users.
func (t *table) reclaim() {
	t.mu.Lock()
	defer t.unlock()
	if t.conn.flags&fuse.FlagPassthrough == 0 {
		return
	}
	last := t.lastID
	for id := last + 1; id <= last+lostIDs; id++ {
		if t.closeID(uint32(id)) == nil {
			t.lastID = id
		}
	}
	if t.lastID > last {
		if err := t.log.append(recLastID, t.lastID, 0); err != nil {
			t.slg.Error("note the last backing file", "err", err)
		}
	}
	if t.o.NoPassthrough {
		t.trim(0)
	}
}

// opened counts a file handle and logs it for a successor. Both must happen before the
// open is answered. The lock and a hold on the inode are held. The handle is derived from
// the number of the request, so a resent request counts once.
func (t *table) opened(fh uint64, ino *inode) error {
	if t.opens[fh] != nil {
		return nil
	}
	if err := t.log.append(recOpen, ino.node, fh); err != nil {
		return err
	}
	t.opens[fh] = ino
	ino.opens++
	t.compact()
	return nil
}

// released undoes opened. An unknown handle has been released already.
func (t *table) released(fh uint64) {
	t.mu.Lock()
	defer t.unlock()
	ino := t.opens[fh]
	if ino == nil {
		return
	}
	if err := t.log.append(recRelease, 0, fh); err != nil {
		t.slg.Error("note the release of a file", "err", err) // a successor will believe that it is open
	}
	delete(t.opens, fh)
	ino.opens--
	t.settle(ino)
	t.compact()
}

// evictNode closes the backing file of a node, either now or with the node's last user.
func (t *table) evictNode(node uint64) {
	t.mu.Lock()
	defer t.unlock()
	ino := t.inodes[node]
	if ino == nil || ino.backing == 0 {
		return
	}
	if ino.evict = true; ino.elem != nil {
		t.forget(ino)
	}
}

// renew makes a node request its content again, unless the kernel reads the content
// itself.
func (t *table) renew(node uint64) {
	t.mu.Lock()
	defer t.unlock()
	ino := t.inodes[node]
	if ino == nil {
		return
	}
	if f := ino.flight; f != nil {
		f.over, f.err = true, errRenewed
		ino.flight = nil
		close(f.done)
		f.cancel(errRenewed)
	}
	ino.named = false
	if ino.content == nil {
		return
	}
	t.hold(ino)
	ino.stale, ino.content = append(ino.stale, ino.content), nil
	t.letGo(ino)
}

func (t *table) close() error {
	t.mu.Lock()
	defer t.unlock()
	for _, ino := range t.inodes {
		if ino.content != nil {
			t.closing = append(t.closing, ino.content)
			ino.content = nil
		}
		t.closing = append(t.closing, ino.stale...)
		ino.stale = nil
	}
	if t.log == nil {
		return nil
	}
	return t.log.close()
}
