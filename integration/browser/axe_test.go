package browser

import (
	"context"
	"fmt"
	"testing"

	"github.com/chromedp/chromedp"

	"example.org/slipway/integration/internal/tool"
)

// findings is a script that runs axe on the page, and returns what it finds serious or critical.
const findings = `axe.run(document, {resultTypes: ["violations"]}).then(r => r.violations
  .filter(v => v.impact === "serious" || v.impact === "critical")
  .flatMap(v => v.nodes.slice(0, 3).map(n => v.id + " (" + v.impact + "): " + n.html.slice(0, 200) + ": " + n.failureSummary.replace(/\s+/g, " ").slice(0, 300))))`

// TestAxe runs axe-core, which knows more rules than this package, on a page of each kind, in a
// narrow and in a wide window and in both themes.
func TestAxe(t *testing.T) {
	axe := tool.File(t, "axe-core-4.14.1/axe.min.js")
	s := registry(t)
	w := open(t, "http://"+s.Addr)
	w.look(1280, "light")
	w.visit("/ui/login")
	w.runAxe(axe, "/ui/login")
	w.logIn("root", "secret of root")

	// A page with faults shows that axe runs and that its findings count.
	w.visit("/ui/")
	eval[bool](w, axe+`; document.querySelector("main").insertAdjacentHTML("beforeend", "<button></button>"); true`)
	if found := w.axe(); len(found) == 0 {
		t.Error("axe does not find a button without a name")
	}
	w.addWebhook("an-added-one", listener(t)+"/path")
	for _, p := range w.crawl(mostAxe, starts...) {
		w.runAxe(axe, p)
	}
}

// addWebhook adds a webhook at the page.
func (w *window) addWebhook(name, url string) {
	w.t.Helper()
	w.visit("/ui/webhooks")
	w.fill("#name", name)
	w.fill("#url", url)
	w.fill("#repositories", "team/** a/long/pattern/of/repositories/that/nobody/has/**")
	w.fill("#secret", "open sesame")
	w.click(`form.action button[value="add"]`)
	w.want("/ui/webhooks?done=add", name+" was added")
}

// mostAxe is the number of kinds of pages that axe looks at.
const mostAxe = 60

// runAxe fails the test with what axe finds on a page.
func (w *window) runAxe(axe, path string) {
	w.t.Helper()
	w.visit(path)
	eval[bool](w, axe+`; document.querySelectorAll("details").forEach(d => d.open = true); true`)
	for _, width := range []int64{375, 1280} {
		for _, theme := range []string{"light", "dark"} {
			w.look(width, theme)
			for _, f := range w.axe() {
				w.t.Errorf("%s at %d px, %s: %s", path, width, theme, f)
			}
		}
	}
	w.check(path)
}

// axe returns what axe finds on the page as it is.
func (w *window) axe() []string {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, patience)
	defer cancel()
	found, err := chromedp.Run(ctx, chromedp.Evaluate[[]string](findings, chromedp.EvalAwaitPromise))
	if err != nil {
		w.t.Fatal(fmt.Errorf("run axe: %w", err))
	}
	return found
}
