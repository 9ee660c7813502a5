package load

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"example.org/slipway/workload/load/imageset"
)

// puller does one operation after the other on its images.
type puller struct {
	r       *run
	id      int
	pattern string
	images  []*imageset.Image
	lanes   []*lane
	rec     *recorder
	rnd     *rand.Rand
	pushed  uint64
	stop    atomic.Bool
	// failures is how many operations have failed in a row. Failures slow the puller
	// down.
	failures int
	done     chan struct{} // closed when run has returned
}

// These are the pauses after failures. They double from the first to the last. Otherwise
// a registry that is down would be asked a hundred thousand times a second.
const (
	firstPause = 5 * time.Millisecond
	lastPause  = time.Second
)

func (r *run) newPuller(ctx context.Context, id int) *puller {
	set := id % len(r.sets)
	p := &puller{r: r, id: id, pattern: r.patterns[set], rec: newRecorder(), done: make(chan struct{}),
		rnd: rand.New(rand.NewPCG(r.o.Set.Maker.Seed, uint64(id)+1<<32))}
	images := r.sets[set]
	p.images = rotated(images, id/len(r.sets)*len(images)*len(r.sets)/max(1, r.o.Pullers))
	for range max(1, r.o.LayersAtOnce) {
		p.lanes = append(p.lanes, newLane(ctx, r.target, r.o.Timeout, p.rec))
	}
	return p
}

// run works until the puller is ordered to stop or ctx ends.
func (p *puller) run(ctx context.Context) {
	defer close(p.done)
	defer p.close()
	mix := p.r.o.Mix
	for {
		if p.r.o.Shuffle {
			p.images = shuffled(p.images, p.rnd)
		}
		for _, m := range p.images {
			if p.stop.Load() || ctx.Err() != nil {
				return
			}
			p.do(ctx, mix.draw(p.rnd), m)
		}
		if p.r.o.Prune == NoPrune || p.stop.Load() {
			continue
		}
		begin := time.Now()
		p.note(ctx, Pruning, begin, p.r.prune(ctx, p.pattern, p.images))
	}
}

func (p *puller) close() {
	for _, l := range p.lanes {
		_ = l.wire.Close() // nothing is under way
	}
}

// shuffled returns the images in another order. It does not change images, because other
// pullers use it, too.
func shuffled(images []*imageset.Image, rnd *rand.Rand) []*imageset.Image {
	out := append([]*imageset.Image(nil), images...)
	rnd.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}

// do does one operation and counts it.
func (p *puller) do(ctx context.Context, o Op, m *imageset.Image) {
	begin := time.Now()
	var err error
	switch o {
	case Pull:
		err = p.pull(ctx, m)
	case Push:
		err = p.push(ctx)
	case Head:
		err = p.lanes[0].head(ctx, m.Repo, m.Tag, m.Manifests[0])
	case List:
		err = p.lanes[0].list(ctx, m.Repo, m.Tag)
	}
	p.note(ctx, o, begin, err)
}

// note counts an operation. It does not count an operation that the end of the run broke
// off.
func (p *puller) note(ctx context.Context, o Op, begin time.Time, err error) {
	if err != nil && ctx.Err() != nil {
		return
	}
	p.rec.op(o, time.Since(begin), err)
	if err == nil {
		p.failures = 0
		return
	}
	pause := min(firstPause<<min(p.failures, 20), lastPause)
	p.failures++
	select {
	case <-time.After(pause):
	case <-ctx.Done():
	}
}

// pull fetches an image as clients do: the manifest by its tag, the platform's manifest
// by its digest, then the configuration and the layers.
func (p *puller) pull(ctx context.Context, m *imageset.Image) error {
	ref := m.Tag
	for i := range m.Manifests {
		if i > 0 {
			ref = string(m.Manifests[i].Digest)
		}
		if err := p.lanes[0].manifest(ctx, m.Repo, ref, m.Manifests[i]); err != nil {
			return err
		}
	}
	if len(p.lanes) > 1 && len(m.Blobs) > 1 {
		return p.blobsAtOnce(ctx, m)
	}
	for i := range m.Blobs {
		if err := p.lanes[0].blob(ctx, m.Repo, m.Blobs[i]); err != nil {
			return err
		}
	}
	return nil
}

// blobsAtOnce fetches the blobs of an image over all lanes. It returns the first error.
func (p *puller) blobsAtOnce(ctx context.Context, m *imageset.Image) error {
	var next atomic.Int64
	errs := make([]error, len(p.lanes))
	var wg sync.WaitGroup
	for n, l := range p.lanes {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(m.Blobs)) && errs[n] == nil; i = next.Add(1) - 1 {
				errs[n] = l.blob(ctx, m.Repo, m.Blobs[i])
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// push pushes an image that nobody has pushed before. The image belongs to no batch, so
// no pattern of a batch selects it.
func (p *puller) push(ctx context.Context) error {
	p.pushed++
	s := &imageset.Set{Options: p.r.pushSet}
	m, err := s.Describe(ctx, p.id<<32|int(p.pushed)%(1<<32))
	if err != nil {
		return err
	}
	m.Repo += "-push"
	if err := pushImage(ctx, p.r.target.hasty, s, m); err != nil {
		return fmt.Errorf("push %s: %w", m.Name(), err)
	}
	return nil
}
