package start

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"example.org/slipway/integration/internal/corpus"
	"example.org/slipway/integration/internal/tasks"
)

// Need is what a task needs of its image. It is found by watching the task on overlayfs.
// It consists of the regular files that the task opens or executes, each content once. A
// large file can be read in parts, so only the part that was in memory afterwards counts.
type Need struct {
	Image string `json:"image"`
	Task  string `json:"task"`
	Files int    `json:"files"`
	// Bytes is the size of these files. Touched is the part of it that counts as needed.
	// Compressed is the size of that part, with each file compressed separately.
	Bytes      int64 `json:"bytes"`
	Touched    int64 `json:"touched"`
	Compressed int64 `json:"compressed"`
	// Index is the size of the layers' indexes. Meta is the size of the manifest and the
	// configuration.
	Index int64 `json:"index"`
	Meta  int64 `json:"meta"`
}

// WireBytes returns the least number of bytes that must come over the wire.
func (n Need) WireBytes() int64 { return n.Compressed + n.Index + n.Meta }

func (n Need) String() string {
	return fmt.Sprintf("%s, %s task, needs %d files, %.1f of %.1f MB, %.1f MB compressed, and indexes of %.2f MB",
		n.Image, n.Task, n.Files, float64(n.Touched)/1e6, float64(n.Bytes)/1e6, float64(n.Compressed)/1e6, float64(n.Index)/1e6)
}

const (
	// largeFile is the size from which a file is counted in parts, and partBytes is the
	// size of the parts. Both sizes are from docs/formats/gear-index.md.
	largeFile = 4 << 20
	partBytes = 1 << 20
)

// need watches a task in a container of a plainly pulled image.
func (b *bench) need(ctx context.Context, im *corpus.Image, name string) (out Need, err error) {
	out = Need{Image: im.String(), Task: name, Meta: int64(len(im.Manifest)) + im.Config.Size}
	if out.Index, err = b.registry.indexBytes(ctx, im); err != nil {
		return out, err
	}
	task, err := taskOf(im, name)
	if err != nil {
		return out, err
	}
	n, err := startNode(ctx, b.NewDir(), plain(), b.hosts())
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, n.stop()) }()
	image := ref(b.registry.host(0), im, n.system)
	if err := n.pull(ctx, image); err != nil {
		return out, err
	}
	root := n.path("watched")
	if err := os.Mkdir(root, 0o755); err != nil {
		return out, err
	}
	if err := quietly(n.ctr(ctx, "image", "mount", "--rw", image, root)); err != nil {
		return out, err
	}
	if err := forget(root); err != nil {
		return out, err
	}
	opened, err := n.watch(ctx, root, im, task)
	if err != nil {
		return out, err
	}
	layers, err := n.layersOf(root)
	if err != nil {
		return out, err
	}
	return out, out.count(layers, opened)
}

// watch runs a task in a mounted tree and returns the paths of the files opened in it.
func (n *node) watch(ctx context.Context, root string, im *corpus.Image, task tasks.Task) (paths map[string]bool, err error) {
	config, err := im.Configuration()
	if err != nil {
		return nil, err
	}
	w, err := newWatch(root)
	if err != nil {
		return nil, err
	}
	args := config.Cmd
	if len(task.Args) > 0 {
		args = task.Args
	}
	extra := []string{"--rootfs"}
	for _, e := range config.Env {
		extra = append(extra, "--env", e)
	}
	if config.WorkingDir != "" {
		extra = append(extra, "--cwd", config.WorkingDir)
	}
	task.Args = append(config.Entrypoint[:len(config.Entrypoint):len(config.Entrypoint)], args...)
	_, err = n.tasks().Run(ctx, root, "watched", task, extra...)
	paths, closeErr := w.close()
	return paths, errors.Join(err, closeErr)
}

// forget drops the cached pages of a tree's files.
func forget(root string) error {
	unix.Sync()
	return filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		return unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
	})
}

// layersOf returns the lower directories of an overlay, the uppermost first.
func (n *node) layersOf(mount string) ([]string, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	for l := range strings.Lines(string(b)) {
		f := strings.Fields(l)
		if len(f) < 5 || f[4] != mount {
			continue
		}
		for option := range strings.SplitSeq(f[len(f)-1], ",") {
			list, ok := strings.CutPrefix(option, "lowerdir=")
			if !ok {
				continue
			}
			var out []string
			for dir := range strings.SplitSeq(list, ":") {
				if !filepath.IsAbs(dir) { // containerd shortens long lists
					dir = filepath.Join(n.path("root"), "io.containerd.snapshotter.v1.overlayfs", "snapshots", dir)
				}
				out = append(out, dir)
			}
			return out, nil
		}
	}
	return nil, fmt.Errorf("%s is no overlay", mount)
}

// count adds up the opened files that come from a layer. The task itself has made the
// other files.
func (n *Need) count(layers []string, paths map[string]bool) error {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedDefault), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return err
	}
	defer enc.Close()
	seen := map[[2]uint64]bool{}
	for p := range paths {
		var st unix.Stat_t
		i := slices.IndexFunc(layers, func(dir string) bool { return unix.Lstat(filepath.Join(dir, p), &st) == nil })
		if i < 0 || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size == 0 {
			continue
		}
		path := filepath.Join(layers[i], p)
		if key := [2]uint64{st.Dev, st.Ino}; seen[key] {
			continue
		} else {
			seen[key] = true
		}
		touched, compressed, err := touchedOf(path, st.Size, enc)
		if err != nil {
			return err
		}
		n.Files++
		n.Bytes += st.Size
		n.Touched += touched
		n.Compressed += compressed
	}
	return nil
}

// touchedOf returns how much of a file counts as needed, and the compressed size of that
// part.
func touchedOf(path string, size int64, enc *zstd.Encoder) (touched, compressed int64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	m, err := unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return 0, 0, fmt.Errorf("map %s: %w", path, err)
	}
	defer func() { err = errors.Join(err, unix.Munmap(m)) }()
	if size < largeFile {
		return size, int64(len(enc.EncodeAll(m, nil))), nil
	}
	const page = 4096
	resident := make([]byte, (len(m)+page-1)/page)
	if _, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&m[0])), uintptr(len(m)), uintptr(unsafe.Pointer(&resident[0]))); errno != 0 {
		return 0, 0, fmt.Errorf("pages of %s: %w", path, errno)
	}
	for at := 0; at < len(m); at += partBytes {
		end := min(at+partBytes, len(m))
		if slices.ContainsFunc(resident[at/page:(end+page-1)/page], func(b byte) bool { return b&1 == 1 }) {
			touched += int64(end - at)
			compressed += int64(len(enc.EncodeAll(m[at:end], nil)))
		}
	}
	return touched, compressed, nil
}

// fileWatch collects what is opened on a file system.
type fileWatch struct {
	root  string
	fd    int
	stop  *os.File // closed to end the watch
	wait  sync.WaitGroup
	mu    sync.Mutex
	paths map[string]bool
	err   error
}

// newWatch begins to collect the files opened on the file system at root, through any mount. The
// whole file system must belong to the caller.
func newWatch(root string) (*fileWatch, error) {
	fd, err := unix.FanotifyInit(unix.FAN_CLASS_NOTIF|unix.FAN_CLOEXEC|unix.FAN_NONBLOCK|unix.FAN_UNLIMITED_QUEUE, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_LARGEFILE)
	if err != nil {
		return nil, fmt.Errorf("fanotify: %w", err)
	}
	if err := unix.FanotifyMark(fd, unix.FAN_MARK_ADD|unix.FAN_MARK_FILESYSTEM, unix.FAN_OPEN|unix.FAN_OPEN_EXEC, unix.AT_FDCWD, root); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("watch %s: %w", root, err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	fw := &fileWatch{root: root, fd: fd, stop: w, paths: map[string]bool{}}
	fw.wait.Go(func() {
		defer r.Close()
		fw.err = fw.read(int(r.Fd()))
	})
	return fw, nil
}

// read collects events until the other end of the pipe is closed and no event
// is left.
func (w *fileWatch) read(pipe int) error {
	buf := make([]byte, 64<<10)
	for {
		fds := []unix.PollFd{{Fd: int32(w.fd), Events: unix.POLLIN}, {Fd: int32(pipe), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		n, err := unix.Read(w.fd, buf)
		switch {
		case errors.Is(err, unix.EAGAIN):
			if fds[1].Revents != 0 {
				return nil
			}
			continue
		case err != nil && !errors.Is(err, unix.EINTR):
			return err
		case err == nil:
			w.events(buf[:n])
		}
	}
}

// events notes the paths in some events. If a file was opened through another mount, its path is
// relative to the root of that mount.
func (w *fileWatch) events(b []byte) {
	const size = int(unsafe.Sizeof(unix.FanotifyEventMetadata{}))
	for len(b) >= size {
		e := (*unix.FanotifyEventMetadata)(unsafe.Pointer(&b[0]))
		if e.Fd >= 0 {
			if path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", e.Fd)); err == nil {
				w.mu.Lock()
				w.paths[strings.TrimPrefix(path, w.root)] = true
				w.mu.Unlock()
			}
			unix.Close(int(e.Fd))
		}
		if int(e.Event_len) < size || int(e.Event_len) > len(b) {
			return
		}
		b = b[e.Event_len:]
	}
}

// close ends the watch and returns what was opened, by path below the root.
func (w *fileWatch) close() (map[string]bool, error) {
	w.stop.Close()
	w.wait.Wait()
	return w.paths, errors.Join(w.err, unix.Close(w.fd))
}
