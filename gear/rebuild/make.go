package rebuild

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"math"
	"slices"
	"sort"

	"example.org/slipway/gear/rebuild/deflate"
)

// ErrUnsupported is returned, wrapped, for a layer that is not a gzip stream, and for a
// layer whose recipe would exceed its bounds. Such a layer is kept as it is.
var ErrUnsupported = errors.New("layer cannot be rebuilt")

// MakeOptions adjust the making of a recipe.
type MakeOptions struct {
	// SegmentBytes is the number of plain bytes in a segment, which may have somewhat
	// more; default 2 MiB, maximum 4 MiB. Reading a range rebuilds at least one segment,
	// and each segment adds some hundred bytes to the recipe.
	SegmentBytes int
	// Plain, when set, receives the uncompressed layer.
	Plain io.Writer
	// Verify writes the layer again from the recipe, with the predictions that were made
	// for it, and compares the digest. That takes much less time than a rebuild, which has
	// to predict again, and only leaves open whether a prediction is the same each time.
	Verify bool
}

const (
	defaultSegment = 2 << 20
	// maxEvents is the maximum number of blocks and members that are held for a segment.
	maxEvents = 1 << 16
	slack     = deflate.Slack
)

// maker makes a recipe.
type maker struct {
	opts   MakeOptions
	work   *work
	in     *deflate.Reader
	base   int64 // plain offset of in.Out[0]
	plain  int64 // plain bytes so far
	diffID hash.Hash
	events []*deflate.Event // the events that are in no segment yet
	member int64            // plain offset of the member in which events[0] is
	model  deflate.Model
	chosen bool
	again  int // how often another model was searched for
	// searched is the number of segments before the one for which a model was last searched
	// for, and found the share of its bits that its data has.
	searched int
	found    float64
	r        Recipe
	verify   *verifier // nil: the layer is not verified
}

// Make reads a layer that is compressed with gzip, and makes its recipe. It needs some 20
// MB of memory, and more only for layers with blocks that no common encoder writes.
// Errors: ErrUnsupported, and the errors of layer, Plain and ctx.
func Make(ctx context.Context, layer io.Reader, opts *MakeOptions) (*Recipe, error) {
	m := &maker{work: newWork(), diffID: sha256.New()}
	if opts != nil {
		m.opts = *opts
	}
	if m.opts.SegmentBytes <= 0 {
		m.opts.SegmentBytes = defaultSegment
	}
	m.opts.SegmentBytes = min(m.opts.SegmentBytes, maxSegmentTarget)
	if m.opts.Verify {
		m.verify = newVerifier()
	}
	sum := sha256.New()
	m.in = deflate.NewReader(io.TeeReader(layer, sum))
	if err := m.run(ctx); err != nil {
		if errors.Is(err, deflate.ErrFormat) || errors.Is(err, deflate.ErrUnsupported) {
			err = fmt.Errorf("%w: %w", ErrUnsupported, err)
		}
		return nil, fmt.Errorf("make recipe: %w", err)
	}
	m.r.Plain = m.plain
	sum.Sum(m.r.Digest[:0])
	m.diffID.Sum(m.r.DiffID[:0])
	if m.verify != nil {
		if err := m.verify.end(&m.r); err != nil {
			return nil, fmt.Errorf("make recipe: %w", err)
		}
	}
	return &m.r, nil
}

func (m *maker) run(ctx context.Context) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		e, err := m.in.Next()
		if err == io.EOF {
			m.r.Size = e.Bit/8 + int64(len(m.r.tail))
			return m.finish(e.Bit)
		}
		if err != nil {
			return err
		}
		if e.Kind == deflate.Tail {
			m.r.tail = e.Raw
			m.r.Size = e.Bit/8 + int64(len(e.Raw))
			return m.finish(e.Bit)
		}
		if err := m.take(e); err != nil {
			return err
		}
		for n := m.cut(); n > 0; n = m.cut() {
			if m.plain < m.events[n].Plain+ahead {
				break // the segment needs plain bytes that have not been read yet
			}
			if err := m.segment(n, m.events[n].Bit, m.events[n].Plain, false); err != nil {
				return err
			}
		}
	}
}

// take adds an event that was read.
func (m *maker) take(e *deflate.Event) error {
	fresh := m.in.Out[len(m.in.Out)-e.Block.Plain:]
	m.plain += int64(len(fresh))
	m.diffID.Write(fresh)
	if m.opts.Plain != nil {
		if _, err := m.opts.Plain.Write(fresh); err != nil {
			return err
		}
	}
	if m.events = append(m.events, e); len(m.events) > 2*maxEvents {
		return fmt.Errorf("%w: it has too many blocks without content", ErrUnsupported)
	}
	return nil
}

// cut returns how many events make a segment, or 0 if there are not enough.
func (m *maker) cut() int {
	if len(m.events) == 0 {
		return 0
	}
	enough := m.events[0].Plain + int64(m.opts.SegmentBytes)
	n := sort.Search(len(m.events), func(i int) bool { return m.events[i].Plain >= enough || i >= maxEvents })
	for n < len(m.events) && m.events[n].Kind == deflate.MemberTrailer {
		n++
	}
	if n == len(m.events) {
		return 0
	}
	return n
}

// finish makes segments of the remaining events. The last segment ends at the given bit.
func (m *maker) finish(end int64) error {
	for len(m.events) > 0 {
		n, bit, plain := m.cut(), end, m.plain
		if n == 0 {
			n = len(m.events)
		} else {
			bit, plain = m.events[n].Bit, m.events[n].Plain
		}
		if err := m.segment(n, bit, plain, n == len(m.events)); err != nil {
			return err
		}
	}
	return nil
}

// segment makes a segment of the first n events. It ends at the given positions.
func (m *maker) segment(n int, endBit, endPlain int64, last bool) error {
	events := m.events[:n]
	first := events[0]
	known := m.chosen
	var data attempt
	if known {
		data = m.encode(m.model, events, endPlain, math.MaxInt)
	} else {
		data = m.choose(events, endPlain)
	}
	bits := endBit - first.Bit
	share := func() float64 { return float64(len(data.b)) * 8 / float64(max(1, bits)) }
	search := !known
	if known && m.again < maxAgain && m.poor(share()) {
		// The stream is not from that encoder, or the rest of it is not.
		m.again++
		search = true
		data = m.choose(events, endPlain)
	}
	if search {
		m.searched, m.found = len(m.r.segments), share()
	}
	s := segment{bit: first.Bit, bits: bits, at: first.Plain, plain: endPlain - first.Plain, model: m.model, data: data.b}
	if s.bits > maxSegmentBits || s.plain > maxSegmentPlain {
		return fmt.Errorf("%w: it has a block that is too long", ErrUnsupported)
	}
	m.r.segments = append(m.r.segments, s)
	if m.verify != nil {
		span, _, _ := m.span(m.model, first.Plain, endPlain)
		if err := m.verify.segment(&s, span, data.guesses, last); err != nil {
			return err
		}
	}
	for _, e := range events {
		if e.Kind == deflate.MemberHeader {
			m.member = e.Plain
		}
	}
	m.events = append(m.events[:0], m.events[n:]...)
	if drop := endPlain - deflate.MaxHistory - m.base; drop > 0 {
		m.in.Drop(int(drop))
		m.base += drop
	}
	return nil
}

// poor reports whether a segment whose data has a share of its bits is predicted so badly
// that another model may be better. If no model was much better a few segments before, a
// search would take longer than all else, and find nothing either.
func (m *maker) poor(share float64) bool {
	return share > badly && (share > 2*m.found || len(m.r.segments)-m.searched >= searchPause)
}

const (
	// badly is the share of a segment's bits from which on it is predicted badly.
	badly = 1.0 / 128
	// maxAgain is how often another model is searched for when the current one predicts
	// badly, and searchPause is how many segments lie between two searches that found
	// nothing better.
	maxAgain    = 4
	searchPause = 16
)

// attempt is a segment that was coded with a model. guesses is set if the segment is to be
// verified.
type attempt struct {
	b       []byte
	guesses *replay
}

// encode codes events with a model. It assumes that they are all events up to endPlain.
// The result has no bytes if it has more than limit.
func (m *maker) encode(model deflate.Model, events []*deflate.Event, endPlain int64, limit int) (a attempt) {
	from := events[0].Plain
	s, off, end := m.span(model, from, endPlain)
	if m.verify != nil {
		a.guesses = newReplay()
	}
	a.b = encodeSegment(m.work, s, from-m.member, m.horizons(off, from, end), events, limit, a.guesses)
	return a
}

// span returns the plain bytes from one position to another as a model needs them, which are
// those from off to end.
func (m *maker) span(model deflate.Model, from, to int64) (s span, off, end int64) {
	off = max(0, from-int64(model.History()))
	end = min(to+ahead, m.plain)
	buf := m.work.window(int(end - off))
	copy(buf[:len(buf)-slack], m.in.Out[off-m.base:])
	return span{model: model, buf: buf, at: int(from - off), end: int(to - off)}, off, end
}

// horizons returns the places between from and end at which the encoder had to finish all
// bytes that it had seen.
func (m *maker) horizons(off, from, end int64) (places []int) {
	last := from - 1
	for _, e := range m.events {
		flushed := e.Kind == deflate.BlockData && e.Block.Kind == deflate.Stored && e.Block.Plain == 0
		if (flushed || e.Kind == deflate.MemberTrailer) && e.Plain > last && e.Plain <= end {
			places = append(places, int(e.Plain-off))
			last = e.Plain
		}
	}
	return places
}

const (
	// probeBytes is how many plain bytes all models are tried on. The models that were
	// close to the best one are then tried on the whole segment.
	probeBytes = 96 << 10
	finalists  = 4
)

// choose finds the model that predicts the events best, and codes them with it.
func (m *maker) choose(events []*deflate.Event, endPlain int64) (best attempt) {
	m.chosen = true
	few, end := events, endPlain
	for i, e := range events {
		if i > 1 && e.Plain-events[0].Plain >= probeBytes {
			few, end = events[:i], e.Plain
			break
		}
	}
	type trial struct {
		model deflate.Model
		cost  int
	}
	var trials []trial
	least := math.MaxInt / 2
	near := func() int { return least + least/4 + 16 }
	for _, model := range deflate.Models() {
		if data := m.encode(model, few, end, near()); data.b != nil {
			least = min(least, len(data.b))
			trials = append(trials, trial{model, len(data.b)})
		}
	}
	trials = slices.DeleteFunc(trials, func(t trial) bool { return t.cost > near() })
	// The model that is probably the best comes first, so that the others need not code all
	// events.
	slices.SortStableFunc(trials, func(a, b trial) int { return cmp.Compare(a.cost, b.cost) })
	most := math.MaxInt
	for _, t := range trials[:min(len(trials), finalists)] {
		if data := m.encode(t.model, events, endPlain, most); data.b != nil && (best.b == nil || len(data.b) < len(best.b)) {
			m.model, best, most = t.model, data, len(data.b)-1
		}
	}
	return best
}
