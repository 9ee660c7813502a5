package backendtest

import "testing"

// TestFreePort checks that FreePort never returns a port twice, even before anything
// listens on it.
func TestFreePort(t *testing.T) {
	seen := map[int]bool{}
	for range 300 {
		port := freePort(t)
		if seen[port] {
			t.Fatalf("port %d is given again", port)
		}
		seen[port] = true
	}
}
