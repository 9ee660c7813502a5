package serve_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"example.org/slipway/config"
	"example.org/slipway/oci"
)

func TestRateLimit(t *testing.T) {
	// The default burst is one second's worth of requests, and at least one.
	s := start(t, setup{yaml: "http: {ratelimit: {requests_per_second: 0.01}}"})
	s.want(200, "GET", "/v2/", "")
	a := s.want(429, "GET", "/v2/", "")
	if a.header.Get("Retry-After") == "" || !strings.Contains(a.body, "TOOMANYREQUESTS") {
		t.Errorf("got %v %s, want Retry-After and TOOMANYREQUESTS", a.header, a.body)
	}
	s.want(200, "GET", s.debug+"/readyz", "")

	s = start(t, setup{yaml: "http: {ratelimit: {requests_per_second: 0.01, burst: 3}}"})
	for range 3 {
		s.want(200, "GET", "/v2/", "")
	}
	s.want(429, "GET", "/v2/", "")

	s = start(t, setup{yaml: "http: {ratelimit: {requests_per_second: 4}}"})
	for range 4 {
		s.want(200, "GET", "/v2/", "")
	}
}

func TestUploadLimits(t *testing.T) {
	s := start(t, setup{yaml: "http: {ratelimit: {uploads: 1}, limits: {upload_sessions: 8, manifest_bytes: 1KiB}}"})
	u := s.rawUpload("POST", "/v2/a/blobs/uploads/?digest="+digestOf("ab"), 2, "a")
	s.inFlight(1)
	s.want(429, "POST", "/v2/a/blobs/uploads/?digest="+digestOf("x"), "x")
	u.send("b")
	if got := u.status(); got != 201 {
		t.Errorf("the first upload: got %d", got)
	}
	s.pushBlob("a", "x")
	for range 2 {
		s.want(202, "POST", "/v2/a/blobs/uploads/", "")
	}
	if a := s.do("POST", "/v2/a/blobs/uploads/", ""); a.status != 429 && a.status != 503 {
		t.Errorf("one open upload too many: got %d", a.status)
	}
	s.want(413, "PUT", "/v2/a/manifests/v1", strings.Repeat(" ", 1025), isManifest)
}

func TestReadOnly(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	s := start(t, setup{root: root})
	d := s.pushImage("a", "v1", "layer")
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	s = start(t, setup{root: root, yaml: "storage: {maintenance: {readonly: {enabled: true}}}"})
	s.want(200, "GET", "/v2/a/manifests/v1", "")
	s.want(405, "POST", "/v2/a/blobs/uploads/?digest="+digestOf("x"), "x")
	s.want(405, "PUT", "/v2/a/manifests/v2", imageOf("layer"), isManifest)
	s.want(405, "DELETE", "/v2/a/manifests/"+d, "")
	s.want(405, "DELETE", "/v2/a/manifests/v1", "")
	s.want(200, "GET", "/v2/a/manifests/v1", "")
}

func TestDeleteDisabled(t *testing.T) {
	t.Parallel()
	s := start(t, setup{yaml: "storage: {delete: {enabled: false}}"})
	d := s.pushImage("a", "v1", "layer")
	for _, path := range []string{"manifests/" + d, "manifests/v1", "blobs/" + digestOf("layer")} {
		a := s.want(405, "DELETE", "/v2/a/"+path, "")
		if !strings.Contains(a.body, string(oci.CodeUnsupported)) {
			t.Errorf("DELETE %s: got %s", path, a.body)
		}
	}
	s.pushImage("a", "v1", "other layer") // moving a tag is no deletion
}

func TestImmutableTags(t *testing.T) {
	t.Parallel()
	s := start(t, setup{yaml: `storage: {immutable_tags: [{repositories: ["team/**"], tags: ["v[0-9]+"]}]}`})
	s.pushImage("team/app", "v1", "one")
	s.pushImage("team/app", "v1", "one") // the same image again
	s.pushBlob("team/app", "two")
	put := func(want int, repo, tag string) {
		t.Helper()
		s.want(want, "PUT", "/v2/"+repo+"/manifests/"+tag, imageOf("two"), isManifest)
	}
	put(403, "team/app", "v1")
	s.want(403, "DELETE", "/v2/team/app/manifests/v1", "")
	put(201, "team/app", "v2")
	put(201, "team/app", "v1-rc") // expressions match as a whole
	s.pushImage("team/app", "v1-rc", "three")
	s.pushImage("other", "v1", "one")
	s.pushImage("other", "v1", "two")
	if got := s.want(200, "GET", "/v2/team/app/manifests/v1", "").body; got != imageOf("one") {
		t.Errorf("the tag moved to %s", got)
	}
}

func TestRetentionJob(t *testing.T) {
	t.Parallel()
	s := start(t, setup{
		yaml: `storage: {retention: [{repositories: ["ci/**"], keep_newest: 1, keep_tags: [main]}]}`,
		change: func(c *config.Config) {
			c.Storage.GC.Grace, c.Storage.RetentionInterval = time.Millisecond, 10*time.Millisecond
		},
	})
	for i, tag := range []string{"main", "b1", "b2", "b3"} {
		s.pushImage("ci/app", tag, fmt.Sprint("layer", i))
		s.pushImage("release", tag, fmt.Sprint("layer", i))
	}
	poll(t, "old tags go", func() bool {
		return s.want(200, "GET", "/v2/ci/app/tags/list", "").body == `{"name":"ci/app","tags":["b3","main"]}`
	})
	if got := s.want(200, "GET", "/v2/release/tags/list", "").body; strings.Count(got, ",") != 4 {
		t.Errorf("tags no rule is about: got %s", got)
	}
	poll(t, "the log tells", func() bool { return strings.Contains(s.log.String(), "retention removed tags") })
}

func TestGarbageJob(t *testing.T) {
	t.Parallel()
	s := start(t, setup{change: func(c *config.Config) {
		// The grace is long enough for a push to send its manifest after its blobs.
		c.Storage.GC.Grace, c.Storage.GC.Interval = 2*time.Second, 10*time.Millisecond
	}})
	d := s.pushImage("a", "v1", "layer")
	s.want(202, "DELETE", "/v2/a/manifests/"+d, "")
	poll(t, "the deleted image is collected", func() bool {
		return strings.Contains(s.do("GET", s.debug+"/metrics", "").body, "slipway_registry_gc_deleted_total 2\n")
	})
	if s.do("HEAD", "/v2/a/blobs/"+digestOf("layer"), "").status != 404 {
		t.Error("the layer is still there")
	}
}

func TestMissingPlatforms(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	platform := func(os, arch string) string {
		return fmt.Sprintf(`{"mediaType":%q,"digest":%q,"size":7,"platform":{"os":%q,"architecture":%q}}`,
			oci.MediaTypeOCIManifest, digestOf(os+arch), os, arch)
	}
	index := func(entries ...string) string {
		return fmt.Sprintf(`{"schemaVersion":2,"mediaType":%q,"manifests":[%s]}`, oci.MediaTypeOCIIndex, strings.Join(entries, ","))
	}
	amd, win := platform("linux", "amd64"), platform("windows", "amd64")
	for _, c := range []struct {
		rules    string
		amd, win int
	}{
		{"{}", 404, 404},
		{"{manifests: {indexes: {platforms: all}}}", 404, 404},
		{"{manifests: {indexes: {platforms: none}}}", 201, 201},
		{"{manifests: {indexes: {platforms: list, platformlist: [{os: linux, architecture: amd64}]}}}", 404, 201},
		{"{disabled: true}", 201, 201},
	} {
		s := start(t, setup{yaml: "validation: " + c.rules})
		for _, x := range []struct {
			entry string
			want  int
		}{{amd, c.amd}, {win, c.win}} {
			a := s.do("PUT", "/v2/a/manifests/v1", index(x.entry), header("Content-Type", oci.MediaTypeOCIIndex))
			if a.status != x.want {
				t.Errorf("validation %s, index of %s: got %d %s, want %d", c.rules, x.entry, a.status, a.body, x.want)
			}
		}
	}
}

func TestForeignURLs(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	layer := func(url string) string {
		return fmt.Sprintf(`{"schemaVersion":2,"mediaType":%q,"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":%q,"size":1},"layers":[{"mediaType":"application/vnd.oci.image.layer.nondistributable.v1.tar","digest":%q,"size":7,"urls":[%q]}]}`,
			oci.MediaTypeOCIManifest, digestOf("c"), digestOf("elsewhere"), url)
	}
	for _, c := range []struct {
		rules, url string
		want       int
	}{
		{"{}", "https://example.com/layer", 201},
		{`{allow: ["^https://good\\."]}`, "https://good.example.com/l", 201},
		{`{allow: ["^https://good\\."]}`, "https://bad.example.com/l", 400},
		{`{deny: ["bad"]}`, "https://bad.example.com/l", 400},
		{`{allow: ["^https://"], deny: ["bad"]}`, "https://fine.example.com/l", 201},
	} {
		s := start(t, setup{yaml: "validation: {manifests: {urls: " + c.rules + "}}"})
		s.pushBlob("a", "c")
		if a := s.do("PUT", "/v2/a/manifests/v1", layer(c.url), isManifest); a.status != c.want {
			t.Errorf("urls %s, %s: got %d %s, want %d", c.rules, c.url, a.status, a.body, c.want)
		}
	}
}

func TestHeaders(t *testing.T) {
	t.Parallel()
	s := start(t, setup{yaml: `http: {headers: {X-Site: [here]}}`})
	for _, path := range []string{"/v2/", "/v2/a/manifests/none", "/elsewhere"} {
		if got := s.do("GET", path, "").header.Values("X-Site"); len(got) != 1 || got[0] != "here" {
			t.Errorf("GET %s: got X-Site %q", path, got)
		}
	}
}

func TestNoCache(t *testing.T) {
	t.Parallel()
	s := start(t, setup{yaml: "storage: {memory: 0}"})
	s.pushImage("a", "v1", "layer")
	for range 3 {
		s.want(http.StatusOK, "GET", "/v2/a/manifests/v1", "")
		s.want(http.StatusOK, "GET", "/v2/a/blobs/"+digestOf("layer"), "")
	}
	if page := s.do("GET", s.debug+"/metrics", "").body; !strings.Contains(page, "\nslipway_cache_ram_bytes 0\n") {
		t.Error("storage.memory: 0 does not switch the cache off")
	}
}
