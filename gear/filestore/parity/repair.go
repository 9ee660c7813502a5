package parity

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"syscall"
	"time"

	"github.com/klauspost/reedsolomon"

	"example.org/slipway/gear"
	"example.org/slipway/gear/filestore/packfile"
	"example.org/slipway/registry/catalog/gearfacts"
	"example.org/slipway/registry/objstore"
)

// ErrNoParity says that a pack cannot be made again, because too much of its groups is
// lost, or because it is in no group.
var ErrNoParity = errors.New("the parity does not suffice")

// Repair makes a damaged or missing pack again from the other packs of its group. What is
// stored under the key of the pack is replaced only by bytes with the pack's digest. It
// does nothing if the pack is sound.
//
// Errors: ErrNoParity. Any other error says nothing about what is lost, and the next call
// may succeed; it is an *objstore.BusyError unless ctx has ended.
func (s *Guard) Repair(ctx context.Context, pack gear.Name) error {
	s.repairing.Lock()
	defer s.repairing.Unlock()
	return s.repair(ctx, pack)
}

// Repaired is like Repair, for a reader who found a pack damaged. For some time it does
// not repeat a repair that ended with ErrNoParity, unless an object that was missing then
// is there again.
func (s *Guard) Repaired(ctx context.Context, pack gear.Name) error {
	s.repairing.Lock()
	defer s.repairing.Unlock()
	if l, ok := s.lost[pack]; ok && time.Since(l.since) < repairPause && !s.returned(ctx, l.missing) {
		return ErrNoParity
	}
	return s.repair(ctx, pack)
}

// loss says that a pack could not be made again.
type loss struct {
	since   time.Time
	missing []string // keys of the objects that were not there
}

// returned reports whether any object is there. An object may have been put back, or the
// whole object store may have been away.
func (s *Guard) returned(ctx context.Context, keys []string) bool {
	return slices.ContainsFunc(keys, func(key string) bool {
		_, err := s.objs.Stat(ctx, key)
		return err == nil
	})
}

// repair is like Repair, for a caller that holds repairing.
func (s *Guard) repair(ctx context.Context, pack gear.Name) error {
	l := loss{since: time.Now()}
	err := s.tryRepair(ctx, pack, &l)
	switch {
	case err == nil:
		delete(s.lost, pack)
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, ErrNoParity):
		s.lost[pack] = l
	default:
		s.opts.Log.Error("a damaged pack cannot be made again for now", "pack", hex.EncodeToString(pack[:]), "err", err)
		return &objstore.BusyError{Err: fmt.Errorf("make pack %x again from parity: %w", pack, err)}
	}
	return err
}

// tryRepair makes a pack again from any of its groups. It adds to l what is missing. It
// returns ErrNoParity only if no group can suffice, whatever objects hold that could not
// be read this time.
func (s *Guard) tryRepair(ctx context.Context, pack gear.Name, l *loss) error {
	groups, err := s.groups.Groups(ctx, pack)
	if err != nil {
		return fmt.Errorf("look for its groups: %w", err)
	}
	damage := s.verifyObject(ctx, packKey(pack), pack, nil)
	if damage == nil { // somebody else has repaired it, or it can be read again
		return s.checks.Checked(ctx, pack, "")
	}
	if !isLost(damage) && !IsUnreadable(damage) {
		return damage
	}
	l.add(packKey(pack), damage)
	lost, failed := []error{ErrNoParity}, []error(nil)
	for i := range groups {
		err := s.repairFrom(ctx, &groups[i], pack, l)
		switch {
		case err == nil:
			s.opts.Log.Warn("made a damaged pack again from parity", "pack", hex.EncodeToString(pack[:]))
			if s.opts.OnRepair != nil {
				s.opts.OnRepair(pack)
			}
			return s.checks.Checked(ctx, pack, "")
		case errors.Is(err, ErrNoParity):
			lost = append(lost, err)
		default:
			failed = append(failed, err)
		}
	}
	if IsUnreadable(damage) { // it may be read again later
		failed = append(failed, damage)
	}
	if len(failed) > 0 {
		return errors.Join(failed...)
	}
	return errors.Join(lost...)
}

// add notes an object that could not be read, if it is missing.
func (l *loss) add(key string, err error) {
	if errors.Is(err, objstore.ErrNotExist) {
		l.missing = append(l.missing, key)
	}
}

// isLost reports whether an error of a read says that the object is missing or that it has
// other bytes. Any other error may pass: even a medium may be read again later.
func isLost(err error) bool {
	if objstore.IsBusy(err) {
		return false
	}
	return slices.ContainsFunc([]error{objstore.ErrNotExist, objstore.ErrCorrupt, packfile.ErrFormat, gear.ErrContent},
		func(e error) bool { return errors.Is(err, e) })
}

// Lasts reports whether an error of a read says something about the object that stays as
// it is until somebody does something about it: the object is missing, has other bytes, is
// not given back by its medium, or may not be read. A full disk or too many open files, for
// example, say nothing about the object.
func Lasts(err error) bool {
	if objstore.IsBusy(err) {
		return false
	}
	return isLost(err) || IsUnreadable(err) || errors.Is(err, fs.ErrPermission)
}

// IsUnreadable reports whether an error says that a medium or a file system does not give
// back what was written.
func IsUnreadable(err error) bool {
	var errno syscall.Errno
	return errors.As(err, &errno) && slices.Contains([]syscall.Errno{syscall.EIO, syscall.EUCLEAN, syscall.EBADMSG, syscall.ENODATA}, errno)
}

// repairFrom makes a pack again with one of its groups.
func (s *Guard) repairFrom(ctx context.Context, g *gearfacts.ParityGroup, pack gear.Name, l *loss) (err error) {
	code, err := reedsolomon.New(len(g.Packs), len(g.Files))
	if err != nil {
		return fmt.Errorf("a group of %d packs and %d files: %w", len(g.Packs), len(g.Files), err)
	}
	sources, target, err := s.openGroup(ctx, g, pack, l)
	defer func() { err = errors.Join(err, closeShards(sources)) }()
	if err != nil {
		return err
	}
	u, err := s.objs.NewUpload(ctx, g.Packs[target].Size)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, u.Cancel(ctx)) }()
	sum := sha256.New()
	if err := reconstruct(ctx, code, sources, target, g.Files[0].Size-headerSize(g), &first{io.MultiWriter(u, sum), g.Packs[target].Size}); err != nil {
		return err
	}
	if gear.Name(sum.Sum(nil)) != pack {
		for _, src := range sources { // each was sound when it was read before
			if src == nil {
				continue
			}
			if err := src.verify(); err != nil {
				return fmt.Errorf("read %x again: %v", src.Digest, err)
			}
		}
		return fmt.Errorf("what the group gives is not pack %x: %w", pack, ErrNoParity)
	}
	return u.Commit(ctx, packKey(pack))
}

// openGroup opens as many sound packs and parity files of a group as are needed to make a
// pack again. It reads each whole before it trusts it. It adds to l what is missing.
// Errors: ErrNoParity if too many objects are lost, and not only unreadable this time.
func (s *Guard) openGroup(ctx context.Context, g *gearfacts.ParityGroup, pack gear.Name, l *loss) (sources []*shard, target int, err error) {
	k := len(g.Packs)
	sources = make([]*shard, k+len(g.Files))
	var found, unknown int
	var errs []error
	for i := range sources {
		of, key, header := gearfacts.Object{}, "", int64(0)
		if i < k {
			of, key = g.Packs[i], packKey(g.Packs[i].Digest)
		} else {
			of, key = g.Files[i-k], parityKey(g.Files[i-k].Digest)
			header = headerSize(g)
		}
		if of.Digest == pack {
			target = i
			continue
		}
		if found == k {
			break
		}
		r, err := (*shard)(nil), s.verifyObject(ctx, key, of.Digest, nil)
		if err == nil {
			r, err = s.openShard(ctx, key, header, of)
		}
		if err != nil {
			l.add(key, err)
			if !isLost(err) {
				unknown++
			}
			errs = append(errs, fmt.Errorf("%s: %w", key, err))
			continue
		}
		sources[i] = r
		found++
	}
	if found < k {
		if found+unknown < k {
			errs = append(errs, ErrNoParity)
		}
		return sources, target, fmt.Errorf("%d of a group's objects are sound, and %d are needed: %w", found, k, errors.Join(errs...))
	}
	return sources, target, ctx.Err()
}

// reconstruct writes the shard target, made from the others. A nil source is missing.
func reconstruct(ctx context.Context, code reedsolomon.Encoder, sources []*shard, target int, size int64, w io.Writer) error {
	blocks := newBlocks(len(sources))
	want := make([]bool, len(sources))
	want[target] = true
	for left := size; left > 0; left -= parityBlock {
		n := int(min(left, parityBlock))
		for i, src := range sources {
			blocks[i] = blocks[i][:0]
			if src == nil {
				continue
			}
			blocks[i] = blocks[i][:n]
			if err := src.fill(blocks[i]); err != nil {
				return err
			}
		}
		if err := errors.Join(ctx.Err(), code.ReconstructSome(blocks, want)); err != nil {
			return err
		}
		if _, err := w.Write(blocks[target]); err != nil {
			return err
		}
	}
	return nil
}

// first writes the first bytes that it gets, and drops the others.
type first struct {
	w    io.Writer
	left int64
}

// Write implements io.Writer.
func (f *first) Write(p []byte) (int, error) {
	n := min(int64(len(p)), f.left)
	f.left -= n
	if _, err := f.w.Write(p[:n]); err != nil {
		return 0, err
	}
	return len(p), nil
}
