package adopt

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/repair"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/storage"
	"example.org/slipway/registry/verify"
)

// findLayers looks up the blobs of the links collected so far. They are recorded once the
// repository's manifests have shown which sizes the blobs should have.
func (a *adopter) findLayers(ctx context.Context) error {
	digests := a.layers
	a.layers = nil
	known, err := repair.New(a.cat.DB).Presence(ctx, digests)
	if err != nil {
		return err
	}
	found := make([]foundBlob, len(digests))
	err = inParallel(ctx, len(digests), func(ctx context.Context, i int) error {
		found[i].is = known[digests[i]]
		return a.findBlob(ctx, digests[i], &found[i])
	})
	if err != nil {
		return err
	}
	for i, d := range digests {
		f := &found[i]
		if f.reason == "" && a.corrupt[d] {
			f.damage()
		}
		if f.reason != "" {
			if err := a.refuse(ctx, d, f); err != nil {
				return err
			}
			continue
		}
		a.blobs[d] = f
		a.present[d] = true
	}
	return nil
}

// adoptLayers records the found blobs that are correct.
func (a *adopter) adoptLayers(ctx context.Context) error {
	rows := make([]catalog.AdoptRow, 0, min(len(a.blobs), rowsAtOnce))
	for _, d := range slices.Sorted(maps.Keys(a.blobs)) {
		f := a.blobs[d]
		if f.is == repair.Unknown || f.is == repair.Deleting {
			a.rep.Bytes += f.size
		}
		a.rep.Blobs++
		rows = append(rows, catalog.AdoptRow{Repo: a.repo, Blob: &catalog.Blob{Digest: d, Size: f.size}})
		if len(rows) == rowsAtOnce {
			if err := a.record(ctx, rows); err != nil {
				return err
			}
			rows = rows[:0]
		}
	}
	return a.record(ctx, rows)
}

// refuse notes a blob that is not adopted. If the catalogue records the blob as good
// although its bytes are wrong, the blob is no longer served, so that the next push heals
// it.
func (a *adopter) refuse(ctx context.Context, d oci.Digest, f *foundBlob) error {
	a.note(f.reason, d.String(), f.detail)
	delete(a.blobs, d)
	delete(a.present, d)
	if f.reason != Corrupt {
		return nil
	}
	a.corrupt[d] = true
	if _, err := repair.New(a.cat.DB).MarkAbsent(ctx, d, false); err != nil && !errors.Is(err, catalog.ErrNotFound) {
		return err
	}
	return nil
}

// foundBlob is a blob in the storage, or the reason why it is not adopted.
type foundBlob struct {
	is             repair.Presence
	size           int64
	verified       bool
	reason, detail string
}

// damage notes that the blob's bytes are wrong.
func (f *foundBlob) damage() {
	f.reason, f.detail = Corrupt, fmt.Sprintf("the %d bytes of the blob do not have its digest", f.size)
}

func (a *adopter) findBlob(ctx context.Context, d oci.Digest, f *foundBlob) error {
	if f.is == repair.Inline {
		return nil // the catalogue has its bytes
	}
	info, err := a.store.Stat(ctx, storage.BlobKey(d))
	if errors.Is(err, objstore.ErrNotExist) {
		f.reason, f.detail = MissingBlob, "the repository links a blob that is not in the storage"
		return nil
	}
	if err != nil {
		return err
	}
	f.size = info.Size
	if a.o.Verify || f.size == 0 { // a crash leaves empty files
		return a.verifyBlob(ctx, d, f)
	}
	return nil
}

// verifyBlob reads a blob and checks its digest.
func (a *adopter) verifyBlob(ctx context.Context, d oci.Digest, f *foundBlob) error {
	obj, err := a.store.Get(ctx, storage.BlobKey(d), 0, -1)
	if err != nil {
		return err
	}
	defer obj.Close()
	_, match, err := verify.Copy(ctx, nil, obj, d, func(int) {})
	if err == nil && !match {
		f.damage()
	}
	f.verified = true
	return err
}

// checkSizes verifies the blobs whose sizes differ from those in the manifests. The
// manifest may be wrong instead: the client that pushed it wrote the size, and
// Distribution does not check it.
func (a *adopter) checkSizes(ctx context.Context, manifests []foundManifest) error {
	doubtful := map[oci.Digest]*foundBlob{}
	for i := range manifests {
		for _, desc := range manifests[i].doc.Names().Blobs {
			f := a.blobs[desc.Digest]
			if f != nil && !f.verified && f.is != repair.Inline && f.size != desc.Size {
				doubtful[desc.Digest] = f
			}
		}
	}
	digests := slices.Sorted(maps.Keys(doubtful))
	err := inParallel(ctx, len(digests), func(ctx context.Context, i int) error {
		return a.verifyBlob(ctx, digests[i], doubtful[digests[i]])
	})
	if err != nil {
		return err
	}
	for _, d := range digests {
		if f := doubtful[d]; f.reason != "" {
			if err := a.refuse(ctx, d, f); err != nil {
				return err
			}
		}
	}
	return nil
}
