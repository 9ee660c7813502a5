package registry

import (
	"slices"
	"strings"

	"example.org/slipway/oci"
)

// Where things lie in the object store. What a Distribution registry writes too lies where
// that has it, so that its storage can be adopted in place.
const (
	// BlobPrefix begins the keys of blobs.
	BlobPrefix = "docker/registry/v2/blobs/"
	// RepositoryPrefix begins the keys of a Distribution registry's links.
	RepositoryPrefix = "docker/registry/v2/repositories/"
	// PackPrefix is where package filestore keeps its packs. Here and in a backup they are
	// objects whose name says their digest; what is in them is not known.
	PackPrefix = "slipway/gear/packs/"
)

// BlobKey is the object key of a blob: Distribution's path.
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

// IsIdentity reports whether a key is of an object that says whose the store is.
func IsIdentity(key string) bool { return slices.Contains(idKeys[:], key) }

// CatalogFile is the catalogue's name in a data root and in a backup, beside
// the directories of the objects.
const CatalogFile = "catalog.db"

// LockFile is a file in a data root that a program locks while it uses that.
const LockFile = "slipway.lock"
