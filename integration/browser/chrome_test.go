package browser

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"example.org/slipway/integration/internal/tool"
)

// window is a separate browser that records its complaints and its requests.
type window struct {
	t    *testing.T
	ctx  context.Context
	base string // scheme://host of the registry

	mu        sync.Mutex
	complaint []string
	// expected are complaints that a test causes on purpose.
	expected []string
}

// open starts a browser. It ends with the test.
func open(t *testing.T, base string) *window {
	t.Helper()
	chromium := tool.System(t, "chromium")
	o := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(chromium), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.UserDataDir(t.TempDir()), chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true),
		chromedp.Flag("no-proxy-server", true), chromedp.Flag("lang", "en"))
	alloc, cancelBrowser := chromedp.NewExecAllocator(context.Background(), o...)
	tab, cancelTab := chromedp.NewContext(alloc)
	ctx, cancelTime := context.WithTimeout(tab, 15*time.Minute)
	t.Cleanup(func() {
		if err := chromedp.Cancel(tab); err != nil {
			t.Logf("end chromium: %v", err)
		}
		cancelTime()
		cancelTab()
		cancelBrowser()
	})
	w := &window{t: t, ctx: ctx, base: base}
	if err := chromedp.Listen(ctx, w.listen); err != nil {
		t.Fatalf("start chromium: %v", err)
	}
	call(w, network.Enable, network.EnableParams{})
	call(w, runtime.Enable, cdp.Empty{})
	call(w, cdplog.Enable, cdp.Empty{})
	return w
}

// call runs a command of the browser's protocol.
func call[P, R any](w *window, cmd cdp.Command[P, R], params P) R {
	w.t.Helper()
	r, err := chromedp.Call(w.ctx, cmd, params)
	if err != nil {
		w.t.Fatalf("%s: %v", cmd.Method, err)
	}
	return r
}

// listen notes failing scripts, violations of the policy, and requests to other hosts.
func (w *window) listen(ev any) {
	switch e := ev.(type) {
	case *network.EventRequestWillBeSent:
		if u := e.Request.URL; !strings.HasPrefix(u, w.base+"/") && !strings.HasPrefix(u, "data:") {
			w.complain("the page asks for " + u)
		}
	case *runtime.EventExceptionThrown:
		w.complain("a script failed: " + e.ExceptionDetails.Text)
	case *cdplog.EventEntryAdded:
		if e.Entry.Level == "error" {
			w.complain(fmt.Sprintf("the browser says %s %s", e.Entry.Text, e.Entry.URL))
		}
	}
}

func (w *window) complain(text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.complaint = append(w.complaint, text)
}

// check fails the test with the browser's complaints since the last check.
func (w *window) check(where string) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
next:
	for _, c := range w.complaint {
		for _, e := range w.expected {
			if strings.Contains(c, e) {
				continue next
			}
		}
		w.t.Errorf("%s: %s", where, c)
	}
	w.complaint = nil
}

// patience bounds one step.
const patience = 60 * time.Second

// do runs actions, and fails the test if they do not finish.
func (w *window) do(what string, actions ...chromedp.Action[chromedp.Void]) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		at, _ := chromedp.Run(w.ctx, chromedp.Location())
		text, _ := chromedp.Run(w.ctx, chromedp.Evaluate[string]("document.body.innerText"))
		w.t.Fatalf("%s: %v; the page %s says:\n%.1500s", what, err, at, text)
	}
}

// visit goes to a path and waits for its page.
func (w *window) visit(path string) {
	w.t.Helper()
	w.do("visit "+path, chromedp.Navigate(w.base+path), chromedp.WaitReady(chromedp.CSS("main")))
}

// eval returns the value of a script.
func eval[T any](w *window, script string) T {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, patience)
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](script))
	if err != nil {
		w.t.Fatalf("run a script: %v", err)
	}
	return v
}

// click clicks the first element that matches a selector, and waits for the page that follows.
func (w *window) click(selector string) {
	w.t.Helper()
	w.do("press "+selector, chromedp.WaitVisible(chromedp.CSS(selector)))
	ctx, cancel := context.WithTimeout(w.ctx, patience)
	defer cancel()
	if _, err := chromedp.RunResponse(ctx, chromedp.Click(chromedp.CSS(selector))); err != nil {
		w.t.Fatalf("press %s: %v", selector, err)
	}
	w.do("wait for the page", chromedp.WaitReady(chromedp.CSS("main")))
}

// fill enters a text into a field.
func (w *window) fill(selector, text string) {
	w.t.Helper()
	w.do("fill "+selector, chromedp.WaitVisible(chromedp.CSS(selector)), chromedp.SendKeys(chromedp.CSS(selector), text))
}

// logIn logs in with the form.
func (w *window) logIn(user, password string) {
	w.t.Helper()
	w.visit("/ui/login")
	w.fill("#user", user)
	w.fill("#password", password)
	w.click("form.login button")
	w.do("find out who is logged in", chromedp.WaitVisible(chromedp.CSS("header .user button")))
}

// look sets the width of the window and the theme.
func (w *window) look(width int64, theme string) {
	w.t.Helper()
	w.size(width, 900, theme)
}

// size sets the size of the window and the theme.
func (w *window) size(width, height int64, theme string) {
	w.t.Helper()
	call(w, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: width, Height: height, DeviceScaleFactor: 1, Mobile: width < 600})
	call(w, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: theme}}})
}

// picture saves a picture of the page.
func (w *window) picture(dir, name string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, patience)
	defer cancel()
	png, err := chromedp.Run(ctx, chromedp.FullScreenshot(100))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644)
	}
	if err != nil {
		w.t.Fatalf("picture of %s: %v", name, err)
	}
}

// pictures returns the directory for pictures.
func pictures(t *testing.T) string {
	dir := os.Getenv("SLIPWAY_SCREENSHOTS")
	if dir == "" {
		dir = t.ArtifactDir()
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// fileName turns a page's path into a file name.
func fileName(path string) string {
	if p, err := url.PathUnescape(path); err == nil {
		path = p
	}
	return strings.Trim(strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '.' {
			return r
		}
		return '_'
	}, fmt.Sprintf("%.80s", strings.TrimPrefix(path, "/ui/"))), "_.")
}

// text returns the text of the page's main part.
func (w *window) text() string {
	w.t.Helper()
	return eval[string](w, `document.querySelector("main").innerText`)
}
