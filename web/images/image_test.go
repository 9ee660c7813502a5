package images_test

import (
	"fmt"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/oci"
	"example.org/slipway/registry/auth"
	"example.org/slipway/web/images"
)

// managed is an Access for one user, who either has all rights or may only pull.
type managed struct{ admin bool }

func (m managed) Open() bool { return false }

func (m managed) Authenticate(*http.Request) (*auth.Identity, error) {
	return &auth.Identity{Name: "somebody", Method: auth.MethodHTPasswd}, nil
}

func (m managed) Listed(*auth.Identity, string) bool { return true }

func (m managed) Allowed(_ *auth.Identity, _ string, act auth.Action) bool {
	return act == auth.Pull || m.admin
}

// TestImageSizes checks that invented sizes do not overflow their sum.
func TestImageSizes(t *testing.T) {
	a := images.NewShelf()
	h := open(t, a, nil)
	sized := func(sizes ...int64) (list []oci.Descriptor) {
		for i, n := range sizes {
			list = append(list, oci.Descriptor{MediaType: "application/vnd.oci.image.layer.v1.tar", Digest: oci.SHA256([]byte{byte(i)}), Size: n})
		}
		return list
	}
	for tag, test := range map[string]struct {
		layers []oci.Descriptor
		want   string
	}{
		"huge": {sized(math.MaxInt64, math.MaxInt64), "Together 8.0 EiB"}, "negative": {sized(-5, 1024), "Together 1.0 KiB"}, "usual": {sized(1024, 1024), "Together 2.0 KiB"},
	} {
		a.Put("lib/app", tag, map[string]any{"layers": test.layers})
		holds(t, h, "/ui/image/lib/app:"+tag, test.want)
	}
}

// TestImageHostileText checks that characters that turn the direction of text or are
// invisible are escaped wherever text from users appears. Commands must keep their lines
// and backslashes.
func TestImageHostileText(t *testing.T) {
	const turn = "\u202e"
	a := images.NewShelf()
	a.State = images.LayerState{Here: true, Waiting: true, Failure: "bad" + turn}
	h := open(t, a, managed{admin: true})
	config := fmt.Sprintf(`{"author":"author%[1]s","os":"os%[1]s","config":{"User":"user%[1]s","Env":["ENV=%[1]s","WINDOWS=C:\\new"],"Labels":{"label%[1]s":"value%[1]s"}},
		"history":[{"created_by":"RUN printf 'a\\n' \\\n\t%[1]s"},{"comment":"comment%[1]s","empty_layer":true}]}`, turn)
	d := a.Push("lib/app", "v1", config, images.Layer(t, images.File("a", "a")))
	m := map[string]any{"config": oci.Descriptor{MediaType: "application/vnd.oci.image.config.v1+json", Digest: oci.SHA256([]byte(config))}, "annotations": map[string]string{"note" + turn: turn},
		"layers": []oci.Descriptor{{MediaType: "application/vnd.oci.image.layer.v1.tar+type" + turn, Digest: d, Size: 1}}, "subject": oci.Descriptor{Digest: oci.Digest("sha256:" + turn)}}
	a.Put("lib/app", "v1", m)
	body := holds(t, h, "/ui/image/lib/app:v1", `author\u202e`, `os\u202e`, `user\u202e`, `ENV=\u202e`, `WINDOWS=C:\new`, `label\u202e`, `value\u202e`, `note\u202e`, `type\u202e`, `comment\u202e`,
		"printf 'a\\n' \\\n\t\\u202e", `not converted: <bdi>bad\u202e`, `sha256:\u202e`)
	if i := strings.Index(body, turn); i >= 0 {
		t.Errorf("the page turns direction at ...%s", body[max(0, i-100):i])
	}
	a.Put("lib/app", "index", map[string]any{"manifests": []map[string]any{{"mediaType": "list" + turn, "digest": "sha256:" + turn, "platform": map[string]string{"os": "linux" + turn, "architecture": "x"}}}})
	if body := holds(t, h, "/ui/image/lib/app:index", `list\u202e`, `linux\u202e/x`); strings.Contains(body, turn) {
		t.Error("the page of an index turns direction")
	}
}

// TestImageFailure checks that a user who may only pull learns what is wrong with a
// layer, and nothing about the server.
func TestImageFailure(t *testing.T) {
	const raw = "spool file: open /var/lib/slipway/spool-1: no space left on device"
	a := images.NewShelf()
	a.State = images.LayerState{Here: true, Waiting: true, Failure: raw}
	a.Push("lib/app", "v1", "{}", images.Layer(t, images.File("a", "a")))
	m := map[string]any{"config": oci.Descriptor{MediaType: "application/vnd.oci.image.config.v1+json", Digest: oci.SHA256([]byte("{}"))},
		"layers": []oci.Descriptor{{MediaType: "application/vnd.oci.image.layer.v1.tar", Digest: oci.SHA256([]byte("layer"))}}}
	a.Put("lib/app", "v1", m)
	admins := open(t, a, managed{admin: true})
	holds(t, admins, "/ui/image/lib/app:v1", raw)
	others := open(t, a, managed{})
	a.Fail = &gear.PendingError{Reason: "entry 3: no path", RetryAfter: time.Second}
	if body := holds(t, others, "/ui/image/lib/app:v1", "entry 3: no path"); strings.Contains(body, "spool") {
		t.Error("who may pull sees paths of the server")
	}
	a.Fail = &gear.PendingError{RetryAfter: time.Second} // it is being tried right now
	if body := holds(t, others, "/ui/image/lib/app:v1", "not converted: <bdi>it is tried again"); strings.Contains(body, "spool") {
		t.Error("who may pull sees paths of the server while a layer is tried again")
	}
}
