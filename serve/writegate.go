package serve

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"example.org/slipway/oci"
)

// writeGate can stop writes for a while.
type writeGate struct {
	// busy is read-locked by each write and locked while writes are stopped.
	busy sync.RWMutex
	mu   sync.Mutex
	// stopped is closed as soon as writes are to stop.
	stopped chan struct{}
}

func newWriteGate() *writeGate { return &writeGate{stopped: make(chan struct{})} }

// errStopped returns the error for a write while writes are stopped.
func errStopped() error {
	return &oci.Error{Code: oci.CodeUnavailable, RetryAfter: 30 * time.Second,
		Message: "the registry takes no writes while its catalogue is moved to another database"}
}

// stopping returns a channel that is closed when writes are to stop.
func (g *writeGate) stopping() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.stopped
}

// enter begins a write, and the caller ends it with leave. It returns an error while
// writes are stopped.
func (g *writeGate) enter() (leave func(), err error) {
	select {
	case <-g.stopping():
		return nil, errStopped()
	default:
	}
	if !g.busy.TryRLock() {
		return nil, errStopped()
	}
	return g.busy.RUnlock, nil
}

// errMoving says that writes are already stopped.
var errMoving = errors.New("the catalogue is being moved, or has been")

// stop stops all writes. When it returns nil, the writes that were under way have ended
// and new ones are refused.
func (g *writeGate) stop(ctx context.Context) error {
	g.mu.Lock()
	select {
	case <-g.stopped:
		g.mu.Unlock()
		return errMoving
	default:
	}
	close(g.stopped)
	g.mu.Unlock()
	const often = 20 * time.Millisecond
	tick := time.NewTicker(often)
	defer tick.Stop()
	for !g.busy.TryLock() {
		select {
		case <-ctx.Done():
			g.open()
			return ctx.Err()
		case <-tick.C:
		}
	}
	return nil
}

// resume allows writes again after stop.
func (g *writeGate) resume() {
	g.busy.Unlock()
	g.open()
}

func (g *writeGate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.stopped = make(chan struct{})
}

// whileWritable runs f unless writes are stopped, and keeps them from being stopped
// meanwhile.
func whileWritable[A, R any](g *writeGate, f func(context.Context, A, func(R)) (R, error)) func(context.Context, A, func(R)) (R, error) {
	return func(ctx context.Context, args A, progress func(R)) (R, error) {
		leave, err := g.enter()
		if err != nil {
			var none R
			return none, err
		}
		defer leave()
		return f(ctx, args, progress)
	}
}

// convert runs the conversion to Gear and the building of volumes until ctx ends. It
// pauses while writes are stopped or the object store is unavailable.
func (s *Server) convert(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		if leave, err := s.writes.enter(); err == nil && s.root.reg.StoreAway() != nil {
			leave()
		} else if err == nil {
			err := s.convertUntil(ctx, s.writes.stopping())
			leave()
			if ctx.Err() != nil || err != nil && !errors.Is(err, context.Canceled) {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

func (s *Server) convertUntil(ctx context.Context, stop <-chan struct{}) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for s.root.reg.StoreAway() == nil {
			select {
			case <-stop:
				cancel()
				return
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
		cancel()
	})
	if v := s.root.volumes; v != nil {
		wg.Go(func() { _ = v.Run(ctx) }) // ends with ctx and returns no error
	}
	return s.root.gear.Run(ctx)
}

// stoppable is a registry whose writes can be stopped.
type stoppable struct {
	oci.Registry
	gate *writeGate
}

// guarded runs the write f unless writes are stopped.
func guarded[T any](g *writeGate, f func() (T, error)) (T, error) {
	leave, err := g.enter()
	if err != nil {
		var none T
		return none, err
	}
	defer leave()
	return f()
}

// PushBlob implements oci.Writer.
func (s stoppable) PushBlob(ctx context.Context, repo string, d oci.Digest, size int64, r io.Reader) (oci.Descriptor, error) {
	return guarded(s.gate, func() (oci.Descriptor, error) { return s.Registry.PushBlob(ctx, repo, d, size, r) })
}

// MountBlob implements oci.Writer.
func (s stoppable) MountBlob(ctx context.Context, to, from string, d oci.Digest) (oci.Descriptor, error) {
	return guarded(s.gate, func() (oci.Descriptor, error) { return s.Registry.MountBlob(ctx, to, from, d) })
}

// StartUpload implements oci.Writer.
func (s stoppable) StartUpload(ctx context.Context, repo string) (oci.UploadStatus, error) {
	return guarded(s.gate, func() (oci.UploadStatus, error) { return s.Registry.StartUpload(ctx, repo) })
}

// AppendUpload implements oci.Writer.
func (s stoppable) AppendUpload(ctx context.Context, repo, id string, off, size int64, r io.Reader) (oci.UploadStatus, error) {
	return guarded(s.gate, func() (oci.UploadStatus, error) { return s.Registry.AppendUpload(ctx, repo, id, off, size, r) })
}

// CommitUpload implements oci.Writer.
func (s stoppable) CommitUpload(ctx context.Context, repo, id string, off, size int64, r io.Reader, d oci.Digest) (oci.Descriptor, error) {
	return guarded(s.gate, func() (oci.Descriptor, error) { return s.Registry.CommitUpload(ctx, repo, id, off, size, r, d) })
}

// CancelUpload implements oci.Writer.
func (s stoppable) CancelUpload(ctx context.Context, repo, id string) error {
	_, err := guarded(s.gate, func() (struct{}, error) { return struct{}{}, s.Registry.CancelUpload(ctx, repo, id) })
	return err
}

// PutManifest implements oci.Writer.
func (s stoppable) PutManifest(ctx context.Context, repo string, m oci.PutManifest) (oci.PutResult, error) {
	return guarded(s.gate, func() (oci.PutResult, error) { return s.Registry.PutManifest(ctx, repo, m) })
}

// DeleteBlob implements oci.Deleter.
func (s stoppable) DeleteBlob(ctx context.Context, repo string, d oci.Digest) error {
	_, err := guarded(s.gate, func() (struct{}, error) { return struct{}{}, s.Registry.DeleteBlob(ctx, repo, d) })
	return err
}

// DeleteManifest implements oci.Deleter.
func (s stoppable) DeleteManifest(ctx context.Context, repo string, d oci.Digest) error {
	_, err := guarded(s.gate, func() (struct{}, error) { return struct{}{}, s.Registry.DeleteManifest(ctx, repo, d) })
	return err
}

// DeleteTag implements oci.Deleter.
func (s stoppable) DeleteTag(ctx context.Context, repo, tag string) error {
	_, err := guarded(s.gate, func() (struct{}, error) { return struct{}{}, s.Registry.DeleteTag(ctx, repo, tag) })
	return err
}
