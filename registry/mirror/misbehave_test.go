package mirror_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/mirror"
	"example.org/slipway/registry/mirror/upstream"
	"example.org/slipway/registry/objstore/memstore"
	"example.org/slipway/registry/server"
)

// verdict is what a client must learn from an upstream that behaves in some way.
type verdict string

const (
	right  verdict = "right"  // the request can be satisfied
	gone   verdict = "gone"   // the upstream lacks it
	denied verdict = "denied" // the upstream denies it to us
	busy   verdict = "busy"   // the upstream asks to be left alone
	fails  verdict = "fails"  // the upstream gives no usable answer
	none   verdict = "none"   // the upstream has an empty list
	untold verdict = "untold" // the upstream lies, and nobody could know; it does no harm
)

// These are the kinds of requests of clients.
const (
	byTag     = "manifest by tag"
	byDigest  = "manifest by digest"
	smallBlob = "blob"       // arrives in RAM
	largeBlob = "large blob" // arrives on the disk
	headBlob  = "HEAD of a blob"
	tagList   = "tags"
	referrers = "referrers"
)

var asked = []string{byTag, byDigest, smallBlob, largeBlob, headBlob, tagList, referrers}

// These are the states of the mirror when a client asks.
const (
	cold    = "cold"    // nothing
	present = "here"    // what was requested a moment ago
	expired = "expired" // the same, but so old that tags are requested again
)

// behaviour is a way in which an upstream misbehaves.
type behaviour struct {
	name    string
	verdict verdict
	// but lists the kinds of request with another verdict.
	but map[string]verdict
	// silent is set if it takes a timeout to find out.
	silent bool
	// before is the client's first request, whose answer does not matter.
	before string
	does   func(x *exchange)
}

func (b *behaviour) verdictOf(kind string) verdict {
	if v, ok := b.but[kind]; ok {
		return v
	}
	return b.verdict
}

// crooked is a server of many upstreams, one for each trial.
type crooked struct {
	*httptest.Server
	front  *httptest.Server // of the mirrors
	stop   chan struct{}    // closed at the end
	store  *registry.Registry
	mu     sync.Mutex
	trials map[string]*trial // by repository
}

// trial is a combination of behaviour, kind of request and state.
type trial struct {
	c           *crooked
	b           *behaviour
	kind, state string
	repo        string
	images      [2]image // the tag is moved from the first to the second
	handler     http.Handler
	clock       clock
	on          atomic.Bool // the upstream misbehaves
	moved       atomic.Bool

	mu   sync.Mutex
	seen []string // "METHOD kind", while it misbehaves

	problems []string
	done     chan struct{}
}

// image is an image of an upstream.
type image struct {
	manifest, blob, referrers []byte
	digest, layer             oci.Digest // of the first two
}

func newImage(seed uint64, size int) image {
	im := image{blob: random(seed, size)}
	im.layer = oci.SHA256(im.blob)
	layer := oci.Descriptor{MediaType: layerType, Digest: im.layer, Size: int64(size)}
	im.manifest = encode(manifest{SchemaVersion: 2, MediaType: oci.MediaTypeOCIManifest, Config: &layer, Layers: []oci.Descriptor{layer}})
	im.digest = oci.SHA256(im.manifest)
	index := manifest{SchemaVersion: 2, MediaType: oci.MediaTypeOCIIndex}
	for i := range 2 {
		b := random(seed+uint64(i)+1000, 20)
		index.Manifests = append(index.Manifests, oci.Descriptor{MediaType: oci.MediaTypeOCIManifest, Digest: oci.SHA256(b), Size: 20, ArtifactType: "a/signature"})
	}
	slices.SortFunc(index.Manifests, func(a, b oci.Descriptor) int { return strings.Compare(string(a.Digest), string(b.Digest)) })
	im.referrers = encode(index)
	return im
}

func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

var allTags = []string{"v1", "v2", "v3", "v4", "v5", "v6", "v7"}

// exchange is a request to an upstream with the correct answer.
type exchange struct {
	http.ResponseWriter
	r      *http.Request
	t      *trial
	kind   string // manifests, blobs, tags, referrers
	ref    string
	n      int // how many requests like it came before
	status int
	header http.Header
	body   []byte
}

// ServeHTTP serves the upstreams.
func (c *crooked) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/v2/"), "/")
	c.mu.Lock()
	t := c.trials[parts[0]]
	c.mu.Unlock()
	if t == nil || len(parts) != 3 {
		http.NotFound(w, r)
		return
	}
	x := &exchange{ResponseWriter: w, r: r, t: t, kind: parts[1], ref: parts[2], header: http.Header{}}
	x.answer()
	if !t.on.Load() {
		x.send()
		return
	}
	if strings.HasPrefix(r.Host, "localhost") { // following a redirect does not count as a request
		t.b.does(x)
		return
	}
	entry := r.Method + " " + x.kind
	t.mu.Lock()
	for _, s := range t.seen {
		if s == entry {
			x.n++
		}
	}
	t.seen = append(t.seen, entry)
	t.mu.Unlock()
	t.b.does(x)
}

// answer prepares the answer of a healthy registry.
func (x *exchange) answer() {
	tagged := x.t.images[0].manifest
	if x.t.moved.Load() {
		tagged = x.t.images[1].manifest
	}
	x.status = http.StatusOK
	for _, im := range x.t.images {
		switch {
		case x.kind == "manifests" && (x.ref == "v1" || x.ref == string(im.digest)):
			x.body = im.manifest
			if x.ref == "v1" {
				x.body = tagged
			}
			x.content(oci.MediaTypeOCIManifest)
			return
		case x.kind == "blobs" && x.ref == string(im.layer):
			x.body = im.blob
			x.content(oci.MediaTypeOctetStream)
			return
		case x.kind == "referrers" && x.ref == string(im.digest):
			x.body = im.referrers
			x.header.Set("Content-Type", oci.MediaTypeOCIIndex)
			return
		case x.kind == "tags":
			x.tags(x.r.URL.Query())
			return
		}
	}
	x.fail(http.StatusNotFound, "MANIFEST_UNKNOWN")
}

func (x *exchange) content(mediaType string) {
	x.header.Set("Content-Type", mediaType)
	d := x.ref
	if !oci.IsDigest(d) {
		d = string(oci.SHA256(x.body))
	}
	x.header.Set("Docker-Content-Digest", d)
}

// tags answers with a page of tags.
func (x *exchange) tags(q url.Values) {
	list := allTags[:]
	if last := q.Get("last"); last != "" {
		list = list[slices.IndexFunc(append(list, "~"), func(s string) bool { return s > last }):]
	}
	if n, err := strconv.Atoi(q.Get("n")); err == nil && n < len(list) {
		list = list[:n]
		x.header.Set("Link", fmt.Sprintf(`<%s?n=%d&last=%s>; rel="next"`, x.r.URL.Path, n, list[n-1]))
	}
	x.list(list)
}

func (x *exchange) list(tags []string) {
	x.header.Set("Content-Type", "application/json")
	x.body = encode(map[string]any{"name": x.t.repo, "tags": tags})
}

func (x *exchange) fail(status int, code string) {
	x.status, x.header = status, http.Header{"Content-Type": {"application/json"}}
	x.body = encode(map[string]any{"errors": []map[string]string{{"code": code, "message": "as it goes"}}})
}

// send sends the answer, or a part of a blob if a range was requested.
func (x *exchange) send() {
	if x.status == http.StatusOK && x.kind == "blobs" && x.r.Method == http.MethodGet {
		x.cut()
	}
	maps.Copy(x.Header(), x.header)
	x.Header().Set("Content-Length", strconv.Itoa(len(x.body)))
	x.WriteHeader(x.status)
	if x.r.Method != http.MethodHead {
		_, _ = x.Write(x.body) // the mirror may have left
	}
}

// cut turns the answer into one to a range request.
func (x *exchange) cut() {
	from, err := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(x.r.Header.Get("Range"), "bytes="), "-"))
	if err != nil {
		return
	}
	x.status = http.StatusPartialContent
	x.header.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, len(x.body)-1, len(x.body)))
	x.body = x.body[from:]
}

// hangUp closes the connection.
func (x *exchange) hangUp() { panic(http.ErrAbortHandler) }

// sendSome sends n bytes of the answer and closes the connection.
func (x *exchange) sendSome(n int) {
	body := x.body
	if x.status == http.StatusOK && x.kind == "blobs" {
		x.cut()
	}
	maps.Copy(x.Header(), x.header)
	x.Header().Set("Content-Length", strconv.Itoa(len(x.body)))
	x.WriteHeader(x.status)
	_, _ = x.Write(x.body[:min(n, len(x.body))])
	_ = http.NewResponseController(x.ResponseWriter).Flush()
	x.body = body
	x.hangUp()
}

// newCrooked starts the upstreams and the front of the mirrors.
func newCrooked(t *testing.T) *crooked {
	c := &crooked{trials: map[string]*trial{}, stop: make(chan struct{})}
	c.store = newRegistry(t, memstore.New(nil), &registry.Options{Partial: mirror.Names("up")})
	c.Server = httptest.NewUnstartedServer(c)
	c.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	c.Start()
	c.front = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		tr := c.trials[strings.Split(r.URL.Path, "/")[3]]
		c.mu.Unlock()
		tr.handler.ServeHTTP(w, r)
	}))
	t.Cleanup(func() { close(c.stop); c.front.Close(); c.Close() })
	return c
}

// These tests combine everything that upstreams may do wrong with everything that a client may
// ask for, in every state of the mirror. They judge the result by rules that hold for all
// combinations:
//
//   - A client is given what is right and whole, or an error with the status that fits, or a
//     connection that breaks. What is here is given to it without asking the upstream. While
//     the upstream gives no answer, a tag is served as it was before; as soon as the upstream
//     answers, the tag is served as it is.
//   - The mirror asks a few times at most, and does not ask for what the upstream refuses for
//     now.
//   - Nothing wrong is kept: when the upstream is well again, all is as it should be.
func TestMisbehavingUpstream(t *testing.T) {
	c := newCrooked(t)
	all := behaviours()
	slots := make(chan struct{}, 128) // they mostly wait
	byName := map[string][]*trial{}
	n := 0
	for i := range all {
		for _, kind := range asked {
			for _, state := range statesOf(kind) {
				tr := &trial{c: c, b: &all[i], kind: kind, state: state, repo: "t" + strconv.Itoa(n), done: make(chan struct{})}
				tr.images = [2]image{newImage(uint64(2*n), 100_000), newImage(uint64(2*n+1), 10)}
				tr.open(t)
				c.trials[tr.repo] = tr
				byName[all[i].name] = append(byName[all[i].name], tr)
				n++
			}
		}
	}
	for _, list := range byName {
		for _, tr := range list {
			go func() {
				defer close(tr.done)
				slots <- struct{}{}
				defer func() { <-slots }()
				tr.run()
			}()
		}
	}
	for _, b := range all {
		t.Run(b.name, func(t *testing.T) {
			for _, tr := range byName[b.name] {
				<-tr.done
				for _, p := range tr.problems {
					t.Errorf("%s, %s: %s; the upstream was asked %q", tr.kind, tr.state, p, tr.seen)
				}
			}
		})
	}
}

// statesOf returns the states in which a mirror is asked. Only tags expire. A mirror that has a
// blob, or a manifest by digest, is therefore tried in the expired state only.
func statesOf(kind string) []string {
	switch {
	case testing.Short():
		return []string{cold}
	case kind == byTag:
		return []string{cold, present, expired}
	}
	return []string{cold, expired}
}

// open opens the mirror of a trial.
func (tr *trial) open(t *testing.T) {
	t.Helper()
	// Timeouts expire only in trials about timeouts, however busy the machine is.
	timeout, wait := patience, patience
	if tr.b.silent {
		timeout = 5 * time.Second // longer than a busy machine takes once the upstream is well again
	}
	for _, kind := range []string{tr.kind, cmp.Or(tr.b.before, tr.kind)} {
		if v := tr.b.verdictOf(kind); v == fails || v == busy {
			wait = 2 * time.Second
		}
	}
	up, err := upstream.New(&upstream.Options{Name: "up", URL: tr.c.URL, Clock: tr.clock.Now, HeaderTimeout: timeout, StallTimeout: timeout,
		Redirects: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(up.Close)
	o := &mirror.Options{Dir: filepath.Join(t.TempDir(), "fills"), Clock: tr.clock.Now, Logger: slog.New(slog.DiscardHandler), Patience: wait,
		Sources: []mirror.Source{{Name: "up", Upstream: up}}}
	if tr.kind == largeBlob {
		o.MemoryBytes = 1
	}
	m, err := mirror.New(tr.c.store, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := m.Close(ctx); err != nil {
			t.Errorf("close the mirror of %s: %v", tr.repo, err)
		}
	})
	tr.handler = server.New(m, &server.Options{Logger: slog.New(slog.DiscardHandler)})
}

func (tr *trial) problem(format string, args ...any) {
	tr.problems = append(tr.problems, fmt.Sprintf(format, args...))
}

// reply is an answer of the mirror. For a list it holds all pages.
type reply struct {
	status int
	header http.Header
	body   []byte
	names  []string
	broken error
}

// ask sends a client's request.
func (tr *trial) ask(kind string) (a reply) {
	im := tr.images[0]
	method, path := http.MethodGet, map[string]string{
		byTag: "manifests/v1", byDigest: "manifests/" + string(im.digest), smallBlob: "blobs/" + string(im.layer),
		largeBlob: "blobs/" + string(im.layer), headBlob: "blobs/" + string(im.layer),
		tagList: "tags/list?n=4", referrers: "referrers/" + string(im.digest),
	}[kind]
	if kind == headBlob {
		method = http.MethodHead
	}
	next := "/v2/up/" + tr.repo + "/" + path
	for pages := 0; next != "" && pages < 10; pages++ {
		req, err := http.NewRequest(method, tr.c.front.URL+next, nil)
		if err != nil {
			return reply{broken: err}
		}
		req.Header.Set("Accept", oci.MediaTypeOCIManifest)
		resp, err := tr.c.front.Client().Do(req)
		if err != nil {
			return reply{broken: err}
		}
		a.status, a.header = resp.StatusCode, resp.Header
		a.body, a.broken = io.ReadAll(resp.Body)
		resp.Body.Close()
		if a.status != http.StatusOK || a.broken != nil {
			return a
		}
		a.names = append(a.names, namesIn(a.body)...)
		_, next, _ = strings.Cut(a.header.Get("Link"), "<")
		next, _, _ = strings.Cut(next, ">")
	}
	if next != "" {
		a.broken = errors.New("the list has no end")
	}
	return a
}

// namesIn returns the entries of a list.
func namesIn(body []byte) (names []string) {
	var list struct {
		Tags      []string         `json:"tags"`
		Manifests []oci.Descriptor `json:"manifests"`
	}
	if json.Unmarshal(body, &list) != nil {
		return nil
	}
	for _, d := range list.Manifests {
		names = append(names, string(d.Digest))
	}
	return append(names, list.Tags...)
}

// run brings the mirror into the state, makes the upstream misbehave, and judges the result.
func (tr *trial) run() {
	if tr.state != cold {
		if a := tr.ask(tr.kind); !tr.isRight(a, 0) {
			tr.problem("before: got %d %.200q %v", a.status, a.body, a.broken)
			return
		}
		if tr.kind == headBlob {
			tr.ask(smallBlob)
		}
	}
	if tr.state == expired {
		tr.clock.Add(2 * time.Hour)
		tr.moved.Store(true)
	}
	tr.on.Store(true)
	if tr.b.before != "" {
		tr.ask(tr.b.before)
	}
	a := tr.ask(tr.kind)
	tr.judge(a)
	tr.judgeRequests(a)
	tr.on.Store(false)
	tr.clock.Add(2 * time.Hour)
	tagged := 0
	if tr.moved.Load() {
		tagged = 1
	}
	healed := tr.ask(tr.kind)
	// An earlier request may still wait for the upstream, and until it ends, others share it.
	for began := time.Now(); time.Since(began) < patience; healed = tr.ask(tr.kind) {
		if tr.isRight(healed, tagged) {
			return
		}
		tr.clock.Add(2 * time.Hour)
	}
	if !tr.isRight(healed, tagged) {
		tr.problem("when the upstream is well again: got %d %.200q %v", healed.status, healed.body, healed.broken)
	}
}

// judge is the oracle.
func (tr *trial) judge(a reply) {
	v, tagged := tr.b.verdictOf(tr.kind), 0
	isList := tr.kind == tagList || tr.kind == referrers
	switch {
	case tr.state == cold || isList:
	case tr.kind != byTag || tr.state == present:
		v = right // it is here
		if tr.b.before == "" && len(tr.seen) > 0 {
			tr.problem("it is here")
		}
	case v == right:
		tagged = 1 // it was moved
	case v == busy || v == fails:
		v = right // stale
	}
	ok := false
	switch v {
	case right:
		ok = tr.isRight(a, tagged)
	case untold:
		ok = a.broken == nil
	case none:
		ok = a.status == http.StatusOK && a.broken == nil && len(a.names) == 0 && len(a.body) > 0
	case gone:
		ok = a.status == http.StatusNotFound
	case denied:
		ok = a.status == http.StatusForbidden
	case busy:
		wait, err := strconv.Atoi(a.header.Get("Retry-After"))
		ok = a.status == http.StatusTooManyRequests && err == nil && wait > 0 && wait <= 30
	case fails:
		ok = a.status >= 502 && a.status <= 504 || a.status == http.StatusOK && a.broken != nil && !isList
	}
	if !ok {
		tr.problem("got %d %.160q %v, want %s", a.status, a.body, a.broken, v)
	}
}

// isRight reports whether a reply is correct, given the image that the tag points to.
func (tr *trial) isRight(a reply, tagged int) bool {
	if a.status != http.StatusOK || a.broken != nil {
		return false
	}
	im := tr.images[0]
	var want []byte
	switch tr.kind {
	case byTag:
		want = tr.images[tagged].manifest
	case byDigest:
		want = im.manifest
	case smallBlob, largeBlob:
		want = im.blob
	case headBlob:
		return a.header.Get("Content-Length") == strconv.Itoa(len(im.blob))
	case tagList:
		return slices.Equal(slices.Sorted(slices.Values(a.names)), allTags)
	case referrers:
		return slices.Equal(a.names, namesIn(im.referrers))
	}
	return bytes.Equal(a.body, want) && a.header.Get("Docker-Content-Digest") == string(oci.SHA256(want))
}

// mostAsked bounds the upstream requests for one client request: eight rounds of HEAD and GET.
const mostAsked = 20

// judgeRequests checks the requests that the upstream got.
func (tr *trial) judgeRequests(a reply) {
	wait, _ := strconv.Atoi(a.header.Get("Retry-After")) // 0 if there is none
	tr.mu.Lock()
	seen := slices.Clone(tr.seen)
	tr.mu.Unlock()
	for _, s := range seen {
		if !strings.HasPrefix(s, "GET ") && !strings.HasPrefix(s, "HEAD ") {
			tr.problem("it asked for %s", s)
		}
	}
	if len(seen) > mostAsked {
		tr.problem("it asked %d times", len(seen))
	}
	if tr.b.verdictOf(tr.kind) != busy || len(seen) == 0 || wait < 10 {
		return
	}
	tr.ask(tr.kind)
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if len(tr.seen) > len(seen) {
		tr.problem("it asked again although the upstream wants to be left alone")
	}
}
