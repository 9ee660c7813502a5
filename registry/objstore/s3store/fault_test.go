package s3store_test

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"example.org/slipway/internal/backendtest"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/objstore/objtest"
	"example.org/slipway/registry/objstore/s3store"
)

// wantText checks that an error says all that an operator needs and contains no secret.
func wantText(t *testing.T, err error, secret string, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("got no error")
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q does not hold %q", err, part)
		}
	}
	if strings.Contains(err.Error(), secret) {
		t.Errorf("error %q holds the secret key", err)
	}
}

func TestNewFails(t *testing.T) {
	srv := backendtest.S3(t)
	bucket := srv.Bucket(t)
	for _, tt := range []struct {
		name   string
		change func(*s3store.Options)
		want   []string
		busy   bool
	}{
		{"no bucket", func(o *s3store.Options) { o.Bucket = "nobody-made-it" }, []string{`"nobody-made-it"`, srv.Endpoint, "create the bucket"}, false},
		{"wrong secret", func(o *s3store.Options) { o.SecretKey = "wrong" }, []string{bucket, srv.Endpoint, "check the access key"}, false},
		{"wrong key", func(o *s3store.Options) { o.AccessKey = "nobody" }, []string{bucket, srv.Endpoint, "check the access key"}, false},
		{"nobody there", func(o *s3store.Options) { o.Endpoint = "127.0.0.1:1" }, []string{bucket, "127.0.0.1:1", "refused"}, true},
		{"TLS to a plain server", func(o *s3store.Options) { o.Secure = true }, []string{bucket, srv.Endpoint}, false},
		{"bad bucket name", func(o *s3store.Options) { o.Bucket = "A" }, []string{"bucket"}, false},
		{"bad prefix", func(o *s3store.Options) { o.Prefix = "a/../b" }, []string{"prefix"}, false},
		{"small parts", func(o *s3store.Options) { o.PartSize = 100 }, []string{"part size"}, false},
		{"unknown source", func(o *s3store.Options) { o.Credentials = "tea leaves" }, []string{"tea leaves", "environment"}, false},
		{"no credentials in the file", func(o *s3store.Options) {
			o.AccessKey, o.SecretKey, o.Credentials, o.CredentialsFile = "", "", s3store.FromFile, "/nowhere"
		}, []string{"credentials", "file"}, false},
		{"anonymous", func(o *s3store.Options) { o.Credentials = s3store.Anonymous }, []string{bucket, "denies"}, false},
		{"missing certificates", func(o *s3store.Options) { o.CAFile = "/nowhere" }, []string{"/nowhere"}, false},
		{"unknown encryption", func(o *s3store.Options) { o.Encrypt = "rot13" }, []string{"rot13", "AES256"}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := options(srv, bucket)
			o.Repeat = once
			tt.change(&o)
			_, err := s3store.New(t.Context(), o)
			wantText(t, err, srv.SecretKey, tt.want...)
			var busy *objstore.BusyError
			if errors.As(err, &busy) != tt.busy && tt.name != "TLS to a plain server" {
				t.Errorf("New: got %v, want a BusyError: %t", err, tt.busy)
			}
		})
	}
}

// TestReadOnly uses a server that refuses writes.
func TestReadOnly(t *testing.T) {
	srv := backendtest.S3(t)
	bucket := srv.Bucket(t)
	s := open(t, options(srv, bucket))
	must(t, s.Put(t.Context(), "a/b", []byte("there"), false))
	srv.Daemon.Stop()
	srv.Flags = []string{"--readonly"}
	srv.Daemon.Start(srv.Ready)
	wantObject(t, s, "a/b", []byte("there"))
	err := s.Put(t.Context(), "a/c", []byte("new"), false)
	wantText(t, err, srv.SecretKey, bucket, srv.Endpoint, "s3:PutObject", "read-only")
	err = write(t, s, []byte("x")).Commit(t.Context(), "a/c")
	wantText(t, err, srv.SecretKey, bucket, srv.Endpoint, "read-only")
	if err := s.Delete(t.Context(), "a/b"); err == nil {
		t.Error("Delete: got no error")
	}
	wantObject(t, s, "a/b", []byte("there"))
}

// TestBucketGoes removes the bucket while the store is open. No object may seem to be merely
// missing.
func TestBucketGoes(t *testing.T) {
	srv := backendtest.S3(t)
	bucket := srv.Bucket(t)
	s := open(t, options(srv, bucket))
	must(t, os.RemoveAll(filepath.Join(srv.Dir, bucket)))
	_, err := s.Get(t.Context(), "a/b", 0, -1)
	wantText(t, err, srv.SecretKey, bucket, srv.Endpoint, "create the bucket")
	if errors.Is(err, objstore.ErrNotExist) {
		t.Errorf("Get without a bucket: got %v, which is ErrNotExist", err)
	}
	fresh, err := s3store.New(t.Context(), options(srv, srv.Bucket(t)))
	must(t, err)
	must(t, fresh.Close())
}

// TestRotation changes the credentials. Old ones are refused with a clear error. New ones are taken
// from the file without a restart.
func TestRotation(t *testing.T) {
	srv := backendtest.S3(t)
	bucket := srv.Bucket(t)
	file := filepath.Join(t.TempDir(), "credentials")
	save := func() {
		must(t, os.WriteFile(file, fmt.Appendf(nil, "[default]\naws_access_key_id = %s\naws_secret_access_key = %s\n", srv.AccessKey, srv.SecretKey), 0o600))
	}
	save()
	fixed := open(t, options(srv, bucket))
	o := options(srv, bucket)
	o.AccessKey, o.SecretKey, o.CredentialsFile = "", "", file
	o.Credentials = s3store.FromFile
	s := open(t, o)
	data := objtest.Content(1, 12<<20)
	u := write(t, s, data[:6<<20])

	srv.Daemon.Stop()
	srv.AccessKey, srv.SecretKey = "other", rand.Text()
	srv.Daemon.Start(srv.Ready)
	err := s.Put(t.Context(), "a/b", []byte("1"), false)
	wantText(t, err, srv.SecretKey, bucket, srv.Endpoint, "credentials")
	save()
	waitFor(t, func() bool { return s.Put(t.Context(), "a/b", []byte("2"), false) == nil })
	_, err = u.Write(data[6<<20:])
	must(t, err)
	must(t, u.Commit(t.Context(), "a/c"))
	wantObject(t, s, "a/c", data)
	var listed int
	for _, err := range s.List(t.Context(), "", "") {
		must(t, err)
		listed++
	}
	if listed != 2 {
		t.Errorf("List: got %d objects, want 2", listed)
	}
	err = fixed.Put(t.Context(), "a/b", []byte("3"), false)
	wantText(t, err, srv.SecretKey, bucket, srv.Endpoint, "credentials")
}

// TestEnvironment takes the credentials from the environment by default.
func TestEnvironment(t *testing.T) {
	srv := backendtest.S3(t)
	t.Setenv("AWS_ACCESS_KEY_ID", srv.AccessKey)
	t.Setenv("AWS_SECRET_ACCESS_KEY", srv.SecretKey)
	o := options(srv, srv.Bucket(t))
	o.AccessKey, o.SecretKey = "", ""
	s := open(t, o)
	must(t, s.Put(t.Context(), "a", []byte("1"), false))
	wantObject(t, s, "a", []byte("1"))
}

// TestURL reads by a signed address with only net/http, also in part, until it expires.
func TestURL(t *testing.T) {
	srv := backendtest.S3(t)
	s := open(t, options(srv, srv.Bucket(t)))
	data := objtest.Content(1, 100_000)
	must(t, s.Put(t.Context(), "a/b", data, false))
	fetch := func(url, span string) (int, []byte) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		must(t, err)
		if span != "" {
			req.Header.Set("Range", span)
		}
		resp, err := http.DefaultClient.Do(req)
		must(t, err)
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		must(t, err)
		return resp.StatusCode, b
	}
	long, err := s.URL(t.Context(), "a/b", 30*24*time.Hour) // cut to a week
	must(t, err)
	short, err := s.URL(t.Context(), "a/b", time.Second)
	must(t, err)
	if code, b := fetch(long, ""); code != http.StatusOK || !bytes.Equal(b, data) {
		t.Errorf("GET: got %d, %d bytes", code, len(b))
	}
	if code, b := fetch(long, "bytes=10-19"); code != http.StatusPartialContent || !bytes.Equal(b, data[10:20]) {
		t.Errorf("GET of a range: got %d, %d bytes", code, len(b))
	}
	if code, _ := fetch(strings.Replace(long, "/a/b", "/a/c", 1), ""); code != http.StatusForbidden {
		t.Errorf("GET of another object: got %d, want 403", code)
	}
	waitFor(t, func() bool { code, _ := fetch(short, ""); return code == http.StatusForbidden })
}

// faulty is a transport that answers, breaks or delays requests.
type faulty struct {
	inner http.RoundTripper
	mu    sync.Mutex
	hook  func(*http.Request) (*http.Response, error) // nil, nil: pass on
}

func (f *faulty) set(hook func(*http.Request) (*http.Response, error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hook = hook
}

func (f *faulty) RoundTrip(req *http.Request) (*http.Response, error) {
	f.mu.Lock()
	hook := f.hook
	f.mu.Unlock()
	if hook != nil {
		if resp, err := hook(req); resp != nil || err != nil {
			return resp, err
		}
	}
	return f.inner.RoundTrip(req)
}

// answer makes a response of S3's kind.
func answer(req *http.Request, code int, s3code string, header ...string) *http.Response {
	body := "<Error><Code>" + s3code + "</Code><Message>said by the test</Message></Error>"
	h := http.Header{"Content-Type": {"application/xml"}}
	for i := 0; i+1 < len(header); i += 2 {
		h.Set(header[i], header[i+1])
	}
	return &http.Response{StatusCode: code, Status: http.StatusText(code), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: h, Body: io.NopCloser(strings.NewReader(body)), ContentLength: int64(len(body)), Request: req}
}

func TestAnswers(t *testing.T) {
	srv := backendtest.S3(t)
	tr := &faulty{inner: http.DefaultTransport}
	o := options(srv, srv.Bucket(t))
	o.Transport, o.Repeat = tr, once
	s := open(t, o)
	must(t, s.Put(t.Context(), "a/b", []byte("there"), false))
	for _, tt := range []struct {
		name  string
		code  int
		s3    string
		after string
		want  time.Duration // of the BusyError; negative: none
		is    error
	}{
		{"slow down", 503, "SlowDown", "3", 3 * time.Second, nil},
		{"slow down, no time", 503, "SlowDown", "", 0, nil},
		{"too many", 429, "TooManyRequests", "1", time.Second, nil},
		{"internal", 500, "InternalError", "", 0, nil},
		{"gateway", 502, "", "", 0, nil},
		{"absurd time", 503, "SlowDown", "99999999", 24 * time.Hour, nil},
		{"quota", 403, "QuotaExceeded", "", -1, objstore.ErrNoSpace},
		{"full", 507, "Whatever", "", -1, objstore.ErrNoSpace},
		{"denied", 403, "AccessDenied", "", -1, nil},
		{"clock", 403, "RequestTimeTooSkewed", "", -1, nil},
		{"region", 301, "PermanentRedirect", "", -1, nil},
		{"no such key", 404, "NoSuchKey", "", -1, objstore.ErrNotExist},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tr.set(func(req *http.Request) (*http.Response, error) {
				return answer(req, tt.code, tt.s3, "Retry-After", tt.after), nil
			})
			defer tr.set(nil)
			_, err := s.Get(t.Context(), "a/b", 0, -1)
			var busy *objstore.BusyError
			switch {
			case err == nil:
				t.Fatal("Get: got no error")
			case errors.As(err, &busy) != (tt.want >= 0):
				t.Errorf("Get: got %v, want a BusyError: %t", err, tt.want >= 0)
			case busy != nil && busy.RetryAfter != tt.want:
				t.Errorf("Get: got RetryAfter %v, want %v", busy.RetryAfter, tt.want)
			case tt.is != nil && !errors.Is(err, tt.is):
				t.Errorf("Get: got %v, want %v", err, tt.is)
			}
		})
	}
}

// TestStalledUpload checks that a server which stops reading is given up.
func TestStalledUpload(t *testing.T) {
	srv := backendtest.S3(t)
	tr := &faulty{inner: http.DefaultTransport}
	o := options(srv, srv.Bucket(t))
	o.Transport, o.StallTimeout, o.Repeat = tr, 100*time.Millisecond, once
	s := open(t, o)
	tr.set(func(req *http.Request) (*http.Response, error) {
		_, _ = req.Body.Read(make([]byte, 1000))
		<-req.Context().Done()
		return nil, req.Context().Err()
	})
	err := s.Put(t.Context(), "a/b", make([]byte, 1<<20), false)
	var busy *objstore.BusyError
	if !errors.As(err, &busy) || !strings.Contains(err.Error(), "stopped reading") {
		t.Errorf("Put to a server that stands still: got %v, want a BusyError", err)
	}
	tr.set(nil)
	must(t, s.Put(t.Context(), "a/b", make([]byte, 1<<20), false))
}

// TestTruncated checks that a body which ends early never counts as the whole.
func TestTruncated(t *testing.T) {
	srv := backendtest.S3(t)
	tr := &faulty{inner: http.DefaultTransport}
	o := options(srv, srv.Bucket(t))
	o.Transport = tr
	s := open(t, o)
	data := objtest.Content(1, 200_000)
	must(t, s.Put(t.Context(), "a/b", data, false))
	tr.set(func(req *http.Request) (*http.Response, error) {
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err == nil && req.Method == http.MethodGet {
			resp.Body = struct {
				io.Reader
				io.Closer
			}{io.LimitReader(resp.Body, 70_000), resp.Body}
		}
		return resp, err
	})
	for _, off := range []int64{0, 1000} {
		obj, err := s.Get(t.Context(), "a/b", off, -1)
		must(t, err)
		got, err := io.ReadAll(obj)
		if !errors.Is(err, io.ErrUnexpectedEOF) || !bytes.Equal(got, data[off:off+70_000]) {
			t.Errorf("Get at %d of a truncated body: got %d bytes, %v; want ErrUnexpectedEOF", off, len(got), err)
		}
		must(t, obj.Close())
	}
}

// TestTruncatedState truncates the state from which an upload is continued. The state still exists,
// so that the same call succeeds later.
func TestTruncatedState(t *testing.T) {
	srv := backendtest.S3(t)
	tr := &faulty{inner: http.DefaultTransport}
	o := options(srv, srv.Bucket(t))
	o.Transport = tr
	s := open(t, o)
	up, err := s.NewUpload(t.Context(), -1)
	must(t, err)
	data := objtest.Content(1, 100_000)
	_, err = up.Write(data)
	must(t, err)
	state, err := up.Suspend(t.Context())
	must(t, err)
	for _, most := range []int64{10, 70_000} {
		tr.set(func(req *http.Request) (*http.Response, error) {
			resp, err := http.DefaultTransport.RoundTrip(req)
			if err == nil && req.Method == http.MethodGet {
				resp.Body = struct {
					io.Reader
					io.Closer
				}{io.LimitReader(resp.Body, most), resp.Body}
			}
			return resp, err
		})
		var busy *objstore.BusyError
		if _, err := s.Resume(t.Context(), state, int64(len(data))); !errors.As(err, &busy) {
			t.Errorf("Resume of a state cut off at %d bytes: %v, want a BusyError", most, err)
		}
	}
	tr.set(nil)
	up, err = s.Resume(t.Context(), state, int64(len(data)))
	must(t, err)
	must(t, up.Commit(t.Context(), "a/b"))
}

// TestLostComplete checks an upload whose last request has a lost or failed answer. The object is
// there, and the store must find it.
func TestLostComplete(t *testing.T) {
	srv := backendtest.S3(t)
	for _, tt := range []struct {
		name string
		lose func(*http.Request) (*http.Response, error)
	}{
		{"cut off", func(*http.Request) (*http.Response, error) { return nil, io.ErrUnexpectedEOF }},
		{"as if never sent", func(req *http.Request) (*http.Response, error) {
			httptrace.ContextClientTrace(req.Context()).GotConn(httptrace.GotConnInfo{Reused: true})
			return nil, syscall.ECONNRESET
		}},
		{"an error inside a 200", func(req *http.Request) (*http.Response, error) {
			return answer(req, http.StatusOK, "InternalError"), nil
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bucket := srv.Bucket(t)
			tr := &faulty{inner: http.DefaultTransport}
			o := options(srv, bucket)
			o.Transport = tr
			s := open(t, o)
			data := objtest.Content(1, 12<<20)
			var lost atomic.Int32
			tr.set(func(req *http.Request) (*http.Response, error) {
				if req.Method != http.MethodPost || !req.URL.Query().Has("uploadId") {
					return nil, nil
				}
				if lost.Add(1) > 1 { // what S3 answers a while later
					return answer(req, http.StatusNotFound, "NoSuchUpload"), nil
				}
				resp, err := http.DefaultTransport.RoundTrip(req)
				if err != nil {
					return nil, err
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				return tt.lose(req)
			})
			must(t, write(t, s, data).Commit(t.Context(), "a/b"))
			wantObject(t, s, "a/b", data)
			wantNames(t, srv, bucket, "a/b")
			if lost.Load() < 2 {
				t.Errorf("complete was asked for %d times, want it repeated", lost.Load())
			}
		})
	}
}

// TestSuspendFails checks an upload whose bytes since its suspension cannot be stored. It continues
// from the point of the suspension, which others know.
func TestSuspendFails(t *testing.T) {
	srv := backendtest.S3(t)
	bucket := srv.Bucket(t)
	tr := &faulty{inner: http.DefaultTransport}
	o := options(srv, bucket)
	o.Transport, o.Repeat = tr, once
	s := open(t, o)
	busy := func(req *http.Request) (*http.Response, error) {
		if req.Method == http.MethodPut && strings.Contains(req.URL.Path, "/state-") {
			return answer(req, 503, "SlowDown"), nil
		}
		return nil, nil
	}
	data := objtest.Content(1, 13<<20)
	state := suspend(t, write(t, s, data[:6<<20]))
	u, err := s.Resume(t.Context(), state, 6<<20)
	must(t, err)
	_, err = u.Write(data[6<<20:])
	must(t, err)
	tr.set(busy)
	if _, err := u.Suspend(t.Context()); err == nil {
		t.Fatal("Suspend at a busy server: got no error")
	}
	if _, err := write(t, s, data[:6<<20]).Suspend(t.Context()); err == nil { // nobody knows of this one
		t.Fatal("Suspend at a busy server: got no error")
	}
	tr.set(nil)
	u, err = s.Resume(t.Context(), state, 6<<20)
	must(t, err)
	_, err = u.Write(data[6<<20:])
	must(t, err)
	must(t, u.Commit(t.Context(), "a/b"))
	wantObject(t, s, "a/b", data)
	wantNames(t, srv, bucket, "a/b")
}

// TestPartsRepeated fails each part once.
func TestPartsRepeated(t *testing.T) {
	srv := backendtest.S3(t)
	bucket := srv.Bucket(t)
	tr := &faulty{inner: http.DefaultTransport}
	o := options(srv, bucket)
	o.Transport = tr
	s := open(t, o)
	var mu sync.Mutex
	seen := map[string]bool{}
	tr.set(func(req *http.Request) (*http.Response, error) {
		mu.Lock()
		defer mu.Unlock()
		if id := req.Method + req.URL.String(); !seen[id] && req.Method == http.MethodPut {
			seen[id] = true
			return answer(req, 503, "SlowDown"), nil
		}
		return nil, nil
	})
	data := objtest.Content(1, 17<<20)
	must(t, write(t, s, data).Commit(t.Context(), "a/staged"))
	wantObject(t, s, "a/staged", data)
	u, err := s.NewUploadFor(t.Context(), "a/keyed", -1)
	must(t, err)
	_, err = u.Write(data)
	must(t, err)
	must(t, u.Commit(t.Context(), "a/keyed"))
	wantObject(t, s, "a/keyed", data)
	wantNames(t, srv, bucket, "a/keyed", "a/staged")
}

// TestMemory checks that uploads use the RAM they were promised, whatever their number and size.
func TestMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("sends 640 MiB")
	}
	srv := backendtest.S3(t)
	o := options(srv, srv.Bucket(t))
	o.PartSize, o.Memory = 16<<20, 100<<20
	s := open(t, o)
	runtime.GC()
	var before runtime.MemStats
	runtime.ReadMemStats(&before)
	var most atomic.Uint64
	stop := make(chan struct{})
	var watch, wg sync.WaitGroup
	watch.Go(func() {
		for {
			var now runtime.MemStats
			runtime.ReadMemStats(&now)
			most.Store(max(most.Load(), now.HeapAlloc))
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	})
	piece := objtest.Content(1, 1<<20)
	for i := range 20 {
		wg.Go(func() {
			u, err := s.NewUpload(t.Context(), -1)
			for err == nil && u.Size() < 32<<20 {
				_, err = u.Write(piece)
			}
			if err == nil {
				err = u.Commit(t.Context(), fmt.Sprintf("a/%d", i))
			}
			if err != nil {
				t.Errorf("upload: %v", err)
			}
		})
	}
	wg.Wait()
	close(stop)
	watch.Wait()
	// The bound holds two uploads with three parts of 16 MiB, eighteen with two of 5 MiB, and what
	// the garbage collector has not reached yet.
	const bound = 400 << 20
	got := most.Load() - before.HeapAlloc
	t.Logf("20 uploads at once took %d MiB", got>>20)
	if got > bound {
		t.Errorf("20 uploads at once took %d MiB, want at most %d", got>>20, bound>>20)
	}
	for i := range 20 {
		info, err := s.Stat(t.Context(), fmt.Sprintf("a/%d", i))
		if err != nil || info.Size != 32<<20 {
			t.Errorf("Stat of upload %d: got %+v, %v", i, info, err)
		}
	}
}
