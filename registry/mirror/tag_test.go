package mirror_test

import (
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/mirror"
)

// failAll turns each answer into an error.
func failAll(status int) func(*http.Request) *fault {
	return func(*http.Request) *fault { return &fault{status: status} }
}

// TestTagLifetime checks that a tag is requested once in its lifetime, by HEAD.
func TestTagLifetime(t *testing.T) {
	b := newBed(t, settings{source: func(s *mirror.Source) { s.TTL = time.Hour }})
	first, _ := b.o.image("app", "v1", `{"n":1}`)
	for range 5 {
		b.wantManifest("origin/app", "v1", first.Digest)
	}
	if got := b.o.count("/manifests/"); got != 1 {
		t.Errorf("%d requests for a tag within its lifetime, want 1", got)
	}
	b.clock.Add(2 * time.Hour)
	b.wantManifest("origin/app", "v1", first.Digest)
	if got := b.o.count("HEAD /v2/app/manifests/v1"); got != 1 {
		t.Errorf("%d HEADs after it, want 1", got)
	}
	second, _ := b.o.image("app", "v1", `{"n":2}`)
	b.wantManifest("origin/app", "v1", first.Digest)
	b.clock.Add(2 * time.Hour)
	b.wantManifest("origin/app", "v1", second.Digest)
	if got := b.happened(mirror.ActionMoved); got != 1 {
		t.Errorf("%d events about a moved tag, want 1", got)
	}
	// A client that has begun to pull the previous image can finish.
	b.wantManifest("origin/app", string(first.Digest), first.Digest)
	// The tag can also move back, which needs no content.
	if _, err := b.o.PutManifest(t.Context(), "app", oci.PutManifest{Bytes: mustManifest(t, b, first.Digest), Tags: []string{"v1"}}); err != nil {
		t.Fatal(err)
	}
	b.clock.Add(2 * time.Hour)
	gets := b.o.count("GET /v2/app/manifests/")
	b.wantManifest("origin/app", "v1", first.Digest)
	if got := b.o.count("GET /v2/app/manifests/"); got != gets {
		t.Errorf("%d manifests were fetched that are here", got-gets)
	}
}

func mustManifest(t *testing.T, b *bed, d oci.Digest) []byte {
	t.Helper()
	m, err := b.GetManifest(t.Context(), "origin/app", string(d))
	if err != nil {
		t.Fatal(err)
	}
	return m.Bytes
}

// TestTagMovesDuringPull checks that a client which got a digest can pull that content to the end.
func TestTagMovesDuringPull(t *testing.T) {
	b := newBed(t, settings{source: func(s *mirror.Source) { s.TTL = -1 }})
	layer := random(1, sizeLarge)
	_, m := b.o.image("app", "v1", `{"n":1}`, layer)
	head, err := b.ResolveManifest(t.Context(), "origin/app", "v1")
	if err != nil {
		t.Fatal(err)
	}
	moved, _ := b.o.image("app", "v1", `{"n":2}`, random(2, sizeSmall))
	b.wantManifest("origin/app", string(head.Digest), head.Digest)
	b.wantBlob("origin/app", layer)
	if got, err := b.get("origin/app", m.Config.Digest); err != nil || string(got) != `{"n":1}` {
		t.Errorf("config: %q, %v", got, err)
	}
	b.wantManifest("origin/app", "v1", moved.Digest)
}

// TestSlowUpstream checks that a client gets the stored tag if the upstream answers later than anybody
// waits, and that this answer counts when it comes, whatever it is.
func TestSlowUpstream(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for some seconds")
	}
	for name, c := range map[string]struct {
		move   bool
		status int
		code   oci.Code
	}{
		"it moved":        {move: true},
		"it did not move": {},
		"it is gone":      {status: 404, code: oci.CodeManifestUnknown},
		"it is denied":    {status: 403, code: oci.CodeDenied},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t, settings{})
			first, _ := b.o.image("app", "v1", `{"n":1}`)
			b.wantManifest("origin/app", "v1", first.Digest)
			want := first.Digest
			if c.move {
				moved, _ := b.o.image("app", "v1", `{"n":2}`)
				want = moved.Digest
			}
			answer := make(chan struct{})
			b.o.on(func(r *http.Request) *fault {
				select {
				case <-answer:
				case <-r.Context().Done():
				}
				if c.status != 0 {
					return &fault{status: c.status}
				}
				return nil
			})
			b.clock.Add(2 * time.Hour)
			b.wantManifest("origin/app", "v1", first.Digest)
			if got := b.happened(mirror.ActionStale); got != 1 {
				t.Errorf("the tag was served unconfirmed %d times, want 1", got)
			}
			b.clock.Add(-time.Hour) // until long after the test nothing is asked anew
			close(answer)
			until(t, "the answer counts", func() bool {
				m, err := b.GetManifest(t.Context(), "origin/app", "v1")
				if c.code != "" {
					return oci.HasCode(err, c.code)
				}
				return err == nil && m.Digest == want && (c.move || b.Status().Sources[0].Requests["manifest"]["hit"] > 0)
			})
		})
	}
}

// TestOneQuestionForAll checks that many requests for a cold tag, or for one to be confirmed, cost
// one upstream request.
func TestOneQuestionForAll(t *testing.T) {
	b := newBed(t, settings{})
	d, _ := b.o.image("app", "v1", `{}`)
	for round, want := range []int{1, 2} {
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() { b.wantManifest("origin/app", "v1", d.Digest) })
		}
		wg.Wait()
		if got := b.o.count("/manifests/"); got != want {
			t.Errorf("round %d: %d requests in all, want %d", round, got, want)
		}
		b.clock.Add(2 * time.Hour)
	}
}

// TestNegative checks that what the upstream lacks is not requested again for a while, and then is.
func TestNegative(t *testing.T) {
	b := newBed(t, settings{source: func(s *mirror.Source) { s.NegativeTTL = time.Minute }})
	b.o.image("app", "v1", `{}`)
	absent := oci.SHA256([]byte("absent"))
	for range 3 {
		_, err := b.GetManifest(t.Context(), "origin/app", "v2")
		wantCode(t, "absent tag", err, oci.CodeManifestUnknown)
		_, err = b.GetManifest(t.Context(), "origin/app", string(absent))
		wantCode(t, "absent manifest", err, oci.CodeManifestUnknown)
		_, err = b.get("origin/app", absent)
		wantCode(t, "absent blob", err, oci.CodeBlobUnknown)
	}
	if got := b.o.count(""); got != 3 {
		t.Errorf("%d requests for three absent contents, want 3", got)
	}
	d, _ := b.o.image("app", "v2", `{"n":2}`)
	b.clock.Add(2 * time.Minute)
	b.wantManifest("origin/app", "v2", d.Digest)
}

// TestUpstreamFails checks which failures a cached tag outlives.
func TestUpstreamFails(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	for _, c := range []struct {
		name   string
		status int
		after  time.Duration
		change func(*mirror.Source)
		code   oci.Code // empty: served
	}{
		{name: "503", status: 503, after: 2 * time.Hour},
		{name: "500", status: 500, after: 2 * time.Hour},
		{name: "429", status: 429, after: 2 * time.Hour},
		{name: "too long", status: 500, after: 1000 * time.Hour, code: oci.CodeUnavailable},
		{name: "never stale", status: 500, after: 2 * time.Hour, change: func(s *mirror.Source) { s.StaleIfError = -1 }, code: oci.CodeUnavailable},
		{name: "401", status: 401, after: 2 * time.Hour, code: oci.CodeDenied},
		{name: "403", status: 403, after: 2 * time.Hour, code: oci.CodeDenied},
		{name: "404", status: 404, after: 2 * time.Hour, code: oci.CodeManifestUnknown},
		{name: "404 kept", status: 404, after: 2 * time.Hour, change: func(s *mirror.Source) { s.KeepDeleted = true }},
		{name: "403 kept", status: 403, after: 2 * time.Hour, change: func(s *mirror.Source) { s.KeepDeleted = true }, code: oci.CodeDenied},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBed(t, settings{source: c.change})
			d, _ := b.o.image("app", "v1", `{}`)
			b.wantManifest("origin/app", "v1", d.Digest)
			b.clock.Add(c.after)
			b.o.on(failAll(c.status))
			if c.code == "" {
				b.wantManifest("origin/app", "v1", d.Digest)
			} else {
				for range 2 {
					_, err := b.GetManifest(t.Context(), "origin/app", "v1")
					wantCode(t, "tag", err, c.code)
				}
			}
			// Content that is addressed by digest does not change.
			b.wantManifest("origin/app", string(d.Digest), d.Digest)
			b.o.on(nil)
			b.clock.Add(2 * time.Hour)
			b.wantManifest("origin/app", "v1", d.Digest)
		})
	}
}

// TestDeletedTag checks that a tag which was deleted upstream does not come back when the upstream
// fails.
func TestDeletedTag(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	b := newBed(t, settings{})
	d, _ := b.o.image("app", "v1", `{}`)
	b.wantManifest("origin/app", "v1", d.Digest)
	if err := b.o.DeleteTag(t.Context(), "app", "v1"); err != nil {
		t.Fatal(err)
	}
	b.clock.Add(2 * time.Hour)
	_, err := b.GetManifest(t.Context(), "origin/app", "v1")
	wantCode(t, "deleted tag", err, oci.CodeManifestUnknown)
	b.clock.Add(time.Hour)
	b.o.on(failAll(500))
	if _, err := b.GetManifest(t.Context(), "origin/app", "v1"); err == nil {
		t.Error("a deleted tag is back")
	}
}

// TestAfterRestart checks that tags are confirmed again, and served if that is impossible.
func TestAfterRestart(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	b := newBed(t, settings{})
	d, _ := b.o.image("app", "v1", `{}`)
	b.wantManifest("origin/app", "v1", d.Digest)
	b.shut(b.Registry)
	b.open(settings{})
	b.wantManifest("origin/app", "v1", d.Digest)
	if got := b.o.count("HEAD /v2/app/manifests/v1"); got != 1 {
		t.Errorf("%d questions after a restart, want 1", got)
	}
	b.shut(b.Registry)
	b.o.srv.Close()
	b.open(settings{})
	b.wantManifest("origin/app", "v1", d.Digest)
}

// TestOffline checks that an offline mirror serves what it has and asks nobody.
func TestOffline(t *testing.T) {
	b := newBed(t, settings{})
	layer := random(1, sizeSmall)
	d, _ := b.o.image("app", "v1", `{}`, layer)
	if err := b.Load(t.Context(), "origin/app:v1", nil); err != nil {
		t.Fatal(err)
	}
	b.shut(b.Registry)
	asked := b.o.count("")
	b.opts.Offline = true
	b.open(settings{})
	b.wantManifest("origin/app", "v1", d.Digest)
	b.wantBlob("origin/app", layer)
	_, err := b.GetManifest(t.Context(), "origin/app", "v2")
	wantCode(t, "tag that is not here", err, oci.CodeManifestUnknown)
	if !strings.Contains(err.Error(), "offline") {
		t.Errorf("the error does not say why: %v", err)
	}
	_, err = b.get("origin/app", oci.SHA256([]byte("absent")))
	wantCode(t, "blob that is not here", err, oci.CodeBlobUnknown)
	tags, _, err := b.Tags(t.Context(), "origin/app", "", 10)
	if err != nil || len(tags) != 1 {
		t.Errorf("tags: %v, %v", tags, err)
	}
	if got := b.o.count(""); got != asked {
		t.Errorf("%d requests to an upstream that is offline", got-asked)
	}
}

// TestPrivateContent checks content that the upstream no longer lets us have. It is not served by
// tag, and none of it is served under other names.
func TestPrivateContent(t *testing.T) {
	b := newBed(t, settings{source: func(s *mirror.Source) { s.TTL = -1 }})
	layer := random(3, sizeTiny)
	d, _ := b.o.image("private", "v1", `{}`, layer)
	b.wantManifest("origin/private", "v1", d.Digest)
	b.wantBlob("origin/private", layer)
	b.settled()
	_, err := b.GetManifest(t.Context(), "origin/public", string(d.Digest))
	wantCode(t, "its manifest in another repository", err, oci.CodeManifestUnknown)
	_, err = b.get("origin/public", oci.SHA256(layer))
	wantCode(t, "its layer in another repository", err, oci.CodeBlobUnknown)
	b.o.on(failAll(401))
	_, err = b.GetManifest(t.Context(), "origin/private", "v1")
	wantCode(t, "its tag", err, oci.CodeDenied)
}

// TestBlobGoneUpstream checks that a deleted blob is an error if it was never fetched, and none if
// it was.
func TestBlobGoneUpstream(t *testing.T) {
	b := newBed(t, settings{})
	kept, lost := random(1, sizeTiny), random(2, sizeTiny)
	b.o.image("app", "v1", `{}`, kept, lost)
	b.wantBlob("origin/app", kept)
	b.settled()
	b.o.on(func(r *http.Request) *fault {
		if strings.Contains(r.URL.Path, "/blobs/") {
			return &fault{status: 404}
		}
		return nil
	})
	b.wantBlob("origin/app", kept)
	_, err := b.get("origin/app", oci.SHA256(lost))
	wantCode(t, "deleted blob", err, oci.CodeBlobUnknown)
}
