// Package rebuild makes recipes. A recipe is a small record. Together with the contents
// of a compressed layer's files it is enough to write the exact bytes of the layer again.
//
// A layer is a tar archive in a gzip stream. Besides the contents of its files, it
// consists of the archive's [Skeleton] (headers, padding, order) and the choices of the
// encoder that compressed it. [Make] predicts these choices with models of the common
// encoders (package deflate) and keeps only the choices that differ from the prediction.
// These take about 0.01 % of the layer if the encoder is known, and some percent
// otherwise.
//
// A [Recipe] consists of segments, which are rebuilt independently of each other. So
// segments can be rebuilt in parallel. When a recipe is made, no prediction has to be
// right. But once a recipe exists, its predictions must never change. Therefore the
// package depends on no encoder that is linked with it, and its models never change.
//
// Other packages decide which layers have recipes, and when a layer's own bytes are given
// up.
package rebuild

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"

	"golang.org/x/sync/errgroup"
)

// ErrDamaged is returned, wrapped, for a recipe that is malformed, or that does not
// rebuild its layer from the given plain bytes.
var ErrDamaged = errors.New("damaged recipe")

var errDamaged = fmt.Errorf("%w: it does not fit its layer", ErrDamaged)

// Options adjust a rebuild.
type Options struct {
	// Workers is how many segments are rebuilt at a time; default 1. Each worker takes
	// 3 MB, two segments of plain bytes and the compressed size of the segment.
	Workers int
}

// Rebuild writes the layer. It holds the last segment back until the SHA-256 of the whole
// layer is known to be right, so that a reader of w never takes other bytes for the
// layer.
//
// plain has the uncompressed layer. Several goroutines read it. They no longer use it
// once ctx has ended and Rebuild has returned. Errors: ErrDamaged, and the errors of
// plain, w and ctx.
func (r *Recipe) Rebuild(ctx context.Context, w io.Writer, plain io.ReaderAt, opts *Options) error {
	sum := sha256.New()
	var last []byte
	err := r.each(ctx, plain, opts, func(b []byte) error {
		if len(last) > 0 {
			if _, err := w.Write(last); err != nil {
				return err
			}
		}
		sum.Write(b)
		last = b
		return nil
	})
	if err != nil {
		return err
	}
	sum.Write(r.tail)
	if !bytes.Equal(sum.Sum(nil), r.Digest[:]) {
		return fmt.Errorf("%w: the rebuilt layer has another digest", ErrDamaged)
	}
	if _, err := w.Write(last); err != nil {
		return err
	}
	_, err = w.Write(r.tail)
	return err
}

// rebuilt is a segment as a worker returns it.
type rebuilt struct {
	b   []byte
	err error
}

// each rebuilds the segments and calls do with the bytes of each segment, in order. do owns
// the bytes, which are never empty.
func (r *Recipe) each(ctx context.Context, plain io.ReaderAt, opts *Options, do func([]byte) error) error {
	workers := 1
	if opts != nil {
		workers = max(1, min(opts.Workers, len(r.segments)))
	}
	g, ctx := errgroup.WithContext(ctx)
	todo := make(chan int)
	results := make([]chan rebuilt, len(r.segments))
	for i := range results {
		results[i] = make(chan rebuilt, 1)
	}
	room := make(chan struct{}, workers+1) // bounds the segments that are not yet written
	g.Go(func() error {
		defer close(todo)
		for i := range r.segments {
			select {
			case room <- struct{}{}:
			case <-ctx.Done():
				return ctx.Err()
			}
			select {
			case todo <- i:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	for range workers {
		g.Go(func() error {
			w := newWork()
			for i := range todo {
				b, err := r.segment(w, i, plain)
				results[i] <- rebuilt{b, err}
			}
			return nil
		})
	}
	g.Go(func() error { return r.inOrder(ctx, results, room, do) })
	return g.Wait()
}

// inOrder joins segments that meet within a byte.
func (r *Recipe) inOrder(ctx context.Context, results []chan rebuilt, room chan struct{}, do func([]byte) error) error {
	var join joiner
	for i, c := range results {
		var res rebuilt
		select {
		case res = <-c:
		case <-ctx.Done():
			return ctx.Err()
		}
		<-room
		if res.err != nil {
			return fmt.Errorf("rebuild segment %d: %w", i, res.err)
		}
		b := join.join(&r.segments[i], res.b, i+1 == len(r.segments))
		if len(b) == 0 {
			continue
		}
		if err := do(b); err != nil {
			return err
		}
	}
	return nil
}

// segment rebuilds a segment.
func (r *Recipe) segment(w *work, i int, plain io.ReaderAt) ([]byte, error) {
	s := &r.segments[i]
	off := max(0, s.at-int64(s.model.History()))
	end := min(s.at+s.plain+ahead, r.Plain)
	buf := w.window(int(end - off))
	n := len(buf) - slack
	if k, err := plain.ReadAt(buf[:n], off); k < n {
		if err == io.EOF {
			return nil, fmt.Errorf("%w: there are less plain bytes than the layer has", ErrDamaged)
		}
		return nil, fmt.Errorf("read plain bytes: %w", err)
	}
	at := int(s.at - off)
	skip := s.bit % 8
	out, err := decodeSegment(w, w.pred, span{model: s.model, buf: buf, at: at, end: at + int(s.plain)}, s.data, uint(skip), skip+s.bits)
	return bytes.Clone(out), err
}
