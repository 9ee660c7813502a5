package serve_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"example.org/slipway/config"
	"example.org/slipway/internal/backendtest"
	"example.org/slipway/oci"
	"example.org/slipway/registry/replication"
	"example.org/slipway/serve"
	"example.org/slipway/serve/admin"
)

// artifactOf returns a manifest that refers to another one.
func artifactOf(subject, layer string) string {
	m := imageOf(layer)
	return strings.TrimSuffix(m, "}") + fmt.Sprintf(`,"artifactType":"application/vnd.example.signature","subject":{"mediaType":%q,"digest":%q,"size":%d}}`, oci.MediaTypeOCIManifest, subject, 1)
}

// sign pushes an artifact that refers to an image.
func (s *instance) sign(repo, subject, text string) string {
	s.t.Helper()
	s.pushBlob(repo, text)
	m := artifactOf(subject, text)
	s.want(http.StatusCreated, "PUT", "/v2/"+repo+"/manifests/"+digestOf(m), m, isManifest)
	return digestOf(m)
}

// has polls until a registry has an image.
func has(t *testing.T, s *instance, base, repo, ref, digest string) {
	t.Helper()
	poll(t, repo+":"+ref+" is at "+base, func() bool {
		a := s.do("HEAD", base+"/v2/"+repo+"/manifests/"+ref, "", header("Accept", oci.MediaTypeOCIManifest))
		return a.status == http.StatusOK && (digest == "" || a.header.Get("Docker-Content-Digest") == digest)
	})
}

func idle(t *testing.T, s *instance) {
	t.Helper()
	a, done := openAdmin(t, s.cfg)
	defer done()
	poll(t, "nothing waits", func() bool {
		list, err := a.Replication(t.Context())
		return err == nil && !slices.ContainsFunc(list, func(s replication.Status) bool { return s.Waiting > 0 || s.Run != nil })
	})
}

// TestReplicationOfTwoServers has two servers replicate to one another over HTTP, with
// passwords: pushes, signatures, moves and deletions, and a server that is down for a while.
func TestReplicationOfTwoServers(t *testing.T) {
	t.Parallel()
	users := filepath.Join(t.TempDir(), "htpasswd")
	writeFile(t, users, htpasswd(t, "replicator", "secret"))
	there := freeAddr(t)
	access := "auth: {htpasswd: {path: " + users + "}, access: [{repositories: ['**'], subjects: [replicator, anonymous], actions: ['*', admin]}]}\n"
	yaml := func(remote string) string {
		return access + "replication: [{name: other, url: 'http://" + remote + "', username: replicator, password: secret, repositories: ['team/**'], on_push: true, delete: true}]\n"
	}
	here := start(t, setup{yaml: yaml(there)})
	second := setup{yaml: yaml(here.Addr().String()) + "http: {addr: '" + there + "'}\n", keep: true, root: filepath.Join(t.TempDir(), "root")}
	base := "http://" + there

	// The remote is not there yet. What is pushed waits.
	one := here.pushImage("team/app", "v1", "one")
	here.pushImage("other/app", "v1", "mine alone")
	poll(t, "the rule fails", func() bool {
		return strings.Contains(here.want(http.StatusOK, "GET", "/ui/replication", "").body, "failing")
	})
	other := start(t, second)
	patient := time.Now().Add(2 * time.Minute) // pauses grow while the remote is away
	for other.do("HEAD", "/v2/team/app/manifests/v1", "").status != http.StatusOK {
		if time.Now().After(patient) {
			t.Fatalf("what was pushed while the remote was away did not come; log:\n%s", here.log)
		}
		<-time.After(50 * time.Millisecond)
	}
	signature := here.sign("team/app", one, "signature")
	has(t, here, base, "team/app", signature, signature)
	two := other.pushImage("team/app", "v1", "two")
	has(t, other, here.url, "team/app", "v1", two)
	three := other.pushImage("team/tool", "v1", "three")
	has(t, other, here.url, "team/tool", "v1", three)
	idle(t, here)
	idle(t, other)
	if a := other.do("HEAD", "/v2/other/app/manifests/v1", ""); a.status != http.StatusNotFound {
		t.Errorf("a repository that the rule does not name: got %d", a.status)
	}
	for _, s := range []*instance{here, other} {
		if a := s.want(http.StatusOK, "GET", "/v2/team/app/manifests/v1", "", header("Accept", oci.MediaTypeOCIManifest)); a.header.Get("Docker-Content-Digest") != two {
			t.Errorf("the registries do not agree: %s has %s", s.url, a.header.Get("Docker-Content-Digest"))
		}
	}
	here.want(http.StatusAccepted, "DELETE", "/v2/team/tool/manifests/"+three, "")
	poll(t, "the deletion arrives", func() bool { return other.do("HEAD", "/v2/team/tool/manifests/v1", "").status == http.StatusNotFound })
	idle(t, here)
	idle(t, other)
	metrics := here.want(http.StatusOK, "GET", here.debug+"/metrics", "").body
	for _, want := range []string{`slipway_replication_failing{rule="other"} 0`, `slipway_replication_waiting{rule="other"} 0`, `slipway_replication_images_total{result="deleted",rule="other"} 1`} {
		if !strings.Contains(metrics, want) {
			t.Errorf("the metrics lack %s", want)
		}
	}
}

// TestReplicationWithDistribution pushes to a Distribution registry and pulls from it, in dry
// runs, by command and by page.
func TestReplicationWithDistribution(t *testing.T) {
	t.Parallel()
	// Requests go through a proxy that counts what changes something.
	var changes atomic.Int64
	target, err := url.Parse("http://" + backendtest.Distribution(t, ""))
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target); r.Out.Host = r.In.Host }}
	remote := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			changes.Add(1)
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(remote.Close)
	s := start(t, setup{yaml: "replication:\n" +
		"- {name: out, url: '" + remote.URL + "', repositories: ['team/**'], tags: ['v.*'], prefix: copies}\n" +
		"- {name: in, direction: pull, url: '" + remote.URL + "', repositories: [copies/team/app, copies/nothing], prefix: back, delete: true}\n"})
	image := s.pushImage("team/app", "v1", "one")
	s.pushImage("team/app", "v2", "two")
	s.pushImage("team/app", "edge", "three")
	signature := s.sign("team/app", image, "signature")

	a, done := openAdmin(t, s.cfg)
	defer done()
	run := func(rule string, dry bool) replication.Report {
		t.Helper()
		rep, err := a.Replicate(t.Context(), replication.Args{Rule: rule, DryRun: dry}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return rep
	}
	if rep := run("out", true); rep.Images != 2 || changes.Load() != 0 {
		t.Errorf("dry run: got %+v and %d changes", rep, changes.Load())
	}
	s.act("replication/run", "do=preview&rule=out", "team/app:v2")
	if n := changes.Load(); n != 0 {
		t.Errorf("a preview made %d changes", n)
	}
	if rep := run("out", false); rep.Images != 2 || rep.Blobs != 3 || rep.Failed != 0 {
		t.Errorf("push: got %+v", rep)
	}
	before := changes.Load()
	if rep := run("out", false); rep.Images != 0 || rep.Present != 2 || changes.Load() != before {
		t.Errorf("second push: got %+v, with %d changes", rep, changes.Load()-before)
	}
	s.act("replication/run", "do=run&rule=in", "Done.")
	for ref, digest := range map[string]string{"v1": image, signature: signature} {
		has(t, s, s.url, "back/copies/team/app", ref, digest)
	}
	if got := s.do("HEAD", "/v2/back/copies/team/app/manifests/edge", "").status; got != http.StatusNotFound {
		t.Errorf("a tag that the rule does not name: got %d", got)
	}
	if list := s.want(http.StatusOK, "GET", "/v2/back/copies/team/app/_slipway/tags/v1/history", "").body; !strings.Contains(list, "replication:in") {
		t.Errorf("the history of a pulled tag does not name the rule: %s", list)
	}
	list, err := a.Replication(t.Context())
	if err != nil || len(list) != 2 || list[1].State != "idle" || list[1].Last.Images != 2 || list[1].Succeeded == nil {
		t.Errorf("status: got %+v, %v", list, err)
	}
	s.holds("/ui/replication", "out", "to", "from", remote.URL, "2 copied", "only on demand")
	if _, err := a.Replicate(t.Context(), replication.Args{Rule: "sideways"}, nil); err == nil || !strings.Contains(err.Error(), "out, in") {
		t.Errorf("an unknown rule: got %v", err)
	}
}

// TestReplicationIsForAdministrators checks who sees the page, and that a server without
// rules says so.
func TestReplicationIsForAdministrators(t *testing.T) {
	t.Parallel()
	s := start(t, setup{})
	s.holds("/ui/replication", "Nothing is replicated here")
	var a *admin.Admin
	a, done := openAdmin(t, s.cfg)
	defer done()
	if list, err := a.Replication(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("got %v, %v", list, err)
	}
	if _, err := a.Replicate(t.Context(), replication.Args{Rule: "x"}, nil); err == nil {
		t.Error("a rule that does not exist was run")
	}
}

// TestReplicationOfTheNewestTags moves a tag at two servers while they cannot reach each other,
// and reaches the one with the older move first. Both keep the newer one, and the histories agree
// on when it was made.
func TestReplicationOfTheNewestTags(t *testing.T) {
	t.Parallel()
	there := freeAddr(t)
	yaml := func(remote, on string) string {
		return "replication: [{name: other, url: 'http://" + remote + "', repositories: ['team/**'], every: 24h, " + on + "}]\n"
	}
	here := start(t, setup{yaml: yaml(there, "on_push: true")})
	here.pushImage("team/app", "v1", "older")
	other := start(t, setup{yaml: yaml(here.Addr().String(), "on_push: false") + "http: {addr: '" + there + "'}\n", keep: true})
	newer := other.pushImage("team/app", "v1", "newer")
	for _, s := range []*instance{here, other} {
		a, done := openAdmin(t, s.cfg)
		poll(t, "a run", func() bool {
			_, err := a.Replicate(t.Context(), replication.Args{Rule: "other"}, nil)
			return err == nil
		})
		done()
	}
	idle(t, here)
	idle(t, other)
	var at []string
	for _, s := range []*instance{here, other} {
		if got := s.want(http.StatusOK, "GET", "/v2/team/app/manifests/v1", "", header("Accept", oci.MediaTypeOCIManifest)).header.Get("Docker-Content-Digest"); got != newer {
			t.Errorf("%s has %s, want %s", s.url, got, newer)
		}
		list := s.want(http.StatusOK, "GET", "/v2/team/app/_slipway/tags/v1/history", "").body
		at = append(at, regexp.MustCompile(`"at": ?"[^"]*"`).FindString(list))
	}
	if at[0] == "" || at[0] != at[1] {
		t.Errorf("the histories give the move different times: %q", at)
	}
	a := here.do("PUT", "/v2/team/app/manifests/v1", here.want(http.StatusOK, "GET", "/v2/team/app/manifests/"+newer, "").body, isManifest)
	if a.status != http.StatusCreated {
		t.Errorf("a client's push: got %d", a.status)
	}
	here.pushImage("team/app", "v2", "older")
	old := header("Slipway-Replicated-At", "2020-01-01T00:00:00Z")
	body := here.want(http.StatusOK, "GET", "/v2/team/app/manifests/v1", "").body
	if a := here.do("PUT", "/v2/team/app/manifests/v2", body, isManifest, header("Slipway-Replicated-By", "another"), old); a.status != http.StatusConflict || !strings.Contains(a.body, "TAG_NEWER") {
		t.Errorf("an older move: got %d %s", a.status, a.body)
	}
}

// TestReplicateNeedsItsRules runs rules that the running server was not started with, and a rule of a
// registry that is read-only and has no server.
func TestReplicateNeedsItsRules(t *testing.T) {
	t.Parallel()
	root := filepath.Join(t.TempDir(), "root")
	s := start(t, setup{root: root})
	const rules = "replication: [{name: later, url: 'http://127.0.0.1:1', repositories: ['**']}]\n"
	a, done := openAdmin(t, configure(t, setup{root: root, yaml: rules}))
	if _, err := a.Replication(t.Context()); err == nil || !strings.Contains(err.Error(), `rule "later" yet`) {
		t.Errorf("a rule that the server does not have: got %v", err)
	}
	done()
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	a, done = openAdmin(t, configure(t, setup{root: root, yaml: rules + "storage: {maintenance: {readonly: {enabled: true}}}\n"}))
	defer done()
	if _, err := a.Replicate(t.Context(), replication.Args{Rule: "later"}, nil); err == nil || !strings.Contains(err.Error(), "readonly") {
		t.Errorf("a run of a registry that is read-only: got %v", err)
	}
}

// TestReplicationReload changes the rules of a running server by its file: a rule appears,
// changes its registry, is wrong, and goes.
func TestReplicationReload(t *testing.T) {
	t.Parallel()
	one, two := start(t, setup{}), start(t, setup{})
	file := filepath.Join(t.TempDir(), "c.yml")
	rule := func(remote *instance) string {
		return "replication: [{name: other, url: '" + remote.url + "', repositories: ['team/**'], on_push: true}]\n"
	}
	audit := filepath.Join(t.TempDir(), "audit.log")
	write := func(yaml string) { writeFile(t, file, "log: {audit: {file: "+audit+"}}\n"+yaml) }
	write("")
	root := filepath.Join(t.TempDir(), "root")
	s := start(t, setup{root: root, yaml: readFile(t, file), opts: serve.Options{ConfigFile: file, ConfigCheck: 5 * time.Millisecond,
		Reload: func() (*config.Config, error) {
			cfg, _, err := config.Parse(strings.NewReader("version: 0.1\n"+readFile(t, file)), nil)
			return cfg, err
		}}})
	rules := func(want ...string) {
		t.Helper()
		poll(t, fmt.Sprintf("the rules are %q", want), func() bool {
			a, done := openAdmin(t, s.cfg)
			defer done()
			list, err := a.Replication(t.Context())
			var got []string
			for _, st := range list {
				got = append(got, st.Remote)
			}
			return err == nil && slices.Equal(got, want)
		})
	}
	s.pushImage("team/app", "before", "zero")
	write(rule(one))
	rules(one.url)
	d := s.pushImage("team/app", "v1", "one")
	has(t, s, one.url, "team/app", "v1", d)
	write(rule(two) + "# longer, so that the change is seen\n")
	rules(two.url)
	d = s.pushImage("team/app", "v2", "two")
	has(t, s, two.url, "team/app", "v2", d)
	write("replication: [{name: other, url: 'http://127.0.0.1:1', tls: {ca: /nowhere}, repositories: ['team/**'], on_push: true}]\n")
	poll(t, "the server says what is wrong", func() bool {
		return strings.Contains(readFile(t, audit), `"outcome":"failure"`) && strings.Contains(s.log.String(), "replication")
	})
	rules(two.url)
	d = s.pushImage("team/app", "v3", "three")
	has(t, s, two.url, "team/app", "v3", d)
	write("")
	rules()
	for _, c := range []struct {
		at     *instance
		tag    string
		status int
	}{{one, "before", 404}, {one, "v2", 404}, {two, "v1", 404}, {one, "v1", 200}} {
		c.at.want(c.status, "HEAD", "/v2/team/app/manifests/"+c.tag, "", header("Accept", oci.MediaTypeOCIManifest))
	}
	if log := readFile(t, audit); strings.Count(log, `"outcome":"success","action":"reload replication"`) != 3 {
		t.Errorf("the audit log has\n%s", log)
	}
}
