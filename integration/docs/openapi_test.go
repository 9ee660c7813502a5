package docs

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"

	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/node"
	"example.org/slipway/integration/internal/proc"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/tool"
	"example.org/slipway/integration/internal/wire"
	"example.org/slipway/oci"
)

// TestOpenAPI sends a real server a request for everything in docs/reference/openapi.yaml. The
// server must answer each operation as the document says, and no other method.
func TestOpenAPI(t *testing.T) {
	doc := loadOpenAPI(t)
	a := &api{t: t, doc: doc, done: map[string]bool{}, image: imagetest.NewImage("amd64", imagetest.NewLayer(imagetest.File{Name: "etc/motd", Data: []byte("hello\n")}))}
	a.server = slipway.Start(t, t.TempDir(), &slipway.Options{Config: fmt.Sprintf(
		"version: 0.1\nstorage: {delete: {enabled: true}}\nvolumes: {driver: file, file: {dir: %q}, build: push}\n", t.TempDir())})
	a.distribution()
	a.gear()
	a.volumes()
	a.operations()
	a.tokens()
	a.warming()
	a.deletions()
	for path, item := range doc.Paths.Map() {
		for method := range item.Operations() {
			if !a.done[method+" "+path] {
				t.Errorf("%s %s is documented, and nothing here asks for it", method, path)
			}
		}
		if strings.HasPrefix(path, "/v2/") {
			a.otherMethods(path, item)
		}
	}
}

func loadOpenAPI(t *testing.T) *openapi3.T {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromFile(filepath.Join(root, "docs/reference/openapi.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Validate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return doc
}

// TestOpenAPIRoutes checks that the document has every kind of path that the server knows: those
// that package oci parses, and those that the server's discovery lists.
func TestOpenAPIRoutes(t *testing.T) {
	doc := loadOpenAPI(t)
	templates := map[oci.Kind]oci.Request{
		oci.KindBlob: {Repo: "{name}", Ref: "{digest}"}, oci.KindManifest: {Repo: "{name}", Ref: "{reference}"},
		oci.KindUploads: {Repo: "{name}"}, oci.KindUpload: {Repo: "{name}", Ref: "{id}"},
		oci.KindTags: {Repo: "{name}"}, oci.KindReferrers: {Repo: "{name}", Ref: "{digest}"},
	}
	for k := oci.KindPing; k < oci.KindExtension; k++ {
		r := templates[k]
		r.Kind = k
		if doc.Paths.Value(r.Path()) == nil {
			t.Errorf("%v: the document lacks %s", k, r.Path())
		}
	}
	server := slipway.Start(t, t.TempDir(), &slipway.Options{Config: fmt.Sprintf("version: 0.1\nvolumes: {driver: file, file: {dir: %q}}\n", t.TempDir())})
	resp, err := server.Client.Do(t.Context(), http.MethodGet, "/v2/team/app/_oci/ext/discover", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	var found struct {
		Extensions []struct{ Endpoints []string }
	}
	if err := json.Unmarshal(resp.Body, &found); err != nil || len(found.Extensions) < 2 {
		t.Fatalf("discovery: %v, %s", err, resp.Body)
	}
	for _, e := range found.Extensions {
		for _, path := range e.Endpoints {
			path = strings.NewReplacer("<digest>", "{digest}", "<name>", "{file}", "<first>", "{first}", "<last>", "{last}", "<tag>", "{tag}").Replace("/v2/{name}/" + path)
			if doc.Paths.Value(path) == nil {
				t.Errorf("the document lacks %s", path)
			}
		}
	}
}

// api is a server under test, with a record of the requests.
type api struct {
	t      *testing.T
	doc    *openapi3.T
	server *slipway.Server
	image  *imagetest.Image
	done   map[string]bool
}

const repo = "team/app"

// ask sends a request of an operation and checks the answer against the document: its status,
// headers and body. at is what follows the server's address.
func (a *api) ask(c *wire.Client, method, template, at string, header http.Header, body []byte, want int) *wire.Response {
	a.t.Helper()
	resp, err := c.Do(a.t.Context(), method, at, header, body)
	if err != nil {
		a.t.Fatal(err)
	}
	if resp.Status != want {
		a.t.Fatalf("%s %s: status %d, want %d\n%.500s", method, at, resp.Status, want, resp.Body)
	}
	if err := a.check(method, template, resp); err != nil {
		a.t.Errorf("%s %s: %v", method, at, err)
	}
	if want < 400 {
		a.done[method+" "+template] = true
	}
	return resp
}

func (a *api) check(method, template string, resp *wire.Response) error {
	item := a.doc.Paths.Value(template)
	if item == nil || item.GetOperation(method) == nil {
		return fmt.Errorf("%s %s is not in the document", method, template)
	}
	ref := item.GetOperation(method).Responses.Status(resp.Status)
	if ref == nil {
		return fmt.Errorf("the document has no status %d of %s %s", resp.Status, method, template)
	}
	if len(resp.Body) == 0 || method == http.MethodHead {
		return nil
	}
	kind, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";")
	media := ref.Value.Content.Get(kind)
	if media == nil {
		return fmt.Errorf("the document has no body of type %q at status %d", kind, resp.Status)
	}
	if media.Schema == nil || !strings.HasSuffix(kind, "json") {
		return nil
	}
	var value any
	if err := json.Unmarshal(resp.Body, &value); err != nil {
		return err
	}
	if err := a.doc.ValidateSchemaJSON(media.Schema.Value, value, openapi3.EnableJSONSchema2020()); err != nil {
		return fmt.Errorf("the body is not as documented: %w\n%.500s", err, resp.Body)
	}
	return nil
}

// get requests a path with the sample repository and, if the template has one, an argument.
func (a *api) get(template, arg string, want int) *wire.Response {
	a.t.Helper()
	return a.ask(a.server.Client, http.MethodGet, template, fill(template, arg), nil, nil, want)
}

func fill(template, arg string) string {
	path := strings.NewReplacer("{name}", repo, "{tag}", "1", "{first}", "0", "{last}", "3").Replace(template)
	for _, p := range []string{"{digest}", "{reference}", "{file}", "{id}"} {
		path = strings.ReplaceAll(path, p, arg)
	}
	return path
}

var (
	octets   = http.Header{"Content-Type": {"application/octet-stream"}}
	jsonBody = http.Header{"Content-Type": {"application/json"}}
)

// nowhere is the digest of content that no server has.
var nowhere = wire.Digest([]byte("nowhere"))

func (a *api) distribution() {
	c := a.server.Client
	a.get("/v2/", "", 200)
	a.ask(c, "HEAD", "/v2/", "/v2/", nil, nil, 200)
	const uploads, upload = "/v2/{name}/blobs/uploads/", "/v2/{name}/blobs/uploads/{id}"
	begin := func() string {
		return a.ask(c, "POST", uploads, fill(uploads, ""), nil, nil, 202).Header.Get("Location")
	}
	at := begin()
	a.ask(c, "PATCH", upload, at, octets, []byte("in pieces"), 202)
	at = a.ask(c, "GET", upload, at, nil, nil, 204).Header.Get("Location")
	at, err := wire.WithDigest(at, wire.Digest([]byte("in pieces")))
	if err != nil {
		a.t.Fatal(err)
	}
	a.ask(c, "PUT", upload, at, octets, nil, 201)
	at = begin()
	a.ask(c, "HEAD", upload, at, nil, nil, 204)
	a.ask(c, "DELETE", upload, at, nil, nil, 204)
	a.ask(c, "GET", upload, fill(upload, "none"), nil, nil, 404)
	for _, b := range a.image.Blobs {
		a.ask(c, "POST", uploads, fill(uploads, "")+"?digest="+url.QueryEscape(b.Digest), octets, b.Data, 201)
	}
	const manifest, blob = "/v2/{name}/manifests/{reference}", "/v2/{name}/blobs/{digest}"
	top := a.image.Top
	a.ask(c, "PUT", manifest, fill(manifest, "1"), http.Header{"Content-Type": {top.MediaType}}, top.Data, 201)
	a.ask(c, "PUT", manifest, fill(manifest, "2"), http.Header{"Content-Type": {top.MediaType}}, []byte("{"), 400)
	a.get(manifest, "1", 200)
	a.get(manifest, "none", 404)
	a.ask(c, "HEAD", manifest, fill(manifest, "1"), nil, nil, 200)
	layer := a.image.Blobs[0].Digest
	a.get(blob, layer, 200)
	a.ask(c, "GET", blob, fill(blob, layer), http.Header{"Range": {"bytes=0-3"}}, nil, 206)
	a.ask(c, "GET", blob, fill(blob, layer), http.Header{"Range": {"bytes=99999999-"}}, nil, 416)
	a.get(blob, nowhere, 404)
	a.get(blob, "sha256:short", 400)
	a.ask(c, "HEAD", blob, fill(blob, layer), nil, nil, 200)
	a.get("/v2/_catalog", "", 200)
	a.get("/v2/{name}/tags/list", "", 200)
	for _, list := range []string{"/v2/_catalog", "/v2/{name}/tags/list", "/v2/{name}/referrers/{digest}"} {
		a.ask(c, "HEAD", list, fill(list, top.Digest), nil, nil, 200)
	}
	subject := imagetest.Artifact("application/vnd.example.note", "text/plain", []byte("note"), &top.Descriptor, nil)
	for _, b := range subject.Blobs {
		a.ask(c, "POST", uploads, fill(uploads, "")+"?digest="+url.QueryEscape(b.Digest), octets, b.Data, 201)
	}
	a.ask(c, "PUT", manifest, fill(manifest, subject.Top.Digest), http.Header{"Content-Type": {subject.Top.MediaType}}, subject.Top.Data, 201)
	a.get("/v2/{name}/referrers/{digest}", top.Digest, 200)
}

func (a *api) gear() {
	c := a.server.Client
	a.server.Converted()
	a.get("/v2/_oci/ext/discover", "", 200)
	a.get("/v2/{name}/_oci/ext/discover", "", 200)
	a.get("/v2/_slipway/gear", "", 200)
	a.get("/v2/{name}/_slipway/gear", "", 200)
	const layers, file = "/v2/{name}/_slipway/gear/layers/{digest}", "/v2/{name}/_slipway/gear/files/{file}"
	layer := a.layer()
	a.get(layers, layer, 200)
	a.get(layers, nowhere, 404)
	a.ask(c, "HEAD", layers, fill(layers, layer), nil, nil, 200)
	motd := wire.Digest([]byte("hello\n"))
	a.get(file, motd, 200)
	a.ask(c, "HEAD", file, fill(file, motd), nil, nil, 200)
	const chunks = "/v2/{name}/_slipway/gear/files/{file}/chunks/{first}-{last}"
	large := bytes.Repeat([]byte("large "), 4<<20/6+1)
	a.ask(c, "PUT", file, fill(file, wire.Digest(large)), octets, large, 201)
	a.ask(c, "GET", chunks, fill(chunks, wire.Digest(large)), nil, nil, 200)
	a.ask(c, "GET", chunks, fill(chunks, motd), nil, nil, 416)
	a.ask(c, "GET", chunks, fill(chunks, nowhere), nil, nil, 404)
	added := []byte("a file of its own")
	a.ask(c, "PUT", file, fill(file, wire.Digest(added)), octets, added, 201)
	a.ask(c, "PUT", file, fill(file, nowhere), octets, added, 400)
	const fetch, files, query = "/v2/{name}/_slipway/gear/fetch", "/v2/{name}/_slipway/gear/files", "/v2/{name}/_slipway/gear/query"
	names := fmt.Appendf(nil, `{"names":[%q]}`, motd)
	stream := a.ask(c, "POST", fetch, fill(fetch, ""), jsonBody, names, 200)
	a.ask(c, "POST", fetch, fill(fetch, ""), http.Header{"Content-Type": {"text/plain"}}, names, 415)
	a.ask(c, "POST", files, fill(files, ""), http.Header{"Content-Type": {"application/vnd.slipway.gear.stream.v1"}}, stream.Body, 201)
	a.ask(c, "POST", query, fill(query, ""), jsonBody, names, 200)
	const profile, nodes = "/v2/{name}/_slipway/gear/profiles/{digest}", "/v2/{name}/_slipway/gear/nodes"
	a.ask(c, "POST", profile, fill(profile, a.image.Top.Digest), jsonBody, names, 202)
	a.get(profile, a.image.Top.Digest, 200)
	a.get(profile, nowhere, 404)
	a.ask(c, "POST", nodes, fill(nodes, ""), jsonBody, []byte(`{"node":"worker-3","image":"registry.example.com/team/app:1"}`), 202)
	a.ask(c, "POST", nodes, fill(nodes, ""), jsonBody, []byte(`{}`), 400)
	const peers = "/v2/{name}/_slipway/gear/peers"
	announcement := node.Announcement(a.t, ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)), a.image.Top.Digest, ":5003", false)
	a.ask(c, "POST", peers, fill(peers, ""), jsonBody, announcement, 200)
	a.ask(c, "POST", peers, fill(peers, ""), jsonBody, []byte(`{}`), 400)
}

// layer is the digest of the image's layer, as its manifest has it.
func (a *api) layer() string {
	var m struct{ Layers []wire.Descriptor }
	if err := json.Unmarshal(a.image.Top.Data, &m); err != nil || len(m.Layers) != 1 {
		a.t.Fatalf("manifest: %v, %s", err, a.image.Top.Data)
	}
	return m.Layers[0].Digest
}

func (a *api) volumes() {
	c, top := a.server.Client, a.image.Top.Digest
	const list, image, credential = "/v2/{name}/_slipway/volumes", "/v2/{name}/_slipway/volumes/{digest}", "/v2/{name}/_slipway/volumes/{digest}/credential"
	a.ask(c, "POST", image, fill(image, top), jsonBody, []byte(`{"fs":"erofs"}`), 202)
	proc.Poll(a.t, time.Minute, "volumes of an image", func() bool {
		var v struct {
			Records []json.RawMessage
			State   string
		}
		resp := a.get(image, top, 200)
		return json.Unmarshal(resp.Body, &v) == nil && len(v.Records) > 0 && v.State == ""
	})
	a.get(list, "", 200)
	a.get(image, nowhere, 404)
	a.ask(c, "POST", credential, fill(credential, top), nil, nil, 200)
	a.ask(c, "DELETE", image, fill(image, top), nil, nil, 202)
}

func (a *api) operations() {
	c := wire.New(a.server.DebugAddr)
	defer c.Close()
	for _, path := range []string{"/metrics", "/livez", "/readyz", "/debug/health"} {
		a.ask(c, "GET", path, path, nil, nil, 200)
	}
}

// tokens sends requests to another server, which has users.
func (a *api) tokens() {
	file := filepath.Join(a.t.TempDir(), "htpasswd")
	out, err := exec.CommandContext(a.t.Context(), tool.System(a.t, "htpasswd"), "-nbB", "alice", "secret").Output()
	if err == nil {
		err = os.WriteFile(file, out, 0o600)
	}
	if err != nil {
		a.t.Fatal(err)
	}
	server := slipway.Start(a.t, a.t.TempDir(), &slipway.Options{Config: fmt.Sprintf(
		"version: 0.1\nauth: {htpasswd: {path: %q}, token: {builtin: true, service: here}, access: [{repositories: ['**'], subjects: [alice], actions: ['*']}]}\n", file)})
	c := server.Client
	a.ask(c.As("alice", "secret"), "GET", "/token", "/token?service=here&scope=repository:team/app:pull", nil, nil, 200)
	a.ask(c, "GET", "/token", "/token?service=here&scope=repository:team/app:pull", nil, nil, 401)
	form := http.Header{"Content-Type": {"application/x-www-form-urlencoded"}}
	a.ask(c, "POST", "/token", "/token", form, []byte("grant_type=password&service=here&username=alice&password=secret&client_id=x"), 200)
	a.ask(c, "POST", "/token", "/token", form, []byte("grant_type=none&service=here"), 400)
}

// warming orders the image for a node, and asks as the node.
func (a *api) warming() {
	c := a.server.Client
	const begin, list, one, poll = "/v2/{name}/_slipway/warm", "/v2/_slipway/warm", "/v2/_slipway/warm/{id}", "/v2/_slipway/warm/poll"
	kind := http.Header{"Content-Type": {"application/json"}}
	a.ask(c, "POST", poll, poll, kind, []byte(`{"node":"n1","labels":{"zone":"a"}}`), 200)
	a.ask(c, "POST", poll, poll, kind, []byte(`{"node":""}`), 400)
	resp := a.ask(c, "POST", begin, fill(begin, ""), kind, []byte(`{"reference":"1","nodes":"zone=a"}`), 200)
	a.ask(c, "POST", begin, fill(begin, ""), kind, []byte(`{"nodes":"a b"}`), 400)
	a.ask(c, "POST", begin, "/v2/none/_slipway/warm", kind, []byte(`{}`), 404)
	var order struct{ ID string }
	if err := json.Unmarshal(resp.Body, &order); err != nil {
		a.t.Fatal(err)
	}
	a.ask(c, "POST", poll, poll, kind, []byte(`{"node":"n1","labels":{"zone":"a"},"tasks":{"`+order.ID+`":{"state":"running","files":1,"files_total":2}}}`), 200)
	a.ask(c, "GET", list, list, nil, nil, 200)
	a.ask(c, "GET", one, fill(one, order.ID), nil, nil, 200)
	a.ask(c, "GET", one, fill(one, "nosuch"), nil, nil, 404)
	a.ask(c, "DELETE", one, fill(one, order.ID), nil, nil, 200)
	a.ask(c, "DELETE", one, fill(one, "nosuch"), nil, nil, 404)
}

func (a *api) deletions() {
	c := a.server.Client
	const manifest, blob = "/v2/{name}/manifests/{reference}", "/v2/{name}/blobs/{digest}"
	const history, deleted, restore = "/v2/{name}/_slipway/tags/{tag}/history", "/v2/{name}/_slipway/deleted", "/v2/{name}/_slipway/deleted/{digest}/restore"
	a.ask(c, "DELETE", manifest, fill(manifest, a.image.Top.Digest), nil, nil, 202)
	a.get(history, "", 200)
	a.ask(c, "GET", history, "/v2/"+repo+"/_slipway/tags/never/history", nil, nil, 404)
	a.get(deleted, "", 200)
	a.ask(c, "POST", restore, fill(restore, nowhere), nil, nil, 404)
	a.ask(c, "POST", restore, fill(restore, a.image.Top.Digest), nil, nil, 200)
	a.ask(c, "DELETE", manifest, fill(manifest, "1"), nil, nil, 202)
	a.ask(c, "DELETE", manifest, fill(manifest, "1"), nil, nil, 404)
	a.ask(c, "DELETE", blob, fill(blob, wire.Digest([]byte("in pieces"))), nil, nil, 202)
	const whole = "/v2/{name}/_slipway/repository"
	a.ask(c, "DELETE", whole, "/v2/none/_slipway/repository", nil, nil, 404)
	a.ask(c, "DELETE", whole, fill(whole, ""), nil, nil, 200)
}

// otherMethods checks that a path refuses every method that the document does not list for it.
func (a *api) otherMethods(path string, item *openapi3.PathItem) {
	var documented []string
	for method := range item.Operations() {
		documented = append(documented, method)
	}
	slices.Sort(documented)
	ctx, cancel := context.WithTimeout(a.t.Context(), time.Minute)
	defer cancel()
	resp, err := a.server.Client.Do(ctx, "OPTIONS", fill(path, nowhere), nil, nil)
	if err != nil {
		a.t.Fatal(err)
	}
	allowed := strings.Split(resp.Header.Get("Allow"), ", ")
	slices.Sort(allowed)
	if resp.Status != http.StatusMethodNotAllowed || !slices.Equal(allowed, documented) {
		a.t.Errorf("%s: the server answers OPTIONS with %d and allows %v, the document has %v", path, resp.Status, allowed, documented)
	}
}
