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
	// partMaxAge is how long what was fetched of a blob is kept that nobody asks
	// for any more.
	partMaxAge = 7 * 24 * time.Hour
)

// fillKey is what there is one fill of. Upstreams that the configuration chose share the
// fills of a digest. One that was chosen by whoever asks has its own: it must not slow
// down or spoil what others fetch, nor be given what they have fetched.
type fillKey struct {
	digest oci.Digest
	alone  string // the name of such an upstream, or ""
}

// fillKey returns the key of a source's fill.
func (s *source) fillKey(d oci.Digest) fillKey {
	if s.guarded {
		return fillKey{d, s.Name}
	}
	return fillKey{digest: d}
}

// fills are the blobs that are being fetched, and what earlier fills left in the
// directory.
type fills struct {
	dir string
	// count is how many there are: most of the time none, and then a reader need
	// not look.
	count atomic.Int64
	// memory is what those in RAM take together, in bytes.
	memory atomic.Int64

	mu    sync.RWMutex
	under map[fillKey]*fill
	parts map[fillKey]bool
}

// init finds what an earlier process left.
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

// scan notes what there is of blobs that nobody is fetching, and removes what is too
// old or of before the machine came up.
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
		if errors.Is(err, os.ErrNotExist) { // it has been stored since
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

// bootTime is when the machine came up. What was written before may never have
// reached the disk.
func bootTime() (time.Time, error) {
	var info syscall.Sysinfo_t
	if err := syscall.Sysinfo(&info); err != nil {
		return time.Time{}, os.NewSyscallError("sysinfo", err)
	}
	return time.Now().Add(-time.Duration(info.Uptime) * time.Second), nil
}

// path is the file of a blob that is being fetched.
func (fs *fills) path(k fillKey) string {
	name := k.digest.Algorithm().String() + "-" + k.digest.Encoded()
	if k.alone != "" {
		name += "-" + k.alone
	}
	return filepath.Join(fs.dir, name+partSuffix)
}

// partKey is the reverse of path.
func partKey(file string) (fillKey, bool) {
	name, isPart := strings.CutSuffix(file, partSuffix)
	alg, rest, ok := strings.Cut(name, "-")
	hex, alone, _ := strings.Cut(rest, "-")
	k := fillKey{oci.Digest(alg + ":" + hex), alone}
	return k, isPart && ok && oci.ValidDigest(k.digest)
}

// find returns the fill of a blob, if there is one. admitted reports whether its
// upstream has said that the repository has the blob.
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

// joined is how somebody came to a fill.
type joined int

const (
	// lookAgain: not at all. The store may have the blob by now.
	lookAgain joined = iota
	// stranger: the upstream has not said yet that the repository has the blob. That
	// it is being fetched for another must not help anybody who has no access.
	stranger
	// follower: as a reader, of a fill that was there.
	follower
	// beginner: as its first reader.
	beginner
)

// join makes the caller a reader of the fill of a blob, and begins the fill where
// there is none. again says that the store was asked twice.
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

// admit lets the readers of one more repository at a fill. It is called when its
// upstream has said that the blob is there. false: the fill has ended.
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

// close ends the admission to a fill, and returns the repositories it has.
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

// wholeBlob is the part of a blob that is all of it.
var wholeBlob = span{0, -1}

// span is n bytes from off; n < 0: all from there on.
type span struct{ off, n int64 }

// in returns the span cut to a blob of size bytes.
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
	if err == nil && size < 0 { // the upstream does not say it
		return m.measureBlob(ctx, s, name, repo, d)
	}
	return blobDescriptor(d, size), err
}

// measureBlob fetches a blob to find out its size, which is certain at the end only.
func (m *Registry) measureBlob(ctx context.Context, s *source, name, repo string, d oci.Digest) (oci.Descriptor, error) {
	c, err := m.openBlob(ctx, s, name, repo, d, wholeBlob)
	if err != nil {
		return oci.Descriptor{}, err
	}
	defer c.Close()
	size, err := c.WriteTo(io.Discard)
	return blobDescriptor(d, size), err
}

// askBlob asks the upstream whether a repository has a blob. Its size is -1 where the upstream
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
		// Of an empty blob there is no range, but all of it.
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

// maxLooks is how often a content is looked for that others fetch, store and forget
// at the same time.
const maxLooks = 5

// openBlob opens a part of a blob of a mirrored repository: where it is being
// fetched, or in the store, or else at the upstream.
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

// errChanging answers what others fetch and forget all the time.
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
			err = errLookAgain // the upstream has not said it of this repository
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

// introduce makes the caller a reader of a fill of another repository, if the
// upstream says that this one has the blob, too.
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
	if s.guarded && !f.right() { // its word alone is no reason to show what others have stored
		return errLookAgain
	}
	// It has come too late. If the blob was stored it only has to be linked, or else
	// it is fetched once more.
	if _, err := m.store.LinkStored(ctx, repo, f.digest); err != nil && !oci.HasCode(err, oci.CodeBlobUnknown) {
		m.log.Warn("show a blob in a repository", "repo", repo, "digest", f.digest, "err", err)
	}
	return errLookAgain
}

func blobDescriptor(d oci.Digest, size int64) oci.Descriptor {
	return oci.Descriptor{MediaType: oci.MediaTypeOctetStream, Digest: d, Size: size}
}
