package mirror_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/mirror"
)

// isSmall and isLarge are sizes on either side of the limit for fetching into RAM.
const (
	sizeTiny  = 3000
	sizeSmall = 500_000
	sizeLarge = 5<<20 + 77
)

// TestOneFetchForAll checks that a thousand clients of one cold blob cost one download. They get
// the first bytes before the last have arrived, and all get the right ones.
func TestOneFetchForAll(t *testing.T) {
	const clients, size = 1000, 1<<20 + 100_000
	b := newBed(t, settings{})
	data := random(1, size)
	d := b.o.push("app", data)
	gate := make(chan struct{})
	b.o.on(func(r *http.Request) *fault {
		if isBlob(r, d.Digest) {
			return &fault{gate: gate, gateAt: 600_000}
		}
		return nil
	})
	var begun, right atomic.Int64
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			c, err := b.GetBlob(t.Context(), "origin/app", d.Digest)
			if err != nil {
				t.Errorf("get the blob: %v", err)
				return
			}
			defer c.Close()
			w := &checkingWriter{want: data, first: func() { begun.Add(1) }}
			n, err := c.WriteTo(w)
			if err != nil || n != int64(len(data)) || w.wrong {
				t.Errorf("read the blob: %d bytes, wrong %v, %v", n, w.wrong, err)
				return
			}
			right.Add(1)
		})
	}
	until(t, "every client has the first bytes", func() bool { return begun.Load() == clients || t.Failed() })
	if right.Load() != 0 {
		t.Error("a client has all bytes before they have come")
	}
	close(gate)
	wg.Wait()
	b.settled()
	if got := b.o.count("GET /v2/app/blobs/"); got != 1 {
		t.Errorf("%d downloads for %d clients, want 1", got, clients)
	}
	b.wantBlob("origin/app", data)
	if desc, err := b.store.ResolveBlob(t.Context(), "origin/app", d.Digest); err != nil || desc.Size != size {
		t.Errorf("in the store: %+v, %v", desc, err)
	}
	if left := b.parts(); len(left) > 0 {
		t.Errorf("left in the spool: %v", left)
	}
	if got := b.o.sentOf(d.Digest); got != size {
		t.Errorf("%d bytes were fetched, want %d", got, size)
	}
}

// checkingWriter compares what is written with the expected bytes.
type checkingWriter struct {
	want  []byte
	at    int
	wrong bool
	first func()
}

func (w *checkingWriter) Write(p []byte) (int, error) {
	if w.at == 0 && len(p) > 0 {
		w.first()
	}
	if w.at+len(p) > len(w.want) || !bytes.Equal(p, w.want[w.at:w.at+len(p)]) {
		w.wrong = true
	}
	w.at += len(p)
	return len(p), nil
}

// TestSizes fetches blobs of sizes around the limits of the ways to fetch, twice by both ways of
// reading.
func TestSizes(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	b := newBed(t, settings{})
	for _, size := range []int{0, 1, sizeTiny, 64 << 10, 64<<10 + 1, sizeSmall, 1 << 20, 1<<20 + 1, sizeLarge} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			data := random(2, size)
			d := b.o.push("app", data)
			c, err := b.GetBlob(t.Context(), "origin/app", d.Digest)
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(struct{ io.Reader }{c})
			if err != nil || !bytes.Equal(got, data) {
				t.Errorf("read %d bytes, %v", len(got), err)
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
			b.wantBlob("origin/app", data)
			b.settled()
			b.wantBlob("origin/app", data)
			if got := b.o.count("GET /v2/app/blobs/" + string(d.Digest)); got != 1 {
				t.Errorf("%d downloads, want 1", got)
			}
		})
	}
}

// TestSHA512 checks that the digest's own algorithm is used.
func TestSHA512(t *testing.T) {
	b := newBed(t, settings{})
	for _, size := range []int{sizeTiny, sizeLarge} {
		data := random(2, size)
		want := sha512Of(data)
		if _, err := b.o.PushBlob(t.Context(), "app", want, int64(size), bytes.NewReader(data)); err != nil {
			t.Fatal(err)
		}
		got, err := b.get("origin/app", want)
		if err != nil || !bytes.Equal(got, data) {
			t.Errorf("blob of %d bytes: got %d, %v", size, len(got), err)
		}
		b.settled()
	}
}

// TestRangesWhileFilling checks that ranges are served from what has arrived and wait for the rest.
func TestRangesWhileFilling(t *testing.T) {
	for _, size := range []int{sizeSmall, sizeLarge} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			b := newBed(t, settings{})
			data := random(3, size)
			d := b.o.push("app", data)
			gate, at := make(chan struct{}), int64(size/2)
			b.o.on(func(r *http.Request) *fault {
				if isBlob(r, d.Digest) {
					return &fault{gate: gate, gateAt: at}
				}
				return nil
			})
			part := func(off, n int64) ([]byte, error) {
				return read(b.GetBlobRange(t.Context(), "origin/app", d.Digest, off, n))
			}
			for _, p := range [][2]int64{{0, 1}, {10, 1000}, {at - 100, 100}, {0, at}} {
				got, err := part(p[0], p[1])
				if err != nil || !bytes.Equal(got, data[p[0]:p[0]+p[1]]) {
					t.Errorf("range %v: %d bytes, %v", p, len(got), err)
				}
			}
			if _, err := part(int64(size), 1); !oci.HasCode(err, oci.CodeRangeInvalid) {
				t.Errorf("range behind the end: %v, want RANGE_INVALID", err)
			}
			desc, err := b.ResolveBlob(t.Context(), "origin/app", d.Digest)
			if err != nil || desc.Size != int64(size) {
				t.Errorf("resolve: %+v, %v", desc, err)
			}
			late := make(chan error, 1)
			go func() {
				got, err := part(int64(size)-500, -1)
				if err == nil && !bytes.Equal(got, data[size-500:]) {
					err = fmt.Errorf("%d other bytes", len(got))
				}
				late <- err
			}()
			select {
			case err := <-late:
				t.Errorf("the end was given out before it has come: %v", err)
			default:
			}
			close(gate)
			if err := <-late; err != nil {
				t.Errorf("the last bytes: %v", err)
			}
			b.settled()
			if got := b.o.count("GET /v2/app/blobs/"); got != 1 {
				t.Errorf("%d downloads, want 1", got)
			}
			if got, err := part(7, 9); err != nil || !bytes.Equal(got, data[7:16]) {
				t.Errorf("range of the stored blob: %d bytes, %v", len(got), err)
			}
		})
	}
}

// TestWrongBytes checks that wrong content never reaches a client whole and is never stored,
// however it is wrong. The next request gets the right bytes.
func TestWrongBytes(t *testing.T) {
	b := newBed(t, settings{options: func(o *mirror.Options) { o.Patience = 1 }})
	seed := uint64(100)
	for _, size := range []int{sizeTiny, sizeSmall, sizeLarge} {
		for name, f := range map[string]fault{
			"first byte":    {flip: true},
			"last byte":     {flip: true, flipAt: int64(size - 1)},
			"longer":        {more: 5},
			"shorter":       {less: 5},
			"chunked":       {flip: true, flipAt: int64(size / 2), chunked: true},
			"chunked short": {less: 5, chunked: true},
		} {
			seed++
			t.Run(fmt.Sprint(name, " of ", size), func(t *testing.T) { b.servesNothingWrong(t, random(seed, size), f) })
		}
	}
}

func (b *bed) servesNothingWrong(t *testing.T, data []byte, f fault) {
	d := b.o.push("app", data)
	wrong := b.happened(mirror.ActionWrong)
	b.o.on(func(r *http.Request) *fault {
		if isBlob(r, d.Digest) {
			g := f
			return &g
		}
		return nil
	})
	got, err := b.get("origin/app", d.Digest)
	if err == nil {
		t.Fatalf("%d bytes were served without an error", len(got))
	}
	if len(got) >= len(data) {
		t.Errorf("%d bytes of %d were given out", len(got), len(data))
	}
	b.settled()
	if _, err := b.store.ResolveBlob(t.Context(), "origin/app", d.Digest); !oci.HasCode(err, oci.CodeBlobUnknown) {
		t.Errorf("in the store: %v, want BLOB_UNKNOWN", err)
	}
	if left := b.parts(); len(left) > 0 {
		t.Errorf("left in the spool: %v", left)
	}
	if b.happened(mirror.ActionWrong) == wrong {
		t.Error("there is no event about the wrong bytes")
	}
	b.o.on(nil)
	b.wantBlob("origin/app", data)
	b.settled()
}

// TestWrongOnce checks that a small blob which is wrong at first is fetched again before anybody
// gets an error.
func TestWrongOnce(t *testing.T) {
	b := newBed(t, settings{})
	data := random(4, sizeTiny)
	d := b.o.push("app", data)
	var asked atomic.Int64
	b.o.on(func(r *http.Request) *fault {
		return &fault{flip: isBlob(r, d.Digest) && asked.Add(1) == 1}
	})
	b.wantBlob("origin/app", data)
}

// TestResume checks that an interrupted download continues where it stopped, once for each
// interruption, and that each byte is sent once.
func TestResume(t *testing.T) {
	for _, size := range []int{sizeSmall, sizeLarge} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			b := newBed(t, settings{})
			data := random(5, size)
			d := b.o.push("app", data)
			var asked atomic.Int64
			const breaks = 4
			b.o.on(func(r *http.Request) *fault {
				if isBlob(r, d.Digest) && asked.Add(1) <= breaks {
					return &fault{cutAt: int64(size / (breaks + 1))}
				}
				return nil
			})
			b.wantBlob("origin/app", data)
			b.settled()
			if got := asked.Load(); got != breaks+1 {
				t.Errorf("%d downloads for %d breaks, want one more", got, breaks)
			}
			if got := b.o.sentOf(d.Digest); got != int64(size) {
				t.Errorf("%d bytes were sent of a blob of %d", got, size)
			}
			if got := b.Status().Sources[0].Resumed; got != breaks {
				t.Errorf("status has %d resumed downloads, want %d", got, breaks)
			}
		})
	}
}

// TestResumeWithoutRanges checks that an upstream without ranges sends everything again, and that
// the mirror skips what it already has.
func TestResumeWithoutRanges(t *testing.T) {
	b := newBed(t, settings{})
	data := random(5, sizeLarge)
	d := b.o.push("app", data)
	var asked atomic.Int64
	b.o.on(func(r *http.Request) *fault {
		f := &fault{noRange: true}
		if isBlob(r, d.Digest) && asked.Add(1) == 1 {
			f.cutAt = 2 << 20
		}
		return f
	})
	b.wantBlob("origin/app", data)
}

// TestRetries checks that temporary upstream failures are no errors for a client.
func TestRetries(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	b := newBed(t, settings{})
	data := random(6, sizeLarge)
	d := b.o.push("app", data)
	var asked atomic.Int64
	b.o.on(func(r *http.Request) *fault {
		if !isBlob(r, d.Digest) {
			return nil
		}
		switch asked.Add(1) {
		case 1:
			return &fault{status: http.StatusServiceUnavailable}
		case 2:
			return &fault{status: http.StatusBadGateway, body: "<html>"}
		case 3:
			return &fault{cutAt: 1 << 20}
		case 4:
			return &fault{status: http.StatusTooManyRequests, header: map[string]string{"Retry-After": "1"}}
		}
		return nil
	})
	b.wantBlob("origin/app", data)
}

// TestRestart checks that a new process continues the downloads of the previous one.
func TestRestart(t *testing.T) {
	for _, size := range []int{sizeSmall, sizeLarge} {
		t.Run(fmt.Sprint(size), func(t *testing.T) { restart(t, size) })
	}
}

// TestGivenUp checks that the fetched part of a blob is kept when its upstream is away for longer
// than anybody waits.
func TestGivenUp(t *testing.T) {
	for _, size := range []int{sizeSmall, sizeLarge} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			b := newBed(t, settings{options: func(o *mirror.Options) { o.Patience = 100 * time.Millisecond }})
			data := random(7, size)
			d := b.o.push("app", data)
			var asked atomic.Int64
			b.o.on(func(r *http.Request) *fault {
				switch {
				case !isBlob(r, d.Digest):
				case asked.Add(1) == 1:
					return &fault{cutAt: int64(size / 2)}
				default:
					return &fault{status: http.StatusTooManyRequests, header: map[string]string{"Retry-After": "60"}}
				}
				return nil
			})
			if got, err := b.get("origin/app", d.Digest); err == nil {
				t.Errorf("%d bytes came", len(got))
			}
			b.settled()
			b.o.on(nil)
			b.clock.Add(2 * time.Minute) // the upstream may be asked again
			b.wantBlob("origin/app", data)
			b.settled()
			if got := b.o.sentOf(d.Digest); got != int64(size) {
				t.Errorf("%d bytes were sent of a blob of %d", got, size)
			}
			if left := b.parts(); len(left) > 0 {
				t.Errorf("left in the spool: %v", left)
			}
		})
	}
}

func restart(t *testing.T, size int) {
	b := newBed(t, settings{})
	data := random(7, size)
	d := b.o.push("app", data)
	gate := make(chan struct{})
	defer close(gate)
	before := int64(size / 2)
	b.o.on(func(r *http.Request) *fault {
		if isBlob(r, d.Digest) {
			return &fault{gate: gate, gateAt: before}
		}
		return nil
	})
	c, err := b.GetBlob(t.Context(), "origin/app", d.Digest)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(io.Discard, c, before); err != nil {
		t.Fatal(err)
	}
	b.shut(b.Registry)
	if _, err := io.Copy(io.Discard, c); err == nil {
		t.Error("a reader has seen the end of a blob that never came")
	}
	c.Close()
	if got := len(b.parts()); got != 1 {
		t.Fatalf("%d files in the spool, want 1", got)
	}
	b.o.on(nil)
	b.open(settings{})
	b.wantBlob("origin/app", data)
	b.settled()
	if got := b.o.sentOf(d.Digest); got != int64(size) {
		t.Errorf("%d bytes were sent of a blob of %d", got, size)
	}
	if left := b.parts(); len(left) > 0 {
		t.Errorf("left in the spool: %v", left)
	}
}

// TestRestartWithDamage checks that an old file that is not the beginning of the blob costs one
// download and nothing else.
func TestRestartWithDamage(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	data := random(7, sizeLarge)
	for name, left := range map[string][]byte{
		"zeros":    make([]byte, 1<<20),
		"too long": random(8, sizeLarge+1),
		"whole":    data,
		"empty":    {},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, settings{})
			d := b.o.push("app", data)
			b.shut(b.Registry)
			file := filepath.Join(b.dir, "sha256-"+d.Digest.Encoded()+".part")
			if err := os.WriteFile(file, left, 0o600); err != nil {
				t.Fatal(err)
			}
			b.open(settings{})
			if got, err := b.get("origin/app", d.Digest); name == "zeros" {
				if err == nil || len(got) >= len(data) {
					t.Errorf("a damaged blob was served: %d bytes, %v", len(got), err)
				}
			} else if err != nil || !bytes.Equal(got, data) {
				t.Errorf("%d bytes, %v", len(got), err)
			}
			b.settled()
			b.wantBlob("origin/app", data)
			b.settled()
			if left := b.parts(); len(left) > 0 {
				t.Errorf("left in the spool: %v", left)
			}
			if name == "whole" && b.o.count("GET /v2/app/blobs/") > 0 {
				t.Error("a blob that was whole was fetched again")
			}
		})
	}
}

// TestLinger checks that a fill continues after its last reader has left, but not for ever.
func TestLinger(t *testing.T) {
	b := newBed(t, settings{})
	data := random(9, sizeLarge)
	d := b.o.push("app", data)
	gate := make(chan struct{})
	b.o.on(func(r *http.Request) *fault {
		if isBlob(r, d.Digest) {
			return &fault{gate: gate, gateAt: 1 << 20}
		}
		return nil
	})
	leave := func() {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		c, err := b.GetBlob(ctx, "origin/app", d.Digest)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.CopyN(io.Discard, c, 1000); err != nil {
			t.Error(err)
		}
		c.Close()
	}
	leave()
	b.clock.Add(b.opts.Linger + 11*60e9)
	close(gate)
	b.settled()
	if got := len(b.parts()); got != 1 {
		t.Fatalf("%d files in the spool of an abandoned fill, want 1", got)
	}
	leave()
	b.settled()
	if _, err := b.store.ResolveBlob(t.Context(), "origin/app", d.Digest); err != nil {
		t.Errorf("a fill whose reader left was not finished: %v", err)
	}
}

// TestOtherRepository checks that content of another repository is shown only where the upstream
// has it, and is then not fetched again.
func TestOtherRepository(t *testing.T) {
	for name, wait := range map[string]bool{"while filling": false, "stored": true} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, settings{})
			data := random(10, sizeLarge)
			d := b.o.push("private", data)
			b.o.push("shared", data)
			gate := make(chan struct{})
			var once sync.Once
			b.o.on(func(r *http.Request) *fault {
				if isBlob(r, d.Digest) && !wait {
					return &fault{gate: gate, gateAt: 1 << 20}
				}
				return nil
			})
			open := func() { once.Do(func() { close(gate) }) }
			defer open()
			c, err := b.GetBlob(t.Context(), "origin/private", d.Digest)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if wait {
				if _, err := read(c, nil); err != nil {
					t.Fatal(err)
				}
				b.settled()
			}
			_, err = b.get("origin/public", d.Digest)
			wantCode(t, "blob of a repository without it", err, oci.CodeBlobUnknown)
			_, err = b.ResolveBlob(t.Context(), "origin/public", d.Digest)
			wantCode(t, "resolve it", err, oci.CodeBlobUnknown)
			shared, err := b.GetBlob(t.Context(), "origin/shared", d.Digest)
			if err != nil {
				t.Fatal(err)
			}
			open()
			if got, err := read(shared, nil); err != nil || !bytes.Equal(got, data) {
				t.Errorf("shared: %d bytes, %v", len(got), err)
			}
			b.settled()
			if got := b.o.count("GET /v2/private/blobs/"); got != 1 {
				t.Errorf("%d downloads, want 1", got)
			}
			for _, repo := range []string{"origin/private", "origin/shared"} {
				if _, err := b.store.ResolveBlob(t.Context(), repo, d.Digest); err != nil {
					t.Errorf("%s: %v", repo, err)
				}
			}
			if got := b.Status().Sources[0].PulledBytes; got != sizeLarge {
				t.Errorf("%d bytes were fetched, want those of one blob", got)
			}
		})
	}
}

// TestRace has many clients read many blobs in any order.
func TestRace(t *testing.T) {
	b := newBed(t, settings{options: func(o *mirror.Options) { o.MemoryBytes = 1 << 20 }})
	var blobs [][]byte
	for i := range 12 {
		blobs = append(blobs, random(uint64(20+i), 1000+i*i*20_000))
		b.o.push("app", blobs[i])
		b.o.push("other", blobs[i])
	}
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			mine := slices.Clone(blobs)
			slices.SortFunc(mine, func(x, y []byte) int { return int(x[i]) - int(y[i]) })
			for j, data := range mine {
				repo := "origin/app"
				if (i+j)%3 == 0 {
					repo = "origin/other"
				}
				b.wantBlob(repo, data)
			}
		})
	}
	wg.Wait()
	b.settled()
	for _, data := range blobs {
		if _, ok, err := b.store.Stored(t.Context(), oci.SHA256(data)); err != nil || !ok {
			t.Errorf("blob of %d bytes is not stored: %v", len(data), err)
		}
	}
	if left := b.parts(); len(left) > 0 {
		t.Errorf("left in the spool: %v", left)
	}
}
