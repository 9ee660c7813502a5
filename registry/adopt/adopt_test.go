package adopt_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"example.org/slipway/registry/adopt"

	"example.org/slipway/registry/check"

	"example.org/slipway/registry/registrytest"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/objstore/fsstore"
	"example.org/slipway/registry/storage"
)

// distribution is a real Distribution registry over a directory.
type distribution struct {
	t    *testing.T
	root string
	base string
}

// startDistribution starts the registry that Debian calls docker-registry.
func startDistribution(t *testing.T, root string) *distribution {
	t.Helper()
	bin, err := exec.LookPath("docker-registry")
	if err != nil {
		t.Skipf("no Distribution registry to write a storage: %v", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	config := filepath.Join(t.TempDir(), "config.yml")
	err = os.WriteFile(config, []byte(fmt.Sprintf(`
version: 0.1
log: {level: error, accesslog: {disabled: true}}
storage:
  filesystem: {rootdirectory: %q}
  delete: {enabled: true}
http: {addr: %q}
`, root, addr)), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	cmd := exec.Command(bin, "serve", config)
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it keeps nothing in RAM
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("docker-registry said:\n%s", log.String())
		}
	})
	d := &distribution{t, root, "http://" + addr}
	deadline := time.Now().Add(20 * time.Second)
	for {
		res, err := http.Get(d.base + "/v2/")
		if err == nil {
			res.Body.Close()
			return d
		}
		if time.Now().After(deadline) {
			t.Fatalf("docker-registry does not answer: %v\n%s", err, log.String())
		}
		time.Sleep(20 * time.Millisecond) // between two polls
	}
}

func (d *distribution) do(method, path, contentType string, body []byte, want int) http.Header {
	d.t.Helper()
	if !strings.HasPrefix(path, "http") {
		path = d.base + path
	}
	req, err := http.NewRequestWithContext(d.t.Context(), method, path, bytes.NewReader(body))
	if err != nil {
		d.t.Fatal(err)
	}
	req.Header.Set("Content-Type", contentType)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		d.t.Fatal(err)
	}
	defer res.Body.Close()
	answer, _ := io.ReadAll(res.Body)
	if res.StatusCode != want {
		d.t.Fatalf("%s %s: status %d, want %d: %s", method, path, res.StatusCode, want, answer)
	}
	return res.Header
}

func (d *distribution) pushBlob(repo string, b []byte) oci.Descriptor {
	d.t.Helper()
	dgst := oci.SHA256(b)
	at := d.do("POST", "/v2/"+repo+"/blobs/uploads/", "", nil, 202).Get("Location")
	u, err := url.Parse(at)
	if err != nil {
		d.t.Fatal(err)
	}
	q := u.Query()
	q.Set("digest", string(dgst))
	u.RawQuery = q.Encode()
	d.do("PUT", u.String(), oci.MediaTypeOctetStream, b, 201)
	return oci.Descriptor{MediaType: "application/vnd.oci.image.layer.v1.tar", Digest: dgst, Size: int64(len(b))}
}

func (d *distribution) pushManifest(repo, ref string, doc registrytest.Image) oci.Descriptor {
	d.t.Helper()
	b, err := json.Marshal(doc)
	if err != nil {
		d.t.Fatal(err)
	}
	if ref == "" {
		ref = string(oci.SHA256(b))
	}
	d.do("PUT", "/v2/"+repo+"/manifests/"+ref, doc.MediaType, b, 201)
	return oci.Descriptor{MediaType: doc.MediaType, Digest: oci.SHA256(b), Size: int64(len(b))}
}

func (d *distribution) pushImage(repo, ref string, seed uint64, layers ...[]byte) oci.Descriptor {
	d.t.Helper()
	config := d.pushBlob(repo, []byte(fmt.Sprintf(`{"os":"linux","seed":%d}`, seed)))
	config.MediaType = "application/vnd.oci.image.config.v1+json"
	var list []oci.Descriptor
	for _, l := range layers {
		list = append(list, d.pushBlob(repo, l))
	}
	return d.pushManifest(repo, ref, registrytest.ImageOf(config, list...))
}

// write puts a file into the storage.
func (d *distribution) write(key string, data []byte) {
	d.t.Helper()
	path := filepath.Join(d.root, key)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		d.t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o644); err != nil {
		d.t.Fatal(err)
	}
}

// tree returns the storage's files with their bytes and times, except those that identify the
// storage's owner.
func (d *distribution) tree() map[string]string {
	d.t.Helper()
	out := map[string]string{}
	for _, f := range registrytest.Files(d.t, d.root) {
		if storage.IsIdentity(f) {
			continue
		}
		b, err := os.ReadFile(filepath.Join(d.root, f))
		if err != nil {
			d.t.Fatal(err)
		}
		info, err := os.Stat(filepath.Join(d.root, f))
		if err != nil {
			d.t.Fatal(err)
		}
		out[f] = fmt.Sprint(info.ModTime().UnixNano(), " ", string(oci.SHA256(b)))
	}
	return out
}

const links = "docker/registry/v2/repositories/"

func TestAdoptDistribution(t *testing.T) {
	d := startDistribution(t, t.TempDir())
	shared := registrytest.Content(1, 200_000)
	one := d.pushImage("app", "v1", 1, shared, registrytest.Content(2, 3000))
	d.pushImage("app", "v2", 2, shared, registrytest.Content(3, 70_000), []byte{})
	d.do("PUT", "/v2/app/manifests/latest", one.MediaType, manifestOf(t, d, "app", "v1"), 201)
	amd := d.pushImage("team/sub/tool", "", 3, shared)
	arm := d.pushImage("team/sub/tool", "", 4, registrytest.Content(4, 20_000))
	d.pushManifest("team/sub/tool", "multi", registrytest.IndexOf(amd, arm))
	gone := d.pushImage("app", "gone", 5, registrytest.Content(5, 30_000))
	d.do("DELETE", "/v2/app/manifests/"+string(gone.Digest), "", nil, 202)
	unused := d.pushBlob("app", registrytest.Content(6, 40_000))
	docker := registrytest.ImageOf(d.pushBlob("app/old", []byte("{}")), d.pushBlob("app/old", registrytest.Content(7, 100)))
	docker.MediaType, docker.Config.MediaType = oci.MediaTypeDockerManifest, "application/vnd.docker.container.image.v1+json"
	docker.Layers[0].MediaType = "application/vnd.docker.image.rootfs.diff.tar.gzip"
	d.pushManifest("app/old", "docker", docker)

	// Years of use leave this: a lost blob, an old manifest, a link that a crash cut short, and a
	// tag that points nowhere.
	broken := registrytest.Content(8, 50_000)
	d.pushImage("broken", "v1", 6, broken)
	if err := os.Remove(filepath.Join(d.root, storage.BlobKey(oci.SHA256(broken)))); err != nil {
		t.Fatal(err)
	}
	schema1 := []byte(`{"schemaVersion":1,"name":"old","tag":"v1","fsLayers":[],"history":[]}`)
	d.write(storage.BlobKey(oci.SHA256(schema1)), schema1)
	d.write(links+"app/_manifests/revisions/sha256/"+oci.SHA256(schema1).Encoded()+"/link", []byte(oci.SHA256(schema1)))
	d.write(links+"app/_manifests/tags/schema1/current/link", []byte(oci.SHA256(schema1)))
	d.write(links+"app/_manifests/tags/cut/current/link", nil)

	before := d.tree()
	store, err := fsstore.New(d.root, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	b := registrytest.New(t, store, registry.Options{Grace: time.Hour})
	b.Clock.Set(time.Now())
	rep, err := adopt.Run(t.Context(), b.Cat, store, adopt.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	want := adopt.Report{
		Repositories: 4, Blobs: 16, Manifests: 7, Tags: 6, NewBlobs: 16, NewManifests: 7, NewTags: 6, Bytes: rep.Bytes,
		Counts: map[string]int{adopt.MissingBlob: 1, adopt.Incomplete: 1, adopt.Schema1: 1, adopt.Dangling: 1, adopt.Malformed: 1},
		Notes:  rep.Notes, Took: rep.Took,
	}
	if diff := cmp.Diff(want, rep); diff != "" {
		t.Errorf("report (-want +got):\n%s\n%+v", diff, rep.Notes)
	}
	checkAdopted(t, d, b, unused.Digest)

	if again, err := adopt.Run(t.Context(), b.Cat, store, adopt.Options{Logger: slog.New(slog.DiscardHandler)}); err != nil || again.NewBlobs+again.NewManifests+again.NewTags != 0 || again.Bytes != 0 || again.Blobs != 16 {
		t.Errorf("the second time: %+v, %v", again, err)
	}
	if diff := cmp.Diff(before, d.tree()); diff != "" {
		t.Errorf("the storage was changed (-before +after):\n%s", diff)
	}
	if found := b.Check(check.Options{Repair: true}); !slices.Equal(registrytest.Kinds(found), []string{"image-incomplete"}) || found.Foreign != 2 {
		t.Errorf("fsck found %v and %d foreign objects, want the broken image, and the deleted manifest and the one of schema 1", registrytest.Kinds(found), found.Foreign)
	}

	if diff := cmp.Diff(before, d.tree()); diff != "" {
		t.Errorf("fsck changed the storage (-before +after):\n%s", diff)
	}

	// Content that nothing names is removed after the grace period; what is named stays.
	b.Clock.Add(2 * time.Hour)
	if _, err := b.Collect(t.Context(), registry.CollectOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.ResolveBlob(t.Context(), "app", unused.Digest); !oci.HasCode(err, oci.CodeBlobUnknown) {
		t.Errorf("an unused layer after collection: %v", err)
	}
	checkAdopted(t, d, b, "")
}

// manifestOf reads a manifest from Distribution.
func manifestOf(t *testing.T, d *distribution, repo, ref string) []byte {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "GET", d.base+"/v2/"+repo+"/manifests/"+ref, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header["Accept"] = []string{oci.MediaTypeOCIManifest, oci.MediaTypeOCIIndex, oci.MediaTypeDockerManifest}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != 200 {
		t.Fatalf("read %s of %s from docker-registry: %d %v", ref, repo, res.StatusCode, err)
	}
	return b
}

// checkAdopted reads everything that was adopted and compares it with what Distribution serves.
func checkAdopted(t *testing.T, d *distribution, b *registrytest.Bed, unused oci.Digest) {
	t.Helper()
	ctx := t.Context()
	repos, _, err := b.Repositories(ctx, "", 100)
	if diff := cmp.Diff([]string{"app", "app/old", "broken", "team/sub/tool"}, repos); diff != "" || err != nil {
		t.Errorf("repositories (%v):\n%s", err, diff)
	}
	for repo, want := range map[string]string{"app": "latest v1 v2", "app/old": "docker", "team/sub/tool": "multi", "broken": "v1"} {
		tags, _, err := b.Tags(ctx, repo, "", 100)
		if got := strings.Join(tags, " "); err != nil || got != want {
			t.Errorf("tags of %s: %q, want %q (%v)", repo, got, want, err)
		}
		for _, tag := range tags {
			m, err := b.GetManifest(ctx, repo, tag)
			if err != nil {
				t.Errorf("%s:%s: %v", repo, tag, err)
				continue
			}
			if want := manifestOf(t, d, repo, tag); !bytes.Equal(m.Bytes, want) {
				t.Errorf("%s:%s is %s, docker-registry says %s", repo, tag, m.Bytes, want)
			}
			checkImage(t, b, repo, m)
		}
	}
	if unused != "" {
		if _, err := b.ResolveBlob(ctx, "app", unused); err != nil {
			t.Errorf("an unused layer: %v", err)
		}
		if _, err := b.ResolveBlob(ctx, "app/old", unused); !oci.HasCode(err, oci.CodeBlobUnknown) {
			t.Errorf("a layer of app is visible in app/old: %v", err)
		}
	}
}

func checkImage(t *testing.T, b *registrytest.Bed, repo string, m *oci.Manifest) {
	t.Helper()
	var doc registrytest.Image
	if err := json.Unmarshal(m.Bytes, &doc); err != nil {
		t.Fatal(err)
	}
	for _, c := range doc.Manifests {
		child, err := b.GetManifest(t.Context(), repo, string(c.Digest))
		if err != nil {
			t.Errorf("%s@%s: %v", repo, c.Digest, err)
			continue
		}
		checkImage(t, b, repo, child)
	}
	if doc.Config != nil {
		doc.Layers = append(doc.Layers, *doc.Config)
	}
	for _, l := range doc.Layers {
		got, err := registrytest.ReadBlob(t.Context(), b, repo, l.Digest)
		switch lost := repo == "broken" && l.Size == 50_000; {
		case lost && !oci.HasCode(err, oci.CodeBlobUnknown):
			t.Errorf("the lost blob: %v", err)
		case !lost && (err != nil || oci.SHA256(got) != l.Digest):
			t.Errorf("blob %s of %s: %d bytes, %v", l.Digest, repo, len(got), err)
		}
	}
}
