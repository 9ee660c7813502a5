package mirror_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"example.org/slipway/oci"
	"example.org/slipway/registry/mirror"
	"example.org/slipway/registry/mirror/upstream"
)

// readers returns how many readers all fills have together.
func (b *bed) readers() int {
	n := 0
	for _, f := range b.Status().Fills {
		n += f.Readers
	}
	return n
}

// hold blocks requests for blobs of a repository until release is called, and then answers them
// with a status.
func (b *bed) hold(repo string, status int) (release func()) {
	gate := make(chan struct{})
	b.o.on(func(r *http.Request) *fault {
		if r.Method != http.MethodGet || !strings.HasPrefix(r.URL.Path, "/v2/"+repo+"/blobs/") {
			return nil
		}
		select {
		case <-gate:
			return &fault{status: status}
		case <-r.Context().Done():
			return &fault{status: http.StatusGatewayTimeout}
		}
	})
	return sync.OnceFunc(func() { close(gate) })
}

// TestFillFailsForOther checks that an upstream's answer for one repository does not reach readers
// of another repository that joined its fill.
func TestFillFailsForOther(t *testing.T) {
	for _, status := range []int{404, 403, 502} {
		for _, size := range []int{sizeTiny, sizeLarge} {
			t.Run(fmt.Sprint(status, " of ", size), func(t *testing.T) {
				b := newBed(t, settings{options: func(o *mirror.Options) { o.Patience = time.Millisecond }})
				data := random(1, size)
				d := b.o.push("private", data)
				b.o.push("public", data)
				release := b.hold("private", status)
				defer release()
				var wg sync.WaitGroup
				wg.Go(func() {
					if got, err := b.get("origin/private", d.Digest); err == nil {
						t.Errorf("private: %d bytes", len(got))
					}
				})
				until(t, "the first reader is there", func() bool { return b.readers() == 1 })
				wg.Go(func() { b.wantBlob("origin/public", data) })
				until(t, "both readers are there", func() bool { return b.readers() == 2 || t.Failed() })
				release()
				wg.Wait()
			})
		}
	}
}

// TestFillBreaksForOther checks the same for readers that have begun to read.
func TestFillBreaksForOther(t *testing.T) {
	b := newBed(t, settings{})
	data := random(1, sizeLarge)
	d := b.o.push("private", data)
	b.o.push("public", data)
	gate := make(chan struct{})
	var begun atomic.Bool
	b.o.on(func(r *http.Request) *fault {
		switch {
		case !strings.HasPrefix(r.URL.Path, "/v2/private/blobs/"):
			return nil
		case begun.Swap(true):
			return &fault{status: 403}
		}
		return &fault{gate: gate, gateAt: 1 << 20, cutAt: 1<<20 + 1}
	})
	first, err := b.GetBlob(t.Context(), "origin/private", d.Digest)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	second, err := b.GetBlob(t.Context(), "origin/public", d.Digest)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	close(gate)
	_, err = io.Copy(io.Discard, first)
	wantCode(t, "private", err, oci.CodeDenied)
	if _, err = io.Copy(io.Discard, second); err == nil || strings.Contains(err.Error(), "private") {
		t.Errorf("public: %v, want an error that does not name the other repository", err)
	}
	b.wantBlob("origin/public", data)
}

// readOnly is a store that cannot add its content to further repositories.
type readOnly struct{ mirror.Store }

func (readOnly) LinkStored(context.Context, string, oci.Digest) (oci.Descriptor, error) {
	return oci.Descriptor{}, &oci.Error{Code: oci.CodeUnavailable, Message: "writes are stopped"}
}

// TestLateStranger checks a reader that is admitted when the fill is over. The blob is fetched anew
// if the store cannot show it.
func TestLateStranger(t *testing.T) {
	b := newBed(t, settings{wrap: func(s mirror.Store) mirror.Store { return readOnly{s} }})
	data := random(1, sizeTiny)
	d := b.o.push("private", data)
	b.o.push("public", data)
	get, head, asked := make(chan struct{}), make(chan struct{}), make(chan struct{})
	var once sync.Once
	b.o.on(func(r *http.Request) *fault {
		switch {
		case !strings.Contains(r.URL.Path, "/blobs/"):
		case strings.HasPrefix(r.URL.Path, "/v2/private/"):
			<-get
		case r.Method == http.MethodHead:
			once.Do(func() { close(asked) })
			<-head
		}
		return nil
	})
	var wg sync.WaitGroup
	wg.Go(func() { b.wantBlob("origin/private", data) })
	until(t, "the first reader is there", func() bool { return b.readers() == 1 })
	wg.Go(func() { b.wantBlob("origin/public", data) })
	<-asked
	close(get)
	b.settled()
	close(head)
	wg.Wait()
	b.settled()
	if _, err := b.store.ResolveBlob(t.Context(), "origin/public", d.Digest); err != nil {
		t.Errorf("in the store: %v", err)
	}
}

// TestTruncatedMirror checks that an endpoint whose copy is too short, and says so, is blamed, and
// not the endpoint that has all of it.
func TestTruncatedMirror(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	for _, c := range []struct{ size, copied int }{{sizeTiny, 100}, {sizeSmall, 64 << 10}, {sizeLarge, 1000}, {sizeTiny, 0}} {
		t.Run(fmt.Sprint(c.copied, " of ", c.size), func(t *testing.T) {
			short := newOrigin(t, false)
			b := newBed(t, settings{upstream: func(o *upstream.Options) { o.Mirrors = []string{short.url} }})
			data := random(1, c.size)
			b.o.push("app", data)
			d := short.push("app", data)
			short.on(func(r *http.Request) *fault {
				if isBlob(r, d.Digest) {
					return &fault{less: int64(c.size - c.copied)}
				}
				return nil
			})
			b.wantBlob("origin/app", data)
			b.settled()
			if _, err := b.store.ResolveBlob(t.Context(), "origin/app", d.Digest); err != nil {
				t.Errorf("in the store: %v", err)
			}
			ends := b.Status().Sources[0].Upstream.Endpoints
			if ends[0].LastError == "" || ends[1].LastError != "" {
				t.Errorf("endpoints: %+v, want the first to be blamed alone", ends)
			}
			if got := b.fillMemory(); got != 0 {
				t.Errorf("%v bytes of memory are not given back", got)
			}
		})
	}
}

// fillMemory returns the value of the metric.
func (b *bed) fillMemory() float64 {
	b.t.Helper()
	reg := prometheus.NewPedanticRegistry()
	for _, c := range b.Metrics() {
		reg.MustRegister(c)
	}
	families, err := reg.Gather()
	if err != nil {
		b.t.Fatal(err)
	}
	for _, f := range families {
		if strings.HasSuffix(f.GetName(), "fill_memory_bytes") {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	b.t.Fatal("there is no metric of the memory")
	return 0
}

// TestMemoryOfReaders checks that a blob in RAM counts as long as somebody reads it.
func TestMemoryOfReaders(t *testing.T) {
	b := newBed(t, settings{})
	data := random(1, sizeSmall)
	d := b.o.push("app", data)
	c, err := b.GetBlob(t.Context(), "origin/app", d.Digest)
	if err != nil {
		t.Fatal(err)
	}
	b.settled()
	if got := b.fillMemory(); got != sizeSmall {
		t.Errorf("%v bytes of memory while a blob of %d is read", got, sizeSmall)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if got := b.fillMemory(); got != 0 {
		t.Errorf("%v bytes of memory when nobody reads", got)
	}
}

// TestNobodyWaits checks that a fill without any bytes yet ends with its last reader, and that the
// next one starts anew.
func TestNobodyWaits(t *testing.T) {
	b := newBed(t, settings{upstream: func(o *upstream.Options) { o.Concurrent = 2 }})
	data := random(1, sizeTiny)
	b.o.push("app", data)
	release := b.hold("app", 500)
	defer release()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	const blobs = 50
	var wg sync.WaitGroup
	for i := range blobs {
		wg.Go(func() {
			d := oci.SHA256(data)
			if i > 0 {
				d = oci.SHA256(fmt.Append(nil, i))
			}
			if _, err := b.GetBlob(ctx, "origin/app", d); err == nil {
				t.Error("a blob has come")
			}
		})
	}
	until(t, "all are waited for", func() bool { return b.readers() == blobs })
	cancel()
	wg.Wait()
	b.settled()
	b.o.on(nil)
	b.wantBlob("origin/app", data)
}
