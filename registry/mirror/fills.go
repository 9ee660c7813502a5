package mirror

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/mirror/upstream"
)

const (
	partSuffix = ".part"
	// partMaxAge is how long the beginning of a blob is kept if nobody asks for the blob.
	partMaxAge = 7 * 24 * time.Hour
)

// fillKey identifies a fill. All upstreams that the configuration chose share one fill of
// a digest. An upstream that a client chose has a fill for itself: it must not slow down
// or spoil what others fetch, and must not be given what others have fetched.
type fillKey struct {
	digest oci.Digest
	alone  string // the name of an upstream that a client chose, or ""
}

// fillKey returns the key of the source's fill of a digest.
func (s *source) fillKey(d oci.Digest) fillKey {
	if s.guarded {
		return fillKey{d, s.Name}
	}
	return fillKey{digest: d}
}

// fills are the blobs that are being fetched, and the files that earlier fills left in
// the directory.
type fills struct {
	dir string
	// count is the number of fills. It is mostly 0, and a reader then need not look for a
	// fill.
	count atomic.Int64
	// memory is the sum of the bytes of the fills in RAM.
	memory atomic.Int64

	mu    sync.RWMutex
	under map[fillKey]*fill
	parts map[fillKey]bool
}

// init finds the files that an earlier process left.
func (fs *fills) init(dir string, now time.Time) error {
	fs.dir, fs.under, fs.parts = dir, map[fillKey]*fill{}, map[fillKey]bool{}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	booted, err := bootTime()
	if err != nil {
		return err
	}
	return fs.scan(now, booted)
}

// scan notes the files of blobs that nobody is fetching. It removes files that are too
// old or were written before the machine booted.
func (fs *fills) scan(now, booted time.Time) error {
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
func (fs *fills) path(k fillKey) string {
	name := k.digest.Algorithm().String() + "-" + k.digest.Encoded()
	if k.alone != "" {
		name += "-" + k.alone
	}
	return filepath.Join(fs.dir, name+partSuffix)
}

// partKey returns the key for a file name that path has made.
func partKey(file string) (fillKey, bool) {
	name, isPart := strings.CutSuffix(file, partSuffix)
	alg, rest, ok := strings.Cut(name, "-")
	hex, alone, _ := strings.Cut(rest, "-")
	k := fillKey{oci.Digest(alg + ":" + hex), alone}
	return k, isPart && ok && oci.ValidDigest(k.digest)
}

// find returns the fill of a blob, if there is one. admitted reports whether the upstream
// has confirmed that the repository has the blob.
func (fs *fills) find(k fillKey, repo string) (f *fill, admitted bool) {
	if fs.count.Load() == 0 {
		return nil, false
	}
	fs.mu.RLock()
	defer fs.mu.RUnlock()
	if f = fs.under[k]; f == nil {
		return nil, false
	}
	return f, f.repos[repo]
}

// joined says in which role a caller came to a fill.
type joined int

const (
	// lookAgain means that the caller has not joined, and should look in the store again,
	// which may have the blob by now.
	lookAgain joined = iota
	// stranger means that the upstream has not yet confirmed that the repository has the
	// blob. A client without access must not profit from the fact that the blob is being
	// fetched for another repository.
	stranger
	// follower means that the caller is a reader of a fill that was there before.
	follower
	// beginner means that the caller is the fill's first reader.
	beginner
)

// join makes the caller a reader of the fill of a blob, and begins the fill if there is
// none. again says that the caller has already asked the store twice.
func (m *Registry) join(s *source, name, repo string, d oci.Digest, again bool) (*fill, joined, error) {
	fs, k := &m.fills, s.fillKey(d)
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if f := fs.under[k]; f != nil {
		if !f.repos[repo] {
			return f, stranger, nil
		}
		f.enter()
		return f, follower, nil
	}
	if !again && m.recent.has(contentKey{repo, string(d)}) {
		return nil, lookAgain, nil
	}
	f := newFill(m, s, name, repo, d)
	f.continues = fs.parts[k]
	f.enter()
	if !m.spawn(f.run) {
		f.cancel()
		return nil, lookAgain, errClosed()
	}
	fs.under[k] = f
	fs.count.Add(1)
	return f, beginner, nil
}

// admit lets in the readers of one more repository, and makes the caller a reader. It is
// called after the upstream has confirmed that this repository has the blob. It returns
// false if the fill has ended.
func (fs *fills) admit(f *fill, repo string) bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.under[f.key()] != f || f.closed {
		return false
	}
	f.repos[repo] = true
	f.enter()
	return true
}

// close lets in no further repositories, and returns those that were let in.
func (fs *fills) close(f *fill) []string {
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
func (fs *fills) remove(f *fill, left bool) {
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

// wholeBlob is the span of a whole blob.
var wholeBlob = span{0, -1}

// span is n bytes from off on, or all bytes from off on if n < 0.
type span struct{ off, n int64 }

// in cuts the span to a blob of size bytes.
func (p span) in(size int64) (off, end int64, err error) {
	if p == wholeBlob {
		return 0, size, nil
	}
	if p.off < 0 || p.off >= size {
		return 0, 0, oci.Errorf(oci.CodeRangeInvalid, "range begins at byte %d of a blob of %d bytes", p.off, size)
	}
	if p.n < 0 || p.n > size-p.off {
		return p.off, size, nil
	}
	return p.off, p.off + p.n, nil
}

// ResolveBlob implements oci.Reader.
func (m *Registry) ResolveBlob(ctx context.Context, repo string, d oci.Digest) (oci.Descriptor, error) {
	s, name := m.source(repo)
	if s == nil {
		return m.store.ResolveBlob(ctx, repo, d)
	}
	if f, admitted := m.fills.find(s.fillKey(d), repo); admitted {
		if size, err := f.whole(ctx); err == nil {
			s.counts.add(kindBlob, resultHit)
			return blobDescriptor(d, size), nil
		}
	}
	desc, err := m.store.ResolveBlob(ctx, repo, d)
	if err == nil {
		s.counts.add(kindBlob, resultHit)
		return desc, nil
	}
	if !oci.HasCode(err, oci.CodeBlobUnknown) {
		return desc, err
	}
	if err := oci.CheckDigest(d); err != nil {
		return desc, err
	}
	if err := s.cannotAsk(kindBlob, repo, string(d), m.now(), unknownBlob); err != nil {
		return desc, err
	}
	size, began, err := m.askBlob(ctx, s, name, repo, d)
	s.counts.fetched(kindBlob, began, err)
	if err == nil && size < 0 { // the upstream does not say the size
		return m.measureBlob(ctx, s, name, repo, d)
	}
	return blobDescriptor(d, size), err
}

// measureBlob finds out the size of a blob by fetching it: the size is certain only at
// the end.
func (m *Registry) measureBlob(ctx context.Context, s *source, name, repo string, d oci.Digest) (oci.Descriptor, error) {
	c, err := m.openBlob(ctx, s, name, repo, d, wholeBlob)
	if err != nil {
		return oci.Descriptor{}, err
	}
	defer c.Close()
	size, err := c.WriteTo(io.Discard)
	return blobDescriptor(d, size), err
}

// askBlob asks the upstream whether a repository has a blob. size is -1 if the upstream
// does not say it.
func (m *Registry) askBlob(ctx context.Context, s *source, name, repo string, d oci.Digest) (size int64, began bool, err error) {
	mf, began, err := m.fly(ctx, flightKey{flyBlob, contentKey{repo, string(d)}}, func(ctx context.Context) (*oci.Manifest, error) {
		if err := s.allowed(name, ""); err != nil {
			return nil, m.refused(s, kindBlob, repo, string(d), err)
		}
		var desc oci.Descriptor
		err := m.patiently(ctx, func() (err error) {
			desc, err = s.Upstream.ResolveBlob(ctx, name, d)
			return err
		})
		if err != nil {
			m.refuse(s, kindBlob, repo, string(d), err)
			return nil, err
		}
		return &oci.Manifest{Descriptor: desc}, nil
	})
	if err != nil {
		return 0, began, err
	}
	return mf.Size, began, nil
}

// GetBlob implements oci.Reader.
func (m *Registry) GetBlob(ctx context.Context, repo string, d oci.Digest) (oci.Content, error) {
	s, name := m.source(repo)
	if s == nil {
		return m.store.GetBlob(ctx, repo, d)
	}
	return m.openBlob(ctx, s, name, repo, d, wholeBlob)
}

// GetBlobRange implements oci.Reader.
func (m *Registry) GetBlobRange(ctx context.Context, repo string, d oci.Digest, off, n int64) (oci.Content, error) {
	s, name := m.source(repo)
	if s == nil {
		return m.store.GetBlobRange(ctx, repo, d, off, n)
	}
	p := span{off, n}
	if p == wholeBlob {
		// An empty blob can be opened as a whole, but no range of it is valid.
		desc, err := m.ResolveBlob(ctx, repo, d)
		if err == nil {
			_, _, err = span{off, max(1, desc.Size)}.in(desc.Size)
		}
		if err != nil {
			return nil, err
		}
	}
	return m.openBlob(ctx, s, name, repo, d, p)
}

func (m *Registry) fromStore(ctx context.Context, repo string, d oci.Digest, p span) (oci.Content, error) {
	if p == wholeBlob {
		return m.store.GetBlob(ctx, repo, d)
	}
	return m.store.GetBlobRange(ctx, repo, d, p.off, p.n)
}

// maxLooks bounds how often a content is looked for if others keep fetching, storing and
// forgetting it at the same time.
const maxLooks = 5

// openBlob opens a part of a blob of a mirrored repository. It takes the blob from a
// fill, from the store or else from the upstream.
func (m *Registry) openBlob(ctx context.Context, s *source, name, repo string, d oci.Digest, p span) (oci.Content, error) {
	for look := range maxLooks {
		if _, admitted := m.fills.find(s.fillKey(d), repo); !admitted {
			c, err := m.fromStore(ctx, repo, d, p)
			if err == nil {
				s.counts.add(kindBlob, resultHit)
				s.counts.send(p, c.Descriptor().Size)
				return c, nil
			}
			if !oci.HasCode(err, oci.CodeBlobUnknown) {
				return nil, err
			}
		}
		c, err := m.openFill(ctx, s, name, repo, d, p, look > 0)
		if !errors.Is(err, errLookAgain) {
			return c, err
		}
	}
	return nil, errChanging
}

// errChanging answers a request for content that others keep fetching and forgetting.
var errChanging = &oci.Error{Code: oci.CodeUnavailable, Message: "the content is being changed all the time; ask again"}

// errLookAgain says that the store may have the blob by now.
var errLookAgain = errors.New("the blob was stored in the meantime")

// openFill opens a blob that the store lacks.
func (m *Registry) openFill(ctx context.Context, s *source, name, repo string, d oci.Digest, p span, again bool) (oci.Content, error) {
	if err := oci.CheckDigest(d); err != nil {
		return nil, err
	}
	if err := s.cannotAsk(kindBlob, repo, string(d), m.now(), unknownBlob); err != nil {
		return nil, err
	}
	if err := s.allowed(name, ""); err != nil {
		s.counts.fetched(kindBlob, true, err)
		return nil, m.refused(s, kindBlob, repo, string(d), err)
	}
	f, how, err := m.join(s, name, repo, d, again)
	switch {
	case err != nil:
		return nil, err
	case how == lookAgain:
		return nil, errLookAgain
	case how == stranger:
		if err := m.introduce(ctx, f, s, name, repo); err != nil {
			return nil, err
		}
	}
	c, err := f.open(ctx, reader{s, name, repo}, p)
	if err != nil {
		f.leave()
		if ofFill := upstream.KindOf(err) != 0 || !oci.HasCode(err, oci.CodeRangeInvalid); ofFill && repo != f.repo && ctx.Err() == nil {
			err = errLookAgain // the error is not about this repository
		}
		if !errors.Is(err, errLookAgain) {
			s.counts.fetched(kindBlob, how == beginner, err)
		}
		return nil, err
	}
	s.counts.fetched(kindBlob, how == beginner, nil)
	s.counts.send(p, c.Descriptor().Size)
	return c, nil
}

// introduce makes the caller a reader of a fill that was begun for another repository, if
// the upstream confirms that the caller's repository has the blob, too.
func (m *Registry) introduce(ctx context.Context, f *fill, s *source, name, repo string) error {
	if _, _, err := m.askBlob(ctx, s, name, repo, f.digest); err != nil {
		s.counts.fetched(kindBlob, true, err)
		return err
	}
	if m.fills.admit(f, repo) {
		return nil
	}
	if err := await(ctx, f.settled); err != nil {
		return err
	}
	if s.guarded && !f.right() { // a mere claim does not show what others have stored
		return errLookAgain
	}
	// The fill ended before the repository was let in. If the blob was stored, it only
	// has to be linked. Otherwise it is fetched once more.
	if _, err := m.store.LinkStored(ctx, repo, f.digest); err != nil && !oci.HasCode(err, oci.CodeBlobUnknown) {
		m.log.Warn("show a blob in a repository", "repo", repo, "digest", f.digest, "err", err)
	}
	return errLookAgain
}

func blobDescriptor(d oci.Digest, size int64) oci.Descriptor {
	return oci.Descriptor{MediaType: oci.MediaTypeOctetStream, Digest: d, Size: size}
}
