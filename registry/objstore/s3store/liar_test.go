package s3store_test

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"example.org/slipway/internal/backendtest"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/objstore/objtest"
	"example.org/slipway/registry/objstore/s3store"
)

// said makes an answer that no S3 server gave.
func said(req *http.Request, body string, header ...string) *http.Response {
	h := http.Header{"Content-Length": {strconv.Itoa(len(body))}}
	for i := 0; i+1 < len(header); i += 2 {
		h.Set(header[i], header[i+1])
	}
	if req.Method == http.MethodHead {
		body = ""
	}
	return &http.Response{StatusCode: 200, Status: "200 OK", Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: h, Body: io.NopCloser(strings.NewReader(body)), ContentLength: int64(len(body)), Request: req}
}

// lies are the answers with status 200 that something between the registry and the store may give.
var lies = []struct {
	name string
	say  func(req *http.Request) *http.Response
}{
	{"nothing", func(req *http.Request) *http.Response { return said(req, "") }},
	{"a login page", func(req *http.Request) *http.Response {
		return said(req, "<html><body>Log in</body></html>", "Content-Type", "text/html; charset=utf-8")
	}},
	{"a page with an ETag and a date", func(req *http.Request) *http.Response {
		return said(req, "<html/>", "Content-Type", "text/html", "Etag", `"abc"`, "Last-Modified", "Mon, 02 Mar 2026 10:00:00 GMT")
	}},
	{"XML of another kind", func(req *http.Request) *http.Response {
		return said(req, "<r><Bucket>b</Bucket><Key>k</Key></r>", "Content-Type", "application/xml")
	}},
	{"an ETag that is made up", func(req *http.Request) *http.Response {
		return said(req, "", "Etag", `"d41d8cd98f00b204e9800998ecf8427e"`)
	}},
}

// changes are the operations that store something, with the requests that they use.
var changes = []struct {
	name    string
	request func(req *http.Request) bool
	do      func(t *testing.T, s *s3store.Store, key string, data []byte) error
}{
	{"put", put, func(t *testing.T, s *s3store.Store, key string, data []byte) error {
		return s.Put(t.Context(), key, data, false)
	}},
	{"put if absent", put, func(t *testing.T, s *s3store.Store, key string, data []byte) error {
		return s.Put(t.Context(), key, data, true)
	}},
	{"upload", put, func(t *testing.T, s *s3store.Store, key string, data []byte) error {
		return upload(t, s, "", key, data)
	}},
	{"upload to its place", put, func(t *testing.T, s *s3store.Store, key string, data []byte) error {
		return upload(t, s, key, key, data)
	}},
	{"begin of a multipart upload", post, func(t *testing.T, s *s3store.Store, key string, data []byte) error {
		return upload(t, s, key, key, data)
	}},
	{"end of a multipart upload", complete, func(t *testing.T, s *s3store.Store, key string, data []byte) error {
		return upload(t, s, key, key, data)
	}},
	{"copies of parts", complete, func(t *testing.T, s *s3store.Store, key string, data []byte) error {
		return upload(t, s, "", key, data)
	}},
	{"suspended upload", put, func(t *testing.T, s *s3store.Store, key string, data []byte) error {
		u, err := s.NewUpload(t.Context(), -1)
		must(t, err)
		if _, err = u.Write(data); err != nil {
			return errors.Join(err, u.Cancel(t.Context()))
		}
		state, err := u.Suspend(t.Context())
		if err != nil {
			return err
		}
		if u, err = s.Resume(t.Context(), state, int64(len(data))); err != nil {
			return err
		}
		return u.Commit(t.Context(), key)
	}},
	{"move", put, func(t *testing.T, s *s3store.Store, key string, data []byte) error {
		if err := s.Move(t.Context(), "from/"+key, key); err != nil {
			wantObject(t, s, "from/"+key, data)
			return err
		}
		return nil
	}},
}

func put(req *http.Request) bool  { return req.Method == http.MethodPut }
func post(req *http.Request) bool { return req.Method == http.MethodPost }
func complete(req *http.Request) bool {
	return post(req) && req.URL.Query().Has("uploadId")
}

func upload(t *testing.T, s *s3store.Store, place, key string, data []byte) (err error) {
	var u objstore.Upload
	if place != "" {
		u, err = s.NewUploadFor(t.Context(), place, -1)
	} else {
		u, err = s.NewUpload(t.Context(), -1)
	}
	must(t, err)
	if _, err = u.Write(data); err != nil {
		return errors.Join(err, u.Cancel(t.Context()))
	}
	return u.Commit(t.Context(), key)
}

// TestLiar checks that a change which is reported as made was made, and that a read which ends well
// returned the object, even if something other than the store answers with 200.
func TestLiar(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	srv := backendtest.S3(t)
	tr := &faulty{inner: http.DefaultTransport}
	o := options(srv, srv.Bucket(t))
	o.Transport, o.Repeat = tr, once
	s := open(t, o)
	number := 0
	for _, lie := range lies {
		for _, c := range changes {
			for _, size := range []int{1000, 6 << 20} { // one request, and parts
				t.Run(lie.name+"/"+c.name+"/"+strconv.Itoa(size), func(t *testing.T) {
					number++
					key, data := "k/"+strconv.Itoa(number), objtest.Content(uint64(number), size)
					if c.name == "move" {
						must(t, s.Put(t.Context(), "from/"+key, data, false))
					}
					var told atomic.Int32 // parts are sent at the same time
					tr.set(func(req *http.Request) (*http.Response, error) {
						if !c.request(req) {
							return nil, nil
						}
						told.Add(1)
						if req.Body != nil {
							_, _ = io.Copy(io.Discard, req.Body) // as a proxy does
						}
						return lie.say(req), nil
					})
					err := c.do(t, s, key, data)
					tr.set(nil)
					if err == nil {
						wantObject(t, s, key, data)
					}
					if told := told.Load(); told > 0 && err == nil {
						t.Errorf("%d requests were answered by %s, and it succeeds", told, lie.name)
					}
				})
			}
		}
	}
	data := objtest.Content(7, 1000)
	must(t, s.Put(t.Context(), "a/b", data, false))
	for _, lie := range lies {
		t.Run(lie.name+"/reads", func(t *testing.T) {
			tr.set(func(req *http.Request) (*http.Response, error) { return lie.say(req), nil })
			defer tr.set(nil)
			if _, err := s.Stat(t.Context(), "a/b"); err == nil || errors.Is(err, objstore.ErrNotExist) {
				t.Errorf("Stat: %v", err)
			}
			listed := errors.New("nothing, and no error")
			for _, listed = range s.List(t.Context(), "", "") {
			}
			if listed == nil || listed.Error() == "nothing, and no error" {
				t.Errorf("List: %v", listed)
			}
			for _, n := range []int64{-1, 10} {
				obj, err := s.Get(t.Context(), "a/b", 0, n)
				if errors.Is(err, objstore.ErrNotExist) {
					t.Errorf("Get: %v", err)
				}
				if err != nil {
					continue
				}
				got, err := io.ReadAll(obj)
				if obj.Close(); err == nil && !bytes.HasPrefix(data, got) {
					t.Errorf("Get of %d: %d other bytes, size %d, no error", n, len(got), obj.Info().Size)
				}
			}
			if strings.Contains(lie.name, "page") {
				if err := s.Delete(t.Context(), "a/b"); err == nil {
					t.Error("Delete: no error")
				}
			}
		})
	}
	wantObject(t, s, "a/b", data)
}
