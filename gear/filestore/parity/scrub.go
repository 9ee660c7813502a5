package parity

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/gear/filestore/packfile"
	"example.org/slipway/registry/catalog/gearfacts"
	"example.org/slipway/registry/objstore"
)

// Check reads the parity files of a group whole and records whether they are sound. damage
// says what is wrong with them. An error says that nothing was found out.
func (s *Guard) Check(ctx context.Context, g *gearfacts.ParityGroup, wait func(ctx context.Context, n int) error) (damage, err error) {
	for _, f := range g.Files {
		if damage = s.verifyObject(ctx, parityKey(f.Digest), f.Digest, wait); damage != nil {
			break
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if damage != nil && !Lasts(damage) {
		return nil, damage
	}
	return damage, s.groups.Checked(ctx, g.ID, damage != nil)
}

// sweepAfter is how long a parity file without a group is left alone if another process
// may be about to record the group. Making the parity of a group takes minutes at most.
const sweepAfter = time.Hour

// Sweep deletes parity files that no group has.
func (s *Guard) Sweep(ctx context.Context) error {
	for info, err := range s.objs.List(ctx, parityPrefix, "") {
		if err != nil {
			return fmt.Errorf("list parity files: %w", err)
		}
		b, err := hex.DecodeString(strings.TrimPrefix(info.Key, parityPrefix))
		if err != nil || len(b) != len(gear.Name{}) {
			continue // not ours
		}
		if err := s.sweepFile(ctx, gear.Name(b)); err != nil {
			return err
		}
	}
	return nil
}

func (s *Guard) sweepFile(ctx context.Context, file gear.Name) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unborn[file] > 0 {
		return nil
	}
	known, err := s.groups.FileKnown(ctx, file)
	if err != nil || known {
		return err
	}
	if s.opts.Shared {
		info, err := s.objs.Stat(ctx, parityKey(file))
		if errors.Is(err, objstore.ErrNotExist) { // the other process was quicker
			return nil
		}
		if err != nil || time.Since(info.ModTime) < sweepAfter {
			return err
		}
	}
	return s.objs.Delete(ctx, parityKey(file))
}

// Scrub reads a pack whole, compares it with its digest, and records the result. damage
// says what is wrong with the pack. wait, if not nil, is called before bytes are read, with
// their number. An error says that nothing was found out.
func (s *Guard) Scrub(ctx context.Context, pack gear.Name, wait func(ctx context.Context, n int) error) (damage, err error) {
	for range 2 { // a read may fail although the medium is sound
		damage = s.verifyObject(ctx, packKey(pack), pack, wait)
		if damage == nil {
			return nil, s.checks.Checked(ctx, pack, "")
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if !Lasts(damage) {
			return nil, damage
		}
	}
	used, err := s.checks.InUse(ctx, pack)
	if err != nil || !used { // it was replaced meanwhile
		return nil, err
	}
	return damage, s.checks.Checked(ctx, pack, damage.Error())
}

// Verify reads a pack whole and compares it with its digest.
func (s *Guard) Verify(ctx context.Context, pack gear.Name) error {
	return s.verifyObject(ctx, packKey(pack), pack, nil)
}

// verifyObject hashes an object. A read that ends before the object does says nothing about
// the object.
func (s *Guard) verifyObject(ctx context.Context, key string, digest gear.Name, wait func(ctx context.Context, n int) error) error {
	o, err := s.objs.Get(ctx, key, 0, -1)
	if err != nil {
		return err
	}
	defer o.Close()
	h, left := sha256.New(), o.Info().Size
	buf := make([]byte, scrubBlock)
	for {
		if wait != nil {
			if err := wait(ctx, len(buf)); err != nil {
				return err
			}
		}
		n, err := io.ReadFull(o, buf)
		h.Write(buf[:n])
		left -= int64(n)
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			if left > 0 {
				return fmt.Errorf("the read ended %d bytes too early: %w", left, io.ErrUnexpectedEOF)
			}
			break
		}
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	if gear.Name(h.Sum(nil)) != digest {
		return fmt.Errorf("the object has another digest: %w", packfile.ErrFormat)
	}
	return nil
}

// scrubBlock is how many bytes of an object are read and hashed at a time.
const scrubBlock = 256 << 10
