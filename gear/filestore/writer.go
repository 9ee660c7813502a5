package filestore

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/klauspost/compress/zstd"

	"example.org/slipway/gear"
	"example.org/slipway/gear/convert"
	"example.org/slipway/registry/catalog/gearfacts"
)

// freshLevel is the level for packs written while somebody waits. It compresses 265 MB/s,
// and settling compresses better later. See DESIGN.md.
const freshLevel = zstd.SpeedFastest

// Writer writes the contents of one layer that the store lacks. It is used by one
// goroutine, and ended by Commit, Stage or Abort.
//
// Several writers at the same time share the contents that they put. The first writer
// that asks for a content puts it, and the others wait at their end for that writer.
type Writer struct {
	s     *Store
	id    string
	press *press
	index gear.Name

	// names has all names that the writer asked for. order has them in the order of
	// asking. waits has the writers that put some of them. They are guarded by claims.mu.
	names map[gear.Name]bool
	order []gear.Name
	waits map[*Writer]bool

	ended bool
	// recorded is closed when others may rely on what this writer put, if ok is true.
	recorded chan struct{}
	ok       bool
	leave    func() // ends the writer's part in the store's presence
}

var _ convert.Sink = (*Writer)(nil)

// NewWriter begins to write. ctx bounds the life of the writer.
func (s *Store) NewWriter(ctx context.Context) (*Writer, error) {
	ctx, leave, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	w := &Writer{s: s, id: s.newWriterID(), names: map[gear.Name]bool{}, waits: map[*Writer]bool{}, recorded: make(chan struct{}), leave: leave}
	w.press = s.newPress(ctx, w.id, &codec{whole: s.fresh}, s.budget)
	w.press.roll = true
	return w, nil
}

// Missing reports which contents have to be given to Put, and obliges the writer to put
// them. All names are contents of the layer.
func (w *Writer) Missing(ctx context.Context, names []gear.Name) ([]bool, error) {
	missing := w.s.claims.take(w, names)
	ask := make([]gear.Name, 0, len(names))
	for i, n := range names {
		if missing[i] {
			ask = append(ask, n)
		}
	}
	files, err := w.s.facts.Files(ctx, ask)
	if err != nil {
		w.s.claims.giveBack(w, ask)
		return nil, fmt.Errorf("look for contents: %w", err)
	}
	here := make(map[gear.Name]bool, len(files))
	known := make([]gear.Name, 0, len(files))
	for i := range files {
		if files[i].Pack != (gear.Name{}) {
			here[files[i].Name] = true
			known = append(known, files[i].Name)
		}
	}
	w.s.claims.giveBack(w, known)
	for i, n := range names {
		missing[i] = missing[i] && !here[n]
	}
	return missing, nil
}

// Put writes a content that Missing reported. The order of the calls determines the order
// in the packs. Put reads the bytes until c is released, even if Put fails. The caller
// has checked that the bytes match f.
func (w *Writer) Put(_ context.Context, f gear.File, c convert.Content) error {
	if w.ended {
		c.Release()
		return errEnded
	}
	return w.press.put(&f, c)
}

// Keep puts a content without a previous call of Missing for it. It writes the content
// even if it is stored already or another writer is putting it. So the time that Keep
// takes reveals neither, and the end of this writer waits for no other. A content that
// was stored already keeps its place.
func (w *Writer) Keep(ctx context.Context, f gear.File, c convert.Content) error {
	w.s.claims.pin(w, f.Name)
	return w.Put(ctx, f, c)
}

var errEnded = errors.New("the writer has ended")

// PutIndex writes the layer's index, which is stored as a content.
func (w *Writer) PutIndex(ctx context.Context, index []byte) (gear.Name, error) {
	f := gear.File{Name: sha256.Sum256(index), Size: int64(len(index))}
	missing, err := w.Missing(ctx, []gear.Name{f.Name})
	if err != nil {
		return f.Name, err
	}
	w.index = f.Name
	if !missing[0] {
		return f.Name, nil
	}
	if f.Size >= gear.LargeFile {
		for part := index; len(part) > 0; part = part[min(gear.ChunkSize, len(part)):] {
			f.Chunks = append(f.Chunks, sha256.Sum256(part[:min(gear.ChunkSize, len(part))]))
		}
	}
	return f.Name, w.Put(ctx, f, inRAM{bytes.NewReader(index)})
}

// inRAM is a Content that needs no release.
type inRAM struct{ *bytes.Reader }

func (inRAM) Release() {}

// Commit makes the layer known, with the index given to PutIndex. When it returns nil,
// all of it is durable. Errors: ErrRetry, catalog.ErrNotStored if the layer's blob is
// gone. The writer has ended in any case.
func (w *Writer) Commit(ctx context.Context, l gearfacts.Layer) error {
	if w.index == (gear.Name{}) {
		w.Abort(ctx)
		return errors.New("commit of a layer without an index")
	}
	l.Index, l.Files = w.index, int64(len(w.order))
	return w.end(ctx, gearfacts.Record{Layer: &gearfacts.NewLayer{Layer: l, Names: w.order}})
}

// Stage keeps the contents for a repository until a time, so that a client can upload
// them before the index of a layer that holds them.
func (w *Writer) Stage(ctx context.Context, repo string, until time.Time) error {
	return w.end(ctx, gearfacts.Record{Repo: repo, Staged: w.order, Until: until})
}

// end records packs and what holds their contents. It does so in one change, unless it
// depends on other writers.
func (w *Writer) end(ctx context.Context, rec gearfacts.Record) error {
	if w.ended {
		return errEnded
	}
	defer w.Abort(ctx)
	packs, err := w.press.close()
	if err != nil {
		return err
	}
	if len(w.waits) > 0 {
		if err := w.s.facts.Record(ctx, gearfacts.Record{Writer: w.id, Packs: packs}); err != nil {
			return fmt.Errorf("record packs: %w", err)
		}
		packs = nil
		w.tell(true)
		if err := w.wait(ctx); err != nil {
			return err
		}
	}
	rec.Writer, rec.Packs = w.id, packs
	err = w.s.facts.Record(ctx, rec)
	if errors.Is(err, gearfacts.ErrStale) {
		err = fmt.Errorf("%w: %w", ErrRetry, err)
	}
	if err != nil {
		return fmt.Errorf("record contents: %w", err)
	}
	w.tell(true)
	return nil
}

// tell lets the writers that depend on this writer continue.
func (w *Writer) tell(ok bool) {
	select {
	case <-w.recorded:
		return
	default:
	}
	w.ok = ok
	w.s.claims.end(w, false)
	close(w.recorded)
}

// Abort ends a writer that was not committed, and drops what it wrote. After Commit or
// Stage it does nothing.
func (w *Writer) Abort(ctx context.Context) {
	if w.ended {
		return
	}
	w.ended = true
	if !w.press.closed {
		w.press.fail(errEnded)
		_, _ = w.press.close() // the error is errEnded, which fail has recorded
	}
	if w.press.intended && !w.ok {
		// The next Housekeep deletes objects that nothing names.
		if err := w.s.facts.EndIntents(context.WithoutCancel(ctx), w.id); err != nil {
			w.s.log.Warn("give up the packs of a conversion; they are reclaimed at the next start", "writer", w.id, "err", err)
		}
	}
	w.tell(false)
	w.s.claims.end(w, true)
	w.leave()
}
