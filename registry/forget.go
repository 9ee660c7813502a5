package registry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/replica"
	"example.org/slipway/registry/storage"
)

// ForgetOptions are the options of [Registry.Forget]. The zero value works.
type ForgetOptions struct {
	// UsedBefore, unless zero, spares images that arrived or were pulled at that time or
	// later. Somebody may have begun to pull an image since it was chosen.
	UsedBefore time.Time
}

// Forgotten counts what was removed from mirrored repositories.
type Forgotten struct {
	// Manifests and Blobs count what their repository no longer shows.
	Manifests int `json:"manifests"`
	Blobs     int `json:"blobs"`
	// Contents counts the contents that no repository shows any more, and Bytes is their
	// size.
	Contents int   `json:"contents"`
	Bytes    int64 `json:"bytes"`
	// Later says that the next collection frees some of the bytes.
	Later bool `json:"later,omitempty"`
}

// Add adds what another call removed.
func (f *Forgotten) Add(o Forgotten) {
	f.Manifests += o.Manifests
	f.Blobs += o.Blobs
	f.Contents += o.Contents
	f.Bytes += o.Bytes
	f.Later = f.Later || o.Later
}

const (
	// forgetStep is how many images one change of the catalogue removes.
	forgetStep = 16
	// forgetPatience is how long Forget waits for a collection or backup to end. After
	// that it leaves the objects to the next collection.
	forgetPatience = 2 * time.Second
)

// Forget removes images of a mirrored repository. The images are named by the digests of
// their manifests or indexes. Forget removes the images' tags, the repository's manifests
// that only these images kept, and the blobs that no other manifest of the repository
// names. Content that no other repository shows is deleted at once. Forget skips digests
// that are not there.
//
// No grace period is needed. Grace periods are for pushes, which name content that a
// client was told exists, and nobody pushes to a mirrored repository. A push to another
// repository may have linked the content there already, and then the content stays. If it
// has not, the push brings the bytes itself. It records them under the lock of the
// digest, or with the claims that replicas use. Every push does so, because the collector
// may be deleting the same content.
func (r *Registry) Forget(ctx context.Context, repo string, o ForgetOptions, digests ...oci.Digest) (Forgotten, error) {
	var sum Forgotten
	if err := r.mayMirror(repo); err != nil {
		return sum, err
	}
	if !o.UsedBefore.IsZero() {
		if err := r.flushPulls(ctx); err != nil {
			return sum, fmt.Errorf("record the times of last pulls: %w", err)
		}
	}
	for part := range slices.Chunk(digests, forgetStep) {
		out, err := r.cat.Garbage.DropImages(ctx, repo, o.UsedBefore, part...)
		if err != nil {
			return sum, storage.ClientError("forget images of "+repo, err)
		}
		for _, tag := range out.Tags {
			r.ram.Drop(tagKey(repo, tag))
		}
		f, err := r.forgotten(ctx, out.Collected)
		if sum.Add(f); err != nil {
			return sum, err
		}
	}
	return sum, nil
}

// ForgetTag removes a tag of a mirrored repository and nothing else. What the tag pointed
// at can still be pulled by digest. It is not an error if the tag is not there.
func (r *Registry) ForgetTag(ctx context.Context, repo, tag string) error {
	if err := r.mayMirror(repo); err != nil {
		return err
	}
	err := r.cat.DeleteTag(ctx, repo, tag, nil)
	if err != nil && !errors.Is(err, catalog.ErrNotFound) {
		return storage.ClientError("forget tag "+tag, err)
	}
	r.ram.Drop(tagKey(repo, tag))
	return nil
}

// ForgetBlob removes a blob from a mirrored repository although manifests name it. It is
// for copies that turned out to be damaged. It is not an error if the blob is not there.
func (r *Registry) ForgetBlob(ctx context.Context, repo string, d oci.Digest) error {
	if err := r.mayMirror(repo); err != nil {
		return err
	}
	out, err := r.cat.Garbage.DropBlob(ctx, repo, d)
	if errors.Is(err, catalog.ErrNotFound) {
		return nil
	}
	if err != nil {
		return storage.ClientError(fmt.Sprintf("forget blob %s", d), err)
	}
	_, err = r.forgotten(ctx, out)
	return err
}

// forgotten drops from RAM and from the object store what the catalogue has dropped.
func (r *Registry) forgotten(ctx context.Context, out catalog.Collected) (Forgotten, error) {
	r.dropUnlinked(out.Unlinked)
	var rep CollectReport
	rep.add(out, false)
	f := Forgotten{Manifests: rep.Manifests, Blobs: rep.Blobs, Contents: rep.Contents, Bytes: rep.Bytes}
	r.mirrored.Add(-f.Bytes)
	if len(out.Objects) == 0 {
		return f, nil
	}
	var err error
	f.Later, err = r.deleteSoon(ctx, out.Objects)
	return f, err
}

// deleteSoon deletes objects that the catalogue has dropped. If a backup needs every
// object to stay, or a collection takes long, it leaves the objects to the next
// collection.
func (r *Registry) deleteSoon(ctx context.Context, objects []catalog.Blob) (later bool, err error) {
	wait, cancel := context.WithTimeout(ctx, forgetPatience)
	defer cancel()
	if storage.LockPatiently(wait, r.collects.objects.TryLock) != nil {
		r.collects.left.Store(true)
		return true, ctx.Err()
	}
	defer r.collects.objects.Unlock()
	held, release, mine, err := r.replica.Alone(ctx, replica.LeaseCollect, "forget")
	if err != nil || !mine {
		r.collects.left.Store(true)
		return true, err
	}
	defer release()
	granted, err := r.storage.Delete(held, digestsOf(objects)...)
	return granted < len(objects) || err != nil, replica.LeaseError(held, err)
}
