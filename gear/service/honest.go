package service

import (
	"context"
	"fmt"
	"slices"

	"example.org/slipway/gear"
)

// honest returns an error if the index in a Gear image contradicts what is stored about
// its files. The repository may read all of these files. Errors: gear.ErrInvalid.
func (s *Service) honest(ctx context.Context, x *gear.Index) error {
	known, err := s.contents.Files(ctx, stored(x))
	if err != nil {
		return err
	}
	sizes := make(map[gear.Name]int64, len(known))
	for i := range known {
		sizes[known[i].Name] = known[i].Size
	}
	for i := range x.Files {
		f := &x.Files[i]
		size, ok := sizes[f.Name]
		if f.Size == 0 || !ok { // the empty file is not stored, and recording detects missing files
			continue
		}
		if size != f.Size {
			return fmt.Errorf("%w: the index of the Gear image says that file sha256:%x has %d bytes, and it has %d", gear.ErrInvalid, f.Name, f.Size, size)
		}
		if err := s.honestChunks(ctx, f); err != nil {
			return err
		}
	}
	return nil
}

// honestChunks is like honest, for the chunks of a file of the right size.
func (s *Service) honestChunks(ctx context.Context, f *gear.File) error {
	if len(f.Chunks) == 0 {
		return nil
	}
	file, err := s.files.Open(ctx, f.Name)
	if err != nil {
		return err
	}
	chunks, err := file.Chunks(ctx)
	if err != nil {
		return err
	}
	if !slices.Equal(chunks, f.Chunks) {
		return fmt.Errorf("%w: the index of the Gear image gives file sha256:%x chunks that it does not have", gear.ErrInvalid, f.Name)
	}
	return nil
}
