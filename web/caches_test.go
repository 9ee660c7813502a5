package web

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestHotImages(t *testing.T) {
	digest := "sha256:" + strings.Repeat("a", 64)
	asked := 0
	hot := func(n int) ([]HotImage, time.Time) {
		asked = n
		return []HotImage{{"lib/app", "v1", 40}, {"lib/other", digest, 10}, {"lib/odd", "sha256:no", 1}}, time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	}
	_, s := open(t, &Options{System: System{Hot: hot}}, timing{})
	status, body := get(t, s, "/ui/caches")
	if status != http.StatusOK || asked != hotImages {
		t.Fatalf("status %d, %d images asked for", status, asked)
	}
	for _, want := range []string{"Asked for most", "/ui/image/lib/app:v1", "/ui/image/lib/other@" + digest, `value="0.25"`, "lib/odd", "2026", "no cache of blobs"} {
		if !strings.Contains(body, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if strings.Contains(body, "image/lib/odd") {
		t.Error("a name that is no digest has a link")
	}
}
