package integration

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/proc"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/wire"
)

// tenantConfig gives two users a set of repositories each.
const tenantConfig = `version: 0.1
storage:
  delete: {enabled: true}
auth:
  htpasswd: {path: %q}
  access:
    - {repositories: ["alice/**"], subjects: [alice], actions: [pull, push]}
    - {repositories: ["bob/**"], subjects: [bob], actions: [pull, push]}
    - {repositories: ["lent/**"], subjects: [alice], actions: [pull, push]}
    - {repositories: ["lent/**"], subjects: [bob], actions: [pull]}
`

// tenantPasswords is the password file; each password is NAME-secret.
const tenantPasswords = `alice:$2y$04$fM71B85.wk0HMqNgBg/ase6.7UFIWi361HQQ0rm.l3gs5uMoRlsQ2
bob:$2y$04$X8aWIEWMOQVknu1LHRsn1u3wxRQ4NtJacuL0vaLHOaBjbE1VaJsSy
`

// pollFor bounds the wait for something that the server does by itself.
const pollFor = time.Minute

// tenants are two users of one server. Alice's repository holds what Bob wants.
type tenants struct {
	s          *slipway.Server
	alice, bob *wire.Client
	loot       []loot
	layer      wire.Descriptor // of Alice's image
	manifest   string          // its digest
	indexName  string          // "sha256:..."
	own        string          // digest of Bob's own manifest
}

// loot is content that only Alice's repository shows.
type loot struct {
	what    string
	content []byte
}

func (l loot) name() string { return wire.Digest(l.content) }

func newTenants(t *testing.T) *tenants {
	t.Helper()
	passwords := filepath.Join(t.TempDir(), "htpasswd")
	if err := os.WriteFile(passwords, []byte(tenantPasswords), 0o600); err != nil {
		t.Fatal(err)
	}
	s := slipway.Start(t, t.TempDir(), &slipway.Options{Config: fmt.Sprintf(tenantConfig, passwords)})
	w := &tenants{s: s, alice: s.Client.As("alice", "alice-secret"), bob: s.Client.As("bob", "bob-secret")}
	w.loot = []loot{
		{"a file", []byte("the recipe of the house, which only Alice has")},
		{"a file in chunks", bytes.Repeat([]byte("Alice's large book of recipes. "), 200_000)},
	}
	a := base()
	for i, l := range w.loot {
		a.File(fmt.Sprintf("file%d", i), string(l.content))
	}
	image := imagetest.Compose(runtime.GOARCH, nil, []imagetest.Layer{a.Layer()})
	w.layer = image.Blobs[0].Descriptor
	w.manifest = pushed(t, w.alice, "alice/kitchen", "v1", image)
	w.own = pushed(t, w.bob, "bob/own", "v1", imagetest.Compose(runtime.GOARCH, nil, []imagetest.Layer{base().File("mine", "Bob's").Layer()}))
	s.Converted()
	resp := do(t, w.alice, http.MethodGet, "/v2/alice/kitchen/_slipway/gear/layers/"+w.layer.Digest, nil, nil)
	if resp.Status != http.StatusOK {
		t.Fatalf("Alice cannot read her own index: %d %s", resp.Status, resp.Body)
	}
	w.indexName = resp.Header.Get("Slipway-Gear-Name")
	w.loot = append(w.loot, loot{"an index", resp.Body})
	return w
}

// pushed pushes an image with plain requests and returns its digest.
func pushed(t *testing.T, c *wire.Client, repo, tag string, b *imagetest.Bundle) string {
	t.Helper()
	if err := b.Push(t.Context(), c, repo, tag); err != nil {
		t.Fatal(err)
	}
	return b.Top.Digest
}

func do(t *testing.T, c *wire.Client, method, path string, header http.Header, body []byte) *wire.Response {
	t.Helper()
	resp, err := c.Do(t.Context(), method, path, header, body)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

// rawName returns a name, "sha256:...", in the form that binary lists use.
func rawName(name string) string {
	b, err := hex.DecodeString(strings.TrimPrefix(name, "sha256:"))
	if err != nil {
		panic(err)
	}
	return string(b)
}

// probe is a request that might reveal a content, or that it exists.
type probe struct {
	what, method, path string // the path below /v2/REPOSITORY/
	header             http.Header
	body               string
	// status is what Alice gets in her own repository.
	status int
}

var (
	typeJSON  = http.Header{"Content-Type": {"application/json"}}
	typeBytes = http.Header{"Content-Type": {"application/octet-stream"}}
)

// probes returns the requests for a name.
func probes(name string) []probe {
	const gear = "_slipway/gear/"
	list := `{"names":["` + name + `"]}`
	return []probe{
		{"file", http.MethodGet, gear + "files/" + name, nil, "", 200},
		{"head of file", http.MethodHead, gear + "files/" + name, nil, "", 200},
		{"range of file", http.MethodGet, gear + "files/" + name, http.Header{"Range": {"bytes=0-0"}}, "", 206},
		{"range outside", http.MethodGet, gear + "files/" + name, http.Header{"Range": {"bytes=99999999-"}}, "", 416},
		{"file unless it is the same", http.MethodGet, gear + "files/" + name, http.Header{"If-None-Match": {`"` + name + `"`}}, "", 304},
		{"file unless there is any", http.MethodGet, gear + "files/" + name, http.Header{"If-None-Match": {"*"}}, "", 304},
		{"fetch, JSON", http.MethodPost, gear + "fetch", typeJSON, list, 200},
		{"fetch, binary", http.MethodPost, gear + "fetch", typeBytes, rawName(name), 200},
		{"query, JSON", http.MethodPost, gear + "query", typeJSON, list, 200},
		{"query, binary", http.MethodPost, gear + "query", typeBytes, rawName(name), 200},
		{"put of another content", http.MethodPut, gear + "files/" + name, nil, "not it", 400},
		{"upload of another content", http.MethodPost, gear + "files", http.Header{"Content-Type": {"application/vnd.slipway.gear.stream.v1"}}, forged(name), 400},
		{"as a layer", http.MethodGet, gear + "layers/" + name, nil, "", 404},
		{"as a blob", http.MethodGet, "blobs/" + name, nil, "", 404},
	}
}

// layerProbes returns the requests that only apply to a layer or an image.
func layerProbes(layer, manifest string) []probe {
	const gear = "_slipway/gear/"
	return []probe{
		{"index", http.MethodGet, gear + "layers/" + layer, nil, "", 200},
		{"head of index", http.MethodHead, gear + "layers/" + layer, nil, "", 200},
		{"index unless there is any", http.MethodGet, gear + "layers/" + layer, http.Header{"If-None-Match": {"*"}}, "", 304},
		{"blob", http.MethodGet, "blobs/" + layer, nil, "", 200},
		{"head of blob", http.MethodHead, "blobs/" + layer, nil, "", 200},
		{"layer as a file", http.MethodGet, gear + "files/" + layer, nil, "", 404},
		{"manifest", http.MethodGet, "manifests/" + manifest, nil, "", 200},
		{"profile", http.MethodGet, gear + "profiles/" + manifest, nil, "", 404},
		{"files of the profile", http.MethodPost, gear + "fetch", typeJSON, `{"profile":"` + manifest + `"}`, 404},
		{"report of a profile", http.MethodPost, gear + "profiles/" + manifest, typeBytes, rawName(layer), 202},
	}
}

// forged is a stream that claims other content under a name.
func forged(name string) string {
	const content = "not it"
	b := []byte("SLGSTRM\x01\x02\x01\x00" + rawName(name))
	b = binary.LittleEndian.AppendUint64(b, uint64(len(content)))
	b = append(b, 0, 0)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(content)))
	b = append(b, content+"\x05"...)
	return string(binary.LittleEndian.AppendUint64(b, 1))
}

// TestGearTenants makes one user ask in every possible way for what belongs to another. The server
// must serve nothing of it, and no answer may reveal that it exists.
func TestGearTenants(t *testing.T) {
	w := newTenants(t)
	absent := wire.Digest([]byte("a content that nobody has"))
	t.Run("probes", func(t *testing.T) {
		for _, l := range w.loot {
			for i, p := range probes(l.name()) {
				w.probe(t, l.what+": "+p.what, p, probes(absent)[i], l.name(), absent)
			}
		}
		for i, p := range layerProbes(w.layer.Digest, w.manifest) {
			// q asks for a digest that nobody has, in place of both the layer and the manifest.
			q := layerProbes(absent, absent)[i]
			name := w.layer.Digest
			if strings.Contains(p.path+p.body, w.manifest) {
				name = w.manifest
			}
			w.probe(t, p.what, p, q, name, absent)
		}
	})
	t.Run("mounts", w.mounts)
	t.Run("profile of her files", w.profile)
	t.Run("crafted image", w.craftedImage)
	t.Run("lent", w.lent)
	t.Run("own content", w.ownContent)
	w.s.Alive()
	w.s.Stop()
	w.s.Run("fsck")
}

// probe sends p as Alice, as nobody, as Bob to Alice's repository, and as Bob to his own
// repository. There the answer must equal the answer to q, which asks for a content that nobody
// has.
func (w *tenants) probe(t *testing.T, what string, p, q probe, name, absent string) {
	t.Helper()
	send := func(c *wire.Client, repo string, p probe) *wire.Response {
		return do(t, c, p.method, "/v2/"+repo+"/"+p.path, p.header, []byte(p.body))
	}
	if resp := send(w.alice, "alice/kitchen", p); resp.Status != p.status {
		t.Errorf("%s: Alice gets %d %s, want %d: the probe tests nothing", what, resp.Status, resp.Body, p.status)
	}
	if resp := send(w.s.Client, "alice/kitchen", p); resp.Status != http.StatusUnauthorized {
		t.Errorf("%s: nobody gets %d", what, resp.Status)
	}
	theirs := send(w.bob, "alice/kitchen", p)
	if theirs.Status != http.StatusUnauthorized && theirs.Status != http.StatusForbidden {
		t.Errorf("%s: Bob gets %d from Alice's repository", what, theirs.Status)
	}
	w.expectNoLoot(t, what+" of Alice's repository", theirs)
	got, want := send(w.bob, "bob/own", p), send(w.bob, "bob/own", q)
	w.expectNoLoot(t, what+" of his own repository", got)
	hide := func(b []byte) string {
		b = bytes.ReplaceAll(b, []byte(strings.TrimPrefix(absent, "sha256:")), []byte(strings.TrimPrefix(name, "sha256:")))
		return string(bytes.ReplaceAll(b, []byte(rawName(absent)), []byte(rawName(name))))
	}
	if got.Status != want.Status || hide(got.Body) != hide(want.Body) {
		t.Errorf("%s: Bob gets %d %q, but for what does not exist %d %q", what, got.Status, got.Body, want.Status, want.Body)
	}
	differ := maps.Clone(got.Header)
	for k, v := range want.Header {
		if hide([]byte(strings.Join(v, "\n"))) == hide([]byte(strings.Join(got.Header[k], "\n"))) {
			delete(differ, k)
		}
	}
	delete(differ, "Date")
	delete(differ, "X-Request-Id")
	if len(differ) > 0 {
		t.Errorf("%s: the answer to Bob differs in %v from that for what does not exist", what, differ)
	}
}

// expectNoLoot fails the test if an answer contains anything of Alice's.
func (w *tenants) expectNoLoot(t *testing.T, what string, resp *wire.Response) {
	t.Helper()
	for _, l := range w.loot {
		if part := l.content[:min(24, len(l.content))]; bytes.Contains(resp.Body, part) {
			t.Errorf("%s: Bob is given %s", what, l.what)
		}
	}
}

// mounts tries to mount Alice's blobs into Bob's repository by their digests.
func (w *tenants) mounts(t *testing.T) {
	for _, from := range []string{"&from=alice/kitchen", "&from=alice/nothing", ""} {
		resp := do(t, w.bob, http.MethodPost, "/v2/bob/own/blobs/uploads/?mount="+w.layer.Digest+from, nil, nil)
		if resp.Status == http.StatusCreated {
			t.Errorf("mount%s: Bob has mounted Alice's layer", from)
		}
	}
	w.nothingIn(t, "bob/own")
	// A mount of what Bob may see works, so the mounts above failed for lack of rights.
	resp := do(t, w.bob, http.MethodPost, "/v2/bob/second/blobs/uploads/?mount="+base().File("mine", "Bob's").Layer().Blob(imagetest.Gzip).Digest+"&from=bob/own", nil, nil)
	if resp.Status != http.StatusCreated {
		t.Errorf("mount of Bob's own layer: %d %s, want 201", resp.Status, resp.Body)
	}
}

// nothingIn checks that a repository of Bob's shows none of Alice's contents.
func (w *tenants) nothingIn(t *testing.T, repo string) {
	t.Helper()
	var names []string
	for _, l := range w.loot {
		names = append(names, l.name())
		resp := do(t, w.bob, http.MethodGet, "/v2/"+repo+"/_slipway/gear/files/"+l.name(), nil, nil)
		if resp.Status != http.StatusNotFound {
			t.Errorf("%s shows %s: status %d", repo, l.what, resp.Status)
		}
	}
	for _, path := range []string{"/_slipway/gear/layers/", "/blobs/"} {
		if resp := do(t, w.bob, http.MethodGet, "/v2/"+repo+path+w.layer.Digest, nil, nil); resp.Status != http.StatusNotFound {
			t.Errorf("%s has Alice's layer: GET %s: status %d", repo, path, resp.Status)
		}
	}
	list, err := json.Marshal(map[string][]string{"names": names})
	if err != nil {
		t.Fatal(err)
	}
	w.expectNoLoot(t, "fetch from "+repo, do(t, w.bob, http.MethodPost, "/v2/"+repo+"/_slipway/gear/fetch", typeJSON, list))
	var answer struct{ Missing []string }
	resp := do(t, w.bob, http.MethodPost, "/v2/"+repo+"/_slipway/gear/query", typeJSON, list)
	if err := json.Unmarshal(resp.Body, &answer); err != nil || len(answer.Missing) != len(names) {
		t.Errorf("query of %s: %s, want all of %v missing", repo, resp.Body, names)
	}
}

// profile reports Alice's files as the files that Bob's image opens.
func (w *tenants) profile(t *testing.T) {
	var names string
	for _, l := range w.loot {
		names += rawName(l.name())
	}
	path := "/v2/bob/own/_slipway/gear/profiles/" + w.own
	if resp := do(t, w.bob, http.MethodPost, path, typeBytes, []byte(names)); resp.Status != http.StatusAccepted {
		t.Fatalf("report a profile: %d %s", resp.Status, resp.Body)
	}
	resp := do(t, w.bob, http.MethodPost, "/v2/bob/own/_slipway/gear/fetch", typeJSON, []byte(`{"profile":"`+w.own+`"}`))
	w.expectNoLoot(t, "fetch of a profile", resp)
	w.nothingIn(t, "bob/own")
}

// craftedImage pushes Alice's Gear image to Bob's repository, byte for byte; its index names her
// files. Bob could only have guessed it.
func (w *tenants) craftedImage(t *testing.T) {
	credentials := filepath.Join(t.TempDir(), "credentials")
	if err := os.WriteFile(credentials, []byte("alice:alice-secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := slipway.Program(t.Context(), t, "convert", "--credentials", credentials, w.s.Addr+"/alice/kitchen:v1"); err != nil {
		t.Fatal(err)
	}
	m, err := w.alice.GetManifest(t.Context(), "alice/kitchen", "v1-gear")
	if err != nil {
		t.Fatal(err)
	}
	var doc wire.Document
	if err := json.Unmarshal(m.Bytes, &doc); err != nil {
		t.Fatal(err)
	}
	for _, d := range append(doc.Layers, *doc.Config) {
		blob := do(t, w.alice, http.MethodGet, "/v2/alice/kitchen/blobs/"+d.Digest, nil, nil)
		if _, err := w.bob.PushBlob(t.Context(), "bob/forger", blob.Body); err != nil {
			t.Fatal(err)
		}
	}
	resp := do(t, w.bob, http.MethodPut, "/v2/bob/forger/manifests/v1", http.Header{"Content-Type": {m.MediaType}}, m.Bytes)
	t.Logf("the registry says to the crafted manifest: %d %s", resp.Status, resp.Body)
	w.indexButNoFiles(t, "bob/forger")
	// A mount passes on what a repository may use. This repository may use nothing.
	for _, d := range append(doc.Layers, *doc.Config) {
		resp := do(t, w.bob, http.MethodPost, "/v2/bob/launderer/blobs/uploads/?mount="+d.Digest+"&from=bob/forger", nil, nil)
		if resp.Status != http.StatusCreated {
			t.Fatalf("mount from Bob's own repository: %d %s", resp.Status, resp.Body)
		}
	}
	do(t, w.bob, http.MethodPut, "/v2/bob/launderer/manifests/v1", http.Header{"Content-Type": {m.MediaType}}, m.Bytes)
	w.indexButNoFiles(t, "bob/launderer")
	if err := os.WriteFile(credentials, []byte("bob:bob-secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "tree")
	if _, err := slipway.Program(t.Context(), t, "export", "--wait=5s", "--credentials", credentials, w.s.Addr+"/bob/forger:v1", dir); err == nil {
		t.Error("Bob can export a crafted image of Alice's files")
	}
	// Alice still can.
	if err := os.WriteFile(credentials, []byte("alice:alice-secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := slipway.Program(t.Context(), t, "export", "--credentials", credentials, w.s.Addr+"/alice/kitchen:v1-gear", dir); err != nil {
		t.Errorf("after that Alice cannot export her own image: %v", err)
	}
}

// indexButNoFiles checks that Bob gets none of the files in Alice's index from a repository to
// which he has pushed it. The push shows that he knows the index.
func (w *tenants) indexButNoFiles(t *testing.T, repo string) {
	t.Helper()
	proc.Poll(t, pollFor, "the end of the conversion of the crafted image", func() bool {
		st := w.s.GearStatus()
		return st.Waiting == 0 && len(st.Active) == 0
	})
	for _, l := range w.loot[:2] {
		resp := do(t, w.bob, http.MethodGet, "/v2/"+repo+"/_slipway/gear/files/"+l.name(), nil, nil)
		if resp.Status != http.StatusNotFound {
			t.Errorf("through %s Bob gets %s: status %d", repo, l.what, resp.Status)
		}
		resp = do(t, w.bob, http.MethodPost, "/v2/"+repo+"/_slipway/gear/fetch", typeBytes, []byte(rawName(l.name())))
		w.expectNoLoot(t, "fetch from "+repo, resp)
		resp = do(t, w.bob, http.MethodPost, "/v2/"+repo+"/_slipway/gear/query", typeBytes, []byte(rawName(l.name())))
		if string(resp.Body) != rawName(l.name()) {
			t.Errorf("query of %s: %d %q, want that %s is missing", repo, resp.Status, resp.Body, l.what)
		}
	}
}

// lent checks that the right to pull does not allow a push.
func (w *tenants) lent(t *testing.T) {
	layer := base().File("lent", "to be read only").Layer()
	pushed(t, w.alice, "lent/book", "v1", imagetest.Compose(runtime.GOARCH, nil, []imagetest.Layer{layer}))
	w.s.Converted()
	name := wire.Digest([]byte("to be read only"))
	if resp := do(t, w.bob, http.MethodGet, "/v2/lent/book/_slipway/gear/files/"+name, nil, nil); resp.Status != http.StatusOK {
		t.Errorf("Bob, who may pull, gets %d", resp.Status)
	}
	for _, p := range probes(name) {
		if p.method == http.MethodPut || strings.HasPrefix(p.what, "query") || strings.HasPrefix(p.what, "upload") {
			resp := do(t, w.bob, p.method, "/v2/lent/book/"+p.path, p.header, []byte(p.body))
			if resp.Status != http.StatusUnauthorized && resp.Status != http.StatusForbidden {
				t.Errorf("%s: Bob, who may not push, gets %d %s", p.what, resp.Status, resp.Body)
			}
		}
	}
	// Bob may pull this content there, but gets it elsewhere only by a mount.
	mine := "/v2/bob/own/_slipway/gear/files/" + name
	if resp := do(t, w.bob, http.MethodGet, mine, nil, nil); resp.Status != http.StatusNotFound {
		t.Errorf("a file of lent/book shows in bob/own: status %d", resp.Status)
	}
	resp := do(t, w.bob, http.MethodPost, "/v2/bob/own/blobs/uploads/?mount="+layer.Blob(imagetest.Gzip).Digest+"&from=lent/book", nil, nil)
	if resp.Status != http.StatusCreated {
		t.Errorf("mount of what Bob may pull: %d %s, want 201", resp.Status, resp.Body)
	}
	if resp := do(t, w.bob, http.MethodGet, mine, nil, nil); resp.Status != http.StatusOK {
		t.Errorf("a file of the layer that Bob has mounted: status %d, want 200", resp.Status)
	}
}

// ownContent uploads to Bob's repository a content that Alice has too. Bob gets it from there,
// because he had it himself, and nothing else changes.
func (w *tenants) ownContent(t *testing.T) {
	l := w.loot[0]
	path := "/v2/bob/own/_slipway/gear/files/" + l.name()
	if resp := do(t, w.bob, http.MethodPut, path, nil, l.content); resp.Status != http.StatusCreated {
		t.Fatalf("upload: %d %s, want 201", resp.Status, resp.Body)
	}
	if resp := do(t, w.bob, http.MethodGet, "/v2/bob/own/_slipway/gear/files/"+w.loot[1].name(), nil, nil); resp.Status != http.StatusNotFound {
		t.Errorf("another file of the same layer: %d, want 404", resp.Status)
	}
	if resp := do(t, w.bob, http.MethodGet, "/v2/bob/second/_slipway/gear/files/"+l.name(), nil, nil); resp.Status != http.StatusNotFound {
		t.Errorf("another repository of Bob's: %d, want 404", resp.Status)
	}
}
