package server

import (
	"context"
	"errors"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"

	"example.org/slipway/oci"
)

// Redirect is a blob that a client asks for, and which it might fetch elsewhere.
type Redirect struct {
	Repo string
	// Blob is what is asked for, with its size.
	Blob oci.Descriptor
	// Part tells that only a part of it is asked for, Offset where in the blob that
	// begins, in bytes.
	Part   bool
	Offset int64
	// Client is the client's address, with or without a port, as trusted proxies
	// tell it.
	Client string
}

// Redirector sends clients elsewhere for blobs.
type Redirector interface {
	// Redirect returns where the client may fetch the blob, or "" if it gets it from
	// here. It is asked once the client is known to have the right to the blob, and
	// may run concurrently. After an error the client gets the blob from here.
	Redirect(ctx context.Context, r Redirect) (url string, err error)
}

// redirects counts what became of blobs that a Redirector was asked about.
type redirects struct {
	count *prometheus.CounterVec
	bytes prometheus.Counter
}

func newRedirects() redirects {
	m := redirects{
		count: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "slipway_server_redirects_total",
			Help: "Requests for blobs by whether the client was sent to the object store (sent), served here (kept), or served here because there was no address to send it to (failed)."},
			[]string{"outcome"}),
		bytes: prometheus.NewCounter(prometheus.CounterOpts{Name: "slipway_server_redirected_bytes_total",
			Help: "Sizes of the blobs for which clients were sent to the object store."}),
	}
	for _, outcome := range []string{"sent", "kept", "failed"} { // there from the start on
		m.count.WithLabelValues(outcome)
	}
	return m
}

func (m *redirects) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.count, m.bytes}
}

// redirectBlob is redirect for a blob that has to be looked up first.
func (s *Server) redirectBlob(q *request, d oci.Digest) (done bool, err error) {
	blob, err := s.reg.ResolveBlob(oci.ForReading(q.ctx()), q.Repo, d)
	if err != nil {
		return false, err
	}
	return s.redirect(q, Redirect{Blob: blob}), nil
}

// redirect sends the client elsewhere for a blob, if that is wanted; done tells that
// the request is answered. A part of a blob is asked for there with the same Range,
// which clients repeat.
func (s *Server) redirect(q *request, asked Redirect) (done bool) {
	m, blob := &s.metrics.redirects, asked.Blob
	asked.Repo, asked.Client = q.Repo, q.r.RemoteAddr
	where, err := s.opts.Redirect.Redirect(q.ctx(), asked)
	switch {
	case err != nil:
		m.count.WithLabelValues("failed").Inc()
		if !errors.Is(err, context.Canceled) {
			s.log.Warn("no address to send a client to; the blob goes through this server", "digest", blob.Digest, "err", err)
		}
		return false
	case where == "":
		m.count.WithLabelValues("kept").Inc()
		return false
	}
	m.count.WithLabelValues("sent").Inc()
	m.bytes.Add(float64(blob.Size))
	h := q.w.Header()
	h["Location"] = []string{where}
	h["Docker-Content-Digest"] = []string{string(blob.Digest)}
	// The address is good for a while and for this client; who keeps the answer
	// would send others there, and later.
	h["Cache-Control"] = []string{"no-store"}
	h["Content-Length"] = zero
	q.w.WriteHeader(http.StatusTemporaryRedirect)
	return true
}
