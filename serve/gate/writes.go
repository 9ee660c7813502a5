package gate

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"example.org/slipway/oci"
)

// Writes can stop writes for a while.
type Writes struct {
	// busy is read-locked by each write and locked while writes are stopped.
	busy sync.RWMutex
	mu   sync.Mutex
	// stopped is closed as soon as writes are to stop.
	stopped chan struct{}
}

// NewWrites returns a gate that lets writes pass.
func NewWrites() *Writes { return &Writes{stopped: make(chan struct{})} }

// errStopped returns the error for a write while writes are stopped.
func errStopped() error {
	return &oci.Error{Code: oci.CodeUnavailable, RetryAfter: 30 * time.Second,
		Message: "the registry takes no writes while its catalogue is moved to another database"}
}

// Stopping returns a channel that is closed when writes are to stop.
func (g *Writes) Stopping() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.stopped
}

// Enter begins a write, and the caller ends it with leave. It returns an error while
// writes are stopped.
func (g *Writes) Enter() (leave func(), err error) {
	select {
	case <-g.Stopping():
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

// Stop stops all writes. When it returns nil, the writes that were under way have ended
// and new ones are refused.
func (g *Writes) Stop(ctx context.Context) error {
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

// Resume allows writes again after Stop.
func (g *Writes) Resume() {
	g.busy.Unlock()
	g.open()
}

func (g *Writes) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.stopped = make(chan struct{})
}

// Registry returns a registry whose writes the gate can stop.
func (g *Writes) Registry(r oci.Registry) oci.Registry { return stoppable{r, g} }

// stoppable is a registry whose writes can be stopped.
type stoppable struct {
	oci.Registry
	gate *Writes
}

// Do runs the write f unless writes are stopped.
func Do[T any](g *Writes, f func() (T, error)) (T, error) {
	leave, err := g.Enter()
	if err != nil {
		var none T
		return none, err
	}
	defer leave()
	return f()
}

// PushBlob implements oci.Writer.
func (s stoppable) PushBlob(ctx context.Context, repo string, d oci.Digest, size int64, r io.Reader) (oci.Descriptor, error) {
	return Do(s.gate, func() (oci.Descriptor, error) { return s.Registry.PushBlob(ctx, repo, d, size, r) })
}

// MountBlob implements oci.Writer.
func (s stoppable) MountBlob(ctx context.Context, to, from string, d oci.Digest) (oci.Descriptor, error) {
	return Do(s.gate, func() (oci.Descriptor, error) { return s.Registry.MountBlob(ctx, to, from, d) })
}

// StartUpload implements oci.Writer.
func (s stoppable) StartUpload(ctx context.Context, repo string) (oci.UploadStatus, error) {
	return Do(s.gate, func() (oci.UploadStatus, error) { return s.Registry.StartUpload(ctx, repo) })
}

// AppendUpload implements oci.Writer.
func (s stoppable) AppendUpload(ctx context.Context, repo, id string, off, size int64, r io.Reader) (oci.UploadStatus, error) {
	return Do(s.gate, func() (oci.UploadStatus, error) { return s.Registry.AppendUpload(ctx, repo, id, off, size, r) })
}

// CommitUpload implements oci.Writer.
func (s stoppable) CommitUpload(ctx context.Context, repo, id string, off, size int64, r io.Reader, d oci.Digest) (oci.Descriptor, error) {
	return Do(s.gate, func() (oci.Descriptor, error) { return s.Registry.CommitUpload(ctx, repo, id, off, size, r, d) })
}

// CancelUpload implements oci.Writer.
func (s stoppable) CancelUpload(ctx context.Context, repo, id string) error {
	_, err := Do(s.gate, func() (struct{}, error) { return struct{}{}, s.Registry.CancelUpload(ctx, repo, id) })
	return err
}

// PutManifest implements oci.Writer.
func (s stoppable) PutManifest(ctx context.Context, repo string, m oci.PutManifest) (oci.PutResult, error) {
	return Do(s.gate, func() (oci.PutResult, error) { return s.Registry.PutManifest(ctx, repo, m) })
}

// DeleteBlob implements oci.Deleter.
func (s stoppable) DeleteBlob(ctx context.Context, repo string, d oci.Digest) error {
	_, err := Do(s.gate, func() (struct{}, error) { return struct{}{}, s.Registry.DeleteBlob(ctx, repo, d) })
	return err
}

// DeleteManifest implements oci.Deleter.
func (s stoppable) DeleteManifest(ctx context.Context, repo string, d oci.Digest) error {
	_, err := Do(s.gate, func() (struct{}, error) { return struct{}{}, s.Registry.DeleteManifest(ctx, repo, d) })
	return err
}

// DeleteTag implements oci.Deleter.
func (s stoppable) DeleteTag(ctx context.Context, repo, tag string) error {
	_, err := Do(s.gate, func() (struct{}, error) { return struct{}{}, s.Registry.DeleteTag(ctx, repo, tag) })
	return err
}
