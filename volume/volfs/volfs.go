// Package volfs shows volumes as files. It is a FUSE file system whose root has one file
// for each mapping of the node. The kernel mounts EROFS directly from such a file, and
// ext4 through a loop device.
//
// It promises:
//
//   - A reader gets the bytes of the volume, or an error. It gets fewer bytes than it
//     requested only at the end. If the storage fails or does not answer, the request is
//     repeated until [Options].Bound has passed since its arrival, and then ends in EIO.
//     Requests for other volumes continue meanwhile.
//   - Nothing breaks if the server is killed while a process holds the descriptor of the
//     mount. The next server reads from the state file which volume each file is, opens a
//     volume again at its first request, and makes the kernel repeat unanswered requests.
//   - When a write is answered, the volume has it. It is durable after FSYNC; closing a
//     file makes nothing durable. To lose no answered write if the server dies, a volume's
//     WriteAt must have passed on its bytes to another process when it returns. So a
//     driver must not buffer writes in its own memory.
//   - A write that was given up at the bound cannot overtake later ones, because no later
//     write reaches the volume before the old one has returned.
//
// The mount has no stack depth (no FUSE passthrough), because EROFS cannot lie on stacked
// file systems. Package fuse says what a serving process must not do with its own files:
// it neither mounts them nor starts programs that lie on them.
package volfs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"example.org/slipway/node/fuse"
	"example.org/slipway/volume/block"
)

// Opener opens the volume of a mapping: a committed volume for reading, a writable one
// for writing. It may be called concurrently, and more than once for a mapping. ctx
// bounds only the call. The server closes the volume.
type Opener func(ctx context.Context, m block.Mapping) (block.Volume, error)

// Options are the choices of [New]. The zero value works, but cannot be handed
// over.
type Options struct {
	// State is the file that the next server needs, on tmpfs: it has to survive the
	// process but not the machine. It has the keys of the credentials in it, and is
	// readable by its owner alone. Default none.
	State string
	// Bound is how long a request may wait for storage before it ends in EIO. Default 5
	// min. A process that reads by way of the page cache may wait twice as long: after
	// reading ahead has failed, the kernel requests the one page once more.
	Bound time.Duration
	// Log gets what an operator would want to know. Default none.
	Log *slog.Logger
}

const (
	defaultBound = 5 * time.Minute
	// drainTime is how long a server that gets an order to stop waits for requests in
	// work. It leaves the others to the next server.
	drainTime = 2 * time.Second
	// maxBackground is large, so that the requests of a volume whose storage hangs do not
	// block the kernel's requests for other volumes.
	maxBackground = 8192
)

// Mount mounts the file system at an existing directory and returns the descriptor of its
// connection. The mount works as long as any process holds the descriptor. Mount needs
// CAP_SYS_ADMIN. Requests wait until somebody serves them. Package fuse unmounts the file
// system again.
func Mount(dir string) (*os.File, error) {
	return fuse.Mount(dir, fuse.MountOptions{Source: "slipway-volumes", NoExec: true})
}

// Server serves the volumes of one mount.
type Server struct {
	open Opener
	o    Options
	log  *slog.Logger
	conn *fuse.Conn

	small, large sync.Pool // *[]byte for answers with data and for writes

	names nameLocks // before mu

	mu    sync.Mutex
	files map[uint64]*file // by node id
	named map[string]*file
	opens map[uint64]*file // by handle
	next  uint64           // node id of the next file; none is used twice
	init  *fuse.Settled
}

// New prepares to serve the connection of dev from the state that a predecessor left. The
// caller still owns dev. New opens no volume.
func New(dev *os.File, open Opener, o *Options) (*Server, error) {
	s := &Server{open: open, files: map[uint64]*file{}, named: map[string]*file{}, opens: map[uint64]*file{}, next: fuse.RootNode + 1}
	if o != nil {
		s.o = *o
	}
	if s.o.Bound <= 0 {
		s.o.Bound = defaultBound
	}
	if s.log = s.o.Log; s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.small.New = func() any { return newBuffer(smallIO) }
	s.large.New = func() any { return newBuffer(largeIO) }
	var err error
	if s.conn, err = fuse.Open(dev, s.log); err != nil {
		return nil, err
	}
	if err := s.load(); err != nil {
		return nil, errors.Join(err, s.conn.Close())
	}
	return s, nil
}

// Serve answers requests until the file system is unmounted and unused (nil), the
// connection is aborted ([fuse.ErrAborted]), or ctx ends (its error). When ctx ends,
// requests that take longer than two seconds are left to the next server. Serve can be
// called once.
func (s *Server) Serve(ctx context.Context) error {
	err := s.conn.Negotiate(ctx, fuse.InitOptions{
		Want:         fuse.FlagAsyncRead | fuse.FlagBigWrites | fuse.FlagAsyncDIO | fuse.FlagParallelDirops,
		MaxReadahead: fuse.MaxRead, MaxBackground: maxBackground, MaxRead: fuse.MaxRead, MaxWrite: fuse.MaxWrite,
		Settled: s.settled(), Save: s.saveInit,
	})
	if err != nil {
		return fuse.EndOf(err)
	}
	return s.conn.Serve(ctx, drainTime, s.handle)
}

// Refuse serves in place of a server while none can be started. Until ctx ends it answers
// requests that need storage with EIO, using the state that the last server left in the
// state file. Nothing that was written is lost by this.
func Refuse(ctx context.Context, dev *os.File, state string) error {
	none := func(context.Context, block.Mapping) (block.Volume, error) { return nil, errRefused }
	s, err := New(dev, none, &Options{State: state, Bound: time.Millisecond})
	if err != nil {
		return err
	}
	return errors.Join(s.Serve(ctx), s.Close())
}

var errRefused = errors.New("no server of the volumes runs")

// Close closes the volumes and lets go of what New took, if Serve was not called
// or has returned. The mount stays, and needs a successor. A volume whose storage
// hangs is closed when it answers.
func (s *Server) Close() error {
	err := s.conn.Close()
	s.mu.Lock()
	files := make([]*file, 0, len(s.files))
	for _, f := range s.files {
		files = append(files, f)
	}
	s.mu.Unlock()
	for _, f := range files {
		err = errors.Join(err, f.shut())
	}
	return err
}

// Add shows a volume as a file with the mapping's name. It opens the volume at once, so
// that it can return an error; ctx bounds that. If the name exists, Add replaces its
// credential, and opens its volume again with the new one. If that fails, the old
// credential stays.
//
// Errors: block.ErrExists if the name belongs to another volume, and the errors of the
// Opener.
func (s *Server) Add(ctx context.Context, m block.Mapping) error {
	if !validName(m.Name) {
		return fmt.Errorf("map volume %s: %q cannot be the name of a file", m.ID, m.Name)
	}
	unlock, err := s.names.lock(ctx, m.Name)
	if err != nil {
		return fmt.Errorf("map volume %s: %w", m.ID, err)
	}
	defer unlock()
	s.mu.Lock()
	f := s.named[m.Name]
	s.mu.Unlock()
	if f == nil {
		err = s.add(ctx, m)
	} else {
		err = s.renew(ctx, f, m)
	}
	if err != nil {
		return fmt.Errorf("map volume %s as %s: %w", m.ID, m.Name, err)
	}
	return nil
}

func (s *Server) add(ctx context.Context, m block.Mapping) error {
	v, err := s.open(ctx, m)
	if err != nil {
		return err
	}
	s.mu.Lock()
	f := s.newFile(s.next, v.Size(), m)
	s.next++
	f.take(v)
	s.files[f.node], s.named[m.Name] = f, f
	if err = s.save(); err != nil {
		delete(s.files, f.node)
		delete(s.named, m.Name)
	}
	s.mu.Unlock()
	if err != nil {
		return errors.Join(err, f.shut())
	}
	return nil
}

// renew gives a file another credential.
func (s *Server) renew(ctx context.Context, f *file, m block.Mapping) error {
	old := f.mapped()
	if old.Place != m.Place || old.ID != m.ID || old.Writable != m.Writable {
		return fmt.Errorf("volume %s has this name: %w", old.ID, block.ErrExists)
	}
	if err := f.renew(ctx, m); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.save()
}

// releaseGrace is how long Remove waits until the kernel reports that the last user has
// closed the file. The kernel does not wait when it reports this, so the report may come
// after the preceding unmount has returned.
const releaseGrace = 500 * time.Millisecond

// Remove removes a file and closes its volume, after a flush if it is writable. It
// succeeds if there is no such file.
//
// Errors: block.ErrInUse while the kernel has the file open, for a loop device or as an
// image. After an error of the storage the file is removed, and what was written to its
// volume may not be durable. After any other error the file still exists. ctx bounds how
// long it waits for the storage.
func (s *Server) Remove(ctx context.Context, name string) error {
	unlock, err := s.names.lock(ctx, name)
	if err != nil {
		return fmt.Errorf("unmap %s: %w", name, err)
	}
	defer unlock()
	f, err := s.forget(name)
	if err != nil {
		return fmt.Errorf("unmap %s: %w", name, err)
	}
	if f == nil {
		return nil
	}
	if err := f.finish(ctx); err != nil {
		return fmt.Errorf("unmap %s: volume %s: %w", name, f.mapped().ID, err)
	}
	return nil
}

// forget takes a file out of the tables unless it is in use.
func (s *Server) forget(name string) (*file, error) {
	deadline := time.Now().Add(releaseGrace)
	for {
		s.mu.Lock()
		f := s.named[name]
		if f == nil || f.opens == 0 {
			defer s.mu.Unlock()
			return f, s.drop(f)
		}
		s.mu.Unlock()
		if time.Now().After(deadline) {
			return nil, block.ErrInUse
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// drop is for forget. The lock is held.
func (s *Server) drop(f *file) error {
	if f == nil {
		return nil
	}
	name := f.mapped().Name
	delete(s.files, f.node)
	delete(s.named, name)
	err := s.save()
	if err != nil {
		s.files[f.node], s.named[name] = f, f
	}
	return err
}

// Status describes one mapping.
type Status struct {
	// Mapping is the mapping, without the key of its credential.
	Mapping block.Mapping `json:"mapping"`
	// Size is the size of the volume in bytes.
	Size int64 `json:"size"`
	// Open reports whether the kernel has the file open.
	Open bool `json:"open"`
	// ReadBytes and WrittenBytes count the bytes of this server, without its
	// predecessors.
	ReadBytes    int64 `json:"readBytes"`
	WrittenBytes int64 `json:"writtenBytes"`
	// Errors counts errors of storage, including errors after which another try
	// succeeded. LastError is the last of them. Failed is how many requests ended in such
	// an error.
	Errors    int64  `json:"errors"`
	LastError string `json:"lastError,omitempty"`
	Failed    int64  `json:"failed"`
	// Denied reports that the storage refused the credential at the last request.
	// Requests then wait for another credential, until their bound.
	Denied bool `json:"denied,omitempty"`
}

// List returns all mappings, by name.
func (s *Server) List() []Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]Status, 0, len(s.files))
	for _, f := range s.named {
		st := f.status()
		st.Open = f.opens > 0
		all = append(all, st)
	}
	slices.SortFunc(all, func(a, b Status) int { return strings.Compare(a.Mapping.Name, b.Mapping.Name) })
	return all
}
