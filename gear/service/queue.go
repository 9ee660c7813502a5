package service

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/gear/convert"
	"example.org/slipway/gear/filestore"
	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/engine"
	"example.org/slipway/registry/catalog/gearfacts"
)

// These constants control the retries of conversions that failed for a temporary reason.
// The first retry comes after firstRetry. The distance then doubles each time up to
// lastRetry, without end.
const (
	firstRetry = 10 * time.Second
	lastRetry  = 6 * time.Hour
	// never is the delay of a retry that would fail in the same way.
	never = 100 * 365 * 24 * time.Hour
	// atOnce is how often a conversion is tried if another conversion on which it depends
	// fails.
	atOnce = 3
	// maxReason is how many bytes of an error are kept.
	maxReason = 1000
)

// OnEvent handles an event in a repository. It queues the layers of pushed images, and
// with mode Sync waits for them. The layers of a mirrored image are queued as they
// arrive, and nobody waits for them. OnEvent never makes a push fail. ctx bounds it
// except for that wait, which has a separate limit.
func (s *Service) OnEvent(ctx context.Context, e registry.Event) {
	switch {
	case e.Action == registry.ActionDelete:
		s.seen.forget()
	case e.Action == registry.ActionMount:
		s.mounted(ctx, e)
	case e.Action == registry.ActionPush && !e.Blob:
		s.pushed(ctx, e)
	case e.Action == registry.ActionPush && e.Mirrored:
		s.arrived(ctx, e)
	}
}

// pushed queues the layers of an image, and waits for them if that is wanted.
func (s *Service) pushed(ctx context.Context, e registry.Event) {
	mode := s.opts.Mode(e.Repo)
	layers := layersOf(e.References)
	if mode == Off || len(layers) == 0 || s.opts.ReadOnly {
		return
	}
	if e.Mirrored {
		mode = Async
		var err error
		if layers, err = s.here(ctx, e.Repo, layers); err != nil {
			s.log.Error("look up the layers of a mirrored image", "repo", e.Repo, "manifest", e.Descriptor.Digest, "err", err)
			return
		}
	}
	if err := s.Queue(ctx, e.Repo, layers); err != nil {
		s.log.Error("queue the layers of an image for conversion", "repo", e.Repo, "manifest", e.Descriptor.Digest, "err", err)
		return
	}
	if mode != Sync {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.opts.SyncTimeout)
	defer cancel()
	idle := s.unattended()
	for _, d := range layers {
		if err := s.wait(ctx, d, idle); err != nil {
			s.log.Warn("an image was pushed that is not converted", "repo", e.Repo, "manifest", e.Descriptor.Digest, "layer", d, "err", err)
			return
		}
	}
}

// here returns which of the layers a repository shows.
func (s *Service) here(ctx context.Context, repo string, layers []oci.Digest) ([]oci.Digest, error) {
	linked, err := s.cat.Linked(ctx, repo, layers)
	return slices.DeleteFunc(layers, func(d oci.Digest) bool { return !linked[d] }), err
}

// arrivedNaming is how many manifests that name an arrived blob are looked at.
const arrivedNaming = 8

// arrived queues a blob of a mirrored repository if it is a layer. The manifest that says
// so has usually come before. A manifest that comes later queues the layers that are
// there.
func (s *Service) arrived(ctx context.Context, e registry.Event) {
	d := e.Descriptor.Digest
	if s.opts.ReadOnly || s.opts.Mode(e.Repo) == Off {
		return
	}
	list, err := s.cat.Naming(ctx, e.Repo, d, arrivedNaming)
	if err == nil && slices.ContainsFunc(list, func(m catalog.Manifest) bool { return slices.Contains(layersIn(m.Content), d) }) {
		err = s.Queue(ctx, e.Repo, []oci.Digest{d})
	}
	if err != nil {
		s.log.Error("queue a mirrored layer for conversion", "repo", e.Repo, "layer", d, "err", err)
	}
}

// layersIn returns the layers that an image manifest names. It returns none if the
// manifest has another form.
func layersIn(manifest []byte) []oci.Digest {
	var image struct {
		Layers []oci.Descriptor `json:"layers"`
	}
	if json.Unmarshal(manifest, &image) != nil {
		return nil
	}
	return layersOf(image.Layers)
}

// mounted lets a repository use the layer of a Gear image that was mounted from another
// repository that may use it. It waits for a layer that is still being converted.
func (s *Service) mounted(ctx context.Context, e registry.Event) {
	d := e.Descriptor.Digest
	_, err := s.facts.Layer(ctx, d)
	if errors.Is(err, catalog.ErrNotFound) {
		if s.coming(ctx, d) && s.beginMount() {
			go func() {
				defer s.work.Done()
				defer func() { <-s.mounts }()
				ctx, cancel := context.WithTimeout(s.ctx, s.opts.SyncTimeout)
				defer cancel()
				if s.wait(ctx, d, s.unattended()) == nil {
					s.copyGrant(ctx, e)
				}
			}()
		}
		return
	}
	if err != nil {
		s.log.Warn("look up a mounted layer", "repo", e.Repo, "layer", d, "err", err)
		return
	}
	s.copyGrant(ctx, e)
}

// beginMount is like begin, but also takes a place in s.mounts, which the caller gives back.
func (s *Service) beginMount() bool {
	select {
	case s.mounts <- struct{}{}:
	default:
		return false
	}
	if !s.begin() {
		<-s.mounts
		return false
	}
	return true
}

// coming reports whether a layer is being converted or waits for its first attempt.
func (s *Service) coming(ctx context.Context, d oci.Digest) bool {
	if active, _ := s.isActive(d); active {
		return true
	}
	job, err := s.facts.Job(ctx, d)
	return err == nil && job.Attempts == 0
}

func (s *Service) copyGrant(ctx context.Context, e registry.Event) {
	if err := s.facts.CopyGrant(ctx, e.FromRepo, e.Repo, e.Descriptor.Digest); err != nil {
		s.log.Warn("let a repository use a mounted Gear image", "repo", e.Repo, "layer", e.Descriptor.Digest, "err", err)
	}
}

// layersOf returns the layers among the descriptors of a manifest, each once.
func layersOf(named []oci.Descriptor) []oci.Digest {
	var out []oci.Digest
	had := map[oci.Digest]bool{}
	for _, d := range named {
		if gear.IsLayer(d.MediaType) && !had[d.Digest] {
			had[d.Digest] = true
			out = append(out, d.Digest)
		}
	}
	return out
}

// Queue requests the conversion of layers of a repository. It skips layers that have an
// index.
func (s *Service) Queue(ctx context.Context, repo string, layers []oci.Digest) error {
	var queue, again []oci.Digest
	for _, d := range layers {
		l, err := s.facts.Layer(ctx, d)
		if err == nil && l.Embedded {
			err = s.grantOne(ctx, repo, l)
			s.wake()
		}
		if err == nil {
			continue
		}
		if !errors.Is(err, catalog.ErrNotFound) {
			return err
		}
		// A Gear image that could not be used elsewhere may be usable here.
		job, err := s.facts.Job(ctx, d)
		switch {
		case err == nil && job.Failure == errForeign.Error():
			again = append(again, d)
		case err != nil && !errors.Is(err, catalog.ErrNotFound):
			return err
		default:
			queue = append(queue, d)
		}
	}
	var err error
	if len(queue) > 0 {
		err = s.facts.Queue(ctx, queue...)
	}
	if len(again) > 0 && err == nil {
		err = s.facts.Requeue(ctx, again...)
	}
	if len(queue)+len(again) > 0 {
		s.wake()
	}
	return err
}

// wake lets the workers look at the queue.
func (s *Service) wake() {
	select {
	case s.queued <- struct{}{}:
	default:
	}
}

// Wait waits until a queued layer has its index. If the conversion failed, it returns a
// *gear.PendingError with the reason. If ctx ends, it returns the error of ctx.
func (s *Service) Wait(ctx context.Context, d oci.Digest) error { return s.wait(ctx, d, nil) }

var errStopping = errors.New("the conversions have stopped")

// wait is like Wait, but ends with errStopping when stop is closed.
func (s *Service) wait(ctx context.Context, d oci.Digest, stop <-chan struct{}) error {
	var elsewhere <-chan time.Time // another process may convert it
	if s.cat.DB.Shared() {
		tick := time.NewTicker(lookEvery)
		defer tick.Stop()
		elsewhere = tick.C
	}
	for {
		active, changed := s.isActive(d)
		_, err := s.facts.Layer(ctx, d)
		if !errors.Is(err, catalog.ErrNotFound) {
			return err
		}
		if !active {
			job, err := s.facts.Job(ctx, d)
			if errors.Is(err, catalog.ErrNotFound) {
				// It may have been converted in the meantime, which ended the job.
				if _, err := s.facts.Layer(ctx, d); !errors.Is(err, catalog.ErrNotFound) {
					return err
				}
				return &gear.PendingError{Reason: "nobody asked for its conversion"}
			}
			if err != nil {
				return err
			}
			if job.Attempts > 0 {
				return &gear.PendingError{Reason: s.told(job)}
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-stop:
			return errStopping
		case <-s.ctx.Done():
			return errStopping
		case <-changed:
		case <-elsewhere:
		}
	}
}

// lookEvery is the time between two checks for layers that other processes have
// converted.
const lookEvery = 500 * time.Millisecond

// workQueue converts queued layers until ctx ends.
func (s *Service) workQueue(ctx context.Context) {
	due := time.NewTicker(firstRetry)
	defer due.Stop()
	for {
		s.drainQueue(ctx)
		select {
		case <-ctx.Done():
			return
		case <-s.queued:
		case <-due.C:
		}
	}
}

// drainQueue begins the conversions that are due, as slots become free.
func (s *Service) drainQueue(ctx context.Context) {
	for ctx.Err() == nil && !s.pausing() {
		waiting := s.earlyWaiting()
		jobs, err := s.facts.Jobs(ctx, max(64, 2*cap(s.slots))) // at most half of them are active
		if err != nil {
			if ctx.Err() == nil {
				s.log.Error("read the queue of conversions", "err", err)
			}
			return
		}
		if len(jobs) == 0 { // their layers are gone
			for _, d := range waiting {
				s.endEarly(d)
			}
		}
		s.indexesFirst(jobs)
		begun := 0
		for _, j := range jobs {
			if begun == cap(s.slots) {
				break // it may now be the turn of other jobs
			}
			if active, _ := s.isActive(j.Digest); active || s.filesLater(j.Digest) {
				continue
			}
			select {
			case <-ctx.Done():
				return
			case s.slots <- struct{}{}:
			}
			if s.beginQueued(j) {
				begun++
			} else {
				<-s.slots
			}
		}
		if begun == 0 {
			return
		}
	}
}

// beginQueued begins the conversion of a queued layer. The caller took a slot for it,
// which is given back when the conversion ends. It returns false if the conversion was
// not begun.
func (s *Service) beginQueued(j gearfacts.Job) bool {
	c := &conversion{since: s.opts.Clock()}
	if !s.begin() {
		return false
	}
	ctx, release, ok := s.leaseJob(j.Digest)
	if ok && !s.start(j.Digest, c) {
		release()
		ok = false
	}
	if !ok {
		s.work.Done()
		return false
	}
	go func() {
		defer s.work.Done()
		s.convertQueued(ctx, j.Digest, j.Attempts, c)
		release()
		<-s.slots
		s.end(j.Digest)
		s.wake()
	}()
	return true
}

// leaseJob makes sure that no other process that shares the catalogue converts the same
// layer meanwhile. The result would be the same, but the work would be done twice. ctx
// ends when the lease is lost.
func (s *Service) leaseJob(d oci.Digest) (ctx context.Context, release func(), ok bool) {
	if !s.cat.DB.Shared() {
		return s.ctx, func() {}, true
	}
	ctx, release, err := s.cat.DB.Hold(s.ctx, "gear-job/"+string(d), s.owner, s.opts.Lease)
	if err != nil && !errors.Is(err, engine.ErrLeased) && s.ctx.Err() == nil {
		s.log.Error("begin a conversion", "layer", d, "err", err)
	}
	return ctx, release, err == nil
}

// pausing reports whether the queue is left alone for now.
func (s *Service) pausing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.opts.Clock().Before(s.pause)
}

// convertQueued converts a queued layer and records the outcome. attempts is the number
// of failed attempts.
func (s *Service) convertQueued(ctx context.Context, d oci.Digest, attempts int, c *conversion) {
	follows := false
	defer func() {
		if !follows {
			s.endEarly(d)
		}
	}()
	// The queue was read a while ago. Since this layer became active, nobody else changes
	// its job except by requesting the layer again.
	j, err := s.facts.Job(ctx, d)
	if errors.Is(err, catalog.ErrNotFound) || err == nil && j.Attempts != attempts {
		return
	}
	for n := 0; err == nil && n < atOnce; n++ {
		if err = s.convertStored(ctx, d, c, &j); err == nil {
			break
		}
		if errors.Is(err, filestore.ErrRetry) && n < atOnce-1 && ctx.Err() == nil {
			err = nil
		}
	}
	if follows = errors.Is(err, errEarly); follows || ctx.Err() != nil { // the next look at the queue, or the next start, continues it
		return
	}
	var awaits *awaitsError
	switch {
	case err == nil:
		err = s.finished(ctx, d)
	case errors.Is(err, errGone):
		err = s.facts.EndJob(ctx, d)
	case errors.As(err, &awaits):
		err = s.postpone(ctx, d, awaits.layer)
	default:
		err = s.failed(ctx, j, err)
	}
	if err != nil && ctx.Err() == nil {
		s.log.Error("record how a conversion ended", "layer", d, "err", err)
		s.mu.Lock()
		s.pause = s.opts.Clock().Add(firstRetry)
		s.mu.Unlock()
	}
}

// errGone says that a queued layer no longer exists.
var errGone = errors.New("the layer is gone")

// failed records that a conversion failed.
func (s *Service) failed(ctx context.Context, j gearfacts.Job, err error) error {
	s.metrics.failed.Inc()
	wait := lastRetry
	if n := min(j.Attempts, 20); firstRetry<<n < lastRetry {
		wait = firstRetry << n
	}
	if permanent(err) {
		// A layer that is damaged in the store may be repaired there.
		if damage := s.intact(ctx, j.Digest); damage != nil {
			err = damage
		} else {
			wait = never
		}
	}
	level := slog.LevelWarn
	if errors.Is(err, errForeign) {
		level = slog.LevelInfo
	}
	s.log.Log(ctx, level, "a layer could not be converted", "layer", j.Digest, "err", err, "attempt", j.Attempts+1, "final", wait == never)
	reason := err.Error() // it is for the operator of the registry; clients get the result of told
	reason = strings.ToValidUTF8(reason[:min(len(reason), maxReason)], "")
	now, err := s.now(ctx)
	if err != nil {
		return err
	}
	return s.facts.DeferJob(ctx, j.Digest, reason, now.Add(wait))
}

// now returns the time by which jobs in the catalogue become due.
func (s *Service) now(ctx context.Context) (time.Time, error) {
	if !s.cat.DB.Shared() {
		return s.opts.Clock(), nil
	}
	return s.cat.DB.Now(ctx)
}

// final reports whether a failed conversion is not tried again.
func (s *Service) final(j gearfacts.Job) bool { return j.Due.After(s.opts.Clock().Add(never / 2)) }

// todo reports whether a layer has no index, or has a content that was found damaged.
func (s *Service) todo(ctx context.Context, d oci.Digest) (bool, error) {
	_, err := s.facts.Layer(ctx, d)
	if errors.Is(err, catalog.ErrNotFound) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	return s.facts.LayerLost(ctx, d)
}

// convertStored converts a stored layer, unless that was done already. j is its job, or
// nil if its files are wanted at once. Errors: errGone, errEarly.
func (s *Service) convertStored(ctx context.Context, d oci.Digest, c *conversion, j *gearfacts.Job) error {
	todo, err := s.todo(ctx, d)
	if err != nil {
		return err
	}
	if !todo {
		return s.grantMore(ctx, d)
	}
	body, size, err := s.blobs.OpenBlob(ctx, d, 0)
	if errors.Is(err, catalog.ErrNotFound) {
		return errGone
	}
	if err != nil {
		return err
	}
	defer body.Close()
	c.progress(0, size)
	var behind func() bool
	if j != nil && s.indexFirst(*j, size) {
		behind = func() bool { return true }
		s.lead(1)
		defer s.lead(-1)
	}
	err = s.convert(ctx, body, convert.Want{Digest: d}, c, behind, func() (oci.Digest, int64, error) { return d, size, nil })
	switch {
	case errors.Is(err, catalog.ErrNotStored):
		return errGone
	case errors.Is(err, errEarly) && s.earlyIndex(d) == nil: // too many
		return s.convertStored(ctx, d, c, nil)
	}
	return err
}

// Remake queues the layers that hold a damaged content, so that it is made
// again. It does not block.
func (s *Service) Remake(e *filestore.CorruptError) {
	if s.opts.ReadOnly || !s.begin() {
		return
	}
	go func() {
		defer s.work.Done()
		if err := s.remake(s.ctx, e); err != nil && s.ctx.Err() == nil {
			s.log.Error("make a damaged file again", "file", e.Name, "err", err)
		}
	}()
}

// remakeFrom is the maximum number of layers from which a content is made again.
const remakeFrom = 4

func (s *Service) remake(ctx context.Context, e *filestore.CorruptError) error {
	name, err := parseName(e.Name)
	if err != nil {
		return err
	}
	// One layer is enough, but it may be damaged, too. The conversions of the other
	// layers then find nothing to do.
	layers, err := s.facts.LayersOf(ctx, name, remakeFrom)
	if err != nil {
		return err
	}
	if len(layers) == 0 {
		return errors.New("no layer holds it any more")
	}
	if err := s.facts.Requeue(ctx, layers...); err != nil {
		return err
	}
	s.log.Warn("a damaged file will be made again from its layer", "file", e.Name, "pack", e.Pack, "layers", layers)
	s.wake()
	return nil
}

// finished forgets the job of a layer that was converted. A request for the layer during
// its conversion found that job. So finished checks for what such requests want: contents
// that were found damaged, and further repositories of a Gear image.
func (s *Service) finished(ctx context.Context, d oci.Digest) error {
	if err := s.facts.EndJob(ctx, d); err != nil {
		return err
	}
	lost, err := s.facts.LayerLost(ctx, d)
	if err != nil {
		return err
	}
	if !lost && s.grantMore(ctx, d) == nil {
		return nil
	}
	return s.facts.Requeue(ctx, d) // the next conversion records the error
}
