package serve_test

import (
	"net/http"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestTokensPage checks that an administrator creates and revokes API tokens at the page, that these
// tokens permit what the form said, and that nobody else and no other site can do it.
func TestTokensPage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	users, audit := filepath.Join(dir, "htpasswd"), filepath.Join(dir, "audit.log")
	writeFile(t, users, htpasswd(t, "alice", "a", "root", "r"))
	s := start(t, setup{yaml: "log: {audit: {file: " + audit + "}}\nauth: {htpasswd: {path: " + users + "}, access: [{repositories: ['**'], subjects: [alice], actions: ['*']}, {repositories: ['**'], subjects: [root], actions: ['*', admin]}]}"})
	alice, root := basic("alice", "a"), basic("root", "r")
	post := func(status int, as func(*http.Request), form ...string) string {
		t.Helper()
		v := url.Values{}
		for i := 0; i < len(form); i += 2 {
			v.Add(form[i], form[i+1])
		}
		return s.want(status, "POST", "/ui/tokens", v.Encode(), append(slices.Clone(sameOrigin), as)...).body
	}
	d := s.pushImage("team/app", "v1", "one", root)
	s.pushImage("base/os", "v1", "two", root)
	s.pushImage("other/app", "v1", "three", root)

	ci := []string{"do", "create", "robot", "ci", "repositories0", " team/**  mine/* ", "actions0", "push", "actions0", "pull", "repositories1", "base/**", "actions1", "pull", "days", "30"}
	s.want(http.StatusForbidden, "GET", "/ui/tokens", "", alice)
	post(http.StatusForbidden, alice, ci...)
	s.want(http.StatusForbidden, "POST", "/ui/tokens", "do=create&robot=ci&repositories0=**&actions0=pull", header("Sec-Fetch-Site", "cross-site"), header("Content-Type", "application/x-www-form-urlencoded"), root)
	if body := s.page("tokens", root); !strings.Contains(body, "There are no API tokens yet") {
		t.Fatalf("somebody else created a token:\n%s", body)
	}

	body := post(http.StatusOK, root, ci...)
	secret := regexp.MustCompile(`slipway_[a-z0-9]{16}_[A-Z2-7]+`).FindString(body)
	if secret == "" || !strings.Contains(body, "docker login -u ci "+strings.TrimPrefix(s.url, "http://")) {
		t.Fatalf("the page has no token:\n%s", body)
	}
	id := strings.Split(secret, "_")[1]
	body = s.page("tokens", root)
	for _, want := range []string{id, "pull, push in <bdi>team/**</bdi>, <bdi>mine/*</bdi><br>pull in <bdi>base/**</bdi>", "by <bdi>root</bdi>", ">never<"} {
		if !strings.Contains(body, want) {
			t.Errorf("the list lacks %q:\n%s", want, body)
		}
	}
	if strings.Contains(body, secret) {
		t.Error("a secret is shown twice")
	}
	robot := basic("ci", secret)
	for _, c := range []struct {
		status       int
		method, path string
	}{{200, "GET", "/v2/team/app/manifests/v1"}, {200, "GET", "/v2/base/os/manifests/v1"}, {202, "POST", "/v2/team/app/blobs/uploads/"}, {202, "POST", "/v2/mine/new/blobs/uploads/"},
		{403, "POST", "/v2/base/os/blobs/uploads/"}, {403, "GET", "/v2/other/app/manifests/v1"}, {403, "DELETE", "/v2/team/app/manifests/" + d}} {
		s.want(c.status, c.method, c.path, "", robot)
	}
	s.want(http.StatusForbidden, "GET", "/ui/tokens", "", robot) // a robot manages nothing

	for name, form := range map[string][]string{
		"no name":     {"do", "create", "repositories0", "**", "actions0", "pull"},
		"bad name":    {"do", "create", "robot", "a b", "repositories0", "**", "actions0", "pull"},
		"nowhere":     {"do", "create", "robot", "x", "actions0", "pull"},
		"nothing":     {"do", "create", "robot", "x", "repositories0", "**"},
		"more":        {"do", "create", "robot", "x", "repositories0", "**", "actions0", "admin"},
		"bad pattern": {"do", "create", "robot", "x", "repositories0", "A B", "actions0", "pull"},
		"no button":   {"robot", "x", "repositories0", "**", "actions0", "pull"},
	} {
		if body := post(http.StatusBadRequest, root, form...); strings.Contains(body, "slipway_") {
			t.Errorf("%s: a token is created:\n%s", name, body)
		}
	}
	if body := post(http.StatusBadRequest, root, "do", "create", "robot", `"><b>`, "repositories0", `<i>`, "actions0", "push", "days", "7"); strings.Contains(body, "<b>") || strings.Contains(body, "<i>") ||
		!strings.Contains(body, `value="&#34;&gt;&lt;b&gt;"`) || !strings.Contains(body, `value="push" checked`) || !strings.Contains(body, `<option value="7" selected`) {
		t.Errorf("what was entered is lost, or is taken for HTML:\n%s", body)
	}

	// A confirmation, and one token or all of a robot.
	post(http.StatusOK, root, "do", "create", "robot", "ci", "repositories0", "**", "actions0", "pull", "days", "0")
	post(http.StatusOK, root, "do", "create", "robot", "other", "repositories0", "**", "actions0", "pull", "days", "1000000")
	if body := s.page("tokens?revoke="+id, root); !strings.Contains(body, "Revoke an API token") || strings.Count(body, "<tr>") != 2 || !strings.Contains(body, "/ui/tokens?revoke=ci") {
		t.Errorf("the confirmation is:\n%s", body)
	}
	s.want(http.StatusOK, "GET", "/v2/team/app/manifests/v1", "", robot)
	post(http.StatusForbidden, alice, "do", "revoke", "which", id)
	if body := post(http.StatusOK, root, "do", "revoke", "which", id); !strings.Contains(body, "1 token was revoked") || strings.Contains(body, id) {
		t.Errorf("after the revocation the page is:\n%s", body)
	}
	s.want(http.StatusUnauthorized, "GET", "/v2/team/app/manifests/v1", "", robot)
	post(http.StatusNotFound, root, "do", "revoke", "which", id)
	s.want(http.StatusNotFound, "GET", "/ui/tokens?revoke="+id, "", root)
	post(http.StatusOK, root, "do", "create", "robot", "ci", "repositories0", "**", "actions0", "pull")
	if body := post(http.StatusOK, root, "do", "revoke", "which", "ci"); !strings.Contains(body, "2 tokens were revoked") || !strings.Contains(body, "revoke=") {
		t.Errorf("after the revocation of a robot's tokens the page is:\n%s", body)
	}

	log := readFile(t, audit)
	for _, want := range []string{`"event":"admin","outcome":"success","subject":"root"`, `"action":"create token","reference":"ci ` + id, `"action":"revoke token","reference":"ci ` + id} {
		if !strings.Contains(log, want) {
			t.Errorf("the audit log lacks %s:\n%s", want, log)
		}
	}
	if strings.Contains(log, secret) {
		t.Error("the audit log has a secret")
	}
}

// TestTokensNotAccepted checks that a server without users says why it makes no tokens.
func TestTokensNotAccepted(t *testing.T) {
	t.Parallel()
	s := start(t, setup{})
	s.shows("tokens", "accepts no API tokens", "auth.robots: true")
	s.want(http.StatusConflict, "POST", "/ui/tokens", "do=create&robot=ci&repositories0=**&actions0=pull", sameOrigin...)
	s.shows("tokens", "There are no API tokens yet")
}
