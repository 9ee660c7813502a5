package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/notify"
)

const eventsHead = `# Events

The registry sends events to webhooks, which ` + "`notifications.endpoints`" + ` in the [configuration](../config.md)
lists, or which [administrators add](../operating.md#webhooks). Those that were added get no events of blobs. Each
request is a POST with one event. An endpoint gets events in the order in which they happened. They have
Distribution's form or, with ` + "`format: cloudevents`" + `, are CloudEvents 1.0 in structured mode. A status of 2xx
acknowledges an event. After any other result the event is sent again, at growing intervals.

| Action | When | Delivered |
|---|---|---|
| ` + "`push`" + ` | a manifest or a blob was pushed | at least once |
| ` + "`mount`" + ` | a blob was mounted from another repository | at least once |
| ` + "`tag`" + ` | a tag was set to a manifest that existed already; Distribution's form calls it ` + "`push`" + ` | at least once |
| ` + "`delete`" + ` | a manifest, a blob or a tag was deleted | at least once |
| ` + "`pull`" + ` | a client got a manifest or a blob | unless the queue in memory is full, or the process ends |

Events that are delivered at least once wait in the catalogue while an endpoint does not answer. A repeated event has
the same id. ` + "`url`" + ` is present if ` + "`http.host`" + ` says under which address clients find the registry, and
` + "`references`" + ` if ` + "`notifications.events.includereferences`" + ` is set. Empty members are left out.

With ` + "`secret`" + ` a request has the header ` + "`" + notify.SignatureHeader + "`" + `: ` + "`sha256=`" + ` and the HMAC-SHA256 of
the body in hex. Receivers compare it in constant time.
`

// events returns the page of the webhooks, with each event as an endpoint receives it.
func events() (string, error) {
	var b strings.Builder
	b.WriteString(made + eventsHead)
	for _, f := range []struct {
		format notify.Format
		title  string
	}{{notify.FormatDocker, "Distribution's form"}, {notify.FormatCloudEvents, "CloudEvents"}} {
		list, err := deliver(f.format)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "\n## %s\n", f.title)
		for i, d := range list {
			if i == 0 {
				fmt.Fprintf(&b, "\n`Content-Type: %s`\n", d.contentType)
			}
			fmt.Fprintf(&b, "\n### %s: %s\n\n```json\n%s\n```\n", f.title, samples()[i].what, d.body)
		}
	}
	return b.String(), nil
}

// sample is an event, with a description of what happened.
type sample struct {
	what  string
	event notify.Event
}

func samples() []sample {
	const manifest = oci.Digest("sha256:4d1c0a4f1d8f7a3c6f0a2f8f9c1b7e5d3a1908f7e6d5c4b3a29180716f5e4d3c")
	const blob = oci.Digest("sha256:a0d3b2c1e4f5968778695a4b3c2d1e0f9a8b7c6d5e4f30211203f4e5d6c7b8a9")
	const manifestType, layerType = "application/vnd.oci.image.manifest.v1+json", "application/vnd.oci.image.layer.v1.tar+gzip"
	at := time.Date(2026, 11, 23, 1, 0, 0, 0, time.UTC)
	actor := func(method string) *oci.Actor {
		return &oci.Actor{Name: "alice", Addr: "192.0.2.7:51834", Host: "registry.example.com", Method: method, UserAgent: "skopeo/1.9.3", RequestID: "0f3d"}
	}
	list := []sample{
		{"a manifest was pushed", notify.Event{Action: notify.ActionPush, Repo: "team/app", Tag: "1", Digest: manifest, MediaType: manifestType, Size: 1154, Actor: actor("PUT"),
			References: []oci.Descriptor{{MediaType: layerType, Digest: blob, Size: 3145728}}}},
		{"a blob was mounted", notify.Event{Action: notify.ActionMount, Repo: "team/app", FromRepo: "team/base", Blob: true, Digest: blob, MediaType: "application/octet-stream", Size: 3145728, Actor: actor("POST")}},
		{"a tag was moved", notify.Event{Action: notify.ActionTag, Repo: "team/app", Tag: "latest", Digest: manifest, MediaType: manifestType, Size: 1154, Actor: actor("PUT")}},
		{"a tag was deleted", notify.Event{Action: notify.ActionDelete, Repo: "team/app", Tag: "1", Actor: actor("DELETE")}},
		{"a manifest was pulled", notify.Event{Action: notify.ActionPull, Repo: "team/app", Tag: "1", Digest: manifest, MediaType: manifestType, Size: 1154, Actor: actor("GET")}},
	}
	for i := range list {
		list[i].event.ID, list[i].event.Time = fmt.Sprintf("6f1d2c3b-0000-4000-8000-%012d", i+1), at
	}
	return list
}

// delivery is a request that an endpoint received.
type delivery struct{ contentType, body string }

// deliver makes a notifier send all samples, and returns them as they arrived.
func deliver(format notify.Format) ([]delivery, error) {
	got := make(chan delivery, 1)
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var b bytes.Buffer
		_ = json.Indent(&b, body, "", "  ")
		got <- delivery{r.Header.Get("Content-Type"), b.String()}
	}))
	defer hook.Close()
	n, err := notify.New([]notify.Endpoint{{Name: "ci", URL: hook.URL, Format: format}}, notify.NewMemQueue(10),
		&notify.Options{ExternalURL: "https://registry.example.com", Addr: "registry-1:5000", InstanceID: "5b2c", IncludeReferences: true})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	ended := make(chan error, 1)
	go func() { ended <- n.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	var list []delivery
	for _, s := range samples() {
		if err := n.Publish(ctx, s.event); err != nil {
			return nil, err
		}
		select {
		case d := <-got:
			list = append(list, d)
		case <-ctx.Done():
			return nil, fmt.Errorf("the event %q was not delivered: %w", s.what, ctx.Err())
		}
	}
	return list, nil
}
