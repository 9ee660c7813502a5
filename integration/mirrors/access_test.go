package mirrors

import (
	"net/http"
	"testing"

	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/wire"
)

// TestAccess checks that content that is private upstream is only available to those that the rules
// allow. That must hold before and after it is in the mirror, under every name that leads to it.
// Public content must be available to everybody.
func TestAccess(t *testing.T) {
	b := newBed(t)
	im := imagetest.Hello(t)
	multi := imagetest.MultiArch(im)
	b.public.push("library/hello", "v1", multi)
	b.private.push("team/hello", "v1", multi)
	anonymous := b.mirror.Client
	bob, mallory := anonymous.As(user, password), anonymous.As(user, "guessed")
	layer := im.Blobs[0].Digest

	refused := func(when string, c *wire.Client) {
		t.Helper()
		for _, path := range []string{
			"/v2/" + private + "/team/hello/manifests/v1",
			"/v2/" + private + "/team/hello/manifests/" + multi.Top.Digest,
			"/v2/" + private + "/team/hello/blobs/" + layer,
			"/v2/team/hello/manifests/v1?ns=" + private,
			"/v2/team/hello/blobs/" + layer + "?ns=" + private,
			"/v2/" + private + "/team/hello/tags/list",
		} {
			resp, err := c.Do(t.Context(), http.MethodGet, path, nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			if resp.Status != http.StatusUnauthorized && resp.Status != http.StatusForbidden {
				t.Errorf("%s: GET %s: status %d, want 401 or 403", when, path, resp.Status)
			}
		}
	}
	whole := func(when string, c *wire.Client, repo string) {
		t.Helper()
		for _, ref := range []string{"v1", multi.Top.Digest} {
			m, err := c.CheckImage(t.Context(), repo, ref)
			if err != nil {
				t.Errorf("%s: %v", when, err)
			} else if m.Digest != multi.Top.Digest || string(m.Bytes) != string(multi.Top.Data) {
				t.Errorf("%s: %s:%s is %s, want %s", when, repo, ref, m.Digest, multi.Top.Digest)
			}
		}
	}
	refused("before it is here, without a password", anonymous)
	refused("before it is here, with a wrong password", mallory)
	whole("first", anonymous, public+"/library/hello")
	whole("first", bob, private+"/team/hello")
	refused("when it is here, without a password", anonymous)
	b.public.kill()
	b.private.kill()
	whole("without upstreams", anonymous, public+"/library/hello")
	whole("without upstreams, by the name at the hub", anonymous, "library/hello")
	whole("without upstreams, by the short name", anonymous, public+"/hello")
	whole("without upstreams", bob, private+"/team/hello")
	refused("without upstreams", anonymous)
}
