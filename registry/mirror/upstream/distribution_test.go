package upstream_test

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"example.org/slipway/internal/backendtest"
	"example.org/slipway/oci"
	"example.org/slipway/oci/client"
	"example.org/slipway/registry/mirror/upstream"
)

// distribution starts Distribution's registry for a user "me" with the password
// "secret", and returns its address.
func distribution(t *testing.T) string {
	t.Helper()
	users := filepath.Join(t.TempDir(), "users")
	ok(t, os.WriteFile(users, []byte("me:$2y$04$WBalGYLzjBeFE16WVgxbOeo1Lt6/16tsBVJbONlZkwQkFOO42drnu\n"), 0o600))
	return backendtest.Distribution(t, fmt.Sprintf("auth:\n  htpasswd:\n    realm: test\n    path: %s\n", users))
}

func TestDistribution(t *testing.T) {
	ctx, addr := t.Context(), distribution(t)
	c, err := client.New("http://"+addr, &client.Options{Username: "me", Password: "secret"})
	ok(t, err)
	t.Cleanup(func() { _ = c.Close() })
	content := make([]byte, 3<<20)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(content)
	d, config := oci.SHA256(content), oci.SHA256([]byte("{}"))
	for _, b := range [][]byte{content, []byte("{}")} {
		_, err := c.PushBlob(ctx, "library/app", oci.SHA256(b), int64(len(b)), bytes.NewReader(b))
		ok(t, err)
	}
	raw := fmt.Sprintf(`{"schemaVersion":2,"mediaType":%q,"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":%q,"size":2},`+
		`"layers":[{"mediaType":"application/octet-stream","digest":%q,"size":%d}]}`, oci.MediaTypeOCIManifest, config, d, len(content))
	put, err := c.PutManifest(ctx, "library/app", oci.PutManifest{Bytes: []byte(raw), MediaType: oci.MediaTypeOCIManifest, Tags: []string{"v1", "v2"}})
	ok(t, err)

	me := client.StaticCredential(addr, "me", "secret")
	for name, o := range map[string]upstream.Options{
		"alone":        {Credential: me},
		"dead mirror":  {Credential: me, Mirrors: []string{gone(t)}},
		"empty mirror": {Credential: me, Mirrors: []string{serve(t, http.NotFound).URL}},
		"TLS options":  {Credential: me, TLS: &tls.Config{InsecureSkipVerify: true}},
	} {
		t.Run(name, func(t *testing.T) {
			u := open(t, "http://"+addr, o)
			for _, ref := range []string{"v1", string(put.Digest)} {
				desc, err := u.ResolveManifest(ctx, "library/app", ref)
				if err != nil || desc.Digest != put.Digest {
					t.Fatalf("%s: got %v, %v", ref, desc, err)
				}
				m, etag, _, err := u.Manifest(ctx, "library/app", ref, "")
				if err != nil || string(m.Bytes) != raw || etag == "" {
					t.Fatalf("%s: got %v, %q, %v", ref, m, etag, err)
				}
				if _, _, unchanged, err := u.Manifest(ctx, "library/app", ref, etag); err != nil || !unchanged {
					t.Errorf("%s: got %t, %v", ref, unchanged, err)
				}
			}
			for _, off := range []int64{0, 1 << 20, int64(len(content)) - 1} {
				b, err := u.Blob(ctx, "library/app", d, off)
				ok(t, err)
				got, err := io.ReadAll(b)
				ok(t, err)
				ok(t, b.Close())
				if b.Off != off || b.Size != int64(len(content)) || !bytes.Equal(got, content[off:]) {
					t.Errorf("from %d: got %d bytes from %d of %d", off, len(got), b.Off, b.Size)
				}
			}
			tags, more, err := u.Tags(ctx, "library/app", "", 10)
			if err != nil || more || strings.Join(tags, " ") != "v1 v2" {
				t.Errorf("got %q, %t, %v", tags, more, err)
			}
			if list, err := u.Referrers(ctx, "library/app", put.Digest); err != nil || len(list) != 0 {
				t.Errorf("got %v, %v", list, err)
			}
			_, _, _, err = u.Manifest(ctx, "library/app", "v3", "")
			want(t, err, upstream.NotFound, oci.CodeManifestUnknown, 404)
			_, err = u.ResolveBlob(ctx, "library/other", d)
			want(t, err, upstream.NotFound, oci.CodeBlobUnknown, 404)
		})
	}
	_, _, _, err = open(t, "http://"+addr, upstream.Options{}).Manifest(ctx, "library/app", "v1", "")
	want(t, err, upstream.Denied, oci.CodeDenied, 403)
}
