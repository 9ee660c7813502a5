package browser

import (
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"

	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/slipway"
)

// mostServerTime is how long a page may take until its last byte is there.
const mostServerTime = 200 * time.Millisecond

// fast fails the test if a page is slow. It takes the fastest of several loads, because other
// work on the machine may slow down each.
func (w *window) fast(path string) {
	w.t.Helper()
	best := time.Hour
	for range 5 {
		w.visit(path)
		ms := eval[float64](w, `(e => e.responseEnd - e.requestStart)(performance.getEntriesByType("navigation")[0])`)
		best = min(best, time.Duration(ms*float64(time.Millisecond)))
	}
	w.t.Logf("%s: %v", path, best.Round(time.Millisecond))
	if best > mostServerTime {
		w.t.Errorf("%s takes %v, want at most %v", path, best, mostServerTime)
	}
}

// TestMany looks for one of 10,000 repositories, and for one of the 20,000 files of an image that
// differs from another one, in all shapes and without scripts.
func TestMany(t *testing.T) {
	s := slipway.Start(t, filepath.Join(t.TempDir(), "root"), &slipway.Options{Config: "version: 0.1\ngear: {convert: sync}\nlog: {accesslog: {disabled: true}}\n"})
	const repositories, files = 10_000, 20_000
	var wg sync.WaitGroup
	names := make(chan string)
	for range 16 {
		wg.Go(func() {
			for name := range names {
				index := fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":%q,"manifests":[],"annotations":{"org.opencontainers.image.title":"number of %s"}}`, imagetest.TypeIndex, name)
				if _, err := s.Client.PutManifest(t.Context(), name, "latest", imagetest.TypeIndex, index); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
		})
	}
	for i := range repositories - 1 {
		names <- fmt.Sprintf("group-%02d/service-%04d", i%50, i)
	}
	close(names)
	wg.Wait()
	for version, changed := range map[string]int{"1": -1, "2": 12_345} {
		list := []imagetest.File{{Name: "usr/"}}
		for i := range files {
			if i%200 == 0 {
				list = append(list, imagetest.File{Name: fmt.Sprintf("usr/directory-%03d/", i/200)})
			}
			data := fmt.Sprint("content ", i)
			if i == changed {
				data = "another content"
			}
			list = append(list, imagetest.File{Name: fmt.Sprintf("usr/directory-%03d/file-%05d", i/200, i), Data: []byte(data)})
		}
		push(t, s, "large/image", version, imagetest.Compose(runtime.GOARCH, nil, []imagetest.Layer{imagetest.NewLayer(list...)}))
	}
	s.Converted()
	if t.Failed() {
		t.FailNow()
	}

	w := open(t, "http://"+s.Addr)
	dir := pictures(t)
	w.look(1280, "light")
	for _, path := range []string{"/ui/", "/ui/?from=9950", "/ui/?sort=pushed", "/ui/?q=4321", "/ui/repo/large/image", "/ui/image/large/image:2", "/ui/tree/large/image:2",
		"/ui/tree/large/image:2?path=usr%2Fdirectory-061", "/ui/tree/large/image:2?q=file-12345", "/ui/diff/large/image?from=1&to=2", "/ui/settings", "/ui/nodes"} {
		w.fast(path)
	}
	call(w, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
	for _, shape := range shapes {
		w.look(shape.width, shape.theme)
		see := func(path, text, page string) {
			t.Helper()
			w.see(path, text, dir, fmt.Sprintf("many-%s-%d-%s", page, shape.width, shape.theme))
		}
		w.visit("/ui/")
		see("/ui/", "1 to 50 of 10\u202f000 repositories", "home")
		w.click(`a[rel="next"]`)
		w.want("/ui/?from=50", "51 to 100 of 10\u202f000")
		w.click(`a[rel="prev"]`)
		w.fill("#q", "service-4321")
		w.click("form.search button")
		see("/ui/?q=service-4321", "group-21/service-4321", "found")
		if text := w.text(); strings.Contains(text, "service-4320") {
			t.Errorf("the search finds others:\n%s", text)
		}
		w.visit("/ui/tree/large/image:2")
		w.click(`main a[href*="path=usr"]`)
		w.fill(`form.find input[name="q"]`, "file-12345")
		w.click("form.find button")
		see("/ui/tree/large/image:2", "file-12345", "file")
		w.visit("/ui/diff/large/image?from=1&to=2")
		see("/ui/diff/large/image", "file-12345\tchanged\tcontent", "diff")
		if text := w.text(); strings.Contains(text, "file-12346") {
			t.Errorf("the difference lists what is the same:\n%s", text)
		}
	}
	w.check("on the way")
}
