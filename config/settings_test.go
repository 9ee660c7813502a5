package config_test

import (
	"strings"
	"testing"

	"example.org/slipway/config"
)

// TestSettings checks that each value is listed with its origin, and that no secret is
// shown.
func TestSettings(t *testing.T) {
	const file = `version: 0.1
http:
  addr: 127.0.0.1:5000
log:
  fields: {site: north}
storage:
  s3: {bucket: b, region: r, accesskey: an-id, secretkey: top-secret}
  directory: /var/lib/x
notifications:
  endpoints:
    - {name: one, url: "http://user:top-secret@h/", headers: {Authorization: [top-secret]}}
`
	c, _, err := config.Parse(strings.NewReader(file), &config.Options{Name: "config.yml", Env: []string{"SLIPWAY_LOG_LEVEL=debug"},
		Overrides: []config.Override{{Key: "web.title", Value: "T", Source: "--title"}}})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]config.Setting{}
	for _, s := range c.Settings() {
		if strings.Contains(s.Value, "top-secret") {
			t.Errorf("%s shows a secret: %s", s.Key, s.Value)
		}
		if _, twice := got[s.Key]; twice {
			t.Errorf("%s is there twice", s.Key)
		}
		got[s.Key] = s
	}
	for key, want := range map[string][2]string{
		"http.addr": {"127.0.0.1:5000", "config.yml:3"}, "log.level": {"debug", "environment variable SLIPWAY_LOG_LEVEL"}, "web.title": {"T", "--title"},
		"log.formatter": {"text", ""}, "log.fields.site": {"north", "config.yml:5"}, "notifications.endpoints[0].name": {"one", "config.yml:11"},
		"storage.s3.secretkey": {"******", "config.yml:7"}, "web.session": {"12h", ""}, "storage.retention": {"", ""},
	} {
		s, ok := got[key]
		if !ok || s.Value != want[0] || s.From != want[1] || s.Doc == "" && key != "log.fields.site" && !strings.HasPrefix(key, "notifications") {
			t.Errorf("%s is %+v, want %q from %q", key, s, want[0], want[1])
		}
	}
	if _, there := got["storage.swift.container"]; there {
		t.Error("a section that is not there is listed")
	}
}
