package client_test

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/oci"
)

// script answers requests in order and compares them with the expected ones.
type script []step

type step struct {
	method, uri string // of the expected request
	header      map[string]string
	body        string

	status int // of the answer
	answer map[string]string
	text   string
}

func (sc script) serve(t *testing.T) *exchange {
	t.Helper()
	i := 0
	e := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if i >= len(sc) {
			t.Errorf("unexpected request %s %s", r.Method, r.URL.RequestURI())
			w.WriteHeader(http.StatusTeapot)
			return
		}
		st := sc[i]
		i++
		if got, want := r.Method+" "+r.URL.RequestURI(), st.method+" "+st.uri; got != want {
			t.Errorf("request %d: got %s, want %s", i, got, want)
		}
		for k, want := range st.header {
			if got := r.Header.Get(k); got != want {
				t.Errorf("request %d: got %s: %q, want %q", i, k, got, want)
			}
		}
		b, err := io.ReadAll(r.Body)
		if err == nil && string(b) != st.body {
			t.Errorf("request %d: got body %q, want %q", i, b, st.body)
		}
		for k, v := range st.answer {
			w.Header().Set(k, strings.ReplaceAll(v, "HOST", r.Host))
		}
		w.WriteHeader(st.status)
		_, _ = io.WriteString(w, st.text)
	})
	t.Cleanup(func() {
		if i != len(sc) {
			t.Errorf("got %d requests, want %d", i, len(sc))
		}
	})
	return e
}

const (
	hello  = "hello"
	digest = oci.Digest("sha256:2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824")
	quoted = "sha256%3A2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
)

func TestPushBlob(t *testing.T) {
	s := script{
		{method: "POST", uri: "/v2/a/blobs/uploads/", status: 202, answer: map[string]string{"Location": "http://HOST/v2/a/blobs/uploads/u1?_state=x%2By"}},
		{method: "PUT", uri: "/v2/a/blobs/uploads/u1?_state=x%2By&digest=" + quoted, body: hello,
			header: map[string]string{"Content-Type": "application/octet-stream", "Content-Length": "5"}, status: 201},
	}.serve(t)
	desc, err := dial(t, s.URL, nil).PushBlob(t.Context(), "a", digest, 5, strings.NewReader(hello))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(oci.Descriptor{MediaType: oci.MediaTypeOctetStream, Digest: digest, Size: 5}, desc); diff != "" {
		t.Errorf("descriptor (-want +got):\n%s", diff)
	}
}

func TestPushBlobOfUnknownSize(t *testing.T) {
	s := script{
		{method: "POST", uri: "/v2/a/blobs/uploads/", status: 202, answer: map[string]string{"Location": "u1"}},
		{method: "PUT", uri: "/v2/a/blobs/uploads/u1?digest=" + quoted, body: hello, header: map[string]string{"Content-Length": ""}, status: 201},
	}.serve(t)
	desc, err := dial(t, s.URL, nil).PushBlob(t.Context(), "a", digest, -1, strings.NewReader(hello))
	if err != nil || desc.Size != 5 {
		t.Fatalf("got %+v, %v", desc, err)
	}
}

func TestPushBlobFailures(t *testing.T) {
	broken := errors.New("source broke")
	for name, tt := range map[string]struct {
		size   int64
		r      io.Reader
		status int
		text   string
		check  func(error) bool
		starts bool
	}{
		"registry refuses": {5, strings.NewReader(hello), 400, `{"errors":[{"code":"DIGEST_INVALID"}]}`,
			func(err error) bool { return oci.HasCode(err, oci.CodeDigestInvalid) }, true},
		"too short":   {6, strings.NewReader(hello), 201, "", func(err error) bool { return oci.HasCode(err, oci.CodeSizeInvalid) }, true},
		"too long":    {4, strings.NewReader(hello), 201, "", func(err error) bool { return oci.HasCode(err, oci.CodeSizeInvalid) }, true},
		"not empty":   {0, strings.NewReader(hello), 201, "", func(err error) bool { return oci.HasCode(err, oci.CodeSizeInvalid) }, false},
		"source":      {5, io.MultiReader(strings.NewReader("he"), failing{broken}), 201, "", func(err error) bool { return errors.Is(err, broken) }, true},
		"source late": {-1, io.MultiReader(strings.NewReader("he"), failing{broken}), 201, "", func(err error) bool { return errors.Is(err, broken) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			canceled := false
			s := serve(t, func(w http.ResponseWriter, r *http.Request) {
				switch r.Method {
				case http.MethodPost:
					w.Header().Set("Location", "/v2/a/blobs/uploads/u1")
					w.WriteHeader(202)
				case http.MethodPut:
					if _, err := io.ReadAll(r.Body); err == nil && tt.status == 201 {
						t.Error("the registry got a whole body")
					}
					w.WriteHeader(tt.status)
					_, _ = io.WriteString(w, tt.text)
				case http.MethodDelete:
					canceled = true
					w.WriteHeader(204)
				}
			})
			_, err := dial(t, s.URL, nil).PushBlob(t.Context(), "a", digest, tt.size, tt.r)
			if err == nil || !tt.check(err) {
				t.Errorf("got error %v", err)
			}
			if canceled != tt.starts {
				t.Errorf("got cancelled=%t, want %t", canceled, tt.starts)
			}
		})
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func TestMountBlob(t *testing.T) {
	mount := "/v2/a/blobs/uploads/?from=b%2Fc&mount=" + quoted
	t.Run("mounted", func(t *testing.T) {
		s := script{
			{method: "POST", uri: mount, status: 201},
			{method: "HEAD", uri: "/v2/a/blobs/" + string(digest), status: 200, answer: map[string]string{"Content-Length": "5"}},
		}.serve(t)
		desc, err := dial(t, s.URL, nil).MountBlob(t.Context(), "a", "b/c", digest)
		if err != nil || desc.Size != 5 {
			t.Errorf("got %+v, %v", desc, err)
		}
	})
	t.Run("upload instead", func(t *testing.T) {
		s := script{
			{method: "POST", uri: mount, status: 202, answer: map[string]string{"Location": "/v2/a/blobs/uploads/u1?_state=x"}},
			{method: "DELETE", uri: "/v2/a/blobs/uploads/u1?_state=x", status: 204},
		}.serve(t)
		_, err := dial(t, s.URL, nil).MountBlob(t.Context(), "a", "b/c", digest)
		wantCode(t, err, oci.CodeBlobUnknown)
	})
}

func TestChunkedUpload(t *testing.T) {
	s := script{
		{method: "POST", uri: "/v2/a/blobs/uploads/", status: 202, answer: map[string]string{"Location": "/elsewhere/u1?n=0", "OCI-Chunk-Min-Length": "3"}},
		{method: "PATCH", uri: "/elsewhere/u1?n=0", body: "hel", header: map[string]string{"Content-Range": "0-2", "Content-Type": "application/octet-stream"},
			status: 202, answer: map[string]string{"Location": "/elsewhere/u1?n=3", "Range": "0-2"}},
		{method: "GET", uri: "/elsewhere/u1?n=3", status: 204, answer: map[string]string{"Location": "/elsewhere/u1?n=3", "Range": "0-2"}},
		// The client asks for 4 by mistake, looks at the status, and refuses.
		{method: "GET", uri: "/elsewhere/u1?n=3", status: 204, answer: map[string]string{"Range": "0-2"}},
		// Content-Range is absent without an offset or a size.
		{method: "PATCH", uri: "/elsewhere/u1?n=3", body: "l", header: map[string]string{"Content-Range": ""}, status: 202, answer: map[string]string{"Range": "0-3"}},
		{method: "PUT", uri: "/elsewhere/u1?n=3&digest=" + quoted, body: "o", header: map[string]string{"Content-Range": "4-4"}, status: 201},
		{method: "GET", uri: "/v2/a/blobs/uploads/u1", status: 404}, // the upload is forgotten
	}.serve(t)
	c, ctx := dial(t, s.URL, nil), t.Context()
	st, err := c.StartUpload(ctx, "a")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(oci.UploadStatus{ID: "u1", MinChunk: 3}, st); diff != "" {
		t.Fatalf("started (-want +got):\n%s", diff)
	}
	if st, err = c.AppendUpload(ctx, "a", "u1", 0, 3, strings.NewReader("hel")); err != nil || st.Size != 3 {
		t.Fatalf("append: got %+v, %v", st, err)
	}
	if st, err = c.UploadStatus(ctx, "a", "u1"); err != nil || st.Size != 3 || st.MinChunk != 3 {
		t.Fatalf("status: got %+v, %v", st, err)
	}
	_, err = c.AppendUpload(ctx, "a", "u1", 4, 1, strings.NewReader("l"))
	wantCode(t, err, oci.CodeRangeInvalid)
	if st, err = c.AppendUpload(ctx, "a", "u1", oci.AtEnd, -1, strings.NewReader("l")); err != nil || st.Size != 4 {
		t.Fatalf("append: got %+v, %v", st, err)
	}
	desc, err := c.CommitUpload(ctx, "a", "u1", 4, 1, strings.NewReader("o"), digest)
	if err != nil || desc.Size != 5 {
		t.Fatalf("commit: got %+v, %v", desc, err)
	}
	_, err = c.UploadStatus(ctx, "a", "u1")
	wantCode(t, err, oci.CodeBlobUploadUnknown)
}

func TestUploadContinuesAfterFailure(t *testing.T) {
	s := script{
		{method: "POST", uri: "/v2/a/blobs/uploads/", status: 202, answer: map[string]string{"Location": "/v2/a/blobs/uploads/u1"}},
		{method: "PATCH", uri: "/v2/a/blobs/uploads/u1", body: "hel", status: 500},
		{method: "GET", uri: "/v2/a/blobs/uploads/u1", status: 204, answer: map[string]string{"Range": "0-1"}},
		{method: "PUT", uri: "/v2/a/blobs/uploads/u1?digest=" + quoted, body: "llo", status: 201},
	}.serve(t)
	c, ctx := dial(t, s.URL, nil), t.Context()
	if _, err := c.StartUpload(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.AppendUpload(ctx, "a", "u1", 0, 3, strings.NewReader("hel")); err == nil {
		t.Fatal("got no error")
	}
	desc, err := c.CommitUpload(ctx, "a", "u1", 2, 3, strings.NewReader("llo"), digest)
	if err != nil || desc.Size != 5 {
		t.Fatalf("commit: got %+v, %v", desc, err)
	}
}

func TestCancelUpload(t *testing.T) {
	s := script{
		{method: "POST", uri: "/v2/a/blobs/uploads/", status: 202, answer: map[string]string{"Location": "/v2/a/blobs/uploads/u1?_state=s"}},
		{method: "DELETE", uri: "/v2/a/blobs/uploads/u1?_state=s", status: 204},
		{method: "DELETE", uri: "/v2/a/blobs/uploads/u1", status: 404},
	}.serve(t)
	c, ctx := dial(t, s.URL, nil), t.Context()
	if _, err := c.StartUpload(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	if err := c.CancelUpload(ctx, "a", "u1"); err != nil {
		t.Fatal(err)
	}
	wantCode(t, c.CancelUpload(ctx, "a", "u1"), oci.CodeBlobUploadUnknown)
}

func TestUploadOnAnotherHostIsRefused(t *testing.T) {
	other := serve(t, func(w http.ResponseWriter, r *http.Request) {})
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Location", other.URL+"/v2/a/blobs/uploads/u1")
		w.WriteHeader(202)
	})
	if _, err := dial(t, s.URL, nil).PushBlob(t.Context(), "a", digest, 5, strings.NewReader(hello)); err == nil {
		t.Error("got no error")
	}
	if got := other.requests(); len(got) > 0 {
		t.Errorf("the other host got %q", got)
	}
}
