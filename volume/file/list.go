package file

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"example.org/slipway/volume/block"
)

// Stat implements [block.Store].
func (s *Store) Stat(ctx context.Context, id string) (block.Info, error) {
	var info block.Info
	err := s.check(id)
	if err == nil {
		info, err = answer(ctx, s, func(beat) (block.Info, error) { return s.info(id) })
	}
	return info, errOf("stat", id, err)
}

// answer runs a step that returns a value.
func answer[T any](ctx context.Context, s *Store, step func(beat) (T, error)) (T, error) {
	got := make(chan T, 1)
	err := s.io.do(ctx, func(_ context.Context, alive beat) error {
		v, err := step(alive)
		got <- v
		return err
	})
	if err != nil {
		var none T
		return none, err
	}
	return <-got, nil
}

func (s *Store) info(id string) (block.Info, error) {
	m, err := s.meta(id)
	if err != nil {
		return block.Info{}, err
	}
	info := block.Info{ID: id, Parent: m.Parent, Size: m.Size, Used: m.Blocks * block.BlockSize, Committed: m.Committed}
	if !m.Committed {
		var st unix.Stat_t
		if err := unix.Stat(s.volume(id, "data"), &st); err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				err = block.ErrNotFound
			}
			return block.Info{}, err
		}
		info.Used = st.Blocks * 512
	}
	return info, nil
}

// List implements [block.Store]. It lists a damaged volume as not committed and without a
// size, so that it can be found and removed.
func (s *Store) List(ctx context.Context, prefix string) ([]block.Info, error) {
	list, err := answer(ctx, s, func(alive beat) ([]block.Info, error) {
		names, err := os.ReadDir(s.path("volumes"))
		var list []block.Info
		for _, e := range names {
			if err != nil {
				break
			}
			if !strings.HasPrefix(e.Name(), prefix) {
				continue
			}
			alive()
			var info block.Info
			switch info, err = s.info(e.Name()); {
			case err == nil:
				list = append(list, info)
			case errors.Is(err, block.ErrNotFound):
				err = nil // removed meanwhile
			case errors.Is(err, errDamaged):
				err = nil
				list = append(list, block.Info{ID: e.Name(), Used: -1})
			default:
				err = errOf("stat", e.Name(), err)
			}
		}
		return list, err
	})
	if err != nil {
		return nil, fmt.Errorf("list volumes: %w", storageError(err))
	}
	return list, nil
}
