package mirror_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"example.org/slipway/oci"
)

// does is an upstream's handling of a request.
type does = func(x *exchange)

// send sends the right answer.
func send(x *exchange) { x.send() }

// only applies do to some requests and answers the others correctly.
func only(when func(x *exchange) bool, do does) does {
	return func(x *exchange) {
		if when(x) {
			do(x)
			return
		}
		x.send()
	}
}

func ofHead(x *exchange) bool  { return x.r.Method == http.MethodHead }
func ofRange(x *exchange) bool { return x.r.Header.Get("Range") != "" }
func first(x *exchange) bool   { return x.n == 0 }
func pageTwo(x *exchange) bool { return x.r.URL.Query().Get("last") != "" }
func odd(x *exchange) bool     { return x.n%2 == 0 }
func content(x *exchange) bool { return x.kind == "manifests" || x.kind == "blobs" }
func of(kinds ...string) func(x *exchange) bool {
	return func(x *exchange) bool { return slices.Contains(kinds, x.kind) }
}

// status answers with a status. header lists names and values alternately.
func status(code int, header ...string) does {
	return func(x *exchange) {
		x.fail(code, "UNKNOWN")
		x.with(header...)
		x.send()
	}
}

func (x *exchange) with(header ...string) {
	for i := 0; i < len(header); i += 2 {
		x.header.Set(header[i], header[i+1])
	}
}

// header answers with changed headers. An empty value removes a header.
func header(header ...string) does {
	return func(x *exchange) {
		x.with(header...)
		for k, v := range x.header {
			if v[0] == "" {
				x.header.Del(k)
			}
		}
		x.send()
	}
}

// body answers with a changed body.
func body(f func(b []byte) []byte) does {
	return func(x *exchange) {
		x.body = f(bytes.Clone(x.body))
		x.send()
	}
}

func text(s string) does { return body(func([]byte) []byte { return []byte(s) }) }

// page answers with a web page.
func page(x *exchange) {
	x.status, x.header, x.body = http.StatusOK, http.Header{"Content-Type": {"text/html"}}, []byte("<html>log in</html>")
	x.send()
}

func hangUp(x *exchange) { x.hangUp() }

// hang sends n bytes, or nothing at all if n is negative, and then stalls.
func hang(n int) does {
	return func(x *exchange) {
		if n >= 0 && ofHead(x) { // the answer has no body in which to stall
			x.send()
			return
		}
		if n >= 0 {
			maps.Copy(x.Header(), x.header)
			x.Header().Set("Content-Length", strconv.Itoa(len(x.body)))
			x.WriteHeader(x.status)
			_, _ = x.Write(x.body[:min(n, len(x.body))])
			_ = http.NewResponseController(x.ResponseWriter).Flush()
		}
		select {
		case <-x.r.Context().Done():
		case <-x.t.c.stop:
		}
		x.hangUp()
	}
}

// raw writes s to the connection, which is not a valid answer, and closes it.
func raw(s string) does {
	return func(x *exchange) {
		conn, _, err := http.NewResponseController(x.ResponseWriter).Hijack()
		if err == nil {
			_, _ = io.WriteString(conn, s)
			_ = conn.Close()
		}
	}
}

// half sends half of the answer, at most a limited part of a blob, and closes the connection.
func half(x *exchange) { x.sendSome(len(x.body) / 2) }

// bare sends n bytes of the answer without a length: in chunks with or without an end, or until the
// connection is closed.
func bare(n func(size int) int, how string) does {
	return func(x *exchange) {
		b := x.body[:n(len(x.body))]
		if ofHead(x) {
			b = nil
		}
		var head strings.Builder
		_ = x.header.Write(&head)
		switch how {
		case "close":
			raw("HTTP/1.0 200 OK\r\n" + head.String() + "\r\n" + string(b))(x)
		default:
			chunk := ""
			if len(b) > 0 {
				chunk = fmt.Sprintf("%x\r\n%s\r\n", len(b), b)
			}
			if how == "ended" && !ofHead(x) {
				chunk += "0\r\n\r\n"
			}
			raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n" + head.String() + "\r\n" + chunk)(x)
		}
	}
}

func all(size int) int  { return size }
func some(size int) int { return size / 2 }

func zipped(b []byte) []byte {
	var buf bytes.Buffer
	z := gzip.NewWriter(&buf)
	_, _ = z.Write(b)
	_ = z.Close()
	return buf.Bytes()
}

func flipped(b []byte) []byte {
	b[len(b)-3] ^= 1
	return b
}

// elsewhere redirects to another host, which is the same server under another name, and applies
// there to the requests at that host.
func elsewhere(there does) does {
	return func(x *exchange) {
		_, port, _ := strings.Cut(strings.TrimPrefix(x.t.c.URL, "http://"), ":")
		if strings.HasPrefix(x.r.Host, "localhost") {
			there(x)
			return
		}
		x.with("Location", "http://localhost:"+port+x.r.URL.RequestURI())
		x.status = http.StatusTemporaryRedirect
		x.body = nil
		x.send()
	}
}

func redirect(to string) does {
	return func(x *exchange) {
		x.status, x.body = http.StatusTemporaryRedirect, nil
		x.header = http.Header{}
		if to != "" {
			x.header.Set("Location", to)
		}
		x.send()
	}
}

// afterBreak sends 60 kB of a blob, closes the connection, and then applies another behaviour.
func afterBreak(then does) does {
	return only(of("blobs"), only(func(x *exchange) bool { return !ofHead(x) }, func(x *exchange) {
		if x.n == 0 {
			x.sendSome(60_000)
		}
		then(x)
	}))
}

// from answers a range request with another range.
func from(f func(at, size int) (contentRange string, begin int)) does {
	return only(ofRange, func(x *exchange) {
		at, _ := strconv.Atoi(strings.Trim(x.r.Header.Get("Range"), "bytes=-"))
		size := len(x.body)
		r, begin := f(at, size)
		x.r.Header.Del("Range")
		x.status, x.body = http.StatusPartialContent, x.body[begin:]
		x.header.Set("Content-Range", r)
		x.send()
	})
}

// cursor lists in pages of two. Its page marker is not a name, and it does not know last.
func cursor(x *exchange) {
	at, _ := strconv.Atoi(x.r.URL.Query().Get("next_page"))
	end := min(at+2, len(allTags))
	x.header.Del("Link")
	if end < len(allTags) {
		x.header.Set("Link", fmt.Sprintf(`<%s?n=2&next_page=%d>; rel="next"`, x.r.URL.Path, end))
	}
	x.list(allTags[at:end])
	x.send()
}

// whole lists everything, whatever was asked for.
func whole(x *exchange) {
	x.header.Del("Link")
	tags := slices.Clone(allTags)
	slices.Reverse(tags)
	x.list(tags)
	x.send()
}

// paged lists referrers in two pages and applies second to the second page.
func paged(second does) does {
	return only(of("referrers"), func(x *exchange) {
		names := namesIn(x.body)
		index := manifest{SchemaVersion: 2, MediaType: oci.MediaTypeOCIIndex}
		at := 0
		if x.r.URL.Query().Get("last") != "" {
			at = 1
		} else {
			x.header.Set("Link", fmt.Sprintf(`<%s?last=1>; rel="next"`, x.r.URL.Path))
		}
		index.Manifests = []oci.Descriptor{{MediaType: oci.MediaTypeOCIManifest, Digest: oci.Digest(names[at]), Size: 20}}
		x.body = encode(index)
		if at == 1 {
			second(x)
			return
		}
		x.send()
	})
}

// tagged keeps referrers under a tag. It applies api to requests to the API and tag to requests for
// the tag.
func tagged(api, tag does) does {
	return func(x *exchange) {
		switch {
		case x.kind == "referrers":
			api(x)
		case x.ref == oci.ReferrersTag(x.t.images[0].digest):
			x.status, x.body = http.StatusOK, x.t.images[0].referrers
			x.header = http.Header{}
			x.content(oci.MediaTypeOCIIndex)
			tag(x)
		default:
			x.send()
		}
	}
}

func but(list ...any) map[string]verdict {
	m := map[string]verdict{}
	v := right
	for _, e := range list {
		switch e := e.(type) {
		case verdict:
			v = e
		case string:
			m[e] = v
		}
	}
	return m
}

// behaviours returns behaviours that upstreams are known for, and some that HTTP and the
// distribution specification leave open.
func behaviours() []behaviour {
	var list []behaviour
	add := func(name string, v verdict, do does, except map[string]verdict) *behaviour {
		list = append(list, behaviour{name: name, verdict: v, does: do, but: except})
		return &list[len(list)-1]
	}
	aboutHead(add)
	aboutStatus(add)
	aboutAnswers(add)
	aboutBreaks(add)
	aboutLists(add)
	return list
}

type adder = func(name string, v verdict, do does, except map[string]verdict) *behaviour

// aboutHead covers upstreams where HEAD differs from GET.
func aboutHead(add adder) {
	for _, code := range []int{400, 401, 403, 404, 405, 410, 418, 500, 501, 502, 504} {
		add(fmt.Sprintf("HEAD is answered %d", code), right, only(ofHead, status(code)), nil)
	}
	add("HEAD is answered 404 and GET fails", fails, func(x *exchange) {
		if ofHead(x) {
			status(404)(x)
		} else {
			status(500)(x)
		}
	}, nil)
	add("HEAD is answered 403 and GET is limited", busy, func(x *exchange) {
		if ofHead(x) {
			status(403)(x)
		} else {
			status(429, "Retry-After", "30")(x)
		}
	}, nil)
	add("HEAD is answered 200 for what is not there", gone, func(x *exchange) {
		if ofHead(x) {
			x.header = http.Header{}
			x.send()
		} else {
			status(404)(x)
		}
	}, but(none, referrers, untold, headBlob))
	add("HEAD ends the connection", right, only(ofHead, hangUp), nil)
	add("HEAD is answered with a web page", right, only(ofHead, page), nil)
	add("HEAD is answered with garbage", right, only(ofHead, raw("what?\r\n\r\n")), nil)
	add("HEAD is answered 204", right, only(ofHead, func(x *exchange) { x.status = 204; x.header = http.Header{}; x.body = nil; x.send() }), nil)
	add("HEAD tells nothing", right, only(ofHead, func(x *exchange) {
		x.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(x.ResponseWriter).Flush()
	}), nil)
	add("HEAD says that everything is empty", right, only(ofHead, text("")), nil)
	add("HEAD is redirected to where only GET is signed", right, elsewhere(only(ofHead, status(403))), nil)
	add("HEAD tells the size of what would be compressed", right, only(ofHead, func(x *exchange) {
		x.body = zipped(x.body)
		x.with("Content-Encoding", "gzip")
		x.send()
	}), nil)
}

// aboutStatus covers upstreams that refuse everything, in every way.
func aboutStatus(add adder) {
	for _, code := range []int{404, 410} {
		add(fmt.Sprintf("everything is answered %d", code), gone, status(code), but(none, referrers))
	}
	add("404 is a web page", gone, func(x *exchange) {
		x.status, x.header, x.body = 404, http.Header{"Content-Type": {"text/html"}}, []byte("<html>")
		x.send()
	}, but(none, referrers))
	for _, code := range []int{401, 403, 451} {
		add(fmt.Sprintf("everything is answered %d", code), denied, status(code), nil)
	}
	for _, code := range []int{400, 405, 408, 418, 500, 501, 502, 503, 504, 507, 600} {
		add(fmt.Sprintf("everything is answered %d", code), fails, status(code), nil)
	}
	add("manifests are denied by digest", right, only(func(x *exchange) bool { return x.kind == "manifests" && oci.IsDigest(x.ref) }, status(403)),
		but(denied, byDigest))
	add("a name is not valid", gone, func(x *exchange) { x.fail(400, "NAME_INVALID"); x.send() }, but(none, referrers))
	add("everything is answered 503 for a time", busy, status(503, "Retry-After", "30"), nil)
	add("everything is answered 429 for a time", busy, status(429, "Retry-After", "30"), nil)
	add("everything is answered 429", busy, status(429), nil)
	limited := status(429, "Retry-After", "30")
	add("manifests are limited", right, only(of("manifests"), limited), but(busy, byTag, byDigest)).before = byTag
	add("manifests are limited by GET alone", right, only(func(x *exchange) bool { return x.kind == "manifests" && !ofHead(x) }, limited),
		but(busy, byTag, byDigest)).before = byTag
	add("blobs are limited", right, only(of("blobs"), limited), but(busy, smallBlob, largeBlob, headBlob)).before = smallBlob
	add("lists are limited", right, only(of("tags", "referrers"), limited), but(busy, tagList, referrers)).before = tagList
	add("every second request fails", right, only(odd, status(500)), nil)
	add("the first request fails", right, only(first, status(503)), nil)
	add("the first request ends the connection", right, only(first, hangUp), nil)
}

// aboutAnswers covers responses that only look like an answer, and responses that answer
// something else.
func aboutAnswers(add adder) {
	add("everything is a web page", fails, page, nil)
	add("answers are empty", fails, text(""), nil)
	add("everything is answered 204", fails, func(x *exchange) { x.status, x.header, x.body = 204, http.Header{}, nil; x.send() }, nil)
	add("everything is answered 304", fails, func(x *exchange) { x.status, x.body = 304, nil; x.send() }, nil)
	add("everything is answered 206", fails, func(x *exchange) {
		x.with("Content-Range", fmt.Sprintf("bytes 0-9/%d", len(x.body)))
		x.status, x.body = 206, x.body[:10]
		x.send()
	}, nil)
	add("redirects lead to another host", right, elsewhere(send), nil)
	add("redirects lead in a circle", fails, elsewhere(func(x *exchange) { redirect(x.t.c.URL + x.r.URL.RequestURI())(x) }), nil)
	add("redirects lead nowhere", fails, redirect(""), nil)
	add("redirects lead to nobody", fails, redirect("http://127.0.0.1:1/"), nil)
	add("redirects lead to the metadata service", fails, redirect("http://169.254.169.254/latest/meta-data/"), nil)
	add("redirects lead to what denies", fails, elsewhere(status(403)), nil)
	add("answers are compressed", right, func(x *exchange) {
		x.body = zipped(x.body)
		x.with("Content-Encoding", "gzip")
		x.send()
	}, but(fails, smallBlob, largeBlob, headBlob))
	add("answers are compressed, which is said in capitals", right, func(x *exchange) {
		x.body = zipped(x.body)
		x.with("Content-Encoding", "GZIP")
		x.send()
	}, but(fails, smallBlob, largeBlob, headBlob))
	add("manifests of a type of their own are compressed in an unknown way", right, only(of("manifests"), func(x *exchange) {
		x.body = zipped(x.body)
		x.with("Content-Encoding", "zstd", "Content-Type", "application/vnd.example.own")
		x.header.Del("Docker-Content-Digest")
		x.send()
	}), but(fails, byTag, byDigest))
	add("answers are said to be compressed", right, header("Content-Encoding", "gzip"), nil)
	add("answers are compressed in an unknown way", fails, func(x *exchange) {
		x.body = zipped(x.body) // as valid as any other
		x.with("Content-Encoding", "br")
		x.header.Del("Docker-Content-Digest")
		x.send()
	}, nil)
	add("answers are compressed and do not say so", fails, func(x *exchange) {
		x.body = zipped(x.body)
		x.header.Del("Docker-Content-Digest")
		x.send()
	}, but(untold, headBlob))
	add("a bit is wrong", right, only(content, body(flipped)), but(fails, byTag, byDigest, smallBlob, largeBlob))
	add("other content", right, only(content, func(x *exchange) {
		x.body = x.t.images[1].referrers
		x.send()
	}), but(fails, byTag, byDigest, smallBlob, largeBlob, untold, headBlob))
	add("another digest is told", right, only(content, header("Docker-Content-Digest", string(oci.SHA256([]byte("other"))))),
		but(fails, byTag, smallBlob, largeBlob, headBlob))
	add("no digest is told", right, header("Docker-Content-Digest", ""), nil)
	add("a malformed digest is told", right, header("Docker-Content-Digest", "md5:1"), nil)
	add("no type is told", right, only(content, header("Content-Type", "")), nil)
	add("the type is JSON", right, header("Content-Type", "application/json"), nil)
	add("the type is plain text", right, only(of("manifests"), header("Content-Type", "text/plain; charset=utf-8")), nil)
	add("the type is another one", right, only(of("manifests"), header("Content-Type", oci.MediaTypeDockerManifest)), but(fails, byTag, byDigest))
	add("early hints come first", right, func(x *exchange) {
		x.ResponseWriter.WriteHeader(http.StatusEarlyHints)
		x.send()
	}, nil)
}

// aboutBreaks covers connections that end too early, too late, or not at all.
func aboutBreaks(add adder) {
	add("connections end at once", fails, hangUp, nil)
	add("answers are not of HTTP", fails, raw("SSH-2.0-OpenSSH_9.6\r\n"), nil)
	add("headers are huge", fails, func(x *exchange) { header("X-Large", strings.Repeat("x", 400<<10))(x) }, nil)
	add("nothing is answered", fails, hang(-1), nil).silent = true
	add("answers stand still", fails, hang(30), but(right, headBlob)).silent = true
	add("answers break in the middle", fails, half, but(right, smallBlob, largeBlob, headBlob))
	add("answers break once", right, only(func(x *exchange) bool { return x.n == 0 && !ofHead(x) }, half), nil)
	add("connections bring 40 kB each", right, only(of("blobs"), func(x *exchange) { x.sendSome(40_000) }), nil)
	add("answers are short", fails, body(func(b []byte) []byte { return b[:len(b)/2] }), but(untold, headBlob))
	add("answers are chunked", right, bare(all, "ended"), nil)
	add("chunked answers break", fails, bare(some, ""), nil)
	add("chunked answers are short", fails, bare(some, "ended"), nil)
	add("answers end with the connection", right, bare(all, "close"), nil)
	add("connections end in the middle of the answer", fails, bare(some, "close"), nil)
	add("answers are too long", fails, body(func(b []byte) []byte { return append(b, "and more"...) }), but(untold, headBlob))
	add("ranges are ignored", right, afterBreak(only(ofRange, func(x *exchange) { x.r.Header.Del("Range"); x.send() })), nil)
	for _, code := range []int{400, 403, 405, 416, 501} {
		add(fmt.Sprintf("ranges are answered %d", code), right, afterBreak(only(ofRange, status(code))), nil)
	}
	add("ranges begin elsewhere", right, afterBreak(from(func(at, size int) (string, int) {
		return fmt.Sprintf("bytes %d-%d/%d", at-10, size-1, size), at - 10
	})), nil)
	add("ranges are not described", right, afterBreak(from(func(at, _ int) (string, int) { return "bytes", at })), nil)
	add("ranges are of another blob", right, afterBreak(from(func(at, size int) (string, int) {
		return fmt.Sprintf("bytes %d-%d/%d", at, size+99, size+100), at
	})), nil)
}

// aboutLists covers incomplete lists, and complete lists that do not look complete.
func aboutLists(add adder) {
	lists := []any{fails, tagList, referrers}
	for _, s := range []string{"{}", "null", "[]", "", `{"errors":[{"code":"UNKNOWN"}]}`, `{"tags":"v1","manifests":"v1"}`, `{"tags":["v1"],"manifests":[`} {
		add("lists are "+strconv.Quote(s), right, only(of("tags", "referrers"), text(s)), but(lists...))
	}
	second := only(of("tags"), only(pageTwo, status(500)))
	add("the second page fails", right, second, but(fails, tagList))
	add("the second page is gone", right, only(of("tags"), only(pageTwo, status(404))), but(gone, tagList))
	add("the second page ends the connection", right, only(of("tags"), only(pageTwo, hangUp)), but(fails, tagList))
	add("links lead to another host", right, only(of("tags", "referrers"), header("Link", `<http://example.com/v2/x/tags/list?n=1>; rel="next"`)), but(lists...))
	add("links lead in a circle", right, only(of("tags", "referrers"), func(x *exchange) {
		x.list(allTags[:2])
		if x.kind == "referrers" {
			x.body = x.t.images[0].referrers
			x.header.Set("Content-Type", oci.MediaTypeOCIIndex)
		}
		x.header.Set("Link", `<`+x.r.URL.Path+`?last=v0>; rel="next"`)
		x.send()
	}), but(lists...))
	add("all tags come at once, in another order", right, only(of("tags"), whole), nil)
	add("pages have a size and an end of their own", right, only(of("tags"), cursor), nil)
	add("a cursor's second page fails", right, only(of("tags"), func(x *exchange) {
		if x.r.URL.Query().Get("next_page") != "" {
			x.status = 500
		}
		cursor(x)
	}), but(fails, tagList))
	add("referrers come in pages", right, paged(send), nil)
	add("the second page of referrers fails", right, paged(status(500)), but(fails, referrers))
	add("the second page of referrers is gone", right, paged(status(404)), but(fails, referrers))
	add("the second page of referrers is a web page", right, paged(page), but(fails, referrers))
	for _, code := range []int{400, 404, 405, 406, 501} {
		add(fmt.Sprintf("there is no referrers API: %d", code), right, tagged(status(code), send), nil)
	}
	add("the referrers API is a web page", right, tagged(page, send), nil)
	add("there is a tag beside a referrers API that fails", right, tagged(status(500), send), but(fails, referrers))
	add("there is a tag beside a referrers API that denies", right, tagged(status(403), send), but(denied, referrers))
	add("the tag of referrers fails", right, tagged(status(404), status(500)), but(fails, referrers))
	add("the tag of referrers denies", right, tagged(status(404), status(403)), but(denied, referrers))
	add("the tag of referrers is no index", right, tagged(status(404), func(x *exchange) {
		x.body = x.t.images[0].manifest
		x.content(oci.MediaTypeOCIManifest)
		x.send()
	}), but(fails, referrers))
	add("there are no referrers", right, only(of("referrers"), status(404)), but(none, referrers))
	add("there is no list of tags", right, only(of("tags"), status(404)), but(gone, tagList))
}
