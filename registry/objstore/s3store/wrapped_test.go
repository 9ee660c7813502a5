package s3store_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"example.org/slipway/internal/backendtest"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/objstore/objtest"
	"example.org/slipway/registry/objstore/remote"
)

// wrapped is a store on a real server behind a transport that fails on purpose.
type wrapped struct {
	*remote.Store
	tr     *faulty
	srv    *backendtest.S3Server
	bucket string
}

func wrap(t *testing.T, ro *remote.Options) *wrapped {
	t.Helper()
	w := &wrapped{srv: backendtest.S3(t), tr: &faulty{inner: http.DefaultTransport}}
	w.bucket = w.srv.Bucket(t)
	o := options(w.srv, w.bucket)
	o.Transport = w.tr
	ro.Driver = "s3"
	ro.Retry = remote.NewRetry(&remote.RetryOptions{First: time.Millisecond, Most: 20 * time.Millisecond})
	o.Repeat = ro.Retry.Do
	w.Store = remote.Wrap(openOnce(t, o), ro)
	t.Cleanup(func() {
		w.tr.set(nil)
		if err := w.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return w
}

// metric returns the sum of a counter over all its labels except the given ones.
func (w *wrapped) metric(t *testing.T, name string, labels ...string) float64 {
	t.Helper()
	reg := prometheus.NewRegistry()
	reg.MustRegister(w.Metrics()...)
	families, err := reg.Gather()
	must(t, err)
	var sum float64
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			if hasLabels(m, labels) {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

func hasLabels(m *dto.Metric, labels []string) bool {
	text := m.String()
	for _, l := range labels {
		if !strings.Contains(text, `"`+l+`"`) {
			return false
		}
	}
	return true
}

// TestEveryThirdFails checks that a server which is busy every third time causes no failure.
func TestEveryThirdFails(t *testing.T) {
	w := wrap(t, &remote.Options{})
	var n atomic.Int64
	w.tr.set(func(req *http.Request) (*http.Response, error) {
		if n.Add(1)%3 == 0 {
			return answer(req, 503, "SlowDown"), nil
		}
		return nil, nil
	})
	ctx, data := t.Context(), objtest.Content(1, 12<<20)
	for i := range 5 {
		key := fmt.Sprintf("a/%d", i)
		must(t, w.Put(ctx, key, data[:1000], false))
		wantObject(t, w, key, data[:1000])
	}
	u, err := w.NewUpload(ctx, -1)
	must(t, err)
	_, err = u.Write(data[:7<<20])
	must(t, err)
	u, err = w.Resume(ctx, suspend(t, u), 7<<20)
	must(t, err)
	_, err = u.Write(data[7<<20:])
	must(t, err)
	must(t, u.Commit(ctx, "b"))
	wantObject(t, w, "b", data)
	mover, ok := objstore.As[objstore.Mover](w.Store)
	if !ok {
		t.Fatal("the wrapped store cannot move")
	}
	must(t, mover.Move(ctx, "b", "c"))
	wantObject(t, w, "c", data)
	keys := 0
	for _, err := range w.List(ctx, "", "") {
		must(t, err)
		keys++
	}
	if keys != 6 {
		t.Errorf("List: got %d objects, want 6", keys)
	}
	if got := w.metric(t, "registry_storage_retries_total"); got == 0 {
		t.Error("no retry was counted")
	}
}

// TestDown checks that a server which is down gets few retries and causes a BusyError.
func TestDown(t *testing.T) {
	w := wrap(t, &remote.Options{})
	var n atomic.Int64
	w.tr.set(func(req *http.Request) (*http.Response, error) {
		n.Add(1)
		return answer(req, 503, "SlowDown"), nil
	})
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			for range 6 {
				_, err := w.Stat(t.Context(), "a")
				var busy *objstore.BusyError
				if !errors.As(err, &busy) {
					t.Errorf("Stat: got %v, want a BusyError", err)
				}
			}
		})
	}
	wg.Wait()
	// Retries are bounded by a burst of 50, and one for ten operations.
	if got := n.Load(); got > 300+50+30 {
		t.Errorf("300 operations made %d requests, want at most 380", got)
	}
}

// TestTruncatedResumed cuts each body after 300 KB. The object must be whole.
func TestTruncatedResumed(t *testing.T) {
	w := wrap(t, &remote.Options{})
	data := objtest.Content(1, 2_000_000)
	must(t, w.Put(t.Context(), "a/b", data, false))
	w.tr.set(func(req *http.Request) (*http.Response, error) {
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err == nil && req.Method == http.MethodGet {
			resp.Body = struct {
				io.Reader
				io.Closer
			}{io.LimitReader(resp.Body, 300_000), resp.Body}
		}
		return resp, err
	})
	wantObject(t, w, "a/b", data)
	o, err := w.Get(t.Context(), "a/b", 1000, 1_500_000)
	must(t, err)
	var b bytes.Buffer
	if _, err := o.WriteTo(&b); err != nil || !bytes.Equal(b.Bytes(), data[1000:1_501_000]) {
		t.Errorf("WriteTo: got %d bytes, %v", b.Len(), err)
	}
	must(t, o.Close())
	if got := w.metric(t, "registry_storage_resumed_reads_total"); got < 10 {
		t.Errorf("%g reads were resumed, want at least 10", got)
	}
}

// TestChangedMeanwhile checks that an object which was replaced is not pieced together.
func TestChangedMeanwhile(t *testing.T) {
	w := wrap(t, &remote.Options{})
	old, young := objtest.Content(1, 1_000_000), objtest.Content(2, 1_000_001)
	must(t, w.Put(t.Context(), "a/b", old, false))
	var cut atomic.Bool
	cut.Store(true)
	w.tr.set(func(req *http.Request) (*http.Response, error) {
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err == nil && cut.Swap(false) {
			resp.Body = struct {
				io.Reader
				io.Closer
			}{io.LimitReader(resp.Body, 300_000), resp.Body}
		}
		return resp, err
	})
	o, err := w.Get(t.Context(), "a/b", 0, -1)
	must(t, err)
	defer o.Close()
	must(t, w.Put(t.Context(), "a/b", young, false))
	got, err := io.ReadAll(o)
	if err == nil || !bytes.HasPrefix(old, got) {
		t.Errorf("read of an object that changed: got %d bytes, %v; want an error", len(got), err)
	}
}

// TestStall checks that a stalled body is given up and continued.
func TestStall(t *testing.T) {
	w := wrap(t, &remote.Options{Stall: 100 * time.Millisecond})
	data := objtest.Content(1, 1_000_000)
	must(t, w.Put(t.Context(), "a/b", data, false))
	var stalled atomic.Int32
	w.tr.set(func(req *http.Request) (*http.Response, error) {
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err == nil && req.Method == http.MethodGet && stalled.Add(1) <= 2 {
			resp.Body = struct {
				io.Reader
				io.Closer
			}{io.MultiReader(io.LimitReader(resp.Body, 100_000), untilDone{req}), resp.Body}
		}
		return resp, err
	})
	wantObject(t, w, "a/b", data)
	if got := stalled.Load(); got != 3 {
		t.Errorf("%d requests were made, want 3", got)
	}
}

// untilDone is a body that gives no byte before its request is cancelled.
type untilDone struct{ req *http.Request }

func (u untilDone) Read([]byte) (int, error) {
	<-u.req.Context().Done()
	return 0, u.req.Context().Err()
}

// TestNoAnswer checks that a server which accepts requests and does not answer causes a BusyError
// in time.
func TestNoAnswer(t *testing.T) {
	w := wrap(t, &remote.Options{Timeout: 50 * time.Millisecond})
	w.tr.set(func(req *http.Request) (*http.Response, error) {
		<-req.Context().Done()
		return nil, req.Context().Err()
	})
	for name, f := range map[string]func() error{
		"Get":    func() error { _, err := w.Get(t.Context(), "a", 0, -1); return err },
		"Stat":   func() error { _, err := w.Stat(t.Context(), "a"); return err },
		"Put":    func() error { return w.Put(t.Context(), "a", []byte("x"), false) },
		"Delete": func() error { return w.Delete(t.Context(), "a") },
		"List": func() error {
			for _, err := range w.List(t.Context(), "", "") {
				return err
			}
			return nil
		},
	} {
		var busy *objstore.BusyError
		if err := f(); !errors.As(err, &busy) {
			t.Errorf("%s without an answer: got %v, want a BusyError", name, err)
		}
	}
}

// TestHedge checks that a second request gets the first byte when it is late, and that the first
// request is cancelled.
func TestHedge(t *testing.T) {
	w := wrap(t, &remote.Options{HedgeAfter: 300 * time.Millisecond})
	data := objtest.Content(1, 100_000)
	must(t, w.Put(t.Context(), "a/b", data, false))
	for range 64 { // the usual time
		wantObject(t, w, "a/b", data)
	}
	var slow, cancelled atomic.Int32
	w.tr.set(func(req *http.Request) (*http.Response, error) {
		if slow.Add(1) > 1 {
			return nil, nil
		}
		<-req.Context().Done()
		cancelled.Add(1)
		return nil, req.Context().Err()
	})
	before := w.metric(t, "registry_storage_hedges_total", "won") // on a busy machine
	begin := time.Now()
	wantObject(t, w, "a/b", data)
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("the read took %v", took)
	}
	waitFor(t, func() bool { return cancelled.Load() == 1 })
	if won := w.metric(t, "registry_storage_hedges_total", "won") - before; won != 1 {
		t.Errorf("%g hedges have won, want 1", won)
	}
	// When all reads are slow, hedges stay few.
	w.tr.set(func(req *http.Request) (*http.Response, error) {
		time.Sleep(350 * time.Millisecond) // the server's slowness, which is what is tested
		return nil, nil
	})
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() { wantObject(t, w, "a/b", data) })
	}
	wg.Wait()
	if sent := w.metric(t, "registry_storage_hedges_total", "sent"); sent > 10+0.05*200 {
		t.Errorf("%g of 165 reads were hedged", sent)
	}
}

// cutter is a TCP proxy that resets each connection after a number of bytes from the server.
type cutter struct {
	l     net.Listener
	to    string
	after atomic.Int64 // 0: never
	wg    sync.WaitGroup
}

func newCutter(t *testing.T, to string) *cutter {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	c := &cutter{l: l, to: to}
	c.wg.Go(c.serve)
	t.Cleanup(func() {
		l.Close()
		c.wg.Wait()
	})
	return c
}

func (c *cutter) serve() {
	for {
		in, err := c.l.Accept()
		if err != nil {
			return
		}
		c.wg.Go(func() { c.pass(in.(*net.TCPConn)) })
	}
}

func (c *cutter) pass(in *net.TCPConn) {
	defer in.Close()
	out, err := net.Dial("tcp", c.to)
	if err != nil {
		return
	}
	defer out.Close()
	c.wg.Go(func() {
		_, _ = io.Copy(out, in)
		out.Close()
	})
	var from io.Reader = out
	n := c.after.Load()
	if n > 0 {
		from = io.LimitReader(out, n)
	}
	if sent, _ := io.Copy(in, from); n > 0 && sent == n {
		_ = in.SetLinger(0) // a reset, not an end
	}
}

// TestResets reads through connections that are reset in the middle.
func TestResets(t *testing.T) {
	srv := backendtest.S3(t)
	proxy := newCutter(t, srv.Endpoint)
	o := options(srv, srv.Bucket(t))
	o.Endpoint = proxy.l.Addr().String()
	s := remote.Wrap(openOnce(t, o), &remote.Options{
		Retry: remote.NewRetry(&remote.RetryOptions{First: time.Millisecond, Most: 20 * time.Millisecond, Burst: 1000}),
	})
	data := objtest.Content(1, 2_000_000)
	must(t, s.Put(t.Context(), "a/b", data, false))
	proxy.after.Store(700_000)
	must(t, s.Close()) // earlier connections
	o.Endpoint = proxy.l.Addr().String()
	s = remote.Wrap(openOnce(t, o), &remote.Options{
		Retry: remote.NewRetry(&remote.RetryOptions{First: time.Millisecond, Most: 20 * time.Millisecond, Burst: 1000}),
	})
	defer s.Close()
	for range 3 {
		wantObject(t, s, "a/b", data)
	}
}
