package browser

import (
	"archive/tar"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/crypto/bcrypt"

	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/slipway"
)

// evil is an example of a script in somebody's page.
const evil = `<img src=x onerror="window.hurt=1"><script>window.hurt=1</script>`

// registry starts a server with two users and some images: alice may read, root may do everything.
func registry(t *testing.T) *slipway.Server {
	t.Helper()
	s, _ := signedRegistry(t)
	return s
}

// signedRegistry starts such a server, and returns it with the signer that it knows as release.
func signedRegistry(t *testing.T) (*slipway.Server, *signer) {
	t.Helper()
	dir := t.TempDir()
	users := filepath.Join(dir, "htpasswd")
	var lines string
	for _, u := range []string{"alice", "root"} {
		hash, err := bcrypt.GenerateFromPassword([]byte("secret of "+u), bcrypt.MinCost)
		if err != nil {
			t.Fatal(err)
		}
		lines += u + ":" + string(hash) + "\n"
	}
	if err := os.WriteFile(users, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	reports := filepath.Join(dir, "reports", "first")
	if err := os.MkdirAll(reports, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(reports, "index.html"), []byte("<!doctype html><title>r</title><style>p{color:green}</style><p>A report.</p>"), 0o644); err != nil {
		t.Fatal(err)
	}
	key := filepath.Join(dir, "release.pub")
	by := newSigner(t, key)
	s := slipway.Start(t, filepath.Join(dir, "root"), &slipway.Options{Config: fmt.Sprintf(`
version: 0.1
storage:
  delete: {enabled: true}
  gc: {grace: 5m, untagged: delete}
  immutable_tags: [{repositories: [team/fixed], tags: [".*"]}]
  quotas: [{repositories: ["bounded/**"], tags: 2}]
auth:
  htpasswd: {path: %s}
  access:
    - {repositories: ["team/**"], subjects: [alice], actions: [pull]}
    - {repositories: ["**"], subjects: [root], actions: ["*", admin]}
log: {accesslog: {disabled: true}, audit: {file: %s}}
web: {reports: %s}
proxy:
  upstreams: [{name: docker.io, url: "http://127.0.0.1:9"}]
`, users, filepath.Join(dir, "audit.log"), filepath.Dir(reports)) + rules(t, key)})
	s.Client = s.Client.As("root", "secret of root")
	pushAll(t, s)
	pushDocumented(t, s, by)
	reportNodes(t, s)
	s.Converted()
	return s, by
}

// pushAll pushes images of all kinds.
func pushAll(t *testing.T, s *slipway.Server) {
	t.Helper()
	base := imagetest.NewLayer(imagetest.File{Name: "etc/"}, imagetest.File{Name: "etc/hosts", Data: []byte("127.0.0.1 localhost\n")},
		imagetest.File{Name: "usr/"}, imagetest.File{Name: "usr/lib/"}, imagetest.File{Name: "usr/lib/libbig.so", Data: []byte(strings.Repeat("library ", 40_000))})
	app := func(version string) imagetest.Layer {
		return imagetest.NewLayer(imagetest.File{Name: "app/"}, imagetest.File{Name: "app/version", Data: []byte(version)},
			imagetest.File{Name: "app/main", Mode: 0o755, Data: []byte(strings.Repeat("code of "+version, 3000))})
	}
	run := map[string]any{"Cmd": []string{"/app/main", "--serve"}, "Env": []string{"PATH=/usr/bin", "MODE=production"}, "User": "65532",
		"ExposedPorts": map[string]any{"8080/tcp": map[string]any{}}, "Labels": map[string]string{"org.opencontainers.image.title": "An application", "note": evil}}
	for _, v := range []string{"1.0.0", "1.1.0"} {
		push(t, s, "team/hello", v, imagetest.Compose(runtime.GOARCH, run, []imagetest.Layer{base, app(v)}))
	}
	push(t, s, "team/hello", "multi", imagetest.MultiArch(imagetest.Hello(t)))
	push(t, s, "team/fixed", "v1", &imagetest.Hello(t).Bundle)
	push(t, s, "private/"+strings.Repeat("deep/", 12)+"app", "latest", imagetest.Compose(runtime.GOARCH, run, []imagetest.Layer{base, app("private")}))
	top := imagetest.Hello(t)
	push(t, s, "team/signed", "1", &top.Bundle)
	signature, tag := imagetest.Signature(top.Top.Descriptor)
	push(t, s, "team/signed", tag, signature)
	push(t, s, "team/signed", "sbom", imagetest.Artifact("application/spdx+json", "application/spdx+json", []byte(`{"spdxVersion":"SPDX-2.3"}`), &top.Top.Descriptor, map[string]string{"title": evil}))
	hostile := (&imagetest.Archive{}).Dir(evil).File(evil+"/"+evil, "x").File("line\nbreak\ttab", "y").File("not-utf8-\xff\xfe", "z").
		File("\u202efdp.exe", "r").File(strings.Repeat("long", 60), "l").File("javascript:alert(1)", "j").
		Symlink("link", evil).Add(tar.Header{Typeflag: tar.TypeReg, Name: "..name", PAXRecords: map[string]string{"SCHILY.xattr.user.x": evil}}, []byte("q"))
	push(t, s, "team/hostile", "evil", imagetest.Compose(runtime.GOARCH, map[string]any{"Cmd": []string{evil}, "Env": []string{"X=" + evil}, "User": evil,
		"WorkingDir": evil, "Labels": map[string]string{evil: evil, "url": "javascript:alert(1)"}}, []imagetest.Layer{hostile.Layer()}))
	for i := range 130 {
		push(t, s, fmt.Sprintf("many/repository-%03d", i), "latest", &top.Bundle)
	}
}

// push pushes a bundle with a tag.
func push(t *testing.T, s *slipway.Server, repo, tag string, b *imagetest.Bundle) {
	t.Helper()
	if err := b.Push(t.Context(), s.Client, repo, tag); err != nil {
		t.Fatalf("%s:%s: %v", repo, tag, err)
	}
}
