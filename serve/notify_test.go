package serve_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"example.org/slipway/registry/notify"
)

// receiver is a webhook that can be down.
type receiver struct {
	*httptest.Server
	up     atomic.Bool
	tried  atomic.Int64
	secret string
	plain  bool // whether it wants no further header

	mu     sync.Mutex
	events []string // action repository:tag or @digest
	ids    []string
}

func newReceiver(t *testing.T) *receiver {
	r := &receiver{secret: "hook-secret"}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.tried.Add(1)
		if !r.up.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		body, err := io.ReadAll(req.Body)
		if err != nil {
			t.Error(err)
		}
		if req.Header.Get(notify.SignatureHeader) != notify.Sign(r.secret, body) || !r.plain && req.Header.Get("X-Extra") != "1" {
			t.Errorf("signature or header is wrong: %v", req.Header)
		}
		r.take(t, req.Header.Get("Content-Type"), body)
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) take(t *testing.T, mediaType string, body []byte) {
	type target struct{ Repository, Tag, Digest string }
	var docker struct {
		Events []struct {
			ID, Action string
			Target     target
		}
	}
	var cloud struct {
		Specversion, ID, Type string
		Data                  struct {
			Action string
			target
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	add := func(id, action string, at target) {
		ref := "@" + at.Digest
		if at.Tag != "" {
			ref = ":" + at.Tag
		}
		r.ids = append(r.ids, id)
		r.events = append(r.events, action+" "+at.Repository+ref)
	}
	switch mediaType {
	case notify.MediaTypeDocker:
		if err := json.Unmarshal(body, &docker); err != nil {
			t.Errorf("%s: %v", body, err)
		}
		for _, e := range docker.Events {
			add(e.ID, e.Action, e.Target)
		}
	case notify.MediaTypeCloudEvents:
		var flat struct{ Data target }
		if err := json.Unmarshal(body, &cloud); err != nil || json.Unmarshal(body, &flat) != nil || cloud.Specversion != "1.0" || cloud.Type == "" {
			t.Errorf("%s: %v", body, err)
		}
		add(cloud.ID, cloud.Data.Action, flat.Data)
	default:
		t.Errorf("media type %q", mediaType)
	}
}

func (r *receiver) got() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.events)
}

func (r *receiver) endpoint(name, format, more string) string {
	return "    - {name: " + name + ", url: \"" + r.URL + "\", format: " + format + ", secret: " + r.secret +
		", headers: {X-Extra: [\"1\"]}, timeout: 5s, threshold: 1, backoff: 1ms" + more + "}\n"
}

func TestNotifications(t *testing.T) {
	t.Parallel()
	docker, cloud := newReceiver(t), newReceiver(t)
	docker.up.Store(true)
	root := t.TempDir()
	yaml := "notifications:\n  endpoints:\n" + docker.endpoint("docker", "docker", "") + cloud.endpoint("cloud", "cloudevents", ", ignore: {actions: [pull]}")
	s := start(t, setup{root: root, yaml: yaml})
	d := s.pushImage("team/app", "v1", "layer")
	s.want(200, "GET", "/v2/team/app/manifests/v1", "")
	s.want(201, "POST", "/v2/other/blobs/uploads/?mount="+digestOf("layer")+"&from=team/app", "")
	s.want(202, "DELETE", "/v2/team/app/manifests/v1", "")
	want := []string{
		"push team/app@" + digestOf("layer"), "push team/app:v1", "pull team/app:v1", "mount other@" + digestOf("layer"), "delete team/app:v1",
	}
	poll(t, "the docker receiver has everything", func() bool { return len(docker.got()) >= len(want) })
	if got := docker.got(); !sameSet(got, want) {
		t.Errorf("docker: got  %q\nwant %q", got, want)
	}
	// The other receiver is down all the time, and the server restarts meanwhile.
	poll(t, "the other receiver is tried", func() bool { return cloud.tried.Load() > 1 })
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	if got := cloud.got(); len(got) > 0 {
		t.Fatalf("a receiver that is down got %q", got)
	}
	s = start(t, setup{root: root, yaml: yaml})
	s.want(202, "DELETE", "/v2/team/app/manifests/"+d, "")
	cloud.up.Store(true)
	wantCloud := []string{
		"push team/app@" + digestOf("layer"), "push team/app:v1", "mount other@" + digestOf("layer"), "delete team/app:v1", "delete team/app@" + d,
	}
	poll(t, "the events of before arrive", func() bool { return len(cloud.got()) >= len(wantCloud) })
	if got := cloud.got(); !slices.Equal(got, wantCloud) {
		t.Errorf("cloudevents: got  %q\nwant %q", got, wantCloud)
	}
	poll(t, "nothing is pending", func() bool {
		page := s.do("GET", s.debug+"/metrics", "").body
		return strings.Contains(page, `registry_notifications_pending_total{endpoint="cloud"} 0`)
	})
	for _, r := range []*receiver{docker, cloud} {
		r.mu.Lock()
		slices.Sort(r.ids)
		if ids := slices.Compact(slices.Clone(r.ids)); len(ids) != len(r.ids) || ids[0] == "" {
			t.Errorf("event ids are not unique: %q", r.ids)
		}
		r.mu.Unlock()
	}
	if strings.Contains(s.log.String(), docker.secret) {
		t.Error("the secret is in the log")
	}
}

// sameSet compares two lists and ignores the order, because pulls overtake pushes.
func sameSet(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}
