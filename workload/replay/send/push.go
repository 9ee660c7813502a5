package send

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"example.org/slipway/workload/replay/result"
	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/store"
)

// maxUploads bounds the uploads that are remembered. Uploads that a trace begins and
// never ends must not fill the memory.
const maxUploads = 1 << 16

// upload is an upload that was begun, or is about to be.
type upload struct {
	target *target
	index  uint8 // of the target
	repo   string

	// busy is held while a request of the upload is under way: its client sends one after
	// another.
	busy  sync.Mutex
	at    *url.URL // where the next part goes; nil if the upload could not be begun
	sent  int64    // bytes
	parts uint16   // PATCHes
}

// uploads holds the unfinished uploads, by their name in the trace. An upload of which
// only the POST was seen has no name yet and is kept by client and repository.
type uploads struct {
	mu    sync.Mutex
	byID  map[uint64]*upload
	fresh map[uint64][]*upload
	count int // of fresh
}

func newUploads() *uploads {
	return &uploads{byID: map[uint64]*upload{}, fresh: map[uint64][]*upload{}}
}

// by returns the key under which a client's fresh uploads are kept.
func (r *run) by() uint64 { return clientKeyOf(r.task, r.Step) }

// keep notes an upload that a POST began.
func (u *uploads) keep(by uint64, up *upload) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.count >= maxUploads {
		for k, v := range u.fresh { // any will do: their clients have not come back
			u.count -= len(v)
			delete(u.fresh, k)
			break
		}
	}
	u.fresh[by] = append(u.fresh[by], up)
	u.count++
}

// get returns the upload of a name: the upload that has the name, or the client's oldest
// upload without a name, or fresh, which is yet to be begun. From then on the upload has
// the name.
func (u *uploads) get(id, by uint64, fresh *upload) *upload {
	u.mu.Lock()
	defer u.mu.Unlock()
	if up := u.byID[id]; up != nil {
		return up
	}
	list := u.fresh[by]
	if len(list) == 0 {
		u.name(id, fresh)
		return fresh
	}
	u.count--
	if len(list) == 1 {
		delete(u.fresh, by)
	} else {
		u.fresh[by] = list[1:]
	}
	u.name(id, list[0])
	return list[0]
}

// name gives an upload its name. The caller holds mu.
func (u *uploads) name(id uint64, up *upload) {
	if len(u.byID) >= maxUploads {
		for k := range u.byID {
			delete(u.byID, k)
			break
		}
	}
	u.byID[id] = up
}

// drop forgets an upload.
func (u *uploads) drop(id uint64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.byID, id)
}

// uploadObject is the object of requests of uploads.
const uploadObject = result.Object(trace.Upload)

// begin sends the POST that begins an upload, with parameters, and returns where the
// upload continues. It returns nil if the POST failed, or if nothing is left to upload.
func (r *run) begin(ctx context.Context, q url.Values) *url.URL {
	u := r.url(r.Repo, "blobs", "uploads", "")
	u.RawQuery = q.Encode()
	x := &exchange{method: store.POST, object: uploadObject, url: u, scope: scope(r.Repo, true), header: http.Header{}, body: nothing}
	if !r.do(ctx, x) || x.status == http.StatusCreated {
		return nil
	}
	at := x.location()
	if at == nil {
		r.samples[len(r.samples)-1].Outcome = result.Wrong
	}
	return at
}

func nothing() io.Reader { return http.NoBody }

// location returns where the upload continues according to the answer, or nil.
func (x *exchange) location() *url.URL {
	l := x.answer.Get("Location")
	if l == "" {
		return nil
	}
	u, err := x.at.Parse(l)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" {
		return nil
	}
	return u
}

// open sends the POST of a trace.
func (r *run) open(ctx context.Context) {
	up := r.s.begun(r.task)
	if up == nil {
		up = &upload{target: r.target, index: r.index, repo: r.Repo}
		up.busy.Lock()
		r.s.uploads.keep(r.by(), up)
	}
	defer up.busy.Unlock()
	up.at = r.begin(ctx, nil)
}

// hold waits for the upload to which a PATCH or PUT belongs, and locks it; the caller
// unlocks it. It chooses the registry that has the upload. If the upload's POST was
// before the replay's beginning, or failed, hold begins the upload. It returns false if
// that fails.
func (r *run) hold(ctx context.Context) (*upload, bool) {
	up := r.s.uploads.get(r.Upload, r.by(), &upload{target: r.target, index: r.index, repo: r.Repo})
	r.target, r.index = up.target, up.index
	asked := r.s.now()
	up.busy.Lock()
	r.wait += r.s.now() - asked // its client would not have sent it any sooner
	if up.at == nil {
		r.extra = true
		up.at = r.begin(ctx, nil)
		r.extra = false
	}
	return up, up.at != nil
}

// piece returns a function that makes bytes of the step's content.
func (r *run) piece(from, to int64) func() io.Reader {
	return func() io.Reader {
		if len(r.Body) > 0 {
			return http.NoBody // small blobs are pushed in one piece
		}
		return r.s.o.Maker.Reader(r.Key, from, to)
	}
}

// patch sends the next part.
func (r *run) patch(ctx context.Context) {
	up, ok := r.hold(ctx)
	defer up.busy.Unlock()
	if !ok {
		return
	}
	parts := int64(max(1, r.Parts))
	from, to := up.sent, r.Size*min(parts, int64(up.parts)+1)/parts
	if r.To > 0 {
		to = min(from+r.To, r.Size)
	}
	to = max(from, to)
	x := &exchange{method: store.PATCH, object: uploadObject, url: up.at, scope: scope(r.Repo, true), size: to - from, body: r.piece(from, to),
		header: http.Header{"Content-Type": {"application/octet-stream"}}}
	if to > from {
		x.header.Set("Content-Range", fmt.Sprintf("%d-%d", from, to-1))
	}
	if !r.do(ctx, x) {
		return
	}
	up.parts++
	up.sent = to
	if at := x.location(); at != nil {
		up.at = at
	}
}

// close ends an upload.
func (r *run) close(ctx context.Context) {
	up, ok := r.hold(ctx)
	defer up.busy.Unlock()
	if ok {
		r.put(ctx, up)
	}
	r.s.uploads.drop(r.Upload)
}

// put sends the rest of an upload and its digest.
func (r *run) put(ctx context.Context, up *upload) {
	u := *up.at
	q := u.Query()
	q.Set("digest", digestName(r.Digest))
	u.RawQuery = q.Encode()
	x := &exchange{method: store.PUT, object: uploadObject, url: &u, scope: scope(r.Repo, true), size: r.Size - up.sent, body: r.piece(up.sent, r.Size),
		header: http.Header{"Content-Type": {"application/octet-stream"}}}
	if len(r.Body) > 0 {
		x.body = r.bytes
	}
	if up.sent > 0 && x.size > 0 {
		x.header.Set("Content-Range", fmt.Sprintf("%d-%d", up.sent, r.Size-1))
	}
	r.do(ctx, x)
}

// push does a whole upload.
func (r *run) push(ctx context.Context) {
	if r.Ask {
		x := &exchange{method: store.HEAD, object: result.Object(trace.Blob), url: r.url(r.Repo, "blobs", r.Ref), header: http.Header{},
			scope: scope(r.Repo, true), check: lengthCheck{strconv.FormatInt(r.Size, 10)}, fine: isNotFound}
		if !r.do(ctx, x) || x.status == http.StatusOK {
			return
		}
	}
	q := url.Values{}
	if r.MountFrom != "" {
		q.Set("mount", r.Ref)
		q.Set("from", r.MountFrom)
	}
	if at := r.begin(ctx, q); at != nil {
		r.put(ctx, &upload{at: at})
	}
}

func isNotFound(status int) bool { return status == http.StatusNotFound }

// cancelTime bounds how long Close cancels uploads.
const cancelTime = 10 * time.Second

// cancelUploads cancels the uploads that were not ended, so that a replay leaves nothing
// half done in the registry.
func (s *Sender) cancelUploads() {
	ctx, cancel := context.WithTimeout(context.Background(), cancelTime)
	defer cancel()
	s.uploads.mu.Lock()
	var left []*upload
	for _, up := range s.uploads.byID {
		left = append(left, up)
	}
	for _, list := range s.uploads.fresh {
		left = append(left, list...)
	}
	s.uploads.byID, s.uploads.fresh, s.uploads.count = map[uint64]*upload{}, map[uint64][]*upload{}, 0
	s.uploads.mu.Unlock()
	for _, up := range left {
		if ctx.Err() != nil {
			return
		}
		up.busy.Lock()
		at := up.at
		up.busy.Unlock()
		if at == nil {
			continue
		}
		var unused result.Sample
		s.do(ctx, up.target, &exchange{method: store.DELETE, url: at, scope: scope(up.repo, true), header: http.Header{}}, &unused)
	}
}
