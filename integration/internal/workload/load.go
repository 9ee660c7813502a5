package workload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"

	"example.org/slipway/integration/internal/wire"
)

const (
	manifestType = "application/vnd.oci.image.manifest.v1+json"
	configType   = "application/vnd.oci.image.config.v1+json"
	layerType    = "application/vnd.oci.image.layer.v1.tar"
)

// Load is a running workload.
type Load struct {
	ledger *Ledger
	client *wire.Client
	cancel context.CancelFunc
	wg     sync.WaitGroup

	// calm is set while every request should succeed.
	calm atomic.Bool
	// judge, if not nil, decides about errors instead. drained ends each worker after its
	// step.
	judge   atomic.Pointer[func(error) error]
	drained atomic.Bool

	mu   sync.Mutex
	errs []error
}

// Start makes the workers push images to the registry until Stop. Each worker pushes into
// its own repository, whose name begins with prefix. A prefix must not be used twice with
// one ledger. Each worker pushes small images whole and in chunks, mounts a blob of
// another repository, moves a tag, and deletes. The seed determines all of this.
func Start(client *wire.Client, ledger *Ledger, prefix string, workers int, seed uint64) *Load {
	ctx, cancel := context.WithCancel(context.Background())
	l := &Load{ledger: ledger, client: client, cancel: cancel}
	l.calm.Store(true)
	for i := range workers {
		w := &worker{
			load:   l,
			repo:   fmt.Sprintf("%s/w%d", prefix, i),
			rand:   rand.New(rand.NewPCG(seed, uint64(i))),
			shared: rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16)}),
		}
		w.latest = ledger.newCell(false, w.repo, "latest", 0)
		l.wg.Go(func() { w.run(ctx) })
	}
	return l
}

// ExpectErrors announces that the registry is about to fail. From now on an error is
// expected. It only ends the worker that met it.
func (l *Load) ExpectErrors() { l.calm.Store(false) }

// Judge sets a function that judges errors. If the function returns nil, the worker
// continues with its next image. Otherwise the worker ends, and the error that the
// function returned is reported. Several goroutines may call the function at once.
func (l *Load) Judge(judge func(error) error) { l.judge.Store(&judge) }

// Drain ends each worker after its current image, and returns the errors that the workers met.
func (l *Load) Drain() error {
	l.drained.Store(true)
	l.wg.Wait()
	return l.Stop()
}

// Stop ends the workers and cuts off their requests. It returns the errors that they met before
// ExpectErrors.
func (l *Load) Stop() error {
	l.ExpectErrors()
	l.cancel()
	l.wg.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	return shorten(l.errs)
}

// image is an image that a worker has pushed and may delete again.
type image struct {
	digest string
	cells  []*cell
}

// worker pushes to its own repository.
type worker struct {
	load   *Load
	repo   string
	rand   *rand.Rand
	shared *rand.ChaCha8 // gives the same stream of layers in all workers

	count  int
	latest *cell // the cell of the moving tag
	images []image
}

func (w *worker) run(ctx context.Context) {
	for ctx.Err() == nil && !w.load.drained.Load() {
		// calm must be read before the request fails, not after: the fault may come in between.
		calm := w.load.calm.Load()
		err := w.step(ctx)
		if err == nil {
			continue
		}
		if judge := w.load.judge.Load(); judge != nil && w.load.calm.Load() {
			if err = (*judge)(err); err == nil {
				continue
			}
		}
		if calm && w.load.calm.Load() {
			w.load.mu.Lock()
			w.load.errs = append(w.load.errs, err)
			w.load.mu.Unlock()
		}
		return
	}
}

// step pushes an image. Now and then it moves or deletes a tag, or deletes an earlier
// image.
func (w *worker) step(ctx context.Context) error {
	w.count++
	doc := wire.Document{SchemaVersion: 2, MediaType: manifestType}
	config, err := w.pushBlob(ctx, configType, fmt.Appendf(nil, `{"architecture":"amd64","os":"linux","n":"%s-%d"}`, w.repo, w.count))
	if err != nil {
		return err
	}
	doc.Config = &config
	for range 1 + w.rand.IntN(3) {
		layer, err := w.pushBlob(ctx, layerType, w.layer())
		if err != nil {
			return err
		}
		doc.Layers = append(doc.Layers, layer)
	}
	if err := w.pushManifest(ctx, doc); err != nil {
		return err
	}
	switch w.rand.IntN(8) {
	case 0:
		return w.deleteLatest(ctx)
	case 1:
		return w.deleteImage(ctx)
	}
	return nil
}

// layer returns the content of a layer, of 1 KiB to 1 MiB. Small layers are more
// frequent. One layer in four is a layer that other workers push, too.
func (w *worker) layer() []byte {
	if w.rand.IntN(4) == 0 {
		b := make([]byte, 20_000)
		_, _ = w.shared.Read(b) // never fails
		return b
	}
	b := make([]byte, 1<<(10+w.rand.IntN(11)))
	for i := 0; i < len(b); i += 8 {
		v := w.rand.Uint64()
		for j := range min(8, len(b)-i) {
			b[i+j] = byte(v >> (8 * j))
		}
	}
	return b
}

func (w *worker) pushBlob(ctx context.Context, mediaType string, data []byte) (wire.Descriptor, error) {
	d := wire.Descriptor{MediaType: mediaType, Digest: wire.Digest(data), Size: int64(len(data))}
	c := w.load.ledger.newCell(true, w.repo, d.Digest, d.Size)
	w.load.ledger.begin(d.Digest, c)
	chunk := 0
	if w.rand.IntN(3) == 0 {
		chunk = 1 + w.rand.IntN(len(data))
	}
	if _, err := w.load.client.PushBlobChunked(ctx, w.repo, data, chunk); err != nil {
		return d, err
	}
	w.load.ledger.acknowledge(c)
	if w.rand.IntN(6) == 0 {
		return d, w.mount(ctx, d)
	}
	return d, nil
}

// mount mounts a blob into a second repository of the worker. The registry may
// decline by opening an upload instead.
func (w *worker) mount(ctx context.Context, d wire.Descriptor) error {
	c := w.load.ledger.newCell(true, w.repo+"/mounted", d.Digest, d.Size)
	w.load.ledger.begin(d.Digest, c)
	path := "/v2/" + c.repo + "/blobs/uploads/?mount=" + d.Digest + "&from=" + w.repo
	resp, err := w.load.client.Do(ctx, http.MethodPost, path, nil, nil)
	if err != nil {
		return err
	}
	switch resp.Status {
	case http.StatusCreated:
		w.load.ledger.acknowledge(c)
		return nil
	case http.StatusAccepted:
		return nil
	}
	return wire.Unexpected(http.MethodPost, path, resp)
}

// pushManifest pushes the manifest under a new tag. It pushes every third manifest under
// the moving tag too.
func (w *worker) pushManifest(ctx context.Context, doc wire.Document) error {
	b, err := json.Marshal(doc)
	if err != nil {
		return err
	}
	ledger, digest := w.load.ledger, wire.Digest(b)
	tag := fmt.Sprintf("t%d", w.count)
	im := image{digest, []*cell{
		ledger.newCell(false, w.repo, digest, 0),
		ledger.newCell(false, w.repo, tag, 0),
	}}
	ledger.begin(digest, im.cells...)
	if _, err := w.load.client.PutManifest(ctx, w.repo, tag, manifestType, b); err != nil {
		return err
	}
	ledger.acknowledge(im.cells...)
	if w.count%3 != 0 {
		w.images = append(w.images, im)
		return nil
	}
	// An image under the moving tag is not deleted by digest, because that would delete the tag
	// too.
	ledger.begin(digest, w.latest)
	if _, err := w.load.client.PutManifest(ctx, w.repo, w.latest.ref, manifestType, b); err != nil {
		return err
	}
	ledger.acknowledge(w.latest)
	return nil
}

func (w *worker) deleteLatest(ctx context.Context) error {
	w.load.ledger.begin(absent, w.latest)
	err := w.load.client.DeleteManifest(ctx, w.repo, w.latest.ref)
	switch wire.StatusOf(err) {
	case http.StatusBadRequest, http.StatusMethodNotAllowed:
		return nil // the specification lets a registry refuse to delete tags
	case http.StatusNotFound:
		err = nil
	}
	if err == nil {
		w.load.ledger.acknowledge(w.latest)
	}
	return err
}

// deleteImage deletes an image by digest, and so also its tag.
func (w *worker) deleteImage(ctx context.Context) error {
	if len(w.images) == 0 {
		return nil
	}
	i := w.rand.IntN(len(w.images))
	im := w.images[i]
	w.images = append(w.images[:i], w.images[i+1:]...)
	w.load.ledger.begin(absent, im.cells...)
	if err := w.load.client.DeleteManifest(ctx, w.repo, im.digest); err != nil {
		return err
	}
	w.load.ledger.acknowledge(im.cells...)
	return nil
}

// PushUntilError pushes images one after the other from one goroutine until the registry
// refuses one, and returns the refusal. The ledger holds what was acknowledged.
func PushUntilError(ctx context.Context, client *wire.Client, ledger *Ledger, prefix string, seed uint64) error {
	l := Start(client, ledger, prefix, 1, seed)
	l.wg.Wait()
	err := l.Stop()
	if err == nil {
		return errors.Join(errors.New("the load ended without an error"), ctx.Err())
	}
	return err
}
