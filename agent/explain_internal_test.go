package agent

import (
	"strings"
	"testing"

	"example.org/slipway/node/gearfs"
)

// TestFetched checks that what was fetched is not said to be of no file, as when parts of a
// large file came, and that each figure stands once.
func TestFetched(t *testing.T) {
	got := fetched(&gearfs.ImageCounts{DemandBytes: 1048576, ProfileFiles: 7, ProfileBytes: 4096, BackgroundFiles: 9, BackgroundBytes: 81})
	if strings.Contains(got, "files of") {
		t.Errorf("files and bytes are counted as one: %s", got)
	}
	for _, want := range []string{"1048576 bytes", "4096 of the profile", "81 in the background", "0, 7 and 9 files"} {
		if strings.Count(got, want) != 1 {
			t.Errorf("%q does not have %q once", got, want)
		}
	}
}
