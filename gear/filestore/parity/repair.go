package parity

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/klauspost/reedsolomon"

	"example.org/slipway/gear"
	"example.org/slipway/registry/catalog/gearfacts"
)

// ErrNoParity says that a pack cannot be made again, because too much of its groups is
// lost, or because it is in no group.
var ErrNoParity = errors.New("the parity does not suffice")

// Repair makes a damaged or missing pack again from the other packs of its group. What is
// stored under the key of the pack is replaced only by bytes with the pack's digest. It
// does nothing if the pack is sound. Errors: ErrNoParity.
func (s *Guard) Repair(ctx context.Context, pack gear.Name) error {
	s.repairing.Lock()
	defer s.repairing.Unlock()
	return s.repair(ctx, pack)
}

// repair is like Repair, for a caller that holds repairing.
func (s *Guard) repair(ctx context.Context, pack gear.Name) error {
	groups, err := s.groups.Groups(ctx, pack)
	if err != nil {
		return fmt.Errorf("look for the parity of pack %x: %w", pack, err)
	}
	if len(groups) == 0 {
		return ErrNoParity
	}
	if s.verifyObject(ctx, packKey(pack), pack, nil) == nil { // somebody else has repaired it
		return s.checks.Checked(ctx, pack, "")
	}
	var errs []error
	for i := range groups {
		if err = s.repairFrom(ctx, &groups[i], pack); err == nil {
			s.opts.Log.Warn("made a damaged pack again from parity", "pack", hex.EncodeToString(pack[:]))
			delete(s.failed, pack)
			if s.opts.OnRepair != nil {
				s.opts.OnRepair(pack)
			}
			return s.checks.Checked(ctx, pack, "")
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// repairFrom makes a pack again with one of its groups.
func (s *Guard) repairFrom(ctx context.Context, g *gearfacts.ParityGroup, pack gear.Name) (err error) {
	code, err := reedsolomon.New(len(g.Packs), len(g.Files))
	if err != nil {
		return fmt.Errorf("a group of %d packs and %d files: %w", len(g.Packs), len(g.Files), err)
	}
	sources, target, err := s.openGroup(ctx, g, pack)
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
		return fmt.Errorf("what the group gives is not pack %x: %w", pack, ErrNoParity)
	}
	return u.Commit(ctx, packKey(pack))
}

// openGroup opens as many sound packs and parity files of a group as are needed to make a
// pack again. It reads each whole before it trusts it.
func (s *Guard) openGroup(ctx context.Context, g *gearfacts.ParityGroup, pack gear.Name) (sources []*shard, target int, err error) {
	k := len(g.Packs)
	sources = make([]*shard, k+len(g.Files))
	var found int
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
			errs = append(errs, fmt.Errorf("%s: %w", key, err))
			continue
		}
		sources[i] = r
		found++
	}
	if found < k {
		return sources, target, fmt.Errorf("%d of a group's objects are sound, and %d are needed: %w", found, k, errors.Join(append(errs, ErrNoParity)...))
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

// Repaired makes a pack again for a reader who found it damaged. It reports whether the
// pack was made again.
func (s *Guard) Repaired(ctx context.Context, pack gear.Name) bool {
	s.repairing.Lock()
	defer s.repairing.Unlock()
	if at, ok := s.failed[pack]; ok && time.Since(at) < repairPause {
		return false
	}
	err := s.repair(ctx, pack)
	if err != nil && ctx.Err() == nil {
		s.failed[pack] = time.Now()
		if !errors.Is(err, ErrNoParity) {
			s.opts.Log.Error("a damaged pack cannot be made again", "pack", hex.EncodeToString(pack[:]), "err", err)
		}
	}
	return err == nil
}
