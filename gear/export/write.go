package export

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"example.org/slipway/gear"
	"example.org/slipway/gear/dirfd"
	"example.org/slipway/gear/rootfs"
)

const (
	// holeSize is the shortest aligned run of zeros that becomes a hole. It is a multiple of all
	// usual block sizes, and long enough that the rest of a file is not fragmented.
	holeSize = 64 << 10
	// copyBuffer is how many bytes a worker reads at a time, 256 KiB. It divides
	// ChunkSize.
	copyBuffer = 4 * holeSize
)

var zeros [holeSize]byte

func (w *exporter) makeDir(ctx context.Context, t *tree, path string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if path == "." {
		return nil
	}
	dir, name, err := t.parent(path)
	if err == nil {
		// Only the process itself may look into an unfinished directory.
		err = unix.Mkdirat(dir, name, 0o700)
	}
	if err != nil {
		return fmt.Errorf("make directory %q: %w", path, err)
	}
	return nil
}

// finishDir sets the properties of a directory that adding entries to it would have
// changed.
func (w *exporter) finishDir(ctx context.Context, t *tree, e *gear.Entry) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	dir, name, err := t.parent(e.Path)
	var fd int
	if err == nil {
		fd, err = dirfd.Open(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	}
	if err != nil {
		return fmt.Errorf("open directory %q: %w", e.Path, err)
	}
	defer unix.Close(fd)
	return w.setMeta(dir, name, fd, e)
}

// makeNode makes an entry without content.
func (w *exporter) makeNode(t *tree, e *gear.Entry) error {
	dir, name, err := t.parent(e.Path)
	if err != nil {
		return fmt.Errorf("make %q: %w", e.Path, err)
	}
	major, minor := e.Major, e.Minor
	if w.opts.Lost != nil {
		_, major, minor, _ = gear.Mountable(&e.Entry) // setMeta reports what is left out
	}
	what := "fifo"
	switch e.Type {
	case rootfs.File:
		f, err := w.create(dir, name, e)
		if err != nil {
			return err
		}
		return w.finishFile(dir, name, f, e)
	case rootfs.Symlink:
		if err := unix.Symlinkat(e.Link, dir, name); err != nil {
			return fmt.Errorf("make symbolic link %q: %w", e.Path, err)
		}
		return w.setMeta(dir, name, -1, e)
	case rootfs.Fifo:
		err = unix.Mknodat(dir, name, unix.S_IFIFO|0o600, 0)
	case rootfs.Socket:
		what = "socket"
		err = unix.Mknodat(dir, name, unix.S_IFSOCK|0o600, 0)
	case rootfs.CharDevice:
		what = fmt.Sprintf("character device %d:%d", major, minor)
		err = unix.Mknodat(dir, name, unix.S_IFCHR|0o600, int(unix.Mkdev(major, minor)))
	default:
		what = fmt.Sprintf("block device %d:%d", major, minor)
		err = unix.Mknodat(dir, name, unix.S_IFBLK|0o600, int(unix.Mkdev(major, minor)))
	}
	if err != nil {
		return w.lose(e, what, err)
	}
	return w.setMeta(dir, name, -1, e)
}

func (w *exporter) create(dir int, name string, e *gear.Entry) (*os.File, error) {
	fd, err := dirfd.Open(dir, name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW)
	if err != nil {
		return nil, fmt.Errorf("make file %q: %w", e.Path, err)
	}
	return os.NewFile(uintptr(fd), e.Path), nil
}

// finishFile completes a file whose content has been written, and closes it.
func (w *exporter) finishFile(dir int, name string, f *os.File, e *gear.Entry) error {
	err := w.setMeta(dir, name, int(f.Fd()), e)
	if cerr := f.Close(); err == nil && cerr != nil {
		err = fmt.Errorf("write file %q: %w", e.Path, cerr)
	}
	if err == nil {
		w.report(func(p *Progress) {
			p.Files++
			p.Bytes += e.Size
		})
	}
	return err
}

// writeContent writes one content to all its paths. It writes the first file from r, and
// copies the other files from the first one while the content is in the page cache.
func (w *exporter) writeContent(ctx context.Context, t *tree, c content, r io.Reader, buf []byte) error {
	first := c.entries[0]
	dir, name, err := t.parent(first.Path)
	if err != nil {
		return fmt.Errorf("make file %q: %w", first.Path, err)
	}
	f, err := w.create(dir, name, first)
	if err != nil {
		return err
	}
	if err := writeVerified(ctx, f, c.file, r, buf); err != nil {
		f.Close()
		return fmt.Errorf("file %q: %w", first.Path, err)
	}
	w.report(func(p *Progress) { p.Fetched += c.file.Size })
	for _, e := range c.entries[1:] {
		if err := w.duplicate(ctx, t, f, e, buf); err != nil {
			f.Close()
			return err
		}
	}
	if len(c.entries) > 1 { // making the others may have entered other directories
		if dir, name, err = t.parent(first.Path); err != nil {
			f.Close()
			return fmt.Errorf("file %q: %w", first.Path, err)
		}
	}
	return w.finishFile(dir, name, f, first)
}

// duplicate makes a file with the content of from. It shares the blocks if the file
// system can do that.
func (w *exporter) duplicate(ctx context.Context, t *tree, from *os.File, e *gear.Entry, buf []byte) error {
	dir, name, err := t.parent(e.Path)
	if err != nil {
		return fmt.Errorf("make file %q: %w", e.Path, err)
	}
	f, err := w.create(dir, name, e)
	if err != nil {
		return err
	}
	if unix.IoctlFileClone(int(f.Fd()), int(from.Fd())) != nil { // a reflink is optional
		r := io.NewSectionReader(from, 0, e.Size)
		if err := writeSparse(ctx, f, r, e.Size, buf, nil); err != nil {
			f.Close()
			return fmt.Errorf("file %q: copy of %q: %w", e.Path, from.Name(), err)
		}
	}
	return w.finishFile(dir, name, f, e)
}

// verifier checks a content against its name or, if there are chunks, against the names
// of the chunks. These cover every byte as well, and show where a wrong byte is.
type verifier struct {
	file *gear.File
	sum  hash.Hash
	fill int // bytes of the chunk so far
	next int // index of the chunk
}

func (v *verifier) write(p []byte) error {
	for len(p) > 0 {
		n := len(p)
		if len(v.file.Chunks) > 0 {
			n = min(n, gear.ChunkSize-v.fill)
		}
		v.sum.Write(p[:n])
		v.fill += n
		p = p[n:]
		if len(v.file.Chunks) > 0 && v.fill == gear.ChunkSize {
			if err := v.end(); err != nil {
				return err
			}
		}
	}
	return nil
}

// end checks what has arrived since the last chunk.
func (v *verifier) end() error {
	var got, want gear.Name
	v.sum.Sum(got[:0])
	if len(v.file.Chunks) == 0 {
		if want = v.file.Name; got != want {
			return fmt.Errorf("content %x has the wrong SHA-256 %x", want, got)
		}
		return nil
	}
	if v.next == len(v.file.Chunks) {
		return nil // the last chunk was a full one
	}
	if want = v.file.Chunks[v.next]; got != want {
		return fmt.Errorf("content %x: chunk %d has the SHA-256 %x, want %x", v.file.Name, v.next, got, want)
	}
	v.next++
	v.fill = 0
	v.sum.Reset()
	return nil
}

// writeVerified writes r, which must hold exactly the content want, to the empty file f.
func writeVerified(ctx context.Context, f *os.File, want *gear.File, r io.Reader, buf []byte) error {
	v := &verifier{file: want, sum: sha256.New()}
	if err := writeSparse(ctx, f, r, want.Size, buf, v); err != nil {
		return err
	}
	if n, err := io.ReadFull(r, buf[:1]); n > 0 {
		return fmt.Errorf("content %x is longer than its %d bytes", want.Name, want.Size)
	} else if !errors.Is(err, io.EOF) {
		return fmt.Errorf("read content %x: %w", want.Name, err)
	}
	return v.end()
}

// writeSparse writes size bytes of r to the empty file f, with runs of zeros as holes. If v is not
// nil, it gets all bytes too.
func writeSparse(ctx context.Context, f *os.File, r io.Reader, size int64, buf []byte, v *verifier) error {
	var off int64
	hole := false // f ends before off
	for off < size {
		if err := ctx.Err(); err != nil {
			return err
		}
		b := buf[:min(int64(len(buf)), size-off)]
		if n, err := io.ReadFull(r, b); err != nil {
			return fmt.Errorf("content ends after %d of %d bytes: %w", off+int64(n), size, err)
		}
		if v != nil {
			if err := v.write(b); err != nil {
				return err
			}
		}
		for len(b) > 0 {
			n := dataRun(b)
			hole = n == 0
			if hole {
				n = holeSize
			} else if _, err := f.WriteAt(b[:n], off); err != nil {
				return err
			}
			off += int64(n)
			b = b[n:]
		}
	}
	if hole {
		return f.Truncate(size)
	}
	return nil
}

// dataRun returns how many bytes b has before the first run of zeros that must become a hole. b
// begins where a hole may begin.
func dataRun(b []byte) int {
	n := 0
	for n+holeSize <= len(b) {
		if b[n] == 0 && bytes.Equal(b[n:n+holeSize], zeros[:]) {
			return n
		}
		n += holeSize
	}
	return len(b)
}
