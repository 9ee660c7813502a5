// Package faultfs is a file system that passes everything through to a
// directory and goes wrong on request: it answers EIO or ENOSPC, writes half,
// takes its time, and forgets at a power cut what no fsync has made durable.
//
// It is FUSE, served by the test process. Whoever does that must not wait, in
// a system call that the Go scheduler does not know to block, for an answer of
// its own. Hence three rules for tests:
//
//   - The mount is for the server under test. The test itself looks at the
//     backing directory: a descriptor on the mount that is open while the test
//     starts a process is closed, that is flushed, between vfork and exec, with
//     the scheduler stopped.
//   - No program is started that lies on the mount, and the test maps no file
//     of it: a page fault is not a system call at all.
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
	// maxLife is after how long the connection is aborted whatever happens, so
	// that a mistake ends in a failed test and not in processes that nothing
	// can kill.
	maxLife = 5 * time.Minute
)

// Options of a file system. The zero value is good.
type Options struct {
	// Volatile keeps the content that each page on the disk had at its last
	// fsync, for [FS.PowerCut]. Nothing is really synced then.
	Volatile bool
	// Names makes names volatile too: a file that was made, renamed or removed may be
	// as before, until its directory is synced. It needs Volatile.
	Names bool
	// Torn lets a page that was not synced be partly old and partly new.
	Torn bool
}

// FS is a mounted file system.
type FS struct {
	// Dir is where it is mounted.
	Dir string

	backing string
	opts    Options
	server  *fuse.Server
	abort   *os.File // of the connection, in fusectl
	life    *time.Timer
	once    sync.Once
	closed  chan struct{}

	mu    sync.Mutex
	rules []*Injection // replaced, never changed in place

	lossMu sync.Mutex
	losses map[fileID]*unsynced
	names  *names // nil where they are durable at once
}

// Mount mounts the directory backing, or skips the test where that cannot be
// done. It is unmounted at the end of the test at the latest. opts may be nil.
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
		// Names are looked up each time: an operation that was carried out and
		// yet failed has left the kernel with the wrong idea.
		AttrTimeout: &second,
		MountOptions: fuse.MountOptions{
			Name: "faultfs", FsName: backing, DirectMountStrict: true,
			DisabledCapabilities: fuse.CAP_PASSTHROUGH,
			// It would tell of answers that came too late for an aborted connection.
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

// openAbort opens the file through which a mount's connection is aborted. It is
// opened early, because a stat of a mount that does not answer never returns.
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
	// fusectl is not mounted where it should be. There is only one of it.
	if err := os.Mkdir(scratch, 0o700); err != nil {
		return nil, err
	}
	if err := unix.Mount("none", scratch, "fusectl", 0, ""); err != nil {
		return nil, fmt.Errorf("mount fusectl: %w", err)
	}
	f, err = os.OpenFile(filepath.Join(scratch, name), os.O_WRONLY, 0)
	// Lazily: the open file keeps it alive until the end.
	return f, errors.Join(err, unix.Unmount(scratch, unix.MNT_DETACH))
}

// Close aborts the connection and unmounts. What is still open on the mount
// only returns errors from then on, so the server under test should have ended.
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
