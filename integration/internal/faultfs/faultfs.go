// Package faultfs is a file system that passes everything through to a directory and fails on
// request. It can answer EIO or ENOSPC, write only half, take its time, and forget at a power cut
// what no fsync has made durable.
//
// It is a FUSE file system, served by the test process. That process must not wait for its own
// answer in a system call that the Go scheduler does not know to block. Tests therefore follow
// three rules:
//
//   - The mount is for the server under test; the test itself uses the backing
//     directory. If the test has a descriptor open on the mount while it starts
//     a process, that descriptor is closed, and so flushed, between vfork and
//     exec, with the scheduler stopped.
//   - The test starts no program that lies on the mount, and maps none of its
//     files: a page fault is not a system call at all.
//   - Close aborts the connection before it unmounts, so that whatever still
//     waits for an answer gets an error instead of waiting for ever.
package faultfs

import (
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"example.org/slipway/integration/internal/tool"
)

const (
	// teardownLimit bounds each step of Close.
	teardownLimit = 5 * time.Second
	// maxLife is the time after which the connection is aborted in any case. A mistake then ends in
	// a failed test, not in processes that nothing can kill.
	maxLife = 5 * time.Minute
)

// Options are the options of a file system. The zero value is good.
type Options struct {
	// Volatile keeps each page's content as of its last fsync, for [FS.PowerCut]. Nothing is really
	// synced then.
	Volatile bool
	// Names makes names volatile too: until its directory is synced, a power cut may undo that a
	// file was made, renamed or removed. It needs Volatile.
	Names bool
	// Torn lets an unsynced page be partly old and partly new.
	Torn bool
}

// FS is a mounted file system.
type FS struct {
	// Dir is the mount point.
	Dir string

	backing string
	opts    Options
	server  *fuse.Server
	abort   *os.File // the connection's abort file in fusectl
	life    *time.Timer
	once    sync.Once
	closed  chan struct{}

	mu    sync.Mutex
	rules []*Injection // replaced as a whole, never changed in place

	lossMu sync.Mutex
	losses map[fileID]*unsynced
	names  *names // nil if names are durable at once
}

// Mount mounts the directory backing, or skips the test if it cannot. The mount is removed at the
// end of the test at the latest. opts may be nil.
func Mount(t testing.TB, backing string, opts *Options) *FS {
	t.Helper()
	tool.NeedRoot(t)
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skipf("needs FUSE: %v", err)
	}
	top := tool.ShortTempDir(t)
	f := &FS{Dir: filepath.Join(top, "mnt"), backing: backing, closed: make(chan struct{}), losses: map[fileID]*unsynced{}}
	if opts != nil {
		f.opts = *opts
	}
	if f.opts.Names {
		f.names = &names{keep: backing + ".gone"}
		if err := os.MkdirAll(f.names.keep, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{backing, f.Dir} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	root, err := fs.NewLoopbackRoot(backing)
	if err != nil {
		t.Fatal(err)
	}
	second := time.Second
	f.server, err = fs.Mount(f.Dir, &node{LoopbackNode: root.(*fs.LoopbackNode), f: f}, &fs.Options{
		// Names are looked up each time: an operation that was carried out but returned an error
		// has left the kernel with wrong knowledge.
		AttrTimeout: &second,
		MountOptions: fuse.MountOptions{
			Name: "faultfs", FsName: backing, DirectMountStrict: true,
			DisabledCapabilities: fuse.CAP_PASSTHROUGH,
			// The log would report answers that came too late for an aborted connection.
			Logger: log.New(io.Discard, "", 0),
		},
	})
	if errors.Is(err, syscall.EPERM) {
		t.Skipf("needs FUSE: mount: %v", err)
	}
	if err != nil {
		t.Fatalf("mount %s: %v", f.Dir, err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	if f.abort, err = openAbort(f.Dir, filepath.Join(top, "fusectl")); err != nil {
		t.Fatalf("find the FUSE connection of %s: %v", f.Dir, err)
	}
	f.life = time.AfterFunc(maxLife, func() { _ = f.abortConnection() })
	return f
}

// openAbort opens the file through which a mount's connection is aborted. It must be opened early,
// because a stat of a mount that does not answer never returns.
func openAbort(dir, scratch string) (*os.File, error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return nil, err
	}
	name := strconv.FormatUint(uint64(unix.Minor(st.Dev)), 10) + "/abort"
	f, err := os.OpenFile("/sys/fs/fuse/connections/"+name, os.O_WRONLY, 0)
	if err == nil {
		return f, nil
	}
	// fusectl is not mounted at its usual place. There is only one instance of it.
	if err := os.Mkdir(scratch, 0o700); err != nil {
		return nil, err
	}
	if err := unix.Mount("none", scratch, "fusectl", 0, ""); err != nil {
		return nil, fmt.Errorf("mount fusectl: %w", err)
	}
	f, err = os.OpenFile(filepath.Join(scratch, name), os.O_WRONLY, 0)
	// The unmount is lazy: the open file keeps fusectl alive until it is closed.
	return f, errors.Join(err, unix.Unmount(scratch, unix.MNT_DETACH))
}

// Close aborts the connection and unmounts. From then on, descriptors that are still open on the
// mount only return errors, so the server under test should have ended.
func (f *FS) Close() error {
	var err error
	f.once.Do(func() {
		if f.life != nil {
			f.life.Stop()
		}
		err = within("abort the FUSE connection", f.abortConnection)
		close(f.closed)
		err = errors.Join(err,
			within("unmount "+f.Dir, func() error { return unix.Unmount(f.Dir, unix.MNT_DETACH) }),
			within("end the FUSE server", func() error { f.server.Wait(); return nil }),
		)
	})
	return err
}

func (f *FS) abortConnection() error {
	if f.abort == nil {
		return nil
	}
	_, err := f.abort.WriteString("1")
	return errors.Join(err, f.abort.Close())
}

// within runs a step that may never return.
func within(doing string, step func() error) error {
	done := make(chan error, 1)
	go func() { done <- step() }()
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("%s: %w", doing, err)
		}
		return nil
	case <-time.After(teardownLimit):
		return fmt.Errorf("%s: not within %s", doing, teardownLimit)
	}
}
