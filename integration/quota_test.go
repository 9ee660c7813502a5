package integration

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/slipway"
)

// TestQuotaOfClients pushes with skopeo beyond quotas of bytes and of tags. It must say why the push
// was refused, and what was there before must stay.
func TestQuotaOfClients(t *testing.T) {
	root := filepath.Join(t.TempDir(), "root")
	s := slipway.Start(t, root, &slipway.Options{Config: fmt.Sprintf(`version: 0.1
storage:
  filesystem: {rootdirectory: %q}
  quotas:
    - {repositories: ["small/**"], bytes: 2KiB}
    - {repositories: ["few/**"], tags: 1}
`, root)})
	im, k := imagetest.Hello(t), newSkopeo(t)
	push := func(ref string) (string, error) {
		return k.env.Try(t.Context(), k.path, k.copyArgs("oci:"+writeImage(t, &im.Bundle)+":t", "docker://"+s.Addr+"/"+ref)...)
	}
	for ref, refused := range map[string]string{"small/app:1": "quota of small/** is reached", "free/app:1": ""} {
		out, err := push(ref)
		if (err != nil) != (refused != "") || err != nil && !strings.Contains(out+err.Error(), refused) {
			t.Errorf("push %s: %v, want it refused with %q; skopeo says:\n%s", ref, err, refused, out)
		}
	}
	if out, err := push("few/app:1"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if out, err := push("few/app:2"); err == nil || !strings.Contains(out+err.Error(), "1 of 1 tags are used") {
		t.Errorf("a second tag: %v\n%s", err, out)
	}
	if out, err := push("few/app:1"); err != nil {
		t.Errorf("a tag that is there already: %v\n%s", err, out)
	}
	for _, repo := range []string{"few/app", "free/app"} {
		if _, err := s.Client.CheckImage(t.Context(), repo, "1"); err != nil {
			t.Errorf("%s is damaged: %v", repo, err)
		}
	}
}
