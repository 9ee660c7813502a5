package admin

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"example.org/slipway/config"
	"example.org/slipway/oci"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/objstore/objtest"
	"example.org/slipway/serve/dataroot"
)

// seamImage is an image or index as a client has it.
type seamImage struct {
	digest   oci.Digest
	raw      []byte
	blobs    []oci.Digest
	children []*seamImage
}

// seamContents holds all contents that a sequence of operations can use.
type seamContents struct {
	bytes  map[oci.Digest][]byte
	images map[oci.Digest]*seamImage
	// These are the images of the base and those that operations push.
	first, second, multi, adopted, loose *seamImage
	fresh                                []*seamImage
	signatures                           []*seamImage
}

func newSeamContents() *seamContents {
	c := &seamContents{bytes: map[oci.Digest][]byte{}, images: map[oci.Digest]*seamImage{}}
	shared := c.layer(1)
	c.first = c.image(1, shared, c.largeLayer(2), c.put(seamBytes(3, 2000)))
	c.second = c.image(2, shared, c.layer(4))
	c.multi = c.index(c.image(3, c.layer(5)), c.image(4, shared, c.layer(6)))
	c.adopted = c.image(5, shared, c.layer(7))
	for i := range uint64(3) {
		c.fresh = append(c.fresh, c.image(10+i, shared, c.layer(20+i), c.put(seamBytes(30+i, 3000))))
	}
	c.fresh = append(c.fresh, c.index(c.image(13, c.layer(23)), c.image(14, c.layer(24))))
	c.loose = c.index(c.image(15, c.layer(25)), c.image(16, shared))
	for i := range uint64(2) {
		c.signatures = append(c.signatures, c.image(40+i, c.put(seamBytes(50+i, 300))))
	}
	return c
}

func seamBytes(seed uint64, n int) []byte {
	key := [32]byte{byte(seed), byte(seed >> 8)}
	b := make([]byte, n)
	_, _ = rand.NewChaCha8(key).Read(b) // never returns an error
	return b
}

func (c *seamContents) put(b []byte) oci.Digest {
	d := oci.SHA256(b)
	c.bytes[d] = b
	return d
}

// layer makes a layer that is too large for the catalogue and can be converted.
func (c *seamContents) layer(seed uint64) oci.Digest { return c.layerOf(seed, 20_000) }

// largeLayer makes a layer that is too large for RAM. It is not read before it is served.
func (c *seamContents) largeLayer(seed uint64) oci.Digest { return c.layerOf(seed, 80_000) }

func (c *seamContents) layerOf(seed uint64, size int) oci.Digest {
	var buf bytes.Buffer
	z := gzip.NewWriter(&buf)
	w := tar.NewWriter(z)
	body := seamBytes(seed, size)
	err := errors.Join(w.WriteHeader(&tar.Header{Name: fmt.Sprintf("file%d", seed), Mode: 0o644, Size: int64(len(body)), Typeflag: tar.TypeReg}),
		second(w.Write(body)), w.Close(), z.Close())
	if err != nil {
		panic(err)
	}
	return c.put(buf.Bytes())
}

func second(_ int, err error) error { return err }

func (c *seamContents) manifest(doc any) *seamImage {
	raw, err := json.Marshal(doc)
	if err != nil {
		panic(err)
	}
	im := &seamImage{digest: c.put(raw), raw: raw}
	c.images[im.digest] = im
	return im
}

func (c *seamContents) describe(d oci.Digest, mediaType string) map[string]any {
	return map[string]any{"mediaType": mediaType, "digest": d, "size": len(c.bytes[d])}
}

func (c *seamContents) image(seed uint64, layers ...oci.Digest) *seamImage {
	conf := c.put(fmt.Appendf(nil, `{"os":"linux","architecture":"amd64","seed":%d,"rootfs":{"type":"layers","diff_ids":[]}}`, seed))
	list := []any{}
	for _, l := range layers {
		list = append(list, c.describe(l, "application/vnd.oci.image.layer.v1.tar+gzip"))
	}
	im := c.manifest(map[string]any{"schemaVersion": 2, "mediaType": oci.MediaTypeOCIManifest,
		"config": c.describe(conf, "application/vnd.oci.image.config.v1+json"), "layers": list})
	im.blobs = append([]oci.Digest{conf}, layers...)
	return im
}

func (c *seamContents) index(children ...*seamImage) *seamImage {
	list := []any{}
	for _, m := range children {
		list = append(list, c.describe(m.digest, oci.MediaTypeOCIManifest))
	}
	im := c.manifest(map[string]any{"schemaVersion": 2, "mediaType": oci.MediaTypeOCIIndex, "manifests": list})
	im.children = children
	return im
}

// all returns the digests of everything an image consists of, including its own.
func (im *seamImage) all() []oci.Digest {
	list := append([]oci.Digest{im.digest}, im.blobs...)
	for _, m := range im.children {
		list = append(list, m.all()...)
	}
	return list
}

// seamRef is a tag of a repository, or the digest of an image that has no tag.
type seamRef struct{ repo, tag string }

// seamOracle records what clients were told. A tag may point at any digest of its set, where ""
// means that the tag does not exist. A set has more than one member only after an operation that
// failed or was killed.
//
// A conversion in the background also reaches steps, which copy the oracle.
type seamOracle struct {
	mu   sync.Mutex
	tags map[seamRef]map[oci.Digest]bool // guarded by mu; only the sequence changes it
	// harmed is set if something other than the registry touched its data, away if its store is not
	// there, full if the store accepts nothing.
	harmed, away, full atomic.Bool
	// freed is set if an index was deleted and nothing brought it back, lost if the catalogue is gone.
	freed, lost atomic.Bool
	// pushed holds the times at which a tag was or may have been set to a digest. Guarded by mu.
	pushed map[seamTag][]time.Time
}

// flags returns what is known beside the tags.
func (o *seamOracle) flags() []*atomic.Bool {
	return []*atomic.Bool{&o.harmed, &o.away, &o.full, &o.freed, &o.lost}
}

// takeFlags takes over the flags of another oracle.
func (o *seamOracle) takeFlags(p *seamOracle) {
	for i, from := range p.flags() {
		o.flags()[i].Store(from.Load())
	}
}

func (o *seamOracle) clone() *seamOracle {
	o.mu.Lock()
	defer o.mu.Unlock()
	copied := &seamOracle{tags: map[seamRef]map[oci.Digest]bool{}, pushed: maps.Clone(o.pushed)}
	for r, set := range o.tags {
		copied.tags[r] = maps.Clone(set)
	}
	copied.takeFlags(o)
	return copied
}

// become takes over the knowledge of another oracle while the background may read this one.
func (o *seamOracle) become(p *seamOracle) {
	o.takeFlags(p)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.tags, o.pushed = p.tags, p.pushed
}

// equal reports whether two oracles hold the same knowledge.
func (o *seamOracle) equal(p *seamOracle) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return maps.EqualFunc(o.tags, p.tags, maps.Equal[map[oci.Digest]bool]) &&
		slices.EqualFunc(o.flags(), p.flags(), func(a, b *atomic.Bool) bool { return a.Load() == b.Load() })
}

// may allows a tag to be set to d from now on, or to be removed if d is "".
func (o *seamOracle) may(repo, tag string, d oci.Digest) {
	o.mu.Lock()
	defer o.mu.Unlock()
	r := seamRef{repo, tag}
	if o.tags[r] == nil {
		o.tags[r] = map[oci.Digest]bool{"": true}
	}
	o.tags[r][d] = true
}

// pushes records that a client pushes a tag now.
func (o *seamOracle) pushes(repo, tag string, d oci.Digest) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.pushed == nil {
		o.pushed = map[seamTag][]time.Time{}
	}
	t := seamTag{seamRef{repo, tag}, d}
	o.pushed[t] = append(slices.Clip(o.pushed[t]), time.Now())
}

// is records that a client was told that a tag is set to d, or removed if d is "".
func (o *seamOracle) is(repo, tag string, d oci.Digest) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.tags[seamRef{repo, tag}] = map[oci.Digest]bool{d: true}
}

// required returns the tags, and images without a tag, that must exist, in a fixed order. Each comes with its digest if that
// is certain, and with "" otherwise.
func (o *seamOracle) required() []seamTag {
	var list []seamTag
	for r, set := range o.tags {
		if set[""] || len(set) != 1 {
			continue
		}
		for d := range set {
			list = append(list, seamTag{r, d})
		}
	}
	slices.SortFunc(list, func(a, b seamTag) int {
		return strings.Compare(a.repo+":"+a.tag, b.repo+":"+b.tag)
	})
	return list
}

type seamTag struct {
	seamRef
	digest oci.Digest
}

// seamMoment is a state in which worlds begin: that of the base, or what a killed process left
// behind.
type seamMoment struct {
	dir    string
	oracle *seamOracle
	now    time.Time
	// had are the contents that had a good copy before the killed operation. It is nil if that
	// operation is meant to destroy something.
	had map[oci.Digest]bool
	// steps led to this state. The last one names the durable step at which it was killed.
	steps []seamStep
	said  []string
	sum   [32]byte // of the files
}

// seamBase is the state that every world copies at its beginning.
type seamBase struct {
	*seamContents
	seamMoment
	// source is a backup to import from, which nothing changes. sourceHas lists its contents.
	source    string
	sourceHas map[oci.Digest]bool
	remote    *seamRemote // the base's; nil on a file system
}

const seamConfig = `version: 0.1
log: {level: error, accesslog: {disabled: true}}
storage:
  retention: [{repositories: ["app"], keep_newest: 3}]
`

// newSeamBase makes a root with some images and a backup of another registry to import from.
func newSeamBase(t testing.TB, remote *seamRemote) *seamBase {
	t.Helper()
	b := &seamBase{seamContents: newSeamContents(), source: filepath.Join(t.TempDir(), "source")}
	b.dir, b.now = t.TempDir(), time.Now().Truncate(time.Hour).Add(2*time.Hour)
	w := &world{seamBase: b, dir: b.dir, o: &seamOracle{tags: map[seamRef]map[oci.Digest]bool{}}, ctx: t.Context()}
	fill := func(do ...error) {
		if err := errors.Join(do...); err != nil {
			t.Fatal(err)
		}
	}
	// The source of imports is a backup, which can be read as a registry.
	fill(w.open(), w.push("app", "multi", b.multi), w.push("lib", "src", b.second),
		second2(w.a.Backup(t.Context(), dataroot.BackupArgs{Dir: b.source}, nil)), w.close())
	has, err := w.copies(b.source)
	fill(err)
	b.sourceHas = has
	w.remote, b.remote, w.cfg = remote, remote, nil
	fill(os.RemoveAll(w.root()), w.open())
	w.o.tags = map[seamRef]map[oci.Digest]bool{}
	fill(w.push("app", "v1", b.first), w.push("app", "v2", b.second), w.push("app", "multi", b.multi))
	for i, s := range b.signatures {
		fill(w.push("app", fmt.Sprintf("sha256-%064d.sig", i), s))
	}
	fill(w.close())
	b.oracle = w.o
	return b
}

func second2[T any](_ T, err error) error { return err }

// world is a registry in a directory of its own, with a backup and a source of imports beside it,
// and the oracle.
type world struct {
	*seamBase
	ctx context.Context
	dir string
	a   *Admin
	o   *seamOracle
	cfg *config.Config
	// remote is where catalogue and contents are. If it is nil, they are in the root.
	remote *seamRemote

	mu    sync.Mutex
	armed bool
	// steps counts the durable steps of the running operation. At step number crash the directory
	// is copied to image and the oracle to then.
	steps, crash int
	then         *seamOracle
	broken       error // the error if an image could not be made
	// If watch is set, moments collects what a process leaves behind if it is killed at a step
	// of the running operation. Equal moments are kept once.
	watch   bool
	moments []*seamMoment
	had     map[oci.Digest]bool
	said    []string
	faults  []error
}

func (w *world) root() string   { return filepath.Join(w.dir, "root") }
func (w *world) backup() string { return filepath.Join(w.dir, "backup") }
func (w *world) image() string  { return w.dir + ".image" }

func (w *world) config() *config.Config {
	if w.cfg != nil {
		return w.cfg
	}
	text := seamConfig
	if w.remote != nil {
		text = w.remote.config()
	}
	cfg, _, err := config.Parse(strings.NewReader(text), &config.Options{Overrides: []config.Override{{Key: "storage.root", Value: w.root()}}})
	if err != nil {
		panic(err)
	}
	w.cfg = cfg
	return cfg
}

var quiet = slog.New(slog.DiscardHandler)

func (w *world) open() error {
	a, err := Open(w.ctx, w.config(), &Options{Create: true, Logger: quiet, wrap: w.wrap})
	if err != nil {
		return fmt.Errorf("open the root: %w", err)
	}
	w.a = a
	return nil
}

func (w *world) close() error {
	if w.a == nil {
		return nil
	}
	a := w.a
	w.a = nil
	return a.Close(w.ctx)
}

// durableOps lists the calls of a store that change what survives a crash.
var durableOps = map[string]bool{objtest.OpPut: true, objtest.OpDelete: true, objtest.OpCommit: true, objtest.OpSuspend: true,
	objtest.OpAbandon: true, objtest.OpAdopt: true, objtest.OpMove: true, objtest.OpNewUpload: true}

// takesRoom lists the calls that fail on a full store.
var takesRoom = map[string]bool{objtest.OpPut: true, objtest.OpCommit: true, objtest.OpWrite: true, objtest.OpNewUpload: true}

func (w *world) wrap(inner objstore.Store) objstore.Store {
	return objtest.Faulty(inner, objtest.Faults{
		Before: func(op, key string) error {
			if durableOps[op] {
				w.step()
			}
			if w.o.full.Load() && takesRoom[op] {
				return fmt.Errorf("%s: %w", op, objstore.ErrNoSpace)
			}
			return nil
		},
		After: func(op, key string) error {
			if durableOps[op] {
				w.step()
			}
			return nil
		},
	})
}

// step marks a moment at which the process may be killed.
func (w *world) step() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.armed {
		return
	}
	if w.steps++; w.steps == w.crash {
		w.then = w.o.clone()
		w.broken = copyTree(w.dir, w.image(), nil)
	}
	if w.watch {
		w.broken = errors.Join(w.broken, w.moment())
	}
}

// moment keeps the present state unless it equals that of the previous step.
func (w *world) moment() error {
	m := &seamMoment{dir: fmt.Sprint(w.dir, ".at", w.steps), oracle: w.o.clone(), now: time.Now(), had: w.had}
	sum := sha256.New()
	if err := copyTree(w.dir, m.dir, sum); err != nil {
		return err
	}
	sum.Sum(m.sum[:0])
	if n := len(w.moments); n > 0 && w.moments[n-1].sum == m.sum && w.moments[n-1].oracle.equal(m.oracle) {
		return os.RemoveAll(m.dir)
	}
	m.steps = []seamStep{{crash: w.steps}}
	w.moments = append(w.moments, m)
	return nil
}

// become replaces the world by its image.
func (w *world) become() error {
	_ = w.close() // the process was killed before
	w.o = w.then
	return errors.Join(w.broken, os.RemoveAll(w.dir), os.Rename(w.image(), w.dir))
}

// kill ends the process like kill -9.
func (w *world) kill() error {
	w.mu.Lock()
	w.armed = false // closing has no steps
	w.mu.Unlock()
	if w.remote != nil {
		return w.die()
	}
	w.then, w.broken = w.o.clone(), copyTree(w.dir, w.image(), nil)
	return errors.Join(w.become(), w.open())
}

// restart stops the process cleanly and starts a new one.
func (w *world) restart() error { return errors.Join(w.close(), w.open()) }

// copyTree copies files unchanged, except those that only a running process needs. It writes their
// names and bytes to sum if sum is not nil.
func copyTree(from, to string, sum io.Writer) error {
	return filepath.WalkDir(from, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		dst := filepath.Join(to, rel)
		switch {
		case e.IsDir():
			return errors.Join(os.MkdirAll(dst, 0o700), copyAttributes(path, dst))
		case e.Type()&fs.ModeSymlink != 0:
			target, err := os.Readlink(path)
			return errors.Join(err, os.Symlink(target, dst))
		case !e.Type().IsRegular() || strings.HasSuffix(path, "-shm"):
			return nil
		}
		if strings.HasSuffix(path, "-reserve") { // only its size counts
			return copySize(e, dst)
		}
		b, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if sum != nil {
			fmt.Fprintf(sum, "%q %d\n", rel, len(b))
			_, _ = sum.Write(b) // a hash never returns an error
		}
		return errors.Join(err, os.WriteFile(dst, b, 0o600), copyAttributes(path, dst))
	})
}

// copyAttributes copies the extended attributes in which an S3 gateway keeps ETags and the owner of
// a bucket.
func copyAttributes(from, to string) error {
	names := make([]byte, 4096)
	n, err := unix.Listxattr(from, names)
	if err != nil || n == 0 {
		return nil // none, or the file system supports none
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names[:n]), "\x00"), "\x00") {
		value := make([]byte, 4096)
		n, err := unix.Getxattr(from, name, value)
		if err == nil && strings.HasPrefix(name, "user.") {
			err = unix.Setxattr(to, name, value[:n], 0)
		}
		if err != nil {
			return fmt.Errorf("copy attribute %s of %s: %w", name, from, err)
		}
	}
	return nil
}

// copySize makes a file of the same size that takes no space.
func copySize(e fs.DirEntry, dst string) error {
	info, err := e.Info()
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(dst, nil, 0o600), os.Truncate(dst, info.Size()))
}

// say records what an operation did, for whoever investigates a failure.
func (w *world) say(format string, args ...any) {
	w.said = append(w.said, fmt.Sprintf(format, args...))
}

// push pushes an image as clients do: it sends only what the registry lacks.
func (w *world) push(repo, tag string, im *seamImage) error {
	return w.pushBy(repo, tag, im, false, func(d oci.Digest, b []byte) error {
		_, err := w.a.reg.PushBlob(w.ctx, repo, d, int64(len(b)), bytes.NewReader(b))
		return err
	})
}

func (w *world) pushBy(repo, tag string, im *seamImage, all bool, blob func(oci.Digest, []byte) error) error {
	for _, m := range im.children {
		if err := w.pushBy(repo, "", m, all, blob); err != nil {
			return err
		}
	}
	for _, d := range im.blobs {
		if !all {
			if _, err := w.a.reg.ResolveBlob(w.ctx, repo, d); err == nil {
				continue
			}
		}
		if err := blob(d, w.bytes[d]); err != nil {
			return fmt.Errorf("push blob %s: %w", d, err)
		}
	}
	m := oci.PutManifest{Bytes: im.raw}
	if tag != "" {
		if !oci.IsDigest(tag) {
			m.Tags = []string{tag}
			w.o.pushes(repo, tag, im.digest)
		}
		w.o.may(repo, tag, im.digest)
	}
	if _, err := w.a.reg.PutManifest(w.ctx, repo, m); err != nil {
		return fmt.Errorf("push manifest %s: %w", im.digest, err)
	}
	if tag != "" {
		w.o.is(repo, tag, im.digest)
	}
	return nil
}

// readEnd reads a blob from one third of its length to the end.
func (w *world) readEnd(repo string, d oci.Digest) ([]byte, error) {
	c, err := w.a.reg.GetBlobRange(w.ctx, repo, d, int64(len(w.bytes[d])/3), -1)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return io.ReadAll(c)
}

// read returns a blob's bytes, by Read or by WriteTo.
func (w *world) read(repo string, d oci.Digest, whole bool) ([]byte, error) {
	c, err := w.a.reg.GetBlob(w.ctx, repo, d)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if wt, ok := c.(io.WriterTo); ok && whole {
		var buf bytes.Buffer
		_, err := wt.WriteTo(&buf)
		return buf.Bytes(), err
	}
	return io.ReadAll(c)
}
