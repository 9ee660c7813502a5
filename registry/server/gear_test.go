package server_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/auth"
	"example.org/slipway/registry/server"
)

func digestOf(n name) string { return fmt.Sprintf("sha256:%x", n) }

func binaryList(names ...name) string {
	var b []byte
	for _, n := range names {
		b = append(b, n[:]...)
	}
	return string(b)
}

func jsonList(key string, names ...name) string {
	list := make([]string, len(names))
	for i, n := range names {
		list[i] = digestOf(n)
	}
	b, _ := json.Marshal(map[string][]string{key: list})
	return string(b)
}

const (
	binaryType = "Content-Type: application/octet-stream"
	jsonType   = "Content-Type: application/json"
	indexType  = "application/vnd.slipway.gear.index.v1"
	streamType = "application/vnd.slipway.gear.stream.v1"
	chunksType = "application/vnd.slipway.gear.chunks.v1"
	gearAt     = "/v2/alice/app/_slipway/gear/"
)

// newGearBed makes a registry that offers the extension to everybody.
func newGearBed(t *testing.T, o server.Options) (*bed, *memGear) {
	t.Helper()
	m := newMemGear()
	o.Gear = m
	b := newBed(t, setup{server: o})
	t.Cleanup(func() {
		if n := m.unclosed(); n != 0 {
			t.Errorf("%d contents were not closed", n)
		}
	})
	return b, m
}

func TestGearDiscovery(t *testing.T) {
	b, _ := newGearBed(t, server.Options{})
	info := `{"version":1,"index":["` + indexType + `"],"stream":["` + streamType + `"],"chunks":["` + chunksType + `"],"limits":{"names":100000,"profile_names":20000,"file_bytes":68719476736,"upload_bytes":1073741824}}`
	b.run(t, []exchange{
		{name: "what is offered", method: "GET", target: "/v2/_slipway/gear", status: 200, wantBody: info, want: map[string]string{"Content-Type": "application/json"}},
		{name: "in a repository", method: "GET", target: "/v2/alice/app/_slipway/gear", status: 200, wantBody: info},
		{name: "another method", method: "DELETE", target: "/v2/_slipway/gear", status: 405, code: oci.CodeUnsupported, want: map[string]string{"Allow": "GET"}},
	})
	for target, want := range map[string]int{"/v2/_oci/ext/discover": 1, "/v2/alice/app/_oci/ext/discover": 8} {
		var got struct {
			Extensions []struct {
				Name, URL, Description string
				Endpoints              []string
			}
		}
		a := b.ask("GET", target, nil)
		if err := json.Unmarshal(a.Body, &got); err != nil || a.Status != 200 || len(got.Extensions) != 1 {
			t.Fatalf("%s: got %d %s, %v", target, a.Status, a.Body, err)
		}
		if e := got.Extensions[0]; e.Name != "_slipway" || e.URL == "" || e.Description == "" || len(e.Endpoints) != want {
			t.Errorf("%s: got %+v", target, e)
		}
	}
}

func TestGearChunks(t *testing.T) {
	b, m := newGearBed(t, server.Options{})
	n := m.add("alice/app", []byte("0123456789abcdefghijABCDEFGHIJ"))
	at := gearAt + "files/" + digestOf(n) + "/chunks/"
	list := []exchange{
		{name: "one", method: "GET", target: at + "1-1", status: 200, wantBody: "abcdefghij", want: map[string]string{"Content-Type": chunksType, "Content-Length": "10", "Cache-Control": "public, max-age=31536000, immutable"}},
		{name: "all", method: "GET", target: at + "0-2", status: 200, wantBody: "0123456789abcdefghijABCDEFGHIJ"},
		{name: "behind the end", method: "GET", target: at + "2-3", status: 416, code: oci.CodeRangeInvalid},
		{name: "another method", method: "HEAD", target: at + "0-0", status: 405},
		{name: "another repository", method: "GET", target: strings.Replace(at, "alice/app", "none", 1) + "0-0", status: 404, code: oci.CodeBlobUnknown},
		{name: "malformed name", method: "GET", target: gearAt + "files/sha256:1/chunks/0-0", status: 400, code: oci.CodeDigestInvalid},
	}
	for _, chunks := range []string{"", "1", "1-", "-1", "2-1", "-1-2", "0--1", "0-99999999999999999999", "a-b", "0-1/", "0-1-2"} {
		list = append(list, exchange{name: "malformed " + chunks, method: "GET", target: at + chunks, status: 416, code: oci.CodeRangeInvalid})
	}
	b.run(t, list)
}

func TestGearIsNotOffered(t *testing.T) {
	b := newBed(t, setup{})
	d := string(oci.SHA256(nil))
	list := []exchange{
		{name: "discovery", method: "GET", target: "/v2/_oci/ext/discover", status: 200, wantBody: `{"extensions":[]}`},
		{name: "discovery of a repository", method: "GET", target: "/v2/a/_oci/ext/discover", status: 200, wantBody: `{"extensions":[]}`},
		{name: "discovery, another method", method: "POST", target: "/v2/_oci/ext/discover", headers: []string{"Content-Length: 0"}, status: 405, code: oci.CodeUnsupported, want: map[string]string{"Allow": "GET"}},
		{name: "offer", method: "GET", target: "/v2/_slipway/gear", status: 404, code: oci.CodeUnsupported},
		{name: "unknown", method: "GET", target: "/v2/_slipway/gears", status: 404, code: oci.CodeNameUnknown},
	}
	for _, path := range []string{"layers/" + d, "files/" + d, "profiles/" + d, "files/malformed"} {
		list = append(list, exchange{name: path, method: "GET", target: gearAt + path, status: 404, code: oci.CodeUnsupported})
	}
	for _, path := range []string{"files", "fetch", "query", "profiles/" + d} {
		list = append(list, exchange{name: path, method: "POST", target: gearAt + path, body: "x", status: 404, code: oci.CodeUnsupported})
	}
	b.run(t, list)
}

func TestGearPaths(t *testing.T) {
	b, _ := newGearBed(t, server.Options{})
	d := string(oci.SHA256(nil))
	d512 := "sha512:" + strings.Repeat("ab", 64)
	var list []exchange
	for _, target := range []string{
		"/v2/_slipway", "/v2/_slipway/", "/v2/_slipway/gear/", "/v2/_slipway/gear/layers/" + d, "/v2/_slipway/gear/fetch", "/v2/_slipway/gears/files/" + d,
		gearAt, gearAt + "layers", gearAt + "profiles", gearAt + "none/" + d, gearAt + "/layers/" + d, gearAt + "fetch/", gearAt + "query/x",
		"/v2/alice/app/_slipway/gearlayers/" + d, "/v2/alice/app/_slipway/volume", "/v2/alice/app/_oci/ext", "/v2/alice/app/_oci/ext/discover/", "/v2/_oci/ext/discovery",
	} {
		list = append(list, exchange{name: "unknown", method: "GET", target: target, status: 404, code: oci.CodeNameUnknown})
	}
	for _, arg := range []string{"layers/", "layers/x", "layers/sha256:abc", "layers/" + d + "/x", "layers/" + strings.ToUpper(d), "files/", "files/x", "files/" + d + "/", "files/" + d[:70],
		"files/" + d + "0", "files/sha256:" + strings.Repeat("E", 64), "files/" + strings.Repeat("e", 71), "files/" + d512, "profiles/", "profiles/latest"} {
		list = append(list, exchange{name: "malformed", method: "GET", target: gearAt + arg, status: 400, code: oci.CodeDigestInvalid})
	}
	list = append(list, exchange{name: "a layer may be sha512", method: "GET", target: gearAt + "layers/" + d512, status: 404, code: oci.CodeBlobUnknown})
	allow := map[string][]string{
		"layers/" + d: {"GET", "HEAD"}, "files/" + d: {"GET", "HEAD", "PUT"}, "files": {"POST"}, "fetch": {"POST"}, "query": {"POST"}, "profiles/" + d: {"GET", "POST"},
	}
	for path, methods := range allow {
		for _, m := range []string{"GET", "HEAD", "PUT", "POST", "PATCH", "DELETE", "OPTIONS", "VERB"} {
			if !slices.Contains(methods, m) {
				list = append(list, exchange{name: "another method", method: m, target: gearAt + path, status: 405, code: oci.CodeUnsupported, want: map[string]string{"Allow": strings.Join(methods, ", ")}})
			}
		}
	}
	b.run(t, list)
}

func TestGearContents(t *testing.T) {
	b, m := newGearBed(t, server.Options{})
	layer := oci.SHA256([]byte("layer"))
	small, large := []byte("0123456789"), random(3, 3<<20)
	n, nl, empty := m.add("alice/app", small), m.add("alice/app", large), m.add("alice/app", nil)
	other := m.add("bob/app", []byte("another tenant's"))
	index := m.addLayer("alice/app", layer, []byte("abcdefghij"))
	etag := `"` + digestOf(n) + `"`
	target := gearAt + "files/" + digestOf(n)
	absent := digestOf(name{1})
	whole := map[string]string{"Content-Length": "10", "Etag": etag, "Docker-Content-Digest": digestOf(n), "Content-Type": "application/octet-stream", "Accept-Ranges": "bytes",
		"Content-Range": "", "Cache-Control": "public, max-age=31536000, immutable", "X-Content-Type-Options": "nosniff", "Slipway-Gear-Name": ""}
	indexHead := map[string]string{"Content-Length": "10", "Etag": `"` + digestOf(index) + `"`, "Slipway-Gear-Name": digestOf(index), "Content-Type": indexType,
		"Accept-Ranges": "bytes", "Cache-Control": "public, max-age=31536000, immutable"}
	unknown := func(what, target string) exchange {
		return exchange{name: what, method: "GET", target: target, status: 404, code: oci.CodeBlobUnknown, want: map[string]string{"Cache-Control": "", "Etag": "", "Retry-After": ""}}
	}
	b.run(t, append(rangeExchanges(target, etag, whole), []exchange{
		{name: "empty", method: "GET", target: gearAt + "files/" + digestOf(empty), status: 200, want: map[string]string{"Content-Length": "0"}},
		{name: "empty, range", method: "GET", target: gearAt + "files/" + digestOf(empty), headers: []string{"Range: bytes=0-"}, status: 200, want: map[string]string{"Content-Length": "0"}},
		{name: "large", method: "GET", target: gearAt + "files/" + digestOf(nl), status: 200, wantBody: string(large)},
		{name: "large, range", method: "GET", target: gearAt + "files/" + digestOf(nl), headers: []string{"Range: bytes=1048570-2097160"}, status: 206, wantBody: string(large[1048570:2097161])},
		{name: "layer", method: "GET", target: gearAt + "layers/" + string(layer), status: 200, want: indexHead, wantBody: "abcdefghij"},
		{name: "layer, head", method: "HEAD", target: gearAt + "layers/" + string(layer), status: 200, want: indexHead},
		{name: "layer, range", method: "GET", target: gearAt + "layers/" + string(layer), headers: []string{"Range: bytes=2-3"}, status: 206, wantBody: "cd"},
		{name: "layer, not modified", method: "GET", target: gearAt + "layers/" + string(layer), headers: []string{`If-None-Match: "` + digestOf(index) + `"`}, status: 304,
			want: map[string]string{"Slipway-Gear-Name": digestOf(index), "Etag": `"` + digestOf(index) + `"`, "Content-Type": ""}},
		unknown("no file", gearAt+"files/"+absent),
		unknown("not accessible", gearAt+"files/"+digestOf(other)),
		unknown("no repository", "/v2/none/_slipway/gear/files/"+digestOf(n)),
		unknown("no layer", gearAt+"layers/"+absent),
		unknown("another repository's layer", "/v2/bob/app/_slipway/gear/layers/"+string(layer)),
		{name: "no file, head", method: "HEAD", target: gearAt + "files/" + absent, status: 404},
		{name: "no file, any", method: "GET", target: gearAt + "files/" + absent, headers: []string{"If-None-Match: *"}, status: 404, code: oci.CodeBlobUnknown},
	}...))
	for _, pair := range [][2]string{{gearAt + "files/" + absent, gearAt + "files/" + digestOf(other)}, {gearAt + "layers/" + absent, "/v2/bob/app/_slipway/gear/layers/" + string(layer)}} {
		if a, c := b.ask("GET", pair[0], nil), b.ask("GET", pair[1], nil); !bytes.Equal(a.Body, c.Body) {
			t.Errorf("what is not there is told from what may not be seen: %s, %s", a.Body, c.Body)
		}
	}
}

func TestGearPending(t *testing.T) {
	b, m := newGearBed(t, server.Options{})
	soon, failed := oci.SHA256([]byte("soon")), oci.SHA256([]byte("failed"))
	m.pending[soon] = &server.GearPendingError{RetryAfter: 2500 * time.Millisecond}
	m.pending[failed] = &server.GearPendingError{Reason: "entry 3: a path leads out"}
	a := b.ask("GET", gearAt+"layers/"+string(soon), nil)
	a.wantError(t, "soon", 404, oci.CodeBlobUnknown)
	a.want(t, "soon", 404, map[string]string{"Retry-After": "3", "Cache-Control": "no-store"})
	if !strings.Contains(string(a.Body), `"detail":{"state":"converting"}`) {
		t.Errorf("soon: got %s", a.Body)
	}
	a = b.ask("GET", gearAt+"layers/"+string(failed), nil)
	a.wantError(t, "failed", 404, oci.CodeBlobUnknown)
	a.want(t, "failed", 404, map[string]string{"Retry-After": ""})
	if !strings.Contains(string(a.Body), `"detail":{"state":"failed","reason":"entry 3: a path leads out"}`) {
		t.Errorf("failed: got %s", a.Body)
	}
	if a = b.ask("HEAD", gearAt+"layers/"+string(soon), nil); a.Status != 404 || len(a.Body) > 0 || a.Header.Get("Retry-After") != "3" {
		t.Errorf("head: got %d %q %v", a.Status, a.Body, a.Header)
	}
}

// TestGearBreaks uses contents and streams that cannot be read to their end.
func TestGearBreaks(t *testing.T) {
	b, m := newGearBed(t, server.Options{})
	n := m.add("alice/app", random(1, 300_000))
	target := gearAt + "files/" + digestOf(n)
	m.breakAt = 1
	a := b.ask("GET", target, nil)
	a.wantError(t, "at once", 500, oci.CodeUnknown)
	a.want(t, "at once", 500, map[string]string{"Etag": "", "Cache-Control": "no-store", "Docker-Content-Digest": "", "Accept-Ranges": ""})
	if strings.Contains(string(a.Body), "sector") {
		t.Errorf("the client is told of the disk: %s", a.Body)
	}
	list := []byte(binaryList(n))
	a = b.ask("POST", gearAt+"fetch", list, binaryType)
	a.wantError(t, "stream, at once", 500, oci.CodeUnknown)
	m.breakAt = 60_000
	b.ask("POST", gearAt+"fetch", list, binaryType).wantError(t, "stream, within the buffer", 500, oci.CodeUnknown)
	for _, method := range []string{"GET", "POST"} {
		m.breakAt = 200_000
		c := b.dial()
		if method == "GET" {
			c.send("GET %s HTTP/1.1\r\nHost: x\r\n\r\n", target)
		} else {
			c.send("POST %s HTTP/1.1\r\nHost: x\r\n%s\r\nContent-Length: %d\r\n\r\n%s", gearAt+"fetch", binaryType, len(list), list)
		}
		if got, err := c.tryReceive(method); err == nil {
			t.Errorf("%s: the answer of %d bytes that broke off looks whole", method, len(got.Body))
		}
		c.wantClosed(method)
	}
	if !strings.Contains(b.log.String(), "sector 17") {
		t.Error("the log does not tell why")
	}
}

func TestGearFetch(t *testing.T) {
	b, m := newGearBed(t, server.Options{})
	var names []name
	for i := range 300 {
		names = append(names, m.add("alice/app", random(byte(i), i*10)))
	}
	slices.SortFunc(names, func(a, c name) int { return bytes.Compare(a[:], c[:]) })
	profile := oci.SHA256([]byte("manifest"))
	m.profiles["alice/app@"+string(profile)] = names[:5]
	stream := func(names ...name) string {
		var out []byte
		for _, n := range names {
			out = appendFrame(out, n, m.files["alice/app"][n])
		}
		return string(out)
	}
	other := m.add("bob/app", []byte("x"))
	bad := func(what, header, body string, status int, code oci.Code) exchange {
		return exchange{name: what, method: "POST", target: gearAt + "fetch", headers: []string{header}, body: body, status: status, code: code}
	}
	few := stream(names[:5]...)
	b.run(t, []exchange{
		{name: "binary", method: "POST", target: gearAt + "fetch", headers: []string{binaryType}, body: binaryList(names...), status: 200, wantBody: stream(names...), want: map[string]string{"Content-Type": streamType, "Content-Length": ""}},
		{name: "JSON", method: "POST", target: gearAt + "fetch", headers: []string{jsonType + "; charset=utf-8"}, body: jsonList("names", names...), status: 200, wantBody: stream(names...)},
		{name: "short", method: "POST", target: gearAt + "fetch", headers: []string{binaryType}, body: binaryList(names[:5]...), status: 200, wantBody: few, want: map[string]string{"Content-Type": streamType, "Content-Length": fmt.Sprint(len(few))}},
		{name: "profile", method: "POST", target: gearAt + "fetch", headers: []string{jsonType}, body: ` {"profile": "` + string(profile) + `"} `, status: 200, wantBody: few},
		{name: "twice the same", method: "POST", target: gearAt + "fetch", headers: []string{binaryType}, body: binaryList(names[9], names[9]), status: 200, wantBody: stream(names[9], names[9])},
		{name: "none", method: "POST", target: gearAt + "fetch", headers: []string{binaryType, "Content-Length: 0"}, status: 200, want: map[string]string{"Content-Length": "0", "Content-Type": streamType}},
	})
	b.run(t, []exchange{
		bad("no such profile", jsonType, `{"profile":"`+digestOf(name{1})+`"}`, 404, oci.CodeManifestUnknown),
		bad("no such file", binaryType, binaryList(names[0], name{1}), 404, oci.CodeBlobUnknown),
		bad("not accessible", binaryType, binaryList(names[0], other), 404, oci.CodeBlobUnknown),
		bad("part of a name", binaryType, binaryList(names...)+"x", 400, oci.CodeSizeInvalid),
		bad("another type", "Content-Type: text/plain", "x", 415, oci.CodeUnsupported),
		bad("no type", "X: y", "x", 415, oci.CodeUnsupported),
		bad("no JSON", jsonType, `{"names":[`, 400, oci.CodeUnsupported),
		bad("more than JSON", jsonType, `{"names":[]} x`, 400, oci.CodeUnsupported),
		bad("no object", jsonType, `["`+digestOf(names[0])+`"]`, 400, oci.CodeUnsupported),
		bad("neither", jsonType, `{}`, 400, oci.CodeUnsupported),
		bad("null", jsonType, `{"names":null}`, 400, oci.CodeUnsupported),
		bad("both", jsonType, `{"names":[],"profile":"`+string(profile)+`"}`, 400, oci.CodeUnsupported),
		bad("names no list", jsonType, `{"names":"x"}`, 400, oci.CodeUnsupported),
		bad("a number", jsonType, `{"names":[17]}`, 400, oci.CodeDigestInvalid),
		bad("a short name", jsonType, `{"names":["sha256:abc"]}`, 400, oci.CodeDigestInvalid),
		bad("another algorithm", jsonType, `{"names":["sha512:`+strings.Repeat("ab", 64)+`"]}`, 400, oci.CodeDigestInvalid),
		bad("profile by tag", jsonType, `{"profile":"latest"}`, 400, oci.CodeDigestInvalid),
		bad("empty profile", jsonType, `{"profile":""}`, 400, oci.CodeDigestInvalid),
		{name: "an empty body", method: "POST", target: gearAt + "fetch", headers: []string{jsonType, "Content-Length: 0"}, status: 400, code: oci.CodeUnsupported},
	})
	a, c := b.ask("POST", gearAt+"fetch", []byte(binaryList(name{1})), binaryType), b.ask("POST", gearAt+"fetch", []byte(binaryList(other)), binaryType)
	if !bytes.Equal(a.Body, c.Body) {
		t.Errorf("what is not there is told from what may not be seen: %s, %s", a.Body, c.Body)
	}
}

// chunked returns a body without a length.
func chunked(parts ...string) string {
	var b strings.Builder
	for _, p := range parts {
		fmt.Fprintf(&b, "%x\r\n%s\r\n", len(p), p)
	}
	return b.String()
}

// TestGearLimits checks that lists and files which are too long are refused before they are in
// memory.
func TestGearLimits(t *testing.T) {
	b, m := newGearBed(t, server.Options{})
	manifest := string(oci.SHA256([]byte("m")))
	full := make([]byte, 100_000*32)
	for i := range 100_000 {
		binary.BigEndian.PutUint32(full[32*i:], uint32(i))
	}
	if a := b.ask("POST", gearAt+"query", full, binaryType); a.Status != 200 || !bytes.Equal(a.Body, full) {
		t.Errorf("a full list: got %d and %d bytes", a.Status, len(a.Body))
	}
	for _, e := range []struct {
		what, method, path, header string
		length                     int64
	}{
		{"a million names", "POST", "fetch", binaryType, 32_000_000},
		{"one name too many", "POST", "fetch", binaryType, 32*100_000 + 32},
		{"a million names in JSON", "POST", "fetch", jsonType, 74_000_000},
		{"a million names to query", "POST", "query", binaryType, 32_000_000},
		{"a long profile", "POST", "profiles/" + manifest, binaryType, 32*20_000 + 32},
		{"a long profile in JSON", "POST", "profiles/" + manifest, jsonType, 5_000_000},
		{"a long file", "PUT", "files/" + digestOf(name{1}), binaryType, 64<<30 + 1},
		{"a long stream", "POST", "files", "Content-Type: " + streamType, 1<<30 + 1},
	} {
		// Nothing of the body is sent: the length is enough.
		a := b.ask(e.method, gearAt+e.path, nil, e.header, fmt.Sprintf("Content-Length: %d", e.length))
		a.wantError(t, e.what, 413, oci.CodeSizeInvalid)
		if strings.Contains(e.what, "name") && !strings.Contains(string(a.Body), "split") {
			t.Errorf("%s: the message does not tell what to do: %s", e.what, a.Body)
		}
	}
	for _, e := range []struct{ what, path, header, part string }{
		{"endless", "fetch", binaryType, string(full[:32<<10])},
		{"endless JSON", "query", jsonType, `{"names":[` + strings.Repeat(`"`+digestOf(name{1})+`",`, 1000)},
		{"endless profile", "profiles/" + manifest, binaryType, string(full[:32<<10])},
	} {
		c := b.dial()
		c.send("POST %s HTTP/1.1\r\nHost: x\r\n%s\r\nTransfer-Encoding: chunked\r\n\r\n", gearAt+e.path, e.header)
		stop := make(chan struct{})
		go func() { // sends until the server closes the connection
			defer close(stop)
			for part := []byte(chunked(e.part)); ; {
				if _, err := c.Write(part); err != nil {
					return
				}
			}
		}()
		a, err := c.tryReceive("POST")
		if err == nil { // a reset may overtake the answer
			a.wantError(t, e.what, 413, oci.CodeSizeInvalid)
		}
		<-stop
		c.Close()
	}
	var list []name
	for i := range 100_001 {
		list = append(list, name{byte(i), byte(i >> 8), byte(i >> 16)})
	}
	b.ask("POST", gearAt+"query", []byte(jsonList("names", list...)), jsonType).wantError(t, "one name too many in JSON", 413, oci.CodeSizeInvalid)
	b.ask("POST", gearAt+"profiles/"+manifest, []byte(jsonList("names", list[:20_001]...)), jsonType).wantError(t, "a name too many in a profile", 413, oci.CodeSizeInvalid)
	b.ask("POST", gearAt+"profiles/"+manifest, []byte(binaryList(list[:20_000]...)), binaryType).want(t, "a full profile", 202, nil)
	if got := len(m.profiles["alice/app@"+manifest]); got != 20_000 {
		t.Errorf("the profile has %d names", got)
	}
}

func TestGearUploads(t *testing.T) {
	log := &auditor{}
	b, m := newGearBed(t, server.Options{Audit: log})
	data := []byte("0123456789")
	n, missing := name(sha256.Sum256(data)), name{7}
	empty := name(sha256.Sum256(nil))
	target := gearAt + "files/" + digestOf(n)
	one, two := []byte("one"), []byte("two")
	n1, n2 := name(sha256.Sum256(one)), name(sha256.Sum256(two))
	stream := string(appendFrame(appendFrame(nil, n1, one), n2, two))
	manifest := string(oci.SHA256([]byte("m")))
	created := map[string]string{"Location": target, "Docker-Content-Digest": digestOf(n), "Content-Length": "0"}
	b.run(t, []exchange{
		{name: "query", method: "POST", target: gearAt + "query", headers: []string{binaryType}, body: binaryList(missing, n), status: 200, wantBody: binaryList(missing, n), want: map[string]string{"Content-Type": "application/octet-stream"}},
		{name: "another content", method: "PUT", target: target, body: "0123456780", status: 400, code: oci.CodeDigestInvalid},
		{name: "no content", method: "PUT", target: target, headers: []string{"Content-Length: 0"}, status: 400, code: oci.CodeDigestInvalid},
		{name: "nothing is stored", method: "GET", target: target, status: 404, code: oci.CodeBlobUnknown},
		{name: "put", method: "PUT", target: target, body: string(data), status: 201, want: created},
		{name: "put again", method: "PUT", target: target, body: string(data), status: 201, want: created},
		{name: "put an empty file", method: "PUT", target: gearAt + "files/" + digestOf(empty), headers: []string{"Content-Length: 0"}, status: 201},
		{name: "get", method: "GET", target: target, status: 200, wantBody: string(data)},
		{name: "query in JSON", method: "POST", target: gearAt + "query", headers: []string{jsonType}, body: jsonList("names", n, missing, empty), status: 200, wantBody: jsonList("missing", missing), want: map[string]string{"Content-Type": "application/json"}},
		{name: "query of what is there", method: "POST", target: gearAt + "query", headers: []string{jsonType}, body: jsonList("names", n), status: 200, wantBody: `{"missing":[]}`},
		{name: "query of nothing", method: "POST", target: gearAt + "query", headers: []string{binaryType, "Content-Length: 0"}, status: 200, want: map[string]string{"Content-Length": "0"}},
		{name: "stream", method: "POST", target: gearAt + "files", headers: []string{"Content-Type: " + streamType}, body: stream, status: 201, wantBody: `{"stored":2}`, want: map[string]string{"Content-Type": "application/json"}},
		{name: "one of them", method: "GET", target: gearAt + "files/" + digestOf(n2), status: 200, wantBody: "two"},
		{name: "broken stream", method: "POST", target: gearAt + "files", headers: []string{"Content-Type: " + streamType}, body: stream[:50], status: 400, code: oci.CodeSizeInvalid},
		{name: "stream of another type", method: "POST", target: gearAt + "files", headers: []string{binaryType}, body: stream, status: 415, code: oci.CodeUnsupported},

		{name: "no profile", method: "GET", target: gearAt + "profiles/" + manifest, status: 404, code: oci.CodeManifestUnknown},
		{name: "report", method: "POST", target: gearAt + "profiles/" + manifest, headers: []string{jsonType}, body: jsonList("names", n2, n), status: 202, want: map[string]string{"Content-Length": "0"}},
		{name: "profile", method: "GET", target: gearAt + "profiles/" + manifest, status: 200, wantBody: jsonList("names", n2, n)},
		{name: "query of a profile", method: "POST", target: gearAt + "query", headers: []string{jsonType}, body: `{"profile":"` + manifest + `"}`, status: 200, wantBody: `{"missing":[]}`},
		{name: "profile of another repository", method: "GET", target: "/v2/bob/app/_slipway/gear/profiles/" + manifest, status: 404, code: oci.CodeManifestUnknown},
		{name: "report of nothing", method: "POST", target: gearAt + "profiles/" + manifest, headers: []string{jsonType}, body: `{"names":[]}`, status: 400, code: oci.CodeSizeInvalid},
		{name: "report a profile as itself", method: "POST", target: gearAt + "profiles/" + manifest, headers: []string{jsonType}, body: `{"profile":"` + manifest + `"}`, status: 400, code: oci.CodeSizeInvalid},
		{name: "report for no image", method: "POST", target: gearAt + "profiles/" + string(oci.SHA256([]byte("no manifest"))), headers: []string{binaryType}, body: binaryList(n), status: 404, code: oci.CodeManifestUnknown},
	})
	if want := []string{digestOf(n), digestOf(n), digestOf(empty), "gear files: 2"}; !slices.Equal(log.refs, want) {
		t.Errorf("audit: got %q, want %q", log.refs, want)
	}

	c := b.dial()
	c.send("PUT %s HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n%s0\r\n\r\n", gearAt+"files/"+digestOf(name(sha256.Sum256([]byte("abcdef")))), chunked("abc", "def"))
	c.receive("PUT").want(t, "put without a length", 201, nil)
	c.send("POST %s HTTP/1.1\r\nHost: x\r\n%s\r\nTransfer-Encoding: chunked\r\n\r\n%s0\r\n\r\n", gearAt+"query", binaryType, chunked(binaryList(missing)[:20], binaryList(missing)[20:]))
	if a := c.receive("POST"); a.Status != 200 || string(a.Body) != binaryList(missing) {
		t.Errorf("query without a length: got %d %q", a.Status, a.Body)
	}
	c.send("PUT %s HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n%szz\r\n\r\n", target, chunked("abc"))
	a := c.receive("PUT")
	a.wantError(t, "a body that breaks off", 400, oci.CodeSizeInvalid)
	if strings.Contains(string(a.Body), "hidden") {
		t.Errorf("a body that breaks off: got %s", a.Body)
	}

	m.mu.Lock()
	m.short = true
	m.mu.Unlock()
	b.ask("POST", gearAt+"query", []byte(binaryList(n)), binaryType).wantError(t, "an answer that fits no query", 500, oci.CodeUnknown)
}

// auditor collects references.
type auditor struct{ refs []string }

func (a *auditor) Record(e auth.Event) { a.refs = append(a.refs, e.Reference) }

// TestGearFlush checks that flushed data arrives, and that a source which is slow between two
// flushes does not count as a stalled client.
func TestGearFlush(t *testing.T) {
	b, m := newGearBed(t, server.Options{IdleTimeout: idle})
	m.hold = make(chan struct{})
	n := m.add("alice/app", random(1, 100_000))
	c := b.dial()
	c.send("POST %s HTTP/1.1\r\nHost: x\r\n%s\r\nContent-Length: 32\r\n\r\n%s", gearAt+"fetch", binaryType, binaryList(n))
	resp, err := http.ReadResponse(c.r, &http.Request{Method: "POST"})
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var first [1]byte
	if _, err := io.ReadFull(resp.Body, first[:]); err != nil || first[0] != n[0] {
		t.Fatalf("the first byte: got %x, %v", first, err)
	}
	began := time.Now()
	waitFor(t, "the client's patience is over", func() bool { return time.Since(began) > 2*idle })
	close(m.hold)
	rest, err := io.ReadAll(resp.Body)
	if err != nil || len(rest) != 100_039 {
		t.Errorf("the rest: got %d bytes, %v", len(rest), err)
	}
}

// TestGearClientLeaves checks that a stream ends when its client is gone.
func TestGearClientLeaves(t *testing.T) {
	b, m := newGearBed(t, server.Options{})
	m.hold = make(chan struct{})
	n := m.add("alice/app", []byte("x"))
	c := b.dial()
	c.send("POST %s HTTP/1.1\r\nHost: x\r\n%s\r\nContent-Length: 32\r\n\r\n%s", gearAt+"fetch", binaryType, binaryList(n))
	if _, err := c.r.ReadByte(); err != nil {
		t.Fatal(err)
	}
	c.Close()
	waitFor(t, "the request ends", func() bool { return b.gauge("registry_http_in_flight_requests") == 0 })
	if strings.Contains(b.log.String(), "cut short") {
		t.Errorf("the log blames the server: %s", b.log)
	}
}

func TestGearAccess(t *testing.T) {
	off := false
	m := newMemGear()
	b := newBed(t, setup{server: server.Options{Gear: m, Auth: newAuth(t, auth.Config{Token: &auth.TokenConfig{Builtin: &off}})}})
	data := []byte("alice's")
	n := m.add("alice/app", data)
	shared := m.add("shared", []byte("shared"))
	layer := oci.SHA256([]byte("layer"))
	m.addLayer("alice/app", layer, []byte("index"))
	const sharedAt = "/v2/shared/_slipway/gear/"
	challenge := map[string]string{"Www-Authenticate": `Basic realm="test"`}
	put := gearAt + "files/" + digestOf(n)
	var list []exchange
	for _, e := range []exchange{
		{name: "discovery", method: "GET", target: "/v2/alice/app/_oci/ext/discover", status: 200},
		{name: "offer", method: "GET", target: "/v2/alice/app/_slipway/gear", status: 200},
		{name: "layer", method: "GET", target: gearAt + "layers/" + string(layer), status: 200},
		{name: "file", method: "GET", target: put, status: 200},
		{name: "file, head", method: "HEAD", target: put, status: 200},
		{name: "put", method: "PUT", target: put, body: string(data), status: 201},
		{name: "stream", method: "POST", target: gearAt + "files", headers: []string{"Content-Type: " + streamType}, body: string(appendFrame(nil, n, data)), status: 201},
		{name: "fetch", method: "POST", target: gearAt + "fetch", headers: []string{binaryType}, body: binaryList(n), status: 200},
		{name: "query", method: "POST", target: gearAt + "query", headers: []string{binaryType}, body: binaryList(n), status: 200},
		{name: "report", method: "POST", target: gearAt + "profiles/" + string(layer), headers: []string{binaryType}, body: binaryList(n), status: 202},
		{name: "profile", method: "GET", target: gearAt + "profiles/" + string(layer), status: 200},
	} {
		none, bob, alice := e, e, e
		none.name, none.status, none.code, none.want = "anonymous: "+e.name, 401, oci.CodeUnauthorized, challenge
		bob.name, bob.status, bob.code, bob.headers = "bob: "+e.name, 403, oci.CodeDenied, append(slices.Clone(e.headers), basic("bob"))
		alice.name, alice.headers = "alice: "+e.name, append(slices.Clone(e.headers), basic("alice"))
		list = append(list, none, bob, alice)
	}
	b.run(t, list)
	b.run(t, []exchange{
		{name: "anonymous", method: "GET", target: "/v2/_slipway/gear", status: 401, code: oci.CodeUnauthorized, want: challenge},
		{name: "anonymous discovery", method: "GET", target: "/v2/_oci/ext/discover", status: 401, code: oci.CodeUnauthorized, want: challenge},
		{name: "offer", method: "GET", target: "/v2/_slipway/gear", headers: []string{basic("bob")}, status: 200},
		{name: "discovery", method: "GET", target: "/v2/_oci/ext/discover", headers: []string{basic("bob")}, status: 200},
		{name: "wrong password", method: "GET", target: put, headers: []string{"Authorization: Basic YWxpY2U6eA=="}, status: 401, code: oci.CodeUnauthorized, want: challenge},
		{name: "malformed, anonymous in public", method: "GET", target: "/v2/public/a/_slipway/gear/files/x", status: 400, code: oci.CodeDigestInvalid},
		{name: "caches keep private what is", method: "GET", target: sharedAt + "files/" + digestOf(shared), headers: []string{basic("bob")}, status: 200, wantBody: "shared",
			want: map[string]string{"Cache-Control": "private, max-age=31536000, immutable"}},
		{name: "who pulls may report", method: "POST", target: sharedAt + "profiles/" + string(layer), headers: []string{basic("bob"), binaryType}, body: binaryList(shared), status: 202},
		{name: "who pulls may not query", method: "POST", target: sharedAt + "query", headers: []string{basic("bob"), binaryType}, body: binaryList(n), status: 403, code: oci.CodeDenied},
		{name: "who pulls may not put", method: "PUT", target: sharedAt + "files/" + digestOf(n), headers: []string{basic("bob")}, body: string(data), status: 403, code: oci.CodeDenied},
	})
	// Bob may pull from shared. It makes no difference to him that alice has a file.
	for _, path := range []string{"files/", "layers/"} {
		secret, absent := digestOf(n), digestOf(name{1})
		if path == "layers/" {
			secret = string(layer)
		}
		a, c := b.ask("GET", sharedAt+path+secret, nil, basic("bob")), b.ask("GET", sharedAt+path+absent, nil, basic("bob"))
		a.wantError(t, path, 404, oci.CodeBlobUnknown)
		a.Header.Del("Date")
		c.Header.Del("Date")
		if !bytes.Equal(a.Body, c.Body) || fmt.Sprint(a.Header) != fmt.Sprint(c.Header) {
			t.Errorf("%s: bob is told of what is alice's: %s %v, absent: %s %v", path, a.Body, a.Header, c.Body, c.Header)
		}
	}
}

func TestGearRateLimits(t *testing.T) {
	b, m := newGearBed(t, server.Options{RequestsPerSecond: 0.01, Burst: 2, MaxUploadsPerClient: 1})
	n := m.add("alice/app", []byte("x"))
	for _, status := range []int{200, 200, 429} {
		if a := b.ask("GET", gearAt+"files/"+digestOf(n), nil); a.Status != status {
			t.Errorf("got status %d, want %d", a.Status, status)
		}
	}
	b, _ = newGearBed(t, server.Options{MaxUploadsPerClient: 1})
	c := b.dial()
	c.send("PUT %s HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n0123456789", gearAt+"files/"+digestOf(n))
	waitFor(t, "an upload is being sent", func() bool { return b.gauge("registry_http_in_flight_requests") == 1 })
	waitFor(t, "a second one is refused", func() bool {
		return b.ask("POST", gearAt+"files", []byte{}, "Content-Type: "+streamType).Status == 429
	})
	c.Close()
	waitFor(t, "the place is free", func() bool {
		return b.ask("POST", gearAt+"files", []byte{}, "Content-Type: "+streamType).Status == 201
	})
}

// TestGearMetrics checks that each endpoint has its own label and that paths have none.
func TestGearMetrics(t *testing.T) {
	b, _ := newGearBed(t, server.Options{})
	for i := range 20 {
		for _, path := range []string{"layers/%s", "files/%s", "profiles/%s", "none/%s"} {
			b.ask("GET", gearAt+fmt.Sprintf(path, digestOf(name{byte(i)})), nil)
		}
		for _, path := range []string{"fetch", "query", "files"} {
			b.ask("POST", gearAt+path, []byte{})
		}
		b.ask("GET", "/v2/_slipway/gear", nil)
		b.ask("GET", "/v2/_oci/ext/discover", nil)
	}
	got := map[string]float64{}
	for _, mt := range b.families()["registry_http_requests_total"].GetMetric() {
		for _, l := range mt.GetLabel() {
			if l.GetName() == "handler" {
				got[l.GetValue()] += mt.GetCounter().GetValue()
			}
		}
	}
	want := map[string]float64{"gear_layer": 20, "gear_file": 20, "gear_profile": 20, "gear_fetch": 20, "gear_query": 20, "gear_files": 20, "gear_info": 20, "extension": 40}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
