package notify_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/oci"
	"example.org/slipway/registry/notify"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// TestGolden compares bodies with testdata/<event>.<format>.json.
func TestGolden(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 678_000_000, time.FixedZone("x", 3600))
	actor := &oci.Actor{Name: "joe", Addr: "192.0.2.1:999", UserAgent: "docker/29", RequestID: "r-1", Host: "registry.example.com", Method: "PUT"}
	events := map[string]notify.Event{
		"push": {ID: "e-1", Time: at, Action: notify.ActionPush, Repo: "lib/app", Tag: "v1", Digest: oci.SHA256([]byte("m")), MediaType: oci.MediaTypeOCIManifest, Size: 528,
			References: []oci.Descriptor{{MediaType: "a/b", Digest: oci.SHA256([]byte("l")), Size: 7}}, Actor: actor},
		"mount":     {ID: "e-2", Time: at, Action: notify.ActionMount, Repo: "lib/app", FromRepo: "lib/base", Blob: true, Digest: oci.SHA256([]byte("l")), MediaType: oci.MediaTypeOctetStream, Size: 7},
		"deletetag": {ID: "e-3", Time: at, Action: notify.ActionDelete, Repo: "lib/app", Tag: "v1", Actor: actor},
		"tag":       {ID: "e-4", Time: at, Action: notify.ActionTag, Repo: "lib/app", Tag: "v2", Digest: oci.SHA256([]byte("m")), MediaType: oci.MediaTypeOCIManifest, Size: 528},
	}
	types := map[notify.Format]string{
		notify.FormatDocker:      "application/vnd.docker.distribution.events.v2+json",
		notify.FormatCloudEvents: "application/cloudevents+json",
	}
	for format, contentType := range types {
		h := newHook(t)
		ep := h.endpoint()
		ep.Format = format
		n, _ := start(t, notify.NewMemQueue(10), &notify.Options{
			ExternalURL: "https://registry.example.com", Addr: "node-1:5000", InstanceID: "i-1", IncludeReferences: true,
		}, ep)
		for name, e := range events {
			t.Run(name+"."+string(format), func(t *testing.T) {
				if err := n.Publish(t.Context(), e); err != nil {
					t.Fatal(err)
				}
				got := h.next(t)
				if ct := got.header.Get("Content-Type"); ct != contentType {
					t.Errorf("got Content-Type %q, want %q", ct, contentType)
				}
				var pretty bytes.Buffer
				if err := json.Indent(&pretty, got.body, "", "  "); err != nil {
					t.Fatal(err)
				}
				pretty.WriteByte('\n')
				file := filepath.Join("testdata", name+"."+string(format)+".json")
				if *update {
					if err := os.WriteFile(file, pretty.Bytes(), 0o644); err != nil {
						t.Fatal(err)
					}
				}
				want, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(string(want), pretty.String()); diff != "" {
					t.Errorf("%s (-want +got):\n%s", file, diff)
				}
			})
		}
	}
}

func TestActorFromContextAndID(t *testing.T) {
	h := newHook(t)
	n, _ := start(t, notify.NewMemQueue(10), nil, h.endpoint())
	ctx := oci.WithActor(t.Context(), &oci.Actor{Name: "ann"})
	refs := []oci.Descriptor{{Digest: oci.SHA256(nil)}}
	for range 2 {
		if err := n.Publish(ctx, notify.Event{Action: notify.ActionPush, Repo: "a", References: refs}); err != nil {
			t.Fatal(err)
		}
	}
	seen := map[string]bool{}
	for range 2 {
		var got struct {
			Events []struct {
				ID        string
				Timestamp time.Time
				Actor     struct{ Name string }
				Target    struct{ References []oci.Descriptor }
			}
		}
		if err := json.Unmarshal(h.next(t).body, &got); err != nil {
			t.Fatal(err)
		}
		e := got.Events[0]
		if e.Actor.Name != "ann" || len(e.ID) != 36 || seen[e.ID] || e.Timestamp.IsZero() || len(e.Target.References) != 0 {
			t.Errorf("got %+v", e)
		}
		seen[e.ID] = true
	}
}
