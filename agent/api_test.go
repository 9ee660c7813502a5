package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"time"

	"example.org/slipway/node/gearfs"
)

// TestFindImage checks that an image is found by its names, and that the error for a missing one
// lists the images that are here.
func TestFindImage(t *testing.T) {
	old, now := time.Unix(1000, 0), time.Unix(2000, 0)
	images := []gearfs.ImageStatus{
		{Chain: "sha256:0123456789", Ref: "r.example/app:v1", Added: now},
		{Chain: "sha256:abcdef0123", Ref: "r.example/app:v1", Added: old},
		{Chain: "sha256:fedcba9876", Ref: "r.example/other:v2", Added: old},
	}
	for name, want := range map[string]string{
		"r.example/app:v1":   "sha256:0123456789", // the tag moved
		"r.example/other:v2": "sha256:fedcba9876",
		"sha256:abcdef0123":  "sha256:abcdef0123",
		"abcdef01":           "sha256:abcdef0123",
		"abcdef0":            "",
		"app:v1":             "",
		"":                   "",
	} {
		got := ""
		if img := newest(images, name); img != nil {
			got = img.Chain
		}
		if got != want {
			t.Errorf("%q: got %q, want %q", name, got, want)
		}
	}
	err := notHere("app:v1", images)
	if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "here are r.example/app:v1, r.example/other:v2:") {
		t.Errorf("got %v", err)
	}
	if err := notHere("x", nil); !strings.Contains(err.Error(), "none is here now") {
		t.Errorf("got %v", err)
	}
	for i := range 2 * mostNamed {
		images = append(images, gearfs.ImageStatus{Ref: fmt.Sprintf("r.example/many:%02d", i)})
	}
	if err := notHere("x", images); !strings.Contains(err.Error(), "many:18 and 22 more:") {
		t.Errorf("got %v", err)
	}
}
