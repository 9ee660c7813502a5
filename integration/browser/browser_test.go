package browser

import (
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
)

// shapes are the windows and themes that pages are looked at in.
var shapes = []struct {
	width int64
	theme string
}{{375, "light"}, {375, "dark"}, {1280, "light"}, {1280, "dark"}, {1920, "light"}, {1920, "dark"}}

// kind is what pages have in common that one template makes: pages of one kind are looked
// at once.
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
	for _, s := range []string{"hostile", "signed", "multi", "sha256", "fixed", "mirror"} {
		if strings.Contains(rest, s) {
			special += " " + s
		}
	}
	if name == "repo" || name == "image" || name == "tree" || name == "diff" || name == "delete" {
		rest = ""
	}
	return name + "/" + rest + special + "?" + strings.Join(keys, "&")
}

// crawl returns the paths of one page of each kind that links lead to from path.
func (w *window) crawl(path string, most int) []string {
	w.t.Helper()
	queue, seen := []string{path}, map[string]bool{kind(path): true}
	var found []string
	for len(queue) > 0 && len(found) < most {
		at := queue[0]
		queue = queue[1:]
		w.visit(at)
		found = append(found, at)
		for _, link := range eval[[]string](w, `[...document.querySelectorAll("a[href]")].map(a => a.href)`) {
			next, ok := strings.CutPrefix(link, w.base)
			next, _, _ = strings.Cut(next, "#")
			if !ok || !strings.HasPrefix(next, "/ui/") || strings.HasPrefix(next, "/ui/static/") || strings.HasPrefix(next, "/ui/reports/") && strings.Contains(next, ".") || seen[kind(next)] {
				continue
			}
			seen[kind(next)] = true
			queue = append(queue, next)
		}
	}
	w.check("while links were followed")
	return found
}

// Every page can be read by everybody, on every screen, and loads nothing from elsewhere.
func TestPages(t *testing.T) {
	s := registry(t)
	w := open(t, "http://"+s.Addr)
	dir := pictures(t)
	w.look(1280, "light")
	w.visit("/ui/login")
	w.examine(dir, "/ui/login")
	w.logIn("root", "secret of root")
	pages := w.crawl("/ui/", 80)
	t.Logf("%d kinds of pages: %s", len(pages), strings.Join(pages, " "))
	if len(pages) < 20 {
		t.Errorf("links lead to %d kinds of pages only", len(pages))
	}
	for _, p := range pages {
		w.examine(dir, p)
	}
	if hurt := eval[bool](w, "!!window.hurt"); hurt {
		t.Error("a script out of an image ran")
	}
}

// examine looks at a page in all shapes.
func (w *window) examine(dir, path string) {
	w.t.Helper()
	for _, shape := range shapes {
		w.look(shape.width, shape.theme)
		w.visit(path)
		where := fmt.Sprintf("%s at %d px, %s", path, shape.width, shape.theme)
		for _, problem := range eval[[]string](w, accessible) {
			w.t.Errorf("%s: %s", where, problem)
		}
		if eval[bool](w, "!!window.hurt") {
			w.t.Fatalf("%s: a script out of an image ran", where)
		}
		w.check(where)
		if shape.theme == "light" || shape.width == 1280 || os.Getenv("SLIPWAY_SCREENSHOTS") != "" {
			w.picture(dir, fmt.Sprintf("%s-%d-%s", fileName(path), shape.width, shape.theme))
		}
	}
}
