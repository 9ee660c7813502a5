package mirror

import (
	"os"
	"testing"
	"time"

	"example.org/slipway/oci"
)

// TestScan checks that partial blobs which nobody asks for are removed after a week, but not those
// that are being fetched.
func TestScan(t *testing.T) {
	t.Parallel()
	now := time.Now()
	old, fresh, busy := oci.SHA256([]byte("old")), oci.SHA256([]byte("fresh")), oci.SHA256([]byte("busy"))
	fs := fills{dir: t.TempDir(), under: map[oci.Digest]*fill{busy: {}}, parts: map[oci.Digest]bool{old: true}}
	for d, age := range map[oci.Digest]time.Duration{old: partMaxAge + time.Hour, busy: partMaxAge + time.Hour, fresh: time.Hour} {
		if err := os.WriteFile(fs.path(d), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(fs.path(d), now.Add(-age), now.Add(-age)); err != nil {
			t.Fatal(err)
		}
	}
	if err := fs.scan(now, time.Time{}); err != nil {
		t.Fatal(err)
	}
	for d, want := range map[oci.Digest]bool{old: false, busy: true, fresh: true} {
		if _, err := os.Stat(fs.path(d)); (err == nil) != want {
			t.Errorf("%s: %v, want it there: %v", fs.path(d), err, want)
		}
	}
	if fs.parts[old] || !fs.parts[fresh] || fs.parts[busy] {
		t.Errorf("noted: %v", fs.parts)
	}
}
