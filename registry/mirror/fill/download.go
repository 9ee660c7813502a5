package fill

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/mirror/upstream"
)

// sink receives the bytes of a download.
type sink interface {
	// begin is called for each connection, with the size of the whole blob, or -1 if the
	// upstream does not say it.
	begin(ctx context.Context, size int64) error
	// space returns the buffer for the next bytes. It is not empty.
	space() []byte
	// take takes the first n bytes of the buffer that space returned.
	take(n int) error
}

// sinkError is an error that another connection would not cure.
type sinkError struct{ err error }

// Error implements error.
func (e *sinkError) Error() string { return e.err.Error() }

// Unwrap returns the cause.
func (e *sinkError) Unwrap() error { return e.err }

// download fetches a blob, over as many connections as that takes. It is not safe for
// concurrent use.
type download struct {
	fs     *Fills
	o      Origin
	digest oci.Digest
	// at is how many bytes the sink has. size is the size of the blob, or -1 if it is not
	// known.
	at, size int64
	// body is the body of the last connection; a wrong answer is blamed on it.
	body *upstream.Body
	// noRanges says that the upstream does not send parts of the blob. The blob is then
	// fetched from its beginning, and the sink is given only the bytes that it lacks.
	noRanges bool
}

const (
	// maxTries bounds how many connections in a row may bring next to nothing.
	maxTries = 8
	// leastProgress is how many bytes a connection must bring to count as progress.
	leastProgress = 32 << 10
	firstPause    = 100 * time.Millisecond
	longestPause  = 2 * time.Second
)

// run gives the sink all bytes from at on.
func (d *download) run(ctx context.Context, to sink) error {
	tries, left := 0, d.fs.opts.Patience
	for {
		before, began := d.at, time.Now()
		err := d.connect(ctx, to)
		if d.at > 0 && !d.noRanges && rangeRefused(err) {
			d.noRanges = true
			continue
		}
		if err == nil || ctx.Err() != nil || !passes(err) {
			return err
		}
		pause := upstream.RetryAfter(err)
		if d.at-before >= leastProgress {
			tries, left = 0, d.fs.opts.Patience // and no pause: a new connection may be enough
		} else {
			tries++
			left -= time.Since(began)
			pause = max(pause, min(firstPause<<(tries-1), longestPause))
		}
		if left -= pause; left < 0 || tries > maxTries {
			return err
		}
		d.fs.opts.Logger.Info("go on with a blob whose download broke off", "upstream", d.o.Upstream, "repo", d.o.Repo, "digest", d.digest,
			"at", d.at, "size", d.size, "pause", pause, "err", err)
		if err := upstream.Sleep(ctx, pause); err != nil {
			return err
		}
	}
}

// passes reports whether another connection may succeed after err.
func passes(err error) bool {
	var own *sinkError
	if errors.As(err, &own) {
		return false
	}
	k := upstream.KindOf(err)
	return k == 0 || k == upstream.Busy || k == upstream.Unavailable
}

// rangeRefused reports whether err may mean that an upstream refuses a part of a blob but
// would send the whole.
func rangeRefused(err error) bool {
	var open *openError
	var e *upstream.Error
	if !errors.As(err, &open) || !errors.As(err, &e) {
		return false
	}
	return e.Kind == upstream.Wrong || e.Kind == upstream.Denied ||
		e.Kind == upstream.Unavailable && (e.Status/100 == 4 || e.Status == http.StatusNotImplemented)
}

// openError is the error of a connection that brought nothing.
type openError struct{ err error }

// Error implements error.
func (e *openError) Error() string { return e.err.Error() }

// Unwrap returns the cause.
func (e *openError) Unwrap() error { return e.err }

// connect reads what one connection gives. It returns nil if the blob is complete.
func (d *download) connect(ctx context.Context, to sink) error {
	from := d.at
	if d.noRanges {
		from = 0
	}
	body, err := d.o.Registry.Blob(ctx, d.o.Name, d.digest, from)
	if err != nil {
		return &openError{err}
	}
	defer body.Close()
	d.body = body
	if d.at > 0 {
		d.o.Host.Resumed(d.o, d.digest, d.at)
	}
	if err := d.checkSize(body); err != nil {
		return &openError{err}
	}
	if err := to.begin(ctx, d.size); err != nil {
		return &sinkError{err}
	}
	if err := d.skip(body); err != nil {
		return err
	}
	return d.receive(body, to)
}

// checkSize compares what the answer says of the blob's size with what is known.
func (d *download) checkSize(body *upstream.Body) error {
	switch {
	case body.Off != d.at && body.Off != 0:
		return d.wrong(fmt.Errorf("asked for byte %d of blob %s and was given byte %d", d.at, d.digest, body.Off))
	case body.Size < 0:
	case d.size < 0:
		d.size = body.Size
	case body.Size != d.size:
		return d.wrong(fmt.Errorf("blob %s had %d bytes and now has %d", d.digest, d.size, body.Size))
	}
	if d.size >= 0 && d.at > d.size {
		return d.wrong(fmt.Errorf("blob %s has %d bytes, and %d were fetched", d.digest, d.size, d.at))
	}
	return nil
}

// skip skips the bytes that the sink already has, which an upstream without ranges sends
// again.
func (d *download) skip(body *upstream.Body) error {
	n := d.at - body.Off
	if n <= 0 {
		return nil
	}
	got, err := io.CopyN(io.Discard, body, n)
	d.o.Host.Pulled(d.o, got)
	if errors.Is(err, io.EOF) {
		return d.brokenOff(io.ErrUnexpectedEOF)
	}
	return err
}

func (d *download) receive(body *upstream.Body, to sink) error {
	var probe [1]byte
	for {
		p := probe[:]
		whole := d.size >= 0 && d.at == d.size
		if !whole {
			if p = to.space(); d.size >= 0 {
				p = p[:min(int64(len(p)), d.size-d.at)]
			}
		}
		n, err := body.Read(p)
		d.o.Host.Pulled(d.o, int64(n))
		if whole {
			if n > 0 {
				return d.wrong(fmt.Errorf("blob %s is longer than its %d bytes", d.digest, d.size))
			}
			return nil // nothing more was expected, so an error of the connection does not matter
		}
		if n > 0 {
			d.at += int64(n)
			if err := to.take(n); err != nil {
				return &sinkError{err}
			}
		}
		switch {
		case err == nil:
		case !errors.Is(err, io.EOF):
			return err
		case d.size >= 0 && d.at < d.size:
			return d.brokenOff(io.ErrUnexpectedEOF)
		default:
			return nil
		}
	}
}

// brokenOff returns the error for a connection that ended too early.
func (d *download) brokenOff(err error) error {
	return &upstream.Error{Kind: upstream.Unavailable, Upstream: d.o.Upstream, Err: fmt.Errorf("blob %s broke off at byte %d of %d: %w", d.digest, d.at, d.size, err)}
}

// wrong returns the error for an upstream that sent something wrong, and reports it.
func (d *download) wrong(err error) error {
	if d.body != nil {
		d.body.Blame(err)
	}
	d.o.Host.Wrong(d.o, d.digest, d.at, err)
	return &upstream.Error{Kind: upstream.Wrong, Upstream: d.o.Upstream, Err: err}
}

// wrongDigest returns the error for bytes that do not have the blob's digest.
func (d *download) wrongDigest(got oci.Digest) error {
	return d.wrong(fmt.Errorf("the %d bytes received as blob %s have the digest %s", d.at, d.digest, got))
}
