package filestore

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"

	"example.org/slipway/gear"
	"example.org/slipway/gear/filestore/packfile"
	"example.org/slipway/registry/catalog/gearfacts"
	"example.org/slipway/registry/objstore"
)

// Scrub reads a pack whole, compares it with its digest, and records the result. damage
// says what is wrong with the pack. wait, if not nil, is called before bytes are read, with
// their number. An error says that nothing was found out.
func (s *Store) Scrub(ctx context.Context, pack gear.Name, wait func(ctx context.Context, n int) error) (damage, err error) {
	for range 2 { // a failed read may not be one of the medium
		damage = s.verifyObject(ctx, packKey(pack), pack, wait)
		if damage == nil {
			return nil, s.checks.Checked(ctx, pack, "")
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		var busy *objstore.BusyError
		if errors.As(damage, &busy) {
			return nil, damage
		}
	}
	needed, err := gearfacts.NewRecipes(s.cat.DB).PackNeeded(ctx, pack)
	if err != nil || !needed { // it was replaced meanwhile
		return nil, err
	}
	return damage, s.checks.Checked(ctx, pack, damage.Error())
}

// verifyObject hashes an object.
func (s *Store) verifyObject(ctx context.Context, key string, digest gear.Name, wait func(ctx context.Context, n int) error) error {
	o, err := s.objs.Get(ctx, key, 0, -1)
	if err != nil {
		return err
	}
	defer o.Close()
	h := sha256.New()
	buf := make([]byte, scrubBlock)
	for {
		if wait != nil {
			if err := wait(ctx, len(buf)); err != nil {
				return err
			}
		}
		n, err := io.ReadFull(o, buf)
		h.Write(buf[:n])
		if err == io.EOF || err == io.ErrUnexpectedEOF {
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
