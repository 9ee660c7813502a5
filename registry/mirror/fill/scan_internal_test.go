package fill

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
	of := func(text string) key { return key{digest: oci.SHA256([]byte(text))} }
	old, fresh, busy := of("old"), of("fresh"), of("busy")
	alone := key{fresh.digest, "registry.a-b.test-5000"}
	fs := Fills{dir: t.TempDir(), under: map[key]*Fill{busy: {}}, parts: map[key]bool{old: true}}
	for k, age := range map[key]time.Duration{old: partMaxAge + time.Hour, busy: partMaxAge + time.Hour, fresh: time.Hour, alone: time.Hour} {
		if err := os.WriteFile(fs.path(k), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(fs.path(k), now.Add(-age), now.Add(-age)); err != nil {
			t.Fatal(err)
		}
	}
	if err := fs.scan(now, time.Time{}); err != nil {
		t.Fatal(err)
	}
	for k, want := range map[key]bool{old: false, busy: true, fresh: true, alone: true} {
		if _, err := os.Stat(fs.path(k)); (err == nil) != want {
			t.Errorf("%s: %v, want it there: %v", fs.path(k), err, want)
		}
	}
	if fs.parts[old] || !fs.parts[fresh] || !fs.parts[alone] || fs.parts[busy] {
		t.Errorf("noted: %v", fs.parts)
	}
}
