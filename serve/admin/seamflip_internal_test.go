package admin

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/backup"
)

// fileKind returns the kind of a world's file by its path, or "".
func fileKind(path string) string {
	switch {
	case strings.HasSuffix(path, registry.LockFile), strings.HasSuffix(path, ".sock"):
		return ""
	case strings.Contains(path, "/backup/") && strings.HasSuffix(path, registry.CatalogFile):
		return "backup's catalogue"
	case strings.HasSuffix(path, backup.Marker):
		return "backup's marker"
	case strings.Contains(path, "/backup/"):
		return "backup's object"
	case strings.HasSuffix(path, "-wal"):
		return "log"
	case strings.HasSuffix(path, registry.CatalogFile):
		return "catalogue"
	case strings.HasSuffix(path, "/data"):
		return "blob"
	}
	return filepath.Base(filepath.Dir(path)) // packs, indexes, records
}

// flippable returns the files of a world by kind.
func flippable(t *testing.T, dir string) map[string][]string {
	t.Helper()
	kinds := map[string][]string{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		info, err := e.Info()
		if kind := fileKind(path); kind != "" && err == nil && info.Size() > 0 {
			rel, _ := filepath.Rel(dir, path) // walked from dir
			kinds[kind] = append(kinds[kind], rel)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return kinds
}

// TestFlippedBits flips a bit in a file of each kind. The registry was converted and backed up, and
// killed while its log was not empty. Nothing wrong may be served. What cannot be served must be
// noticed. The next maintenance command must lose nothing else, whichever it is.
func TestFlippedBits(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	base := newSeamBase(t, nil)
	dir := worldsDir(t)
	worn := filepath.Join(dir, "worn")
	known := wear(t, base, worn)
	kinds := flippable(t, worn)
	for _, kind := range []string{"catalogue", "log", "blob", "packs", "backup's catalogue", "backup's object", "backup's marker"} {
		if len(kinds[kind]) == 0 {
			t.Errorf("the world has no file of the kind %q; it has %v", kind, kinds)
		}
	}
	seed := uint64(seamNumber(t, "SLIPWAY_SEAMS_SEED", 1))
	for kind, files := range kinds {
		t.Run(strings.ReplaceAll(kind, " ", "_"), func(t *testing.T) {
			for i := range seamNumber(t, "SLIPWAY_FLIPS", 6) {
				rng := rand.New(rand.NewPCG(seed, uint64(i)))
				to, file := filepath.Join(dir, fmt.Sprint("flip", i)), files[rng.IntN(len(files))]
				inWorld(t, base, worn, to, known, func(w *world) {
					hit, bit, err := w.flip(filepath.Join(to, file), rng)
					if err != nil {
						t.Fatal(err)
					}
					if err := w.flipped(hit, maintenance(rng)); err != nil {
						t.Errorf("round %d, bit %d of %s: %v\n\t%s", i, bit, file, err, strings.Join(w.said, "\n\t"))
					}
				})
				if err := os.RemoveAll(to); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// inWorld calls do with a copy of a world's directory and a clock of its own.
func inWorld(t *testing.T, base *seamBase, from, to string, o *seamOracle, do func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(base.now))
		w := &world{seamBase: base, ctx: t.Context(), dir: to, o: o.clone()}
		if err := copyTree(from, to, nil); err != nil {
			t.Fatal(err)
		}
		do(w)
		_ = w.close() // closing a damaged one may fail
	})
}

// wear makes a world with every kind of file, as a killed process leaves it.
func wear(t *testing.T, base *seamBase, worn string) *seamOracle {
	t.Helper()
	var known *seamOracle
	inWorld(t, base, base.dir, worn, base.oracle, func(w *world) {
		steps, err := parseSequence("push,convert,backup,push-chunked,kill,retag")
		if err == nil {
			err = w.open()
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range steps {
			if opErr, err := w.do(s); opErr != nil || err != nil {
				t.Fatalf("%s: %v, %v", s, opErr, err)
			}
		}
		known = w.o
		if err := copyTree(w.dir, w.image(), nil); err != nil {
			t.Fatal(err)
		}
	})
	if err := errors.Join(os.RemoveAll(worn), os.Rename(worn+".image", worn)); err != nil {
		t.Fatal(err)
	}
	return known
}

// maintenance chooses the next two commands.
func maintenance(rng *rand.Rand) []seamOp {
	var list []seamOp
	for _, op := range seamOps() {
		switch op.name {
		case "repair", "heal", "gc", "backup", "restore", "import", "settle", "fsck":
			list = append(list, op)
		}
	}
	rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list[:2]
}

// flip flips a bit of a file. It returns the contents that lost a good copy by it. The rows of a
// catalogue cannot be told apart any more.
func (w *world) flip(path string, rng *rand.Rand) (lost map[oci.Digest]bool, bit int, err error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, 0, err
	}
	lost = map[oci.Digest]bool{}
	had := w.ownCopies()
	bit = rng.IntN(8 * len(b))
	b[bit/8] ^= 1 << (bit % 8)
	if err := os.WriteFile(path, b, 0o600); err != nil || strings.Contains(path, registry.CatalogFile) {
		return lost, bit, err
	}
	has := w.ownCopies()
	for d := range had {
		lost[d] = !has[d]
	}
	return lost, bit, nil
}

// flipped judges a world in which one bit was flipped.
func (w *world) flipped(hit map[oci.Digest]bool, next []seamOp) error {
	if err := w.open(); err != nil {
		w.say("open: %v", err)
		return nil // noticed
	}
	w.o.harmed.Store(true)
	if err := w.served(); err != nil {
		return err
	}
	unreadable := w.allReadable()
	w.say("readable: %v", unreadable)
	if err := fsckOp(false)(w); err == nil && unreadable != nil {
		return fmt.Errorf("fsck finds nothing, and %w", unreadable)
	} else if err != nil {
		w.say("fsck: %v", err)
	}
	had := w.ownCopies()
	for _, op := range next {
		w.say("%s: %v", op.name, op.run(w))
		if w.a == nil {
			return fmt.Errorf("%s left nothing that opens", op.name)
		}
	}
	if err := w.served(); err != nil {
		return err
	}
	has := w.ownCopies()
	for _, t := range w.o.required() {
		for _, d := range w.images[t.digest].all() {
			if had[d] && !has[d] && !hit[d] {
				return fmt.Errorf("the last good copy of %s of %s:%s is gone", d, t.repo, t.tag)
			}
		}
	}
	return nil
}
