package admin

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry"
)

// seamLossOps returns the operations with which a restore is tested beside those of seamOps. They
// are separate so that the number of sequences of seamOps does not grow.
func seamLossOps() []seamOp {
	return []seamOp{
		{"push-loose", pushLoose, (*world).looseReadable, false},
		{"delete-loose", deleteLoose, nil, false},
		{"lose-catalogue", loseCatalogue, nil, true},
	}
}

// pushLoose pushes an index without a tag, which clients then name by its digest.
func pushLoose(w *world) error { return w.push("app", string(w.loose.digest), w.loose) }

func (w *world) looseReadable() error { return w.pull("app", "", w.loose.digest) }

func deleteLoose(w *world) error {
	d := w.loose.digest
	w.o.may("app", string(d), "")
	err := w.a.reg.DeleteManifest(w.ctx, "app", d)
	if err == nil || oci.HasCode(err, oci.CodeManifestUnknown) {
		w.o.is("app", string(d), "")
	}
	return err
}

// loseCatalogue removes the catalogue, and leaves the store as it is. A shared one is replaced by
// one that is new.
func loseCatalogue(w *world) error {
	if w.o.lost.Load() {
		return errNothing
	}
	if err := w.close(); err != nil {
		return err
	}
	w.o.harmed.Store(true)
	w.o.lost.Store(true)
	if w.remote != nil {
		db, err := w.catalogue()
		if err != nil {
			return err
		}
		_, err = db.Exec(`DO $do$
			BEGIN
				EXECUTE (SELECT 'TRUNCATE ' || string_agg(quote_ident(relname), ', ') FROM pg_class WHERE relnamespace = 'public'::regnamespace
					AND relkind = 'r' AND relname <> 'settings' AND relname NOT LIKE 'goose%');
				DELETE FROM settings WHERE name <> 'min_reader';
			END $do$`)
		return errors.Join(err, db.Close())
	}
	files, err := filepath.Glob(filepath.Join(w.root(), registry.CatalogFile+"*"))
	for _, file := range files {
		err = errors.Join(err, os.Remove(file))
	}
	return err
}

// asBackedUp records that everything is as the backup says. What came later is lost with the
// catalogue.
func (w *world) asBackedUp() error {
	tags, err := w.tagsOf(w.backup())
	for r := range w.o.tags {
		if !slices.ContainsFunc(tags, func(t seamTag) bool { return t.seamRef == r }) {
			w.o.may(r.repo, r.tag, "")
		}
	}
	return err
}

// recoverCatalogue restores the backup, also where the backup says that images in it are incomplete.
func (w *world) recoverCatalogue() error {
	err := restoreOp(w)
	if err == nil || errors.Is(err, errNothing) {
		return err
	}
	w.say("restore: %v", err)
	if err := w.close(); err != nil {
		return err
	}
	if _, err = Restore(w.ctx, w.config(), w.backup(), RestoreOptions{Logger: quiet, AllowDamaged: true}); err != nil {
		return err
	}
	w.o.lost.Store(false)
	return w.open()
}

// tagTimes checks that each tag has a time at which a client pushed it. Retention goes by these
// times, so a restored tag must not be newer than it was. With a remote catalogue the clock is
// the database's, so nothing is checked.
func (w *world) tagTimes() error {
	if w.remote != nil || w.o.lost.Load() || w.o.away.Load() {
		return nil
	}
	tags, err := w.a.local.Catalog.Retention.Infos(w.ctx, "app", nil)
	if err != nil {
		return err
	}
	for _, t := range tags {
		times := w.o.pushed[seamTag{seamRef{"app", t.Name}, t.Digest}]
		if len(times) > 0 && !slices.ContainsFunc(times, func(at time.Time) bool { return t.Updated.Sub(at).Abs() < time.Minute }) {
			return fmt.Errorf("app:%s has the time %s, and was pushed at %s", t.Name, t.Updated, times)
		}
	}
	return nil
}

// lossSequences are the sequences in which a backup is made, something happens, and the backup is
// restored.
func lossSequences() (list []string) {
	var names []string
	for _, op := range append(seamOps(), seamLossOps()...) {
		names = append(names, op.name)
	}
	for _, before := range []string{"", "push-loose,", "retag,"} {
		for _, after := range names {
			list = append(list, before+"backup,"+after+",restore")
		}
	}
	for _, after := range names {
		list = append(list, "push-loose,backup,lose-catalogue,"+after+",restore", "lose-catalogue,"+after)
	}
	return append(list, "backup,delete-tag,restore,retention", "push-loose,backup,delete-loose,gc,restore",
		"backup,lose-catalogue,restore,backup,lose-catalogue,restore", "push-loose,backup,delete-loose,lose-catalogue,restore,restore")
}

// TestSeamsOfLoss runs sequences in which a backup has to bring something back: images without a
// tag, the times of tags, and a lost catalogue. The last operation is also killed at each of its
// durable steps.
func TestSeamsOfLoss(t *testing.T) {
	t.Parallel()
	k := newSeamWalk(t, nil)
	k.readShard(t)
	t.Run("sequences", func(t *testing.T) {
		for i, text := range lossSequences() {
			if i%k.shards != k.shard || testing.Short() && i%4 != 0 {
				continue
			}
			t.Run(text, func(t *testing.T) {
				t.Parallel()
				steps, err := parseSequence(text)
				if err != nil {
					t.Fatal(err)
				}
				k.step(t, &k.base.seamMoment, steps, 1, true)
			})
		}
	})
	k.summary(t)
}
