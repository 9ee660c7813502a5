package serve_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"example.org/slipway/oci"
	"example.org/slipway/serve/mirrors"
)

// TestMirrorListHasNoPushed checks that pushed images do not count as mirrored: they are neither
// listed with the mirrors nor exported.
func TestMirrorListHasNoPushed(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	b := newMirrorBed(t)
	b.public.pushImage("library/app", "v1", mirrorLayer("public"))
	b.pushImage("team/secret", "v1", mirrorLayer("secret"), alice)
	a, _ := openAdmin(t, b.cfg)
	file := filepath.Join(t.TempDir(), "images.tar")
	if out, err := a.ExportMirrors(t.Context(), mirrors.ExportArgs{Path: file}, nil); err == nil {
		t.Errorf("an export with no mirrored image: got %+v", out)
	}
	if _, err := a.LoadMirrors(t.Context(), mirrors.LoadArgs{Images: []string{"app:v1"}}, nil); err != nil {
		t.Fatal(err)
	}
	list, err := a.ListMirrors(t.Context(), mirrors.ListArgs{})
	if err != nil || len(list.Images) != 1 || list.Images[0].Repository != "pub/library/app" {
		t.Errorf("list: got %+v, %v", list, err)
	}
	if list, err := a.ListMirrors(t.Context(), mirrors.ListArgs{Pattern: "team/*"}); err != nil || len(list.Images) != 0 {
		t.Errorf("list of what was pushed: got %+v, %v", list, err)
	}
	if out, err := a.ExportMirrors(t.Context(), mirrors.ExportArgs{Path: file}, nil); err != nil || out.Images != 1 {
		t.Errorf("export: got %+v, %v", out, err)
	}
	plain, _ := openAdmin(t, configure(t, setup{root: start(t, setup{}).root}))
	if list, err := plain.ListMirrors(t.Context(), mirrors.ListArgs{}); err != nil || len(list.Images) != 0 {
		t.Errorf("list without mirrors: got %+v, %v", list, err)
	}
}

// defaultBed returns a server with def as its default upstream. Its upstream priv wants a password,
// and shut lets nobody in. Alice may do everything, bob may do everything in team/ only.
func defaultBed(t *testing.T, def string) *instance {
	t.Helper()
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "upstream"), htpasswd(t, "reader", "hush"))
	writeFile(t, filepath.Join(dir, "users"), htpasswd(t, "alice", "a", "bob", "b"))
	private := start(t, setup{yaml: "auth: {htpasswd: {path: " + filepath.Join(dir, "upstream") + "}}"})
	private.pushImage("library/app", "v1", mirrorLayer("secret"), basic("reader", "hush"))
	return start(t, setup{yaml: fmt.Sprintf(`auth:
  max_failures_per_minute: -1
  htpasswd: {path: %s}
  token: {builtin: true}
  access:
  - {repositories: ["**"], subjects: [alice], actions: ["*"]}
  - {repositories: ["team/**"], subjects: [bob], actions: ["*"]}
proxy:
  upstreams:
  - {name: priv, url: %q, username: reader, password: hush, library: true, hosts: [priv-mirror.test]}
  - {name: shut, url: %q}
  mappings: [{from: "hub/*", to: "priv/*"}]
  default: %s
`, filepath.Join(dir, "users"), private.url, private.url, def)})
}

// TestMirrorDefaultAndFirstPush checks that the default upstream does not disturb the first push of
// a repository: neither by what the client may not read there nor by what the upstream denies.
func TestMirrorDefaultAndFirstPush(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	for name, bed := range map[string]struct {
		def string
		who func(*http.Request)
	}{
		"who may not pull from it": {"priv", basic("bob", "b")},
		"it denies everything":     {"shut", alice},
	} {
		t.Run(name, func(t *testing.T) {
			s, who := defaultBed(t, bed.def), bed.who
			layer := mirrorLayer("mine")
			s.want(404, "HEAD", "/v2/team/new/blobs/"+digestOf(layer), "", who)
			s.want(404, "HEAD", "/v2/team/new/manifests/v1", "", who)
			s.want(401, "HEAD", "/v2/team/new/manifests/v1", "")
			s.want(403, "GET", "/v2/team/new/manifests/v1", "", who)
			at := s.want(202, "POST", "/v2/team/new/blobs/uploads/", "", who).header.Get("Location")
			if s.want(204, "GET", at, "", who); !strings.Contains(at, "/team/new/blobs/uploads/") {
				t.Errorf("got an upload at %s", at)
			}
			s.want(204, "DELETE", at, "", who)
			s.pushImage("team/new", "v1", layer, who)
			s.want(200, "HEAD", "/v2/team/new/blobs/"+digestOf(layer), "", who)
			s.pull("team/new", "v1", "", layer, who)
		})
	}
}

// TestMirrorNamesAndMappings checks that with ns, or with the host of an upstream, a name belongs
// to that upstream even if mappings give the name another meaning here. Mappings apply to complete
// names.
func TestMirrorNamesAndMappings(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	up := start(t, setup{})
	hub, lib, ours := mirrorLayer("hub"), mirrorLayer("library"), mirrorLayer("ours")
	up.pushImage("hub/nginx", "v1", hub)
	up.pushImage("library/nginx", "v1", lib)
	inner := start(t, setup{})
	inner.pushImage("example/x", "v1", ours)
	s := start(t, setup{yaml: fmt.Sprintf(`proxy:
  upstreams:
  - {name: docker.io, url: %q, hosts: [mirror.test, docker.io]}
  - {name: hub-private, url: %q, library: true}
  mappings: [{from: "docker.io/example/*", to: "hub-private/example/*"}, {from: "hub/*", to: "docker.io/*"}]
`, up.url, inner.url)})
	s.pull("hub/nginx", "v1", "", lib)
	s.pull("hub/nginx", "v1", "?ns=docker.io", hub)
	s.pull("docker.io/hub/nginx", "v1", "?ns=docker.io", hub)
	s.pull("hub/nginx", "v1", "", hub, host("mirror.test"))
	s.pull("hub/nginx", "v1", "", hub, host("docker.io"))
	s.pull("nginx", "v1", "?ns=docker.io", lib)
	s.pull("docker.io/nginx", "v1", "?ns=docker.io", lib)
	for _, query := range []string{"", "?ns=docker.io"} {
		s.pull("docker.io/example/x", "v1", query, ours)
	}
	s.pull("example/x", "v1", "?ns=docker.io", ours)
	s.pull("example/x", "v1", "", ours, host("mirror.test"))
}

// TestNamespaceOfURL checks that an upstream given only by its URL, as in Distribution, is found
// under the name that its images have.
func TestNamespaceOfURL(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	up, other := start(t, setup{}), start(t, setup{})
	layer, theirs := mirrorLayer("up"), mirrorLayer("other")
	up.pushImage("x/app", "v1", layer)
	other.pushImage("x/app", "v1", theirs)
	at, otherAt := strings.TrimPrefix(up.url, "http://"), strings.TrimPrefix(other.url, "http://")
	for _, yaml := range []string{
		fmt.Sprintf("proxy: {remoteurl: %q}", up.url),
		fmt.Sprintf("proxy: {remoteurl: %q, upstreams: [{name: other, url: %q}]}", up.url, other.url),
		fmt.Sprintf("proxy: {upstreams: [{name: up, url: %q}, {name: docker.io, url: %[1]q}]}", up.url),
	} {
		s := start(t, setup{yaml: yaml})
		names := []string{at, strings.ToUpper(at)}
		if strings.Contains(yaml, "docker.io") {
			names = []string{"docker.io", "index.docker.io", "registry-1.docker.io"} // the URL could mean any of them
			s.want(404, "GET", "/v2/x/app/manifests/v1?ns="+at, "")
		} else {
			s.pull("x/app", "v1", "", layer)
		}
		for _, ns := range names {
			s.pull("x/app", "v1", "?ns="+ns, layer)
			s.pull("x/app", string(oci.SHA256([]byte(imageOf(layer)))), "?ns="+ns, layer)
			s.want(200, "HEAD", "/v2/x/app/manifests/v1?ns="+ns, "")
			s.want(200, "GET", "/v2/x/app/tags/list?ns="+ns, "")
			s.want(200, "GET", "/v2/x/app/referrers/"+string(oci.SHA256([]byte(imageOf(layer))))+"?ns="+ns, "")
		}
		if strings.Contains(yaml, "other") {
			s.pull("x/app", "v1", "?ns="+otherAt, theirs)
		} else {
			s.want(404, "GET", "/v2/x/app/manifests/v1?ns="+otherAt, "")
		}
		s.want(404, "GET", "/v2/x/app/manifests/v1?ns=other.example", "")
		host, _, _ := strings.Cut(at, ":")
		s.want(404, "GET", "/v2/x/app/manifests/v1?ns="+host, "")
		s.want(404, "GET", "/v2/x/app/manifests/v1?ns="+host+":1", "")
	}
}

// TestNamespacePorts compares what ?ns= gives with the registry that an image name means, for names
// with and without ports: an image is that registry's, or it is not found.
func TestNamespacePorts(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	hub, quay, look := start(t, setup{}), start(t, setup{}), start(t, setup{})
	layers := map[string]string{"hub": mirrorLayer("hub"), "quay": mirrorLayer("quay"), "look": mirrorLayer("look")}
	hub.pushImage("x/app", "v1", layers["hub"])
	quay.pushImage("x/app", "v1", layers["quay"])
	look.pushImage("x/app", "v1", layers["look"])
	s := start(t, setup{yaml: fmt.Sprintf(`proxy:
  upstreams:
  - {name: docker.io, url: %q}
  - {name: quay.test, url: %q}
  - {name: look, url: %q, hosts: [look.test, "port.test:7000"]}
`, hub.url, quay.url, look.url)})
	at := strings.TrimPrefix(s.url, "http://")
	_, own, _ := strings.Cut(at, ":")
	for ns, want := range map[string]string{
		"docker.io": "hub", "docker.io:443": "hub", "index.docker.io:443": "hub", "registry-1.docker.io:443": "hub", "DOCKER.IO:443": "hub",
		"quay.test": "quay", "quay.test:443": "quay", strings.TrimPrefix(quay.url, "http://"): "quay",
		"look": "look", "look.test": "look", "look.test:443": "look", "look.test:" + own: "look", "port.test:7000": "look",
		"docker.io:5000": "", "index.docker.io:80": "", "quay.test:5000": "", "quay.test:" + own: "", "look.test:1": "", "port.test": "", "port.test:" + own: "",
	} {
		if want != "" {
			s.pull("x/app", "v1", "?ns="+ns, layers[want])
		} else if a := s.do("GET", "/v2/x/app/manifests/v1?ns="+ns, ""); a.status == 200 {
			t.Errorf("ns=%s is given the image %s", ns, a.body)
		}
	}
	for name, want := range map[string]string{"look.test": "look", "look.test:1": "look", "port.test:7000": "look"} {
		s.pull("x/app", "v1", "", layers[want], host(name))
	}
	s.want(404, "GET", "/v2/x/app/manifests/v1", "", host("port.test"))
}

// TestMirrorTokens checks that a token for a name is also valid for the repository that the name
// stands for, within the rules.
func TestMirrorTokens(t *testing.T) {
	t.Parallel()
	s := defaultBed(t, "priv")
	secret := mirrorLayer("secret")
	token := func(name string, edits ...func(*http.Request)) func(*http.Request) {
		t.Helper()
		a := s.want(200, "GET", "/token?scope=repository:"+name+":pull", "", edits...)
		var got struct{ Token string }
		if err := json.Unmarshal([]byte(a.body), &got); err != nil || got.Token == "" {
			t.Fatalf("got %s, %v", a.body, err)
		}
		return header("Authorization", "Bearer "+got.Token)
	}
	for _, name := range []string{"hub/library/app", "hub/app", "library/app", "app", "priv/app", "priv/library/app"} {
		s.pull(name, "v1", "", secret, token(name, alice))
		s.want(401, "GET", "/v2/"+name+"/manifests/v1", "", token("team/app", alice))
	}
	at := host("priv-mirror.test")
	s.pull("app", "v1", "", secret, token("app", alice, at), at)
	if a := s.do("GET", "/v2/app/manifests/v1", "", token("app", basic("bob", "b"))); a.status != 401 && a.status != 403 {
		t.Errorf("bob reads what only alice may: status %d", a.status)
	}
}

// TestMirrorOfPushedNames checks that pushed contents become a mirror when their name becomes an
// upstream's, and that the log says so once.
func TestMirrorOfPushedNames(t *testing.T) {
	t.Parallel()
	s := start(t, setup{})
	s.pushImage("up/team/app", "v1", mirrorLayer("mine"))
	s.pushImage("upper/app", "v1", mirrorLayer("mine"))
	const what = "repositories begin with the name of an upstream"
	again := func(yaml string, warned bool) {
		t.Helper()
		if err := s.stop(); err != nil {
			t.Fatal(err)
		}
		s = start(t, setup{root: s.root, yaml: yaml})
		if got := s.log.String(); strings.Contains(got, what) != warned || warned && !strings.Contains(got, "upstream=up repositories=[up/team/app]") {
			t.Errorf("with %q the log has:\n%s", yaml, got)
		}
	}
	const one, both = `proxy: {upstreams: [{name: up, url: "http://127.0.0.1:1"}]}`, `proxy: {upstreams: [{name: other, url: "http://127.0.0.1:1"}, {name: up, url: "http://127.0.0.1:1"}]}`
	again(one, true)
	again(one, false)
	again(both, false)
	again("", false)
	s.pull("up/team/app", "v1", "", mirrorLayer("mine"))
}

// TestMirrorOfPushedHosts checks the same for names that begin with a host that matches a pattern.
func TestMirrorOfPushedHosts(t *testing.T) {
	t.Parallel()
	s := start(t, setup{})
	for i := range 120 { // more than one page of the list of repositories
		s.pushImage(fmt.Sprintf("many/app%03d", i), "v1", "small")
	}
	for _, repo := range []string{"app", "reg.test/app", "reg.test0/app", "reg.testing/app", "zoo/app"} {
		s.pushImage(repo, "v1", "small")
	}
	again := func(yaml, warned string) {
		t.Helper()
		if err := s.stop(); err != nil {
			t.Fatal(err)
		}
		s = start(t, setup{root: s.root, yaml: yaml})
		got := s.log.String()
		if has := strings.Contains(got, "repositories begin with hosts"); has != (warned != "") || !strings.Contains(got, warned) {
			t.Errorf("with %q the log has:\n%s", yaml, got)
		}
	}
	again("proxy: {any: ['*.test']}", "begin=[reg.test]")
	again("proxy: {any: ['*.test']}", "")
	again("proxy: {any: ['*.test', '*.other']}", "begin=[reg.test]")
	again("proxy: {any: ['*.test'], upstreams: [{name: x}]}", "")
}
