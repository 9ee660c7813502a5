package rootfs

import "testing"

// TestZeros checks that a file of some GiB of zeros is not taken for a bomb by default.
// Gzip compresses such a file to a thousandth, zstd to less.
func TestZeros(t *testing.T) {
	o := Defaults()
	for _, bytes := range []int64{1, 1 << 30, 5 << 29, 8 << 30} {
		if err := o.checkBytes(bytes, bytes/30_000); err != nil {
			t.Errorf("%d bytes of zeros: %v", bytes, err)
		}
	}
	if err := o.checkBytes(64<<30, 64<<20); err == nil {
		t.Error("64 GiB of zeros in 64 MiB are no bomb")
	}
}
