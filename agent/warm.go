package agent

import (
	"context"
	"errors"
	"maps"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"example.org/slipway/agent/images"
	"example.org/slipway/agent/registries"
	"example.org/slipway/node/gearfs"
	"example.org/slipway/oci"
	"example.org/slipway/oci/warm"
)

const (
	// askEvery is how often the agent looks which registry it has to ask for orders.
	askEvery = time.Second
	// askPatience bounds a request, askPause is the pause after one that failed.
	askPatience = 15 * time.Second
	askPause    = 30 * time.Second
	// warmAtOnce bounds the images that are fetched for orders at a time.
	warmAtOnce = 2
	// warmPause is the first pause before an image is tried again, warmMostPause the
	// longest.
	warmPause, warmMostPause = 3 * time.Second, 5 * time.Minute
)

// warmer does what registries order: it fetches images before they are started.
type warmer struct {
	a     *Agent
	slots chan struct{}
	work  sync.WaitGroup // of run and what it begins

	mu     sync.Mutex
	asked  map[string]*asking // by the registry's host
	looked time.Time          // when it was last looked for registries
}

// asking is a registry that is asked for orders.
type asking struct {
	due   time.Time
	busy  bool // a request is under way
	tasks map[string]*warmTask
}

// warmTask is an order of a registry.
type warmTask struct {
	warm.Task
	cancel   context.CancelFunc
	progress warm.Progress
}

func newWarmer(a *Agent) *warmer {
	return &warmer{a: a, slots: make(chan struct{}, warmAtOnce), asked: map[string]*asking{}}
}

// run asks registries for orders until ctx ends.
func (w *warmer) run(ctx context.Context) {
	tick := time.NewTicker(askEvery)
	defer tick.Stop()
	var expired time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			for _, host := range w.due(now) {
				w.work.Go(func() { w.ask(ctx, host) })
			}
			if now.Sub(expired) > time.Minute {
				expired = now
				if err := w.a.images.ExpireWarm(now); err != nil {
					w.a.log.Warn("images that were kept for orders stay for now", "err", err)
				}
			}
		}
	}
}

// due returns the registries that have to be asked now.
func (w *warmer) due(now time.Time) (hosts []string) {
	w.mu.Lock()
	look := now.Sub(w.looked) >= lookEvery
	w.mu.Unlock()
	var known []string
	if look {
		known = w.registries()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if look {
		w.looked = now
	}
	for _, host := range known {
		if w.asked[host] == nil {
			w.asked[host] = &asking{tasks: map[string]*warmTask{}}
		}
	}
	for host, a := range w.asked {
		if !a.busy && !now.Before(a.due) {
			a.busy = true
			hosts = append(hosts, host)
		}
	}
	return hosts
}

// registries returns the registries of the configuration, and those of the images here.
func (w *warmer) registries() []string {
	known := w.a.regs.Hosts()
	for _, img := range w.a.files.Images() {
		for _, s := range img.Sources {
			if ref, err := registries.Parse(s.Credential); err == nil {
				known = append(known, ref.Host)
			}
		}
	}
	slices.Sort(known)
	return slices.Compact(known)
}

// poll returns what a registry is told.
func (w *warmer) poll(a *asking) (*warm.Poll, error) {
	p := &warm.Poll{Node: w.a.cfg.Node.Name, Labels: map[string]string{"arch": runtime.GOARCH}, Tasks: map[string]warm.Progress{}}
	if p.Node == "" {
		var err error
		if p.Node, err = os.Hostname(); err != nil {
			return nil, err
		}
	}
	maps.Copy(p.Labels, w.a.cfg.Node.Labels)
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, t := range a.tasks {
		p.Tasks[id] = t.progress
	}
	return p, nil
}

// ask asks a registry once.
func (w *warmer) ask(ctx context.Context, host string) {
	w.mu.Lock()
	a := w.asked[host]
	w.mu.Unlock()
	p, err := w.poll(a)
	var answer warm.Answer
	if err == nil {
		bounded, cancel := context.WithTimeout(ctx, askPatience)
		answer, err = w.a.regs.AskWarm(bounded, host, p)
		cancel()
	}
	pause := time.Duration(answer.Again * float64(time.Second))
	if err != nil {
		pause = askPause
		if oci.HasCode(err, oci.CodeUnsupported, oci.CodeNameUnknown, oci.CodeDenied, oci.CodeUnauthorized) {
			pause = unwanted
		}
		w.a.log.Debug("ask a registry for orders", "registry", host, "err", err)
	} else {
		w.follow(ctx, host, a, answer.Tasks)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	a.busy, a.due = false, time.Now().Add(max(pause, askEvery))
}

// follow begins new tasks, and ends those that the registry no longer orders.
func (w *warmer) follow(ctx context.Context, host string, a *asking, tasks []warm.Task) {
	wanted := map[string]bool{}
	w.mu.Lock()
	for _, t := range bounded(tasks, time.Now()) {
		wanted[t.ID] = true
		if a.tasks[t.ID] != nil {
			continue
		}
		image, ok := w.a.regs.Named(host, t.Repository)
		if !ok {
			continue
		}
		task := &warmTask{Task: t, progress: warm.Progress{State: warm.Waiting}}
		var working context.Context
		working, task.cancel = context.WithDeadline(ctx, t.Expires)
		a.tasks[t.ID] = task
		w.work.Go(func() { w.do(working, host, image, task) })
	}
	for id, t := range a.tasks {
		if !wanted[id] {
			t.cancel()
			delete(a.tasks, id)
		}
	}
	w.mu.Unlock()
	if err := w.a.images.EndWarm(host, wanted); err != nil {
		w.a.log.Warn("images that were kept for orders stay for now", "registry", host, "err", err)
	}
}

// bounded returns those of a registry's tasks that this node heeds. No registry can have
// very many images kept, or keep them for ever.
func bounded(tasks []warm.Task, now time.Time) []warm.Task {
	tasks, latest := slices.Clone(tasks[:min(len(tasks), warm.MaxTasks)]), now.Add(warm.MaxLifetime)
	for i := range tasks {
		if tasks[i].Expires.After(latest) {
			tasks[i].Expires = latest
		}
	}
	return tasks
}

// do fetches an image, and tries again until that succeeds or cannot succeed.
func (w *warmer) do(ctx context.Context, host, image string, t *warmTask) {
	for pause := warmPause; ; pause = min(2*pause, warmMostPause) {
		select {
		case w.slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		err := w.once(ctx, host, image, t)
		<-w.slots
		if ctx.Err() != nil {
			return
		}
		if w.note(t, image, err) {
			return
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// once fetches an image once.
func (w *warmer) once(ctx context.Context, host, image string, t *warmTask) error {
	w.mu.Lock()
	t.progress.State = warm.Running
	w.mu.Unlock()
	ref := image + "@" + string(t.Digest)
	if oci.ValidTag(t.Reference) {
		ref = image + ":" + t.Reference + "@" + string(t.Digest)
	}
	return w.a.images.Warm(ctx, images.WarmOrder{Registry: host, ID: t.ID, Until: t.Expires}, ref, t.All, func(now gearfs.Warmth) {
		w.mu.Lock()
		defer w.mu.Unlock()
		t.progress = warm.Progress{State: warm.Running, Files: now.Files, FilesTotal: now.FilesTotal, Bytes: now.Bytes, BytesTotal: now.BytesTotal}
	})
}

// note records the outcome of a try, and reports whether it is final.
func (w *warmer) note(t *warmTask, image string, err error) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		t.progress.State, t.progress.Reason = warm.Done, ""
		w.a.log.Info("an image is ready before it is started", "image", image, "digest", t.Digest, "files", t.progress.Files, "bytes", t.progress.Bytes)
		return true
	}
	t.progress.Reason = warm.Reason(err)
	if errors.Is(err, images.ErrUnpacks) || errors.Is(err, gearfs.ErrTooLarge) || refused(err) {
		t.progress.State = warm.Failed
		w.a.log.Warn("an image cannot be fetched before it is started", "image", image, "digest", t.Digest, "err", err)
		return true
	}
	w.a.log.Info("an image is not ready yet; it is tried again", "image", image, "digest", t.Digest, "err", err)
	return false
}

// refused reports whether an error is the registry's statement that this node does not get
// the image.
func refused(err error) bool {
	return oci.HasCode(err, oci.CodeDenied, oci.CodeUnauthorized, oci.CodeNameUnknown, oci.CodeManifestUnknown)
}

// states counts the orders by state.
func (w *warmer) states() map[warm.State]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	counts := map[warm.State]int{}
	for _, a := range w.asked {
		for _, t := range a.tasks {
			counts[t.progress.State]++
		}
	}
	return counts
}
