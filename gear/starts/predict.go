package starts

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/gear/predict"
	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog/gearfacts"
)

const (
	// keepDonors is how many donors a repository keeps for each combination of platform
	// and program.
	keepDonors = 8
	// learnAgain is the minimum time after which a donor is made again from all reports
	// so far.
	learnAgain = 10 * time.Minute
	// predictedFor and predictedFiles bound how long and how many predictions are kept.
	// They are kept because the nodes of a cluster ask at the same time.
	predictedFor   = 10 * time.Minute
	predictedFiles = 200_000
	// predictAtOnce is how many predictions are made at a time. Each has the index of an
	// image in RAM.
	predictAtOnce = 2
	// predictTime and predictBytes bound what a prediction may cost. predictBytes bounds
	// the contents that it reads.
	predictTime  = 10 * time.Second
	predictBytes = 256 << 20
	// maxConfig is the maximum size in bytes of the configuration of an image.
	maxConfig = 4 << 20
)

// Prediction says which files containers of an image are expected to open first.
type Prediction struct {
	// Files has the files in the order in which they are opened, each with the reason why
	// it is expected to be opened.
	Files []predict.File
	// Donor is the manifest from which the files of a series were inherited, or empty.
	Donor oci.Digest
}

// Inferred reports whether the prediction has files that do not come from reports about
// the image itself.
func (p *Prediction) Inferred() bool { return predict.Inferred(p.Files) }

// Predict returns the image's own profile, as [Book.Profile] does. If there is no
// complete profile, it adds to the files that were seen to be opened what can be
// inferred: from other images of the repository, from the program that the image starts,
// and from what images with the same contents opened. Inferred predictions are kept only
// for a while and never count as reports. Errors: MANIFEST_UNKNOWN.
func (b *Book) Predict(ctx context.Context, repo string, manifest oci.Digest) (Prediction, error) {
	own, whole, err := b.knownOf(ctx, repo, manifest, true)
	if err != nil {
		return Prediction{}, err
	}
	known := predict.Files(own, "")
	if whole {
		return Prediction{Files: known}, nil
	}
	p, err := b.inferred(ctx, repo, manifest)
	if err != nil && ctx.Err() == nil {
		// A start without a prediction is only slower.
		b.log.Warn("what an image opens first cannot be inferred", "repo", repo, "manifest", manifest, "err", err)
		return Prediction{Files: known}, nil
	}
	p.Files = joined(known, p.Files)
	return p, err
}

// joined returns the files of both lists, each once.
func joined(a, b []predict.File) []predict.File {
	had := make(map[gear.Name]bool, len(a))
	for _, f := range a {
		had[f.Name] = true
	}
	out := slices.Clone(a)
	for _, f := range b {
		if !had[f.Name] && len(out) < predict.MaxFiles {
			had[f.Name] = true
			out = append(out, f)
		}
	}
	return out
}

// predictions has what was inferred lately. The zero value is empty.
type predictions struct {
	mu    sync.Mutex
	all   map[imageKey]predicted
	files int
	// changes counts what has been learnt. A prediction that was inferred before a change
	// is not kept.
	changes int
	learnt  map[imageKey]time.Time
}

type imageKey struct {
	repo     string
	manifest oci.Digest
}

type predicted struct {
	Prediction
	at time.Time
}

// get returns what was inferred about an image, and the number of changes so far, which
// the caller passes to put.
func (c *predictions) get(k imageKey, now time.Time) (Prediction, int, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, ok := c.all[k]
	return p.Prediction, c.changes, ok && now.Sub(p.at) < predictedFor
}

func (c *predictions) put(k imageKey, p Prediction, now time.Time, changes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.changes != changes {
		return
	}
	if n := len(p.Files); c.all == nil || c.files+n > predictedFiles {
		c.all, c.files = map[imageKey]predicted{}, 0
	}
	c.files += len(p.Files) - len(c.all[k].Files)
	c.all[k] = predicted{p, now}
}

// learn reports whether it is time to make a donor of an image.
func (c *predictions) learn(k imageKey, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if last, ok := c.learnt[k]; ok && now.Sub(last) < learnAgain {
		return false
	}
	if c.learnt == nil || len(c.learnt) >= maxLearnt {
		c.learnt = map[imageKey]time.Time{}
	}
	c.learnt[k] = now
	return true
}

// maxLearnt bounds for how many images the time of the last learning is remembered.
const maxLearnt = 4096

// forget drops what was inferred about the images of a repository.
func (c *predictions) forget(repo string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changes++
	for k, p := range c.all {
		if k.repo == repo {
			c.files -= len(p.Files)
			delete(c.all, k)
		}
	}
}

// inferred returns what can be predicted about an image without a report. It is empty as
// long as the image is not converted.
func (b *Book) inferred(ctx context.Context, repo string, manifest oci.Digest) (Prediction, error) {
	k := imageKey{repo, manifest}
	if p, _, ok := b.predicted.get(k, b.opts.Clock()); ok {
		return p, nil
	}
	select {
	case b.predicting <- struct{}{}:
		defer func() { <-b.predicting }()
	case <-ctx.Done():
		return Prediction{}, ctx.Err()
	}
	p, changes, ok := b.predicted.get(k, b.opts.Clock()) // another call may have made it meanwhile
	if ok {
		return p, nil
	}
	ctx, cancel := context.WithTimeout(ctx, predictTime)
	defer cancel()
	p, err := b.infer(ctx, repo, manifest)
	var pending *gear.PendingError
	if errors.As(err, &pending) || errors.Is(err, gear.ErrNotConverted) || errors.Is(err, errNoImage) {
		return Prediction{}, nil
	}
	if err == nil {
		b.predicted.put(k, p, b.opts.Clock(), changes)
	}
	return p, err
}

// infer makes a prediction.
func (b *Book) infer(ctx context.Context, repo string, manifest oci.Digest) (Prediction, error) {
	img, err := b.startOf(ctx, repo, manifest)
	if err != nil {
		return Prediction{}, err
	}
	donors, err := b.donors(ctx, repo)
	if err != nil {
		return Prediction{}, err
	}
	open := b.opener(ctx)
	var out Prediction
	d := predict.Likest(img.tree, img.platform, img.command.Args, donors)
	if d != nil {
		out.Files = predict.Inherit(img.tree, d)
		enough := !d.Part && 2*len(out.Files) >= len(d.Opened)
		out.Files = predict.Complete(img.tree, d, out.Files, img.command, open)
		out.Donor = oci.Digest(d.Manifest)
		if enough {
			return out, nil
		}
	}
	// A donor says little if most of its files are not found, because the image is a
	// different one now.
	out.Files = joined(out.Files, predict.Static(img.tree, img.command, open))
	voted, err := b.voted(ctx, repo, img)
	if err != nil {
		return Prediction{}, err
	}
	out.Files = predict.Votes(img.tree, out.Files, voted)
	return out, nil
}

// start is what a prediction needs to know about the start of an image.
type start struct {
	tree     *predict.Tree
	files    []gear.File // the contents of the tree
	platform string
	command  predict.Command
}

// errNoImage says that a manifest does not describe a single image.
var errNoImage = errors.New("the manifest is not that of an image")

// startOf reads what a prediction needs to know about an image. Errors: errNoImage,
// gear.ErrNotConverted, *gear.PendingError.
func (b *Book) startOf(ctx context.Context, repo string, manifest oci.Digest) (*start, error) {
	m, err := b.cat.Manifest(ctx, repo, manifest)
	if err != nil {
		return nil, err
	}
	var doc struct {
		Config oci.Descriptor   `json:"config"`
		Layers []oci.Descriptor `json:"layers"`
	}
	if json.Unmarshal(m.Content, &doc) != nil || doc.Config.Digest == "" || len(doc.Layers) == 0 {
		return nil, errNoImage
	}
	layers := make([]*gear.Index, len(doc.Layers))
	for i, l := range doc.Layers {
		if !gear.IsLayer(l.MediaType) {
			return nil, errNoImage
		}
		if layers[i], err = b.src.Look(ctx, repo, l.Digest); err != nil {
			return nil, err
		}
	}
	x, err := gear.Flatten(layers...)
	if err != nil {
		return nil, err
	}
	out := &start{tree: predict.NewTree(x), files: x.Files}
	return out, b.readConfig(ctx, doc.Config.Digest, out)
}

// readConfig reads how the containers of an image are started.
func (b *Book) readConfig(ctx context.Context, d oci.Digest, out *start) error {
	body, _, err := b.src.OpenBlob(ctx, d, 0)
	if err != nil {
		return fmt.Errorf("read the configuration %s: %w", d, err)
	}
	defer body.Close()
	content, err := io.ReadAll(io.LimitReader(body, maxConfig))
	if err != nil {
		return fmt.Errorf("read the configuration %s: %w", d, err)
	}
	var c struct {
		OS      string `json:"os"`
		Arch    string `json:"architecture"`
		Variant string `json:"variant"`
		Config  struct {
			Entrypoint, Cmd, Env []string
			WorkingDir           string
		} `json:"config"`
	}
	if json.Unmarshal(content, &c) != nil {
		return errNoImage
	}
	out.platform = strings.Join([]string{c.OS, c.Arch, c.Variant}, "/")
	out.command = predict.Command{Args: slices.Concat(c.Config.Entrypoint, c.Config.Cmd), Env: c.Config.Env, Dir: c.Config.WorkingDir}
	return nil
}

// donors reads the donors of a repository. It skips a donor that is damaged.
func (b *Book) donors(ctx context.Context, repo string) ([]*predict.Donor, error) {
	rows, err := b.facts.Donors(ctx, repo)
	if err != nil {
		return nil, fmt.Errorf("read the donors of %s: %w", repo, err)
	}
	var out []*predict.Donor
	for i := range rows {
		d, err := predict.DecodeDonor(rows[i].Data)
		if err != nil {
			b.log.Warn("a damaged donor is left alone", "repo", repo, "manifest", rows[i].Manifest, "err", err)
			continue
		}
		out = append(out, d)
	}
	return out, nil
}

// learnFrom makes a donor of an image whose profile has changed, in the background.
func (b *Book) learnFrom(repo string, manifest oci.Digest) {
	if !b.predicted.learn(imageKey{repo, manifest}, b.opts.Clock()) {
		return
	}
	b.begin(func() {
		if err := b.learn(b.ctx, repo, manifest); err != nil && b.ctx.Err() == nil {
			b.log.Warn("what an image opened is not kept for its next version", "repo", repo, "manifest", manifest, "err", err)
		}
	})
}

func (b *Book) learn(ctx context.Context, repo string, manifest oci.Digest) error {
	select {
	case b.predicting <- struct{}{}:
		defer func() { <-b.predicting }()
	case <-ctx.Done():
		return ctx.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, predictTime)
	defer cancel()
	img, err := b.startOf(ctx, repo, manifest)
	if errors.Is(err, errNoImage) {
		return nil
	}
	if err != nil {
		return err
	}
	opened, whole, err := b.knownOf(ctx, repo, manifest, false)
	if err != nil || len(opened) == 0 {
		return err
	}
	if !whole {
		// Files that were given to the container in advance were not seen to be opened. They
		// are known from the earlier prediction.
		inferred, err := b.infer(ctx, repo, manifest)
		if err != nil {
			return err
		}
		for _, f := range inferred.Files {
			if f.From == predict.Series {
				opened = append(opened, f.Name)
			}
		}
	}
	d := predict.NewDonor(img.tree, string(manifest), img.platform, img.command.Args, opened, b.opts.Clock())
	d.Part = !whole
	data, err := d.Encode()
	if err != nil {
		return err
	}
	kind := d.Platform + " " + d.Command
	if err := b.facts.PutDonor(ctx, gearfacts.Donor{Repo: repo, Manifest: manifest, Data: data}, kind, keepDonors); err != nil {
		return err
	}
	b.predicted.forget(repo)
	return nil
}

// opener returns a function that opens contents for a prediction, up to the bounds of the
// prediction.
func (b *Book) opener(ctx context.Context) predict.Open {
	left := int64(predictBytes)
	take := func(n int64) error {
		if left -= n; left < 0 {
			return errCostly
		}
		return ctx.Err()
	}
	return func(f gear.File) (io.ReaderAt, error) {
		stored, err := b.src.OpenFile(ctx, f.Name)
		if err != nil {
			return nil, err
		}
		if stored.Size() >= gear.LargeFile {
			return &blocks{ctx: ctx, f: stored, take: take, have: map[int64][]byte{}}, nil
		}
		if err := take(stored.Size()); err != nil {
			return nil, err
		}
		content, err := stored.Content(ctx)
		return bytes.NewReader(content), err
	}
}

// errCostly says that a prediction has read enough.
var errCostly = errors.New("too much was read for one prediction")

// blocks reads the chunks of a large content on demand.
type blocks struct {
	ctx  context.Context // of the prediction
	f    File
	take func(n int64) error
	have map[int64][]byte
}

// ReadAt implements io.ReaderAt.
func (b *blocks) ReadAt(p []byte, off int64) (n int, err error) {
	for n < len(p) {
		if off < 0 || off >= b.f.Size() {
			return n, io.EOF
		}
		i := off / gear.ChunkSize
		c, ok := b.have[i]
		if !ok {
			if c, err = b.read(i); err != nil {
				return n, err
			}
		}
		m := copy(p[n:], c[off-i*gear.ChunkSize:])
		n, off = n+m, off+int64(m)
	}
	return n, nil
}

func (b *blocks) read(i int64) ([]byte, error) {
	n := int64(gear.ChunkLen(b.f.Size(), int(i)))
	if err := b.take(n); err != nil {
		return nil, err
	}
	var buf bytes.Buffer
	if _, err := b.f.WriteRange(b.ctx, &buf, i*gear.ChunkSize, n); err != nil {
		return nil, err
	}
	if int64(buf.Len()) != n {
		return nil, io.ErrUnexpectedEOF
	}
	if len(b.have) >= maxBlocks {
		clear(b.have)
	}
	b.have[i] = buf.Bytes()
	return b.have[i], nil
}

// maxBlocks is how many chunks of a content are kept in RAM.
const maxBlocks = 8
