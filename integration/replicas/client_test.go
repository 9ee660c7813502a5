package replicas

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.org/slipway/integration/internal/wire"
	"example.org/slipway/integration/replicas/history"
)

const (
	manifestType = "application/vnd.oci.image.manifest.v1+json"
	configType   = "application/vnd.oci.image.config.v1+json"
	layerType    = "application/vnd.example.layer" // random bytes, no layer to convert
	binaryType   = "application/octet-stream"
	// requestTimeout is the time after which a client gives up a request.
	requestTimeout = 90 * time.Second
	// answerLimit is the maximum time of any request, whatever is broken: a registry that cannot
	// serve has to say so.
	answerLimit = 75 * time.Second
	// present is the value of the blobs of a manifest.
	present = "present"
	// sharedRepo is the repository whose tags all writers move.
	sharedRepo = "shared/app"
)

func tagCell(repo, tag string) string         { return "tag " + repo + ":" + tag }
func manifestCell(repo, digest string) string { return "manifest " + repo + "@" + digest }
func blobsCell(repo, digest string) string    { return "blobs of " + repo + "@" + digest }

// staleBound returns how stale a cell may be.
func staleBound(cell string) time.Duration {
	if strings.HasPrefix(cell, "tag ") {
		return tagBound
	}
	return digestBound
}

// image is an image that a writer has pushed and that was acknowledged.
type image struct {
	repo, digest string
	blobs        []wire.Descriptor
	// deleted is set before its deletion is requested.
	deleted atomic.Bool
	// attempts is the number of times that its manifest was sent.
	attempts int
}

// world is what all clients know.
type world struct {
	b     *bed
	rec   *history.Recorder
	pool  [][]byte    // layers that all writers share
	tags  [][2]string // repository and tag of every tag that may exist
	calm  atomic.Bool // the faults are over
	count atomic.Int64

	mu     sync.Mutex
	images []*image
}

// published announces an image to readers.
func (w *world) published(i *image) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.images = append(w.images, i)
}

// some returns an image, most often one of the newest, or nil.
func (w *world) some(rng *rand.Rand) *image {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := len(w.images)
	if n == 0 {
		return nil
	}
	if rng.IntN(4) > 0 {
		return w.images[n-1-rng.IntN(min(n, 50))]
	}
	return w.images[rng.IntN(n)]
}

// client sends requests, each to a random replica, and records them.
type client struct {
	*world
	id    int
	rng   *rand.Rand
	wires []*wire.Client
}

func (w *world) newClient(id int, seed uint64) *client {
	c := &client{world: w, id: id, rng: rand.New(rand.NewPCG(seed, uint64(id)))}
	for _, r := range w.b.replicas {
		c.wires = append(c.wires, wire.New(r.addr))
	}
	return c
}

func (c *client) close() {
	for _, w := range c.wires {
		w.Close()
	}
}

// answer is the outcome of a request. resp is nil if there was no answer.
type answer struct {
	history.Op
	resp *wire.Response
}

// is reports whether the answer has one of the statuses.
func (a *answer) is(status ...int) bool {
	return a.resp != nil && slices.Contains(status, a.resp.Status)
}

func (a *answer) header(name string) string {
	if a.resp == nil {
		return ""
	}
	return a.resp.Header.Get(name)
}

// send sends a request to a random replica.
func (c *client) send(ctx context.Context, method, path string, h http.Header, body []byte) *answer {
	return c.sendTo(ctx, c.rng.IntN(len(c.wires)), method, path, h, body)
}

func (c *client) sendTo(ctx context.Context, replica int, method, path string, h http.Header, body []byte) *answer {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	c.count.Add(1)
	a := &answer{Op: history.Op{Kind: history.Failed, Client: c.id, Replica: replica, Request: method + " " + path, Start: c.rec.Now()}}
	resp, err := c.wires[replica].Do(ctx, method, path, h, body)
	a.End = c.rec.Now()
	if err != nil {
		a.Detail = err.Error()
		return a
	}
	a.resp, a.Status, a.RetryAfter = resp, resp.Status, resp.Header.Get("Retry-After") != ""
	if resp.Status >= 400 {
		a.Detail = strings.TrimSpace(string(resp.Body[:min(len(resp.Body), 300)]))
	}
	return a
}

// as returns the answer as an operation on a cell.
func (a *answer) as(kind history.Kind, cell, value string) history.Op {
	o := a.Op
	o.Kind, o.Cell, o.Value = kind, cell, value
	return o
}

// unknown reports whether a request that changes something may have done so, or may still do so.
func (a *answer) unknown() bool { return a.resp == nil || a.resp.Status >= 500 }

// record records an answer that concerns no cell. It only counts if it is an error.
func (c *client) record(a *answer, ok bool) bool {
	if !ok {
		c.rec.Add(a.Op)
	}
	return ok
}

// backOff waits as long as a failed answer says, or briefly if it does not say. It returns false if
// ctx has ended.
func (c *client) backOff(ctx context.Context, a *answer) bool {
	wait := time.Duration(20+c.rng.IntN(200)) * time.Millisecond
	if s := a.header("Retry-After"); s != "" {
		wait += 500 * time.Millisecond // not the full second or more, because the test is impatient
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(wait):
		return true
	}
}

// pushBlob uploads a blob to a repository in one of the ways that clients use. It tries a few
// times.
func (c *client) pushBlob(ctx context.Context, repo, mediaType string, data []byte) (wire.Descriptor, bool) {
	desc := wire.Descriptor{MediaType: mediaType, Digest: wire.Digest(data), Size: int64(len(data))}
	for try := 0; try < 4 && ctx.Err() == nil; try++ {
		a, ok := c.tryBlob(ctx, repo, desc, data)
		if ok {
			return desc, true
		}
		if !c.backOff(ctx, a) {
			break
		}
	}
	return desc, false
}

// tryBlob is one attempt of pushBlob. On failure it returns the failed answer.
func (c *client) tryBlob(ctx context.Context, repo string, d wire.Descriptor, data []byte) (*answer, bool) {
	path := "/v2/" + repo + "/blobs/uploads/"
	switch c.rng.IntN(4) {
	case 0: // asks first, as clients do
		if a := c.send(ctx, http.MethodHead, "/v2/"+repo+"/blobs/"+d.Digest, nil, nil); a.is(http.StatusOK) {
			return a, true
		} else if !a.is(http.StatusNotFound) {
			return a, c.record(a, false)
		}
	case 1: // mounts it from where it may be
		from := c.tags[c.rng.IntN(len(c.tags))][0]
		a := c.send(ctx, http.MethodPost, path+"?mount="+d.Digest+"&from="+from, nil, nil)
		if a.is(http.StatusCreated) {
			return a, true
		}
		if !a.is(http.StatusAccepted) {
			return a, c.record(a, false)
		}
		return c.upload(ctx, a, d, data)
	}
	a := c.send(ctx, http.MethodPost, path, nil, nil)
	if !c.record(a, a.is(http.StatusAccepted)) {
		return a, false
	}
	return c.upload(ctx, a, d, data)
}

// upload sends the bytes of an open upload, each request to a random replica.
func (c *client) upload(ctx context.Context, a *answer, d wire.Descriptor, data []byte) (*answer, bool) {
	location, rest := a.header("Location"), data
	if c.rng.IntN(2) == 0 {
		chunk := max(len(data)/(1+c.rng.IntN(3)), 1)
		for off := 0; off < len(data); off += chunk {
			part := data[off:min(off+chunk, len(data))]
			a = c.send(ctx, http.MethodPatch, location, http.Header{"Content-Type": {binaryType},
				"Content-Range": {fmt.Sprintf("%d-%d", off, off+len(part)-1)}}, part)
			c.excuseUpload(a)
			if !c.record(a, a.is(http.StatusAccepted)) {
				return a, false
			}
			location = a.header("Location")
		}
		rest = nil
	}
	put, err := wire.WithDigest(location, d.Digest)
	if err != nil {
		a.Kind, a.Detail = history.Wrong, err.Error()
		return a, c.record(a, false)
	}
	a = c.send(ctx, http.MethodPut, put, http.Header{"Content-Type": {binaryType}}, rest)
	c.excuseUpload(a)
	return a, c.record(a, a.is(http.StatusCreated))
}

// excuseUpload excuses an upload that is not in the state that its client expects, or that still
// seems to be in use. The state between two chunks, and the end of the last chunk, may be lost with
// the database's last moments (docs/replicas.md).
func (c *client) excuseUpload(a *answer) {
	if a.is(http.StatusNotFound, http.StatusConflict, http.StatusRequestedRangeNotSatisfiable) && !c.calm.Load() {
		a.Excuse = "the state of an unfinished upload may be lost"
	}
}

// pushImage pushes a new image, and records the effect on the manifest, its blobs and the tag. It
// returns nil if the manifest was not acknowledged.
func (c *client) pushImage(ctx context.Context, repo, tag string, n int) *image {
	begin := time.Now()
	config := fmt.Appendf(nil, `{"architecture":"amd64","os":"linux","by":"client %d image %d"}`, c.id, n)
	configDesc, ok := c.pushBlob(ctx, repo, configType, config)
	if !ok {
		return nil
	}
	doc := wire.Document{SchemaVersion: 2, MediaType: manifestType, Config: &configDesc}
	img := &image{repo: repo, blobs: []wire.Descriptor{configDesc}}
	for i := range 1 + c.rng.IntN(3) {
		layer := c.pool[c.rng.IntN(len(c.pool))]
		if c.rng.IntN(3) == 0 { // a layer that nobody else has
			size := 1 + c.rng.IntN(200_000)
			if c.rng.IntN(20) == 0 {
				size = 6<<20 + c.rng.IntN(3<<20)
			}
			layer = content(uint64(c.id)<<40|uint64(n)<<8|uint64(i)|1<<62, size)
		}
		desc, ok := c.pushBlob(ctx, repo, layerType, layer)
		if !ok {
			return nil
		}
		doc.Layers = append(doc.Layers, desc)
		img.blobs = append(img.blobs, desc)
	}
	raw, err := json.Marshal(doc)
	if err != nil {
		panic(err) // cannot happen: a struct of strings
	}
	img.digest = wire.Digest(raw)
	for ctx.Err() == nil && img.attempts < 4 {
		img.attempts++
		a := c.send(ctx, http.MethodPut, "/v2/"+repo+"/manifests/"+tag, http.Header{"Content-Type": {manifestType}}, raw)
		kind := history.Write
		switch {
		case a.is(http.StatusCreated):
		case a.unknown():
			kind = history.MayWrite
		default:
			if time.Since(begin) > grace/3 && strings.Contains(a.Detail, "MANIFEST_BLOB_UNKNOWN") {
				a.Excuse = "the push took longer than its blobs are kept"
			}
			c.record(a, false)
			return nil
		}
		c.rec.Add(a.as(kind, tagCell(repo, tag), img.digest), a.as(kind, manifestCell(repo, img.digest), img.digest),
			a.as(kind, blobsCell(repo, img.digest), present))
		if kind == history.Write {
			c.published(img)
			return img
		}
		if !c.backOff(ctx, a) {
			break
		}
	}
	return nil
}

// deleteTag deletes a tag.
func (c *client) deleteTag(ctx context.Context, repo, tag string) {
	a := c.send(ctx, http.MethodDelete, "/v2/"+repo+"/manifests/"+tag, nil, nil)
	cell := tagCell(repo, tag)
	switch {
	case a.is(http.StatusAccepted):
		c.rec.Add(a.as(history.Write, cell, history.Absent))
	case a.is(http.StatusNotFound):
		c.rec.Add(a.as(history.Read, cell, history.Absent))
	case a.unknown():
		c.rec.Add(a.as(history.MayWrite, cell, history.Absent))
	default:
		c.record(a, false)
	}
}

// deleteImage deletes a manifest that no tag points at. Its blobs may be collected from the time of
// the request.
func (c *client) deleteImage(ctx context.Context, i *image) {
	i.deleted.Store(true)
	start := c.rec.Now()
	a := c.send(ctx, http.MethodDelete, "/v2/"+i.repo+"/manifests/"+i.digest, nil, nil)
	cell := manifestCell(i.repo, i.digest)
	gone := a.as(history.MayWrite, blobsCell(i.repo, i.digest), history.Absent)
	gone.Start, gone.Status = start, 0
	switch {
	case a.is(http.StatusAccepted):
		c.rec.Add(a.as(history.Write, cell, history.Absent), gone)
	case a.is(http.StatusNotFound):
		c.rec.Add(a.as(history.Read, cell, history.Absent), gone)
	case a.unknown():
		c.rec.Add(a.as(history.MayWrite, cell, history.Absent), gone)
	default:
		c.record(a, false)
	}
}

// readManifest reads a manifest by tag or digest from a replica, and records what the cell had. It
// returns nil if the manifest is absent or could not be read. ok is false if it could not be read.
func (c *client) readManifest(ctx context.Context, replica int, repo, ref, cell string) (m *wire.Manifest, ok bool) {
	a := c.sendTo(ctx, replica, http.MethodGet, "/v2/"+repo+"/manifests/"+ref, http.Header{"Accept": {manifestType}}, nil)
	switch {
	case a.is(http.StatusNotFound):
		c.rec.Add(a.as(history.Read, cell, history.Absent))
		return nil, true
	case !a.is(http.StatusOK):
		return nil, c.record(a, false)
	}
	m = &wire.Manifest{MediaType: a.header("Content-Type"), Digest: wire.Digest(a.resp.Body), Bytes: a.resp.Body}
	if h := a.header("Docker-Content-Digest"); h != m.Digest || strings.HasPrefix(ref, "sha256:") && ref != m.Digest {
		o := a.as(history.Wrong, cell, m.Digest)
		o.Detail = "the header says " + h
		c.rec.Add(o)
		return nil, false
	}
	// A client that gets a manifest can rely on its blobs.
	c.rec.Add(a.as(history.Read, cell, m.Digest), a.as(history.Write, blobsCell(repo, m.Digest), present))
	return m, true
}

// readBlobs reads blobs of a manifest from replicas, whole or in part, and records whether they are
// present. ok is false if one could not be read.
func (c *client) readBlobs(ctx context.Context, replica int, repo, digest string, blobs []wire.Descriptor) (ok bool) {
	cell, ok := blobsCell(repo, digest), true
	for _, d := range blobs {
		var h http.Header
		status := http.StatusOK
		if d.Size > 1 && c.rng.IntN(8) == 0 && !c.calm.Load() {
			off := c.rng.Int64N(d.Size)
			h, status = http.Header{"Range": {fmt.Sprintf("bytes=%d-%d", off, d.Size-1)}}, http.StatusPartialContent
		}
		to := replica
		if to < 0 {
			to = c.rng.IntN(len(c.wires))
		}
		a := c.sendTo(ctx, to, http.MethodGet, "/v2/"+repo+"/blobs/"+d.Digest, h, nil)
		switch {
		case a.is(http.StatusNotFound):
			c.rec.Add(a.as(history.Read, cell, history.Absent))
		case !a.is(status):
			ok = c.record(a, false)
		case status == http.StatusOK && wire.Digest(a.resp.Body) != d.Digest:
			o := a.as(history.Wrong, cell, present)
			o.Detail = fmt.Sprintf("%d bytes of %s, want %d of %s", len(a.resp.Body), wire.Digest(a.resp.Body), d.Size, d.Digest)
			c.rec.Add(o)
		default:
			c.rec.Add(a.as(history.Read, cell, present))
		}
	}
	return ok
}

// blobsOf returns the blobs that a manifest names.
func blobsOf(m *wire.Manifest) []wire.Descriptor {
	var doc wire.Document
	if json.Unmarshal(m.Bytes, &doc) != nil || doc.Config == nil {
		return nil
	}
	return append(doc.Layers, *doc.Config)
}

func marshal(t testing.TB, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
