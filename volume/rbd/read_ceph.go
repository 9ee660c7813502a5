//go:build ceph

package rbd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/ceph/go-ceph/rados"
	"github.com/ceph/go-ceph/rbd"
	"golang.org/x/sync/errgroup"

	"example.org/slipway/oci/volref"
	"example.org/slipway/volume/block"
)

// listers is how many volumes List examines at a time.
const listers = 8

// Open implements block.Store.
func (s *Store) Open(ctx context.Context, id string) (block.Volume, error) {
	v, err := run(ctx, s, 2*s.o.Timeout, func() (*volume, error) { return s.openReader(id) }, closeLate)
	if err != nil {
		return nil, fmt.Errorf("open volume %s: %w", id, err)
	}
	return v, nil
}

// openReader first takes the lease and then checks that the volume is complete. Remove
// works in the opposite order: it makes the volume incomplete, and then looks for leases.
func (s *Store) openReader(id string) (*volume, error) {
	at, err := s.in(id)
	if err != nil {
		return nil, err
	}
	img, err := rbd.OpenImageReadOnly(at, id, snapshot)
	if err != nil {
		return nil, openError(at, id, err)
	}
	l, err := s.acquire(readers(id), false)
	if err != nil {
		return nil, errors.Join(err, translate(img.Close()))
	}
	v, err := s.newVolume(id, img, l, false)
	if err != nil {
		err = errors.Join(err, translate(img.Close()))
		l.release()
		return nil, err
	}
	if err := readable(img); err != nil {
		return nil, errors.Join(err, v.close())
	}
	return v, nil
}

// readable returns an error unless a volume is complete: ErrNotFound if it is being
// removed.
func readable(img *rbd.Image) error {
	switch s, err := state(img); {
	case err != nil:
		return err
	case s == stateRemoving:
		return block.ErrNotFound
	case s != stateCommitted:
		return block.ErrNotCommitted
	}
	return nil
}

// openError returns an error of opening the snapshot. Perhaps only the snapshot is
// missing.
func openError(at *rados.IOContext, id string, err error) error {
	if !isMissing(err) {
		return translate(err)
	}
	img, err := rbd.OpenImageReadOnly(at, id, rbd.NoSnapshot)
	if err != nil {
		return translate(err)
	}
	if err = readable(img); err == nil {
		err = block.ErrNotCommitted // somebody else has removed the volume's snapshot, or the volume was committed just now
	}
	return errors.Join(err, translate(img.Close()))
}

// Stat implements block.Store.
func (s *Store) Stat(ctx context.Context, id string) (block.Info, error) {
	info, err := run(ctx, s, 2*s.o.Timeout, func() (block.Info, error) { return s.stat(id, true) }, nil)
	if err != nil {
		return block.Info{}, fmt.Errorf("stat volume %s: %w", id, err)
	}
	return info, nil
}

func (s *Store) stat(id string, used bool) (block.Info, error) {
	info := block.Info{ID: id, Used: -1}
	at, err := s.in(id)
	if err != nil {
		return info, err
	}
	img, err := rbd.OpenImageReadOnly(at, id, rbd.NoSnapshot)
	if isMissing(err) {
		// A name without an image comes from an interrupted creation or removal.
		if there, err := exists(at, id); err != nil || there {
			return info, err
		}
	}
	if err != nil {
		return info, translate(err)
	}
	err = describe(img, &info, used)
	return info, errors.Join(err, translate(img.Close()))
}

func describe(img *rbd.Image, info *block.Info, used bool) error {
	size, err := img.GetSize()
	if err != nil {
		return translate(err)
	}
	info.Size = int64(size)
	parent, err := img.GetParent()
	switch {
	case err == nil:
		info.Parent = parent.Image.ImageName
	case !isMissing(err):
		return translate(err)
	}
	if info.Committed, err = isCommitted(img); err != nil || !used {
		return err
	}
	extents, err := own(img, size)
	if err != nil {
		return err
	}
	info.Used = 0
	for _, e := range extents {
		info.Used += e.Len
	}
	return nil
}

// own returns the stretches for which an open image has its own objects.
func own(img *rbd.Image, size uint64) ([]block.Extent, error) {
	var all []block.Extent
	err := img.DiffIterate(rbd.DiffIterateConfig{
		Length: size, IncludeParent: rbd.ExcludeParent, WholeObject: rbd.EnableWholeObject,
		Callback: func(off, n uint64, _ int, _ any) int {
			e := block.Extent{Off: int64(off), Len: int64(n)}
			if k := len(all) - 1; k >= 0 && all[k].Off+all[k].Len == e.Off {
				all[k].Len += e.Len
			} else {
				all = append(all, e)
			}
			return 0
		},
	})
	if err != nil {
		return nil, translate(err)
	}
	return all, nil
}

// List implements block.Store.
func (s *Store) List(ctx context.Context, prefix string) ([]block.Info, error) {
	all, err := s.list(ctx, prefix)
	if err != nil {
		return nil, fmt.Errorf("list volumes: %w", err)
	}
	return all, nil
}

func (s *Store) list(ctx context.Context, prefix string) ([]block.Info, error) {
	ids, err := run(ctx, s, 2*s.o.Timeout, func() ([]string, error) { return s.names(prefix) }, nil)
	if err != nil {
		return nil, err
	}
	infos := make([]block.Info, len(ids))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(listers)
	for i, id := range ids {
		group.Go(func() error {
			info, err := s.Stat(ctx, id)
			if errors.Is(err, block.ErrNotFound) {
				return nil // removed meanwhile
			}
			infos[i] = info
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(infos, func(i block.Info) bool { return i.ID == "" }), nil
}

// names returns the names of volumes in order. It skips names that this driver would not
// have given.
func (s *Store) names(prefix string) ([]string, error) {
	var all []string
	for _, at := range []*rados.IOContext{s.volumes, s.clones} {
		if at == nil {
			continue
		}
		names, err := rbd.GetImageNames(at)
		if err != nil {
			return nil, translate(err)
		}
		for _, id := range names {
			if strings.HasPrefix(id, prefix) && volref.CheckName(id) == nil && volref.IsClone(id) == (at == s.clones) {
				all = append(all, id)
			}
		}
	}
	slices.Sort(all)
	return all, nil
}
