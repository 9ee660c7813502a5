package server_test

import (
	"encoding/json"
	"strings"
	"testing"

	"example.org/slipway/internal/logtest"
	"example.org/slipway/oci"
	"example.org/slipway/registry/server"
	"example.org/slipway/workload/trace"
)

// TestPushesAreLoggedWithTheirSize checks that the access log has the size of each blob and
// manifest once, at the request that completes it, however the client sends the bytes.
func TestPushesAreLoggedWithTheirSize(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	const octets = "Content-Type: application/octet-stream"
	data := random(7, 30000)
	d := string(oci.SHA256(data))
	open := func(b *bed) string {
		return b.ask("POST", "/v2/a/blobs/uploads/", nil).Header.Get("Location")
	}
	patch := func(b *bed, at string, part []byte, more ...string) string {
		return b.ask("PATCH", at, part, append(more, octets)...).Header.Get("Location")
	}
	end := func(b *bed, at string, rest []byte, digest string) {
		b.ask("PUT", at+"?digest="+digest, rest, octets)
	}
	for name, c := range map[string]struct {
		push func(b *bed)
		want int
	}{
		"POST and PUT":           {func(b *bed) { end(b, open(b), data, d) }, len(data)},
		"POST alone":             {func(b *bed) { b.ask("POST", "/v2/a/blobs/uploads/?digest="+d, data, octets) }, len(data)},
		"PATCH and an empty PUT": {func(b *bed) { end(b, patch(b, open(b), data), []byte{}, d) }, len(data)},
		"PATCHes and a PUT with the rest": {func(b *bed) {
			end(b, patch(b, patch(b, open(b), data[:10000]), data[10000:20000]), data[20000:], d)
		}, len(data)},
		"ranges with a chunk refused": {func(b *bed) {
			at := patch(b, open(b), data[:10000], "Content-Range: 0-9999")
			b.ask("PATCH", at, data[15000:20000], octets, "Content-Range: 15000-19999")
			b.ask("GET", at, nil)
			end(b, patch(b, at, data[10000:], "Content-Range: 10000-29999"), []byte{}, d)
		}, len(data)},
		"a wrong digest, then the right one": {func(b *bed) {
			end(b, patch(b, open(b), data), []byte{}, string(oci.SHA256(data[1:])))
			end(b, open(b), data, d)
		}, len(data)},
		"twice":     {func(b *bed) { end(b, open(b), data, d); end(b, patch(b, open(b), data), nil, d) }, 2 * len(data)},
		"cancelled": {func(b *bed) { b.ask("DELETE", patch(b, open(b), data), nil) }, 0},
		"left":      {func(b *bed) { patch(b, open(b), data) }, 0},
		"mounted": {func(b *bed) {
			end(b, open(b), data, d)
			b.ask("POST", "/v2/b/blobs/uploads/?from=a&mount="+d, nil)
		}, len(data)},
		"empty": {func(b *bed) { end(b, open(b), []byte{}, string(oci.SHA256(nil))) }, 0},
		"manifest": {func(b *bed) {
			raw := b.imageJSON("a", 1)
			b.ask("PUT", "/v2/a/manifests/v1", raw, "Content-Type: application/vnd.oci.image.manifest.v1+json")
		}, -1}, // as long as it is
	} {
		t.Run(name, func(t *testing.T) {
			buf := &logtest.Buffer{}
			w := trace.NewWriter(buf, trace.FormatTrace)
			b := newBed(t, setup{server: server.Options{AccessLog: w}})
			c.push(b)
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			if c.want < 0 {
				c.want = len(b.imageJSON("a", 1))
			}
			if got := pushedBytes(t, buf.String()); got != c.want {
				t.Errorf("the log tells of %d bytes pushed, want %d:\n%s", got, c.want, buf)
			}
		})
	}
}

// pushedBytes adds up the sizes of completed pushes.
func pushedBytes(t *testing.T, log string) (n int) {
	t.Helper()
	for line := range strings.Lines(log) {
		var r struct {
			Method string `json:"http.request.method"`
			Status int    `json:"http.response.status"`
			Size   int    `json:"http.response.written"`
		}
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		if r.Status == 201 && (r.Method == "PUT" || r.Method == "POST") {
			n += r.Size
		}
	}
	return n
}
