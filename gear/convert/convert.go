// Package convert turns layers into indexes and files.
package convert

import (
	"context"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"example.org/slipway/gear"
	"example.org/slipway/gear/rootfs"
	"example.org/slipway/oci"
)

// Sink takes the files of a layer. Its methods are called by one goroutine. The files
// that it was given count only once the caller of Layer, on success, commits them. The
// commit is not part of this interface.
type Sink interface {
	// Missing reports for each name whether the sink wants the file, and claims the
	// wanted names for this conversion. No name is passed twice, and the name of
	// gear.Empty is never passed.
	Missing(ctx context.Context, names []gear.Name) ([]bool, error)
	// Put hands over a file that is missing. Files come in the order in which they first
	// appear in the layer. From here on the sink owns the content, even if Put fails. It
	// must release the content. The release must not wait for further calls, because the
	// conversion may need the memory to continue.
	Put(ctx context.Context, f gear.File, content Content) error
}

// Content is the content of a file. It is valid until it is released. ReadAt may run
// concurrently. Release may be called more than once.
type Content interface {
	io.ReaderAt
	Release()
}

// Want says what a layer must turn out to be. Empty fields are not known.
type Want struct {
	// Digest is the digest of the layer as it arrives. DiffID is the digest of the tar in
	// it, which must be SHA-256.
	Digest, DiffID oci.Digest
}

// Options adjust a conversion.
type Options struct {
	// Workers is how many files are hashed at a time; default GOMAXPROCS. The result does
	// not depend on it.
	Workers int
	// MemoryBytes bounds the contents held in memory, in bytes, including the contents
	// that the sink has not released; default 128 MiB, minimum 8 MiB. A file of more than
	// a quarter of it, or of more than 16 MiB, goes to a temporary file.
	MemoryBytes int64
	// TempDir is the directory for temporary files; default os.TempDir. The files have no
	// name.
	TempDir string
	// Layer bounds how much work and memory reading a layer may cost.
	Layer *rootfs.Options
	// Index bounds the layer's index.
	Index *gear.Limits
	// Progress, when set, is called with the number of bytes of the layer that have been
	// read and the number of entries found, at least every few MiB and at the end. Calls
	// do not overlap.
	Progress func(bytes, entries int64)
	// IndexOnly, when set, is called again and again. After it has returned true, it must
	// not return false again, and the sink must want no further file. Large files are
	// then hashed without being kept. It may be called while a method of the sink runs.
	IndexOnly func() bool
}

// Result describes a converted layer.
type Result struct {
	Index *gear.Index
	Sums  rootfs.Sums
	// New and NewBytes are the number and the total size of the files that the sink was
	// given.
	New      int
	NewBytes int64
}

// Layer turns a layer, compressed or not, into its index and gives the sink the files
// that it lacks. For the same layer and the same answers of the sink, the calls of the
// sink and the result are the same. The layer is read to its end, and its digests are
// compared with want.
//
// ctx bounds the call, but Layer waits for a Read of layer that blocks. On failure the
// sink keeps what it was given, and the caller must discard that. Errors:
// *gear.MismatchError, gear.ErrConflict, gear.ErrTooLarge, the errors of package rootfs
// for a layer that is damaged or too large, and the errors of the sink, of layer and of
// ctx.
func Layer(ctx context.Context, layer io.Reader, want Want, sink Sink, opts *Options) (*Result, error) {
	if opts == nil {
		opts = &Options{}
	}
	if s := string(want.DiffID); s != "" && !strings.HasPrefix(s, "sha256:") {
		return nil, fmt.Errorf("convert layer: diff ID %s cannot be compared, only those of SHA-256 can", s)
	}
	c := &converter{opts: opts, sink: sink, build: gear.NewBuilder(opts.Index)}
	src := &countingReader{r: layer}
	if strings.HasPrefix(string(want.Digest), "sha512:") {
		src.sum = sha512.New()
	}
	if err := c.run(ctx, src); err != nil {
		return nil, fmt.Errorf("convert layer: %w", err)
	}
	if err := want.compare(c.out.Sums, src.sum); err != nil {
		return nil, fmt.Errorf("convert layer: %w", err)
	}
	x, err := c.build.Index()
	if err != nil {
		return nil, fmt.Errorf("convert layer: %w", err)
	}
	c.out.Index = x
	return &c.out, nil
}

func (w Want) compare(sums rootfs.Sums, sum512 hash.Hash) error {
	got := oci.Digest("sha256:" + hex.EncodeToString(sums.Digest[:]))
	if sum512 != nil {
		got = oci.Digest("sha512:" + hex.EncodeToString(sum512.Sum(nil)))
	}
	if w.Digest != "" && w.Digest != got {
		return &gear.MismatchError{What: "digest", Want: w.Digest, Got: got}
	}
	got = oci.Digest("sha256:" + hex.EncodeToString(sums.DiffID[:]))
	if w.DiffID != "" && w.DiffID != got {
		return &gear.MismatchError{What: "diff ID", Want: w.DiffID, Got: got}
	}
	return nil
}

// countingReader counts the bytes of a layer as they are read. It hashes them if nothing
// else hashes them.
type countingReader struct {
	r   io.Reader
	n   atomic.Int64
	sum hash.Hash // may be nil
}

func (c *countingReader) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	c.n.Add(int64(n))
	if c.sum != nil {
		c.sum.Write(b[:n])
	}
	return n, err
}

// A batch has the files that the sink is asked about in one call. The bounds of a batch
// depend only on the layer, so that the sink gets the same calls at any speed.
const (
	askFiles = 256 // a round trip to a catalogue is short compared with the work for so many files
	// askBlocks is the maximum number of blocks. It is small, so that bytes to be
	// compressed were written and hashed a moment ago and are still in the processor's
	// cache.
	askBlocks    = 4
	askTempBytes = 256 << 20 // in temporary files
)

// item is an entry on its way through the converter. file and content are set for a
// regular file.
type item struct {
	entry   *rootfs.Entry
	file    gear.File
	content Content // nil for an empty file
}

// batch is a run of entries. hashing is done when their files have names.
type batch struct {
	items   []*item
	files   int
	memory  int // blocks, each counted once
	last    *block
	temp    int64 // bytes
	hashing sync.WaitGroup
}

// release releases the remaining contents of a batch, once nobody reads it any more.
func (b *batch) release() {
	b.hashing.Wait()
	for _, it := range b.items {
		if it.content != nil {
			it.content.Release()
		}
	}
}

// converter is one conversion. read fills batches and feed empties them. The two are
// never more than one batch apart. In between, hash gives files their names.
type converter struct {
	opts  *Options
	sink  Sink
	build *gear.Builder
	out   Result

	spool    *spooler
	jobs     chan func()
	batches  chan *batch
	entries  int64
	reported int64
}

func (c *converter) run(ctx context.Context, src *countingReader) error {
	workers := c.opts.Workers
	if workers <= 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	c.spool = newSpooler(c.opts.MemoryBytes, c.opts.TempDir)
	c.jobs, c.batches = make(chan func(), workers), make(chan *batch)
	g, ctx := errgroup.WithContext(ctx)
	for range workers {
		g.Go(func() error {
			for job := range c.jobs {
				job()
			}
			return nil
		})
	}
	g.Go(func() error {
		defer close(c.jobs)
		defer close(c.batches)
		return c.read(ctx, src)
	})
	g.Go(func() error {
		for b := range c.batches {
			if err := c.feed(ctx, b); err != nil {
				return err
			}
		}
		return nil
	})
	return g.Wait()
}

// read reads the layer and spools the contents of its files.
func (c *converter) read(ctx context.Context, src *countingReader) error {
	r, err := rootfs.Open(ctx, src, c.opts.Layer)
	if err != nil {
		return err
	}
	defer r.Close()
	defer c.spool.close()
	c.spool.tick = func() { c.progress(src, 1<<20) }
	b := &batch{}
	defer func() { b.release() }()
	for {
		e, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		it := &item{entry: e}
		b.items = append(b.items, it)
		if e.Type == rootfs.File {
			if err := c.file(ctx, b, it, r); err != nil {
				return err
			}
		}
		c.entries++
		c.progress(src, 1<<20)
		if b.files >= askFiles || len(b.items) >= 4*askFiles || b.temp >= askTempBytes || b.memory >= min(askBlocks, c.spool.blocks/4) {
			full := b
			b = &batch{} // the sent batch belongs to the other side, or was released
			if err := c.send(ctx, full); err != nil {
				return err
			}
		}
	}
	c.out.Sums, _ = r.Sums()
	last := b
	b = &batch{}
	c.progress(src, 0)
	return c.send(ctx, last)
}

// send hands a batch over, or releases it.
func (c *converter) send(ctx context.Context, b *batch) error {
	select {
	case c.batches <- b:
		return nil
	case <-ctx.Done():
		b.release()
		return context.Cause(ctx)
	}
}

// progress reports if step bytes have been read since the last report.
func (c *converter) progress(src *countingReader, step int64) {
	n := src.n.Load()
	if c.opts.Progress != nil && n >= c.reported+step {
		c.reported = n
		c.opts.Progress(n, c.entries)
	}
}

// file spools the content of a file and gets it hashed.
func (c *converter) file(ctx context.Context, b *batch, it *item, r io.Reader) error {
	b.files++
	it.file.Size = it.entry.Size
	if it.entry.Size == 0 {
		it.file = gear.Empty()
		return nil
	}
	if it.entry.Size > c.spool.inMemory() {
		b.temp += it.entry.Size
		content, err := c.spool.toDisk(ctx, r, &it.file, c.opts.IndexOnly)
		if content != nil {
			it.content = content
		}
		return err
	}
	content, err := c.spool.toMemory(ctx, r, it.entry.Size)
	if err != nil {
		return err
	}
	it.content = content
	b.memory += len(content.blocks)
	if content.blocks[0] == b.last {
		b.memory-- // small files share one
	}
	b.last = content.blocks[len(content.blocks)-1]
	if it.entry.Size < inlineHash {
		content.hash(&it.file)
		return nil
	}
	b.hashing.Add(1)
	c.jobs <- func() { // workers never wait for anything
		defer b.hashing.Done()
		content.hash(&it.file)
	}
	return nil
}

// inlineHash is the size in bytes below which handing a file to another goroutine takes
// about as long as hashing it: 10 µs at 1.7 GB/s.
const inlineHash = 16 << 10

// feed adds a batch to the index and gives the sink the files that it lacks.
func (c *converter) feed(ctx context.Context, b *batch) error {
	defer b.release()
	b.hashing.Wait()
	var ask []*item
	var names []gear.Name
	for _, it := range b.items {
		if it.entry.Type == rootfs.File && it.content != nil && !c.build.Knows(it.file.Name) {
			ask = append(ask, it)
			names = append(names, it.file.Name)
		}
		if err := c.build.Add(*it.entry, it.file); err != nil {
			return err
		}
	}
	if len(ask) == 0 {
		return ctx.Err()
	}
	missing, err := c.sink.Missing(ctx, names)
	if err != nil {
		return fmt.Errorf("ask for missing files: %w", err)
	}
	if len(missing) != len(names) {
		return fmt.Errorf("ask for missing files: %d answers to %d names", len(missing), len(names))
	}
	for i, it := range ask {
		if !missing[i] {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		content := it.content
		it.content = nil // the sink owns it now
		if err := c.sink.Put(ctx, it.file, content); err != nil {
			return fmt.Errorf("put file %x: %w", it.file.Name, err)
		}
		c.out.New++
		c.out.NewBytes += it.file.Size
	}
	return nil
}
