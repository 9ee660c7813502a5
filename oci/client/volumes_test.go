package client

import (
	"strings"
	"testing"

	"example.org/slipway/oci"
)

// TestReadRecord checks that a record of another version is refused with its version,
// whatever else it holds, and that a record of another image is refused.
func TestReadRecord(t *testing.T) {
	d := oci.SHA256([]byte("image"))
	good := `{"version":1,"manifest":"` + string(d) + `","fs":"erofs","place":{"driver":"file","cluster":"abc"},"layers":[{"digest":"` + string(d) + `","volume":"erofs-1","size":4096}]}`
	if r, err := readRecord([]byte(good), d); err != nil || r.Volume() != "erofs-1" {
		t.Errorf("got %+v, %v", r, err)
	}
	for text, want := range map[string]string{
		`{"version":2,"layers":{"a":1}}`: "version 2",
		`{"version":1,"layers":{"a":1}}`: "record of volumes",
		`[]`:                             "record of volumes",
	} {
		if _, err := readRecord([]byte(text), d); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
	if _, err := readRecord([]byte(good), oci.SHA256([]byte("other"))); err == nil || !strings.Contains(err.Error(), "is of the image") {
		t.Errorf("of another image: %v", err)
	}
}
