package storage

import (
	"testing"

	"example.org/slipway/oci"
)

func FuzzDigestOfKey(f *testing.F) {
	f.Add(BlobKey(oci.SHA256(nil)))
	f.Add(BlobPrefix + "sha512/00/00/data")
	f.Fuzz(func(t *testing.T, key string) {
		if d, ok := DigestOfKey(key); ok && BlobKey(d) != key {
			t.Errorf("key %q is taken for %s", key, d)
		}
	})
}
