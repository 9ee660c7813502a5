package serve_test

import (
	"encoding/json"
	"fmt"
	"html"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"example.org/slipway/registry/activity"
	"example.org/slipway/registry/auth"
)

// TestActivityPage follows the pages of the activity from the newest to the oldest, and back, for
// several filters, while new things happen. Together they must show what is in the audit log, each
// event once.
func TestActivityPage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	users, audit := filepath.Join(dir, "htpasswd"), filepath.Join(dir, "audit.log")
	writeFile(t, users, htpasswd(t, "alice", "a", "root", "r"))
	begin := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var all []auth.Event
	log := ""
	for i := range 730 {
		e := auth.Event{Time: begin.Add(time.Duration(i/7) * time.Hour), Event: []string{"push", "delete", "login", "admin"}[i%4], Outcome: "success",
			Subject: []string{"alice", "robot:ci", ""}[i%3], Repo: []string{"team/app", "team/x/y", "other"}[i%3], Reference: fmt.Sprintf("event-%04d", i)}
		if i%50 == 0 {
			e.Outcome, e.Reason, e.Action = "failure", "<b>because</b>", "<i>"
		}
		line, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		log += string(line) + "\n"
		all = append(all, e)
	}
	writeFile(t, audit, log+"no event\n")
	if err := os.Chmod(audit, 0o600); err != nil {
		t.Fatal(err)
	}
	s := start(t, setup{yaml: "log: {audit: {file: " + audit + "}}\nauth: {htpasswd: {path: " + users + "}, access: [{repositories: ['**'], subjects: [alice], actions: [pull]}, {repositories: ['**'], subjects: [root], actions: ['*', admin]}]}"})
	alice, root := basic("alice", "a"), basic("root", "r")
	export := regexp.MustCompile(`<a href="/ui/(activity\?[^"]*format=json)"`)
	row, next, prev := regexp.MustCompile(`event-\d{4}`), regexp.MustCompile(`<a href="/ui/(activity\?[^"]*)" rel="next">`), regexp.MustCompile(`<a href="/ui/(activity\?[^"]*)" rel="prev">`)
	for query, match := range map[string]func(auth.Event) bool{
		"until=2026-01-31":                    func(auth.Event) bool { return true },
		"user=robot:ci&until=2026-01-31":      func(e auth.Event) bool { return e.Subject == "robot:ci" },
		"repository=team/**&until=2026-01-31": func(e auth.Event) bool { return strings.HasPrefix(e.Repo, "team/") },
		"action=push&since=2026-01-04": func(e auth.Event) bool {
			return e.Event == "push" && !e.Time.Before(time.Date(2026, 1, 4, 0, 0, 0, 0, time.UTC))
		},
		"since=2026-01-03&until=2026-01-03": func(e auth.Event) bool { return e.Time.Day() == 3 },
		"user=alice&repository=team/*&action=login&since=2026-01-03&until=2026-01-05": func(e auth.Event) bool {
			return e.Subject == "alice" && e.Event == "login" && e.Time.Day() >= 3 && e.Time.Day() <= 5
		},
		"user=nobody": func(auth.Event) bool { return false },
	} {
		var want, got []string
		for _, e := range slices.Backward(all) {
			if match(e) {
				want = append(want, e.Reference)
			}
		}
		// The export has what all pages have.
		if m := export.FindStringSubmatch(s.page("activity?"+query, root)); m != nil {
			a := s.want(http.StatusOK, "GET", "/ui/"+html.UnescapeString(m[1]), "", root)
			var rep activity.Report
			if err := json.Unmarshal([]byte(a.body), &rep); err != nil || a.header.Get("Content-Type") != "application/json" {
				t.Fatalf("the export of %s is %s: %v", query, a.header.Get("Content-Type"), err)
			}
			var exported []string
			for _, e := range rep.Events {
				exported = append(exported, e.Reference)
			}
			if !slices.Equal(exported, want) {
				t.Errorf("the export of %s has %q, want %q", query, exported, want)
			}
		} else if len(want) > 0 {
			t.Errorf("%s cannot be exported", query)
		}
		pages := []string{"activity?" + query}
		for {
			body := s.page(pages[len(pages)-1], root)
			got = append(got, row.FindAllString(body, -1)...)
			// What happens meanwhile moves nothing from one page to another.
			s.want(http.StatusForbidden, "POST", "/v2/team/app/blobs/uploads/", "", alice)
			m := next.FindStringSubmatch(body)
			if m == nil {
				break
			}
			pages = append(pages, html.UnescapeString(m[1]))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s shows %d events %q, want %d", query, len(got), got, len(want))
		}
		if n := max(1, (len(want)+99)/100); len(pages) != n {
			t.Errorf("%s has %d pages, want %d", query, len(pages), n)
		}
		for i := len(pages) - 1; i > 0; i-- {
			m := prev.FindStringSubmatch(s.page(pages[i], root))
			if m == nil {
				t.Fatalf("no way back from %s", pages[i])
			}
			before := row.FindAllString(s.page(html.UnescapeString(m[1]), root), -1)
			if !slices.Equal(before, want[100*(i-1):100*i]) {
				t.Errorf("back from page %d of %s are %q", i, query, before)
			}
		}
	}
	body := s.page("activity", root) // the newest: refusals of alice
	for _, want := range []string{"denied", "alice", "/ui/repo/team/app", "1 line of the audit log cannot be read"} {
		if !strings.Contains(body, want) {
			t.Errorf("the page lacks %q:\n%s", want, body)
		}
	}
	body = s.page("activity?until=2026-01-31", root)
	if strings.Contains(body, "<b>because") || !strings.Contains(body, "&lt;b&gt;because") {
		t.Error("what is in the audit log is taken for HTML")
	}
	for _, query := range []string{"repository=A+B", "since=yesterday", "until=2026-13-01"} {
		s.want(http.StatusBadRequest, "GET", "/ui/activity?"+query, "", root)
	}
	for _, query := range []string{"from=-1", "from=99999999999999999999", "at=x", "from=x", "action=%3Cb%3E", "user=" + url.QueryEscape("\x00\xff")} {
		s.want(http.StatusOK, "GET", "/ui/activity?"+query, "", root)
	}
	s.want(http.StatusForbidden, "GET", "/ui/activity", "", alice)
	s.want(http.StatusForbidden, "GET", "/ui/activity?format=json", "", alice)

	s = start(t, setup{})
	s.shows("activity", "log.audit.file")
}
