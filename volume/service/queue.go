package service

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/oci"
	"example.org/slipway/oci/volref"
	"example.org/slipway/registry"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/engine"
	"example.org/slipway/registry/catalog/volumefacts"
	"example.org/slipway/registry/storage"
)

// These constants control the retries of builds that failed for a temporary reason. The
// first retry comes after firstRetry. The distance then doubles each time up to
// lastRetry, without end.
const (
	firstRetry = 10 * time.Second
	lastRetry  = time.Hour
	// never is the delay of a retry that would fail in the same way.
	never = 100 * 365 * 24 * time.Hour
	// maxReason is how many bytes of an error are kept.
	maxReason = 1000
	// lookEvery is the longest time between two looks at the queue.
	lookEvery = time.Second
)

// OnEvent handles an event in a repository. It queues pushed images if that is wanted. It
// never makes a push fail.
func (s *Service) OnEvent(ctx context.Context, e registry.Event) {
	switch {
	case e.Action == registry.ActionDelete && !e.Blob:
		wake(s.gone)
	case e.Action == registry.ActionPush && !e.Blob && !s.opts.ReadOnly && s.opts.Build(e.Repo):
		m, err := s.cat.Manifest(ctx, e.Repo, e.Descriptor.Digest)
		if err == nil && isImage(m) {
			err = s.facts.Queue(ctx, e.Repo, m.Digest, false, s.opts.FS...)
			wake(s.queued)
		}
		if err != nil {
			s.log.Error("queue an image to be built as volumes", "repo", e.Repo, "manifest", e.Descriptor.Digest, "err", err)
		}
	}
}

// wake sends to a channel of one element, so that the receiver goes on.
func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// image has the parts of a manifest that are read here.
type image struct {
	ArtifactType string           `json:"artifactType"`
	Layers       []oci.Descriptor `json:"layers"`
}

// isImage reports whether a manifest describes an image that can be stored as volumes, as
// far as the manifest shows it.
func isImage(m catalog.Manifest) bool {
	_, err := layersOf(m.Content)
	return err == nil
}

// layersOf returns the layers of an image from the bottom up. Errors:
// *volref.UnsupportedError.
func layersOf(manifest []byte) ([]oci.Digest, error) {
	var m image
	if err := json.Unmarshal(manifest, &m); err != nil || len(m.Layers) == 0 {
		return nil, &volref.UnsupportedError{Reason: "it is not the manifest of a single image; name the manifest of a platform"}
	}
	if m.ArtifactType != "" {
		return nil, &volref.UnsupportedError{Reason: "it is an artifact of the type " + m.ArtifactType}
	}
	out := make([]oci.Digest, len(m.Layers))
	for i, l := range m.Layers {
		if !gear.IsLayer(l.MediaType) {
			return nil, &volref.UnsupportedError{Reason: fmt.Sprintf("its layer %s of the type %.100s is not a tar in this registry", l.Digest, l.MediaType)}
		}
		out[i] = l.Digest
	}
	return out, nil
}

// Queue requests that an image of a repository be built as volumes in a file system, or
// with "" in the configured file systems. It does so even if the image is built; missing
// parts are then made again. Errors: MANIFEST_UNKNOWN, UNSUPPORTED.
func (s *Service) Queue(ctx context.Context, repo string, d oci.Digest, fs string) error {
	if err := s.writable(); err != nil {
		return err
	}
	list := s.opts.FS
	if fs != "" {
		if err := checkFS(fs); err != nil {
			return err
		}
		list = []string{fs}
	}
	m, err := s.shows(ctx, repo, d)
	if err != nil {
		return err
	}
	if _, err := layersOf(m.Content); err != nil {
		return &oci.Error{Code: oci.CodeUnsupported, Message: err.Error(), Err: err}
	}
	err = s.facts.Queue(ctx, repo, d, true, list...)
	wake(s.queued)
	return storage.Unavailable(err)
}

// Drop records that an image of a repository is no longer wanted as volumes, in one file
// system or, if fs is "", in all. Errors: MANIFEST_UNKNOWN, even for an image that has no
// volumes, and UNSUPPORTED.
func (s *Service) Drop(ctx context.Context, repo string, d oci.Digest, fs string) error {
	if err := s.writable(); err != nil {
		return err
	}
	if fs != "" {
		if err := checkFS(fs); err != nil {
			return err
		}
	}
	if _, err := s.shows(ctx, repo, d); err != nil {
		return err
	}
	n, err := s.facts.Drop(ctx, repo, d, fs)
	if err == nil && n == 0 {
		return oci.Errorf(oci.CodeManifestUnknown, "manifest %s of %s has no volumes", d, repo)
	}
	wake(s.gone)
	return storage.Unavailable(err)
}

func (s *Service) writable() error {
	if s.opts.ReadOnly {
		return &oci.Error{Code: oci.CodeUnsupported, Message: "the registry is read-only (storage.maintenance.readonly)"}
	}
	return nil
}

// workQueue builds queued images until ctx ends, and waits for the builds that it began.
func (s *Service) workQueue(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		s.drainQueue(ctx, &wg)
		select {
		case <-ctx.Done():
			return
		case <-s.queued:
		case <-tick.C:
		}
	}
}

// drainQueue begins the builds that are due, as slots become free.
func (s *Service) drainQueue(ctx context.Context, wg *sync.WaitGroup) {
	for ctx.Err() == nil && !s.resting() {
		list, err := s.facts.Due(ctx, 2*cap(s.slots)+16)
		if err != nil {
			if ctx.Err() == nil {
				s.log.Error("read the queue of builds of volumes", "err", err)
			}
			return
		}
		others, err := s.elsewhere(ctx, list)
		if err != nil {
			return // the queue is read again later, so nothing is lost
		}
		begun := false
		for _, v := range list {
			if others[v.ID] || s.isActive(v.ID) {
				continue
			}
			select {
			case <-ctx.Done():
				return
			case s.slots <- struct{}{}:
			}
			if s.beginBuild(ctx, v, wg) {
				begun = true
			} else {
				<-s.slots
			}
		}
		if !begun {
			return
		}
	}
}

// beginBuild begins the build of a queued image. The caller took a slot for it, which is
// given back when the build ends. It returns false if the build was not begun.
func (s *Service) beginBuild(ctx context.Context, v volumefacts.Image, wg *sync.WaitGroup) bool {
	b := &build{since: s.opts.Clock()}
	held, release, ok := s.hold(ctx, v.ID, b)
	if !ok {
		return false
	}
	wg.Go(func() {
		defer func() {
			release()
			<-s.slots
			wake(s.queued)
		}()
		s.buildQueued(held, v, b)
	})
	return true
}

// hold makes sure that nobody else works on an image, neither in this process nor in
// another one that shares the catalogue. The returned context ends when that is no longer
// certain.
func (s *Service) hold(ctx context.Context, id int64, b *build) (held context.Context, release func(), ok bool) {
	s.mu.Lock()
	_, busy := s.active[id]
	if !busy {
		s.active[id] = b
	}
	s.mu.Unlock()
	if busy {
		return nil, nil, false
	}
	end := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.active, id)
	}
	if !s.cat.DB.Shared() {
		return ctx, end, true
	}
	held, unlease, err := s.cat.DB.Hold(ctx, leaseName(id), s.owner, s.opts.Lease)
	if err != nil {
		if !errors.Is(err, engine.ErrLeased) && ctx.Err() == nil {
			s.log.Error("begin to work on the volumes of an image", "err", err)
		}
		end()
		return nil, nil, false
	}
	return held, func() { unlease(); end() }, true
}

// leasePrefix is the prefix of the names of the leases on images.
const leasePrefix = "volume-image/"

func leaseName(id int64) string { return fmt.Sprintf("%s%d", leasePrefix, id) }

func (s *Service) isActive(id int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.active[id]
	return ok
}

// waitingError says that a build cannot begin yet, which is not a failure.
type waitingError struct{ reason string }

func (e *waitingError) Error() string { return e.reason }

// errNotAsked says that an image queued by a push need not be built.
var errNotAsked = errors.New("it is a Gear image; use the volumes of the image that it was made from")

// buildQueued builds a queued image and records the outcome.
func (s *Service) buildQueued(ctx context.Context, v volumefacts.Image, b *build) {
	// The queue was read a while ago.
	now, err := s.facts.Image(ctx, v.ID)
	if errors.Is(err, catalog.ErrNotFound) || err == nil && (now.Due.IsZero() || now.Attempts != v.Attempts || now.Dropped) {
		return
	}
	if err != nil {
		s.lostOutcome(ctx, v, err)
		return
	}
	began := s.opts.Clock()
	err = s.build(ctx, now, b)
	var waiting *waitingError
	if !errors.As(err, &waiting) {
		s.endPause(v.ID)
	}
	switch {
	case ctx.Err() != nil: // the next look at the queue, or the next start, continues it
		return
	case err == nil:
		s.metrics.built.Inc()
		s.metrics.took.Observe(s.opts.Clock().Sub(began).Seconds())
		return
	case errors.Is(err, catalog.ErrNotFound): // the image is gone; the collector removes the rest
		wake(s.gone)
		return
	case waiting != nil:
		err = s.putOff(ctx, v.ID)
	case errors.Is(err, errNotAsked) && !now.Asked:
		err = s.facts.DropUnasked(ctx, v.ID)
		wake(s.gone)
	default:
		err = s.failed(ctx, now, err)
	}
	if err != nil {
		s.lostOutcome(ctx, v, err)
	}
}

// lostOutcome handles the case that the catalogue did not record the outcome of a build.
// The build is still due, so nothing more is begun for a while.
func (s *Service) lostOutcome(ctx context.Context, v volumefacts.Image, err error) {
	if ctx.Err() != nil {
		return
	}
	s.log.Error("record how a build of volumes ended", "repo", v.Repo, "manifest", v.Manifest, "err", err)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rest = s.opts.Clock().Add(firstRetry)
}

// resting reports whether the queue is left alone for now.
func (s *Service) resting() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.opts.Clock().Before(s.rest)
}

// firstPause and lastPause bound the pause between two checks whether a build can begin.
// They are short because most layers are converted in a moment.
const (
	firstPause = 50 * time.Millisecond
	lastPause  = 2 * time.Second
)

// putOff makes a build due again soon.
func (s *Service) putOff(ctx context.Context, id int64) error {
	s.mu.Lock()
	pause := min(max(firstPause, 2*s.pauses[id]), lastPause)
	s.pauses[id] = pause
	s.mu.Unlock()
	now, err := s.now(ctx)
	if err != nil {
		return err
	}
	err = s.facts.Defer(ctx, id, "", now.Add(pause))
	time.AfterFunc(pause+time.Millisecond, func() { wake(s.queued) })
	return err
}

// failed records that a build failed.
func (s *Service) failed(ctx context.Context, v volumefacts.Image, err error) error {
	s.metrics.failed.Inc()
	wait := lastRetry
	if n := min(v.Attempts, 20); firstRetry<<n < lastRetry {
		wait = firstRetry << n
	}
	var unsupported *volref.UnsupportedError
	var pending *gear.PendingError
	if errors.As(err, &unsupported) || errors.As(err, &pending) || errors.Is(err, errNotAsked) {
		wait = never
	}
	s.log.Warn("an image could not be built as volumes", "repo", v.Repo, "manifest", v.Manifest, "fs", v.FS, "err", err, "attempt", v.Attempts+1, "final", wait == never)
	reason := err.Error()
	reason = strings.ToValidUTF8(reason[:min(len(reason), maxReason)], "")
	now, err := s.now(ctx)
	if err != nil {
		return err
	}
	return s.facts.Defer(ctx, v.ID, reason, now.Add(wait))
}

// final reports whether a failed build is not tried again.
func (s *Service) final(v volumefacts.Image) bool {
	return v.Due.After(s.opts.Clock().Add(never / 2))
}

// elsewhere returns the images that other processes work on.
func (s *Service) elsewhere(ctx context.Context, list []volumefacts.Image) (map[int64]bool, error) {
	due := slices.ContainsFunc(list, func(v volumefacts.Image) bool { return !v.Due.IsZero() })
	if !due || !s.cat.DB.Shared() {
		return nil, nil
	}
	leases, err := s.cat.DB.Leases(ctx, leasePrefix)
	if err != nil {
		return nil, err
	}
	out := map[int64]bool{}
	for _, v := range list {
		if owner := leases[leaseName(v.ID)]; owner != "" && owner != s.owner {
			out[v.ID] = true
		}
	}
	return out, nil
}
