package server_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"example.org/slipway/oci"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/objstore/fsstore"
	"example.org/slipway/registry/objstore/memstore"
	"example.org/slipway/registry/objstore/objtest"
)

// faults fails operations on demand. The error contains what only a log may show.
type faults struct {
	op  atomic.Pointer[string]
	err error
}

func (f *faults) set(op string) { f.op.Store(&op) }

func (f *faults) hooks() objtest.Faults {
	return objtest.Faults{Before: func(op, _ string) error {
		if p := f.op.Load(); p != nil && *p == op {
			return f.err
		}
		return nil
	}}
}

// TestStoreErrors checks that the client gets a clear error without internals whatever fails in the
// store, and that nothing half done is visible.
func TestStoreErrors(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	for _, c := range []struct {
		name   string
		err    error
		status int
	}{
		{"disk error", errors.New("sda: I/O error at secret sector"), 500},
		{"disk full", fmt.Errorf("secret volume: %w", objstore.ErrNoSpace), 507},
	} {
		for _, op := range []string{objtest.OpNewUpload, objtest.OpWrite, objtest.OpCommit, objtest.OpSuspend, objtest.OpResume} {
			t.Run(c.name+"/"+op, func(t *testing.T) {
				dir := t.TempDir()
				disk, err := fsstore.New(dir, nil)
				if err != nil {
					t.Fatal(err)
				}
				f := &faults{err: c.err}
				b := newBed(t, setup{store: objtest.Faulty(disk, f.hooks())})
				data := random(1, 300_000)
				d := string(oci.SHA256(data))
				loc := b.startUpload("a")
				b.ask("PATCH", loc, data[:100_000]).want(t, "the first chunk", 202, nil)
				f.set(op)
				var got answer
				if op == objtest.OpSuspend {
					got = b.ask("PATCH", loc, data[100_000:200_000])
				} else {
					got = b.ask("POST", "/v2/a/blobs/uploads/?digest="+d, data)
					if op == objtest.OpResume {
						got = b.ask("PUT", loc+"?digest="+d, data[100_000:])
					}
				}
				if op == objtest.OpResume && got.Status == 201 { // the first chunk was never there
					t.Errorf("got 201")
				}
				if op != objtest.OpSuspend && op != objtest.OpResume || got.Status >= 500 {
					got.wantError(t, "while the store fails", c.status, oci.CodeUnknown)
				}
				if strings.Contains(string(got.Body), "secret") {
					t.Errorf("the answer tells of the inside: %s", got.Body)
				}
				if !strings.Contains(b.log.String(), "secret") {
					t.Errorf("the log does not tell the cause:\n%s", b.log)
				}
				f.set("")
				if op == objtest.OpResume {
					b.ask("POST", "/v2/a/blobs/uploads/?digest="+d, data)
				} else {
					b.ask("HEAD", "/v2/a/blobs/"+d, nil).want(t, "after the error", 404, nil)
				}
				b.ask("DELETE", loc, nil)
				if n := b.gauge("slipway_registry_uploads_in_memory"); n != 0 {
					t.Errorf("%v uploads are left", n)
				}
				if left, err := filepath.Glob(filepath.Join(dir, "_staging", "*")); err != nil || len(left) > 0 {
					t.Errorf("left in staging: %v, %v", left, err)
				}
				b.ask("POST", "/v2/a/blobs/uploads/?digest="+d, data).want(t, "once the store works again", 201, nil)
				if got := b.ask("GET", "/v2/a/blobs/"+d, nil); string(got.Body) != string(data) {
					t.Errorf("got %d, and other bytes", got.Status)
				}
			})
		}
	}
}

// TestFullStore checks that a full store keeps its content and accepts more once there is room
// again.
func TestFullStore(t *testing.T) {
	b := newBed(t, setup{store: memstore.New(&memstore.Options{MaxBytes: 1_000_000})})
	first := random(1, 400_000)
	d := string(b.push("a", first))
	big := random(2, 900_000)
	for _, headers := range [][]string{nil, {"Transfer-Encoding: chunked"}} {
		target := "/v2/a/blobs/uploads/?digest=" + string(oci.SHA256(big))
		var got answer
		if headers == nil {
			got = b.ask("POST", target, big)
		} else {
			c := b.dial()
			c.send("POST %s HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", target, len(big), big)
			got = c.receive("POST")
		}
		got.wantError(t, fmt.Sprintf("more than fits %v", headers), 507, oci.CodeUnknown)
	}
	loc := b.startUpload("a")
	b.ask("PATCH", loc, big[:300_000]).want(t, "a chunk that fits", 202, nil)
	b.ask("PATCH", loc, big[300_000:]).wantError(t, "a chunk that does not", 507, oci.CodeUnknown)
	b.ask("GET", loc, nil).wantError(t, "its space is free again", 404, oci.CodeBlobUploadUnknown)
	second := random(3, 500_000)
	b.ask("POST", "/v2/a/blobs/uploads/?digest="+string(oci.SHA256(second)), second).want(t, "what fits then", 201, nil)
	if got := b.ask("GET", "/v2/a/blobs/"+d, nil); string(got.Body) != string(first) {
		t.Errorf("what was there before: got %d", got.Status)
	}
}

// TestReadErrors checks that a blob which cannot be read gives an error or an answer that ends
// early, never one that looks whole.
func TestReadErrors(t *testing.T) {
	f := &faults{err: errors.New("sda: I/O error at secret sector")}
	b := newBed(t, setup{store: objtest.Faulty(memstore.New(nil), f.hooks())})
	d := string(b.push("a", random(1, 300_000)))
	f.set(objtest.OpGet)
	got := b.ask("GET", "/v2/a/blobs/"+d, nil)
	got.wantError(t, "cannot be opened", 500, oci.CodeUnknown)
	if strings.Contains(string(got.Body), "secret") {
		t.Errorf("the answer tells of the inside: %s", got.Body)
	}
	f.set(objtest.OpRead)
	got = b.ask("GET", "/v2/a/blobs/"+d, nil)
	got.wantError(t, "cannot be read", 500, oci.CodeUnknown)
	f.set("")
	b.ask("GET", "/v2/a/blobs/"+d, nil).want(t, "once the store works again", 200, nil)
}

// halfStore returns half of each object.
type halfStore struct{ objstore.Store }

func (s halfStore) Get(ctx context.Context, key string, off, n int64) (objstore.Object, error) {
	o, err := s.Store.Get(ctx, key, off, n)
	return halfObject{o}, err
}

type halfObject struct{ objstore.Object }

func (o halfObject) WriteTo(w io.Writer) (int64, error) {
	n, err := io.CopyN(w, o.Object, o.Info().Size/2)
	if err == nil {
		err = errors.New("sda: I/O error at secret sector")
	}
	return n, err
}

// TestBrokenAnswers checks that an answer which cannot be finished ends early, and that the log
// says why.
func TestBrokenAnswers(t *testing.T) {
	b := newBed(t, setup{store: halfStore{memstore.New(nil)}})
	d := string(b.push("a", random(1, 300_000)))
	c := b.dial()
	c.send("GET /v2/a/blobs/%s HTTP/1.1\r\nHost: x\r\n\r\n", d)
	if got, err := c.tryReceive("GET"); err != io.ErrUnexpectedEOF || len(got.Body) != 150_000 {
		t.Errorf("got %d bytes, %v, want an answer cut short", len(got.Body), err)
	}
	waitFor(t, "the log tells of it", func() bool {
		return strings.Contains(b.log.String(), "answer cut short") && strings.Contains(b.log.String(), "secret sector")
	})
}

// TestClientsGone checks that a client which leaves in the middle is not a server error.
func TestClientsGone(t *testing.T) {
	dir := t.TempDir()
	disk, err := fsstore.New(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	b := newBed(t, setup{store: disk})
	d := string(b.push("a", random(1, 16<<20)))
	for range 5 {
		c := b.dial()
		c.send("GET /v2/a/blobs/%s HTTP/1.1\r\nHost: x\r\n\r\n", d)
		if _, err := io.CopyN(io.Discard, c.r, 100_000); err != nil {
			t.Fatal(err)
		}
		c.Close()
	}
	waitFor(t, "requests end", func() bool { return b.gauge("registry_http_in_flight_requests") == 0 })
	if log := b.log.String(); strings.Contains(log, "level=WARN") || strings.Contains(log, "level=ERROR") {
		t.Errorf("the log complains:\n%s", log)
	}
	waitFor(t, "files are closed", func() bool { return openFiles(t, dir) == 0 })
}

// openFiles counts this process's descriptors of regular files below dir.
func openFiles(t *testing.T, dir string) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("there is no /proc")
	}
	n := 0
	for _, e := range list {
		target, err := os.Readlink("/proc/self/fd/" + e.Name())
		if fi, statErr := os.Stat(target); err == nil && statErr == nil && fi.Mode().IsRegular() && strings.HasPrefix(target, dir+"/") {
			n++
		}
	}
	return n
}
