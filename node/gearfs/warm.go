package gearfs

import (
	"context"
	"errors"
	"fmt"

	"example.org/slipway/gear"
)

// ErrTooLarge is returned, wrapped, if the cache has no room for what is wanted of an
// image.
var ErrTooLarge = errors.New("the cache has no room for it (cache.max_bytes)")

// Warmth is how much of what is wanted of an image is local.
type Warmth struct {
	Files, FilesTotal int64
	Bytes, BytesTotal int64
}

// Warm fetches files of an image before containers start from it: those of its profile or,
// if all is set, every file. It has the priority and the limits of background completion,
// so it waits while a container does. It returns when all of them are local. progress is
// called now and then. Errors: ErrUnknown, ErrTooLarge, and that of a file that cannot be
// fetched.
func (s *Service) Warm(ctx context.Context, chain string, all bool, progress func(Warmth)) error {
	img := s.image(chain)
	if img == nil {
		return fmt.Errorf("image %s: %w", chain, ErrUnknown)
	}
	var profile []gear.File // nil: the whole image
	w := Warmth{FilesTotal: int64(img.table.Len()), BytesTotal: img.table.Bytes()}
	if !all {
		var err error
		if profile, err = s.profiled(ctx, img); err != nil {
			return err
		}
		w.FilesTotal, w.BytesTotal = int64(len(profile)), 0
		for i := range profile {
			w.BytesTotal += profile[i].Size
		}
	}
	if most := s.cache.Stats().MaxBytes; most > 0 && w.BytesTotal > most {
		return fmt.Errorf("%d bytes of image %s: %w", w.BytesTotal, img.name(), ErrTooLarge)
	}
	lost := removals(s.cache.Stats())
	for left := w.FilesTotal; ; {
		next, files, bytes, err := s.notLocal(img, profile, all)
		if err != nil {
			return err
		}
		w.Files, w.Bytes = w.FilesTotal-files, w.BytesTotal-bytes
		progress(w)
		if len(next) == 0 {
			return nil
		}
		if left <= 0 && removals(s.cache.Stats()) > lost { // what comes drives out what came
			return fmt.Errorf("image %s: %w", img.name(), ErrTooLarge)
		}
		left -= int64(len(next))
		if err := s.fetchQuietly(ctx, img, next, func(f gear.File) {
			w.Files, w.Bytes = w.Files+1, w.Bytes+f.Size
			progress(w)
		}); err != nil {
			return err
		}
	}
}

// profiled returns the files of an image's profile, each once.
func (s *Service) profiled(ctx context.Context, img *image) ([]gear.File, error) {
	p := s.profileOf(ctx, img)
	seen := make(map[gear.Name]bool, len(p.Files))
	files := make([]gear.File, 0, len(p.Files))
	for i := range p.Files {
		name := p.Files[i].Name
		_, at, err := img.table.Find(name)
		if err != nil {
			return nil, err
		}
		if at < 0 || seen[name] {
			continue
		}
		seen[name] = true
		f, err := img.table.Whole(at)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	return files, nil
}

// notLocal counts the files that are not local, of the whole image or of a list, and
// returns the first of them.
func (s *Service) notLocal(img *image, list []gear.File, all bool) (next []gear.File, files, bytes int64, err error) {
	add := func(f gear.File) bool {
		next = append(next, f)
		return true
	}
	if all {
		var n int
		n, bytes, err = s.missing(img, func(f gear.File) bool { return len(next) >= window || add(f) })
		return next, int64(n), bytes, err
	}
	for i := range list {
		if img.view.Has(list[i].Name) {
			continue
		}
		files, bytes = files+1, bytes+list[i].Size
		if len(next) < window {
			add(list[i])
		}
	}
	return next, files, bytes, nil
}

// fetchQuietly fetches files in the background, and calls each for those that have come.
// It returns the first error, after it has waited for all.
func (s *Service) fetchQuietly(ctx context.Context, img *image, files []gear.File, each func(gear.File)) (failed error) {
	wanted := func() bool { return ctx.Err() == nil && s.image(img.chain) == img }
	for _, fl := range s.sched.joinAll(img, files, inBackground, false) {
		err := s.sched.awaitQuietly(fl, wanted)
		s.sched.leave(fl)
		switch {
		case err == nil:
			each(fl.f)
		case ctx.Err() != nil:
			failed = context.Cause(ctx)
		case failed == nil:
			failed = fmt.Errorf("fetch a file of image %s: %w", img.name(), err)
		}
	}
	return failed
}
