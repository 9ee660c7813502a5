package gearfs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"example.org/slipway/gear"
	"example.org/slipway/gear/rootfs"
)

const (
	// eventBytes is the fixed part of a fanotify event: length 4, version 1,
	// reserved 1, length of the fixed part 2, mask 8, descriptor 4, process 4.
	eventBytes = 24
	// maxEvents bounds how many opens of one container are processed. Each costs some
	// microseconds.
	maxEvents = 100_000
)

// opensWatch sees the opens in a container's overlay by fanotify, including opens of
// files that the kernel opens without asking the pool.
type opensWatch struct {
	s     *Service
	c     *container
	mount string
	// index is read at the first open, so that a start does not wait for it. It returns
	// nil if the index could not be read.
	index func() *gear.Index
	// fd is the descriptor of f, which stays in non-blocking mode.
	fd   int
	f    *os.File
	self int // our process, whose opens are not counted as the container's
	done chan struct{}
}

// watchOpens starts to watch the file system mounted at a path.
func (s *Service) watchOpens(c *container, mount string) (*opensWatch, error) {
	fd, err := unix.FanotifyInit(unix.FAN_CLASS_NOTIF|unix.FAN_CLOEXEC|unix.FAN_NONBLOCK, unix.O_RDONLY|unix.O_LARGEFILE|unix.O_CLOEXEC|unix.O_NOATIME)
	if err != nil {
		return nil, fmt.Errorf("fanotify: %w", err)
	}
	w := &opensWatch{s: s, c: c, mount: strings.TrimSuffix(mount, "/"), fd: fd, self: os.Getpid(),
		f: os.NewFile(uintptr(fd), "fanotify"), done: make(chan struct{})}
	w.index = sync.OnceValue(func() *gear.Index {
		x, err := s.readIndex(c.img)
		if err != nil {
			s.log.Warn("opens of a container's cached files cannot be recorded", "container", c.id, "err", err)
		}
		return x
	})
	if err := unix.FanotifyMark(fd, unix.FAN_MARK_ADD|unix.FAN_MARK_FILESYSTEM, unix.FAN_OPEN, unix.AT_FDCWD, mount); err != nil {
		return nil, errors.Join(fmt.Errorf("watch %s: %w", mount, err), w.f.Close())
	}
	return w, nil
}

// stop ends the watch after the events so far are processed.
func (w *opensWatch) stop() {
	_ = w.f.SetReadDeadline(time.Now())
	<-w.done
}

// run processes events until the watch is stopped, and then those that are still queued:
// as long as one is queued, the overlay cannot be unmounted.
func (w *opensWatch) run() {
	defer close(w.done)
	defer w.f.Close()
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
}

// events notes the events of one read and returns how many there were.
func (w *opensWatch) events(b []byte) int {
	n := 0
	for ; len(b) >= eventBytes; n++ {
		size := int(binary.NativeEndian.Uint32(b))
		fd, pid := int(int32(binary.NativeEndian.Uint32(b[16:]))), int(int32(binary.NativeEndian.Uint32(b[20:])))
		if fd >= 0 {
			if pid != w.self {
				w.event(fd)
			}
			_ = unix.Close(fd)
		}
		if size < eventBytes || size > len(b) {
			break
		}
		b = b[size:]
	}
	return n + 1
}

// event notes the open of the file that fd refers to.
func (w *opensWatch) event(fd int) {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size == 0 {
		return
	}
	path, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	if err != nil {
		return
	}
	name, ok := w.resolve(path, &st)
	if !ok {
		return // not a file of the image, or changed since
	}
	w.c.mu.Lock()
	defer w.c.mu.Unlock()
	if w.c.rec != nil {
		w.c.saw(name)
	}
}

// resolve finds the content of a path. The kernel reports the path below the mount that
// was used. This is our mount, the container's root, or a bind mount that the container's
// runtime made. So resolve removes leading parts until the rest is a file of that size
// and time.
func (w *opensWatch) resolve(path string, st *unix.Stat_t) (gear.Name, bool) {
	x := w.index()
	if x == nil {
		return gear.Name{}, false
	}
	rest := strings.TrimPrefix(strings.TrimPrefix(path, w.mount), "/")
	for {
		if i, ok := x.Lookup(rest); ok {
			e := &x.Entries[i]
			if e.Type == rootfs.HardLink {
				if t, ok := x.Lookup(e.Link); ok {
					e = &x.Entries[t]
				}
			}
			if e.Type == rootfs.File && e.Size == st.Size && e.Sec == st.Mtim.Sec && e.File >= 0 {
				return x.Files[e.File].Name, true
			}
		}
		slash := strings.IndexByte(rest, '/')
		if slash < 0 {
			return gear.Name{}, false
		}
		rest = rest[slash+1:]
	}
}
