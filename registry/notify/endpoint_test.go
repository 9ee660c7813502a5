package notify_test

import (
	"bytes"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v4"

	"example.org/slipway/oci"
	"example.org/slipway/registry/notify"
)

func TestWants(t *testing.T) {
	h := newHook(t)
	ep := h.endpoint()
	ep.IgnoredMediaTypes = []string{"application/old"}
	ep.Ignore = notify.Ignore{MediaTypes: []string{"application/octet-stream"}, Actions: []string{"pull"}}
	off := notify.Endpoint{Name: "off", URL: h.URL, Disabled: true}
	n, _ := start(t, notify.NewMemQueue(10), nil, off, ep)
	for _, e := range []notify.Event{
		{Action: notify.ActionPull, Tag: "pull"},
		{Action: notify.ActionPush, Tag: "old", MediaType: "application/old"},
		{Action: notify.ActionPush, Tag: "blob", MediaType: "application/octet-stream"},
		{Action: notify.ActionPush, Tag: "good", MediaType: oci.MediaTypeOCIManifest},
		{Action: notify.ActionDelete, Tag: "none"},
	} {
		if err := n.Publish(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	h.wantTags(t, "good", "none")
	if err := n.Publish(t.Context(), notify.Event{Action: "frobnicate"}); err == nil {
		t.Error("got no error for an unknown action")
	}
}

func TestConfig(t *testing.T) {
	const doc = `
- name: alistener
  disabled: false
  url: https://my.listener.com/event
  headers:
    Authorization: [Bearer x]
  timeout: 1s
  threshold: 10
  backoff: 2s
  ignoredmediatypes:
    - application/octet-stream
  ignore:
    mediatypes: [a/b]
    actions: [pull]
  format: cloudevents
  secret: hunter2
`
	var got []notify.Endpoint
	if err := yaml.Unmarshal([]byte(doc), &got); err != nil {
		t.Fatal(err)
	}
	want := []notify.Endpoint{{
		Name: "alistener", URL: "https://my.listener.com/event", Headers: http.Header{"Authorization": {"Bearer x"}},
		Timeout: time.Second, Threshold: 10, Backoff: 2 * time.Second, IgnoredMediaTypes: []string{"application/octet-stream"},
		Ignore: notify.Ignore{MediaTypes: []string{"a/b"}, Actions: []string{"pull"}}, Format: notify.FormatCloudEvents, Secret: "hunter2",
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("configuration (-want +got):\n%s", diff)
	}
	var out bytes.Buffer
	slog.New(slog.NewTextHandler(&out, nil)).Info("x", "endpoint", got[0])
	if s := out.String(); strings.Contains(s, "hunter2") || strings.Contains(s, "Bearer") || !strings.Contains(s, "alistener") {
		t.Errorf("got log line %s", s)
	}
	for name, eps := range map[string][]notify.Endpoint{
		"no name":     {{URL: "http://x"}},
		"no url":      {{Name: "a"}},
		"scheme":      {{Name: "a", URL: "file:///etc/hunter2"}},
		"format":      {{Name: "a", URL: "http://x", Format: "xml"}},
		"negative":    {{Name: "a", URL: "http://x", Timeout: -1}},
		"same name":   {{Name: "a", URL: "http://x"}, {Name: "a", URL: "http://y"}},
		"broken, off": {{Name: "a", Disabled: true, URL: ":hunter2%"}},
	} {
		if _, err := notify.New(eps, notify.NewMemQueue(1), nil); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: got error %v, want one without the url", name, err)
		}
	}
}
