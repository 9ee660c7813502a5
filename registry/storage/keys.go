package storage

import (
	"slices"
	"strings"

	"example.org/slipway/oci"
)

// These keys say where things lie in the object store. What a Distribution registry also
// writes lies at the same place, so that its storage can be adopted as it is.
const (
	// BlobPrefix begins the keys of blobs.
	BlobPrefix = "docker/registry/v2/blobs/"
	// RepositoryPrefix begins the keys of a Distribution registry's links.
	RepositoryPrefix = "docker/registry/v2/repositories/"
	// PackPrefix begins the keys under which package filestore keeps its packs. Here and
	// in a backup they are opaque objects whose names contain their digests.
	PackPrefix = "slipway/gear/packs/"
)

// BlobKey returns the object key of a blob, which is Distribution's path.
func BlobKey(d oci.Digest) string {
	alg, hex := d.Algorithm().String(), d.Encoded()
	return BlobPrefix + alg + "/" + hex[:2] + "/" + hex + "/data"
}

// DigestOfKey is the inverse of BlobKey.
func DigestOfKey(key string) (oci.Digest, bool) {
	parts := strings.Split(strings.TrimPrefix(key, BlobPrefix), "/")
	if len(parts) != 4 {
		return "", false
	}
	d := oci.Digest(parts[0] + ":" + parts[2])
	return d, oci.ValidDigest(d) && BlobKey(d) == key
}

// IsIdentity reports whether a key belongs to an object that identifies the owner of the
// store.
func IsIdentity(key string) bool { return slices.Contains(idKeys[:], key) }
