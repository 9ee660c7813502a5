package backup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/repair"
	"example.org/slipway/registry/catalog/snapshot"
	"example.org/slipway/registry/manifest"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/storage"
	"example.org/slipway/registry/verify"
)

// OtherRegistryError says that a directory holds the backup of another registry.
type OtherRegistryError struct {
	// Theirs is the id of the registry to which the backup belongs, or "" if the backup
	// has none. Ours is the id of the registry to be backed up.
	Theirs, Ours string
}

func (e *OtherRegistryError) Error() string {
	theirs := "registry " + e.Theirs
	if e.Theirs == "" {
		theirs = "a registry with which this one shares no image"
	}
	return fmt.Sprintf("it holds a backup of %s, and this is registry %s; give another directory, or replace that backup for good with --replace-other", theirs, e.Ours)
}

// ShrinkError says that a backup would hold far less than the earlier one does.
type ShrinkError struct {
	// Before and Now count the manifests, the contents and the tags of the two backups.
	Before, Now snapshot.Totals
}

func (e *ShrinkError) Error() string {
	return fmt.Sprintf("the registry has %d manifests, %d blobs and %d tags, the earlier backup %d, %d and %d; if the registry has lost them, restore that backup; if they were deleted on purpose, back up with --allow-shrink",
		e.Now.Manifests, e.Now.Blobs, e.Now.Tags, e.Before.Manifests, e.Before.Blobs, e.Before.Tags)
}

// IncompleteError says that images lack contents without a good copy.
type IncompleteError struct {
	What   string   // "backup"
	Images []string // at most 1000
	Total  int64
}

func (e *IncompleteError) Error() string {
	const most = 10
	names := strings.Join(e.Images[:min(len(e.Images), most)], ", ")
	if e.Total > most {
		names += fmt.Sprintf(" and %d more", e.Total-most)
	}
	return fmt.Sprintf("%d images in the %s are incomplete, because contents are damaged or missing: %s", e.Total, e.What, names)
}

// incomplete returns an [*IncompleteError] if images is not empty.
func incomplete(what string, images []string, total int64) error {
	if total == 0 {
		return nil
	}
	return &IncompleteError{what, images, total}
}

// earlierCatalog returns the path of the earlier backup's catalogue. It returns "" if
// there is none, or if it cannot be used and replace is set.
func earlierCatalog(ctx context.Context, dir string, replace bool) (string, error) {
	path := filepath.Join(dir, registry.CatalogFile)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return "", nil
	} else if err != nil {
		return "", err
	}
	if err := checkCatalog(ctx, path); err != nil {
		if replace {
			return "", nil
		}
		return "", fmt.Errorf("the catalogue of the earlier backup cannot be used, so nobody can tell what that holds: %w; give another directory, or replace that backup for good with --replace-other", err)
	}
	return path, nil
}

// checkCatalog refuses a backup's catalogue that is damaged or was made by a newer program. It
// changes nothing.
func checkCatalog(ctx context.Context, path string) error {
	return withSnapshot(ctx, path, func(s *snapshot.Snapshot) error {
		complaints, err := s.Integrity(ctx, false, 1)
		if err == nil && len(complaints) > 0 {
			err = fmt.Errorf("it is damaged: %s", complaints[0])
		}
		if err != nil {
			return err
		}
		return s.CheckSchema(ctx)
	})
}

// checkReplaces returns an error if a draft must not replace the earlier backup, because
// that backup belongs to another registry or holds far more.
func checkReplaces(ctx context.Context, d *snapshot.Draft, before string, o Options) error {
	return withSnapshot(ctx, before, func(old *snapshot.Snapshot) error {
		theirs, _, err := old.Identity(ctx)
		if err != nil {
			return err
		}
		was, err := old.Totals(ctx)
		if err != nil {
			return err
		}
		now, err := d.Totals(ctx)
		if err != nil {
			return err
		}
		if !o.ReplaceOther {
			ours, continues, err := d.Identity(ctx)
			if err != nil {
				return err
			}
			same := theirs == ours || theirs == continues
			if theirs == "" {
				same, err = d.SharesManifest(ctx)
				same = same || was.Manifests == 0
			}
			if err != nil {
				return err
			}
			if !same {
				return &OtherRegistryError{Theirs: theirs, Ours: ours}
			}
		}
		if !o.AllowShrink && !o.ReplaceOther && (shrunk(was.Manifests, now.Manifests) || shrunk(was.Blobs, now.Blobs) || shrunk(was.Tags, now.Tags)) {
			return &ShrinkError{Before: was, Now: now}
		}
		return nil
	})
}

// shrunk reports whether a count fell so far that a loss is a better explanation than
// deletions. That is so if it fell to zero, or if it fell to less than half and by at
// least five.
func shrunk(was, now int64) bool {
	return was > 0 && now == 0 || was-now >= 5 && now < was/2
}

// keepGood looks for good copies of what the registry has lost. It looks in the objects
// and in the catalogue of the earlier backup. It records contents without a good copy as
// missing, and the images that need them as incomplete.
func (b *maker) keepGood(ctx context.Context, d *snapshot.Draft) error {
	looked := map[oci.Digest]bool{}
	for _, c := range b.t.lost {
		looked[c.Digest] = true
		kept, err := b.t.keepOld(ctx, d, c)
		if err == nil && !kept {
			b.t.damaged(c.Digest)
			err = d.Lose(ctx, c.Digest)
		}
		if err != nil {
			return fmt.Errorf("look for a good copy of %s: %w", c.Digest, err)
		}
	}
	const page = 500
	for after := int64(0); ; {
		list, err := d.Lost(ctx, after, page)
		if err != nil {
			return fmt.Errorf("list the contents that are not here: %w", err)
		}
		for _, c := range list {
			after = c.ID
			if looked[c.Digest] {
				continue
			}
			if _, err := b.t.keepOld(ctx, d, c); err != nil {
				return fmt.Errorf("look for a good copy of %s: %w", c.Digest, err)
			}
		}
		if len(list) < page {
			break
		}
	}
	images, err := b.incompleteImages(ctx, d)
	if err != nil {
		return fmt.Errorf("look for incomplete images: %w", err)
	}
	b.t.step(func(rep *Report) {
		rep.Incomplete, rep.IncompleteTotal = images[:min(len(images), maxListed)], int64(len(images))
	})
	return d.SetIncomplete(ctx, b.t.rep.Incomplete)
}

// keepOld keeps the earlier backup's copy of a content, if there is a good copy.
func (t *transfer) keepOld(ctx context.Context, d *snapshot.Draft, c repair.StoredContent) (kept bool, err error) {
	if !oci.ValidDigest(c.Digest) {
		return false, nil
	}
	content, err := d.Before(ctx, c.Digest)
	switch {
	case err == nil && c.Digest.Algorithm().FromBytes(content) == c.Digest:
		c.Size, kept = int64(len(content)), true
	case err != nil && !errors.Is(err, catalog.ErrNotFound):
		return false, err
	default:
		content = nil
		if c.Size, kept, err = t.good(ctx, c.Digest); err != nil || !kept {
			return false, err
		}
	}
	if err := d.Keep(ctx, c.Digest, content, c.Size); err != nil {
		return false, err
	}
	if err := showKept(ctx, d, c.Digest); err != nil {
		return false, err
	}
	t.step(func(rep *Report) { rep.Kept++ })
	return true, nil
}

// showKept shows a content in every repository with a manifest that needs it, because the
// image may be newer than the earlier backup.
func showKept(ctx context.Context, d *snapshot.Draft, digest oci.Digest) error {
	rows, err := d.NamedBy(ctx, digest)
	if err != nil {
		return err
	}
	for _, m := range rows {
		if needed, err := needs(ctx, d.Snapshot, snapshot.Gap{Manifest: m, Digest: digest}); err != nil {
			return err
		} else if !needed {
			continue
		}
		if err := d.Link(ctx, m, digest); err != nil {
			return err
		}
	}
	return nil
}

// good reports whether the destination has the object of a content with the right digest, and
// returns its size.
func (t *transfer) good(ctx context.Context, d oci.Digest) (size int64, good bool, err error) {
	obj, err := t.dst.Get(ctx, storage.BlobKey(d), 0, -1)
	if errors.Is(err, objstore.ErrNotExist) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	defer obj.Close()
	size, good, err = verify.Copy(ctx, nil, obj, d, func(int) {})
	var unreadable *verify.ReadError
	if errors.As(err, &unreadable) && ctx.Err() == nil {
		return 0, false, nil
	}
	return size, good, err
}

// incompleteImages returns the images of the draft that lack something that a pull needs.
func (b *maker) incompleteImages(ctx context.Context, d *snapshot.Draft) ([]string, error) {
	const page = 100
	images := map[string]bool{}
	lacking := map[oci.Digest]bool{}
	for after := int64(0); ; {
		gaps, err := d.Gaps(ctx, after, page)
		if err != nil || len(gaps) == 0 {
			return slices.Sorted(maps.Keys(images)), err
		}
		for _, g := range gaps {
			after = g.Manifest.ID
			if lacking[g.Digest] || b.up.Partial(g.Manifest.Repo) {
				continue
			}
			needed, err := needs(ctx, d.Snapshot, g)
			if err != nil {
				return nil, err
			}
			if !needed {
				continue
			}
			lacking[g.Digest] = true
			uses, err := d.Uses(ctx, g.Digest, maxListed)
			if err != nil {
				return nil, err
			}
			for _, u := range uses {
				if !b.up.Partial(u.Repo) {
					images[u.String()] = true
				}
			}
		}
	}
}

// needs reports whether a manifest cannot be pulled without a content that it names. It can be
// pulled without foreign layers, and without platforms of an index, which are checked separately.
func needs(ctx context.Context, s *snapshot.Snapshot, g snapshot.Gap) (bool, error) {
	if g.Digest == g.Manifest.Digest {
		return true, nil
	}
	content, err := s.Inline(ctx, g.Manifest.Digest)
	if errors.Is(err, catalog.ErrNotFound) {
		return false, nil // the manifest itself is missing
	}
	if err != nil {
		return false, err
	}
	doc, err := manifest.Parse(content, g.Manifest.MediaType)
	if err != nil {
		return true, nil // what it needs is unknown
	}
	return manifest.Has(doc.Names().Blobs, g.Digest), nil
}

// RegistryOf returns the id of the registry whose backup is in dir. It returns "" if the
// backup was made before registries had ids.
func RegistryOf(ctx context.Context, dir string) (id string, err error) {
	err = withSnapshot(ctx, filepath.Join(dir, registry.CatalogFile), func(s *snapshot.Snapshot) (err error) {
		id, _, err = s.Identity(ctx)
		return err
	})
	return id, err
}
