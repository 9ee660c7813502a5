package serve_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"example.org/slipway/config"
	"example.org/slipway/oci"
	"example.org/slipway/registry/mirror"
	"example.org/slipway/registry/mirror/airgap"
	"example.org/slipway/serve"
	"example.org/slipway/serve/mirrors"
)

// host sets the Host header of a request.
func host(name string) func(*http.Request) {
	return func(r *http.Request) { r.Host = name }
}

// mirrorBed is a server that mirrors two others, one of which wants a password.
type mirrorBed struct {
	*instance
	public, private *instance
	access          string // its access log
}

// mirrorLayer returns the content of a layer that is too large for the catalogue.
func mirrorLayer(word string) string { return strings.Repeat(word+"\n", 200<<10/len(word)) }

// mirrorRules let everybody pull from pub and the names that stand for it. Alice may do everything,
// and bob may pull what alice pushes to team/.
const mirrorRules = `auth:
  max_failures_per_minute: -1
  htpasswd: {path: %s}
  access:
  - {repositories: ["pub/**"], subjects: [anonymous], actions: [pull]}
  - {repositories: ["**"], subjects: [alice], actions: ["*"]}
`

func newMirrorBed(t *testing.T) *mirrorBed {
	t.Helper()
	dir := t.TempDir()
	b := &mirrorBed{access: filepath.Join(dir, "access.log")}
	writeFile(t, filepath.Join(dir, "upstream"), htpasswd(t, "reader", "hush"))
	writeFile(t, filepath.Join(dir, "users"), htpasswd(t, "alice", "a"))
	b.public = start(t, setup{})
	b.private = start(t, setup{yaml: "auth: {htpasswd: {path: " + filepath.Join(dir, "upstream") + "}}"})
	b.instance = start(t, setup{yaml: fmt.Sprintf(mirrorRules, filepath.Join(dir, "users")) + fmt.Sprintf(`log: {accesslog: {format: trace, file: %s}}
proxy:
  upstreams:
  - {name: pub, url: %q, hosts: [pub-mirror.test], library: true}
  - {name: priv, url: %q, username: reader, password: hush}
  mappings: [{from: "hub/*", to: "pub/*"}]
  default: pub
  own_names: [own.test]
`, b.access, b.public.url, b.private.url)})
	return b
}

var alice = basic("alice", "a")

// pull wants an image as it was pushed, under any of its names.
func (s *instance) pull(repo, ref, query, layer string, edits ...func(*http.Request)) {
	s.t.Helper()
	if got := s.want(200, "GET", "/v2/"+repo+"/manifests/"+ref+query, "", edits...); got.body != imageOf(layer) {
		s.t.Errorf("%s:%s%s: got the manifest %s", repo, ref, query, got.body)
	}
	if got := s.want(200, "GET", "/v2/"+repo+"/blobs/"+digestOf(layer)+query, "", edits...); got.body != layer {
		s.t.Errorf("%s:%s%s: got another layer, of %d bytes", repo, ref, query, len(got.body))
	}
}

func TestMirrorNames(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	b := newMirrorBed(t)
	layer, own := mirrorLayer("public"), mirrorLayer("own")
	d := b.public.pushImage("library/app", "v1", layer)
	b.public.pushImage("team/app", "v1", layer)
	b.pushImage("team/app", "v1", own, alice) // pushed here, under a name that the upstream has too
	for _, tc := range []struct {
		name, repo, ref, query string
		edits                  []func(*http.Request)
	}{
		{"by path", "pub/library/app", "v1", "", nil},
		{"by path and digest", "pub/library/app", d, "", nil},
		{"by path, without library", "pub/app", "v1", "", nil},
		{"by ns", "library/app", "v1", "?ns=pub", nil},
		{"by ns that is a host", "library/app", "v1", "?ns=pub-mirror.test", nil},
		{"by ns and path", "pub/library/app", "v1", "?ns=pub", nil},
		{"by host", "library/app", "v1", "", []func(*http.Request){host("pub-mirror.test")}},
		{"by host with a port, without library", "app", "v1", "", []func(*http.Request){host("pub-mirror.test:5000")}},
		{"by another name", "hub/library/app", "v1", "", nil},
		{"by default", "library/app", "v1", "", nil},
		{"by default, without library", "app", "v1", "", nil},
		{"by default and the registry's own name", "app", "v1", "?ns=own.test", nil},
		{"what is here under the same name, by path", "pub/team/app", "v1", "", nil},
		{"what is here under the same name, by ns", "team/app", "v1", "?ns=pub", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b.instance.t = t
			defer func() { b.instance.t = b.public.t }()
			b.pull(tc.repo, tc.ref, tc.query, layer, tc.edits...)
		})
	}
	b.pull("team/app", "v1", "", own, alice)
	b.pull("team/app", "v1", "?ns=own.test", own, alice)
	if a := b.want(404, "GET", "/v2/library/app/manifests/v1?ns=elsewhere.test", "", alice); !strings.Contains(a.body, "NAME_UNKNOWN") {
		t.Errorf("an ns of nobody: got %s", a.body)
	}
	b.wantLogged("v2/pub/library/app/manifests/v1", 9)
	if a := b.want(200, "GET", "/v2/library/app/tags/list?ns=pub", ""); !strings.Contains(a.body, `"v1"`) {
		t.Errorf("tags by ns: got %s", a.body)
	}
}

// wantLogged wants at least n requests below uri in the access log, and none below the names that
// stand for others.
func (b *mirrorBed) wantLogged(uri string, n int) {
	b.t.Helper()
	poll(b.t, fmt.Sprintf("%s is %d times in the access log", uri, n), func() bool {
		return strings.Count(readFile(b.t, b.access), `"http.request.uri":"`+uri) >= n
	})
	for _, other := range []string{"v2/hub/", "v2/app/", "v2/library/"} {
		for _, line := range strings.Split(readFile(b.t, b.access), "\n") {
			if strings.Contains(line, `"http.request.uri":"`+other) && !strings.Contains(line, `"http.response.status":404`) {
				b.t.Errorf("the access log has a name that is another's: %s", line)
			}
		}
	}
}

// TestMirrorOfPrivate checks that content fetched with upstream credentials is served only to
// clients that the rules allow, under every name and even if the content is already here.
func TestMirrorOfPrivate(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	b := newMirrorBed(t)
	secret := mirrorLayer("secret")
	b.private.pushImage("team/app", "v1", secret, basic("reader", "hush"))
	b.want(401, "GET", "/v2/priv/team/app/manifests/v1", "")
	b.want(401, "GET", "/v2/team/app/manifests/v1?ns=priv", "")
	b.pull("priv/team/app", "v1", "", secret, alice)
	b.pull("team/app", "v1", "?ns=priv", secret, alice)
	b.want(401, "GET", "/v2/priv/team/app/blobs/"+digestOf(secret), "")
	for _, path := range []string{"pub/team/app/blobs/%s", "team/app/blobs/%s", "app/blobs/%s", "priv/team/app/blobs/%s?ns=pub", "team/app/blobs/%s?ns=pub"} {
		if a := b.do("GET", "/v2/"+fmt.Sprintf(path, digestOf(secret)), ""); a.status != 404 {
			t.Errorf("%s gives private content: status %d", path, a.status)
		}
	}
	for name, log := range map[string]string{"access": readFile(t, b.access), "server": b.log.String()} {
		if strings.Contains(log, "hush") {
			t.Errorf("the %s log holds a password:\n%s", name, log)
		}
	}
}

func TestMirrorWrites(t *testing.T) {
	t.Parallel()
	b := newMirrorBed(t)
	layer := mirrorLayer("public")
	b.public.pushImage("library/app", "v1", layer)
	for _, repo := range []string{"pub/library/app", "hub/library/app"} {
		a := b.want(http.StatusMethodNotAllowed, "POST", "/v2/"+repo+"/blobs/uploads/?digest="+digestOf("x"), "x", alice)
		if !strings.Contains(a.body, "UNSUPPORTED") || !strings.Contains(a.body, "pub") {
			t.Errorf("push to %s: got %s", repo, a.body)
		}
		b.want(http.StatusMethodNotAllowed, "PUT", "/v2/"+repo+"/manifests/v2", imageOf(layer), alice, isManifest)
	}
	// A plain name is local as soon as somebody pushes it.
	b.pull("library/app", "v1", "", layer)
	mine := mirrorLayer("mine")
	b.pushImage("library/app", "v1", mine, alice)
	b.pull("library/app", "v1", "", mine, alice)
	b.pull("pub/library/app", "v1", "", layer)
	// A delete drops the kept content.
	b.want(202, "DELETE", "/v2/pub/library/app/manifests/"+digestOf(imageOf(layer)), "", alice)
	b.pull("pub/library/app", "v1", "", layer)
}

// TestMirrorWithoutUpstreams checks that everything fetched is served while both upstreams are
// gone, also after a restart.
func TestMirrorWithoutUpstreams(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	b := newMirrorBed(t)
	layer, secret := mirrorLayer("public"), mirrorLayer("secret")
	d := b.public.pushImage("library/app", "v1", layer)
	b.private.pushImage("team/app", "v1", secret, basic("reader", "hush"))
	b.pull("app", "v1", "", layer)
	b.pull("priv/team/app", "v1", "", secret, alice)
	for _, up := range []*instance{b.public, b.private} {
		if err := up.stop(); err != nil {
			t.Fatal(err)
		}
	}
	b.pull("app", "v1", "", layer)
	b.pull("library/app", d, "?ns=pub", layer)
	b.pull("priv/team/app", "v1", "", secret, alice)
	if a := b.do("GET", "/v2/pub/library/other/manifests/v1", ""); a.status < 500 {
		t.Errorf("what is not here, of an upstream that is gone: got status %d %s", a.status, a.body)
	}
	metrics := b.want(200, "GET", b.debug+"/metrics", "").body
	for _, want := range []string{`registry_proxy_requests_total{result="hit",type="manifest",upstream="pub"}`, `slipway_upstream_limit_remaining{upstream="pub"}`} {
		if !strings.Contains(metrics, want) {
			t.Errorf("the metrics lack %s", want)
		}
	}
	poll(t, "the server is ready and says which upstream fails", func() bool {
		b.do("GET", "/v2/pub/library/other2/manifests/v1", "") // asks the upstream once more
		return strings.Contains(b.want(200, "GET", b.debug+"/readyz", "").body, "upstream pub is failing")
	})
	if err := b.stop(); err != nil {
		t.Fatal(err)
	}
	again := start(t, setup{root: b.root, change: func(c *config.Config) {
		c.Proxy = b.cfg.Proxy
	}})
	again.pull("app", "v1", "", layer)
	again.pull("priv/team/app", "v1", "", secret)
}

// TestMirrorState wants the status, the metric, the page and readiness to agree on an upstream and
// to claim no more than is known.
func TestMirrorState(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	dead := freeURL(t)
	for name, works := range map[string]bool{"works": true, "stopped": false} {
		up := start(t, setup{})
		up.pushImage("app", "v1", mirrorLayer("state"))
		s := start(t, setup{yaml: fmt.Sprintf("proxy: {upstreams: [{name: up, url: %q}, {name: half, url: %q, mirrors: [%q]}, {name: off, url: %q, offline: true}]}\n", up.url, up.url, dead, dead)})
		for _, repo := range []string{"up", "half", "off"} {
			saysState(t, s, repo, map[bool]string{true: "offline by configuration", false: "not asked yet"}[repo == "off"], 0, 0)
		}
		if !works {
			if err := up.stop(); err != nil {
				t.Fatal(err)
			}
		}
		for _, repo := range []string{"up", "half", "off"} {
			s.do("GET", "/v2/"+repo+"/app/manifests/v1", "")
		}
		<-time.After(1100 * time.Millisecond) // longer than the time for which a failed endpoint is tried only after the others
		t.Log(name)
		saysState(t, s, "off", "offline by configuration", 0, 0)
		if works {
			saysState(t, s, "up", "healthy", 1, 0)
			saysState(t, s, "half", "healthy in part", 1, 1)
		} else {
			saysState(t, s, "up", "failing", 0, 1)
			saysState(t, s, "half", "failing", 0, 2)
		}
	}
}

// freeURL returns the URL of a port on which nobody listens.
func freeURL(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return "http://" + l.Addr().String()
}

// saysState wants every view of an upstream to show the same state, with the given numbers of
// endpoints that answer and that do not.
func saysState(t *testing.T, s *instance, name, want string, good, bad int) {
	t.Helper()
	a, _ := openAdmin(t, s.cfg)
	st, err := a.MirrorStatus(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, src := range st.Sources {
		if src.Name == name && src.State.String() != want {
			t.Errorf("%s: the status says %q, want %q", name, src.State, want)
		}
	}
	metrics := s.want(200, "GET", s.debug+"/metrics", "").body
	for value, n := range map[string]int{"1": good, "0": bad} {
		re := regexp.MustCompile(`(?m)^slipway_upstream_endpoint_healthy\{[^}]*upstream="` + name + `"[^}]*\} ` + value + `$`)
		if got := len(re.FindAllString(metrics, -1)); got != n {
			t.Errorf("%s, which is %s: %d endpoints have the metric %s, want %d", name, want, got, value, n)
		}
	}
	page := s.want(200, "GET", "/ui/mirrors", "").body
	if _, card, _ := strings.Cut(page, "<h2>"+name+"</h2>"); !regexp.MustCompile(`^\s*<p[^>]*>` + want + `</p>`).MatchString(card) {
		t.Errorf("%s: the page does not say %q: %.200s", name, want, card)
	}
	ready := s.want(200, "GET", s.debug+"/readyz", "").body
	if got := strings.Contains(ready, "upstream "+name+" is "); got != (good == 0 && bad > 0) {
		t.Errorf("%s, which is %s: readiness says %q", name, want, ready)
	}
}

func TestMirrorTasks(t *testing.T) {
	t.Parallel()
	b := newMirrorBed(t)
	layer, other := mirrorLayer("public"), mirrorLayer("other")
	b.public.pushImage("library/app", "v1", layer)
	b.public.pushImage("org/other", "v1", other)
	a, _ := openAdmin(t, b.cfg)
	ctx := t.Context()

	at := strings.TrimPrefix(b.public.url, "http://") // as images have it that nobody mirrors
	rep, err := a.LoadMirrors(ctx, mirrors.LoadArgs{Images: []string{"pub/app:v1", at + "/org/other:v1", "pub/library/none:v1", "UPPER"}}, nil)
	if err == nil || rep.Images != 4 || rep.Failed != 2 || len(rep.Failures) != 2 || rep.Bytes != int64(len(layer)+len(other)) {
		t.Errorf("load: got %+v and error %v", rep, err)
	}
	list, err := a.ListMirrors(ctx, mirrors.ListArgs{})
	if err != nil || len(list.Images) != 2 || list.Images[0].Repository != "pub/library/app" || list.Images[0].Missing != 0 || list.Images[0].Size < int64(len(layer)) {
		t.Errorf("list: got %+v, %v", list, err)
	}
	if list, err = a.ListMirrors(ctx, mirrors.ListArgs{Pattern: "pub/org/*"}); err != nil || len(list.Images) != 1 || list.Images[0].Tags[0] != "v1" {
		t.Errorf("list by pattern: got %+v, %v", list, err)
	}
	st, err := a.MirrorStatus(ctx)
	if err != nil || len(st.Sources) != 2 || st.Usage.Repositories != 2 || st.Usage.Bytes < int64(len(layer)+len(other)) {
		t.Errorf("status: got %+v, %v", st, err)
	}
	if _, err := a.PruneMirrors(ctx, mirrors.PruneArgs{}); err == nil {
		t.Error("a prune of everything was not refused")
	}
	if p, err := a.PruneMirrors(ctx, mirrors.PruneArgs{NotPulledSince: time.Hour}); err != nil || len(p.Images) != 0 {
		t.Errorf("prune: got %+v, %v", p, err)
	}
	for _, dry := range []bool{true, false} {
		p, err := a.PruneMirrors(ctx, mirrors.PruneArgs{Pattern: "pub/org/*", DryRun: dry})
		if err != nil || len(p.Images) != 1 || p.Images[0].Repository != "pub/org/other" || p.Bytes < int64(len(other)) {
			t.Errorf("prune (dry run %v): got %+v, %v", dry, p, err)
		}
	}
	if err := b.public.stop(); err != nil {
		t.Fatal(err)
	}
	b.pull("pub/library/app", "v1", "", layer)
	if a := b.do("GET", "/v2/pub/org/other/manifests/v1", ""); a.status == 200 {
		t.Error("what was pruned is still there")
	}
}

// TestMirrorAirGap carries images to a server that never asks an upstream.
func TestMirrorAirGap(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	b := newMirrorBed(t)
	layer, secret := mirrorLayer("public"), mirrorLayer("secret")
	d := b.public.pushImage("library/app", "v1", layer)
	b.private.pushImage("team/app", "v1", secret, basic("reader", "hush"))
	a, closeAdmin := openAdmin(t, b.cfg)
	if _, err := a.LoadMirrors(t.Context(), mirrors.LoadArgs{Images: []string{"app:v1", "priv/team/app:v1"}}, nil); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "images.tar")
	out, err := a.ExportMirrors(t.Context(), mirrors.ExportArgs{Path: file}, nil)
	if err != nil || out.Images != 2 || out.Manifests != 2 {
		t.Fatalf("export: got %+v, %v", out, err)
	}
	if _, err := a.ExportMirrors(t.Context(), mirrors.ExportArgs{Path: file, Pattern: "pub/none/*"}, nil); err == nil {
		t.Error("an export of nothing did not fail")
	}
	if left, err := filepath.Glob(filepath.Join(filepath.Dir(file), ".*")); err != nil || len(left) > 0 {
		t.Errorf("the export left %v, %v", left, err)
	}
	// An image that lost a layer is left out and named. The others are written.
	part := filepath.Join(t.TempDir(), "part.tar")
	b.want(202, "DELETE", "/v2/pub/library/app/blobs/"+digestOf(layer), "", alice)
	out, err = a.ExportMirrors(t.Context(), mirrors.ExportArgs{Path: part}, nil)
	if err == nil || !strings.Contains(err.Error(), "1 images are not whole") || out.Images != 1 || len(out.LeftOut) != 1 || out.LeftOut[0].Image != "pub/library/app:v1" {
		t.Errorf("export without a layer: got %+v, %v", out, err)
	}
	if fi, err := os.Stat(part); err != nil || fi.Size() < int64(len(secret)) {
		t.Errorf("export without a layer: the file is %+v, %v", fi, err)
	}
	closeAdmin()
	for _, s := range []*instance{b.public, b.private} {
		if err := s.stop(); err != nil {
			t.Fatal(err)
		}
	}
	offline := `proxy: {offline: true, upstreams: [{name: pub, library: true}%s], default: pub}`
	far := start(t, setup{yaml: fmt.Sprintf(offline, ", {name: priv}")})
	fa, _ := openAdmin(t, far.cfg)
	in, err := fa.ImportMirrors(t.Context(), mirrors.ImportArgs{Path: file}, func(airgap.Progress) {})
	if err != nil || in.Images != 2 || in.Manifests != 2 {
		t.Fatalf("import: got %+v, %v", in, err)
	}
	far.pull("app", "v1", "", layer)
	far.pull("library/app", d, "?ns=pub", layer)
	far.pull("priv/team/app", "v1", "", secret)
	far.want(404, "GET", "/v2/pub/library/none/manifests/v1", "")
	for path, want := range map[string]string{
		"pub/library/app/tags/list":      `299 - "this is what is here of pub, which is not asked"`,
		"pub/library/app/referrers/" + d: `299 - "this is what is here of pub, which is not asked"`,
	} {
		if got := far.want(200, "GET", "/v2/"+path, "").header.Get("Warning"); got != want {
			t.Errorf("%s: got the warning %q, want %q", path, got, want)
		}
	}

	// Images of a registry that is not mirrored there are named. The others are imported.
	lacking := start(t, setup{yaml: fmt.Sprintf(offline, "")})
	la, _ := openAdmin(t, lacking.cfg)
	in, err = la.ImportMirrors(t.Context(), mirrors.ImportArgs{Path: file}, nil)
	if err == nil || !strings.Contains(err.Error(), "priv/team/app:v1 is of no registry that is mirrored here") || in.Images != 1 || in.ImagesTotal != 2 {
		t.Errorf("import of what is not mirrored: got %+v, error %v", in, err)
	}
	lacking.pull("pub/library/app", "v1", "", layer)
	lacking.want(404, "GET", "/v2/priv/team/app/manifests/v1", "")
}

// TestMirrorImportSaved imports compressed archives of docker save and other tools. Their names are
// not those of repositories here.
func TestMirrorImportSaved(t *testing.T) {
	t.Parallel()
	layer := mirrorLayer("saved")
	config := fmt.Sprintf(`{"rootfs":{"diff_ids":[%q]}}`, digestOf(layer))
	file := filepath.Join(t.TempDir(), "saved.tgz")
	var buf bytes.Buffer
	z := gzip.NewWriter(&buf)
	w := tar.NewWriter(z)
	for name, body := range map[string]string{"c.json": config, "l/layer.tar": layer, "manifest.json": `[{"Config":"c.json","Layers":["l/layer.tar"],
		"RepoTags":["app:v1","team/app:v1","index.docker.io/app:v2","docker.io/app:v3","reg.test:5000/team/app:v1","url.test:5000/app:v1","own/app:v1"]}]`} {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(body))}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, body); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	writeFile(t, file, buf.String())
	s := start(t, setup{yaml: "proxy: {offline: true, upstreams: [{name: docker.io}, {name: reg, hosts: ['reg.test:5000']}, {name: plain, url: 'http://url.test:5000'}, {name: own}]}\n"})
	a, closeAdmin := openAdmin(t, s.cfg)
	for range 2 {
		in, err := a.ImportMirrors(t.Context(), mirrors.ImportArgs{Path: file}, nil)
		if err != nil || in.Images != 7 || in.ImagesTotal != 7 {
			t.Fatalf("import: got %+v, %v", in, err)
		}
	}
	for _, ref := range []string{"docker.io/library/app/manifests/v1", "docker.io/team/app/manifests/v1", "docker.io/library/app/manifests/v2", "docker.io/library/app/manifests/v3",
		"reg/team/app/manifests/v1", "plain/app/manifests/v1", "own/app/manifests/v1"} {
		if got := s.want(200, "GET", "/v2/"+ref, "").body; !strings.Contains(got, digestOf(layer)) || !strings.Contains(got, digestOf(config)) {
			t.Errorf("%s is %s", ref, got)
		}
	}
	if got := s.want(200, "GET", "/v2/own/app/blobs/"+digestOf(layer), "").body; got != layer {
		t.Errorf("the layer has %d bytes", len(got))
	}
	closeAdmin()
	if left, err := filepath.Glob(filepath.Join(s.root, "slipway/mirror/import-*")); err != nil || len(left) > 0 {
		t.Errorf("the import left %v, %v", left, err)
	}
}

// TestMirrorTasksWithoutServer runs the commands on a data directory that no server uses.
func TestMirrorTasksWithoutServer(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	b := newMirrorBed(t)
	layer := mirrorLayer("public")
	b.public.pushImage("library/app", "v1", layer)
	if err := b.stop(); err != nil {
		t.Fatal(err)
	}
	a, _ := openAdmin(t, b.cfg)
	if _, err := a.LoadMirrors(t.Context(), mirrors.LoadArgs{Images: []string{"app:v1"}}, nil); err != nil {
		t.Errorf("load: %v", err)
	}
	if list, err := a.ListMirrors(t.Context(), mirrors.ListArgs{}); err != nil || len(list.Images) != 1 {
		t.Errorf("list: got %+v, %v", list, err)
	}
	if st, err := a.MirrorStatus(t.Context()); err != nil || st.Usage.Repositories != 1 {
		t.Errorf("status: got %+v, %v", st, err)
	}
	if p, err := a.PruneMirrors(t.Context(), mirrors.PruneArgs{Pattern: "pub/**"}); err != nil || len(p.Images) != 1 {
		t.Errorf("prune: got %+v, %v", p, err)
	}
	if err := a.MirrorEvents(t.Context(), func(mirror.Event) error { return nil }); err == nil {
		t.Error("there are events without a server")
	}
	plain, _ := openAdmin(t, configure(t, setup{root: start(t, setup{}).root}))
	if _, err := plain.MirrorStatus(t.Context()); err == nil || !strings.Contains(err.Error(), "proxy.upstreams") {
		t.Errorf("status without mirrors: got error %v", err)
	}
}

func TestMirrorEvents(t *testing.T) {
	t.Parallel()
	b := newMirrorBed(t)
	layer := mirrorLayer("public")
	b.public.pushImage("library/app", "v1", layer)
	a, _ := openAdmin(t, b.cfg)
	got := make(chan mirror.Event)
	failed := make(chan error, 1)
	go func() {
		failed <- a.MirrorEvents(t.Context(), func(e mirror.Event) error {
			select {
			case got <- e:
			case <-t.Context().Done():
			}
			return nil
		})
	}()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for i := 0; ; i++ { // until somebody listens
		b.public.pushImage("library/app", fmt.Sprint("v", i), layer)
		b.pull("app", fmt.Sprint("v", i), "", layer)
		select {
		case e := <-got:
			if e.Upstream != "pub" || e.Repo != "pub/library/app" || e.Time.IsZero() {
				t.Errorf("got the event %+v", e)
			}
			if err := b.stop(); err != nil { // listeners do not delay it
				t.Fatal(err)
			}
			for {
				select {
				case <-got:
					continue
				case err := <-failed:
					if err == nil {
						t.Error("the end of the server is no error")
					}
				}
				return
			}
		case err := <-failed:
			t.Fatalf("events: %v", err)
		case <-tick.C:
		}
	}
}

// TestMirrorProblems checks that wrong files are reported before anything starts.
func TestMirrorProblems(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	noPEM := filepath.Join(dir, "x")
	writeFile(t, noPEM, "x")
	for keys, want := range map[string]string{
		"tls: {ca: " + dir + "/none}":                           "proxy.upstreams[1]: tls.ca: read certificates: open",
		"tls: {ca: " + noPEM + "}":                              "proxy.upstreams[1]: tls.ca: " + noPEM + " holds no PEM certificate",
		"tls: {certificate: " + noPEM + ", key: " + noPEM + "}": "proxy.upstreams[1]: tls.certificate and tls.key: ",
		"docker_config: " + dir + "/none":                       "proxy.upstreams[1]: docker_config: stat ",
	} {
		cfg := configure(t, setup{root: filepath.Join(dir, "root"), yaml: "proxy: {upstreams: [{name: a}, {name: b, " + keys + "}]}"})
		s, err := serve.New(t.Context(), cfg, nil)
		if err == nil {
			s.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got error %v, want %q", keys, err, want)
		}
		if _, err := os.Stat(filepath.Join(dir, "root")); err == nil {
			t.Errorf("%s: the start that failed made a data directory", keys)
		}
	}
}

// TestMirrorTTL checks that images nobody pulls any more are removed after proxy.ttl.
func TestMirrorTTL(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	public := start(t, setup{})
	layer := mirrorLayer("public")
	public.pushImage("library/app", "v1", layer)
	s := start(t, setup{yaml: fmt.Sprintf("proxy: {remoteurl: %q, ttl: 1s}", public.url)})
	s.pull("library/app", "v1", "", layer)
	a, _ := openAdmin(t, s.cfg)
	listed := func() bool {
		list, err := a.ListMirrors(t.Context(), mirrors.ListArgs{})
		if err != nil {
			t.Fatal(err)
		}
		return len(list.Images) > 0
	}
	poll(t, "the image is kept", func() bool {
		if listed() {
			return true
		}
		s.want(200, "GET", "/v2/library/app/manifests/v1", "") // it was gone already
		return false
	})
	poll(t, "the image goes", func() bool { return !listed() })
	s.pull("library/app", "v1", "", layer)
	var d oci.Digest = oci.SHA256([]byte(imageOf(layer)))
	s.pull("library/app", string(d), "", layer)
}
