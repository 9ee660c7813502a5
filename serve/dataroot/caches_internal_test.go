package dataroot

import (
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"example.org/slipway/config"
	"example.org/slipway/internal/footprint"
	"example.org/slipway/oci"
	"example.org/slipway/registry/storage"
)

func TestCacheRAM(t *testing.T) {
	const gib = 1 << 30
	half := config.Size(gib / 2)
	zero := config.Size(0)
	for _, tc := range []struct {
		name    string
		st      config.Storage
		machine int64
		want    int64
	}{
		{"a directory", config.Storage{}, 64 * gib, 0},
		{"s3", config.Storage{S3: &config.S3{}}, 5 * gib, gib / 2},
		{"s3 on a large machine", config.Storage{S3: &config.S3{}}, 640 * gib, gib},
		{"swift, said", config.Storage{Swift: &config.Swift{}, BlobCache: config.BlobCache{RAM: &half}}, 640 * gib, gib / 2},
		{"s3, none", config.Storage{S3: &config.S3{}, BlobCache: config.BlobCache{RAM: &zero}}, 640 * gib, 0},
		{"a directory, said", config.Storage{BlobCache: config.BlobCache{RAM: &half}}, gib, gib / 2},
	} {
		if got := cacheRAM(&tc.st, tc.machine); got != tc.want {
			t.Errorf("%s: got %d, want %d", tc.name, got, tc.want)
		}
	}
	if n := footprint.Available(); n < 64<<20 || n > 1<<50 {
		t.Errorf("this machine has %d bytes of memory?", n)
	}
}

func TestBlobOf(t *testing.T) {
	d := digest.FromString("x")
	big := digest.SHA512.FromString("x")
	for key, want := range map[string]oci.Digest{
		storage.BlobKey(d):                              d,
		storage.BlobKey(big):                            big,
		storage.BlobKey(d) + "x":                        "",
		storage.BlobKey(d)[1:]:                          "",
		"slipway/gear/packs/ab":                         "",
		blobsDir + "sha256/ab/cd/data":                  "",
		blobsDir + "sha256/zz/" + d.Encoded() + "/data": "",
	} {
		got, ok := blobOf(key)
		if got != want || ok != (want != "") {
			t.Errorf("%s: got %q, %t, want %q", key, got, ok, want)
		}
		h, sum := verifyBlob(key)
		if (h != nil) != ok || ok && (h.Size() != len(sum)) {
			t.Errorf("%s: what verifies it is %v of %d bytes", key, h, len(sum))
		}
	}
}

// TestIsBlob checks that the cached answers agree with blobOf and that a lookup is cheap.
func TestIsBlob(t *testing.T) {
	good := storage.BlobKey(digest.FromString("x"))
	hex := digest.FromString("x").Encoded()
	for _, tc := range []struct {
		key  string
		want bool
	}{
		{good, true},
		{storage.BlobKey(digest.SHA384.FromString("x")), true},
		{storage.BlobKey(digest.SHA512.FromString("x")), true},
		{"", false},
		{blobsDir, false},
		{"x" + good, false},
		{good + "x", false},
		{good + "/data", false},
		{strings.TrimSuffix(good, "/data"), false},
		{blobsDir + "sha256/" + hex[:2] + "//data", false},
		{blobsDir + "sha256/ff/" + strings.Repeat("0", 64) + "/data", false},
		{blobsDir + "sha256/ff/" + strings.Repeat("f", 63) + "/data", false},
		{blobsDir + "sha256/ff/" + strings.Repeat("f", 63) + "g/data", false},
		{blobsDir + "sha256/FF/" + strings.Repeat("F", 64) + "/data", false},
		{blobsDir + "sha512/ff/" + strings.Repeat("f", 64) + "/data", false},
		{blobsDir + "md5/ff/" + strings.Repeat("f", 32) + "/data", false},
		{blobsDir + "sha256/ff0" + strings.Repeat("f", 64) + "/data", false},
	} {
		if _, ok := blobOf(tc.key); ok != tc.want || isBlob(tc.key) != tc.want {
			t.Errorf("%q: blobOf says %t, isBlob %t, want %t", tc.key, ok, isBlob(tc.key), tc.want)
		}
	}
	if n := testing.AllocsPerRun(100, func() { isBlob(good) }); n != 0 {
		t.Errorf("%v allocations for each look", n)
	}
}
