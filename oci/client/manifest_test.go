package client_test

import (
	"crypto/sha512"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/oci"
)

const index = `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[]}`

func TestGetManifest(t *testing.T) {
	ours := oci.SHA256([]byte(index))
	long := digest512(index)
	for name, tt := range map[string]struct {
		ref    string
		answer map[string]string
		body   string
		want   oci.Descriptor
		code   oci.Code
	}{
		"by tag": {ref: "v1", answer: map[string]string{"Content-Type": oci.MediaTypeOCIIndex, "Docker-Content-Digest": string(ours)}, body: index,
			want: oci.Descriptor{MediaType: oci.MediaTypeOCIIndex, Digest: ours, Size: int64(len(index))}},
		"by tag, sha512": {ref: "v1", answer: map[string]string{"Content-Type": oci.MediaTypeOCIIndex + "; charset=utf-8", "Docker-Content-Digest": string(long)}, body: index,
			want: oci.Descriptor{MediaType: oci.MediaTypeOCIIndex, Digest: long, Size: int64(len(index))}},
		"nothing told": {ref: "v1", answer: map[string]string{"Content-Type": "application/json"}, body: index,
			want: oci.Descriptor{MediaType: oci.MediaTypeOCIIndex, Digest: ours, Size: int64(len(index))}},
		"type guessed": {ref: "v1", answer: map[string]string{"Content-Type": "text/plain"}, body: `{"schemaVersion":2,"config":{}}`,
			want: oci.Descriptor{MediaType: oci.MediaTypeOCIManifest, Digest: oci.SHA256([]byte(`{"schemaVersion":2,"config":{}}`)), Size: 31}},
		"by digest": {ref: string(long), answer: map[string]string{"Content-Type": oci.MediaTypeOCIIndex, "Docker-Content-Digest": string(ours)}, body: index,
			want: oci.Descriptor{MediaType: oci.MediaTypeOCIIndex, Digest: long, Size: int64(len(index))}},
		"wrong by digest":   {ref: string(ours), answer: map[string]string{"Content-Type": oci.MediaTypeOCIIndex}, body: index + " ", code: oci.CodeDigestInvalid},
		"wrong by tag":      {ref: "v1", answer: map[string]string{"Content-Type": oci.MediaTypeOCIIndex, "Docker-Content-Digest": string(ours)}, body: index + " ", code: oci.CodeDigestInvalid},
		"two types":         {ref: "v1", answer: map[string]string{"Content-Type": oci.MediaTypeOCIManifest}, body: index, code: oci.CodeManifestInvalid},
		"no type":           {ref: "v1", answer: map[string]string{"Content-Type": "text/html"}, body: "<html>", code: oci.CodeManifestInvalid},
		"beyond all limits": {ref: "v1", answer: map[string]string{"Content-Type": oci.MediaTypeOCIIndex}, body: strings.Repeat(" ", oci.MaxManifestSize+1), code: oci.CodeSizeInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, func(w http.ResponseWriter, r *http.Request) {
				if !strings.Contains(r.Header.Get("Accept"), oci.MediaTypeDockerIndex) {
					t.Errorf("got Accept %q", r.Header.Get("Accept"))
				}
				for k, v := range tt.answer {
					w.Header().Set(k, v)
				}
				_, _ = io.WriteString(w, tt.body)
			})
			m, err := dial(t, s.URL, nil).GetManifest(t.Context(), "a", tt.ref)
			if tt.code != "" {
				wantCode(t, err, tt.code)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, m.Descriptor); diff != "" {
				t.Errorf("descriptor (-want +got):\n%s", diff)
			}
		})
	}
}

func digest512(s string) oci.Digest {
	return oci.Digest(fmt.Sprintf("sha512:%x", sha512.Sum512([]byte(s))))
}

func TestResolveManifest(t *testing.T) {
	ours := oci.SHA256([]byte(index))
	want := oci.Descriptor{MediaType: oci.MediaTypeOCIIndex, Digest: ours, Size: int64(len(index))}
	for name, tt := range map[string]struct {
		ref      string
		head     int
		answer   map[string]string
		requests int
	}{
		"all told":       {"v1", 200, map[string]string{"Content-Type": oci.MediaTypeOCIIndex, "Docker-Content-Digest": string(ours)}, 1},
		"no HEAD":        {"v1", 405, nil, 2},
		"no digest":      {"v1", 200, map[string]string{"Content-Type": oci.MediaTypeOCIIndex}, 2},
		"digest known":   {string(ours), 200, map[string]string{"Content-Type": oci.MediaTypeOCIIndex}, 1},
		"no type":        {string(ours), 200, nil, 2},
		"another digest": {string(ours), 200, map[string]string{"Content-Type": oci.MediaTypeOCIIndex, "Docker-Content-Digest": string(digest)}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodHead {
					w.Header().Set("Content-Type", "application/json")
					for k, v := range tt.answer {
						w.Header().Set(k, v)
					}
					w.Header().Set("Content-Length", fmt.Sprint(len(index)))
					w.WriteHeader(tt.head)
					return
				}
				w.Header().Set("Content-Type", oci.MediaTypeOCIIndex)
				_, _ = io.WriteString(w, index)
			})
			got, err := dial(t, s.URL, nil).ResolveManifest(t.Context(), "a", tt.ref)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("descriptor (-want +got):\n%s", diff)
			}
			if n := len(s.requests()); n != tt.requests {
				t.Errorf("got %d requests, want %d", n, tt.requests)
			}
		})
	}
}

func TestPutManifestTags(t *testing.T) {
	d := string(oci.SHA256([]byte(index)))
	for name, tt := range map[string]struct {
		tags   []string
		digest bool
		told   []string // OCI-Tag headers of the answer
		want   []string // expected requests
	}{
		"none":            {want: []string{"PUT /v2/a/manifests/" + d}},
		"one":             {tags: []string{"x"}, want: []string{"PUT /v2/a/manifests/x"}},
		"one with digest": {tags: []string{"x"}, digest: true, told: []string{"x"}, want: []string{"PUT /v2/a/manifests/" + d + "?tag=x"}},
		"two taken":       {tags: []string{"x", "y"}, told: []string{"y", "x"}, want: []string{"PUT /v2/a/manifests/" + d + "?tag=x&tag=y"}},
		"one taken":       {tags: []string{"x", "y"}, told: []string{"y"}, want: []string{"PUT /v2/a/manifests/" + d + "?tag=x&tag=y", "PUT /v2/a/manifests/x"}},
		"none taken":      {tags: []string{"x", "y"}, want: []string{"PUT /v2/a/manifests/" + d + "?tag=x&tag=y", "PUT /v2/a/manifests/x", "PUT /v2/a/manifests/y"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.RawQuery != "" {
					w.Header()["Oci-Tag"] = tt.told
				}
				if got := r.Header.Get("Content-Type"); got != oci.MediaTypeOCIIndex {
					t.Errorf("got Content-Type %q", got)
				}
				w.WriteHeader(http.StatusCreated)
			})
			put := oci.PutManifest{Bytes: []byte(index), Tags: tt.tags}
			if tt.digest {
				put.Digest = oci.Digest(d)
			}
			res, err := dial(t, s.URL, nil).PutManifest(t.Context(), "a", put)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, s.requests()); diff != "" {
				t.Errorf("requests (-want +got):\n%s", diff)
			}
			if len(res.Tags) != len(tt.tags) || string(res.Digest) != d || res.MediaType != oci.MediaTypeOCIIndex {
				t.Errorf("got %+v", res)
			}
		})
	}
}

func TestPutManifestRefuses(t *testing.T) {
	c := dial(t, serve(t, func(w http.ResponseWriter, r *http.Request) { t.Error("a request was made") }).URL, nil)
	_, err := c.PutManifest(t.Context(), "a", oci.PutManifest{Bytes: []byte(index), Digest: digest})
	wantCode(t, err, oci.CodeDigestInvalid)
	_, err = c.PutManifest(t.Context(), "a", oci.PutManifest{Bytes: make([]byte, oci.MaxManifestSize+1)})
	wantCode(t, err, oci.CodeSizeInvalid)
	_, err = c.PutManifest(t.Context(), "a", oci.PutManifest{Bytes: []byte("{}")})
	wantCode(t, err, oci.CodeManifestInvalid)
}

const signature = `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{"mediaType":"application/x-sig","digest":"` +
	string(digest) + `","size":5},"layers":[],"subject":{"mediaType":"application/x","digest":"` + string(digest) + `","size":5},"annotations":{"k":"v"}}`

func TestSubject(t *testing.T) {
	put := oci.PutManifest{Bytes: []byte(signature)}
	at := "/v2/a/manifests/" + string(oci.SHA256([]byte(signature)))
	t.Run("kept by the registry", func(t *testing.T) {
		s := script{{method: "PUT", uri: at, body: signature, status: 201, answer: map[string]string{"OCI-Subject": string(digest)}}}.serve(t)
		res, err := dial(t, s.URL, nil).PutManifest(t.Context(), "a", put)
		if err != nil || res.Subject != digest {
			t.Errorf("got %+v, %v", res, err)
		}
	})
	t.Run("kept by the client", func(t *testing.T) {
		var kept string
		tag := "/v2/a/manifests/" + strings.Replace(string(digest), ":", "-", 1)
		s := serve(t, func(w http.ResponseWriter, r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			switch {
			case r.Method == http.MethodPut && r.URL.Path == tag:
				kept = string(b)
				w.WriteHeader(http.StatusCreated)
			case r.Method == http.MethodPut:
				w.WriteHeader(http.StatusCreated)
			case r.URL.Path == tag && kept != "":
				w.Header().Set("Content-Type", oci.MediaTypeOCIIndex)
				_, _ = io.WriteString(w, kept)
			default:
				w.WriteHeader(http.StatusNotFound)
			}
		})
		c, ctx := dial(t, s.URL, nil), t.Context()
		another := put
		another.Bytes = []byte(signature + "\n")
		for _, p := range []oci.PutManifest{put, put, another} {
			res, err := c.PutManifest(ctx, "a", p)
			if err != nil || res.Subject != digest {
				t.Fatalf("got %+v, %v", res, err)
			}
		}
		want := []oci.Descriptor{
			{MediaType: oci.MediaTypeOCIManifest, Digest: oci.SHA256(put.Bytes), Size: int64(len(put.Bytes)), ArtifactType: "application/x-sig", Annotations: map[string]string{"k": "v"}},
			{MediaType: oci.MediaTypeOCIManifest, Digest: oci.SHA256(another.Bytes), Size: int64(len(another.Bytes)), ArtifactType: "application/x-sig", Annotations: map[string]string{"k": "v"}},
		}
		slices.SortFunc(want, func(a, b oci.Descriptor) int { return strings.Compare(string(a.Digest), string(b.Digest)) })
		for artifactType, want := range map[string][]oci.Descriptor{"": want, "application/x-sig": want, "application/other": nil} {
			got, _, err := c.Referrers(ctx, "a", digest, artifactType, "", 10)
			if err != nil {
				t.Fatal(err)
			}
			if len(got) == 0 && len(want) == 0 {
				continue
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("referrers of type %q (-want +got):\n%s", artifactType, diff)
			}
		}
	})
}

func TestReferrersAPI(t *testing.T) {
	entries := 0
	page := func(types ...string) string {
		var list []oci.Descriptor
		for _, typ := range types {
			entries++
			list = append(list, oci.Descriptor{MediaType: oci.MediaTypeOCIManifest, Digest: oci.SHA256(fmt.Append(nil, entries)), Size: 1, ArtifactType: typ})
		}
		b, err := json.Marshal(map[string]any{"schemaVersion": 2, "manifests": list})
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	at := "/v2/a/referrers/" + string(digest) + "?artifactType=x%2Fsig"
	index := map[string]string{"Content-Type": oci.MediaTypeOCIIndex}
	filtered := map[string]string{"Content-Type": oci.MediaTypeOCIIndex, "OCI-Filters-Applied": "artifactType"}
	next := map[string]string{"Content-Type": oci.MediaTypeOCIIndex, "Link": `<` + at + `&last=1>; rel="next"`}
	for name, tt := range map[string]struct {
		script script
		want   int
	}{
		"filtered here":  {script{{method: "GET", uri: at, status: 200, answer: index, text: page("x/sig", "y")}}, 1},
		"filtered there": {script{{method: "GET", uri: at, status: 200, answer: filtered, text: page("x/sig", "x/sig")}}, 2},
		"pages": {script{
			{method: "GET", uri: at, status: 200, answer: next, text: page("x/sig")},
			{method: "GET", uri: at + "&last=1", status: 200, answer: index, text: page("y", "x/sig")},
		}, 2},
		"none": {script{{method: "GET", uri: at, status: 200, answer: index, text: page()}}, 0},
		"a web page": {script{
			{method: "GET", uri: at, status: 200, answer: map[string]string{"Content-Type": "text/html"}, text: "<html>"},
			{method: "GET", uri: "/v2/a/manifests/" + strings.Replace(string(digest), ":", "-", 1), status: 404},
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			got, more, err := dial(t, tt.script.serve(t).URL, nil).Referrers(t.Context(), "a", digest, "x/sig", "", 10)
			if err != nil || more || len(got) != tt.want {
				t.Errorf("got %+v, %v, %v, want %d", got, more, err, tt.want)
			}
		})
	}
}

// TestReferrersPage checks that pages are sorted by digest, whatever order the registry
// lists in.
func TestReferrersPage(t *testing.T) {
	var list []oci.Descriptor
	for _, i := range []string{"3", "1", "2", "1"} {
		list = append(list, oci.Descriptor{MediaType: "m", Digest: oci.Digest("sha256:" + strings.Repeat(i, 64)), Size: 1})
	}
	b, err := json.Marshal(map[string]any{"schemaVersion": 2, "manifests": list})
	if err != nil {
		t.Fatal(err)
	}
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", oci.MediaTypeOCIIndex)
		_, _ = w.Write(b)
	})
	for _, tt := range []struct {
		last string
		n    int
		want string
		more bool
	}{
		{"", 10, "123", false}, {"", 3, "123", false}, {"", 2, "12", true}, {string(list[1].Digest), 1, "2", true},
		{"sha256:15", 5, "23", false}, {string(list[0].Digest), 5, "", false}, {"", 0, "", false},
	} {
		page, more, err := dial(t, s.URL, nil).Referrers(t.Context(), "a", digest, "", tt.last, tt.n)
		got := ""
		for _, d := range page {
			got += string(d.Digest[len("sha256:")])
		}
		if err != nil || got != tt.want || more != tt.more {
			t.Errorf("%d behind %q: got %q, %v, %v", tt.n, tt.last, got, more, err)
		}
	}
}

func TestLists(t *testing.T) {
	link := func(to string) map[string]string { return map[string]string{"Link": "<" + to + `>; rel="next"`} }
	for name, tt := range map[string]struct {
		script script
		last   string
		n      int
		want   []string
		more   bool
	}{
		"whole": {script: script{{method: "GET", uri: "/v2/a/tags/list?n=10", status: 200, text: `{"tags":["b","a"]}`}}, n: 10, want: []string{"a", "b"}},
		"page": {script: script{{method: "GET", uri: "/v2/a/tags/list?last=a&n=2", status: 200, text: `{"tags":["b","c"]}`, answer: link("/v2/a/tags/list?last=c&n=2")}},
			last: "a", n: 2, want: []string{"b", "c"}, more: true},
		"neither n nor last are looked at": {script: script{{method: "GET", uri: "/v2/a/tags/list?last=a&n=2", status: 200, text: `{"tags":["d","a","c","b"]}`}},
			last: "a", n: 2, want: []string{"b", "c"}, more: true},
		"last is not looked at": {script: script{{method: "GET", uri: "/v2/a/tags/list?last=a&n=9", status: 200, text: `{"tags":["a","b"]}`}},
			last: "a", n: 9, want: []string{"b"}},
		"empty page": {script: script{
			{method: "GET", uri: "/v2/a/tags/list?n=2", status: 200, text: `{"tags":[]}`, answer: link("list?last=x")},
			{method: "GET", uri: "/v2/a/tags/list?last=x", status: 200, text: `{"tags":["y"]}`},
		}, n: 2, want: []string{"y"}},
		"no tags": {script: script{{method: "GET", uri: "/v2/a/tags/list?n=2", status: 200, text: `{"tags":null}`}}, n: 2},
	} {
		t.Run(name, func(t *testing.T) {
			got, more, err := dial(t, tt.script.serve(t).URL, nil).Tags(t.Context(), "a", tt.last, tt.n)
			if err != nil {
				t.Fatal(err)
			}
			if len(got) != 0 || len(tt.want) != 0 {
				if diff := cmp.Diff(tt.want, got); diff != "" {
					t.Errorf("tags (-want +got):\n%s", diff)
				}
			}
			if more != tt.more {
				t.Errorf("got more=%t, want %t", more, tt.more)
			}
		})
	}
	t.Run("repositories in the registry's order", func(t *testing.T) {
		s := script{{method: "GET", uri: "/v2/_catalog?last=a&n=2", status: 200, text: `{"repositories":["a/b","a-b"]}`, answer: link("/v2/_catalog?last=a-b&n=2")}}.serve(t)
		got, more, err := dial(t, s.URL, nil).Repositories(t.Context(), "a", 2)
		if err != nil || !more {
			t.Fatalf("got more=%t, %v", more, err)
		}
		if diff := cmp.Diff([]string{"a/b", "a-b"}, got); diff != "" {
			t.Errorf("repositories (-want +got):\n%s", diff)
		}
	})
	// A registry behind a proxy may know neither its host nor the path that clients use. The
	// second link has a page of its own kind, and follows an empty page, so it is followed.
	for _, inside := range []string{"http://inside.example:5000", "https://inside.example/docker"} {
		t.Run("link to another host", func(t *testing.T) {
			s := script{
				{method: "GET", uri: "/v2/_catalog?n=2", status: 200, text: `{"repositories":["a"]}`, answer: link(inside + "/v2/_catalog?last=a&n=2")},
				{method: "GET", uri: "/v2/_catalog?last=a&n=2", status: 200, text: `{"repositories":[]}`, answer: link(inside + "/v2/_catalog?page=3")},
				{method: "GET", uri: "/v2/_catalog?page=3", status: 200, text: `{"repositories":["b"]}`},
			}.serve(t)
			c := dial(t, s.URL, nil)
			for i, want := range [][]string{{"a"}, {"b"}} {
				got, more, err := c.Repositories(t.Context(), []string{"", "a"}[i], 2)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(want, got); diff != "" || more != (i == 0) {
					t.Errorf("page %d: more=%t, repositories (-want +got):\n%s", i+1, more, diff)
				}
			}
		})
	}
}
