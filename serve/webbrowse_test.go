package serve_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"html"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"example.org/slipway/oci"
)

// pushed pushes a manifest. content is encoded as JSON.
func (s *instance) pushed(repo, ref, mediaType string, content any) string {
	s.t.Helper()
	text, ok := content.(string)
	if !ok {
		b, err := json.Marshal(content)
		if err != nil {
			s.t.Fatal(err)
		}
		text = string(b)
	}
	if ref == "" {
		ref = digestOf(text)
	}
	s.want(http.StatusCreated, "PUT", "/v2/"+repo+"/manifests/"+ref, text, header("Content-Type", mediaType))
	return digestOf(text)
}

// part pushes a blob and returns its descriptor.
func (s *instance) part(repo, mediaType, content string) map[string]any {
	return map[string]any{"mediaType": mediaType, "digest": s.pushBlob(repo, content), "size": len(content)}
}

const layerType = "application/vnd.oci.image.layer.v1.tar"

// pushApp pushes an image with a config, and returns its digest.
func (s *instance) pushApp(repo, tag, config string, layers ...string) string {
	s.t.Helper()
	m := map[string]any{"schemaVersion": 2, "mediaType": oci.MediaTypeOCIManifest, "config": s.part(repo, "application/vnd.oci.image.config.v1+json", config)}
	list := []any{}
	for _, l := range layers {
		list = append(list, s.part(repo, layerType, l))
	}
	m["layers"] = list
	return s.pushed(repo, tag, oci.MediaTypeOCIManifest, m)
}

// page returns a page that must exist.
func (s *instance) page(path string, edits ...func(*http.Request)) string {
	s.t.Helper()
	return whole(s.want(http.StatusOK, "GET", "/ui/"+path, "", edits...).body)
}

// shows fails the test unless a page contains all texts.
func (s *instance) shows(path string, texts ...string) {
	s.t.Helper()
	body := html.UnescapeString(s.page(path))
	for _, want := range texts {
		if !strings.Contains(body, want) {
			s.t.Errorf("%s lacks %q:\n%s", path, want, body)
		}
	}
}

const appConfig = `{"created":"2026-01-02T03:04:05Z","os":"linux","architecture":"arm64","variant":"v8","config":{"User":"nobody","Env":["A=<b>1</b>","B=2"],
	"Entrypoint":["/app","--x"],"Cmd":["serve"],"WorkingDir":"/srv","ExposedPorts":{"80/tcp":{}},"Volumes":{"/data":{}},"Labels":{"note":"<script>alert(1)</script>\u202e"}},
	"history":[{"created_by":"/bin/sh -c #(nop) ADD file:1 in / "},{"created_by":"ENV A=1","empty_layer":true},{"created_by":"RUN /bin/sh -c apt-get update && apt-get install x # buildkit"}]}`

// TestBrowse checks the pages of repositories, tags and an image.
func TestBrowse(t *testing.T) {
	t.Parallel()
	s := start(t, setup{})
	s.shows("", "There is no repository here yet", "docker push "+strings.TrimPrefix(s.url, "http://")+"/alpine:3")
	d := s.pushApp("lib/app", "v1", appConfig, "layer one", "layer two, larger")
	s.pushApp("lib/deep/er/app", "latest", appConfig, "layer one")
	s.shows("", "lib/app", "lib/deep/er/app", "Last push")
	s.shows("?q=DEEP", "lib/deep/er/app")
	if body := s.page("?q=deep"); strings.Contains(body, "repo/lib/app\"") {
		t.Error("the search finds what does not match")
	}
	s.shows("?q=%25_%00%ff", "No repository with")
	s.shows("?q=V1", "Images", "lib/app:v1", "its tag")
	s.shows("?q="+d[:15], "its digest", "/ui/image/lib/app@"+d)
	for _, sort := range []string{"", "pushed", "pulled", "tags", "none"} {
		s.shows("?sort="+sort, "1 to 2 of 2 repositories", "lib/app")
	}
	s.shows("?from=50", "Previous page")
	s.shows("repo/lib/app", "v1", "image", d[:19], "/ui/delete/lib/app:v1", "Compare from v1")
	// What is no image is not compared: the newest images are.
	s.pushApp("lib/app", "v3", appConfig, "layer one", "layer three")
	s.want(http.StatusCreated, "PUT", "/v2/lib/app/manifests/signature", artifactOf(d, "layer one"), isManifest)
	s.shows("repo/lib/app", `name="from" value="v1" aria-label="Compare from v1" checked`, `name="to" value="v3" aria-label="Compare to v3" checked`)
	s.shows("repo/lib/app?q=V", "v1")
	s.shows("repo/lib/app?q=w", "No tag holds")
	s.shows("repo/lib/app?from=9999&sort=name", "Tags before")
	s.shows("image/lib/app:v1", d, "linux/arm64/v8", `["/app","--x"]`, "nobody", "/srv", "80/tcp", "/data", "A=<b>1</b>", "ADD</b> file:1 in /", "ENV</b> A=1",
		"RUN</b> apt-get update \\\n && apt-get install x", "Layer 2", "no files", `"schemaVersion": 2`, "podman pull --tls-verify=false ", "slipway run ", "/ui/tree/lib/app:v1")
	body := s.page("image/lib/app@" + d)
	if strings.Contains(body, "<script>alert") || strings.Contains(body, "<b>1</b>") {
		t.Error("what somebody pushed is taken for HTML")
	}
	for _, path := range []string{"repo/none", "repo/", "repo/lib/../app", "repo/LIB", "image/none:v1", "image/lib/app:v2", "image/lib/app", "image/lib/app@sha256:00", "image/lib/app@" + digestOf("x"),
		"image/lib/app:v1/", "image/:", "image/@", "delete/none:v1", "image/lib%2fapp%00:v1"} {
		s.want(http.StatusNotFound, "GET", "/ui/"+path, "")
	}
	if body := s.want(http.StatusOK, "GET", "/ui/image/lib/app:v1", "", func(r *http.Request) { r.Host = `evil"><b>;rm` }).body; strings.Contains(body, "evil") {
		t.Error("the host of a request is shown unchecked")
	}
	if a := s.want(http.StatusOK, "GET", "/ui/repo/lib/app", ""); !strings.Contains(a.body, "<dt>Last pull</dt><dd>never</dd>") {
		t.Error("to look at an image is taken for a pull")
	}
	s.want(http.StatusOK, "GET", "/v2/lib/app/manifests/v1", "")
	s.shows("caches", "Asked for most", "/ui/image/lib/app:v1")
}

// TestBrowseArtifacts checks that an artifact that is no image has a page, too.
func TestBrowseArtifacts(t *testing.T) {
	t.Parallel()
	s := start(t, setup{})
	const repo = "lib/app"
	app := s.pushApp(repo, "v1", appConfig, "layer one")
	subject := map[string]any{"mediaType": oci.MediaTypeOCIManifest, "digest": app, "size": 1}
	empty := s.part(repo, "application/vnd.oci.empty.v1+json", "{}")
	s.pushed(repo, "", oci.MediaTypeOCIManifest, map[string]any{"schemaVersion": 2, "mediaType": oci.MediaTypeOCIManifest, "artifactType": "application/spdx+json",
		"config": empty, "layers": []any{empty}, "subject": subject, "annotations": map[string]string{"<i>": "</dd>"}})
	s.pushApp(repo, strings.Replace(app, ":", "-", 1)+".sig", "{}", "a signature")
	s.shows("image/"+repo+":v1", "Attached to it", "SBOM", "application/spdx+json", "signature", "by a tag")

	size := len(s.want(http.StatusOK, "GET", "/v2/"+repo+"/manifests/"+app, "").body)
	index := s.pushed(repo, "all", oci.MediaTypeOCIIndex, map[string]any{"schemaVersion": 2, "mediaType": oci.MediaTypeOCIIndex, "manifests": []any{
		map[string]any{"mediaType": oci.MediaTypeOCIManifest, "digest": app, "size": size, "platform": map[string]string{"os": "linux", "architecture": "arm64", "variant": "v8"}}}})
	s.shows("image/"+repo+":all", "index", "linux/arm64/v8", "Platforms", "/ui/image/"+repo+"@"+app)
	s.shows("image/"+repo+"@"+app, "Part of", "/ui/image/"+repo+"@"+index)
	s.shows("repo/"+repo, "index", "linux/arm64/v8")

	chart := map[string]any{"schemaVersion": 2, "config": s.part(repo, "application/vnd.cncf.helm.config.v1+json", `{"name":"x"}`),
		"layers": []any{s.part(repo, "application/vnd.cncf.helm.chart.content.v1.tar+gzip", "a chart")}}
	s.pushed(repo, "1.0.0_a", oci.MediaTypeOCIManifest, chart)
	s.shows("image/"+repo+":1.0.0_a", "Helm chart", "helm pull --plain-http oci://", "--version 1.0.0+a", "Contents")

	for tag, config := range map[string]string{"list": `[]`, "no-json": `{{{`, "wrong": `{"config":{"Env":"x"},"history":7}`, "null": `null`, "huge": `{"config":{"Env":["` + strings.Repeat("x", 5<<20) + `"]}}`,
		"many": `{"history":[` + strings.Repeat(`{"created_by":"RUN x"},`, 3000) + `{}]}`} {
		s.pushApp(repo, tag, config, "layer one")
		s.shows("image/"+repo+":"+tag, "Layers")
	}
	docker := map[string]any{"schemaVersion": 2, "mediaType": oci.MediaTypeDockerManifest, "config": s.part(repo, "application/vnd.docker.container.image.v1+json", appConfig),
		"layers": []any{s.part(repo, "application/vnd.docker.image.rootfs.diff.tar.gzip", "layer of docker")}}
	s.pushed(repo, "docker", oci.MediaTypeDockerManifest, docker)
	s.shows("image/"+repo+":docker", "How it was built", "docker pull")
	s.pushed(repo, "other", oci.MediaTypeOCIManifest, map[string]any{"schemaVersion": 2, "config": s.part(repo, "application/x.y", "\xff\x00"), "layers": []any{}})
	s.shows("image/"+repo+":other", "artifact", "oras pull --plain-http ")
	s.shows("repo/"+repo, "Helm chart", "artifact")
}

// TestBrowseDelete checks that a deletion asks first, gives the reason if it is refused, and is
// recorded.
func TestBrowseDelete(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	audit := filepath.Join(dir, "audit.log")
	s := start(t, setup{yaml: "log: {audit: {file: " + audit + "}}\nstorage: {immutable_tags: [{repositories: ['**'], tags: ['v.*']}]}"})
	d := s.pushApp("lib/app", "v1", appConfig, "one")
	s.pushApp("lib/app", "next", appConfig, "two")
	other := s.pushApp("lib/app", "later", appConfig, "three")
	s.shows("delete/lib/app:v1", "immutable")
	s.want(http.StatusConflict, "POST", "/ui/delete/lib/app:v1", "", sameOrigin...)
	s.shows("delete/lib/app@"+d, "immutable")
	s.want(http.StatusConflict, "POST", "/ui/delete/lib/app@"+d, "", sameOrigin...)
	s.shows("delete/lib/app:next", "The tag goes", "Keep it")
	s.want(http.StatusForbidden, "POST", "/ui/delete/lib/app:next", "", header("Sec-Fetch-Site", "cross-site"))
	s.want(http.StatusOK, "GET", "/v2/lib/app/manifests/next", "")
	s.want(http.StatusOK, "POST", "/ui/delete/lib/app:next", "", sameOrigin...)
	s.want(http.StatusNotFound, "GET", "/v2/lib/app/manifests/next", "")
	s.want(http.StatusNotFound, "POST", "/ui/delete/lib/app:next", "", sameOrigin...)
	s.want(http.StatusForbidden, "POST", "/ui/remove/lib/app", "name=lib/app", append(sameOrigin, header("Content-Type", "application/x-www-form-urlencoded"))...)
	s.want(http.StatusOK, "GET", "/v2/lib/app/manifests/later", "")
	s.shows("delete/lib/app@"+other, "with its tags: later")
	s.want(http.StatusOK, "POST", "/ui/delete/lib/app@"+other, "", sameOrigin...)
	s.want(http.StatusNotFound, "GET", "/v2/lib/app/manifests/"+other, "")
	s.want(http.StatusOK, "GET", "/v2/lib/app/manifests/v1", "")
	if log := readFile(t, audit); !strings.Contains(log, `"event":"delete","outcome":"success"`) || !strings.Contains(log, `"reference":"next"`) {
		t.Errorf("the audit log is %s", log)
	}

	s = start(t, setup{yaml: "storage: {delete: {enabled: false}}"})
	s.pushApp("lib/app", "v1", appConfig, "one")
	s.shows("repo/lib/app", "storage.delete.enabled")
	s.want(http.StatusConflict, "POST", "/ui/delete/lib/app:v1", "", sameOrigin...)
}

// TestBrowseAccess checks that repositories a client may not see look as if they did not exist.
func TestBrowseAccess(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "htpasswd")
	writeFile(t, path, htpasswd(t, "alice", "a", "root", "r"))
	s := start(t, setup{yaml: "auth: {htpasswd: {path: " + path + "}, access: [{repositories: ['open/**'], subjects: [alice], actions: [pull]}, {repositories: ['**'], subjects: [root], actions: ['*', admin]}]}"})
	alice, root := basic("alice", "a"), basic("root", "r")
	s.pushImage("open/app", "v1", "x", root)
	s.pushImage("secret/app", "v1", "y", root)
	if body := s.page("", alice); strings.Contains(body, "secret") || !strings.Contains(body, "open/app") {
		t.Errorf("alice's list is %s", body)
	}
	for _, text := range []string{"secret", "v1", s.want(http.StatusOK, "GET", "/v2/secret/app/manifests/v1", "", root).header.Get("Docker-Content-Digest")} {
		if body := s.page("?q="+text, alice); strings.Contains(body, "secret/app") {
			t.Errorf("a search for %s finds what alice may not see", text)
		}
	}
	for _, page := range []string{"repo/%s", "image/%s:v1", "delete/%s:v1"} {
		there := s.want(http.StatusNotFound, "GET", "/ui/"+fmt.Sprintf(page, "secret/app"), "", alice)
		absent := s.want(http.StatusNotFound, "GET", "/ui/"+fmt.Sprintf(page, "secret/none"), "", alice)
		if there.body != absent.body {
			t.Errorf("%s tells what is there", page)
		}
	}
	s.want(http.StatusForbidden, "GET", "/ui/delete/open/app:v1", "", alice)
	s.want(http.StatusForbidden, "POST", "/ui/delete/open/app:v1", "", append(sameOrigin, alice)...)
	if body := s.page("repo/open/app", alice); strings.Contains(body, "/ui/delete/") {
		t.Error("alice is offered to delete")
	}
	s.want(http.StatusOK, "GET", "/ui/delete/open/app:v1", "", root)
}

// TestBrowseUndo checks that the page shows what a tag pointed at and who moved it, and that each
// deletion can be taken back: of a tag, of a manifest, and of a whole repository.
func TestBrowseUndo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	users, audit := filepath.Join(dir, "htpasswd"), filepath.Join(dir, "audit.log")
	writeFile(t, users, htpasswd(t, "alice", "a", "root", "r"))
	s := start(t, setup{yaml: "log: {audit: {file: " + audit + "}}\nauth: {htpasswd: {path: " + users + "}, access: [{repositories: ['**'], subjects: [alice], actions: [pull]}, {repositories: ['**'], subjects: [root], actions: ['*', admin]}]}"})
	alice, root := basic("alice", "a"), basic("root", "r")
	post := func(status int, path, form string, as func(*http.Request)) string {
		t.Helper()
		return html.UnescapeString(s.want(status, "POST", "/ui/"+path, form, append(sameOrigin, as, header("Content-Type", "application/x-www-form-urlencoded"))...).body)
	}
	contains := func(body string, texts ...string) {
		t.Helper()
		for _, want := range texts {
			if !strings.Contains(body, want) {
				t.Errorf("the page lacks %q:\n%s", want, body)
			}
		}
	}
	s.pushImage("lib/app", "v1", "one", root)
	one := s.want(http.StatusOK, "GET", "/v2/lib/app/manifests/v1", "", root).header.Get("Docker-Content-Digest")
	s.pushImage("lib/app", "v1", "two", root)
	two := s.want(http.StatusOK, "GET", "/v2/lib/app/manifests/v1", "", root).header.Get("Docker-Content-Digest")
	at := func(tag, want string) {
		t.Helper()
		if want == "" {
			s.want(http.StatusNotFound, "GET", "/v2/lib/app/manifests/"+tag, "", root)
		} else if got := s.want(http.StatusOK, "GET", "/v2/lib/app/manifests/"+tag, "", root).header.Get("Docker-Content-Digest"); got != want {
			t.Errorf("%s is %s, want %s", tag, got, want)
		}
	}

	// The history, going back, and nothing of it for those who may only pull.
	contains(s.page("history/lib/app:v1", root), "root", "by a push", one[:19], two[:19], "Go back to this")
	if body := s.page("history/lib/app:v1", alice); strings.Contains(body, "Go back") {
		t.Error("alice is offered to move a tag")
	}
	post(http.StatusForbidden, "restore/lib/app", "tag=v1&digest="+one, alice)
	contains(post(http.StatusOK, "restore/lib/app", "from=history&tag=v1&digest="+one, root), "by going back")
	at("v1", one)
	for _, path := range []string{"history/lib/app:none", "history/lib/app@" + one, "history/none:v1"} {
		s.want(http.StatusNotFound, "GET", "/ui/"+path, "", root)
	}
	post(http.StatusNotFound, "restore/lib/app", "tag=v1&digest="+digestOf("nothing"), root)
	post(http.StatusNotFound, "restore/lib/app", "tag=v1", root)
	post(http.StatusNotFound, "restore/lib/app", "tag=.&digest="+one, root)

	// A tag, with its digest; then a manifest with its tags.
	contains(post(http.StatusOK, "delete/lib/app:v1", "", root), "The tag v1 was deleted", one, "Undo", two[:19], "Manifests without a tag")
	at("v1", "")
	post(http.StatusOK, "restore/lib/app", "tag=v1&digest="+one, root)
	at("v1", one)
	contains(post(http.StatusOK, "delete/lib/app@"+one, "", root), "The manifest was deleted", one, "Undo", "Kept until")
	at(one, "")
	if body := s.page("repo/lib/app", alice); strings.Contains(body, one[:19]) {
		t.Error("alice is shown what was deleted")
	}
	contains(post(http.StatusOK, "restore/lib/app", "digest="+one, root), "v1")
	at("v1", one)
	at(one, one)
	post(http.StatusOK, "restore/lib/app", "digest="+one, root) // it is here already

	// The repository, with an index whose parts must come back first.
	size := len(s.want(http.StatusOK, "GET", "/v2/lib/app/manifests/"+one, "", root).body)
	index := fmt.Sprintf(`{"schemaVersion":2,"mediaType":%q,"manifests":[{"mediaType":%q,"digest":%q,"size":%d}]}`, oci.MediaTypeOCIIndex, oci.MediaTypeOCIManifest, one, size)
	s.want(http.StatusCreated, "PUT", "/v2/lib/app/manifests/all", index, root, header("Content-Type", oci.MediaTypeOCIIndex))
	contains(s.page("remove/lib/app", root), "2 tags", "to confirm")
	post(http.StatusConflict, "remove/lib/app", "name=lib", root)
	s.want(http.StatusForbidden, "GET", "/ui/remove/lib/app", "", alice)
	post(http.StatusForbidden, "remove/lib/app", "name=lib/app", alice)
	at("all", digestOf(index))
	contains(post(http.StatusOK, "remove/lib/app", "name=lib/app", root), "All images of this repository were deleted", "Undo")
	for _, ref := range []string{"all", "v1", one, two} {
		at(ref, "")
	}
	post(http.StatusOK, "restore/lib/app", "", root)
	at("all", digestOf(index))
	at("v1", one)
	at(two, two)
	log := readFile(t, audit)
	contains(log, `"event":"restore","outcome":"success"`, `"event":"restore","outcome":"failure"`, `"reference":"v1@`+one)
}

// TestBrowseDeleteChosen deletes random sets of tags and manifests together, and takes that back. After
// each step the repository must be what a model of it says.
func TestBrowseDeleteChosen(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	users, audit := filepath.Join(dir, "htpasswd"), filepath.Join(dir, "audit.log")
	writeFile(t, users, htpasswd(t, "alice", "a", "root", "r"))
	s := start(t, setup{yaml: "log: {audit: {file: " + audit + "}}\nauth: {htpasswd: {path: " + users + "}, access: [{repositories: ['**'], subjects: [alice], actions: [pull]}, {repositories: ['**'], subjects: [root], actions: ['*', admin]}]}\n" +
		"storage: {immutable_tags: [{repositories: ['**'], tags: ['fixed.*']}]}"})
	alice, root := basic("alice", "a"), basic("root", "r")
	form := append(slices.Clone(sameOrigin), root)
	post := func(status int, path string, v url.Values, edits ...func(*http.Request)) string {
		t.Helper()
		return html.UnescapeString(s.want(status, "POST", "/ui/"+path, v.Encode(), edits...).body)
	}
	// The model: which tag names which manifest, and which manifests there are.
	tags, manifests := map[string]string{}, map[string]bool{}
	digests := []string{}
	for i := range 6 {
		for _, tag := range []string{fmt.Sprint("a", i), fmt.Sprint("b", i)} {
			tags[tag] = s.pushImage("lib/app", tag, fmt.Sprint("layer ", i), root)
		}
		digests = append(digests, tags[fmt.Sprint("a", i)])
	}
	tags["fixed"] = s.pushImage("lib/app", "fixed", "layer that stays", root)
	digests = append(digests, tags["fixed"])
	for _, d := range digests {
		manifests[d] = true
	}
	names := slices.Sorted(maps.Keys(tags))
	check := func(when string) {
		t.Helper()
		for _, tag := range names {
			a := s.do("GET", "/v2/lib/app/manifests/"+tag, "", root)
			if got := a.header.Get("Docker-Content-Digest"); a.status == http.StatusOK && got != tags[tag] || a.status != http.StatusOK && tags[tag] != "" {
				t.Fatalf("%s: %s is %d %s, want %q", when, tag, a.status, got, tags[tag])
			}
		}
		for _, d := range digests {
			if a := s.do("GET", "/v2/lib/app/manifests/"+d, "", root); (a.status == http.StatusOK) != manifests[d] {
				t.Fatalf("%s: %s is answered %d, want it there: %v", when, d, a.status, manifests[d])
			}
		}
	}
	rng := rand.New(rand.NewPCG(7, 8))
	for round := range 12 {
		chosen := url.Values{}
		for _, ref := range append(slices.Clone(names), digests...) {
			if rng.IntN(4) == 0 {
				chosen.Add("ref", ref)
			}
		}
		if len(chosen) == 0 {
			continue
		}
		when := fmt.Sprintf("round %d, %q", round, chosen["ref"])
		// What is chosen, is there, and is not kept goes.
		before, had := maps.Clone(tags), maps.Clone(manifests)
		var goes []string
		for _, ref := range chosen["ref"] {
			if ref != "fixed" && ref != before["fixed"] && (manifests[ref] || before[ref] != "") {
				goes = append(goes, ref)
			}
		}
		check(when + " before")
		page := s.page("delete/lib/app?"+chosen.Encode(), root)
		for _, ref := range goes {
			if !strings.Contains(page, `name="ref" value="`+ref+`"`) {
				t.Fatalf("%s: %s is not among what goes:\n%s", when, ref, page)
			}
		}
		if n := strings.Count(page, `name="ref"`); n != len(goes) {
			t.Fatalf("%s: %d are to go, want %q", when, n, goes)
		}
		check(when + " with the question")
		if len(goes) == 0 {
			post(http.StatusConflict, "delete/lib/app", chosen, form...)
			continue
		}
		answer := post(http.StatusOK, "delete/lib/app", chosen, form...)
		for _, ref := range goes {
			delete(tags, ref)
			if manifests[ref] {
				delete(manifests, ref)
				maps.DeleteFunc(tags, func(_, d string) bool { return d == ref })
			}
		}
		check(when)
		if rng.IntN(3) == 0 {
			continue // that stays
		}
		items := url.Values{}
		for _, m := range regexp.MustCompile(`name="item" value="([^"]*)"`).FindAllStringSubmatch(answer, -1) {
			items.Add("item", m[1])
		}
		if len(items["item"]) != len(goes) {
			t.Fatalf("%s: %q can be taken back, want %q", when, items["item"], goes)
		}
		post(http.StatusOK, "restore/lib/app", items, form...)
		tags, manifests = before, had
		check(when + " taken back")
	}
	if len(manifests) == 7 {
		t.Error("nothing was deleted for good")
	}

	// A whole page, behind a proxy that takes 4 KiB of headers of an answer, as nginx does.
	s.client = &http.Client{Transport: &http.Transport{MaxResponseHeaderBytes: 4 << 10}, Timeout: patience}
	t.Cleanup(s.client.CloseIdleConnections)
	whole := url.Values{}
	for i := range 50 {
		layer, tag := fmt.Sprint("one of many ", i), fmt.Sprintf("release-2026.11.%02d", i)
		s.pushBlob("lib/many", layer, root)
		m := imageOf(layer)
		s.want(http.StatusCreated, "PUT", "/v2/lib/many/manifests/"+digestOf(m), m, root, isManifest)
		s.pushImage("lib/many", tag, "with many tags", root)
		whole["ref"] = append(whole["ref"], digestOf(m), tag)
	}
	if n := strings.Count(post(http.StatusOK, "delete/lib/many", whole, form...), `name="item"`); n != 100 {
		t.Errorf("of a whole page of 100, %d can be taken back", n)
	}

	// Those who may not, other sites, and forms that make no sense.
	one := url.Values{"ref": {"fixed"}}
	post(http.StatusForbidden, "delete/lib/app", one, append(slices.Clone(sameOrigin), alice)...)
	s.want(http.StatusForbidden, "GET", "/ui/delete/lib/app?ref=fixed", "", alice)
	post(http.StatusForbidden, "delete/lib/app", one, header("Sec-Fetch-Site", "cross-site"), header("Content-Type", "application/x-www-form-urlencoded"), root)
	post(http.StatusBadRequest, "delete/lib/app", nil, form...)
	post(http.StatusNotFound, "delete/lib/app", url.Values{"ref": {"../x"}}, form...)
	post(http.StatusConflict, "delete/none", one, form...)
	post(http.StatusBadRequest, "delete/lib/app", url.Values{"ref": many(101)}, form...)
	post(http.StatusNotFound, "restore/lib/app", url.Values{"item": {"a@b"}}, form...)
	if body := s.page("repo/lib/app", alice); strings.Contains(body, `name="ref"`) {
		t.Error("alice is offered to delete")
	}
	check("at the end")
	if log := readFile(t, audit); !strings.Contains(log, `"event":"delete","outcome":"success","subject":"root"`) || !strings.Contains(log, `"event":"restore","outcome":"success","subject":"root"`) {
		t.Errorf("the audit log is %s", log)
	}
}

// many returns n tags.
func many(n int) (list []string) {
	for i := range n {
		list = append(list, fmt.Sprint("t", i))
	}
	return list
}

// TestBrowseBadges checks that what belongs to an image is marked at the image and has no row of
// its own.
func TestBrowseBadges(t *testing.T) {
	t.Parallel()
	s := start(t, setup{})
	const repo = "lib/app"
	app := s.pushApp(repo, "v1", appConfig, "layer one")
	sig := strings.Replace(app, ":", "-", 1) + ".sig"
	s.pushApp(repo, sig, "{}", "a signature")
	empty := s.part(repo, "application/vnd.oci.empty.v1+json", "{}")
	sbom := s.pushed(repo, "", oci.MediaTypeOCIManifest, map[string]any{"schemaVersion": 2, "mediaType": oci.MediaTypeOCIManifest, "artifactType": "application/spdx+json",
		"config": empty, "layers": []any{empty}, "subject": map[string]any{"mediaType": oci.MediaTypeOCIManifest, "digest": app, "size": 1}})
	body := s.page("repo/" + repo)
	for _, want := range []string{`<span class="mark">signature</span>`, `<span class="mark">SBOM</span>`, "Show their tags, too"} {
		if !strings.Contains(body, want) {
			t.Errorf("the repository's page lacks %q:\n%s", want, body)
		}
	}
	for _, hidden := range []string{sig, sbom[:19]} {
		if strings.Contains(body, hidden) {
			t.Errorf("the repository's page has a row of its own for %s", hidden)
		}
	}
	s.shows("repo/"+repo+"?all=1", sig)
	s.shows("repo/"+repo+"?q=sig", sig)
}

// TestBrowseDocuments checks that the page shows what an SBOM, a vulnerability report and a chart
// say, and nothing of them as HTML.
func TestBrowseDocuments(t *testing.T) {
	t.Parallel()
	s := start(t, setup{})
	const repo = "lib/app"
	app := s.pushApp(repo, "v1", appConfig, "layer one")
	attach := func(artifactType, mediaType, content string) string {
		return s.pushed(repo, "", oci.MediaTypeOCIManifest, map[string]any{"schemaVersion": 2, "mediaType": oci.MediaTypeOCIManifest, "artifactType": artifactType,
			"config": s.part(repo, "application/vnd.oci.empty.v1+json", "{}"), "layers": []any{s.part(repo, mediaType, content)},
			"subject": map[string]any{"mediaType": oci.MediaTypeOCIManifest, "digest": app, "size": 1}})
	}
	sbom := attach("application/vnd.cyclonedx+json", "application/vnd.cyclonedx+json", `{"bomFormat":"CycloneDX","components":[{"name":"<b>zlib</b>","version":"1.3","licenses":[{"license":{"id":"Zlib"}}]}]}`)
	report := attach("application/sarif+json", "application/sarif+json", `{"version":"2.1.0","runs":[{"tool":{"driver":{"name":"scanner"}},"results":[{"ruleId":"CVE-1","level":"error","message":{"text":"<script>x</script>"}}]}]}`)
	none := attach("application/vnd.cyclonedx+json", "application/json", `{"bomFormat":7}`)
	s.shows("repo/"+repo, `<span class="mark">SBOM</span>`, `<span class="mark">vulnerability report</span>`)
	s.shows("image/"+repo+":v1", "SBOM", "vulnerability report", "/ui/image/"+repo+"@"+sbom, "/ui/image/"+repo+"@"+report)
	s.shows("image/"+repo+"@"+sbom, "Bill of materials", "zlib", "1.3", "Zlib")
	s.shows("image/"+repo+"@"+report, "Vulnerabilities", "CVE-1", "1 high", "this registry scans nothing")
	s.shows("image/"+repo+"@"+none, "Contents")
	for _, d := range []string{sbom, report} {
		if body := s.page("image/" + repo + "@" + d); strings.Contains(body, "<script>x") || strings.Contains(body, "<b>zlib") {
			t.Error("what somebody pushed is taken for HTML")
		}
	}
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write([]byte(treeLayer(t, map[string]string{"web/README.md": "# The web chart", "web/values.yaml": "replicas: 3"}))); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	s.pushed(repo, "chart", oci.MediaTypeOCIManifest, map[string]any{"schemaVersion": 2,
		"config": s.part(repo, "application/vnd.cncf.helm.config.v1+json", `{"name":"web","version":"1.0.0","description":"Serves <i>pages</i>","appVersion":"9"}`),
		"layers": []any{s.part(repo, "application/vnd.cncf.helm.chart.content.v1.tar+gzip", b.String())}})
	s.shows("image/"+repo+":chart", "Serves <i>pages</i>", "Version of the application", "# The web chart", "replicas: 3")
}

// TestBrowseHistoryNames checks that anonymous clients see the history of a tag without the names of
// users, and that who may only pull sees nothing of what was deleted, at the page and through the API.
func TestBrowseHistoryNames(t *testing.T) {
	t.Parallel()
	users := filepath.Join(t.TempDir(), "htpasswd")
	writeFile(t, users, htpasswd(t, "mallory-the-pusher", "m", "reader", "r"))
	s := start(t, setup{yaml: "auth: {htpasswd: {path: " + users + "}, access: [{repositories: ['**'], subjects: [anonymous, reader], actions: [pull]}, {repositories: ['**'], subjects: [mallory-the-pusher], actions: ['*']}]}"})
	pusher, reader := basic("mallory-the-pusher", "m"), basic("reader", "r")
	s.pushImage("lib/app", "v1", "x", pusher)
	gone := s.pushImage("lib/app", "v2", "y", pusher)
	s.want(http.StatusAccepted, "DELETE", "/v2/lib/app/manifests/"+gone, "", pusher)
	for _, path := range []string{"/ui/history/lib/app:v1", "/v2/lib/app/_slipway/tags/v1/history"} {
		if body := s.want(http.StatusOK, "GET", path, "").body; strings.Contains(body, "mallory") {
			t.Errorf("%s tells an anonymous client who pushed: %s", path, body)
		}
		if body := s.want(http.StatusOK, "GET", path, "", reader).body; !strings.Contains(body, "mallory") {
			t.Errorf("%s does not tell a user who pushed: %s", path, body)
		}
	}
	for _, as := range []func(*http.Request){func(*http.Request) {}, reader} {
		if body := s.want(http.StatusOK, "GET", "/ui/repo/lib/app", "", as).body; strings.Contains(body, gone[:19]) {
			t.Error("the page shows what was deleted to who may only pull")
		}
	}
	s.want(http.StatusForbidden, "GET", "/v2/lib/app/_slipway/deleted", "", reader)
	s.want(http.StatusUnauthorized, "GET", "/v2/lib/app/_slipway/deleted", "")
	s.want(http.StatusForbidden, "POST", "/v2/lib/app/_slipway/deleted/"+gone+"/restore", "", reader)
	if body := s.want(http.StatusOK, "GET", "/v2/lib/app/_slipway/deleted", "", pusher).body; !strings.Contains(body, gone) {
		t.Errorf("what was deleted is %s", body)
	}
}
