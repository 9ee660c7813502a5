package fill

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"example.org/slipway/oci"
)

const (
	partSuffix = ".part"
	// partMaxAge is how long the beginning of a blob is kept if nobody asks for the blob.
	partMaxAge = 7 * 24 * time.Hour
)

// key identifies a fill. All upstreams that the configuration chose share one fill of
// a digest. An upstream that a client chose has a fill for itself: it must not slow down
// or spoil what others fetch, and must not be given what others have fetched.
type key struct {
	digest oci.Digest
	alone  string // the name of an upstream that a client chose, or ""
}

// key returns the key of an origin's fill of a digest.
func (o Origin) key(d oci.Digest) key {
	if o.Guarded {
		return key{d, o.Upstream}
	}
	return key{digest: d}
}

// Fills are the blobs that are being fetched, and the files that earlier fills left in
// the directory.
type Fills struct {
	ctx  context.Context
	opts Options
	dir  string
	// count is the number of fills. It is mostly 0, and a reader then need not look for a
	// fill.
	count atomic.Int64
	// memory is the sum of the bytes of the fills in RAM.
	memory atomic.Int64

	mu    sync.RWMutex
	under map[key]*Fill
	parts map[key]bool
}

// New returns the fills of a mirror, whose background work ends with ctx. It finds the files
// that an earlier process left.
func New(ctx context.Context, o Options) (*Fills, error) {
	fs := &Fills{ctx: ctx, opts: o, dir: o.Dir, under: map[key]*Fill{}, parts: map[key]bool{}}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, err
	}
	booted, err := bootTime()
	if err != nil {
		return nil, err
	}
	return fs, fs.scan(o.Clock(), booted)
}

// Scan notes the files of blobs that nobody is fetching. It removes files that are too old.
func (fs *Fills) Scan(now time.Time) error { return fs.scan(now, time.Time{}) }

// storing returns a context for storing content, which goes on after ctx has ended.
func (fs *Fills) storing() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(fs.ctx), 10*time.Minute)
}

// scan notes the files of blobs that nobody is fetching. It removes files that are too
// old or were written before the machine booted.
func (fs *Fills) scan(now, booted time.Time) error {
	list, err := os.ReadDir(fs.dir)
	if err != nil {
		return err
	}
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for _, e := range list {
		k, ok := partKey(e.Name())
		if !ok || fs.under[k] != nil {
			continue
		}
		info, err := e.Info()
		if errors.Is(err, os.ErrNotExist) { // it has been stored meanwhile
			delete(fs.parts, k)
			continue
		} else if err != nil {
			return err
		}
		if at := info.ModTime(); now.Sub(at) <= partMaxAge && at.After(booted) && info.Mode().IsRegular() {
			fs.parts[k] = true
			continue
		}
		delete(fs.parts, k)
		if err := os.Remove(filepath.Join(fs.dir, e.Name())); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// bootTime returns when the machine booted. A file that was written before may never have
// reached the disk.
func bootTime() (time.Time, error) {
	var info syscall.Sysinfo_t
	if err := syscall.Sysinfo(&info); err != nil {
		return time.Time{}, os.NewSyscallError("sysinfo", err)
	}
	return time.Now().Add(-time.Duration(info.Uptime) * time.Second), nil
}

// path returns the file of a blob that is being fetched.
func (fs *Fills) path(k key) string {
	name := k.digest.Algorithm().String() + "-" + k.digest.Encoded()
	if k.alone != "" {
		name += "-" + k.alone
	}
	return filepath.Join(fs.dir, name+partSuffix)
}

// partKey returns the key for a file name that path has made.
func partKey(file string) (key, bool) {
	name, isPart := strings.CutSuffix(file, partSuffix)
	alg, rest, ok := strings.Cut(name, "-")
	hex, alone, _ := strings.Cut(rest, "-")
	k := key{oci.Digest(alg + ":" + hex), alone}
	return k, isPart && ok && oci.ValidDigest(k.digest)
}

// Find returns the fill of a blob, if there is one. admitted reports whether the upstream
// has confirmed that the repository has the blob.
func (fs *Fills) Find(o Origin, d oci.Digest) (f *Fill, admitted bool) {
	if fs.count.Load() == 0 {
		return nil, false
	}
	fs.mu.RLock()
	defer fs.mu.RUnlock()
	if f = fs.under[o.key(d)]; f == nil {
		return nil, false
	}
	return f, f.repos[o.Repo]
}

// Role says in which role a caller came to a fill.
type Role int

const (
	// LookAgain means that the caller has not joined, and should look in the store again,
	// which may have the blob by now.
	LookAgain Role = iota
	// Stranger means that the upstream has not yet confirmed that the repository has the
	// blob. A client without access must not profit from the fact that the blob is being
	// fetched for another repository.
	Stranger
	// Follower means that the caller is a reader of a fill that was there before.
	Follower
	// Beginner means that the caller is the fill's first reader.
	Beginner
)

// Join makes the caller a reader of the fill of a blob, and begins the fill if there is
// none. again says that the caller has already asked the store twice.
func (fs *Fills) Join(o Origin, d oci.Digest, again bool) (*Fill, Role, error) {
	k := o.key(d)
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if f := fs.under[k]; f != nil {
		if !f.repos[o.Repo] {
			return f, Stranger, nil
		}
		f.enter()
		return f, Follower, nil
	}
	if !again && fs.opts.Recent(o.Repo, d) {
		return nil, LookAgain, nil
	}
	f := newFill(fs, o, d)
	f.continues = fs.parts[k]
	f.enter()
	if !fs.opts.Spawn(f.run) {
		f.cancel()
		return nil, LookAgain, ErrClosed()
	}
	fs.under[k] = f
	fs.count.Add(1)
	return f, Beginner, nil
}

// Admit lets in the readers of one more repository, and makes the caller a reader. It is
// called after the upstream has confirmed that this repository has the blob. It returns
// false if the fill has ended.
func (fs *Fills) Admit(f *Fill, repo string) bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.under[f.key()] != f || f.closed {
		return false
	}
	f.repos[repo] = true
	f.enter()
	return true
}

// close lets in no further repositories, and returns the repositories that were let in.
func (fs *Fills) close(f *Fill) []string {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f.closed = true
	list := make([]string, 0, len(f.repos))
	for repo := range f.repos {
		list = append(list, repo)
	}
	return list
}

// remove forgets a fill that has ended.
func (fs *Fills) remove(f *Fill, left bool) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	delete(fs.under, f.key())
	fs.count.Add(-1)
	if left {
		fs.parts[f.key()] = true
	} else {
		delete(fs.parts, f.key())
	}
}

// Whole is the span of a whole blob.
var Whole = Span{N: -1}

// Span is N bytes from Off on, or all bytes from Off on if N < 0.
type Span struct{ Off, N int64 }

// In cuts the Span to a blob of size bytes.
func (p Span) In(size int64) (off, end int64, err error) {
	if p == Whole {
		return 0, size, nil
	}
	if p.Off < 0 || p.Off >= size {
		return 0, 0, oci.Errorf(oci.CodeRangeInvalid, "range begins at byte %d of a blob of %d bytes", p.Off, size)
	}
	if p.N < 0 || p.N > size-p.Off {
		return p.Off, size, nil
	}
	return p.Off, p.Off + p.N, nil
}

// Count returns the number of fills, and Memory returns how many bytes of them are in
// RAM.
func (fs *Fills) Count() int64  { return fs.count.Load() }
func (fs *Fills) Memory() int64 { return fs.memory.Load() }

// Unsettled returns a channel for each fill of a repository whose blob has been fetched
// and is being stored. Each channel is closed when its blob is stored.
func (fs *Fills) Unsettled(repo string) (wait []<-chan struct{}) {
	fs.mu.RLock()
	defer fs.mu.RUnlock()
	for _, f := range fs.under {
		if f.repos[repo] && (f.closed || f.Right()) {
			wait = append(wait, f.settled)
		}
	}
	return wait
}

// Status says how much of a blob has been fetched.
type Status struct {
	Repo    string     `json:"repo"`
	Digest  oci.Digest `json:"digest"`
	Bytes   int64      `json:"bytes"`
	Size    int64      `json:"size"` // -1: unknown
	Readers int        `json:"readers"`
	Began   time.Time  `json:"began"`
}

// Status returns the fills under way, oldest first.
func (fs *Fills) Status() []Status {
	list := []Status{}
	fs.mu.RLock()
	for _, f := range fs.under {
		f.mu.Lock()
		list = append(list, Status{Repo: f.o.Repo, Digest: f.digest, Bytes: f.written, Size: f.size, Readers: f.readers, Began: f.began})
		f.mu.Unlock()
	}
	fs.mu.RUnlock()
	slices.SortFunc(list, func(a, b Status) int { return a.Began.Compare(b.Began) })
	return list
}
