package starts

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"example.org/slipway/gear"
)

const (
	// eventBytes is the fixed part of a fanotify event: length 4, version 1,
	// reserved 1, length of the fixed part 2, mask 8, descriptor 4, process 4.
	eventBytes = 24
	// infoBytes is the fixed part of the information that names a file in an event: type 1,
	// padding 1, length 2, file system 8. The directory's handle and the name follow.
	infoBytes = 12
	// handleBytes is the fixed part of a handle: length of the rest 4, type 4.
	handleBytes = 8
	// maxEvents bounds how many opens of one container are processed. Each costs some
	// microseconds.
	maxEvents = 100_000
	// maxWatchedDirs bounds how many directories of a container are watched. Each keeps an
	// inode in memory, and takes about 15 microseconds to begin with.
	maxWatchedDirs = 20_000
	// handleFID makes name_to_handle_at return the handle that events have: AT_HANDLE_FID of
	// Linux 6.5.
	handleFID = 0x200
)

// Watch sees the opens in an overlay by fanotify, including opens of files that the kernel
// opens without asking the pool. It watches directories, and the events name files by their
// directory and name. Events that carry an open file would make this process open the file
// in its own pool, and if the process were killed meanwhile, it could not end before another
// process serves the pool. Needs Linux 6.6.
type Watch struct {
	mount string
	index *gear.Index
	saw   func(gear.Name)
	f     *os.File
	fd    int // of f, which stays in non-blocking mode
	self  int // our process, whose opens are not counted as the container's
	// dirs has the paths of the watched directories by their handles. more has the paths of
	// directories that are not watched yet.
	dirs map[string]string
	more []string
	done chan struct{}
	// partial says that opens may have been missed. It is written before done is closed.
	partial bool
}

// NewWatch starts to watch the overlay that is mounted at a path and shows the tree of an
// index. saw is called, by Run, for each open of a content. Until Run has begun, only the
// directories with a content for which local returns true are watched: opens of other
// contents ask the pool for them. Run must be called.
func NewWatch(mount string, x *gear.Index, local func(gear.Name) bool, saw func(gear.Name)) (*Watch, error) {
	fd, err := unix.FanotifyInit(unix.FAN_CLASS_NOTIF|unix.FAN_CLOEXEC|unix.FAN_NONBLOCK|unix.FAN_UNLIMITED_MARKS|unix.FAN_REPORT_DIR_FID|unix.FAN_REPORT_NAME, 0)
	if err != nil {
		return nil, fmt.Errorf("fanotify: %w", err)
	}
	w := &Watch{mount: mount, index: x, saw: saw, fd: fd, f: os.NewFile(uintptr(fd), "fanotify"), self: os.Getpid(),
		dirs: map[string]string{}, done: make(chan struct{})}
	if err := w.begin(local); err != nil {
		return nil, errors.Join(err, w.f.Close())
	}
	return w, nil
}

// Cancel ends the watch soon.
func (w *Watch) Cancel() { _ = w.f.SetReadDeadline(time.Now()) }

// Stop ends the watch after the events so far are processed. It reports whether every open
// was seen since the watch began.
func (w *Watch) Stop() bool {
	w.Cancel()
	<-w.done
	return !w.partial
}

// Run watches the other directories and processes events until the watch is stopped, and then the events that are still
// queued.
func (w *Watch) Run() {
	defer close(w.done)
	defer w.f.Close()
	w.partial = w.watchAll(w.more) != nil
	buf := make([]byte, 16<<10)
	stopped := false
	for seen := 0; seen < maxEvents; {
		var n int
		var err error
		if !stopped {
			n, err = w.f.Read(buf)
			stopped = errors.Is(err, os.ErrDeadlineExceeded)
		}
		if stopped {
			n, err = unix.Read(w.fd, buf)
		}
		if err != nil || n <= 0 {
			return
		}
		seen += w.events(buf[:n])
	}
	w.partial = true
}

// begin watches the directories that have a local content, and collects the others.
func (w *Watch) begin(local func(gear.Name) bool) error {
	now := map[string]bool{}
	for i := range w.index.Entries {
		e := &w.index.Entries[i]
		name, ok := w.content(e)
		if !ok {
			continue
		}
		dir := path.Dir(e.Path)
		known, seen := now[dir]
		if !seen {
			w.more = append(w.more, dir)
		}
		now[dir] = known || local(name)
	}
	var first []string
	w.more = slices.DeleteFunc(w.more, func(dir string) bool {
		if now[dir] {
			first = append(first, dir)
		}
		return now[dir]
	})
	return w.watchAll(first)
}

// watchAll watches directories. A directory that the container has removed meanwhile is
// left out.
func (w *Watch) watchAll(dirs []string) error {
	if len(dirs) > maxWatchedDirs-len(w.dirs) {
		return fmt.Errorf("more than %d directories", maxWatchedDirs)
	}
	root, err := unix.Open(w.mount, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("watch %s: %w", w.mount, err)
	}
	defer unix.Close(root)
	for _, dir := range dirs {
		if err := w.watch(root, dir); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) && !errors.Is(err, unix.ELOOP) {
			return fmt.Errorf("watch %s in %s: %w", dir, w.mount, err)
		}
	}
	return nil
}

// watch begins to watch one directory. The container may have replaced parts of its path by
// symbolic links, which must not lead anywhere.
func (w *Watch) watch(root int, dir string) error {
	fd, err := unix.Openat2(root, dir, &unix.OpenHow{Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC | unix.O_NOATIME,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV})
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	h, _, err := unix.NameToHandleAt(fd, "", unix.AT_EMPTY_PATH|handleFID)
	if err != nil {
		return err
	}
	if err := unix.FanotifyMark(w.fd, unix.FAN_MARK_ADD|unix.FAN_MARK_ONLYDIR, unix.FAN_OPEN|unix.FAN_EVENT_ON_CHILD, fd, ""); err != nil {
		return err
	}
	w.dirs[handleKey(h.Type(), h.Bytes())] = dir
	return nil
}

// handleKey returns the key of a file handle in Watch.dirs.
func handleKey(kind int32, handle []byte) string {
	return string(binary.NativeEndian.AppendUint32(nil, uint32(kind))) + string(handle)
}

// events notes the events of one read and returns how many there were.
func (w *Watch) events(b []byte) int {
	n := 0
	for ; len(b) >= eventBytes; n++ {
		size := int(binary.NativeEndian.Uint32(b))
		if size < eventBytes || size > len(b) {
			break
		}
		mask, pid := binary.NativeEndian.Uint64(b[8:]), int(int32(binary.NativeEndian.Uint32(b[20:])))
		if mask&unix.FAN_Q_OVERFLOW != 0 {
			w.partial = true
		} else if pid != w.self {
			w.event(b[eventBytes:size])
		}
		b = b[size:]
	}
	return n + 1
}

// event notes the open of the file that an event names.
func (w *Watch) event(info []byte) {
	dir, base, ok := parseEvent(info)
	if !ok {
		return
	}
	at, ok := w.dirs[dir]
	if !ok {
		return
	}
	i, ok := w.index.Lookup(strings.TrimPrefix(path.Join(at, base), "./"))
	if !ok {
		return // the container made it
	}
	if name, ok := w.content(&w.index.Entries[i]); ok {
		w.saw(name)
	}
}

// parseEvent returns the key of the directory and the name of the file that an event
// names.
func parseEvent(info []byte) (dir, base string, ok bool) {
	if len(info) < infoBytes+handleBytes || info[0] != unix.FAN_EVENT_INFO_TYPE_DFID_NAME {
		return "", "", false
	}
	h := info[infoBytes:min(len(info), max(infoBytes, int(binary.NativeEndian.Uint16(info[2:]))))]
	if len(h) < handleBytes {
		return "", "", false
	}
	n := binary.NativeEndian.Uint32(h)
	kind, rest := int32(binary.NativeEndian.Uint32(h[4:])), h[handleBytes:]
	if uint64(n) > uint64(len(rest)) {
		return "", "", false
	}
	name, _, ok := bytes.Cut(rest[n:], []byte{0})
	return handleKey(kind, rest[:n]), string(name), ok
}

// content returns the content of an entry, or false if the entry is no file or is empty.
func (w *Watch) content(e *gear.Entry) (gear.Name, bool) {
	if e.File < 0 || w.index.Files[e.File].Size == 0 {
		return gear.Name{}, false
	}
	return w.index.Files[e.File].Name, true
}
