package server_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"

	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/server"
)

// exchange is a request on the wire and its answer.
type exchange struct {
	name           string
	method, target string
	headers        []string
	body           string
	status         int
	code           oci.Code          // of an error
	want           map[string]string // headers
	wantBody       string            // not looked at when empty
}

// run sends the exchanges over one connection, which must survive all of them, errors included.
func (b *bed) run(t *testing.T, list []exchange) {
	t.Helper()
	c := b.dial()
	for _, e := range list {
		var body []byte
		if e.body != "" {
			body = []byte(e.body)
		}
		name := fmt.Sprintf("%s: %s %.100s", e.name, e.method, e.target)
		got := c.ask(e.method, e.target, body, e.headers...)
		if e.code != "" && e.method != http.MethodHead {
			got.wantError(t, name, e.status, e.code)
		}
		got.want(t, name, e.status, e.want)
		if e.wantBody != "" && string(got.Body) != e.wantBody {
			t.Errorf("%s: got body %.300q, want %.300q", name, got.Body, e.wantBody)
		}
		if e.method == http.MethodHead && len(got.Body) > 0 {
			t.Errorf("%s: the answer has a body", name)
		}
		if v := got.Header.Get("Docker-Distribution-Api-Version"); strings.HasPrefix(e.target, "/v2") && v != "registry/2.0" {
			t.Errorf("%s: API version %q", name, v)
		}
	}
}

// rangeExchanges returns range and conditional requests for a content of the digits 0 to 9. whole
// are the headers of the whole content.
func rangeExchanges(target, etag string, whole map[string]string) []exchange {
	const data = "0123456789"
	part := func(v string, n int) map[string]string {
		return map[string]string{"Content-Range": "bytes " + v + "/10", "Content-Length": fmt.Sprint(n), "Docker-Content-Digest": whole["Docker-Content-Digest"]}
	}
	bad := map[string]string{"Content-Range": "bytes */10"}
	get := func(name, header string, status int, want map[string]string, body string) exchange {
		e := exchange{name: name, method: "GET", target: target, headers: []string{header}, status: status, want: want, wantBody: body}
		if status == 416 {
			e.code = oci.CodeRangeInvalid
		}
		return e
	}
	return []exchange{
		{name: "whole", method: "GET", target: target, status: 200, want: whole, wantBody: data},
		{name: "head", method: "HEAD", target: target, status: 200, want: whole},
		get("first byte", "Range: bytes=0-0", 206, part("0-0", 1), "0"),
		get("middle", "Range: bytes=2-4", 206, part("2-4", 3), "234"),
		get("to the end", "Range: bytes=7-", 206, part("7-9", 3), "789"),
		get("beyond the end", "Range: bytes=7-99", 206, part("7-9", 3), "789"),
		get("far beyond the end", "Range: bytes=7-999999999999999999", 206, part("7-9", 3), "789"),
		get("suffix", "Range: bytes=-3", 206, part("7-9", 3), "789"),
		get("long suffix", "Range: bytes=-99", 206, part("0-9", 10), data),
		get("spaces around", "Range: bytes= 1-2 ", 206, part("1-2", 2), "12"),
		get("behind the end", "Range: bytes=10-", 416, bad, ""),
		get("far behind the end", "Range: bytes=999999999999999999-", 416, bad, ""),
		get("no suffix", "Range: bytes=-0", 416, bad, ""),
		get("backwards", "Range: bytes=5-3", 416, bad, ""),
		get("two ranges", "Range: bytes=0-0,2-3", 200, whole, data),
		get("another unit", "Range: lines=0-1", 200, whole, data),
		get("no number", "Range: bytes=a-b", 200, whole, data),
		get("a sign", "Range: bytes=+1-2", 200, whole, data),
		get("two signs", "Range: bytes=--2", 200, whole, data),
		get("an overflow", "Range: bytes=4-99999999999999999999999", 206, part("4-9", 6), "456789"),
		get("the largest number of 64 bits", "Range: bytes=7-9223372036854775807", 206, part("7-9", 3), "789"),
		get("an overflow behind the end", "Range: bytes=99999999999999999999999-", 416, bad, ""),
		get("an immense suffix", "Range: bytes=-99999999999999999999999", 206, part("0-9", 10), data),
		get("a unit in capitals", "Range: BYTES=0-0", 206, part("0-0", 1), "0"),
		get("no range", "Range: bytes=", 200, whole, data),
		get("only a dash", "Range: bytes=-", 200, whole, data),

		get("if-range holds", "Range: bytes=0-0\r\nIf-Range: "+etag, 206, part("0-0", 1), "0"),
		get("if-range fails", "Range: bytes=0-0\r\nIf-Range: \"other\"", 200, whole, data),
		get("if-range is weak", "Range: bytes=0-0\r\nIf-Range: W/"+etag, 200, whole, data),
		get("if-range is a date", "Range: bytes=0-0\r\nIf-Range: Wed, 21 Oct 2015 07:28:00 GMT", 200, whole, data),
		get("if-range fails, bad range", "Range: bytes=99-\r\nIf-Range: \"other\"", 200, whole, data),

		get("if-none-match holds", "If-None-Match: \"x\", W/"+etag, 304, map[string]string{"Etag": etag, "Content-Length": ""}, ""),
		get("if-none-match, any", "If-None-Match: *", 304, nil, ""),
		get("if-none-match fails", "If-None-Match: \"x\"", 200, whole, data),
		get("if-none-match before range", "If-None-Match: "+etag+"\r\nRange: bytes=99-", 304, nil, ""),
		{name: "head, if-none-match", method: "HEAD", target: target, headers: []string{"If-None-Match: " + etag}, status: 304},
	}
}

func TestBlobExchanges(t *testing.T) {
	b := newBed(t, setup{})
	data := random(1, 100_000)
	d := b.push("a/b", data)
	small := b.push("a/b", []byte("0123456789"))
	empty := b.push("a/b", nil)
	path, smallPath := "/v2/a/b/blobs/"+string(d), "/v2/a/b/blobs/"+string(small)
	etag := `"` + string(small) + `"`
	whole := map[string]string{"Content-Length": "10", "Docker-Content-Digest": string(small), "Etag": etag,
		"Content-Type": "application/octet-stream", "Accept-Ranges": "bytes", "Content-Range": "", "X-Content-Type-Options": "nosniff"}
	b.run(t, append(rangeExchanges(smallPath, etag, whole), []exchange{
		{name: "large", method: "GET", target: path, status: 200, want: map[string]string{"Content-Length": "100000"}, wantBody: string(data)},
		{name: "empty", method: "GET", target: "/v2/a/b/blobs/" + string(empty), status: 200, want: map[string]string{"Content-Length": "0"}},
		{name: "empty, range", method: "GET", target: "/v2/a/b/blobs/" + string(empty), headers: []string{"Range: bytes=0-"}, status: 200, want: map[string]string{"Content-Length": "0", "Content-Range": ""}},
		{name: "large, range", method: "GET", target: path, headers: []string{"Range: bytes=65530-70000"}, status: 206, wantBody: string(data[65530:70001]),
			want: map[string]string{"Content-Range": "bytes 65530-70000/100000", "Content-Length": "4471"}},

		{name: "unknown", method: "GET", target: "/v2/a/b/blobs/" + string(oci.SHA256([]byte("?"))), status: 404, code: oci.CodeBlobUnknown},
		{name: "unknown, head", method: "HEAD", target: "/v2/a/b/blobs/" + string(oci.SHA256([]byte("?"))), status: 404, code: oci.CodeBlobUnknown},
		{name: "unknown, range", method: "GET", target: "/v2/a/b/blobs/" + string(oci.SHA256([]byte("?"))), headers: []string{"Range: bytes=0-0"}, status: 404, code: oci.CodeBlobUnknown},
		{name: "unknown, any", method: "GET", target: "/v2/a/b/blobs/" + string(oci.SHA256([]byte("?"))), headers: []string{"If-None-Match: *"}, status: 404, code: oci.CodeBlobUnknown},
		{name: "elsewhere", method: "GET", target: "/v2/a/c/blobs/" + string(d), status: 404, code: oci.CodeBlobUnknown},
		{name: "malformed digest", method: "GET", target: "/v2/a/b/blobs/sha256:abc", status: 400, code: oci.CodeDigestInvalid},
		{name: "upper-case digest", method: "GET", target: "/v2/a/b/blobs/" + strings.ToUpper(string(d)), status: 400, code: oci.CodeDigestInvalid},
		{name: "encoded colon", method: "GET", target: strings.Replace(smallPath, "sha256:", "sha256%3A", 1), status: 200, wantBody: "0123456789"},

		{name: "delete", method: "DELETE", target: smallPath, status: 202, want: map[string]string{"Content-Length": "0"}},
		{name: "deleted", method: "GET", target: smallPath, status: 404, code: oci.CodeBlobUnknown},
		{name: "delete again", method: "DELETE", target: smallPath, status: 404, code: oci.CodeBlobUnknown},
	}...))
}

// TestRangesAreThoseOfNetHTTP checks that ranges are answered as net/http answers them for a file.
// There are two exceptions, where RFC 9110 leaves the choice: several ranges at once and invalid
// ranges get the whole content.
func TestRangesAreThoseOfNetHTTP(t *testing.T) {
	b := newBed(t, setup{})
	c := b.dial()
	for _, size := range []int64{0, 1, 10} {
		content := "0123456789"[:size]
		d := b.push("a", []byte(content))
		var specs []string
		for _, first := range []string{"", "0", "1", "9", "10", "999999999999999999"} {
			for _, last := range []string{"", "0", "1", "8", "9", "10", "999999999999999999"} {
				if first == "" && (last == "" || last == "0" || size == 0) {
					continue // no range, or one of the last 0 bytes, for which net/http answers with an empty part
				}
				if size == 0 && last != "" && (len(last) < len(first) || len(last) == len(first) && last < first) {
					continue // backwards, and the content is empty: the server refuses no range of an empty content
				}
				specs = append(specs, first+"-"+last)
			}
		}
		for _, spec := range specs {
			r := httptest.NewRequest("GET", "/", nil)
			r.Header.Set("Range", "bytes="+spec)
			w := httptest.NewRecorder()
			w.Header().Set("Content-Type", oci.MediaTypeOctetStream)
			http.ServeContent(w, r, "", time.Time{}, strings.NewReader(content))
			got := c.ask("GET", "/v2/a/blobs/"+string(d), nil, "Range: bytes="+spec)
			name := fmt.Sprintf("bytes=%s of %d", spec, size)
			want := map[string]string{"Content-Range": w.Header().Get("Content-Range")}
			if w.Code == http.StatusRequestedRangeNotSatisfiable {
				want["Content-Range"] = fmt.Sprintf("bytes */%d", size) // net/http leaves it out for ranges it cannot parse
			} else if string(got.Body) != w.Body.String() {
				t.Errorf("%s: got body %q, want %q", name, got.Body, w.Body)
			}
			got.want(t, name, w.Code, want)
		}
	}
}

func TestUploadExchanges(t *testing.T) {
	b := newBed(t, setup{})
	d, wrong := oci.SHA256([]byte("0123456789")), oci.SHA256([]byte("wrong"))
	c := b.dial()
	start := func() string {
		t.Helper()
		a := c.ask("POST", "/v2/a/b/blobs/uploads/", []byte{})
		a.want(t, "start", 202, map[string]string{"Range": "0-0", "Content-Length": "0", "Oci-Chunk-Min-Length": ""})
		loc := a.Header.Get("Location")
		if loc != "/v2/a/b/blobs/uploads/"+a.Header.Get("Docker-Upload-Uuid") {
			t.Fatalf("start: got Location %q and id %q", loc, a.Header.Get("Docker-Upload-Uuid"))
		}
		return loc
	}
	created := map[string]string{"Location": "/v2/a/b/blobs/" + string(d), "Docker-Content-Digest": string(d), "Content-Length": "0"}

	loc := start()
	b.run(t, []exchange{
		{name: "status", method: "GET", target: loc, status: 204, want: map[string]string{"Location": loc, "Range": "0-0"}},
		{name: "status, head", method: "HEAD", target: loc, status: 204, want: map[string]string{"Location": loc, "Range": "0-0", "Docker-Upload-Uuid": loc[strings.LastIndex(loc, "/")+1:]}},
		{name: "chunk", method: "PATCH", target: loc, headers: []string{"Content-Range: 0-3"}, body: "0123", status: 202, want: map[string]string{"Location": loc, "Range": "0-3"}},
		{name: "chunk again", method: "PATCH", target: loc, headers: []string{"Content-Range: 0-3"}, body: "0123", status: 416, code: oci.CodeRangeInvalid, want: map[string]string{"Location": loc, "Range": "0-3"}},
		{name: "gap", method: "PATCH", target: loc, headers: []string{"Content-Range: 5-6"}, body: "56", status: 416, code: oci.CodeRangeInvalid},
		{name: "gap at the end", method: "PUT", target: loc + "?digest=" + string(d), headers: []string{"Content-Range: 5-9"}, body: "56789", status: 416, code: oci.CodeRangeInvalid},
		{name: "range is not the length", method: "PATCH", target: loc, headers: []string{"Content-Range: 4-9"}, body: "45", status: 400, code: oci.CodeSizeInvalid},
		{name: "malformed range", method: "PATCH", target: loc, headers: []string{"Content-Range: four-five"}, body: "45", status: 416, code: oci.CodeRangeInvalid},
		{name: "backward range", method: "PATCH", target: loc, headers: []string{"Content-Range: 5-4"}, body: "45", status: 416, code: oci.CodeRangeInvalid},
		{name: "status still", method: "GET", target: loc, status: 204, want: map[string]string{"Range": "0-3"}},
		{name: "chunk in the form of RFC 9110", method: "PATCH", target: loc, headers: []string{"Content-Range: bytes 4-5/10"}, body: "45", status: 202, want: map[string]string{"Range": "0-5"}},
		{name: "chunk without a range", method: "PATCH", target: loc, body: "67", status: 202, want: map[string]string{"Range": "0-7"}},
		{name: "empty chunk", method: "PATCH", target: loc, headers: []string{"Content-Length: 0"}, status: 202, want: map[string]string{"Range": "0-7"}},
		{name: "end without digest", method: "PUT", target: loc, body: "89", status: 400, code: oci.CodeDigestInvalid},
		{name: "end with a malformed digest", method: "PUT", target: loc + "?digest=sha256:abc", body: "89", status: 400, code: oci.CodeDigestInvalid},
		{name: "end", method: "PUT", target: loc + "?digest=" + string(d), headers: []string{"Content-Range: 8-9"}, body: "89", status: 201, want: created},
		{name: "end again", method: "PUT", target: loc + "?digest=" + string(d), headers: []string{"Content-Length: 0"}, status: 404, code: oci.CodeBlobUploadUnknown},
		{name: "head of what ended", method: "HEAD", target: loc, status: 404, code: oci.CodeBlobUploadUnknown},
		{name: "status of what ended", method: "GET", target: loc, status: 404, code: oci.CodeBlobUploadUnknown},
		{name: "the blob", method: "GET", target: "/v2/a/b/blobs/" + string(d), status: 200, wantBody: "0123456789"},
	})
	loc = start()
	b.run(t, []exchange{
		{name: "wrong digest", method: "PUT", target: loc + "?digest=" + string(wrong), body: "0123456789", status: 400, code: oci.CodeDigestInvalid},
		{name: "gone", method: "GET", target: loc, status: 404, code: oci.CodeBlobUploadUnknown},
		{name: "no blob", method: "HEAD", target: "/v2/a/b/blobs/" + string(wrong), status: 404, code: oci.CodeBlobUnknown},
	})
	loc = start()
	b.run(t, []exchange{
		{name: "cancel", method: "DELETE", target: loc, status: 204},
		{name: "cancel again", method: "DELETE", target: loc, status: 404, code: oci.CodeBlobUploadUnknown},
		{name: "append to what was cancelled", method: "PATCH", target: loc, body: "x", status: 404, code: oci.CodeBlobUploadUnknown},
		{name: "no such upload", method: "PATCH", target: "/v2/a/b/blobs/uploads/none", body: "x", status: 404, code: oci.CodeBlobUploadUnknown},
	})
	loc = start()
	b.run(t, []exchange{
		{name: "another repository", method: "GET", target: strings.Replace(loc, "/a/b/", "/a/c/", 1), status: 404, code: oci.CodeBlobUploadUnknown},
		{name: "all in one PUT", method: "PUT", target: loc + "?digest=" + string(d), body: "0123456789", status: 201, want: created},
		{name: "single POST", method: "POST", target: "/v2/a/b/blobs/uploads/?digest=" + string(d), body: "0123456789", status: 201, want: created},
		{name: "single POST, no closing slash", method: "POST", target: "/v2/a/b/blobs/uploads?digest=" + string(d), body: "0123456789", status: 201, want: created},
		{name: "single POST, wrong digest", method: "POST", target: "/v2/a/b/blobs/uploads/?digest=" + string(wrong), body: "0123456789", status: 400, code: oci.CodeDigestInvalid},
		{name: "single POST, malformed digest", method: "POST", target: "/v2/a/b/blobs/uploads/?digest=x", body: "0123456789", status: 400, code: oci.CodeDigestInvalid},
		{name: "mount", method: "POST", target: "/v2/a/d/blobs/uploads/?mount=" + string(d) + "&from=a/b", headers: []string{"Content-Length: 0"}, status: 201,
			want: map[string]string{"Location": "/v2/a/d/blobs/" + string(d), "Docker-Content-Digest": string(d)}},
		{name: "mount of what is not there", method: "POST", target: "/v2/a/d/blobs/uploads/?mount=" + string(wrong) + "&from=a/b", headers: []string{"Content-Length: 0"}, status: 202},
		{name: "mount from nowhere", method: "POST", target: "/v2/a/d/blobs/uploads/?mount=" + string(d), headers: []string{"Content-Length: 0"}, status: 202},
		{name: "mount from an impossible name", method: "POST", target: "/v2/a/d/blobs/uploads/?mount=" + string(d) + "&from=../A", headers: []string{"Content-Length: 0"}, status: 202},
		{name: "malformed mount", method: "POST", target: "/v2/a/d/blobs/uploads/?mount=x&from=a/b", headers: []string{"Content-Length: 0"}, status: 400, code: oci.CodeDigestInvalid},
	})
}

func TestManifestExchanges(t *testing.T) {
	b := newBed(t, setup{})
	raw := string(b.imageJSON("a/b", 1))
	d := string(oci.SHA256([]byte(raw)))
	missing := strings.Replace(raw, `"layers":[]`, `"layers":[{"mediaType":"x","digest":"`+string(oci.SHA256([]byte("?")))+`","size":1}]`, 1)
	withSubject := strings.Replace(raw, `"layers":[]`, `"layers":[],"subject":{"mediaType":"`+oci.MediaTypeOCIManifest+`","digest":"`+d+`","size":1}`, 1)
	contentType := "Content-Type: " + oci.MediaTypeOCIManifest
	whole := map[string]string{"Content-Type": oci.MediaTypeOCIManifest, "Docker-Content-Digest": d, "Content-Length": fmt.Sprint(len(raw)), "Etag": `"` + d + `"`}
	created := map[string]string{"Location": "/v2/a/b/manifests/" + d, "Docker-Content-Digest": d, "Oci-Subject": "", "Content-Length": "0"}
	b.run(t, []exchange{
		{name: "no repository yet", method: "GET", target: "/v2/none/manifests/x", status: 404, code: oci.CodeManifestUnknown},
		{name: "put", method: "PUT", target: "/v2/a/b/manifests/latest", headers: []string{contentType}, body: raw, status: 201, want: created},
		{name: "put without a type", method: "PUT", target: "/v2/a/b/manifests/latest", body: raw, status: 201, want: created},
		{name: "get", method: "GET", target: "/v2/a/b/manifests/latest", status: 200, want: whole, wantBody: raw},
		{name: "head", method: "HEAD", target: "/v2/a/b/manifests/latest", status: 200, want: whole},
		{name: "get by digest", method: "GET", target: "/v2/a/b/manifests/" + d, status: 200, want: whole, wantBody: raw},
		{name: "conditional", method: "GET", target: "/v2/a/b/manifests/latest", headers: []string{`If-None-Match: "` + d + `"`}, status: 304, want: map[string]string{"Docker-Content-Digest": d}},
		{name: "conditional head", method: "HEAD", target: "/v2/a/b/manifests/latest", headers: []string{`If-None-Match: "` + d + `"`}, status: 304},
		{name: "accept something else", method: "GET", target: "/v2/a/b/manifests/latest", headers: []string{"Accept: text/html"}, status: 200, wantBody: raw},
		{name: "unknown tag", method: "GET", target: "/v2/a/b/manifests/none", status: 404, code: oci.CodeManifestUnknown},
		{name: "impossible tag", method: "GET", target: "/v2/a/b/manifests/-x", status: 404, code: oci.CodeManifestUnknown},
		{name: "no reference", method: "GET", target: "/v2/a/b/manifests/", status: 404, code: oci.CodeManifestUnknown},
		{name: "malformed digest", method: "GET", target: "/v2/a/b/manifests/sha256:x", status: 400, code: oci.CodeDigestInvalid},
		{name: "put to an impossible tag", method: "PUT", target: "/v2/a/b/manifests/-x", headers: []string{contentType}, body: raw, status: 400, code: oci.CodeTagInvalid},
		{name: "put to an overlong tag", method: "PUT", target: "/v2/a/b/manifests/" + strings.Repeat("x", 129), headers: []string{contentType}, body: raw, status: 400, code: oci.CodeTagInvalid},
		{name: "put under another digest", method: "PUT", target: "/v2/a/b/manifests/" + string(oci.SHA256(nil)), headers: []string{contentType}, body: raw, status: 400, code: oci.CodeDigestInvalid},
		{name: "put no JSON", method: "PUT", target: "/v2/a/b/manifests/x", headers: []string{contentType}, body: "{", status: 400, code: oci.CodeManifestInvalid},
		{name: "put nothing", method: "PUT", target: "/v2/a/b/manifests/x", headers: []string{contentType, "Content-Length: 0"}, status: 400, code: oci.CodeManifestInvalid},
		{name: "put with missing blobs", method: "PUT", target: "/v2/a/b/manifests/x", headers: []string{contentType}, body: missing, status: 404, code: oci.CodeManifestBlobUnknown},
		{name: "put as another type", method: "PUT", target: "/v2/a/b/manifests/x", headers: []string{"Content-Type: " + oci.MediaTypeOCIIndex}, body: raw, status: 400, code: oci.CodeManifestInvalid},
		{name: "not there", method: "HEAD", target: "/v2/a/b/manifests/x", status: 404, code: oci.CodeManifestUnknown},
		{name: "put with a subject", method: "PUT", target: "/v2/a/b/manifests/ref", headers: []string{contentType}, body: withSubject, status: 201, want: map[string]string{"Oci-Subject": d}},
		{name: "put with several tags", method: "PUT", target: "/v2/a/b/manifests/" + d + "?tag=one&tag=two", headers: []string{contentType}, body: raw, status: 201, want: created},
		{name: "one", method: "HEAD", target: "/v2/a/b/manifests/one", status: 200, want: whole},
		{name: "two", method: "HEAD", target: "/v2/a/b/manifests/two", status: 200, want: whole},
		{name: "one of several tags is impossible", method: "PUT", target: "/v2/a/b/manifests/" + d + "?tag=three&tag=-x", headers: []string{contentType}, body: raw, status: 400, code: oci.CodeTagInvalid},
		{name: "none of them", method: "HEAD", target: "/v2/a/b/manifests/three", status: 404, code: oci.CodeManifestUnknown},
		{name: "too many tags", method: "PUT", target: "/v2/a/b/manifests/" + d + "?tag=x" + strings.Repeat("&tag=x", 100), headers: []string{contentType}, body: raw, status: 400, code: oci.CodeTagInvalid},
		{name: "delete a tag", method: "DELETE", target: "/v2/a/b/manifests/one", status: 202},
		{name: "delete it again", method: "DELETE", target: "/v2/a/b/manifests/one", status: 404, code: oci.CodeManifestUnknown},
		{name: "delete by digest", method: "DELETE", target: "/v2/a/b/manifests/" + d, status: 202},
		{name: "gone", method: "GET", target: "/v2/a/b/manifests/latest", status: 404, code: oci.CodeManifestUnknown},
		{name: "referrer stays", method: "GET", target: "/v2/a/b/manifests/ref", status: 200},
		{name: "delete from nowhere", method: "DELETE", target: "/v2/none/manifests/x", status: 404, code: oci.CodeManifestUnknown},
	})
	if got := b.ask("PUT", "/v2/a/b/manifests/"+d+"?tag=one&tag=two", []byte(raw)).Header["Oci-Tag"]; !slices.Equal(got, []string{"one", "two"}) {
		t.Errorf("put with several tags: got OCI-Tag %q", got)
	}
}

func TestListExchanges(t *testing.T) {
	b := newBed(t, setup{server: server.Options{MaxList: 5, MaxCatalog: 3}})
	d, _ := b.pushImage("a/b", 1, "t1", "t2", "t3", "t4", "t5", "t6", "t7")
	for i := range 5 {
		b.pushImage(fmt.Sprintf("r%d", i), 1)
	}
	b.push("blob", []byte("x")) // is no image, and is not listed
	link := func(v string) map[string]string {
		if v != "" {
			v = "<" + v + `>; rel="next"`
		}
		return map[string]string{"Link": v, "Content-Type": "application/json"}
	}
	tags := func(list string) string { return `{"name":"a/b","tags":[` + list + `]}` }
	index := func(list string) string {
		return `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[` + list + `]}`
	}
	b.run(t, []exchange{
		{name: "ping", method: "GET", target: "/v2/", status: 200, wantBody: "{}", want: map[string]string{"Content-Type": "application/json"}},
		{name: "ping, no slash", method: "GET", target: "/v2", status: 200, wantBody: "{}"},
		{name: "ping, head", method: "HEAD", target: "/v2/", status: 200},
		{name: "tags", method: "GET", target: "/v2/a/b/tags/list", status: 200, wantBody: tags(`"t1","t2","t3","t4","t5"`), want: link("/v2/a/b/tags/list?last=t5&n=5")},
		{name: "rest", method: "GET", target: "/v2/a/b/tags/list?last=t5&n=5", status: 200, wantBody: tags(`"t6","t7"`), want: link("")},
		{name: "two", method: "GET", target: "/v2/a/b/tags/list?n=2", status: 200, wantBody: tags(`"t1","t2"`), want: link("/v2/a/b/tags/list?last=t2&n=2")},
		{name: "more than there are at once", method: "GET", target: "/v2/a/b/tags/list?n=1000", status: 200, wantBody: tags(`"t1","t2","t3","t4","t5"`), want: link("/v2/a/b/tags/list?last=t5&n=5")},
		{name: "exactly the rest", method: "GET", target: "/v2/a/b/tags/list?n=3&last=t4", status: 200, wantBody: tags(`"t5","t6","t7"`), want: link("")},
		{name: "none", method: "GET", target: "/v2/a/b/tags/list?n=0", status: 200, wantBody: tags(""), want: link("")},
		{name: "behind the last", method: "GET", target: "/v2/a/b/tags/list?last=zzz", status: 200, wantBody: tags(""), want: link("")},
		{name: "bad n", method: "GET", target: "/v2/a/b/tags/list?n=x", status: 400, code: oci.CodePaginationNumber},
		{name: "empty n", method: "GET", target: "/v2/a/b/tags/list?n=", status: 200, wantBody: tags(`"t1","t2","t3","t4","t5"`), want: link("/v2/a/b/tags/list?last=t5&n=5")},
		{name: "empty n and a last", method: "GET", target: "/v2/a/b/tags/list?n=&last=t5", status: 200, wantBody: tags(`"t6","t7"`), want: link("")},
		{name: "tags, head", method: "HEAD", target: "/v2/a/b/tags/list?n=2", status: 200, want: link("/v2/a/b/tags/list?last=t2&n=2")},
		{name: "negative n", method: "GET", target: "/v2/a/b/tags/list?n=-1", status: 400, code: oci.CodePaginationNumber},
		{name: "immense n", method: "GET", target: "/v2/a/b/tags/list?n=99999999999999999999", status: 400, code: oci.CodePaginationNumber},
		{name: "no repository", method: "GET", target: "/v2/none/tags/list", status: 404, code: oci.CodeNameUnknown},
		{name: "no tags", method: "GET", target: "/v2/r0/tags/list", status: 200, wantBody: `{"name":"r0","tags":[]}`},
		{name: "catalogue", method: "GET", target: "/v2/_catalog", status: 200, wantBody: `{"repositories":["a/b","r0","r1"]}`, want: link("/v2/_catalog?last=r1&n=3")},
		{name: "catalogue, rest", method: "GET", target: "/v2/_catalog?last=r1&n=3", status: 200, wantBody: `{"repositories":["r2","r3","r4"]}`, want: link("")},
		{name: "catalogue, one", method: "GET", target: "/v2/_catalog?n=1&last=r0", status: 200, wantBody: `{"repositories":["r1"]}`, want: link("/v2/_catalog?last=r1&n=1")},
		{name: "catalogue, none", method: "GET", target: "/v2/_catalog?n=0", status: 200, wantBody: `{"repositories":[]}`, want: link("")},
		{name: "catalogue, empty n", method: "GET", target: "/v2/_catalog?n=&last=r1", status: 200, wantBody: `{"repositories":["r2","r3","r4"]}`, want: link("")},
		{name: "catalogue, head", method: "HEAD", target: "/v2/_catalog", status: 200, want: map[string]string{"Content-Type": "application/json"}},
		{name: "catalogue, bad n", method: "GET", target: "/v2/_catalog?n=x", status: 400, code: oci.CodePaginationNumber},
		{name: "no referrers", method: "GET", target: "/v2/a/b/referrers/" + string(d), status: 200, wantBody: index(""), want: map[string]string{"Content-Type": oci.MediaTypeOCIIndex, "Oci-Filters-Applied": ""}},
		{name: "no referrers of a type", method: "GET", target: "/v2/a/b/referrers/" + string(d) + "?artifactType=x", status: 200, wantBody: index(""), want: map[string]string{"Oci-Filters-Applied": "artifactType"}},
		{name: "referrers of no repository", method: "GET", target: "/v2/none/referrers/" + string(d), status: 200, wantBody: index("")},
		{name: "referrers of no digest", method: "GET", target: "/v2/a/b/referrers/x", status: 400, code: oci.CodeDigestInvalid},
	})
}

// TestReferrerPages lists more referrers than one answer holds.
func TestReferrerPages(t *testing.T) {
	b := newBed(t, setup{})
	subject, raw := b.pushImage("a", 1, "v1")
	const count = 2001
	want := map[oci.Digest]bool{}
	var g errgroup.Group
	g.SetLimit(256) // the writes share commits
	for i := range count {
		doc := strings.Replace(string(raw), `"layers":[]`, fmt.Sprintf(`"artifactType":"x/y","annotations":{"n":"%d"},"layers":[],"subject":{"mediaType":"m","digest":%q,"size":1}`, i, subject), 1)
		want[oci.SHA256([]byte(doc))] = true
		g.Go(func() error {
			_, err := b.reg.PutManifest(t.Context(), "a", oci.PutManifest{Bytes: []byte(doc)})
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	got := map[oci.Digest]bool{}
	target, pages := "/v2/a/referrers/"+string(subject)+"?artifactType=x/y", 0
	for ; target != "" && pages < 3; pages++ {
		a := b.ask("GET", target, nil)
		var index struct{ Manifests []oci.Descriptor }
		if err := json.Unmarshal(a.Body, &index); err != nil || a.Status != 200 {
			t.Fatalf("%s: got status %d, %v", target, a.Status, err)
		}
		for _, d := range index.Manifests {
			if got[d.Digest] {
				t.Errorf("%s comes twice", d.Digest)
			}
			got[d.Digest] = true
		}
		target, _, _ = strings.Cut(strings.TrimPrefix(a.Header.Get("Link"), "<"), ">")
	}
	if pages != 2 {
		t.Errorf("got %d pages, want 2", pages)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("referrers (-want +got):\n%.500s", diff)
	}
}

// TestUncleanPaths checks that a path is taken literally or rejected. It is never answered with a
// redirect, which clients would follow with GET instead of POST.
func TestUncleanPaths(t *testing.T) {
	b := newBed(t, setup{})
	d := b.push("a/b", []byte("x"))
	for _, c := range []struct {
		target string
		status int
		code   oci.Code
	}{
		{"/v2/a/../a/b/blobs/" + string(d), 400, oci.CodeNameInvalid},
		{"/v2/a/./b/blobs/" + string(d), 400, oci.CodeNameInvalid},
		{"/v2/a//b/blobs/" + string(d), 400, oci.CodeNameInvalid},
		{"/v2//a/b/blobs/" + string(d), 400, oci.CodeNameInvalid},
		{"/v2/a%2fb/blobs/" + string(d), 400, oci.CodeNameInvalid},
		{"/v2/a%2Fb/blobs/" + string(d), 400, oci.CodeNameInvalid},
		{"/v2/a/%2e%2e/b/blobs/" + string(d), 400, oci.CodeNameInvalid},
		{"/v2/a/%2E/b/blobs/" + string(d), 400, oci.CodeNameInvalid},
		{"/v2/a%252fb/blobs/" + string(d), 400, oci.CodeNameInvalid},
		{"/v2/a%00b/blobs/" + string(d), 400, oci.CodeNameInvalid},
		{"/v2/a%5cb/blobs/" + string(d), 400, oci.CodeNameInvalid},
		{"/v2/A/b/blobs/" + string(d), 400, oci.CodeNameInvalid},
		{"/v2/" + strings.Repeat("x", 256) + "/blobs/" + string(d), 400, oci.CodeNameInvalid},
		{"/v2/" + strings.Repeat("x/", 127) + "xx/blobs/" + string(d), 400, oci.CodeNameInvalid},
		{"/v2/blobs/" + string(d), 400, oci.CodeNameInvalid},
		{"/v2/a/b/blobs/" + string(d) + "/", 404, oci.CodeNameUnknown},
		{"/v2/a/b/blobs/", 400, oci.CodeDigestInvalid},
		{"/v2/a/b/blobs/..%2f..%2fx", 400, oci.CodeNameInvalid},
		{"/v2/../v2/a/b/blobs/" + string(d), 400, oci.CodeNameInvalid},
		{"/v2/..", 404, oci.CodeNameUnknown},
		{"/v2/a/b", 404, oci.CodeNameUnknown},
		{"/v2/a/b/tags/list/", 404, oci.CodeNameUnknown},
		{"/v2x/a", 404, oci.CodeNameUnknown},
		{"/v1/", 404, oci.CodeNameUnknown},
		{"/", 404, oci.CodeNameUnknown},
		{"//v2/", 404, oci.CodeNameUnknown},
		{"/../v2/", 404, oci.CodeNameUnknown},
		{"/V2/", 404, oci.CodeNameUnknown},
	} {
		b.ask("GET", c.target, nil).wantError(t, "GET "+c.target, c.status, c.code)
	}
	for _, target := range []string{"/v2/a//b/blobs/uploads/", "/v2/a/../b/blobs/uploads/", "/v2//a/blobs/uploads/", "/v2/A/blobs/uploads/", "/v2/a%2fb/blobs/uploads/", "/v2/%2e%2e/blobs/uploads/"} {
		b.ask("POST", target, []byte{}).wantError(t, "POST "+target, 400, oci.CodeNameInvalid)
	}
	for _, target := range []string{"/v2/a//b/manifests/x", "/v2/../a/manifests/x", "/v2/A/manifests/x"} {
		b.ask("PUT", target, []byte("{}")).wantError(t, "PUT "+target, 400, oci.CodeNameInvalid)
	}
	for i, segment := range []string{"/v2/a/b", "/v2/a/b/c/d/e/f/g/h/i/j"} {
		b.ask("POST", segment+"/blobs/uploads/", []byte{}).want(t, fmt.Sprint(i), 202, nil)
	}
}

// TestDescriptorSizes checks the sizes in a manifest. Clients refuse to pull one with a wrong size.
// The server therefore rejects it, whichever descriptor is wrong.
func TestDescriptorSizes(t *testing.T) {
	b := newBed(t, setup{})
	config, layer, empty := b.push("a", []byte("{}")), b.push("a", []byte("0123456789")), b.push("a", nil)
	child, raw := b.pushImage("a", 1)
	image := func(configSize, layerSize, emptySize int) string {
		return fmt.Sprintf(`{"schemaVersion":2,"mediaType":%q,"config":{"mediaType":"c/c","digest":%q,"size":%d},"layers":[{"mediaType":"l/l","digest":%q,"size":%d},{"mediaType":"l/l","digest":%q,"size":%d}]}`,
			oci.MediaTypeOCIManifest, config, configSize, layer, layerSize, empty, emptySize)
	}
	index := func(size int) string {
		return fmt.Sprintf(`{"schemaVersion":2,"mediaType":%q,"manifests":[{"mediaType":%q,"digest":%q,"size":%d}]}`, oci.MediaTypeOCIIndex, oci.MediaTypeOCIManifest, child, size)
	}
	foreign := strings.Replace(image(2, 11, 0), `"l/l"`, `"l/l","urls":["https://elsewhere.example/x"]`, 1)
	twice := strings.Replace(image(2, 10, 0), string(empty)+`","size":0`, string(layer)+`","size":11`, 1)
	list := []exchange{
		{name: "image", body: image(2, 10, 0)}, {name: "index", body: index(len(raw))}, {name: "foreign layer", body: foreign},
		{name: "one layer, two sizes", body: twice, status: 400},
	}
	for _, off := range []int{-1, 1, 1000} {
		list = append(list, exchange{name: fmt.Sprint("layer ", off), body: image(2, 10+off, 0), status: 400},
			exchange{name: fmt.Sprint("config ", off), body: image(2+off, 10, 0), status: 400},
			exchange{name: fmt.Sprint("empty layer ", off), body: image(2, 10, off), status: 400},
			exchange{name: fmt.Sprint("child ", off), body: index(len(raw) + off), status: 400})
	}
	for i := range list {
		e := &list[i]
		e.method, e.target = "PUT", fmt.Sprintf("/v2/a/manifests/t%d", i)
		if e.status == 0 {
			e.status = 201
		} else {
			e.code = oci.CodeManifestInvalid
		}
	}
	b.run(t, list)
	got := b.ask("PUT", "/v2/a/manifests/x", []byte(image(2, 11, 0)))
	for _, part := range []string{string(layer), "11 bytes", "it has 10"} {
		if !strings.Contains(string(got.Body), part) {
			t.Errorf("the error %s does not say %q", got.Body, part)
		}
	}
}

func TestMethods(t *testing.T) {
	b := newBed(t, setup{})
	d := string(b.push("a", []byte("x")))
	for target, allow := range map[string]string{
		"/v2/":                      "GET, HEAD",
		"/v2/_catalog":              "GET, HEAD",
		"/v2/a/blobs/" + d:          "GET, HEAD, DELETE",
		"/v2/a/manifests/x":         "GET, HEAD, PUT, DELETE",
		"/v2/a/blobs/uploads/":      "POST",
		"/v2/a/blobs/uploads/abcde": "GET, HEAD, PUT, PATCH, DELETE",
		"/v2/a/tags/list":           "GET, HEAD",
		"/v2/a/referrers/" + d:      "GET, HEAD",
		"/v2/a/_oci/ext/discover":   "GET",
	} {
		for _, method := range []string{"GET", "HEAD", "PUT", "POST", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND"} {
			if slices.Contains(strings.Split(allow, ", "), method) {
				continue
			}
			got := b.ask(method, target, nil)
			if method == http.MethodHead {
				got.want(t, method+" "+target, 405, map[string]string{"Allow": allow})
				continue
			}
			got.wantError(t, method+" "+target, 405, oci.CodeUnsupported)
			got.want(t, method+" "+target, 405, map[string]string{"Allow": allow})
		}
	}
	if !strings.Contains(b.log.String(), "panic") && strings.Contains(b.log.String(), "level=ERROR") {
		t.Errorf("a wrong method is no error of ours:\n%s", b.log)
	}
	readOnly := newBed(t, setup{registry: registry.Options{ReadOnly: true}})
	readOnly.ask("POST", "/v2/a/blobs/uploads/", []byte{}).wantError(t, "read-only", 405, oci.CodeUnsupported)
	noDelete := newBed(t, setup{registry: registry.Options{DeleteDisabled: true}})
	noDelete.push("a", []byte("x"))
	noDelete.ask("DELETE", "/v2/a/blobs/"+d, nil).wantError(t, "deletion switched off", 405, oci.CodeUnsupported)
}

// TestPrefixAndHost serves behind a path prefix with absolute Locations.
func TestPrefixAndHost(t *testing.T) {
	b := newBed(t, setup{server: server.Options{Prefix: "/reg", Host: "https://registry.test", Headers: http.Header{"X-Extra": {"yes"}}}})
	d := b.push("a", []byte("x"))
	b.ask("GET", "/reg/v2/a/blobs/"+string(d), nil).want(t, "get", 200, map[string]string{"X-Extra": "yes"})
	for _, target := range []string{"/v2/", "/registry/v2/", "/re/v2/", "/reg"} {
		b.ask("GET", target, nil).wantError(t, target, 404, oci.CodeNameUnknown)
	}
	b.ask("GET", "/reg/v2/a%2fa/blobs/"+string(d), nil).wantError(t, "encoded slash", 400, oci.CodeNameInvalid)
	a := b.ask("POST", "/reg/v2/a/blobs/uploads/", []byte{})
	if loc := a.Header.Get("Location"); !strings.HasPrefix(loc, "https://registry.test/reg/v2/a/blobs/uploads/") {
		t.Errorf("got Location %q", loc)
	}
	b.ask("GET", "/reg/v2/_catalog?n=0", nil).want(t, "catalogue", 200, nil)
}
