package service

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"time"

	"example.org/slipway/gear/convert"
	"example.org/slipway/gear/filestore"
	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/engine"
	"example.org/slipway/registry/catalog/gearfacts"
)

// Retries of conversions that failed for a reason that may pass: the second after
// firstRetry, then at twice the distance each time up to lastRetry, for ever.
const (
	firstRetry = 10 * time.Second
	lastRetry  = 6 * time.Hour
	// never is when a conversion is tried again that would fail the same way.
	never = 100 * 365 * 24 * time.Hour
	// atOnce is how often one is done again that depended on another which failed.
	atOnce = 3
	// maxReason in bytes is how much of an error is kept.
	maxReason = 1000
)

// OnEvent takes in what happened to a repository: it queues the layers of pushed
// images, and with mode Sync waits for them. Of a mirrored image each layer is queued
// when it is there, and nobody waits. It never fails a push. ctx bounds it
// but for that wait, which has a limit of its own.
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

// pushed queues the layers of an image, and waits for them where that is wanted.
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

// here returns those of the layers that a repository shows.
func (s *Service) here(ctx context.Context, repo string, layers []oci.Digest) ([]oci.Digest, error) {
	linked, err := s.cat.Linked(ctx, repo, layers)
	return slices.DeleteFunc(layers, func(d oci.Digest) bool { return !linked[d] }), err
}

// arrivedNaming is in how many manifests a blob that has come is looked up.
const arrivedNaming = 8

// arrived queues a blob of a mirrored repository if it is a layer. Its manifest, which
// says so, has usually come before; one that comes later queues the layers that are there.
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

// layersIn picks the layers among what an image manifest names, none where it is of
// another form.
func layersIn(manifest []byte) []oci.Digest {
	var image struct {
		Layers []oci.Descriptor `json:"layers"`
	}
	if json.Unmarshal(manifest, &image) != nil {
		return nil
	}
	return layersOf(image.Layers)
}

// mounted lets a repository use the layer of a Gear image that was mounted from
// another one that may. One that is still being converted is waited for.
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

// beginMount is begin with a place among s.mounts, which the caller gives back.
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

// layersOf picks the layers among what a manifest names, each once.
func layersOf(named []oci.Descriptor) []oci.Digest {
	var out []oci.Digest
	had := map[oci.Digest]bool{}
	for _, d := range named {
		if IsLayer(d.MediaType) && !had[d.Digest] {
			had[d.Digest] = true
			out = append(out, d.Digest)
		}
	}
	return out
}

// IsLayer reports whether a media type is that of a layer that can be converted: a
// tar that is here, and not encrypted.
func IsLayer(mediaType string) bool {
	for _, tar := range []string{"application/vnd.oci.image.layer.v1.tar", "application/vnd.docker.image.rootfs.diff.tar"} {
		if rest, ok := strings.CutPrefix(mediaType, tar); ok {
			switch rest {
			case "", "+gzip", "+zstd", ".gzip", ".zstd":
				return true
			}
		}
	}
	return false
}

// Queue asks for the conversion of layers of a repository; those that have an
// index are passed over.
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
		// A Gear image that was of no use elsewhere may be of use here.
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

// Wait waits until a layer of the queue has its index. Errors: *PendingError
// with the reason when the conversion failed, or that of ctx.
func (s *Service) Wait(ctx context.Context, d oci.Digest) error { return s.wait(ctx, d, nil) }

var errStopping = errors.New("the conversions have stopped")

// wait is Wait that ends with errStopping when stop is closed.
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
				// It may have been converted since, which ended the job.
				if _, err := s.facts.Layer(ctx, d); !errors.Is(err, catalog.ErrNotFound) {
					return err
				}
				return &PendingError{Reason: "nobody asked for its conversion"}
			}
			if err != nil {
				return err
			}
			if job.Attempts > 0 {
				return &PendingError{Reason: s.told(job)}
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

// lookEvery is the time between two looks for what other processes have converted.
const lookEvery = 500 * time.Millisecond

// workQueue converts what is queued until ctx ends.
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
		jobs, err := s.facts.Jobs(ctx, max(64, 2*cap(s.slots))) // no more than half are active
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
				break // others may have come, whose turn it is
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

// beginQueued begins the conversion of a layer of the queue, with a slot that the
// caller took and that is given back when it ends. false: it is not begun.
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

// leaseJob makes sure that no other process that shares the catalogue converts the
// same layer meanwhile: what they made would be the same, but twice the work. ctx
// ends with that.
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

// convertQueued converts a layer of the queue, of which so many attempts have
// failed, and records how that went.
func (s *Service) convertQueued(ctx context.Context, d oci.Digest, attempts int, c *conversion) {
	follows := false
	defer func() {
		if !follows {
			s.endEarly(d)
		}
	}()
	// The queue was read a while ago. Since this layer became active nobody else
	// changes its job but by asking for it again.
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
	if follows = errors.Is(err, errEarly); follows || ctx.Err() != nil { // the next look, or start, takes it up
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

// errGone: a layer that was queued is not here any more.
var errGone = errors.New("the layer is gone")

// failed records that a conversion failed.
func (s *Service) failed(ctx context.Context, j gearfacts.Job, err error) error {
	s.metrics.failed.Inc()
	wait := lastRetry
	if n := min(j.Attempts, 20); firstRetry<<n < lastRetry {
		wait = firstRetry << n
	}
	if permanent(err) {
		// A layer that is damaged in the store may be mended there.
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
	reason := err.Error() // for who manages the registry; clients get what told makes of it
	reason = strings.ToValidUTF8(reason[:min(len(reason), maxReason)], "")
	now, err := s.now(ctx)
	if err != nil {
		return err
	}
	return s.facts.DeferJob(ctx, j.Digest, reason, now.Add(wait))
}

// now is the time by which what is in the catalogue becomes due.
func (s *Service) now(ctx context.Context) (time.Time, error) {
	if !s.cat.DB.Shared() {
		return s.opts.Clock(), nil
	}
	return s.cat.DB.Now(ctx)
}

// final reports whether a conversion that failed is not tried again.
func (s *Service) final(j gearfacts.Job) bool { return j.Due.After(s.opts.Clock().Add(never / 2)) }

// todo reports whether a layer has no index, or holds a content that was found
// damaged.
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

// convertStored converts a layer that is stored, if that is still to do. j is its
// job, or nil if its files are wanted at once. Errors: errGone, errEarly.
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

// remakeFrom is from how many layers at most a content is made again.
const remakeFrom = 4

func (s *Service) remake(ctx context.Context, e *filestore.CorruptError) error {
	name, err := parseName(e.Name)
	if err != nil {
		return err
	}
	// One will do, but it may be damaged, too. Those behind it find nothing to do.
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

// finished forgets the job of a layer that was converted. Whoever asked for the layer
// while it was converted found that job, so finished looks at what they asked for:
// contents that were found damaged, and further repositories of a Gear image.
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
	return s.facts.Requeue(ctx, d) // which says what the error was
}
