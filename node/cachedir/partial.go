package cachedir

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"example.org/slipway/gear"
)

// ErrMissing is returned, wrapped, for bytes of a partial file whose chunk is not there
// yet.
var ErrMissing = errors.New("chunk is not there yet")

// Partial is a large file of which only some chunks may be present. All callers for the
// same file share one Partial. A chunk counts only after its bytes were compared with its
// digest. That happens when the chunk arrives. It happens again at the first use after a
// start, because a crash may have lost a part of the chunk. A Partial may be used
// concurrently.
type Partial struct {
	d    *Dir
	view ViewID
	f    gear.File
	sum  gear.Name // of the list of chunks

	// These are guarded by d.mu. stamp is the time of the last close.
	refs  int
	stamp int64
	bytes int64 // disk space as counted in d.partial

	// finish is held while the whole file is hashed and published. It is locked before
	// mu.
	finish sync.Mutex
	// io is held for reading while bytes are read or written, so that their chunks are
	// not given up meanwhile. It is locked after finish and before mu.
	io sync.RWMutex
	// mu guards all fields below. It is locked after finish and before d.mu.
	mu        sync.Mutex
	data, bm  *os.File // nil while no handle is open
	have      bitmap   // the contents of the bitmap on disk
	good      bitmap   // chunks that were compared with their digests
	left      int      // number of chunks that are not good
	published bool
	broken    error
}

// bitmap has one bit for each chunk.
type bitmap []byte

func (b bitmap) get(i int) bool { return b[i/8]>>(i%8)&1 != 0 }

func (b bitmap) set(i int, to bool) {
	b[i/8] &^= 1 << (i % 8)
	if to {
		b[i/8] |= 1 << (i % 8)
	}
}

// partialKey identifies a partial file. Each view has its own partial file, because a
// chunk proves something only to a view whose source has sent the chunk.
type partialKey struct {
	view ViewID
	name gear.Name
}

func (p *Partial) key() partialKey { return partialKey{p.view, p.f.Name} }

// String returns the name of the file with the chunks.
func (k partialKey) String() string {
	digits := hex.EncodeToString(k.name[:])
	if k.view == 0 {
		return digits
	}
	return k.view.String() + "-" + digits
}

// parsePartial is the inverse of partialKey.String.
func parsePartial(s string) (k partialKey, ok bool) {
	view, digits, inView := strings.Cut(s, "-")
	if !inView {
		digits = view
	} else if n, err := strconv.ParseUint(view, 16, 64); err == nil {
		k.view = ViewID(n)
	}
	k.name, ok = parseName(digits)
	return k, ok && k.String() == s
}

// path returns the path of the file with the chunks. The bitmap is beside it.
func (p *Partial) path() string { return filepath.Join(p.d.root, partialDir, p.key().String()) }

const bitmapSuffix = ".map"

// Partial opens a large file for storing its chunks, whether or not some are already
// there. Each handle must be closed. Errors: fs.ErrExist, wrapped, if the whole file is
// there; gear.ErrContent if the file is open with other chunks.
func (d *Dir) Partial(f gear.File) (*Partial, error) {
	v, err := d.View(0)
	if err != nil {
		return nil, err
	}
	return v.Partial(f)
}

// Partial is like [Dir.Partial], for a file that the view shows when the file is
// complete.
func (v *View) Partial(f gear.File) (*Partial, error) {
	d, key := v.d, partialKey{v.id, f.Name}
	if f.Size < gear.LargeFile || f.Size > gear.MaxFile || len(f.Chunks) != gear.ChunkCount(f.Size) {
		return nil, fmt.Errorf("file %x of %d bytes has %d chunks: %w", f.Name, f.Size, len(f.Chunks), gear.ErrContent)
	}
	sum := chunksSum(f.Chunks)
	d.mu.Lock()
	if v.has(f.Name) {
		d.mu.Unlock()
		return nil, fmt.Errorf("file %x: %w", f.Name, fs.ErrExist)
	}
	p := d.partials[key]
	if p != nil && p.refs == 0 && (p.f.Size != f.Size || p.sum != sum && p.sum != gear.Name{}) {
		d.dropPartial(p) // it belongs to an index that is no longer believed
		p = nil
	}
	if p == nil {
		p = &Partial{d: d, view: v.id}
		d.partials[key] = p
	}
	if p.refs == 0 {
		p.f, p.sum = f, sum
	}
	same := p.f.Size == f.Size && p.sum == sum
	if same {
		p.refs++
	}
	d.mu.Unlock()
	if !same {
		return nil, fmt.Errorf("file %x is open with other chunks: %w", f.Name, gear.ErrContent)
	}
	if err := p.open(); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// HasPart reports whether the view has a part of a large file.
func (v *View) HasPart(name gear.Name) bool {
	v.d.mu.Lock()
	defer v.d.mu.Unlock()
	return v.d.partials[partialKey{v.id, name}] != nil
}

// chunksSum returns the hash of a list of chunks.
func chunksSum(chunks []gear.Name) gear.Name {
	h := sha256.New()
	for i := range chunks {
		h.Write(chunks[i][:])
	}
	return gear.Name(h.Sum(nil))
}

// open opens the two files unless they are open.
func (p *Partial) open() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.data != nil || p.published || p.broken != nil {
		return p.broken
	}
	err := p.d.withRoom(0, p.openFiles)
	if err != nil {
		return fmt.Errorf("open partial file %x: %w", p.f.Name, err)
	}
	return nil
}

// openFiles is like open, for a caller that holds mu.
func (p *Partial) openFiles() error {
	path := p.path()
	data, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	bm, err := os.OpenFile(path+bitmapSuffix, os.O_RDWR|os.O_CREATE, 0o600)
	if err == nil {
		err = p.load(data, bm)
	}
	if err != nil {
		_ = data.Close()
		if bm != nil {
			_ = bm.Close()
		}
		return err
	}
	p.data, p.bm = data, bm
	return nil
}

// load reads the bitmap. If the bitmap does not belong to the file, load starts with an
// empty one.
func (p *Partial) load(data, bm *os.File) error {
	if p.good != nil { // it was open before
		return nil
	}
	n := len(p.f.Chunks)
	good := make(bitmap, (n+7)/8)
	raw, err := io.ReadAll(io.LimitReader(bm, mapHeader+int64(len(good))+1))
	if err != nil {
		return err
	}
	m, err := parseMap(raw)
	if err == nil && m.name == p.f.Name && m.size == p.f.Size && m.sum == p.sum {
		err = data.Truncate(p.f.Size)
	} else {
		m.bits = make(bitmap, len(good))
		err = p.begin(data, bm, m.bits)
	}
	if err != nil {
		return err
	}
	p.good, p.have, p.left = good, m.bits, n
	return nil
}

// begin resets both files for a content that has no chunks yet.
func (p *Partial) begin(data, bm *os.File, none bitmap) error {
	if err := data.Truncate(0); err != nil {
		return err
	}
	if err := data.Truncate(p.f.Size); err != nil {
		return err
	}
	if err := bm.Truncate(0); err != nil {
		return err
	}
	_, err := bm.WriteAt(mapRecord{p.f.Name, p.f.Size, p.sum, none}.append(nil), 0)
	return err
}

// Close releases the handle. The stored chunks stay.
func (p *Partial) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	d := p.d
	d.mu.Lock()
	defer d.mu.Unlock()
	p.refs--
	p.stamp = d.stamp()
	d.barren = false
	if p.refs > 0 || p.data == nil {
		return
	}
	_ = p.data.Close()
	if p.bm != nil {
		_ = p.bm.Close()
	}
	p.data, p.bm = nil, nil
	if p.broken != nil && d.partials[p.key()] == p {
		d.dropPartial(p)
	}
}

// Disown ends a file whose index is no longer believed. Reads through handles that are
// open return err, and later calls of Dir.Partial return another Partial. A completed
// file matches its name, and stays.
func (p *Partial) Disown(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.published {
		return
	}
	if p.broken == nil {
		p.broken = err
	}
	d := p.d
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.partials[p.key()] == p {
		d.dropPartial(p)
	}
}

// File returns the description of the file.
func (p *Partial) File() gear.File { return p.f }

// Missing returns the chunks of the n bytes from off that are not there.
func (p *Partial) Missing(off, n int64) []int {
	if n <= 0 || off >= p.f.Size || off < 0 {
		return nil
	}
	var out []int
	for i := int(off / gear.ChunkSize); i <= int((min(off+n, p.f.Size)-1)/gear.ChunkSize); i++ {
		if !p.ready(i) {
			out = append(out, i)
		}
	}
	return out
}

// Has reports whether a chunk is there and was compared with its digest.
func (p *Partial) Has(i int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.good.get(i)
}

// Left returns how many chunks have not come, or were not compared since the start.
func (p *Partial) Left() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.left
}

// ready reports whether a chunk is there. It compares the chunk with its digest if that
// was not done yet.
func (p *Partial) ready(i int) bool {
	p.mu.Lock()
	good, have, data := p.good.get(i), p.have.get(i), p.data
	p.mu.Unlock()
	if good || !have {
		return good
	}
	buf := make([]byte, gear.ChunkLen(p.f.Size, i))
	_, err := data.ReadAt(buf, int64(i)*gear.ChunkSize)
	ok := err == nil && sha256.Sum256(buf) == p.f.Chunks[i]
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.good.get(i) {
		return true
	}
	if ok {
		p.good.set(i, true)
		p.left--
		return true
	}
	if !p.have.get(i) {
		return false
	}
	// The chunk was lost in a crash, or damaged. It is cleared because a new copy omits
	// zero blocks.
	if err := clearChunk(data, p.f.Size, i); err != nil {
		p.broken = fmt.Errorf("clear chunk %d of partial file %x: %w", i, p.f.Name, err)
		return false
	}
	p.have.set(i, false)
	return false
}

// clearChunk replaces a chunk by a hole.
func clearChunk(data *os.File, size int64, i int) error {
	const how = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE
	return unix.Fallocate(int(data.Fd()), how, int64(i)*gear.ChunkSize, int64(gear.ChunkLen(size, i)))
}

// PutChunk adds a chunk. It ignores a chunk that is already there. Errors:
// gear.ErrContent if the bytes do not match the chunk's digest; ErrFull.
func (p *Partial) PutChunk(i int, b []byte) error {
	if i < 0 || i >= len(p.f.Chunks) || len(b) != gear.ChunkLen(p.f.Size, i) {
		return fmt.Errorf("chunk %d of file %x with %d bytes: %w", i, p.f.Name, len(b), gear.ErrContent)
	}
	if got := sha256.Sum256(b); got != p.f.Chunks[i] {
		return fmt.Errorf("chunk %d of file %x has the name %x: %w", i, p.f.Name, got, gear.ErrContent)
	}
	if err := p.write(i, b); err != nil {
		return err
	}
	return p.account()
}

// write is like PutChunk, for bytes that were compared with the chunk's digest.
func (p *Partial) write(i int, b []byte) error {
	p.io.RLock() // otherwise the chunk could be given up before all of it is written
	defer p.io.RUnlock()
	if p.ready(i) {
		return nil
	}
	p.mu.Lock()
	data, broken := p.data, p.broken
	p.mu.Unlock()
	if broken != nil {
		return broken
	}
	if data == nil {
		return fs.ErrClosed
	}
	// Two concurrent writers of the same chunk write the same bytes.
	if _, err := p.d.writeSparse(int(data.Fd()), b, int64(i)*gear.ChunkSize); err != nil {
		return fmt.Errorf("partial file %x: %w", p.f.Name, err)
	}
	if err := p.put(i); err != nil {
		return fmt.Errorf("bitmap of partial file %x: %w", p.f.Name, err)
	}
	return nil
}

// GiveUp gives up some chunks to make room for chunk i on a full disk. It begins with the
// chunks that a reader who continues from i reaches last. The chunks are missing
// afterwards. GiveUp reports whether there were any.
func (p *Partial) GiveUp(i int) (bool, error) {
	p.io.Lock()
	n, err := p.punch(i)
	p.io.Unlock()
	if err != nil || n == 0 {
		return false, err
	}
	if err := p.account(); err != nil {
		return false, err
	}
	return true, p.d.flush()
}

const (
	// giveUp is how many chunks are given up at a time. keepAhead is how many chunks from
	// chunk i on are given up last. It is the longest read-ahead.
	giveUp, keepAhead = 8, 32
)

// punch gives up chunks and returns how many. io is held.
func (p *Partial) punch(i int) (n int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.data == nil || p.published {
		return 0, nil
	}
	for _, j := range p.lastRead(i) {
		if n == giveUp {
			break
		}
		if err := clearChunk(p.data, p.f.Size, j); err != nil {
			return n, fmt.Errorf("give up chunk %d of partial file %x: %w", j, p.f.Name, err)
		}
		p.good.set(j, false)
		p.have.set(j, false)
		p.left++
		n++
	}
	if n > 0 {
		_, err = p.bm.WriteAt(p.have, mapHeader)
	}
	return n, err
}

// lastRead returns the chunks that are present, except for chunk i, in the order in which
// to give them up: first the chunks far ahead of i, then the chunks behind i, and last
// the chunks just ahead of i, beginning with the farthest. mu is held.
func (p *Partial) lastRead(i int) (out []int) {
	add := func(from, to int) {
		for j := max(from, 0); j < min(to, len(p.f.Chunks)); j++ {
			if p.good.get(j) {
				out = append(out, j)
			}
		}
	}
	add(i+keepAhead, len(p.f.Chunks))
	add(0, i)
	if len(out) == 0 {
		add(i+1, i+keepAhead)
		slices.Reverse(out)
	}
	return out
}

// put records that a chunk was written.
func (p *Partial) put(i int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.good.get(i) {
		return nil
	}
	p.good.set(i, true)
	p.have.set(i, true)
	p.left--
	if p.bm == nil {
		return nil
	}
	return p.d.withRoom(0, func() error {
		_, err := p.bm.WriteAt(p.have[i/8:i/8+1], mapHeader+int64(i/8))
		return err
	})
}

// account updates the disk space that the file is charged for.
func (p *Partial) account() error {
	defer p.d.makeRoom()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.data == nil || p.published || p.broken != nil {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(p.data.Fd()), &st); err != nil {
		return fmt.Errorf("stat partial file %x: %w", p.f.Name, err)
	}
	d := p.d
	d.mu.Lock()
	defer d.mu.Unlock()
	d.partial += st.Blocks*512 - p.bytes
	p.bytes = st.Blocks * 512
	return nil
}

// ReadAt reads bytes whose chunks are there. It returns io.EOF at the end of the file.
// Errors: ErrMissing, with the number of bytes before the first missing chunk.
func (p *Partial) ReadAt(b []byte, off int64) (int, error) {
	if off < 0 {
		return 0, fs.ErrInvalid
	}
	if off >= p.f.Size {
		return 0, io.EOF
	}
	want := b[:min(int64(len(b)), p.f.Size-off)]
	p.io.RLock()
	defer p.io.RUnlock()
	missing := p.Missing(off, int64(len(want)))
	if len(missing) > 0 {
		want = want[:max(0, int64(missing[0])*gear.ChunkSize-off)]
	}
	p.mu.Lock()
	data, broken := p.data, p.broken
	p.mu.Unlock()
	if broken != nil {
		return 0, broken
	}
	if data == nil {
		return 0, fs.ErrClosed
	}
	n, err := data.ReadAt(want, off)
	switch {
	case n == len(want) && len(missing) > 0:
		return n, fmt.Errorf("chunk %d of file %x: %w", missing[0], p.f.Name, ErrMissing)
	case n == len(want) && n < len(b):
		return n, io.EOF
	case n == len(want):
		return n, nil
	case errors.Is(err, io.EOF):
		err = io.ErrUnexpectedEOF // somebody truncated the file
	}
	return n, err
}

// Complete publishes the file if all chunks are there. It reads the whole file, because
// chunks that match an index need not form the content that the index names. The handle
// stays usable. Errors: ErrMissing; gear.ErrContent, after which reads through the handle
// fail.
func (p *Partial) Complete(ctx context.Context) error {
	p.finish.Lock()
	defer p.finish.Unlock()
	p.d.Pin(p.f.Name)
	defer p.d.Unpin(p.f.Name)
	if err := p.complete(ctx); err != nil {
		return err
	}
	p.d.makeRoom()
	return nil
}

// complete is like Complete, but does not make room for the file.
func (p *Partial) complete(ctx context.Context) error {
	p.io.RLock()
	defer p.io.RUnlock()
	p.mu.Lock()
	published, left, data, broken := p.published, p.left, p.data, p.broken
	p.mu.Unlock()
	switch {
	case broken != nil:
		return broken
	case published:
		return nil
	case left > 0:
		return fmt.Errorf("%d chunks of file %x: %w", left, p.f.Name, ErrMissing)
	case data == nil:
		return fs.ErrClosed
	}
	got, err := p.hash(ctx, data)
	if err != nil {
		return err
	}
	if got != p.f.Name {
		err := fmt.Errorf("file %x, all chunks of which are as its index says, has the name %x: %w", p.f.Name, got, gear.ErrContent)
		p.mu.Lock()
		p.broken = err
		p.mu.Unlock()
		return err
	}
	return p.publish(data)
}

// hash returns the SHA-256 of the whole file.
func (p *Partial) hash(ctx context.Context, data *os.File) (gear.Name, error) {
	h := sha256.New()
	r := io.NewSectionReader(data, 0, p.f.Size)
	buf := make([]byte, readBuffer)
	for {
		if err := ctx.Err(); err != nil {
			return gear.Name{}, err
		}
		n, err := r.Read(buf)
		h.Write(buf[:n])
		if errors.Is(err, io.EOF) {
			return gear.Name(h.Sum(nil)), nil
		}
		if err != nil {
			return gear.Name{}, fmt.Errorf("read partial file %x: %w", p.f.Name, err)
		}
	}
}

func (p *Partial) publish(data *os.File) error {
	d, from := p.d, p.path()
	link := func(to string) error {
		return unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.broken != nil { // the name may belong to another file by now
		return p.broken
	}
	// publish removes the chunks if the file was already published by somebody else.
	err := d.publish(p.f.Name, int(data.Fd()), link, func() { d.dropPartial(p) })
	if err != nil {
		return err
	}
	p.published = true
	v, err := d.View(p.view)
	if err == nil {
		err = v.Show(p.f.Name)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the file was evicted at once: the next open fetches it again
	}
	return err
}

// dropPartial removes a partial file. Handles that are open keep working. mu is held.
func (d *Dir) dropPartial(p *Partial) {
	d.partial -= p.bytes
	path := p.path()
	d.remove(p.f.Name, path+bitmapSuffix, 0)
	d.remove(p.f.Name, path, p.bytes)
	p.bytes = 0
	delete(d.partials, p.key())
}
