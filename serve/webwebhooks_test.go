package serve_test

import (
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"example.org/slipway/registry/notify"
)

// TestWebhooksPage tests a webhook from the page, and checks that only an administrator can, and
// that the page shows no credential.
func TestWebhooksPage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	users, audit := filepath.Join(dir, "htpasswd"), filepath.Join(dir, "audit.log")
	writeFile(t, users, htpasswd(t, "alice", "a", "root", "r"))
	hook := newReceiver(t)
	s := start(t, setup{yaml: "log: {audit: {file: " + audit + "}}\nauth: {htpasswd: {path: " + users + "}, access: [{repositories: ['**'], subjects: [alice], actions: ['*']}, {repositories: ['**'], subjects: [root], actions: ['*', admin]}]}\n" +
		"notifications: {endpoints: [{name: ci, url: '" + hook.URL + "/token-in-path', secret: hook-secret, headers: {X-Extra: ['1']}, backoff: 1h, threshold: 1}]}\n"})
	alice, root := basic("alice", "a"), basic("root", "r")
	s.want(http.StatusForbidden, "GET", "/ui/webhooks", "", alice)
	post := func(status int, name string, as func(*http.Request)) string {
		t.Helper()
		return s.want(status, "POST", "/ui/webhooks", "test="+name, append(sameOrigin[:len(sameOrigin):len(sameOrigin)], as)...).body
	}
	post(http.StatusForbidden, "ci", alice)
	if n := hook.tried.Load(); n != 0 {
		t.Fatalf("somebody else tested the webhook %d times", n)
	}
	if body := post(http.StatusOK, "ci", root); !strings.Contains(body, "failed: post event: the endpoint answered 503") {
		t.Errorf("the test of a webhook that is down shows\n%s", body)
	}
	hook.up.Store(true)
	body := post(http.StatusOK, "ci", root)
	if !strings.Contains(body, "answered 200 to the test") || !strings.Contains(body, hook.URL) {
		t.Errorf("the test of a webhook shows\n%s", body)
	}
	for _, secret := range []string{"token-in-path", "hook-secret"} {
		if strings.Contains(body, secret) {
			t.Errorf("the page shows %s", secret)
		}
	}
	post(http.StatusNotFound, "nobody", root)
	a, closeAdmin := openAdmin(t, s.cfg)
	defer closeAdmin()
	if res, err := a.TestWebhook(t.Context(), "ci"); err != nil || res.Status != 200 {
		t.Errorf("the test of the command: %+v, %v", res, err)
	}
	if _, err := a.TestWebhook(t.Context(), "nobody"); err == nil {
		t.Error("the command tests what does not exist")
	}
	if rep, err := a.Webhooks(t.Context()); err != nil || len(rep.Webhooks) != 1 || rep.Webhooks[0].To != hook.URL {
		t.Errorf("the command lists %+v, %v", rep, err)
	}
	if log := readFile(t, audit); strings.Count(log, "test webhook") != 5 {
		t.Errorf("the audit log has\n%s", log)
	}
}

// TestWebhooksManaged adds, changes, pauses and removes a webhook from the page, and checks
// what the webhook gets, that only an administrator can do so, and that neither its URL nor
// its secret is shown, logged or audited.
func TestWebhooksManaged(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	users, audit := filepath.Join(dir, "htpasswd"), filepath.Join(dir, "audit.log")
	writeFile(t, users, htpasswd(t, "alice", "a", "root", "r"))
	hook, next, data := newPlainReceiver(t), newPlainReceiver(t), t.TempDir()
	yaml := "log: {audit: {file: " + audit + "}}\nauth: {htpasswd: {path: " + users + "}, access: [{repositories: ['**'], subjects: [alice], actions: ['*']}, {repositories: ['**'], subjects: [root], actions: ['*', admin]}]}\n" +
		"notifications: {networks: [127.0.0.0/8], endpoints: [{name: fixed, url: 'http://127.0.0.1:9/'}]}\n"
	s := start(t, setup{root: data, yaml: yaml})
	alice, root := basic("alice", "a"), basic("root", "r")
	var pages strings.Builder
	post := func(status int, as func(*http.Request), form ...string) string {
		t.Helper()
		v := url.Values{}
		for i := 0; i < len(form); i += 2 {
			v.Add(form[i], form[i+1])
		}
		body := s.want(status, "POST", "/ui/webhooks", v.Encode(), append(slices.Clone(sameOrigin), as)...).body
		pages.WriteString(body)
		return body
	}
	add := []string{"do", "add", "name", "ci", "url", hook.URL + "/token-in-path", "events", "push", "events", "delete", "repositories", " team/** ", "format", "docker", "secret", "hook-secret"}
	post(http.StatusForbidden, alice, add...)
	s.want(http.StatusForbidden, "POST", "/ui/webhooks", "do=add&name=ci&url=http://127.0.0.1/&events=push&format=docker", header("Sec-Fetch-Site", "cross-site"), header("Content-Type", "application/x-www-form-urlencoded"), root)
	for name, form := range map[string][]string{
		"inside":     {"do", "add", "name", "in", "url", "http://169.254.169.254/token-in-path", "events", "push", "format", "docker"},
		"no event":   {"do", "add", "name", "in", "url", hook.URL, "format", "docker"},
		"configured": {"do", "add", "name", "fixed", "url", hook.URL, "events", "push", "format", "docker"},
		"nothing":    {"name", "in"},
	} {
		if body := post(http.StatusBadRequest, root, form...); !strings.Contains(body, "Nothing was changed") || strings.Contains(body, `Change in`) {
			t.Errorf("%s: the page shows\n%s", name, body)
		}
	}
	for _, do := range []string{"change", "pause", "resume", "remove"} {
		post(http.StatusNotFound, root, "do", do, "name", "fixed", "events", "push", "format", "docker")
	}
	if body := post(http.StatusOK, root, add...); !strings.Contains(body, "was added") || !strings.Contains(body, "push, delete in <bdi>team/**</bdi>") {
		t.Fatalf("the page shows\n%s", body)
	}
	post(http.StatusBadRequest, root, add...) // it is there already
	s.pushImage("team/app", "v1", "one", root)
	s.pushImage("other/app", "v1", "two", root)
	poll(t, "the webhook has the push", func() bool { return slices.Equal(hook.got(), []string{"push team/app:v1"}) })

	form := s.want(http.StatusOK, "GET", "/ui/webhooks?change=ci", "", root).body
	pages.WriteString(form)
	if !strings.Contains(form, `value="push" checked`) || !strings.Contains(form, `value="team/**"`) || strings.Contains(form, `value="pull" checked`) {
		t.Errorf("the form does not have what is stored:\n%s", form)
	}
	s.want(http.StatusNotFound, "GET", "/ui/webhooks?change=fixed", "", root)
	s.want(http.StatusNotFound, "GET", "/ui/webhooks?remove=fixed", "", root)
	post(http.StatusForbidden, alice, "do", "pause", "name", "ci")
	if body := post(http.StatusOK, root, "do", "pause", "name", "ci"); !strings.Contains(body, "is paused") || !strings.Contains(body, ">Resume<") {
		t.Errorf("a pause shows\n%s", body)
	}
	s.pushImage("team/app", "v2", "three", root)
	// An empty URL and an empty secret stay.
	post(http.StatusOK, root, "do", "change", "name", "ci", "url", "", "secret", "", "events", "push", "repositories", "", "format", "docker")
	post(http.StatusOK, root, "do", "resume", "name", "ci")
	s.pushImage("base", "v3", "four", root)
	poll(t, "the webhook has the next push", func() bool { return slices.Equal(hook.got(), []string{"push team/app:v1", "push base:v3"}) })

	// It is there after a restart, and for a command without a server.
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	a, closeAdmin := openAdmin(t, s.cfg)
	to := next.URL + "/token-in-path"
	if _, err := a.ChangeWebhook(t.Context(), notify.Change{Name: "ci", URL: &to}); err != nil {
		t.Fatal(err)
	}
	closeAdmin()
	s = start(t, setup{root: data, yaml: yaml})
	s.pushImage("base", "v4", "five", root)
	poll(t, "the new address has the push", func() bool { return slices.Equal(next.got(), []string{"push base:v4"}) })
	if body := s.want(http.StatusOK, "GET", "/ui/webhooks?remove=ci", "", root).body; !strings.Contains(body, "Keep it") {
		t.Errorf("no confirmation:\n%s", body)
	}
	if body := post(http.StatusOK, root, "do", "remove", "name", "ci"); !strings.Contains(body, "was removed") {
		t.Errorf("a removal shows\n%s", body)
	}
	post(http.StatusNotFound, root, "do", "remove", "name", "ci")
	log := readFile(t, audit)
	for _, want := range []string{"add webhook", "change webhook", "pause webhook", "resume webhook", "remove webhook"} {
		if !strings.Contains(log, `"action":"`+want+`","reference":"ci"`) {
			t.Errorf("the audit log lacks %q:\n%s", want, log)
		}
	}
	for _, secret := range []string{"token-in-path", "hook-secret"} {
		for where, text := range map[string]string{"a page": strings.ReplaceAll(pages.String(), `value="`+hook.URL+`/token-in-path"`, ""), "the log": s.log.String(), "the audit log": log} {
			if strings.Contains(strings.ReplaceAll(text, `value="http://169.254.169.254/token-in-path"`, ""), secret) {
				t.Errorf("%s shows %s", where, secret)
			}
		}
	}
}

// newPlainReceiver returns a webhook that is up, and that wants a signature and nothing else.
func newPlainReceiver(t *testing.T) *receiver {
	r := newReceiver(t)
	r.plain = true
	r.up.Store(true)
	return r
}

// TestOrdersPage checks that the page of nodes shows orders, with what users wrote as text.
func TestOrdersPage(t *testing.T) {
	t.Parallel()
	s := start(t, setup{yaml: "warm: {rules: [{repositories: [rules/**], tags: ['v.*'], nodes: 'zone=a'}]}"})
	s.pushImage("team/app", "v1", "one")
	s.want(http.StatusOK, "POST", "/v2/team/app/_slipway/warm", `{"reference":"v1","nodes":"zone=<b>","all":true}`)
	s.pushImage("rules/app", "v1", "two")
	s.pushImage("rules/app", "other", "three")
	var body string
	poll(t, "the order of a pushed tag", func() bool {
		body = s.page("nodes")
		return strings.Contains(body, "rules/app:v1")
	})
	if !strings.Contains(body, "team/app:v1") || !strings.Contains(body, "zone=&lt;b&gt;") || !strings.Contains(body, "whole image") || strings.Contains(body, "rules/app:other") {
		t.Errorf("the page has\n%s", body)
	}
}
