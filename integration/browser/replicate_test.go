package browser

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/chromedp/chromedp"

	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/slipway"
)

// TestReplicate looks at a rule of replication, sees what it would do, runs it, and finds out why one
// image was not copied: in all shapes.
func TestReplicate(t *testing.T) {
	there := slipway.Start(t, filepath.Join(t.TempDir(), "there"), &slipway.Options{Config: "version: 0.1\nstorage: {delete: {enabled: true}, quotas: [{repositories: [\"full/**\"], tags: 1}]}\n"})
	key := filepath.Join(t.TempDir(), "release.pub")
	by := newSigner(t, key)
	here := slipway.Start(t, filepath.Join(t.TempDir(), "here"), &slipway.Options{Config: fmt.Sprintf("version: 0.1\nreplication: [{name: second, url: \"http://%s\", repositories: [\"**\"]}]\n"+
		"signatures: [{name: release, key: %s, repositories: [\"**\"]}]\n", there.Addr, key)})
	im := imagetest.Hello(t)
	push(t, there, "full/app", "other", &im.Bundle)
	push(t, here, "full/app", "v1", &im.Bundle)
	push(t, here, "free/app", "v1", &im.Bundle)
	signature, tag := by.sign(t, im.Top.Descriptor)
	push(t, here, "free/app", tag, signature)
	dir := pictures(t)
	w := open(t, "http://"+here.Addr)
	for i, shape := range shapes {
		w.look(shape.width, shape.theme)
		see := func(path, text, page string) {
			t.Helper()
			w.see(path, text, dir, fmt.Sprintf("replicate-%s-%d-%s", page, shape.width, shape.theme))
		}
		w.visit("/ui/repo/free/app")
		see("/ui/repo/free/app", "signed: release", "badge")
		w.visit("/ui/replication")
		w.click(`a[aria-label="Run second"]`)
		w.click(`form.action button[value="preview"]`)
		w.do("wait for the preview", chromedp.WaitVisible(chromedp.CSS(`[data-test="outcome"]`)))
		see("/ui/replication/run", "nothing was changed", "preview")
		w.click(`form.action button[value="run"]`)
		w.do("wait for the run", chromedp.WaitVisible(chromedp.CSS(`.note.bad`)))
		see("/ui/replication/run", "the quota of full/** is reached", "run")
		w.visit("/ui/replication")
		see("/ui/replication", "the quota of full/** is reached", "state")
		for _, ref := range []string{"v1", tag} {
			if _, err := there.Client.GetManifest(t.Context(), "free/app", ref); err != nil {
				t.Errorf("round %d: %s is not at the second registry: %v", i, ref, err)
			}
		}
		if err := there.Client.DeleteManifest(t.Context(), "free/app", "v1"); err != nil {
			t.Fatal(err)
		}
	}
	w.check("on the way")
}
