package backendtest

import "testing"

// TestFreePort: no port is given twice, even before anybody listens on it.
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
