package registry

import (
	"context"
	"fmt"
	"os"
	"syscall"
	"time"

	"example.org/slipway/integration/bench/measure"
	"example.org/slipway/integration/bench/rival"
)

const (
	caseSingle  = "C=4, one POST a blob"
	caseChunked = "128 MiB in 16 MiB chunks"
)

// runPush pushes small images, each into a new repository.
func runPush(b *bench, ctx context.Context, sc *scenario) error {
	servers, err := b.start(ctx, b.available(sc))
	if err != nil {
		return err
	}
	defer func() { b.stop(servers...) }()
	for _, clients := range []int{1, 4, 10} {
		if err := b.pushSmall(ctx, sc, caseClients(clients), servers, clients, pushMode{}); err != nil {
			return err
		}
	}
	var able []*server
	for _, s := range servers {
		if s.SinglePost {
			able = append(able, s)
		}
	}
	return b.pushSmall(ctx, sc, caseSingle, able, 4, pushMode{single: true})
}

func (b *bench) pushSmall(ctx context.Context, sc *scenario, cas string, servers []*server, clients int, mode pushMode) error {
	return b.interleave(ctx, sc, arms(cas, servers), func(ctx context.Context, a arm) (Sample, error) {
		s := a.s
		set := b.Serial()
		// Data that the previous server left to write must not slow the next one.
		syscall.Sync()
		return measureLoad(ctx, s, measure.Clients{N: clients, Least: b.slice, Do: func(ctx context.Context, _ *measure.Worker, i int) (int64, error) {
			im := smallImage(set, i)
			return im.bytes(), s.pushImage(ctx, im, mode)
		}})
	})
}

// bytes returns the size of the image's content, without its manifest.
func (im *image) bytes() (n int64) {
	for _, b := range im.blobs {
		n += int64(len(b.data))
	}
	return n
}

// runPushLarge pushes images of one large layer.
func runPushLarge(b *bench, ctx context.Context, sc *scenario) error {
	servers, err := b.start(ctx, b.available(sc))
	if err != nil {
		return err
	}
	defer func() { b.stop(servers...) }()
	for _, c := range []struct {
		name                 string
		size, clients, count int
		mode                 pushMode
	}{
		{"1 MiB", 1 << 20, 4, 16, pushMode{}},
		{"16 MiB", 16 << 20, 2, 4, pushMode{}},
		{"128 MiB", 128 << 20, 1, 1, pushMode{}},
		{caseChunked, 128 << 20, 1, 1, pushMode{chunk: 16 << 20}},
	} {
		err := b.interleave(ctx, sc, arms(c.name, servers), func(ctx context.Context, a arm) (Sample, error) {
			s := a.s
			images := make([]*image, c.count)
			for i := range images {
				n := b.Serial()
				images[i] = b.largeOf(c.size).another(fmt.Sprintf("bench/push-%d", n), uint64(n))
			}
			syscall.Sync()
			return measureLoad(ctx, s, measure.Clients{N: c.clients, Limit: c.count, Do: func(ctx context.Context, _ *measure.Worker, i int) (int64, error) {
				return images[i].bytes(), s.pushImage(ctx, images[i], c.mode)
			}})
		})
		if err != nil {
			return err
		}
	}
	return nil
}

const (
	caseAfterPush  = "after pushing"
	caseAfterServe = "after serving"
	// caseLater is added to the name of a case that is measured a second time later.
	caseLater = ", 6 s later"
	// restTime is longer than Slipway waits before it gives memory back.
	restTime = 6 * time.Second
	// memoryClients is the number of clients that push and pull meanwhile.
	memoryClients = 10
)

// runMemory measures the memory that a server needs, with a new store in each round.
func runMemory(b *bench, ctx context.Context, sc *scenario) error {
	for _, sp := range b.available(sc) {
		rounds := min(b.Run.Rounds, 3)
		if b.results.Run.Full && sp.Name != nameSlipway {
			rounds = 1
		}
		for round := 1; round <= rounds; round++ {
			if err := b.memoryRound(ctx, sc, sp, round); err != nil {
				return err
			}
		}
	}
	return nil
}

// memoryRound pushes images to a new server, restarts it, and pulls them.
func (b *bench) memoryRound(ctx context.Context, sc *scenario, sp *rival.Spec, round int) error {
	dir := b.NewDir()
	defer os.RemoveAll(dir)
	set, n := b.Serial(), b.results.Run.Scale.MemImages
	for _, half := range []struct {
		name string
		do   func(s *server) func(ctx context.Context, w *measure.Worker, i int) (int64, error)
	}{
		{caseAfterPush, func(s *server) func(context.Context, *measure.Worker, int) (int64, error) {
			return func(ctx context.Context, _ *measure.Worker, i int) (int64, error) {
				return 0, s.pushImage(ctx, smallImage(set, i), pushMode{})
			}
		}},
		{caseAfterServe, func(s *server) func(context.Context, *measure.Worker, int) (int64, error) {
			return func(ctx context.Context, w *measure.Worker, i int) (int64, error) {
				return s.pull(ctx, smallImage(set, i), &w.Buf)
			}
		}},
	} {
		s, err := startServer(ctx, sp, dir)
		if err != nil {
			return err
		}
		sample, err := measureLoad(ctx, s, measure.Clients{N: memoryClients, Limit: n, Do: half.do(s)})
		b.record(sc, half.name, sp.Name, round, sample, err)
		if err == nil {
			select {
			case <-ctx.Done():
			case <-time.After(restTime):
				sample.RSS, sample.PeakRSS, err = s.Memory()
				b.record(sc, half.name+caseLater, sp.Name, round, sample, err)
			}
		}
		s.stop()
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}
