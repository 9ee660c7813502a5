package serve_test

import (
	"bufio"
	"context"
	"fmt"
	"html"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// sameOrigin sets the headers that a browser sends with a form of the page itself.
var sameOrigin = []func(*http.Request){header("Sec-Fetch-Site", "same-origin"), header("Content-Type", "application/x-www-form-urlencoded")}

// act posts the form of an action and waits for its outcome.
func (s *instance) act(path, form, want string) {
	s.t.Helper()
	s.want(http.StatusOK, "POST", "/ui/"+path, form, sameOrigin...)
	var body string
	poll(s.t, path+" ends with "+want, func() bool {
		body = html.UnescapeString(s.want(http.StatusOK, "GET", "/ui/"+path, "").body)
		return !strings.Contains(body, "Stop it") && strings.Contains(body, "Last run")
	})
	if !strings.Contains(body, want) {
		s.t.Fatalf("%s with %s came to\n%s\nwant %q", path, form, body, want)
	}
}

// whole returns a page without the places at which a line may end within a name.
func whole(page string) string { return strings.ReplaceAll(page, "<wbr>", "") }

// holds polls a page until it contains all texts.
func (s *instance) holds(path string, texts ...string) {
	s.t.Helper()
	for _, want := range texts {
		var body string
		for deadline := time.Now().Add(patience); ; pause() {
			body = html.UnescapeString(whole(s.want(http.StatusOK, "GET", path, "").body))
			if strings.Contains(body, want) {
				break
			}
			if time.Now().After(deadline) {
				s.t.Fatalf("%s lacks %q:\n%s", path, want, body)
			}
		}
	}
}

// TestSystemPages checks the pages of the server itself, with a cache and a mirror.
func TestSystemPages(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	audit := filepath.Join(dir, "audit.log")
	s := start(t, setup{yaml: "log: {audit: {file: " + audit + "}}\n" +
		"storage: {blob_cache: {ram: 64MiB}, prefetch: {mode: off}, retention: [{repositories: ['**'], keep_newest: 1}]}\n" +
		"proxy: {upstreams: [{name: up.example, url: 'http://127.0.0.1:9', username: u, password: hush-hush}]}\n" +
		"web: {reports: " + filepath.Join(dir, "reports") + "}"})
	layer := strings.Repeat("a layer that is too large to be kept in the catalogue. ", 4000)
	s.pushImage("lib/app", "v1", layer)
	s.pushImage("lib/other", "v1", layer)
	s.pushImage("lib/app", "v2", "another")

	s.holds("/ui/storage", "lib/app", "lib/other", "Each layer once", "4 contents of 3 manifests")
	s.holds("/ui/caches", "Hits since the start", "64.0 MiB")
	s.holds("/ui/mirrors", "up.example", "not asked yet", "http://127.0.0.1:9")
	s.holds("/ui/mirrors/images", "There is none here")
	s.holds("/ui/nodes", "No node has reported lately")
	s.holds("/ui/reports", "There is no report here yet")
	s.holds("/ui/settings", "storage.blob_cache.ram", "64MiB", "config:", "flag", "proxy.upstreams[0].password", "******")
	if body := s.want(http.StatusOK, "GET", "/ui/settings?q=hush", "").body; !strings.Contains(body, "Nothing matches") {
		t.Error("a secret can be searched for")
	}

	s.act("storage/gc", "do=preview", "nothing was changed")
	s.act("storage/gc", "do=run", "Collect")
	s.act("storage/check", "do=run", "No problem was found.")
	s.act("storage/retention", "do=preview", "lib/app:v1")
	s.want(http.StatusOK, "GET", "/v2/lib/app/manifests/v1", "")
	s.act("storage/retention", "do=run", "Manifests removed")
	s.want(http.StatusNotFound, "GET", "/v2/lib/app/manifests/v1", "")
	s.act("caches/warm", "do=run&image=lib/other:v1", "is in the cache")
	s.act("caches/warm", "do=run&image=none/such:v1", "It failed:")
	s.act("caches/drop", "do=run&image=lib/other:v1", "Dropped.")
	s.act("mirrors/prune", "do=preview&days=0", "nothing was changed")
	s.want(http.StatusBadRequest, "POST", "/ui/mirrors/prune", "do=preview&days=-1", sameOrigin...)
	// The button after a preview does what was shown, and no more.
	if body := s.want(http.StatusOK, "POST", "/ui/mirrors/prune", "do=preview&days=7&pattern=docker.io/only/**", sameOrigin...).body; !strings.Contains(body, `value="7"`) || !strings.Contains(body, `value="docker.io/only/**"`) {
		t.Errorf("the form has lost what the preview was made with:\n%s", body)
	}
	s.want(http.StatusBadRequest, "POST", "/ui/storage/gc", "do=", sameOrigin...)
	s.want(http.StatusForbidden, "POST", "/ui/storage/gc", "do=run", header("Sec-Fetch-Site", "cross-site"))
	s.want(http.StatusNotFound, "POST", "/ui/storage/none", "do=run", sameOrigin...)

	log := readFile(t, audit)
	for _, want := range []string{`"action":"storage/gc preview"`, `"action":"storage/gc"`, `"action":"storage/retention"`, `"action":"caches/drop"`, `"reference":"image=lib%2Fother%3Av1"`, `"outcome":"failure","addr"`} {
		if !strings.Contains(log, want) {
			t.Errorf("the audit log lacks %s:\n%s", want, log)
		}
	}
}

// TestNodesPage checks that the nodes page shows the reports of agents, whose names may be made up.
func TestNodesPage(t *testing.T) {
	t.Parallel()
	s := start(t, setup{})
	d := s.pushImage("lib/app", "v1", "a layer")
	s.want(http.StatusAccepted, "POST", "/v2/lib/app/_slipway/gear/nodes", fmt.Sprintf(`{"node":"<b>&n/1?","image":"lib/app:v1","manifest":%q,"files":10,"local_files":4,`+
		`"bytes":1000,"local_bytes":400,"mode":"lazy","containers":[{"id":"0123456789abcdef","started":"2026-01-02T03:04:05Z"}]}`, d))
	s.holds("/ui/nodes", "<b>&n/1?", "1 node has reported")
	s.holds("/ui/nodes?node=%3Cb%3E%26n%2F1%3F", "4 of 10", "0123456789ab", "lazy", "/ui/image/lib/app@"+d)
	if body := s.want(http.StatusOK, "GET", "/ui/nodes", "").body; strings.Contains(body, "<b>") {
		t.Error("a node's name is taken for HTML")
	}
	s.want(http.StatusNotFound, "GET", "/ui/nodes?node=other", "")
}

// TestReports checks that reports are sandboxed and that nothing but reports is served.
func TestReports(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	reports := filepath.Join(dir, "reports")
	if err := os.MkdirAll(filepath.Join(reports, "monday", "deep"), 0o755); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(dir, "secret.html"), "the secret")
	writeFile(t, filepath.Join(reports, "monday", "index.html"), "<style>b{color:red}</style><script>alert(1)</script>")
	writeFile(t, filepath.Join(reports, "a b%41&.html"), "spaced")
	writeFile(t, filepath.Join(reports, "run.sh"), "no report")
	writeFile(t, filepath.Join(reports, ".hidden.html"), "hidden")
	for link, to := range map[string]string{"out.html": "../secret.html", "up": "..", "abs.html": filepath.Join(dir, "secret.html"), "in.html": "monday/index.html"} {
		if err := os.Symlink(to, filepath.Join(reports, link)); err != nil {
			t.Fatal(err)
		}
	}
	s := start(t, setup{yaml: "web: {reports: " + reports + "}"})
	list := s.want(http.StatusOK, "GET", "/ui/reports", "").body
	if !strings.Contains(list, `href="/ui/reports/monday/index.html"`) || !strings.Contains(list, `href="/ui/reports/a%20b%2541&amp;.html"`) {
		t.Errorf("the list is %s", list)
	}
	for _, no := range []string{"out.html", "up", "run.sh", "hidden", "in.html"} {
		if strings.Contains(list, no) {
			t.Errorf("the list has %s", no)
		}
	}
	a := s.want(http.StatusOK, "GET", "/ui/reports/monday/index.html", "")
	if csp := a.header.Get("Content-Security-Policy"); !strings.Contains(csp, "; sandbox") || strings.Contains(csp, "script") || !strings.Contains(csp, "default-src 'none'") {
		t.Errorf("a report is served under %q", csp)
	}
	if b := s.want(http.StatusOK, "GET", "/ui/reports/a%20b%2541&.html", "").body; b != "spaced" {
		t.Errorf("got %q", b)
	}
	for _, path := range []string{"out.html", "abs.html", "in.html", "up/secret.html", "up", "../secret.html", "..%2fsecret.html", "monday/../../secret.html", "run.sh", ".hidden.html",
		"monday/%00", "monday//index.html", "./monday/index.html", "none.html", "%2fetc%2fpasswd"} {
		if a := s.do("GET", "/ui/reports/"+path, "", func(r *http.Request) { r.URL.RawPath = "/ui/reports/" + path }); a.status != http.StatusNotFound || strings.Contains(a.body, "the secret") {
			t.Errorf("%s is answered %d", path, a.status)
		}
	}
}

// events opens a stream and returns a function that reads its next data line.
func (s *instance) events(topic string, edits ...func(*http.Request)) (next func() (string, bool)) {
	s.t.Helper()
	r, err := http.NewRequest("GET", s.url+"/ui/events?topic="+topic, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, e := range edits {
		e(r)
	}
	resp, err := s.client.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { resp.Body.Close() })
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "text/event-stream" {
		s.t.Fatalf("events of %s are answered %s", topic, resp.Status)
	}
	lines := bufio.NewScanner(resp.Body)
	return func() (string, bool) {
		for lines.Scan() {
			if d, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				return d, true
			}
		}
		return "", false
	}
}

// TestEvents checks that a stream reports changes and that stopping the server does not wait for
// it.
func TestEvents(t *testing.T) {
	t.Parallel()
	s := start(t, setup{yaml: "storage: {blob_cache: {ram: 64MiB}, prefetch: {mode: off}}\nhttp: {draintimeout: 10m}"})
	next := s.events("caches")
	if d, ok := next(); !ok || !strings.HasPrefix(d, `"`) || !strings.Contains(d, "Memory") {
		t.Fatalf("the first event is %q", d)
	}
	s.pushImage("lib/app", "v1", strings.Repeat("a layer that is too large to be kept in the catalogue. ", 4000))
	s.act("caches/warm", "do=run&image=lib/app:v1", "is in the cache")
	for {
		d, ok := next()
		if !ok {
			t.Fatal("the stream ends before it tells of the warmed image")
		}
		if strings.Contains(d, "KiB of 64.0 MiB") {
			break
		}
	}
	s.want(http.StatusNotFound, "GET", "/ui/events?topic=none", "")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	ended := make(chan bool)
	go func() {
		for ok := true; ok; {
			_, ok = next()
		}
		close(ended)
	}()
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
	case <-ctx.Done():
		t.Fatal("the stream goes on after the server's end")
	}
}

// TestSystemAccess checks that a client with read access only sees no system page, and that a
// stream ends when the client loses the right to it.
func TestSystemAccess(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "htpasswd")
	writeFile(t, path, htpasswd(t, "alice", "a", "root", "r"))
	s := start(t, setup{yaml: "auth: {htpasswd: {path: " + path + "}, access: [{repositories: ['**'], subjects: [alice], actions: [pull]}, {repositories: ['**'], subjects: [root], actions: ['*', admin]}]}"})
	for _, page := range []string{"storage", "storage/gc", "caches", "mirrors", "mirrors/images", "nodes", "reports", "settings", "tokens", "activity", "events?topic=gear"} {
		s.want(http.StatusForbidden, "GET", "/ui/"+page, "", basic("alice", "a"))
	}
	s.want(http.StatusForbidden, "POST", "/ui/storage/gc", "do=run", append(sameOrigin, basic("alice", "a"))...)
	s.want(http.StatusOK, "GET", "/ui/storage", "", basic("root", "r"))
	if b := s.want(http.StatusOK, "GET", "/ui/settings", "", basic("root", "r")).body; !strings.Contains(b, "passwords") || !strings.Contains(b, "alice") {
		t.Error("the settings lack the rules")
	}
}
