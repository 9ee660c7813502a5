package swiftstore_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/objstore/objtest"
	"example.org/slipway/registry/objstore/swiftstore"
)

// wantNoSecret checks that an error does not show a password.
func wantNoSecret(t testing.TB, err error, secret string) {
	t.Helper()
	if err != nil && strings.Contains(err.Error(), secret) {
		t.Errorf("error shows %q: %v", secret, err)
	}
}

func testContainers(t *testing.T, b *bed) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	c := b.container()
	if resp, _ := b.request(t, http.MethodHead, c, nil, ""); resp.StatusCode != http.StatusNotFound {
		t.Fatalf("HEAD of a new container: %s", resp.Status)
	}
	b.open(t, b.options(c))
	if resp, _ := b.request(t, http.MethodHead, c, nil, ""); resp.StatusCode/100 != 2 {
		t.Errorf("New did not make the container: HEAD is %s", resp.Status)
	}
	b.open(t, b.options(c)) // it is there already

	guest := b.options(c)
	guest.Username, guest.Password = b.Guest, b.GuestKey
	for _, tt := range []struct {
		name   string
		change func(o *swiftstore.Options)
		want   []string
	}{
		{"password", func(o *swiftstore.Options) { o.Password = "not-it" }, []string{"refuses the user", b.AuthURL}},
		{"user", func(o *swiftstore.Options) { o.Username = "test:nobody" }, []string{"refuses the user"}},
		{"forbidden", func(o *swiftstore.Options) { *o = guest }, []string{"may not use container", c}},
		{"forbidden to make", func(o *swiftstore.Options) { *o = guest; o.Container = "other" }, []string{"other", "may not"}},
		{"nobody there", func(o *swiftstore.Options) { o.AuthURL = "http://127.0.0.1:1/v1.0" }, []string{"http://127.0.0.1:1/v1.0", "busy"}},
		{"no identity service", func(o *swiftstore.Options) { o.AuthURL = b.StorageURL + "/none/v1.0" }, []string{"refuses the user"}},
		{"no URL", func(o *swiftstore.Options) { o.AuthURL = "" }, []string{"missing"}},
		{"bad URL", func(o *swiftstore.Options) { o.AuthURL = "v1" }, []string{"cannot be used"}},
		{"no version", func(o *swiftstore.Options) { o.AuthURL = "http://127.0.0.1:1/" }, []string{"version"}},
		{"bad version", func(o *swiftstore.Options) { o.AuthVersion = 4 }, []string{"version 4"}},
		{"bad container", func(o *swiftstore.Options) { o.Container = "a/b" }, []string{"a/b"}},
		{"bad prefix", func(o *swiftstore.Options) { o.Prefix = "/a" }, []string{"/a"}},
		{"no CA file", func(o *swiftstore.Options) { o.CAFile = "/nonexistent" }, []string{"/nonexistent"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := b.options(c)
			tt.change(&o)
			s, err := swiftstore.New(t.Context(), o)
			if err == nil {
				s.Close()
				t.Fatal("New: got no error")
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("New: got error %q, want %q in it", err, want)
				}
			}
			wantNoSecret(t, err, "not-it")
			wantNoSecret(t, err, b.GuestKey)
		})
	}

	// With permissions on the container alone, everything works except new addresses.
	if resp, _ := b.request(t, http.MethodPost, c, map[string]string{
		"X-Container-Read": b.Guest, "X-Container-Write": b.Guest, "X-Container-Meta-Temp-Url-Key": "",
	}, ""); resp.StatusCode/100 != 2 {
		t.Fatalf("POST: %s", resp.Status)
	}
	s := b.open(t, guest)
	upload(t, s, blobKey, objtest.Content(1, 3*chunk))
	wantObject(t, s, blobKey, objtest.Content(1, 3*chunk))
	if _, err := s.URL(t.Context(), blobKey, time.Minute); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("URL without a key: got error %v, want ErrUnsupported", err)
	}
	must(t, s.Delete(t.Context(), blobKey))
	b.wantNames(t, c)
}

func testPrefixes(t *testing.T, b *bed) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	c := b.container()
	stores := map[string]*swiftstore.Store{}
	for _, prefix := range []string{"", "a", "a/b/", "a+ü b"} {
		o := b.options(c)
		o.Prefix = prefix
		stores[prefix] = b.open(t, o)
	}
	data := objtest.Content(1, 2*chunk)
	for prefix, s := range stores {
		if prefix != "" { // a store without a prefix sees the objects of all
			upload(t, s, "x/y", data)
			suspend(t, begin(t, s, data))
		}
	}
	for _, name := range []string{"a/", "a/dir/", "a/with%20space"} { // made by others
		if resp, _ := b.request(t, http.MethodPut, c+"/"+name, nil, ""); resp.StatusCode != http.StatusCreated {
			t.Fatalf("PUT: %s", resp.Status)
		}
	}
	for prefix, want := range map[string]string{"a": "[b/slipway/ b/x/y x/y]", "a/b/": "[x/y]", "a+ü b": "[x/y]"} {
		var got []string
		for _, key := range listed(t, stores[prefix]) {
			if strings.HasPrefix(key, "b/slipway/") {
				key = "b/slipway/" // another store's
			}
			if len(got) == 0 || got[len(got)-1] != key {
				got = append(got, key)
			}
		}
		if fmt.Sprint(got) != want {
			t.Errorf("prefix %q: got objects %v, want %s", prefix, got, want)
		}
		wantObject(t, stores[prefix], "x/y", data)
		if n, _ := sweepAll(t, stores[prefix]); n != 1 {
			t.Errorf("prefix %q: SweepUploads got %d, want 1", prefix, n)
		}
	}
	for prefix, s := range stores {
		if prefix != "" {
			must(t, s.Delete(t.Context(), "x/y"))
		}
	}
	b.wantNames(t, c, "a/", "a/dir/", "a/with space")
	s := stores[""]
	for _, key := range []string{"slipway/segments/x", "slipway/segments/AAAAAAAAAAAAAAAAAAAAAAAAAA/state"} {
		if err := s.Put(t.Context(), key, nil, false); err == nil {
			t.Errorf("Put of %s: got no error", key)
		}
		if _, err := s.Stat(t.Context(), key); err == nil || errors.Is(err, objstore.ErrNotExist) {
			t.Errorf("Stat of %s: got error %v, want one about the key", key, err)
		}
	}
	must(t, s.Put(t.Context(), "slipway/segments", nil, false))
	must(t, s.Put(t.Context(), "slipway/segments0", nil, false))
	suspend(t, begin(t, s, data))
	if got := fmt.Sprint(listed(t, s)); got != "[slipway/segments slipway/segments0]" {
		t.Errorf("List: got %s", got)
	}
}

// testToken checks that one new token is fetched when the old one is refused, however many requests
// find out.
func testToken(t *testing.T, b *bed) {
	tr := http.DefaultTransport.(*http.Transport).Clone()
	tr.ExpectContinueTimeout = time.Minute // a busy server must not get a body before it has refused it
	t.Cleanup(tr.CloseIdleConnections)
	w := &wire{inner: tr}
	o := b.options(b.container())
	o.Transport = w
	s := b.open(t, o)
	data := objtest.Content(1, 2<<20) // so large that the server is asked first
	must(t, s.Put(t.Context(), "t/x", data, false))
	for _, op := range []struct {
		name string
		do   func() error
	}{
		{"Get", func() error {
			o, err := s.Get(t.Context(), "t/x", 0, -1)
			if err != nil {
				return err
			}
			defer o.Close()
			_, err = io.Copy(io.Discard, o)
			return err
		}},
		{"Put", func() error { return s.Put(t.Context(), "t/x", data, false) }},
		{"List", func() error {
			for _, err := range s.List(t.Context(), "", "") {
				if err != nil {
					return err
				}
			}
			return nil
		}},
		{"upload", func() error {
			u, err := s.NewUpload(t.Context(), -1)
			if err == nil {
				_, err = u.Write(data)
			}
			if err != nil {
				return err
			}
			return u.Commit(t.Context(), "t/y")
		}},
		{"Delete", func() error { return s.Delete(t.Context(), "t/y") }},
	} {
		must(t, b.ForgetTokens())
		w.set(nil, nil)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				err := op.do()
				var busy *objstore.BusyError
				if errors.As(err, &busy) { // refused while its body was sent: the caller may retry
					err = op.do()
				}
				if err != nil {
					t.Errorf("%s after the token was revoked: %v", op.name, err)
				}
			})
		}
		wg.Wait()
		asked := 0
		for _, r := range w.requests() {
			if strings.Contains(r, "/auth/v1.0") {
				asked++
			}
		}
		// There is one more if the first answer belonged to another request: see pastStray.
		if asked < 1 || asked > 2 {
			t.Errorf("%s: identity service was asked %d times, want once", op.name, asked)
		}
	}

	// A permanent refusal causes no endless attempts.
	w.set(func(req *http.Request) (*http.Response, error) {
		if !strings.Contains(req.URL.Path, "/auth/") {
			return answer(req, http.StatusUnauthorized, nil), nil
		}
		return nil, nil
	}, nil)
	_, err := s.Stat(t.Context(), "t/x")
	if err == nil || errors.Is(err, objstore.ErrNotExist) || !strings.Contains(err.Error(), "rights") {
		t.Errorf("Stat that is never authorized: got error %v, want one about rights", err)
	}
	if n := len(w.requests()); n != 3 {
		t.Errorf("Stat that is never authorized: %d requests, want 3: %q", n, w.requests())
	}
}

func testErrors(t *testing.T, b *bed) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	w := &wire{}
	o := b.options(b.container())
	o.Transport = w
	s := b.open(t, o)
	must(t, s.Put(t.Context(), "e/x", []byte("bytes"), false))
	ops := map[string]func(ctx context.Context) error{
		"Get":    func(ctx context.Context) error { _, err := s.Get(ctx, "e/x", 0, -1); return err },
		"Range":  func(ctx context.Context) error { _, err := s.Get(ctx, "e/x", 1, 2); return err },
		"Stat":   func(ctx context.Context) error { _, err := s.Stat(ctx, "e/x"); return err },
		"Put":    func(ctx context.Context) error { return s.Put(ctx, "e/x", []byte("bytes"), false) },
		"Delete": func(ctx context.Context) error { return s.Delete(ctx, "e/x") },
		"Move":   func(ctx context.Context) error { return s.Move(ctx, "e/x", "e/y") },
		"List": func(ctx context.Context) error {
			for _, err := range s.List(ctx, "", "") {
				return err
			}
			return nil
		},
		"Sweep": func(ctx context.Context) error {
			_, _, err := s.SweepUploads(ctx, future(), func(string) bool { return false })
			return err
		},
		"Resume": func(ctx context.Context) error {
			_, err := s.Resume(ctx, strings.Repeat("A", 26), 0)
			return err
		},
		"Abandon": func(ctx context.Context) error { return s.Abandon(ctx, strings.Repeat("A", 26)) },
	}
	for _, status := range []int{408, 413, 429, 498, 500, 502, 503, 504, 507, 403, 0} {
		w.set(func(req *http.Request) (*http.Response, error) {
			if status == 0 {
				return nil, errCut
			}
			return answer(req, status, map[string]string{"Retry-After": "7"}), nil
		}, nil)
		for name, op := range ops {
			err := op(t.Context())
			var busy *objstore.BusyError
			isBusy := errors.As(err, &busy)
			switch status {
			case 413, 507:
				if !errors.Is(err, objstore.ErrNoSpace) {
					t.Errorf("%s with status %d: got error %v, want ErrNoSpace", name, status, err)
				}
			case 403:
				if err == nil || isBusy || !strings.Contains(err.Error(), "rights") || !strings.Contains(err.Error(), o.Container) {
					t.Errorf("%s with status %d: got error %v, want one about rights in container %s", name, status, err, o.Container)
				}
			case 0:
				if !isBusy || !errors.Is(err, errCut) {
					t.Errorf("%s without an answer: got error %v, want a BusyError", name, err)
				}
			default:
				if !isBusy || busy.RetryAfter != 7*time.Second {
					t.Errorf("%s with status %d: got error %v (%+v), want a BusyError with 7 s", name, status, err, busy)
				}
			}
			if errors.Is(err, objstore.ErrNotExist) || errors.Is(err, objstore.ErrExist) {
				t.Errorf("%s with status %d: got error %v", name, status, err)
			}
			wantNoSecret(t, err, b.Key)
		}
	}
	// A cancelled request is not the store's fault.
	for name, op := range ops {
		ctx, cancel := context.WithCancel(t.Context())
		w.set(func(req *http.Request) (*http.Response, error) {
			cancel()
			<-req.Context().Done()
			return nil, req.Context().Err()
		}, nil)
		err := op(ctx)
		var busy *objstore.BusyError
		if !errors.Is(err, context.Canceled) || errors.As(err, &busy) {
			t.Errorf("%s that was cancelled: got error %v, want Canceled", name, err)
		}
	}
	w.set(nil, nil)

	// Somebody removes the container.
	must(t, s.Delete(t.Context(), "e/x"))
	b.request(t, http.MethodDelete, o.Container, nil, "")
	for _, name := range []string{"Put", "List"} {
		if err := ops[name](t.Context()); err == nil || errors.Is(err, objstore.ErrNotExist) || !strings.Contains(err.Error(), "container "+o.Container) {
			t.Errorf("%s without container: got error %v, want one about container %s", name, err, o.Container)
		}
	}
	if err := ops["Get"](t.Context()); !errors.Is(err, objstore.ErrNotExist) {
		t.Errorf("Get without container: got error %v, want ErrNotExist", err)
	}
	must(t, s.Close())
	for name, op := range ops {
		if err := op(t.Context()); !errors.Is(err, fs.ErrClosed) {
			t.Errorf("%s after Close: got error %v, want ErrClosed", name, err)
		}
	}
}

// testTruncated checks that an answer which ends early never counts as the object.
func testTruncated(t *testing.T, b *bed) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	w := &wire{}
	o := b.options(b.container())
	o.Transport = w
	s := b.open(t, o)
	data := objtest.Content(1, 3*chunk)
	upload(t, s, "t/large", data)
	must(t, s.Put(t.Context(), "t/small", data[:chunk], false))
	for _, tt := range []struct {
		name string
		err  error // after what arrived
	}{{"end", nil}, {"unexpected end", io.ErrUnexpectedEOF}, {"reset", errCut}} {
		w.set(nil, func(resp *http.Response) (*http.Response, error) {
			body := io.Reader(io.LimitReader(resp.Body, 1000))
			if tt.err != nil {
				body = io.MultiReader(body, failing{tt.err})
			}
			resp.Body = struct {
				io.Reader
				io.Closer
			}{body, resp.Body}
			return resp, nil
		})
		for _, key := range []string{"t/large", "t/small"} {
			for _, off := range []int64{0, 10} {
				o, err := s.Get(t.Context(), key, off, -1)
				must(t, err)
				got, err := io.ReadAll(struct{ io.Reader }{o})
				var busy *objstore.BusyError
				if ok := errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &busy) && errors.Is(err, tt.err); !ok || len(got) != 1000 {
					t.Errorf("%s: read of %s from %d: got %d bytes, %v; want 1000 and an error", tt.name, key, off, len(got), err)
				}
				must(t, o.Close())
				o, err = s.Get(t.Context(), key, off, -1)
				must(t, err)
				if n, err := o.WriteTo(io.Discard); err == nil || n != 1000 {
					t.Errorf("%s: WriteTo of %s from %d: got %d bytes, %v; want 1000 and an error", tt.name, key, off, n, err)
				}
				must(t, o.Close())
			}
		}
	}
	// These are servers that answer something else than what was requested.
	for name, change := range map[string]func(h http.Header){
		"no range":      func(h http.Header) { h.Del("Content-Range") },
		"another range": func(h http.Header) { h.Set("Content-Range", "bytes 0-9/196608") },
		"shifted range": func(h http.Header) { h.Set("Content-Range", "bytes 11-20/196608") },
	} {
		w.set(nil, func(resp *http.Response) (*http.Response, error) {
			change(resp.Header)
			return resp, nil
		})
		if o, err := s.Get(t.Context(), "t/large", 10, 10); err == nil {
			o.Close()
			t.Errorf("Get with %s in the answer: got no error", name)
		}
	}
	w.set(nil, func(resp *http.Response) (*http.Response, error) {
		resp.StatusCode = http.StatusOK
		return resp, nil
	})
	if o, err := s.Get(t.Context(), "t/large", 10, 10); err == nil {
		o.Close()
		t.Error("Get with a range that is ignored: got no error")
	}
}

// failing is a reader that fails.
type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// testSilent checks that a server which accepts requests and never answers blocks nobody for ever.
func testSilent(t *testing.T, b *bed) {
	w := &wire{}
	o := b.options(b.container())
	o.Transport, o.Timeout = w, 30*time.Second
	s := b.open(t, o)
	must(t, s.Put(t.Context(), "s/x", objtest.Content(1, 1000), false))
	o.Timeout = 100 * time.Millisecond
	w.set(func(req *http.Request) (*http.Response, error) {
		<-req.Context().Done()
		return nil, req.Context().Err()
	}, nil)
	var busy *objstore.BusyError
	if _, err := swiftstore.New(t.Context(), o); !errors.As(err, &busy) {
		t.Errorf("New with a silent identity service: got error %v, want a BusyError", err)
	}
	w.set(func(req *http.Request) (*http.Response, error) {
		switch {
		case !strings.HasSuffix(req.URL.Path, "s/x"):
			return nil, nil
		case req.Method == http.MethodGet: // it falls silent within the body
			resp := answer(req, http.StatusOK, map[string]string{"Etag": "x"})
			resp.ContentLength = 1000
			resp.Body = io.NopCloser(io.MultiReader(strings.NewReader("begin"), hanging{req.Context()}))
			return resp, nil
		}
		<-req.Context().Done()
		return nil, req.Context().Err()
	}, nil)
	o.Timeout = time.Second
	quick := b.open(t, o)
	if err := quick.Put(t.Context(), "s/x", []byte("x"), false); !errors.As(err, &busy) {
		t.Errorf("Put: got error %v, want a BusyError", err)
	}
	obj, err := quick.Get(t.Context(), "s/x", 0, -1)
	must(t, err)
	defer obj.Close()
	if got, err := io.ReadAll(obj); string(got) != "begin" || !errors.As(err, &busy) {
		t.Errorf("read: got %q, %v; want a BusyError", got, err)
	}
}

// hanging is a reader that blocks until a context ends.
type hanging struct{ ctx context.Context }

func (h hanging) Read([]byte) (int, error) {
	<-h.ctx.Done()
	return 0, h.ctx.Err()
}

func testQuota(t *testing.T, b *bed) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	c := b.container()
	s := b.open(t, b.options(c))
	if resp, _ := b.request(t, http.MethodPost, c, map[string]string{"X-Container-Meta-Quota-Bytes": "100000"}, ""); resp.StatusCode/100 != 2 {
		t.Fatalf("POST: %s", resp.Status)
	}
	if err := s.Put(t.Context(), "q/x", make([]byte, 100001), false); !errors.Is(err, objstore.ErrNoSpace) {
		t.Errorf("Put beyond the quota: got error %v, want ErrNoSpace", err)
	}
	must(t, s.Put(t.Context(), "q/x", []byte("there is room"), false))
	wantObject(t, s, "q/x", []byte("there is room"))
}

func testObjectServerKilled(t *testing.T, b *bed) {
	s := b.open(t, b.options(b.container()))
	data := objtest.Content(1, 3*chunk)
	upload(t, s, "k/large", data)
	must(t, s.Put(t.Context(), "k/small", data[:10], false))
	state := suspend(t, begin(t, s, data))
	u := begin(t, s, data)
	b.KillObject()
	var busy *objstore.BusyError
	_, err := s.Get(t.Context(), "k/small", 0, -1)
	if !errors.As(err, &busy) {
		t.Errorf("Get without an object server: got error %v, want a BusyError", err)
	}
	if _, err := s.Stat(t.Context(), "k/large"); !errors.As(err, &busy) {
		t.Errorf("Stat without an object server: got error %v, want a BusyError", err)
	}
	if err := s.Put(t.Context(), "k/new", data[:10], false); !errors.As(err, &busy) {
		t.Errorf("Put without an object server: got error %v, want a BusyError", err)
	}
	if err := u.Commit(t.Context(), "k/u"); !errors.As(err, &busy) {
		t.Errorf("Commit without an object server: got error %v, want a BusyError", err)
	}
	if _, err := s.Resume(t.Context(), state, 1); !errors.As(err, &busy) {
		t.Errorf("Resume without an object server: got error %v, want a BusyError", err)
	}
	// A live upload does not count as dead.
	if n, _, err := s.SweepUploads(t.Context(), future(), func(string) bool { return false }); n != 0 || err == nil {
		t.Errorf("SweepUploads without an object server: got %d, %v; want 0 and an error", n, err)
	}
	b.StartObject()
	wantObject(t, s, "k/large", data)
	wantObject(t, s, "k/small", data[:10])
	wantMissing(t, s, "k/u")
	must(t, resume(t, s, state, int64(len(data))).Commit(t.Context(), "k/u"))
	wantObject(t, s, "k/u", data)
}

func testRestart(t *testing.T, b *bed) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	s := b.open(t, b.options(b.container()))
	data := objtest.Content(1, 3*chunk)
	upload(t, s, "r/x", data)
	state := suspend(t, begin(t, s, data))
	b.Stop()
	var busy *objstore.BusyError
	if _, err := s.Stat(t.Context(), "r/x"); !errors.As(err, &busy) {
		t.Errorf("Stat without Swift: got error %v, want a BusyError", err)
	}
	b.Start()
	wantObject(t, s, "r/x", data)
	must(t, resume(t, s, state, int64(len(data))).Commit(t.Context(), "r/y"))
	wantObject(t, s, "r/y", data)
}

// testLiar checks that an answer with 200 from something else than Swift is not a success.
func testLiar(t *testing.T, b *bed) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	w := &wire{inner: http.DefaultTransport}
	o := b.options(b.container())
	o.Transport = w
	s := b.open(t, o)
	data := objtest.Content(1, 3*chunk)
	must(t, s.Put(t.Context(), "a/b", data, false))
	for _, kind := range []string{"", "text/html", "application/octet-stream"} {
		lie := func(req *http.Request) (*http.Response, error) {
			if req.Body != nil {
				_, _ = io.Copy(io.Discard, req.Body) // as a proxy does
			}
			return &http.Response{StatusCode: 200, Status: "200 OK", Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: req,
				Header: http.Header{"Content-Type": {kind}}, Body: io.NopCloser(strings.NewReader("<html/>")), ContentLength: 7}, nil
		}
		w.set(lie, nil)
		errs := map[string]error{}
		errs["Put"] = s.Put(t.Context(), "a/c", data[:10], false)
		errs["Delete"] = s.Delete(t.Context(), "a/b")
		_, errs["Stat"] = s.Stat(t.Context(), "a/b")
		_, errs["Get"] = s.Get(t.Context(), "a/b", 0, -1)
		_, errs["Get of a range"] = s.Get(t.Context(), "a/b", 1, 2)
		for _, err := range s.List(t.Context(), "", "") {
			errs["List"] = err
		}
		u, err := s.NewUpload(t.Context(), -1)
		if err == nil {
			if _, err = u.Write(data[:100]); err == nil {
				err = u.Commit(t.Context(), "a/d")
			}
		}
		errs["upload"] = err
		w.set(nil, nil)
		for _, op := range []string{"Put", "Delete", "Stat", "Get", "Get of a range", "List", "upload"} {
			if err := errs[op]; err == nil || errors.Is(err, objstore.ErrNotExist) {
				t.Errorf("%s, answered 200 with a body of type %q: %v", op, kind, err)
			}
		}
	}
	wantObject(t, s, "a/b", data)
}
