package cachedir

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"example.org/slipway/gear"
)

// readBuffer is how many bytes are read at a time when hashing a file.
const readBuffer = 256 << 10

// recover fills the table from the directory. No other goroutine has the Dir yet.
func (d *Dir) recover() error {
	s := d.readState()
	if err := emptyDir(filepath.Join(d.root, tmpDir)); err != nil {
		return err
	}
	// Files published in this run of the kernel are in its memory, if not on disk.
	sound := s.Durable
	if s.Boot == d.opts.Boot && !s.Failed {
		sound = maxGeneration
	}
	w := &walk{d: d, sound: sound, youngest: s.Durable}
	if err := w.run(); err != nil {
		return err
	}
	if err := d.loadViews(); err != nil {
		return err
	}
	if err := d.loadPartials(); err != nil {
		return err
	}
	d.durable, d.gen = s.Durable, w.youngest+1
	if d.gen >= maxGeneration {
		return fmt.Errorf("the cache directory has used up its %d generations", maxGeneration)
	}
	// The state records the boot in which files are published from now on. If it cannot
	// be written, a later Open takes these files for files of another boot, and only has
	// to hash them again. So a full disk is no reason to fail.
	err := d.writeState(state{Boot: d.opts.Boot, Durable: s.Durable})
	if errors.Is(err, ErrFull) {
		d.log.Warn("the cache is used although its state cannot be written", "err", err)
		err = nil
	}
	if err != nil {
		return err
	}
	if d.dirty = w.youngest > s.Durable || len(w.suspects) > 0; d.dirty {
		d.wake <- struct{}{}
	}
	return nil
}

// emptyDir removes the contents of a directory.
func emptyDir(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
	}
	return err
}

// walk collects the complete files.
type walk struct {
	d *Dir
	// sound is the last generation that needs no hashing. youngest is the last generation
	// found.
	sound, youngest uint32
	suspects        []suspect
}

// suspect is a file whose content may not match its name.
type suspect struct {
	name  gear.Name
	stamp int64
}

func (w *walk) run() error {
	for i := range 256 {
		if err := w.dir(hex.EncodeToString([]byte{byte(i)})); err != nil {
			return err
		}
	}
	if len(w.suspects) == 0 {
		return nil
	}
	w.d.log.Info("hash cached files again after an unclean stop", "files", len(w.suspects))
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for _, s := range w.suspects {
		g.Go(func() error { return w.check(s) })
	}
	return g.Wait()
}

// dir lists one of the 256 directories.
func (w *walk) dir(sub string) error {
	path := filepath.Join(w.d.root, filesDir, sub)
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	for {
		list, err := f.Readdirnames(1024)
		for _, base := range list {
			if err := w.file(int(f.Fd()), sub, base); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (w *walk) file(dirfd int, sub, base string) error {
	path := filepath.Join(w.d.root, filesDir, sub, base)
	name, ok := parseName(sub + base)
	if !ok {
		return os.RemoveAll(path)
	}
	var st unix.Stat_t
	if err := unix.Fstatat(dirfd, base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("stat %s: %w", path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return os.RemoveAll(path)
	}
	at := st.Ctim.Nano()
	if w.d.opts.Policy == LRU {
		at = st.Atim.Nano() // see markUsed
	}
	if isGeneration(st.Mtim.Sec) && uint32(st.Mtim.Sec) <= w.sound {
		w.youngest = max(w.youngest, uint32(st.Mtim.Sec))
		w.d.files.add(&name, blocksOf(st.Blocks), at)
		w.d.used += st.Blocks * 512
		return nil
	}
	if isGeneration(st.Mtim.Sec) {
		w.youngest = max(w.youngest, uint32(st.Mtim.Sec))
	}
	w.suspects = append(w.suspects, suspect{name, at})
	return nil
}

// parseName parses 64 lower-case hex digits.
func parseName(s string) (gear.Name, bool) {
	var name gear.Name
	if len(s) != 2*len(name) || strings.ToLower(s) != s {
		return name, false
	}
	_, err := hex.Decode(name[:], []byte(s))
	return name, err == nil
}

// check hashes a file. It either keeps it, as a file of the next generation, or removes
// it.
func (w *walk) check(s suspect) error {
	path := w.d.path(s.name)
	got, err := hashFile(context.Background(), path, nil)
	w.d.mu.Lock()
	defer w.d.mu.Unlock()
	w.d.stats.Rehashed++
	if err == nil && got == s.name {
		times := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Sec: int64(w.youngest) + 1}}
		if err = unix.UtimesNanoAt(unix.AT_FDCWD, path, times, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return fmt.Errorf("mark %s: %w", path, err)
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		w.d.files.add(&s.name, blocksOf(st.Blocks), s.stamp)
		w.d.used += st.Blocks * 512
		return nil
	}
	w.d.stats.Damaged++
	w.d.log.Warn("cached file is damaged and was removed", "file", hex.EncodeToString(s.name[:]), "why", "an unclean stop, or somebody wrote to it", "err", err)
	return os.Remove(path)
}

// hashFile returns the SHA-256 of a file as it is on disk. If spend is not nil, it is
// called before each read.
func hashFile(ctx context.Context, path string, spend func(ctx context.Context, n int) error) (gear.Name, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOATIME, 0) // hashing is not a use of the file
	if err != nil {
		return gear.Name{}, err
	}
	defer f.Close()
	// The page cache may have data that the disk has lost. This drops the pages that no
	// process maps.
	_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
	h := sha256.New()
	buf := make([]byte, readBuffer)
	for {
		if err := ctx.Err(); err != nil {
			return gear.Name{}, err
		}
		n, err := f.Read(buf)
		h.Write(buf[:n])
		if errors.Is(err, io.EOF) {
			return gear.Name(h.Sum(nil)), nil
		}
		if err != nil {
			return gear.Name{}, err
		}
		if spend != nil {
			if err := spend(ctx, n); err != nil {
				return gear.Name{}, err
			}
		}
	}
}

// Verify hashes every complete file and removes damaged ones. If spend is not nil, it is
// called after each read of at most 256 KiB and may wait, to limit the rate. Verify
// returns how many files were read and how many were damaged. A file that cannot be read
// counts as damaged.
func (d *Dir) Verify(ctx context.Context, spend func(ctx context.Context, n int) error) (files, damaged int, err error) {
	for i := range 256 {
		for _, name := range d.under(byte(i)) {
			got, err := hashFile(ctx, d.path(name), spend)
			switch {
			case ctx.Err() != nil:
				return files, damaged, ctx.Err()
			case errors.Is(err, os.ErrNotExist):
				continue // evicted meanwhile
			case err != nil:
				d.Damaged(name, err.Error())
			case got != name:
				d.Damaged(name, fmt.Sprintf("its bytes have the name %x", got))
			default:
				files++
				continue
			}
			files++
			damaged++
		}
	}
	return files, damaged, nil
}

// under returns the files whose name begins with byte b.
func (d *Dir) under(b byte) []gear.Name {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []gear.Name
	d.files.each(func(_ uint32, e *entry) bool {
		if e.name[0] == b {
			out = append(out, e.name)
		}
		return true
	})
	return out
}
