package browser

import (
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"example.org/slipway/integration/internal/imagetest"
)

// shapes are the window sizes and themes in which pages are tested.
var shapes = []struct {
	width int64
	theme string
}{{375, "light"}, {375, "dark"}, {1280, "light"}, {1280, "dark"}, {1920, "light"}, {1920, "dark"}}

// kind returns what the pages of one template have in common. One page of each kind is tested.
func kind(path string) string {
	u, err := url.Parse(path)
	if err != nil {
		return path
	}
	name, rest, _ := strings.Cut(strings.TrimPrefix(u.Path, "/ui/"), "/")
	var keys []string
	for k := range u.Query() {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	special := ""
	for _, s := range []string{"team/hello", "hostile", "signed", "multi", "sha256", "fixed", "private", "mirror", "documented:bill", "documented:scan", "documented"} {
		if strings.Contains(rest, s) {
			special += " " + s
		}
	}
	if name == "repo" || name == "image" || name == "tree" || name == "diff" || name == "delete" || name == "history" || name == "remove" {
		rest = ""
	}
	return name + "/" + rest + special + "?" + strings.Join(keys, "&")
}

// crawl follows links from some paths and returns the path of one page of each kind.
func (w *window) crawl(most int, queue ...string) []string {
	w.t.Helper()
	seen := map[string]bool{}
	for _, path := range queue {
		seen[kind(path)] = true
	}
	var found []string
	for len(queue) > 0 && len(found) < most {
		at := queue[0]
		queue = queue[1:]
		w.visit(at)
		found = append(found, at)
		for _, link := range eval[[]string](w, `[...document.querySelectorAll("a[href]")].map(a => a.href)`) {
			next, ok := strings.CutPrefix(link, w.base)
			next, _, _ = strings.Cut(next, "#")
			if !ok || !strings.HasPrefix(next, "/ui/") || strings.HasPrefix(next, "/ui/static/") || strings.HasPrefix(next, "/ui/reports/") && strings.Contains(next, ".") ||
				strings.Contains(next, "format=json") || seen[kind(next)] { // what is downloaded is no page
				continue
			}
			seen[kind(next)] = true
			queue = append(queue, next)
		}
	}
	w.check("while links were followed")
	return found
}

// most is the number of kinds of pages that are tested. There are more, which differ little.
const most = 60

// starts are paths from which links lead to a page of each kind.
var starts = []string{"/ui/", "/ui/repo/team/hello", "/ui/repo/team/documented", "/ui/repo/team/hostile", "/ui/repo/team/signed", "/ui/diff/team/hello?from=1.0.0&to=1.1.0",
	"/ui/?q=team", "/ui/image/team/hello:1.1.0", "/ui/image/team/documented:1", "/ui/image/team/documented:bill", "/ui/image/team/documented:scan", "/ui/nodes", "/ui/replication/run?rule=to-frankfurt",
	"/ui/repo/private/" + strings.Repeat("deep/", 12) + "app"}

// TestPages checks that everybody can read every page, on every screen, and that no page loads
// anything from elsewhere.
func TestPages(t *testing.T) {
	s := registry(t)
	w := open(t, "http://"+s.Addr)
	dir := pictures(t)
	w.look(1280, "light")
	w.visit("/ui/login")
	w.examine(dir, "/ui/login")
	w.logIn("root", "secret of root")
	pages := w.crawl(most, starts...)
	t.Logf("%d kinds of pages: %s", len(pages), strings.Join(pages, " "))
	if len(pages) < most {
		t.Errorf("links lead to %d kinds of pages only", len(pages))
	}
	for _, p := range pages {
		w.examine(dir, p)
	}
	if hurt := eval[bool](w, "!!window.hurt"); hurt {
		t.Error("a script out of an image ran")
	}
}

// examine tests a page in all shapes.
func (w *window) examine(dir, path string) {
	w.t.Helper()
	w.visit(path)
	for _, shape := range shapes {
		w.look(shape.width, shape.theme)
		where := fmt.Sprintf("%s at %d px, %s", path, shape.width, shape.theme)
		for _, problem := range eval[[]string](w, accessible) {
			w.t.Errorf("%s: %s", where, problem)
		}
		if eval[bool](w, "!!window.hurt") {
			w.t.Fatalf("%s: a script out of an image ran", where)
		}
		w.check(where)
		if shape.width == 1280 || os.Getenv("SLIPWAY_SCREENSHOTS") != "" {
			w.picture(dir, fmt.Sprintf("%s-%d-%s", fileName(path), shape.width, shape.theme))
		}
	}
}

// TestJourney follows two users: one who may only read looks around, and one who manages
// the registry compares images, deletes some, and frees space.
func TestJourney(t *testing.T) {
	s := registry(t)
	w := open(t, "http://"+s.Addr)
	w.look(1280, "light")
	w.expected = []string{"401 (Unauthorized)", "403 (Forbidden)", "404 (Not Found)"}

	w.visit("/ui/storage")
	w.want("/ui/login", "Log in")
	w.fill("#user", "alice")
	w.fill("#password", "wrong")
	w.click("form.login button")
	w.want("/ui/login", "Log in")
	w.logIn("alice", "secret of alice")
	w.want("/ui/", "team/hello")
	if text := w.text(); strings.Contains(text, "private/") || strings.Contains(text, "many/") {
		t.Errorf("alice sees what is not hers:\n%s", text)
	}
	for _, path := range []string{"/ui/repo/private/" + strings.Repeat("deep/", 12) + "app", "/ui/repo/none", "/ui/tree/many/repository-000:latest", "/ui/delete/team/hello:1.0.0", "/ui/storage/gc"} {
		w.visit(path)
		if h := eval[string](w, `document.querySelector("h1").innerText`); h != "403" && h != "404" {
			t.Errorf("alice is shown %s: %s", path, h)
		}
	}
	w.visit("/ui/")
	w.click("header .user button")

	w.logIn("root", "secret of root")
	w.fill("#q", "HELLO")
	w.click("form.search button")
	w.want("/ui/?q=HELLO", "team/hello")
	w.click(`a[href="/ui/repo/team/hello"]`)
	w.want("/ui/repo/team/hello", "1.1.0")
	w.click(`a[href="/ui/image/team/hello:1.0.0"]`)
	w.want("/ui/image/team/hello:1.0.0", "MODE=production")
	if text := w.text(); !strings.Contains(text, "slipway run "+s.Addr+"/team/hello:1.0.0") {
		t.Errorf("the page does not tell how to run the image:\n%s", text)
	}
	w.click(`a[href="/ui/tree/team/hello:1.0.0"]`)
	w.want("/ui/tree/team/hello:1.0.0", "usr")
	w.visit("/ui/diff/team/hello?from=1.0.0&to=1.1.0")
	w.want("/ui/diff/team/hello", "version\tchanged\tcontent")
	if text := w.text(); strings.Contains(text, "libbig.so") {
		t.Errorf("the difference lists what is the same:\n%s", text)
	}

	w.visit("/ui/delete/team/fixed:v1")
	if n := eval[int](w, `document.querySelectorAll("form button.danger").length`); n != 0 {
		t.Error("an immutable tag can be deleted")
	}
	w.visit("/ui/image/team/hello:1.0.0")
	w.click(`a[href="/ui/delete/team/hello:1.0.0"]`)
	w.want("/ui/delete/team/hello:1.0.0", "Delete the tag")
	w.click("form button.danger")
	w.visit("/ui/repo/team/hello")
	if text := w.text(); strings.Contains(text, "1.0.0") || !strings.Contains(text, "1.1.0") {
		t.Errorf("after the deletion the tags are:\n%s", text)
	}
	if _, err := s.Client.GetManifest(t.Context(), "team/hello", "1.0.0"); err == nil {
		t.Error("the tag is still there")
	}

	w.visit("/ui/storage")
	w.click(`a[href="/ui/storage/gc"]`)
	w.click(`form.action button[value="preview"]`)
	w.outcome()
	w.click(`form.action button[value="run"]`)
	w.outcome()
	w.check("on the way")
}

// TestUndo has a user find an image, delete its tag and take that back, go back to what another tag
// pointed at, and delete and restore a whole repository: in a narrow and in a wide window, and
// without scripts.
func TestUndo(t *testing.T) {
	s := registry(t)
	for _, width := range []int64{375, 1280} {
		w := open(t, "http://"+s.Addr)
		w.look(width, "light")
		call(w, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: width == 375})
		w.logIn("root", "secret of root")
		w.fill("#q", "1.1.0")
		w.click("form.search button")
		w.want("/ui/?q=1.1.0", "its tag")
		w.click(`a[href="/ui/image/team/hello:1.1.0"]`)
		w.click(`a[href="/ui/delete/team/hello:1.1.0"]`)
		w.click("form button.danger")
		w.want("/ui/repo/team/hello", "The tag 1.1.0 was deleted. It pointed at sha256:")
		if _, err := s.Client.GetManifest(t.Context(), "team/hello", "1.1.0"); err == nil {
			t.Error("the tag is still there")
		}
		w.click(".note button")
		w.want("/ui/repo/team/hello", "1.1.0")
		m, err := s.Client.GetManifest(t.Context(), "team/hello", "1.1.0")
		if err != nil {
			t.Fatal(err)
		}
		w.click(`a[href="/ui/history/team/hello:1.1.0"]`)
		w.want("/ui/history/team/hello:1.1.0", "by going back")
		w.want("/ui/history/team/hello:1.1.0", "slipway tag history "+s.Addr+"/team/hello:1.1.0")

		// The tag points elsewhere, and back.
		other, err := s.Client.GetManifest(t.Context(), "team/hello", "1.0.0")
		if err != nil {
			t.Fatal(err)
		}
		at := func(want string) {
			t.Helper()
			if got, err := s.Client.GetManifest(t.Context(), "team/hello", "1.1.0"); err != nil || string(got.Digest) != want {
				t.Errorf("1.1.0 is %v (%v), want %s", got, err, want)
			}
		}
		push(t, s, "team/hello", "1.1.0", &imagetest.Bundle{Top: imagetest.NewBlob(other.MediaType, other.Bytes)})
		at(other.Digest)
		w.visit("/ui/history/team/hello:1.1.0")
		w.click(`form[action="/ui/restore/team/hello"] button`)
		w.want("/ui/history/team/hello:1.1.0", "by going back")
		at(m.Digest)

		w.visit("/ui/repo/team/hello")
		w.click(`a[href="/ui/remove/team/hello"]`)
		w.fill("#name", "team/hello")
		w.click("form button.danger")
		w.want("/ui/repo/team/hello", "All images of this repository were deleted")
		w.click(".note button")
		w.want("/ui/repo/team/hello", "1.1.0")
		at(m.Digest)
		w.check("on the way")
	}
}

// want fails the test unless the page is at a path and contains a text.
func (w *window) want(path, text string) {
	w.t.Helper()
	at := eval[string](w, `location.pathname + location.search`)
	if got := w.text(); !strings.HasPrefix(at, path) || !strings.Contains(got, text) {
		w.t.Fatalf("the page is %s, want %s that says %q; it says:\n%s", at, path, text, got)
	}
}

// see fails the test unless the page is at a path, contains a text and is accessible, and saves a
// picture of it.
func (w *window) see(path, text, dir, picture string) {
	w.t.Helper()
	w.want(path, text)
	for _, problem := range eval[[]string](w, accessible) {
		w.t.Errorf("%s, %s: %s", path, picture, problem)
	}
	w.picture(dir, picture)
}

// outcome waits until a job has ended, and fails the test unless it did what it should.
func (w *window) outcome() {
	w.t.Helper()
	w.do("wait for the outcome", chromedp.WaitVisible(chromedp.CSS(`[data-test="outcome"]`)))
	if text := w.text(); strings.Contains(text, "It failed") {
		w.t.Errorf("the job failed:\n%s", text)
	}
}
