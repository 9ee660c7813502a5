package node

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"example.org/slipway/oci/volref"
	"example.org/slipway/volume/block"
)

// commit is the flight of Commit. The new volume is a clone of the image's volume, to
// which the blocks that the container changed are copied. So it does not depend on the
// container's clone, which the container continues to use.
func (m *Manager) commit(ctx context.Context, e *entry, id string) error {
	if e.rec == nil || e.rec.Phase != made {
		return fmt.Errorf("the container has no copy of an image on this node: %w", block.ErrNotFound)
	}
	if _, ok := m.mounted(e.name); !ok {
		return errors.New("the container's copy is not mounted; start the container first")
	}
	if e.rec.Commit != "" {
		if err := m.abandon(ctx, e); err != nil {
			return err
		}
	}
	r := *e.rec
	c, _, err := m.creds.forVolume(ctx, &r.Image, r.Volume, true)
	if err != nil {
		return fmt.Errorf("get a credential: %w", err)
	}
	there, err := m.exists(ctx, &r, c, id)
	if err != nil || there {
		return err
	}
	r.Commit = id
	if err := m.save(e, r); err != nil {
		return err
	}
	m.o.step("committing")
	if err := m.makeCommit(ctx, e, &r, c); err != nil {
		return errors.Join(err, m.abandon(ctx, e))
	}
	r.Commit = ""
	return m.save(e, r)
}

func (m *Manager) exists(ctx context.Context, r *record, c volref.Credential, id string) (there bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, m.o.Limits.Call)
	defer cancel()
	there, err = m.storage.Exists(ctx, r.Image.Place, c, id)
	if err != nil {
		err = fmt.Errorf("look for volume %s: %w", id, err)
	}
	return there, err
}

// makeCommit makes the volume r.Commit.
func (m *Manager) makeCommit(ctx context.Context, e *entry, r *record, c volref.Credential) error {
	if err := m.removeVolume(ctx, r, r.Commit); err != nil { // an earlier attempt may have left half of it
		return err
	}
	err := m.call(ctx, "clone", func(ctx context.Context) error {
		return m.storage.Clone(ctx, r.Image.Place, c, r.Commit, r.Volume)
	})
	if err != nil {
		return fmt.Errorf("clone volume %s: %w", r.Volume, err)
	}
	mp := r.committing(e.name)
	mp.Credential = c
	var file string
	err = m.call(ctx, "map", func(ctx context.Context) (err error) {
		file, err = m.storage.Map(ctx, mp)
		return err
	})
	if err != nil {
		return fmt.Errorf("map volume %s: %w", r.Commit, err)
	}
	if err := m.timed("copy", func() error { return m.copyTo(ctx, r.Mount, file) }); err != nil {
		return fmt.Errorf("copy what the container changed: %w", err)
	}
	if err := m.unmap(ctx, mp.Name, patience); err != nil {
		return err
	}
	return m.call(ctx, "commit", func(ctx context.Context) error {
		return m.storage.Commit(ctx, r.Image.Place, c, r.Commit)
	})
}

// abandon ends an interrupted commit: the container's writes continue, and the new volume
// is removed unless it is complete.
func (m *Manager) abandon(ctx context.Context, e *entry) error {
	r := *e.rec
	if r.Mount != nil && m.holds(r.Mount) == nil {
		if err := thaw(r.Mount.Dir); err != nil {
			return err
		}
	}
	if err := m.unmap(ctx, r.committing(e.name).Name, patience); err != nil {
		return err
	}
	c, _, err := m.creds.forVolume(ctx, &r.Image, r.Volume, true)
	if err != nil {
		return err
	}
	there, err := m.exists(ctx, &r, c, r.Commit)
	if err != nil {
		return err
	}
	if !there {
		if err := m.removeVolume(ctx, &r, r.Commit); err != nil {
			return err
		}
	}
	r.Commit = ""
	return m.save(e, r)
}

// copyTo copies the differences of a mounted file system to a volume, at one moment:
// writes wait meanwhile.
func (m *Manager) copyTo(ctx context.Context, from *mountRecord, to string) (err error) {
	src, err := openDirect(from.File, unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := openDirect(to, unix.O_RDWR)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dst.Close()) }()
	root, err := os.Open(from.Dir)
	if err != nil {
		return err
	}
	defer root.Close()
	// The first sync is before the freeze, so that little is left to flush while writers
	// wait.
	if err := unix.Syncfs(int(root.Fd())); err != nil {
		return fmt.Errorf("flush %s: %w", from.Dir, err)
	}
	if err := m.copyFrozen(ctx, root, src, dst); err != nil {
		return err
	}
	if err := markClean(dst); err != nil {
		return err
	}
	return dst.Sync()
}

func (m *Manager) copyFrozen(ctx context.Context, root, src, dst *os.File) (err error) {
	if err := ioctl(root, fiFreeze); err != nil {
		return fmt.Errorf("freeze %s: %w", root.Name(), err)
	}
	defer func() { err = errors.Join(err, thaw(root.Name())) }()
	m.o.step("freeze")
	used, err := usedExtents(root)
	if err != nil {
		return fmt.Errorf("list the blocks of %s: %w", root.Name(), err)
	}
	err = copyExtents(ctx, src, dst, used)
	m.o.step("copied")
	return err
}

// These are ioctls of file systems; see linux/fs.h.
const (
	fiFreeze = 0xc0045877
	fiThaw   = 0xc0045878
)

func ioctl(f *os.File, request uintptr) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), request, 0); errno != 0 {
		return errno
	}
	return nil
}

// thaw lets a file system be written again. A file system that is not frozen is not an
// error.
func thaw(dir string) error {
	root, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	if err := ioctl(root, fiThaw); err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("thaw %s; run fsfreeze -u on it: %w", dir, err)
	}
	return nil
}

// openDirect opens a mapping and bypasses the page cache, which lacks what a loop device
// wrote directly.
func openDirect(file string, flags int) (*os.File, error) {
	fd, err := unix.Open(file, flags|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: file, Err: err}
	}
	return os.NewFile(uintptr(fd), file), nil
}

const (
	blockSize = 4096
	// copyPiece is how many bytes each of copyWorkers reads at once. That hides the
	// storage's response time.
	copyPiece   = 1 << 20
	copyWorkers = 4
)

// copyExtents copies the blocks of src that differ in dst.
func copyExtents(ctx context.Context, src, dst *os.File, extents []block.Extent) error {
	pieces := make(chan block.Extent)
	var failed atomic.Pointer[error]
	var wait sync.WaitGroup
	for range copyWorkers {
		wait.Go(func() {
			a, b, free, err := copyBuffers()
			defer free()
			for p := range pieces {
				if err == nil {
					err = copyPieceOf(src, dst, p, a[:p.Len], b[:p.Len])
				}
				if err != nil {
					failed.CompareAndSwap(nil, &err)
				}
			}
		})
	}
	for _, x := range extents {
		for off := x.Off; off < x.Off+x.Len && failed.Load() == nil && ctx.Err() == nil; off += copyPiece {
			pieces <- block.Extent{Off: off, Len: min(copyPiece, x.Off+x.Len-off)}
		}
	}
	close(pieces)
	wait.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	return ctx.Err()
}

// copyBuffers returns two page-aligned buffers, as reads that bypass the page cache need
// them.
func copyBuffers() (a, b []byte, free func(), err error) {
	buf, err := unix.Mmap(-1, 0, 2*copyPiece, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, nil, func() {}, err
	}
	return buf[:copyPiece], buf[copyPiece:], func() { unix.Munmap(buf) }, nil
}

// copyPieceOf copies the differences of one piece. a and b are as long as the piece.
func copyPieceOf(src, dst *os.File, p block.Extent, a, b []byte) error {
	if _, err := src.ReadAt(a, p.Off); err != nil {
		return fmt.Errorf("read %s: %w", src.Name(), err)
	}
	if _, err := dst.ReadAt(b, p.Off); err != nil {
		return fmt.Errorf("read %s: %w", dst.Name(), err)
	}
	same := func(i int) bool { return bytes.Equal(a[i:i+blockSize], b[i:i+blockSize]) }
	for i := 0; i < len(a); {
		if same(i) {
			i += blockSize
			continue
		}
		from := i
		for i < len(a) && !same(i) {
			i += blockSize
		}
		if _, err := dst.WriteAt(a[from:i], p.Off+int64(from)); err != nil {
			return fmt.Errorf("write %s: %w", dst.Name(), err)
		}
	}
	return nil
}

// markClean marks an ext4 file system without a journal as cleanly unmounted. A frozen
// one is as good as that.
func markClean(dst *os.File) error {
	buf, err := unix.Mmap(-1, 0, blockSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	defer unix.Munmap(buf)
	if _, err := dst.ReadAt(buf, 0); err != nil {
		return fmt.Errorf("read %s: %w", dst.Name(), err)
	}
	sb := buf[1024:2048]
	le := binary.LittleEndian
	if le.Uint16(sb[0x38:]) != 0xef53 {
		return errors.New("the copy has no superblock of ext4")
	}
	le.PutUint16(sb[0x3a:], le.Uint16(sb[0x3a:])|1) // s_state: clean
	if le.Uint32(sb[0x64:])&0x400 != 0 {            // metadata_csum
		le.PutUint32(sb[0x3fc:], ^crc32.Checksum(sb[:0x3fc], crc32.MakeTable(crc32.Castagnoli)))
	}
	if _, err := dst.WriteAt(buf, 0); err != nil {
		return fmt.Errorf("write %s: %w", dst.Name(), err)
	}
	return nil
}
