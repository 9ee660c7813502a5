package browser

import (
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"example.org/slipway/integration/internal/imagetest"
)

// TestManage has an administrator create a token for a robot, see that a quota is reached, delete
// several tags together and take that back, look up who did that, and revoke the token: in a narrow
// and in a wide window without scripts, and once with them.
func TestManage(t *testing.T) {
	s := registry(t)
	for _, tag := range []string{"one", "two"} {
		push(t, s, "bounded/app", tag, &imagetest.Hello(t).Bundle)
	}
	dir := pictures(t)
	for name, c := range map[string]struct {
		width   int64
		scripts bool
	}{"narrow": {375, false}, "wide": {1280, false}, "with-scripts": {1280, true}} {
		t.Run(name, func(t *testing.T) {
			w := open(t, "http://"+s.Addr)
			w.look(c.width, "light")
			call(w, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: !c.scripts})
			see := func(path, text, page string) {
				t.Helper()
				w.see(path, text, dir, "manage-"+page+"-"+name)
			}
			choose := func(selector string) {
				t.Helper()
				w.do("choose "+selector, chromedp.Click(chromedp.CSS(selector)))
			}
			w.logIn("root", "secret of root")

			w.click(`nav a[href="/ui/tokens"]`)
			see("/ui/tokens", "There are no API tokens yet", "tokens")
			w.fill("#robot", "ci")
			choose(`input[name="actions0"][value="push"]`)
			w.fill("#repositories0", "team/**")
			w.click(`form.action button[value="create"]`)
			see("/ui/tokens", "Copy it now", "created")
			secret := strings.TrimSpace(eval[string](w, `document.querySelector("pre[data-copy]").innerText`))
			button := eval[string](w, `document.querySelector("pre[data-copy]").nextElementSibling?.getAttribute("aria-label") || ""`)
			if got := button == "Copy: API token"; got != c.scripts {
				t.Errorf("there is a button to copy the token: %v", got)
			}
			robot := s.Client.As("ci", secret)
			if _, err := robot.GetManifest(t.Context(), "team/hello", "1.0.0"); err != nil {
				t.Errorf("the token does not permit what it says: %v", err)
			}
			if _, err := robot.GetManifest(t.Context(), "bounded/app", "one"); err == nil {
				t.Error("the token permits more than it says")
			}

			// A count of the quota may be from the time before the last tags came back.
			for deadline := time.Now().Add(2 * patience); time.Now().Before(deadline); {
				push(t, s, "bounded/app", "one", &imagetest.Hello(t).Bundle)
				w.visit("/ui/")
				w.click(`nav a[href="/ui/storage"]`)
				if strings.Contains(w.text(), "The quota of") {
					break
				}
			}
			see("/ui/storage", "The quota of bounded/** is reached", "storage")
			w.visit("/ui/repo/bounded/app")
			see("/ui/repo/bounded/app", "reached, so pushes are refused", "repo")
			choose(`input[name="ref"][value="one"]`)
			choose(`input[name="ref"][value="two"]`)
			w.click(`button[form="chosen"]`)
			see("/ui/delete/bounded/app?ref=", "Delete these 2", "chosen")
			w.click("form button.danger")
			see("/ui/repo/bounded/app", "The tag two was deleted", "deleted")
			for _, tag := range []string{"one", "two"} {
				if _, err := s.Client.GetManifest(t.Context(), "bounded/app", tag); err == nil {
					t.Errorf("%s is still there", tag)
				}
			}
			w.click(".note button")
			w.want("/ui/repo/bounded/app", "two")
			for _, tag := range []string{"one", "two"} {
				if _, err := s.Client.GetManifest(t.Context(), "bounded/app", tag); err != nil {
					t.Errorf("%s is not back: %v", tag, err)
				}
			}

			w.click(`nav a[href="/ui/tokens"]`)
			if strings.Contains(w.text(), secret) {
				t.Error("a token is shown twice")
			}
			w.click(`td a[href^="/ui/tokens?revoke="]`)
			see("/ui/tokens?revoke=", "refused at once", "revoke")
			w.click("form button.danger")
			w.want("/ui/tokens?revoked=1", "1 token was revoked")
			if _, err := robot.GetManifest(t.Context(), "team/hello", "1.0.0"); err == nil {
				t.Error("a revoked token is accepted")
			}

			events := listener(t) + "/path-of-the-hook"
			w.addWebhook("ci", events)
			see("/ui/webhooks?done=add", "push, tag, delete", "webhook-added")
			w.click(`button[aria-label="Test ci"]`)
			see("/ui/webhooks", "ci answered 200 to the test", "webhook-tested")
			w.click(`button[aria-label="Pause ci"]`)
			see("/ui/webhooks?done=pause", "ci is paused", "webhook-paused")
			w.click(`a[aria-label="Change ci"]`)
			choose(`input[name="events"][value="pull"]`)
			w.click(`form.action button[value="change"]`)
			see("/ui/webhooks?done=change", "push, tag, delete, pull in team/**", "webhook-changed")
			if html := eval[string](w, `document.documentElement.outerHTML`); strings.Contains(html, "path-of-the-hook") || strings.Contains(html, "open sesame") {
				t.Error("the page has a credential of a webhook")
			}
			w.click(`a[aria-label="Remove ci"]`)
			see("/ui/webhooks?remove=ci", "the events that wait for it are lost", "webhook-remove")
			w.click("form button.danger")
			see("/ui/webhooks?done=remove", "ci was removed", "webhook-removed")

			w.click(`nav a[href="/ui/activity"]`)
			see("/ui/activity", "revoke token", "activity")
			w.fill("#user", "root")
			w.fill("#repository", "bounded/**")
			w.click(`form[role="search"] button`)
			see("/ui/activity?user=root&repository=bounded", "restore", "filtered")
			if text := eval[string](w, `document.querySelector("table").innerText`); strings.Contains(text, "revoke token") || !strings.Contains(text, "delete") || !strings.Contains(text, "restore") {
				t.Errorf("the filter does not show what it should:\n%s", text)
			}
			w.check(name)
		})
	}
}
