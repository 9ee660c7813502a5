package integration

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/tool"
	"example.org/slipway/integration/internal/wire"
)

// TestMultiArch pushes an index of two images with each client that can, and reads it with the
// other clients: as a whole, and as the image of one platform.
func TestMultiArch(t *testing.T) {
	sk, cr, rc := newSkopeo(t), newCrane(t), newRegctl(t)
	s := slipway.Start(t, t.TempDir(), nil)
	index := imagetest.MultiArch(imagetest.Hello(t))
	layout := writeImage(t, index)
	for name, push := range map[string]func(t *testing.T, ref string){
		"skopeo": func(t *testing.T, ref string) {
			sk.copy(t, "oci:"+layout+":t", "docker://"+ref, "--all")
		},
		"crane":  func(t *testing.T, ref string) { cr.run(t, "push", "--index", indexLayout(t, layout), ref) },
		"regctl": func(t *testing.T, ref string) { rc.run(t, ref, "image", "copy", "ocidir://"+layout+":t", ref) },
	} {
		t.Run(name, func(t *testing.T) {
			repo := "multi/" + name
			ref := s.Addr + "/" + repo + ":v1"
			push(t, ref)
			m, err := s.Client.CheckImage(t.Context(), repo, "v1")
			if err != nil {
				t.Fatal(err)
			}
			if m.Digest != index.Top.Digest {
				t.Errorf("the registry holds %s, want %s", m.Digest, index.Top.Digest)
			}
			want := map[string]string{"crane": m.Digest, "regctl": m.Digest, "skopeo": m.Digest}
			got := map[string]string{
				"crane":  cr.run(t, "digest", ref),
				"regctl": rc.run(t, ref, "image", "digest", ref),
				"skopeo": wire.Digest([]byte(sk.env.Run(t, sk.path, "inspect", "--raw", "--tls-verify=false", "docker://"+ref))),
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("digest by client (-want +got):\n%s", diff)
			}
			for i, arch := range []string{"amd64", "arm64"} {
				want := index.Manifests[i].Digest
				if got := cr.run(t, "digest", "--platform", "linux/"+arch, ref); got != want {
					t.Errorf("image of %s is %s, want %s", arch, got, want)
				}
			}
			sk.forget(t, ref)
			sk.env.Run(t, sk.path, append([]string{"--override-arch", runtime.GOARCH},
				sk.copyArgs("docker://"+ref, "oci:"+sk.layout(ref)+":t")...)...)
			if _, output := sk.read(t, ref); !strings.HasPrefix(output, "slipway-ok a=1") {
				t.Errorf("skopeo pulled an image for this machine that prints %q", output)
			}
		})
	}
	s.Stop()
	s.Run("fsck")
}

// TestPushAgainMends loses every object of an index's layers, and pushes the index again
// with each client that can. Most clients leave out an image whose manifest they find.
func TestPushAgainMends(t *testing.T) {
	sk, cr, rc := newSkopeo(t), newCrane(t), newRegctl(t)
	root := t.TempDir()
	s := slipway.Start(t, root, nil)
	layout := writeImage(t, imagetest.MultiArch(imagetest.Hello(t)))
	for name, push := range map[string]func(t *testing.T, ref string){
		"skopeo": func(t *testing.T, ref string) {
			sk.copy(t, "oci:"+layout+":t", "docker://"+ref, "--all")
		},
		"crane":  func(t *testing.T, ref string) { cr.run(t, "push", "--index", indexLayout(t, layout), ref) },
		"regctl": func(t *testing.T, ref string) { rc.run(t, ref, "image", "copy", "ocidir://"+layout+":t", ref) },
	} {
		t.Run(name, func(t *testing.T) {
			repo := "lost/" + name
			push(t, s.Addr+"/"+repo+":v1")
			objects, err := filepath.Glob(filepath.Join(root, "docker/registry/v2/blobs/sha256/*/*/data"))
			if err != nil || len(objects) == 0 {
				t.Fatalf("%d objects to lose, %v", len(objects), err)
			}
			for _, path := range objects {
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := s.Client.CheckImage(t.Context(), repo, "v1"); err == nil {
				t.Fatal("the image is whole without its objects")
			}
			push(t, s.Addr+"/"+repo+":v1")
			if _, err := s.Client.CheckImage(t.Context(), repo, "v1"); err != nil {
				t.Errorf("after a push that ended well: %v", err)
			}
		})
	}
}

// indexLayout returns a copy of an image layout in which the index itself is at the top, which is
// what `crane push --index` reads.
func indexLayout(t *testing.T, layout string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(layout, "index.json"))
	if err != nil {
		t.Fatal(err)
	}
	var top wire.Document
	if err := json.Unmarshal(b, &top); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(layout)); err != nil {
		t.Fatal(err)
	}
	name := strings.TrimPrefix(top.Manifests[0].Digest, "sha256:")
	if b, err = os.ReadFile(filepath.Join(layout, "blobs", "sha256", name)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "index.json"), b, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestArtifacts attaches an artifact to an image with regctl, finds it through
// the referrers API and with regctl, and deletes it.
func TestArtifacts(t *testing.T) {
	sk, rc := newSkopeo(t), newRegctl(t)
	s := slipway.Start(t, t.TempDir(), nil)
	im := imagetest.Hello(t)
	ref := s.Addr + "/app:v1"
	sk.push(t, im, ref)

	const artifactType = "application/vnd.example.sbom.v1+json"
	sbom := filepath.Join(t.TempDir(), "sbom.json")
	if err := os.WriteFile(sbom, []byte(`{"packages":["hello"]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	rc.run(t, ref, "artifact", "put", "--artifact-type", artifactType, "--subject", ref,
		"--annotation", "org.example.kind=sbom", "-f", sbom)
	rc.run(t, ref, "artifact", "put", "--artifact-type", "application/vnd.example.other", "--subject", ref, "-f", sbom)

	referrers := func(filter string) (list wire.Document, header http.Header) {
		t.Helper()
		resp, err := s.Client.Do(t.Context(), http.MethodGet, "/v2/app/referrers/"+im.Top.Digest+filter, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		if resp.Status != http.StatusOK {
			t.Fatalf("referrers: status %d: %s", resp.Status, resp.Body)
		}
		if err := json.Unmarshal(resp.Body, &list); err != nil {
			t.Fatal(err)
		}
		return list, resp.Header
	}
	if all, _ := referrers(""); len(all.Manifests) != 2 {
		t.Fatalf("referrers: %+v, want 2", all.Manifests)
	}
	list, header := referrers("?artifactType=" + url.QueryEscape(artifactType))
	if len(list.Manifests) != 1 || header.Get("OCI-Filters-Applied") != "artifactType" {
		t.Fatalf("referrers filtered by type: %+v with OCI-Filters-Applied %q", list.Manifests, header.Get("OCI-Filters-Applied"))
	}
	d := list.Manifests[0]
	if d.ArtifactType != artifactType || d.Annotations["org.example.kind"] != "sbom" {
		t.Errorf("referrer %+v: want the manifest's artifact type and annotations", d)
	}
	if out := rc.run(t, ref, "artifact", "list", ref, "--filter-artifact-type", artifactType); !strings.Contains(out, d.Digest) {
		t.Errorf("regctl artifact list does not show %s:\n%s", d.Digest, out)
	}
	got := rc.run(t, ref, "artifact", "get", "--subject", ref, "--filter-artifact-type", artifactType)
	if got != `{"packages":["hello"]}` {
		t.Errorf("regctl artifact get: %q", got)
	}

	if err := s.Client.DeleteManifest(t.Context(), "app", d.Digest); err != nil {
		t.Fatal(err)
	}
	if list, _ := referrers("?artifactType=" + url.QueryEscape(artifactType)); len(list.Manifests) != 0 {
		t.Errorf("referrers after the deletion: %+v", list.Manifests)
	}
}

// TestSignatureTag stores a signature where cosign does, under a tag derived from the image's
// digest, and reads it with two clients.
func TestSignatureTag(t *testing.T) {
	sk, cr, rc := newSkopeo(t), newCrane(t), newRegctl(t)
	s := slipway.Start(t, t.TempDir(), nil)
	im := imagetest.Hello(t)
	ref := s.Addr + "/signed:v1"
	sk.push(t, im, ref)
	signature, tag := imagetest.Signature(im.Top.Descriptor)
	sigRef := s.Addr + "/signed:" + tag
	cr.run(t, "push", writeImage(t, signature), sigRef)

	if m, err := s.Client.CheckImage(t.Context(), "signed", tag); err != nil {
		t.Error(err)
	} else if m.Digest != signature.Top.Digest {
		t.Errorf("signature has digest %s, want %s", m.Digest, signature.Top.Digest)
	}
	var doc wire.Document
	if err := json.Unmarshal([]byte(rc.run(t, ref, "manifest", "get", "--format", "raw-body", sigRef)), &doc); err != nil {
		t.Fatal(err)
	}
	if len(doc.Layers) != 1 || doc.Layers[0].Annotations["dev.cosignproject.cosign/signature"] == "" {
		t.Fatalf("regctl reads the signature as %+v", doc)
	}
	payload := cr.run(t, "blob", s.Addr+"/signed@"+doc.Layers[0].Digest)
	if !strings.Contains(payload, im.Top.Digest) {
		t.Errorf("the signature's payload %q does not name the image %s", payload, im.Top.Digest)
	}
	tags := strings.Fields(cr.run(t, "ls", s.Addr+"/signed"))
	if diff := cmp.Diff([]string{tag, "v1"}, tags); diff != "" {
		t.Errorf("tags (-want +got):\n%s", diff)
	}
}

func TestHelm(t *testing.T) {
	helm := tool.Built(t, "helm")
	s := slipway.Start(t, t.TempDir(), nil)
	dir := t.TempDir()
	env := tool.NewEnv(dir)
	chart := imagetest.WriteChart(t, dir, "demo", "1.2.3")
	want, err := os.ReadFile(chart)
	if err != nil {
		t.Fatal(err)
	}
	repo := "oci://" + s.Addr + "/charts"
	env.Run(t, helm, "push", chart, repo, "--plain-http")
	if _, err := s.Client.CheckImage(t.Context(), "charts/demo", "1.2.3"); err != nil {
		t.Fatal(err)
	}

	if out := env.Run(t, helm, "show", "chart", repo+"/demo", "--version", "1.2.3", "--plain-http"); !strings.Contains(out, "version: 1.2.3") {
		t.Errorf("helm show chart: %q", out)
	}
	pulled := t.TempDir()
	// Without a version helm lists the tags and takes the newest.
	env.Run(t, helm, "pull", repo+"/demo", "--plain-http", "-d", pulled)
	got, err := os.ReadFile(filepath.Join(pulled, "demo-1.2.3.tgz"))
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, want) {
		t.Errorf("the pulled chart has digest %s, want %s", wire.Digest(got), wire.Digest(want))
	}

	removeImage(t, s.Client, "charts/demo", "1.2.3")
	env.RunFailing(t, helm, "pull", repo+"/demo", "--version", "1.2.3", "--plain-http", "-d", t.TempDir())
}

// TestBigLayer pushes and pulls a layer that is five times as large as the server may grow. The
// server must not hold it in memory.
func TestBigLayer(t *testing.T) {
	const maxRSS = 100 << 20
	size := int64(number(t, "SLIPWAY_BIG_LAYER_MIB", 512)) << 20
	cr := newCrane(t)
	s := slipway.Start(t, t.TempDir(), nil)
	layout := filepath.Join(t.TempDir(), "big")
	layer, manifest := imagetest.WriteBigLayout(t, layout, "t", size)
	ref := s.Addr + "/big:v1"
	cr.run(t, "push", layout, ref)
	removeAll(t, layout)

	m, err := s.Client.CheckImage(t.Context(), "big", "v1")
	if err != nil {
		t.Fatal(err)
	}
	if m.Digest != manifest.Digest {
		t.Errorf("manifest is %s, want %s", m.Digest, manifest.Digest)
	}
	if got := digestOfOutput(t, cr.env, cr.path, "--insecure", "blob", s.Addr+"/big@"+layer.Digest); got != layer.Digest {
		t.Errorf("crane blob prints content with digest %s, want %s", got, layer.Digest)
	}
	resp, err := s.Client.Do(t.Context(), http.MethodGet, "/v2/big/blobs/"+layer.Digest,
		http.Header{"Range": {fmt.Sprintf("bytes=%d-", size-1024)}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	// The archive ends in two blocks of zeros.
	if want := string(make([]byte, 1024)); resp.Status != http.StatusPartialContent || string(resp.Body) != want {
		t.Errorf("last 1024 bytes: status %d, %d bytes", resp.Status, len(resp.Body))
	}
	peak, err := s.Process.PeakRSS()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("largest resident set of the server: %d MB", peak>>20)
	if peak > maxRSS {
		t.Errorf("the server's resident set reached %d bytes, want at most %d", peak, maxRSS)
	}
	removeImage(t, s.Client, "big", "v1")
}

// digestOfOutput returns the digest of what a command prints, without holding the output in memory.
func digestOfOutput(t *testing.T, env *tool.Env, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Env, cmd.Dir = env.Vars(), env.Dir()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	h := sha256.New()
	_, copyErr := io.Copy(h, out)
	if err := cmd.Wait(); err != nil || copyErr != nil {
		t.Fatalf("%s %v: %v, %v", name, args, err, copyErr)
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}

// TestManyTags puts 10,000 tags on one image and lists them with each client.
func TestManyTags(t *testing.T) {
	const (
		count   = 10_000
		workers = 16
	)
	sk, cr, rc := newSkopeo(t), newCrane(t), newRegctl(t)
	s := slipway.Start(t, t.TempDir(), nil)
	im := imagetest.Hello(t)
	sk.push(t, im, s.Addr+"/many:first")

	want := []string{"first"}
	todo := make(chan string)
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for tag := range todo {
				if _, err := s.Client.PutManifest(t.Context(), "many", tag, im.Top.MediaType, im.Top.Data); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range count - 1 {
		tag := fmt.Sprintf("build-%d", i)
		want = append(want, tag)
		todo <- tag
	}
	close(todo)
	wg.Wait()
	slices.Sort(want)

	for name, list := range map[string]func(t *testing.T) []string{
		"crane": func(t *testing.T) []string { return strings.Fields(cr.run(t, "ls", s.Addr+"/many")) },
		"regctl": func(t *testing.T) []string {
			return strings.Fields(rc.run(t, s.Addr+"/many", "tag", "ls", s.Addr+"/many"))
		},
		"skopeo": func(t *testing.T) []string {
			var out struct{ Tags []string }
			text := sk.env.Run(t, sk.path, "list-tags", "--tls-verify=false", "docker://"+s.Addr+"/many")
			if err := json.Unmarshal([]byte(text), &out); err != nil {
				t.Fatal(err)
			}
			return out.Tags
		},
		"pages": func(t *testing.T) []string {
			tags, err := s.Client.Tags(t.Context(), "many", 999)
			if err != nil {
				t.Fatal(err)
			}
			return tags
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := list(t)
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("%d tags, want %d; difference:\n%.2000s", len(got), len(want), cmp.Diff(want, got))
			}
		})
	}
}
