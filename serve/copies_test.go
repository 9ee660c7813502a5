package serve_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"example.org/slipway/config"
	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/backup"
	"example.org/slipway/serve/admin"
	"example.org/slipway/serve/dataroot"
)

var copiesSeeds = flag.Int("copies.seeds", 6, "random runs of TestLastGoodCopy")

// TestLastGoodCopy damages a registry and its backup at random and runs maintenance commands in
// between. The oracle looks into the files. As long as each content of an image has a good copy in
// either place, no command may remove the last one, the documented commands restore the image, and
// no command reports that all is well before that.
func TestLastGoodCopy(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	for seed := range *copiesSeeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			newCopies(t, uint64(seed)).run(40)
		})
	}
}

// stored is a pushed image: the bytes of its contents by digest.
type stored map[oci.Digest][]byte

// copies is one run.
type copies struct {
	t            *testing.T
	rnd          *rand.Rand
	cfg          *config.Config
	root, backup string
	n            int
	live, saved  map[string]stored // the images of the registry and of the latest backup, by tag
	log          []string
}

func newCopies(t *testing.T, seed uint64) *copies {
	c := &copies{t: t, rnd: rand.New(rand.NewPCG(seed, 24)), root: t.TempDir(), backup: filepath.Join(t.TempDir(), "backup"),
		live: map[string]stored{}, saved: map[string]stored{}}
	c.cfg = configure(t, setup{root: c.root})
	return c
}

func (c *copies) run(steps int) {
	c.push()
	for range steps {
		if c.t.Failed() {
			c.t.Logf("steps: %q", c.log)
			return
		}
		before := c.recoverable()
		harmless := true
		switch c.rnd.IntN(10) {
		case 0, 1:
			c.push()
		case 2:
			c.delete()
			harmless = false // that is what it is for
		case 3, 4:
			c.damage(c.root)
			harmless = false
		case 5:
			c.damage(c.backup)
			harmless = false
		case 6:
			c.fsck(nil)
		case 7:
			c.makeBackup()
		case 8:
			c.restore()
		case 9:
			c.fsck(&dataroot.FsckSource{Backup: c.backup})
		}
		if !harmless {
			continue
		}
		after := c.recoverable()
		for tag := range before {
			_, kept := c.live[tag]
			if _, saved := c.saved[tag]; (kept || saved) && !after[tag] {
				c.t.Errorf("image %s has lost its last good copy", tag)
			}
		}
	}
	c.end()
	if c.t.Failed() {
		c.t.Logf("steps: %q", c.log)
	}
}

// end wants each image to be restored if every content of the image has a good copy.
func (c *copies) end() {
	want := c.recoverable()
	if len(c.saved) > 0 {
		c.fsck(&dataroot.FsckSource{Backup: c.backup})
	}
	reg, done := c.admin()
	defer done()
	for tag := range want {
		if _, ok := c.live[tag]; !ok {
			continue // the image was deleted, and only the backup has it
		}
		if err := pulls(c.t.Context(), reg.Registry(), tag, c.live[tag]); err != nil {
			c.t.Errorf("image %s has good copies and does not come back: %v", tag, err)
		}
	}
}

func (c *copies) did(format string, args ...any) { c.log = append(c.log, fmt.Sprintf(format, args...)) }

func (c *copies) admin() (*admin.Admin, func()) {
	a, err := admin.Open(c.t.Context(), c.cfg, &admin.Options{Create: true, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		c.t.Fatalf("%v; steps: %q", err, c.log)
	}
	return a, func() {
		if err := a.Close(context.Background()); err != nil {
			c.t.Error(err)
		}
	}
}

// push pushes an image with a small and a large layer. Images share some of the layers.
func (c *copies) push() {
	a, done := c.admin()
	defer done()
	c.n++
	tag := fmt.Sprintf("t%d", c.n)
	im := stored{}
	doc := struct {
		SchemaVersion int              `json:"schemaVersion"`
		MediaType     string           `json:"mediaType"`
		Config        oci.Descriptor   `json:"config"`
		Layers        []oci.Descriptor `json:"layers"`
	}{SchemaVersion: 2, MediaType: oci.MediaTypeOCIManifest}
	put := func(b []byte) oci.Descriptor {
		d := oci.SHA256(b)
		im[d] = b
		if _, err := a.Registry().PushBlob(c.t.Context(), "app", d, int64(len(b)), bytes.NewReader(b)); err != nil {
			c.t.Fatalf("push: %v; steps: %q", err, c.log)
		}
		return oci.Descriptor{MediaType: "application/octet-stream", Digest: d, Size: int64(len(b))}
	}
	doc.Config = put([]byte(fmt.Sprintf(`{"n":%d}`, c.n)))
	doc.Layers = []oci.Descriptor{put(bytes.Repeat([]byte{byte(c.rnd.IntN(4))}, 500)), put(bytes.Repeat([]byte{byte(c.n), byte(c.n >> 8)}, 15_000))}
	if shared := c.rnd.IntN(3); shared > 0 {
		doc.Layers = append(doc.Layers, put(bytes.Repeat([]byte{byte(shared)}, 40_000)))
	}
	raw, err := json.Marshal(doc)
	if err != nil {
		c.t.Fatal(err)
	}
	res, err := a.Registry().PutManifest(c.t.Context(), "app", oci.PutManifest{Bytes: raw, Tags: []string{tag}})
	if err != nil {
		c.did("push %s: %v", tag, err) // one of its contents is damaged, and the registry said so
		return
	}
	im[res.Descriptor.Digest] = raw
	c.live[tag] = im
	c.did("push %s", tag)
}

func (c *copies) delete() {
	if len(c.live) < 2 {
		return
	}
	tag := slices.Sorted(maps.Keys(c.live))[c.rnd.IntN(len(c.live))]
	a, done := c.admin()
	defer done()
	for d, b := range c.live[tag] {
		if bytes.Contains(b, []byte(`"layers"`)) {
			if err := a.Registry().DeleteManifest(c.t.Context(), "app", d); err != nil && !oci.HasCode(err, oci.CodeManifestUnknown) {
				c.t.Errorf("delete: %v", err)
			} else if err != nil {
				c.did("delete %s: %v", tag, err)
				return
			}
		}
	}
	if _, err := a.Collect(c.t.Context(), dataroot.GCArgs{Now: true}, nil); err != nil {
		c.t.Errorf("collect: %v", err)
	}
	delete(c.live, tag)
	c.did("delete %s", tag)
}

// damage removes, truncates or flips an object, or flips bytes in the catalogue.
func (c *copies) damage(dir string) {
	objects, err := filepath.Glob(filepath.Join(dir, "docker/registry/v2/blobs/sha256/*/*/data"))
	if err != nil || len(objects) == 0 {
		return
	}
	path := objects[c.rnd.IntN(len(objects))]
	what := ""
	switch c.rnd.IntN(4) {
	case 0:
		what, err = "remove", os.Remove(path)
	case 1:
		what, err = "cut", rewrite(path, func(b []byte) []byte { return b[:len(b)/2] })
	case 2:
		what, err = "flip", rewrite(path, func(b []byte) []byte { b[len(b)/3] ^= 1; return b })
	case 3:
		what, path = "flip inline", filepath.Join(dir, registry.CatalogFile)
		err = execute(path, `UPDATE blobs SET content = zeroblob(length(content)) WHERE id = (SELECT id FROM blobs WHERE content IS NOT NULL AND state = 1 ORDER BY id LIMIT 1 OFFSET ?)`, c.rnd.IntN(4*c.n))
	}
	if err != nil {
		c.t.Fatal(err)
	}
	c.did("%s %s", what, path[len(dir)-4:])
}

// rewrite replaces a file by a new one, because the old one may have other names.
func rewrite(path string, change func([]byte) []byte) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if len(b) > 0 {
		b = change(b)
	}
	return errors.Join(os.Remove(path), os.WriteFile(path, b, 0o600))
}

func execute(path, statement string, args ...any) error {
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=journal_mode(DELETE)")
	if err != nil {
		return err
	}
	db.SetMaxOpenConns(1)
	_, err = db.Exec(statement, args...)
	return errors.Join(err, db.Close())
}

func (c *copies) fsck(from *dataroot.FsckSource) {
	if from != nil && len(c.saved) == 0 {
		return
	}
	a, done := c.admin()
	defer done()
	rep, err := a.Fsck(c.t.Context(), dataroot.FsckArgs{Repair: true, From: from}, nil)
	c.did("fsck from %v: clean %v, %v, %v", from != nil, rep.Clean(), rep.Counts, err)
	if err != nil {
		c.t.Errorf("fsck: %v", err)
	} else if rep.Clean() {
		c.whole("a clean fsck --repair", a.Registry(), c.live)
	}
}

func (c *copies) makeBackup() {
	a, done := c.admin()
	rep, err := a.Backup(c.t.Context(), dataroot.BackupArgs{Dir: c.backup, Verify: true, AllowShrink: true}, nil)
	done()
	c.did("backup: %d kept, %d incomplete, %v", rep.Kept, rep.IncompleteTotal, err)
	var lacks *backup.IncompleteError
	if err != nil && !errors.As(err, &lacks) {
		c.t.Errorf("backup: %v", err)
		return
	}
	c.saved = maps.Clone(c.live)
	r, closeBackup, openErr := backup.Open(c.t.Context(), c.backup, slog.New(slog.DiscardHandler))
	if openErr != nil {
		c.t.Fatal(openErr)
	}
	if err == nil {
		c.whole("a backup without complaint", r, c.saved)
	} else {
		for tag, im := range c.saved {
			named := slices.Contains(lacks.Images, "app:"+tag)
			if err := pulls(c.t.Context(), r, tag, im); (err != nil) != named {
				c.t.Errorf("image %s in the backup: %v; named as incomplete: %v", tag, err, named)
			}
		}
	}
	if err := closeBackup(c.t.Context()); err != nil {
		c.t.Error(err)
	}
}

func (c *copies) restore() {
	if len(c.saved) == 0 {
		return
	}
	rep, err := admin.Restore(c.t.Context(), c.cfg, c.backup, admin.RestoreOptions{Logger: slog.New(slog.DiscardHandler)})
	c.did("restore: %+v, %v", rep.Copied, err)
	a, done := c.admin()
	defer done()
	if err == nil {
		c.whole("a restore without complaint", a.Registry(), c.saved)
	}
	for tag, im := range c.saved { // deleted images are back
		if _, err := a.Registry().ResolveManifest(c.t.Context(), "app", tag); err == nil {
			c.live[tag] = im
		}
	}
}

func (c *copies) whole(after string, r oci.Reader, images map[string]stored) {
	for tag, im := range images {
		if err := pulls(c.t.Context(), r, tag, im); err != nil {
			c.t.Errorf("after %s image %s cannot be pulled: %v", after, tag, err)
		}
	}
}

// pulls returns an error unless an image can be pulled with the right bytes.
func pulls(ctx context.Context, r oci.Reader, tag string, im stored) error {
	m, err := r.GetManifest(ctx, "app", tag)
	if err != nil {
		return err
	}
	if want, ok := im[m.Digest]; !ok || !bytes.Equal(m.Bytes, want) {
		return errors.New("it is another manifest")
	}
	for d, want := range im {
		if d == m.Digest {
			continue
		}
		blob, err := r.GetBlob(ctx, "app", d)
		if err != nil {
			return err
		}
		b, err := io.ReadAll(blob)
		if err = errors.Join(err, blob.Close()); err != nil {
			return err
		}
		if !bytes.Equal(b, want) {
			return fmt.Errorf("blob %s has other bytes", d)
		}
	}
	return nil
}

// recoverable returns the images of which every content has a good copy in the files.
func (c *copies) recoverable() map[string]bool {
	good := map[oci.Digest]bool{}
	for _, dir := range []string{c.root, c.backup} {
		objects, err := filepath.Glob(filepath.Join(dir, "docker/registry/v2/blobs/sha256/*/*/data"))
		if err != nil {
			c.t.Fatal(err)
		}
		for _, path := range objects {
			b, err := os.ReadFile(path)
			if err != nil {
				c.t.Fatal(err)
			}
			if d := oci.SHA256(b); d.Encoded() == filepath.Base(filepath.Dir(path)) {
				good[d] = true
			}
		}
		path := filepath.Join(dir, registry.CatalogFile)
		if _, err := os.Stat(path); err == nil {
			c.inlineGood(path, good)
		}
	}
	out := map[string]bool{}
	for _, images := range []map[string]stored{c.live, c.saved} {
		for tag, im := range images {
			all := true
			for d := range im {
				all = all && good[d]
			}
			if all {
				out[tag] = true
			}
		}
	}
	return out
}

func (c *copies) inlineGood(path string, good map[oci.Digest]bool) {
	db, err := sql.Open("sqlite", "file:"+path+"?mode=ro")
	if err != nil {
		c.t.Fatal(err)
	}
	defer db.Close()
	rows, err := db.Query(`SELECT content FROM blobs WHERE state = 1 AND content IS NOT NULL`)
	if err != nil {
		c.t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var b []byte
		if err := rows.Scan(&b); err != nil {
			c.t.Fatal(err)
		}
		good[oci.SHA256(b)] = true
	}
	if err := rows.Err(); err != nil {
		c.t.Fatal(err)
	}
}
