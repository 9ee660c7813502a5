package server

import (
	"context"
	"errors"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"

	"example.org/slipway/oci"
)

// Redirect is a client's request for a blob that the client might fetch elsewhere.
type Redirect struct {
	Repo string
	// Blob is the requested blob, with its size.
	Blob oci.Descriptor
	// Part says that only a part of the blob is requested. Offset is where in the blob
	// the part begins, in bytes.
	Part   bool
	Offset int64
	// Client is the client's address, with or without a port, as trusted proxies report
	// it.
	Client string
}

// Redirector sends clients elsewhere for blobs.
type Redirector interface {
	// Redirect returns the URL from which the client may fetch the blob, or "" if the
	// client gets the blob from here. It is called once the client is known to have the
	// right to the blob, and may run concurrently. After an error the client gets the
	// blob from here.
	Redirect(ctx context.Context, r Redirect) (url string, err error)
}

// redirects counts the results of asking a Redirector about blobs.
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
	for _, outcome := range []string{"sent", "kept", "failed"} { // there from the start
		m.count.WithLabelValues(outcome)
	}
	return m
}

func (m *redirects) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.count, m.bytes}
}

// redirectBlob is like redirect, for a blob that must be looked up first.
func (s *Server) redirectBlob(q *request, d oci.Digest) (done bool, err error) {
	blob, err := s.reg.ResolveBlob(oci.ForReading(q.ctx()), q.Repo, d)
	if err != nil {
		return false, err
	}
	return s.redirect(q, Redirect{Blob: blob}), nil
}

// redirect sends the client elsewhere for a blob, if the Redirector wants that. done says
// that the request is answered. Clients repeat their Range there, so they get the same
// part of the blob.
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
	// The address is valid for a while and only for this client. A cached answer would
	// send other clients there, and later.
	h["Cache-Control"] = []string{"no-store"}
	h["Content-Length"] = zero
	q.w.WriteHeader(http.StatusTemporaryRedirect)
	return true
}
