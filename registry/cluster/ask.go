package cluster

import (
	"context"
	"crypto/hmac"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"net/http"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/oci/wire"
	"example.org/slipway/registry/objstore"
)

// handlerPath begins the paths of objects at the handler. The object's key follows.
const handlerPath = "/_slipway/peer/blobs/"

// failure is why a read from a peer failed. It has a label for the metric, and what the
// failure says about the peer.
type failure struct {
	reason string
	verdict
}

var (
	failedGone      = failure{"gone", verdictFailure}    // no connection, or it broke before an answer
	failedSlow      = failure{"slow", verdictSlow}       // the store answered first
	failedLate      = failure{"late", verdictFailure}    // no answer in time
	failedStalled   = failure{"stalled", verdictFailure} // too slow in the middle
	failedCut       = failure{"cut", verdictFailure}     // the body ended too early
	failedBusy      = failure{"busy", verdictBusy}       // the peer said so
	failedAbsent    = failure{"absent", verdictNone}     // the peer lacks it, and cannot get it
	failedRefused   = failure{"refused", verdictFailure} // the peer does not accept us as a peer
	failedForged    = failure{"forged", verdictFailure}  // the answer came from a server that lacks the secret
	failedWrong     = failure{"wrong", verdictWrong}     // the bytes do not have the digest
	failedAbandoned = failure{"abandoned", verdictNone}  // the caller gave up
	failures        = [...]failure{failedGone, failedSlow, failedLate, failedStalled, failedCut, failedBusy, failedAbsent,
		failedRefused, failedForged, failedWrong, failedAbandoned}
)

// fail ends a read that the peer did not deliver.
func (r *reading) fail(f failure, err error) error {
	r.c.metrics.failed[f.reason].Inc()
	r.c.end(r, f.verdict)
	if f.verdict == verdictWrong {
		r.c.opts.Logger.Error("a peer sent wrong bytes; it is not asked for a while", "peer", r.peer.id, "key", r.key, "pause", wrongPause)
	} else {
		r.c.opts.Logger.Debug("read from a peer", "peer", r.peer.id, "key", r.key, "reason", f.reason, "err", err)
	}
	return fmt.Errorf("read %s from peer %s: %s: %w", r.key, r.peer.id, f.reason, err)
}

// broke returns why a request, or the body of an answer, ended.
func broke(ctx context.Context, otherwise failure) failure {
	switch cause := context.Cause(ctx); {
	case cause == nil:
		return otherwise
	case errors.Is(cause, errOutrun):
		return failedSlow
	case errors.Is(cause, errLate):
		return failedLate
	case errors.Is(cause, errStall):
		return failedStalled
	default:
		return failedAbandoned
	}
}

// open opens the object at the peer. After an error open ends the reading. Otherwise the
// returned object ends it. stop ends ctx.
func (r *reading) open(ctx context.Context, stop context.CancelCauseFunc) (_ objstore.Object, err error) {
	defer func() {
		if err != nil {
			stop(nil)
		}
	}()
	req, t, err := r.request(ctx)
	if err != nil {
		return nil, r.fail(failedGone, err)
	}
	resp, err := r.c.client.Do(req)
	if err != nil {
		return nil, r.fail(broke(ctx, failedGone), err)
	}
	info, err := r.judgeAnswer(resp, t)
	if err != nil {
		discard(resp.Body)
		return nil, err
	}
	o := &object{reading: r, ctx: ctx, stop: stop, body: resp.Body, info: info, at: r.off, end: info.Size, begin: r.off}
	if r.n > 0 {
		o.end = min(o.end, r.off+r.n)
	}
	d, _ := r.c.cfg.Digest(r.key)
	if r.off == 0 && o.end == info.Size {
		o.want, o.sum = d.Encoded(), newHash(d)
	}
	if o.sum != nil && info.Size <= r.c.opts.VerifyFirst {
		return o.readAhead()
	}
	return o, nil
}

func newHash(d oci.Digest) hash.Hash {
	if alg := d.Algorithm(); alg.Available() {
		return alg.Hash()
	}
	return nil
}

// request makes the signed request.
func (r *reading) request(ctx context.Context) (*http.Request, ticket, error) {
	c := r.c
	path, ranges := handlerPath+r.key, wire.Range(r.off, r.n)
	t := ticket{at: c.opts.Clock().Unix(), sender: c.self, count: r.count}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.peer.url+path, nil)
	if err != nil {
		return nil, t, err
	}
	if ranges != "" {
		req.Header.Set("Range", ranges)
	}
	req.Header.Set(headerTicket, c.key.sign(http.MethodGet, path, ranges, r.peer.incarnation, t))
	return req, t, nil
}

// judgeAnswer checks that an answer comes from the peer and is for the object that was
// requested.
func (r *reading) judgeAnswer(resp *http.Response, t ticket) (objstore.Info, error) {
	h := resp.Header
	got, err := hex.DecodeString(h.Get(headerProof))
	want := r.c.key.proof(t, resp.StatusCode, h.Get("Content-Length"), h.Get("Content-Range"), h.Get("Last-Modified"))
	if err != nil || !hmac.Equal(got, want) {
		// A peer that does not accept us cannot prove anything to us either.
		if resp.StatusCode == http.StatusUnauthorized {
			return objstore.Info{}, r.fail(failedRefused, errors.New(resp.Status))
		}
		return objstore.Info{}, r.fail(failedForged, errors.New(resp.Status))
	}
	switch resp.StatusCode {
	case http.StatusOK, http.StatusPartialContent:
	case http.StatusServiceUnavailable:
		return objstore.Info{}, r.fail(failedBusy, errors.New(resp.Status))
	case http.StatusNotFound, http.StatusRequestedRangeNotSatisfiable, http.StatusConflict:
		return objstore.Info{}, r.fail(failedAbsent, errors.New(resp.Status))
	default:
		return objstore.Info{}, r.fail(failedGone, errors.New(resp.Status))
	}
	info := objstore.Info{Key: r.key, Size: resp.ContentLength}
	first := int64(0)
	if resp.StatusCode == http.StatusPartialContent {
		v := h.Get("Content-Range")
		var ok bool
		if first, _, info.Size, ok = wire.ParseContentRange(v); !ok || info.Size < 0 {
			return objstore.Info{}, r.fail(failedCut, fmt.Errorf("content range %q", v))
		}
	}
	length := info.Size - r.off
	if r.n > 0 {
		length = min(length, r.n)
	}
	if first != r.off || length <= 0 && info.Size > 0 || resp.ContentLength != length {
		return objstore.Info{}, r.fail(failedCut, errors.New("another range than was asked for"))
	}
	if info.ModTime, err = http.ParseTime(h.Get("Last-Modified")); err != nil {
		info.ModTime = time.Time{} // from a store that does not know it
	}
	return info, nil
}
