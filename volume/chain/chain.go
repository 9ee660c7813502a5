// Package chain builds images as volumes: with ext4 a chain of clones, one for each
// layer; with EROFS a single volume.
//
// Builders need not know of each other. A volume's name stands for its layers, and
// everyone who writes it writes the same bytes at the same places. A builder waits for a
// volume that another builder is writing. If that builder died, it writes the volume
// again, over what is there. If two builders write a volume in turn by mistake, that does
// no harm.
package chain

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/gear/rootfs"
	"example.org/slipway/oci"
	"example.org/slipway/oci/volref"
	"example.org/slipway/volume/block"
)

// maxRestarts is how often a build starts again because a volume below was removed
// meanwhile.
const maxRestarts = 5

// Build makes the missing volumes of an image in s and returns its record, without a
// Manifest. layers are in order from the bottom. Contents that a volume below has are
// read from there. All other contents of a volume come from files, once each. o may be
// nil.
//
// A build that breaks off, for whatever reason, leaves complete volumes and at most one
// incomplete volume. The next build of any image with the same layers completes it.
// Errors: *[volref.UnsupportedError], and errors of the store and of files.
func Build(ctx context.Context, s block.Store, layers []block.Layer, files gear.FileSource, o *block.BuildOptions) (*volref.Record, error) {
	b := &build{s: s, layers: layers, files: files}
	if o != nil {
		b.o = *o
	}
	if b.o.FS == "" {
		b.o.FS = volref.Ext4
	}
	if b.o.Log == nil {
		b.o.Log = slog.New(slog.DiscardHandler)
	}
	rec, err := b.run(ctx)
	if err != nil {
		return nil, fmt.Errorf("build volumes of an image of %d layers: %w", len(layers), err)
	}
	return rec, nil
}

// build is a build in progress.
type build struct {
	s      block.Store
	layers []block.Layer
	files  gear.FileSource
	o      block.BuildOptions

	steps []step
	meter meter
}

// step is a volume of the image.
type step struct {
	layer      int // the index of its last layer in layers
	id, parent string
	plan       *block.Plan // nil if the volume was there at the beginning
	// below says which contents of the plan are in volumes further down, and where.
	below map[gear.Name]source
}

func (b *build) run(ctx context.Context) (*volref.Record, error) {
	if len(b.layers) == 0 {
		return nil, &volref.UnsupportedError{Reason: "it has no layers"}
	}
	digests := make([]oci.Digest, len(b.layers))
	for i := range b.layers {
		digests[i] = b.layers[i].Digest
	}
	switch b.o.FS {
	case volref.Ext4:
		for i := range b.layers {
			st := step{layer: i, id: volref.VolumeName(volref.Ext4, digests[:i+1])}
			if i > 0 {
				st.parent = b.steps[i-1].id
			}
			b.steps = append(b.steps, st)
		}
	case volref.EROFS:
		b.steps = []step{{layer: len(b.layers) - 1, id: volref.VolumeName(volref.EROFS, digests)}}
	default:
		return nil, fmt.Errorf("unknown file system %q", b.o.FS)
	}
	if err := b.usable(); err != nil {
		return nil, err
	}
	var rec *volref.Record
	var err error
	for range maxRestarts {
		if err = b.make(ctx, digests); err == nil {
			rec, err = b.record(ctx)
		}
		if !errors.Is(err, errRemoved) {
			break
		}
	}
	return rec, err
}

// errRemoved says that a volume that existed has been removed.
var errRemoved = fmt.Errorf("a volume below was removed meanwhile: %w", block.ErrNotFound)

// make makes the missing volumes, from the bottom up.
func (b *build) make(ctx context.Context, digests []oci.Digest) error {
	missing, err := b.missing(ctx)
	if err != nil || missing == len(b.steps) {
		return err
	}
	if err := b.plan(ctx, digests, missing); err != nil {
		return err
	}
	for i := missing; i < len(b.steps); i++ {
		if err := b.volume(ctx, &b.steps[i]); err != nil {
			return fmt.Errorf("volume %s: %w", b.steps[i].id, err)
		}
		b.steps[i].plan = nil // it may be large
	}
	return nil
}

// missing returns the index of the first volume that is missing or incomplete. The
// volumes above it cannot be complete.
func (b *build) missing(ctx context.Context) (int, error) {
	for i := len(b.steps) - 1; i >= 0; i-- {
		switch info, err := b.s.Stat(ctx, b.steps[i].id); {
		case errors.Is(err, block.ErrNotFound):
		case err != nil:
			return 0, err
		case info.Committed:
			return i + 1, nil
		}
	}
	return 0, nil
}

// record returns the record of the image, with the volumes that hold its layers.
func (b *build) record(ctx context.Context) (*volref.Record, error) {
	r := &volref.Record{Version: volref.RecordVersion, FS: b.o.FS, Place: b.s.Place(), Layers: make([]volref.RecordLayer, len(b.layers))}
	for i := range b.layers {
		r.Layers[i].Digest = b.layers[i].Digest
	}
	for i := range b.steps {
		info, err := b.s.Stat(ctx, b.steps[i].id)
		if errors.Is(err, block.ErrNotFound) || err == nil && !info.Committed {
			err = errRemoved
		}
		if err != nil {
			return nil, err
		}
		l := &r.Layers[b.steps[i].layer]
		l.Volume, l.Size, l.Used = info.ID, info.Size, max(info.Used, 0)
	}
	return r, nil
}

// usable returns an error if the image cannot be the lower layer of an overlay, because
// the overlay would not show what the volume holds. The volumes below are made for this
// image nevertheless, because a layer above may have removed what makes a layer below
// unusable. So their existence does not mean that an image that ends with them is usable.
func (b *build) usable() error {
	indexes := make([]*gear.Index, len(b.layers))
	suspect := false
	for i := range b.layers {
		indexes[i] = b.layers[i].Index
		suspect = suspect || usable(indexes[i]) != nil
	}
	if !suspect {
		return nil
	}
	x, err := gear.Flatten(indexes...)
	if err != nil {
		return unsupported(err)
	}
	return usable(x)
}

// usable returns an error that names an entry to which an overlay gives another meaning.
func usable(x *gear.Index) error {
	for i := range x.Entries {
		e := &x.Entries[i]
		if e.Type == rootfs.CharDevice && e.Major == 0 && e.Minor == 0 {
			return &volref.UnsupportedError{Reason: fmt.Sprintf("%q is the device 0:0, which an overlay takes for a whiteout", e.Path)}
		}
		for _, a := range e.Xattrs {
			if strings.HasPrefix(a.Name, "trusted.overlay.") {
				return &volref.UnsupportedError{Reason: fmt.Sprintf("%q has the attribute %q, which an overlay takes for its own", e.Path, a.Name)}
			}
		}
	}
	return nil
}

// These are the pauses between two looks at a volume that another builder writes.
const (
	firstPause = 50 * time.Millisecond
	maxPause   = 2 * time.Second
)

// volume makes one volume, or waits until another builder has made it.
func (b *build) volume(ctx context.Context, st *step) error {
	orphan := false // nobody wrote it at the last look
	for pause := firstPause; ; {
		v, err := b.begin(ctx, st, orphan)
		switch {
		case err == nil && v == nil:
			return nil // it is complete
		case err == nil:
			return b.write(ctx, st, v)
		case errors.Is(err, errOrphan):
			orphan = true
		case errors.Is(err, block.ErrInUse), errors.Is(err, block.ErrExists):
			orphan = false
		default:
			return err
		}
		b.meter.waiting(st.id)
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		}
		pause = min(pause*3/2, maxPause)
	}
}

// errOrphan is returned for an incomplete volume that nobody writes. Its builder may be
// about to commit it.
var errOrphan = errors.New("nobody writes it")

// begin opens a volume for writing. It returns nil if the volume is complete. Errors:
// block.ErrInUse and block.ErrExists if another builder writes it, errOrphan, errRemoved.
func (b *build) begin(ctx context.Context, st *step, orphan bool) (block.Volume, error) {
	info, err := b.s.Stat(ctx, st.id)
	switch {
	case errors.Is(err, block.ErrNotFound):
		v, err := b.s.Create(ctx, st.id, st.parent, st.plan.Size)
		// If the volume is incomplete, another builder makes it again.
		if errors.Is(err, block.ErrNotFound) || errors.Is(err, block.ErrNotCommitted) {
			return nil, errRemoved
		}
		return v, err
	case err != nil:
		return nil, err
	case info.Committed:
		return nil, nil
	}
	v, err := b.s.OpenWriter(ctx, st.id)
	switch {
	case errors.Is(err, block.ErrNotFound), errors.Is(err, block.ErrCommitted):
		return nil, block.ErrInUse // look again
	case err != nil:
		return nil, err
	case !orphan:
		if err := v.Close(); err != nil {
			return nil, err
		}
		return nil, errOrphan
	case v.Size() == st.plan.Size && info.Parent == st.parent:
		return v, nil
	}
	// Its builder knew other layers by this name, so it is not ours.
	if err := v.Close(); err != nil {
		return nil, err
	}
	if err := b.s.Remove(ctx, st.id); err != nil {
		return nil, err
	}
	return nil, block.ErrInUse // look again
}

// write fills a volume and commits it. It removes a volume that cannot be completed, to
// free its space. If that fails, too, the next build finds it.
func (b *build) write(ctx context.Context, st *step, v block.Volume) error {
	begun := time.Now()
	err := b.fill(ctx, st, v)
	if err == nil {
		err = v.Flush()
	}
	if err = errors.Join(err, v.Close()); err == nil {
		err = b.commit(ctx, st)
	}
	if err != nil {
		if rerr := b.takeBack(context.WithoutCancel(ctx), st.id); rerr != nil {
			b.o.Log.Warn("a volume that could not be finished is left for the next build", "volume", st.id, "err", rerr)
		}
		return err
	}
	b.o.Log.Info("made a volume", "volume", st.id, "layer", st.layer+1, "of", len(b.layers), "dur", time.Since(begun))
	return nil
}

// takeBack removes a volume that this builder cannot complete. It does not remove a
// volume that another builder continues or that is complete.
func (b *build) takeBack(ctx context.Context, id string) error {
	info, err := b.s.Stat(ctx, id)
	if err == nil && !info.Committed {
		err = b.s.Remove(ctx, id)
	}
	if errors.Is(err, block.ErrNotFound) || errors.Is(err, block.ErrInUse) {
		return nil
	}
	return err
}

// commit commits a volume. A builder that took the volume for abandoned has it open for a
// moment, or writes it once more and commits it itself.
func (b *build) commit(ctx context.Context, st *step) error {
	// The pause is shorter than that builder's.
	for pause := firstPause / 10; ; pause = min(pause*3/2, maxPause) {
		err := b.s.Commit(ctx, st.id)
		if !errors.Is(err, block.ErrInUse) {
			return err
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		}
	}
}
