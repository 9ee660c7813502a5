package dedup

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"slices"

	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"

	"example.org/slipway/gear/rootfs"
)

// inMemory is the size in bytes up to which a file is examined in memory.
const inMemory = 16 << 20

// scanner reads layers, one at a time. Each worker has its own scanner.
type scanner struct {
	table *contents
	enc   *zstd.Encoder
	count func(bytes int64, layers int)
	temp  string

	mem   []byte   // the file being examined, if it fits
	spill *os.File // the file being examined, if it does not fit in mem; it has no name on disk
	out   []byte   // what EncodeAll wrote last
	chunk []byte
}

// scannerError is an error of the scanner itself and not of the layer that it reads.
type scannerError struct{ err error }

func (e *scannerError) Error() string { return e.err.Error() }
func (e *scannerError) Unwrap() error { return e.err }

func newScanner(table *contents, level int, temp string, count func(int64, int)) (*scanner, error) {
	// The encoder writes no checksum in frames, because a content's name is a checksum.
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.EncoderLevelFromZstd(level)), zstd.WithEncoderConcurrency(1), zstd.WithEncoderCRC(false))
	if err != nil {
		return nil, fmt.Errorf("set up zstd: %w", err)
	}
	return &scanner{table: table, enc: enc, count: count, temp: temp, chunk: make([]byte, ChunkSize)}, nil
}

func (s *scanner) close() {
	_ = s.enc.Close()
	if s.spill != nil {
		_ = s.spill.Close()
	}
}

// scan reads a layer at a place into l, and returns how many bytes of the blob were read.
func (s *scanner) scan(ctx context.Context, p place, l *layer) (int64, error) {
	if err := l.desc.Digest.Validate(); err != nil {
		return 0, err
	}
	blob, err := p.blob(ctx, l.desc)
	if err != nil {
		return 0, err
	}
	defer blob.Close()
	in := &blobReader{r: blob, count: s.count}
	if l.desc.Digest.Algorithm() != digest.SHA256 {
		in.hash = l.desc.Digest.Algorithm().Hash()
	}
	sums, files, err := s.entries(ctx, in)
	if err != nil {
		return in.n, err
	}
	sum := digest.NewDigestFromBytes(digest.SHA256, sums.Digest[:])
	if in.hash != nil {
		sum = digest.NewDigest(l.desc.Digest.Algorithm(), in.hash)
	}
	if in.n != l.desc.Size || sum != l.desc.Digest {
		return in.n, fmt.Errorf("damaged: %d bytes with the digest %s, want %d bytes", in.n, sum, l.desc.Size)
	}
	l.raw, l.files = sums.Uncompressed, files
	return in.n, nil
}

// entries reads the entries of a layer. When it returns, nothing reads from in any more.
func (s *scanner) entries(ctx context.Context, in io.Reader) (sums rootfs.Sums, files recording, err error) {
	r, err := rootfs.Open(ctx, in, nil)
	if err != nil {
		return sums, nil, err
	}
	defer r.Close()
	var rec recorder
	for {
		e, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return sums, nil, err
		}
		id := uint32(0)
		if e.Type == rootfs.File {
			if id, err = s.file(r, e.Size); err != nil {
				return sums, nil, fmt.Errorf("%q: %w", e.Path, err)
			}
		}
		rec.add(e, id)
	}
	sums, _ = r.Sums() // known, because Next came to the end
	return sums, rec.finish(s.enc), nil
}

// file reads a file and returns its number. If the content is new, file compresses it
// whole and by chunks.
func (s *scanner) file(r io.Reader, size int64) (uint32, error) {
	n, err := s.spool(r, size)
	if err != nil {
		return 0, err
	}
	id, mine := s.table.claim(n, size)
	if !mine {
		return id, nil
	}
	compressed, err := s.compressed(size)
	if err != nil {
		return 0, err
	}
	s.table.settle(id, compressed)
	if size > ChunkSize {
		return id, s.cut(id, size)
	}
	return id, nil
}

// spool keeps a file in memory or on disk and returns its name.
func (s *scanner) spool(r io.Reader, size int64) (name, error) {
	if size <= inMemory {
		s.mem = slices.Grow(s.mem[:0], int(size))[:size]
		if _, err := io.ReadFull(r, s.mem); err != nil {
			return name{}, unexpected(err)
		}
		return sha256.Sum256(s.mem), nil
	}
	if err := s.openSpill(); err != nil {
		return name{}, &scannerError{err}
	}
	h := sha256.New()
	w := &spillWriter{f: s.spill}
	if n, err := io.Copy(io.MultiWriter(w, h), r); w.err != nil {
		return name{}, &scannerError{fmt.Errorf("write a temporary file: %w", w.err)}
	} else if err != nil {
		return name{}, unexpected(err)
	} else if n != size {
		return name{}, io.ErrUnexpectedEOF
	}
	return name(h.Sum(nil)), nil
}

// unexpected turns an end of a file before its full size into an error that is not
// mistaken for the end of a layer.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// openSpill creates the temporary file and removes its name at once, so that nothing
// remains however the process ends. The file is reused for the next large file.
func (s *scanner) openSpill() error {
	if s.spill != nil {
		return nil
	}
	f, err := os.CreateTemp(s.temp, "slipway-dedup-*")
	if err != nil {
		return err
	}
	if err := os.Remove(f.Name()); err != nil {
		return errors.Join(err, f.Close())
	}
	s.spill = f
	return nil
}

// spillWriter writes a file from its beginning and keeps its own error, which io.Copy
// would not distinguish from an error of the source.
type spillWriter struct {
	f   *os.File
	off int64
	err error
}

func (w *spillWriter) Write(p []byte) (n int, err error) {
	n, err = w.f.WriteAt(p, w.off)
	w.off += int64(n)
	w.err = err
	return n, err
}

// compressed returns the compressed size of the spooled file.
func (s *scanner) compressed(size int64) (int64, error) {
	if size <= inMemory {
		s.out = s.enc.EncodeAll(s.mem, s.out[:0])
		return int64(len(s.out)), nil
	}
	var w countingWriter
	s.enc.Reset(&w)
	if _, err := s.enc.ReadFrom(io.NewSectionReader(s.spill, 0, size)); err != nil {
		return 0, &scannerError{fmt.Errorf("read a temporary file: %w", err)}
	}
	if err := s.enc.Close(); err != nil {
		return 0, &scannerError{err}
	}
	return int64(w), nil
}

// cut computes the names and compressed sizes of the chunks of the spooled file.
func (s *scanner) cut(id uint32, size int64) error {
	pieces := make([]uint32, 0, (size+ChunkSize-1)/ChunkSize)
	for off := int64(0); off < size; off += ChunkSize {
		n := min(ChunkSize, size-off)
		chunk := s.chunk[:n]
		if size <= inMemory {
			chunk = s.mem[off : off+n]
		} else if _, err := s.spill.ReadAt(chunk, off); err != nil {
			return &scannerError{fmt.Errorf("read a temporary file: %w", err)}
		}
		piece, mine := s.table.claim(sha256.Sum256(chunk), n)
		if mine {
			s.out = s.enc.EncodeAll(chunk, s.out[:0])
			s.table.settle(piece, int64(len(s.out)))
		}
		pieces = append(pieces, piece)
	}
	s.table.cut(id, pieces)
	return nil
}

type countingWriter int64

func (w *countingWriter) Write(p []byte) (int, error) {
	*w += countingWriter(len(p))
	return len(p), nil
}

// blobReader counts the bytes read of a blob. It hashes them if the digest needs an
// algorithm other than the layer reader's SHA-256.
type blobReader struct {
	r     io.Reader
	hash  hash.Hash // or nil
	n     int64
	count func(bytes int64, layers int)
}

func (b *blobReader) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if b.hash != nil {
		b.hash.Write(p[:n])
	}
	b.n += int64(n)
	b.count(int64(n), 0)
	return n, err
}
