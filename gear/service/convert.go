package service

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"strings"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/gear/convert"
	"example.org/slipway/gear/filestore"
	"example.org/slipway/gear/rootfs"
	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog/gearfacts"
	"example.org/slipway/registry/upload"
)

// Follow implements upload.Tap. It converts a layer while the layer is uploaded.
func (s *Service) Follow(repo string, head []byte) upload.Follower {
	if !isLayer(head) || s.opts.Mode(repo) == Off {
		return nil
	}
	select {
	case s.slots <- struct{}{}:
	default:
		return nil // the queue converts it
	}
	if !s.begin() {
		<-s.slots
		return nil
	}
	c := &conversion{since: s.opts.Clock()}
	f := newFollower(followerMemory/cap(s.slots), func(ctx context.Context, d oci.Digest, off int64) (io.ReadCloser, error) {
		body, _, err := s.blobs.OpenBlob(ctx, d, off)
		return body, err
	}, func(d oci.Digest, size int64) bool {
		c.progress(0, size)
		return s.start(d, c)
	})
	go func() {
		defer s.work.Done()
		defer func() { <-s.slots }()
		behind := f.behind
		if s.opts.Mode(repo) == Sync { // the client waits for the files, too
			behind = nil
		}
		s.followUpload(f, c, behind)
	}()
	return f
}

// followUpload converts what a follower reads. A failure is not reported: if an image
// needs the layer, the queue has it and says why it fails.
func (s *Service) followUpload(f *follower, c *conversion, behind func() bool) {
	s.lead(1)
	body := f.reader(s.ctx, s.opts.Patience)
	err := s.convert(s.ctx, body, convert.Want{}, c, behind, func() (oci.Digest, int64, error) {
		d, size, err := f.published(s.ctx)
		if err == nil {
			// Another upload of the layer may have been faster, and have ended.
			var todo bool
			if todo, err = s.todo(s.ctx, d); err == nil && !todo {
				err = errTaken
			}
		}
		return d, size, err
	})
	s.lead(-1)
	if closeErr := body.Close(); closeErr != nil {
		s.log.Warn("close a layer", "err", closeErr)
	}
	d := f.giveUp()
	if d == "" {
		return
	}
	if errors.Is(err, errEarly) && s.attended() {
		// The queue stores the files, after the indexes of other layers.
		if err = s.facts.Queue(s.ctx, d); err == nil {
			s.end(d)
			s.wake()
			return
		}
	}
	if errors.Is(err, filestore.ErrRetry) || errors.Is(err, errEarly) { // a conversion that was to store some of its files has failed
		err = s.convertStored(s.ctx, d, c, nil)
	}
	s.endEarly(d)
	if err == nil || errors.Is(err, errTaken) {
		err = s.finished(s.ctx, d)
	}
	if err != nil && s.ctx.Err() == nil {
		s.log.Debug("convert a layer while it is pushed", "layer", d, "err", err)
	}
	s.end(d)
	s.wake() // the queue may have the layer
}

// isLayer reports whether a blob may be a layer by its first bytes: gzip, zstd or tar.
// zstd may begin with a skippable frame, as pzstd writes it.
func isLayer(head []byte) bool {
	const ustarAt = 257
	return bytes.HasPrefix(head, []byte{0x1f, 0x8b}) || bytes.HasPrefix(head, []byte{0x28, 0xb5, 0x2f, 0xfd}) ||
		len(head) >= 4 && head[0]&0xf0 == 0x50 && string(head[1:4]) == "\x2a\x4d\x18" ||
		len(head) >= ustarAt+5 && string(head[ustarAt:ustarAt+5]) == "ustar"
}

// convert converts the layer that body reads and records the outcome. It calls done when
// the layer was read. done returns the digest and the size of the layer's blob. Once
// behind returns true, if behind is not nil, no more files are stored. Errors: errEarly
// if that happened.
func (s *Service) convert(ctx context.Context, body io.Reader, want convert.Want, c *conversion, behind func() bool,
	done func() (oci.Digest, int64, error)) error {
	began := s.opts.Clock()
	w, err := s.files.NewWriter(ctx)
	if err != nil {
		return err
	}
	defer w.Abort(ctx)
	if s.cat.DB.Shared() { // a request for the files may go to another process, which would not wait for them
		behind = nil
	}
	sink := &leading{Writer: w, behind: behind}
	out, err := convert.Layer(ctx, &bounded{r: body, clock: s.opts.Clock, left: s.opts.LayerTime, max: s.opts.LayerTime}, want, sink, &convert.Options{
		MemoryBytes: conversionMemory / int64(cap(s.slots)), TempDir: s.opts.TempDir, Layer: s.opts.Layer, Index: s.opts.Index,
		Progress: func(bytes, _ int64) { c.progress(bytes, 0) }, IndexOnly: sink.indexOnly,
	})
	if err != nil {
		return err
	}
	d, size, err := done()
	if err != nil {
		return err
	}
	got := oci.Digest("sha256:" + hex.EncodeToString(out.Sums.Digest[:]))
	if out.Sums.Compressed != size || strings.HasPrefix(string(d), "sha256:") && got != d {
		return fmt.Errorf("layer %s of %d bytes was read as %s of %d bytes", d, size, got, out.Sums.Compressed)
	}
	if sink.alone.Load() && !holdsIndex(out.Index) {
		return s.announce(d, out)
	}
	if holdsIndex(out.Index) {
		w.Abort(ctx) // a node needs the index that the layer holds, and not a file that holds the index
		return s.takeIndex(ctx, d, out.Sums.DiffID)
	}
	if err := commitIndex(ctx, w, out.Index, gearfacts.Layer{Digest: d, Bytes: total(out.Index), DiffID: out.Sums.DiffID}); err != nil {
		return err
	}
	s.metrics.converted.Inc()
	s.metrics.readBytes.Add(float64(out.Sums.Uncompressed))
	s.metrics.newBytes.Add(float64(out.NewBytes))
	s.metrics.took.Observe(s.opts.Clock().Sub(began).Seconds())
	return nil
}

// bounded bounds the work on a layer. The work is the time between two reads, in which
// the bytes are decompressed, hashed and stored. The time before the first read and the
// time spent waiting for bytes do not count.
type bounded struct {
	r     io.Reader
	clock func() time.Time
	// left is the rest of the time max.
	left, max time.Duration
	last      time.Time // the end of the last read; zero before the first read
}

// Read implements io.Reader.
func (b *bounded) Read(p []byte) (int, error) {
	if !b.last.IsZero() {
		b.left -= b.clock().Sub(b.last)
	}
	if b.left < 0 {
		return 0, &costlyError{b.max}
	}
	n, err := b.r.Read(p)
	b.last = b.clock()
	return n, err
}

// costlyError says that a layer takes more work than is allowed.
type costlyError struct{ max time.Duration }

// Error implements error.
func (e *costlyError) Error() string {
	return fmt.Sprintf("the layer takes more than %v of work (gear.max_layer_time), so it stays as it is", e.max)
}

// commitIndex encodes and records an index.
func commitIndex(ctx context.Context, w *filestore.Writer, x *gear.Index, l gearfacts.Layer) error {
	var buf bytes.Buffer
	if err := x.Encode(&buf); err != nil {
		return fmt.Errorf("encode the index of %s: %w", l.Digest, err)
	}
	if _, err := w.PutIndex(ctx, buf.Bytes()); err != nil {
		return fmt.Errorf("store the index of %s: %w", l.Digest, err)
	}
	return w.Commit(ctx, l)
}

// total returns the size in bytes of all distinct contents.
func total(x *gear.Index) (n int64) {
	for i := range x.Files {
		n += x.Files[i].Size
	}
	return n
}

// permanent reports whether a conversion would fail again in the same way, if the layer's
// bytes are the bytes that were pushed.
func permanent(err error) bool {
	var format *rootfs.FormatError
	var limit *rootfs.LimitError
	var costly *costlyError
	return errors.As(err, &format) || errors.As(err, &limit) || errors.As(err, &costly) ||
		errors.Is(err, gear.ErrConflict) || errors.Is(err, gear.ErrTooLarge) || errors.Is(err, gear.ErrInvalid) || errors.Is(err, gear.ErrNotGear)
}

// intact returns an error if a stored layer differs from what was pushed.
func (s *Service) intact(ctx context.Context, d oci.Digest) error {
	body, _, err := s.blobs.OpenBlob(ctx, d, 0)
	if err != nil {
		return err
	}
	defer body.Close()
	return newSum(d).check(body)
}

// sum computes the digest of a blob whose digest is known.
type sum struct {
	hash.Hash
	want oci.Digest
}

func newSum(d oci.Digest) *sum {
	if strings.HasPrefix(string(d), "sha512:") {
		return &sum{sha512.New(), d}
	}
	return &sum{sha256.New(), d}
}

// check reads the rest of the blob and compares. Errors: *gear.MismatchError.
func (s *sum) check(rest io.Reader) error {
	if _, err := io.Copy(s, rest); err != nil {
		return err
	}
	alg, _, _ := strings.Cut(string(s.want), ":")
	if got := oci.Digest(alg + ":" + hex.EncodeToString(s.Sum(nil))); got != s.want {
		return &gear.MismatchError{What: "digest", Want: s.want, Got: got}
	}
	return nil
}

// index reads an index.
func (s *Service) index(ctx context.Context, name gear.Name) (*gear.Index, error) {
	c, err := s.open(ctx, name)
	if err != nil {
		return nil, err
	}
	var buf bytes.Buffer
	if err := c.WriteRange(ctx, &buf, 0, c.Size()); err != nil {
		return nil, err
	}
	return gear.Decode(&buf, s.opts.Index)
}

// stored returns the contents of an index that the file store has: all except the empty
// one.
func stored(x *gear.Index) []gear.Name {
	names := make([]gear.Name, 0, len(x.Files))
	for i := range x.Files {
		if x.Files[i].Size > 0 {
			names = append(names, x.Files[i].Name)
		}
	}
	return names
}
