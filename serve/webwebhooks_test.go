package serve_test

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"
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
	if log := readFile(t, audit); strings.Count(log, "test webhook") != 4 {
		t.Errorf("the audit log has\n%s", log)
	}
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
