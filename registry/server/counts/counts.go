// Package counts has the metrics of a server that count what clients get: pulls by
// namespace, and errors by code. Their labels are bounded, whatever clients send.
package counts

import (
	"net/http"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"example.org/slipway/oci"
)

// maxNamespaces is how many namespaces have separate counts of pulls. A registry for many
// teams has more. Each namespace is two series, which Prometheus keeps for as long as its
// data.
const maxNamespaces = 64

// These are values of the label namespace that cannot begin the name of a repository.
const (
	noNamespace     = "-" // repositories whose names have one part
	otherNamespaces = "*" // namespaces after the first maxNamespaces
)

// Pulls counts what clients get, by namespace. The namespace is the first part of the
// repository's name, which for mirrored repositories is the upstream. The first
// maxNamespaces namespaces from which something was pulled since the start have separate
// counts. Only what exists is counted, so clients cannot make names up.
type Pulls struct {
	// Count is the metric.
	Count *prometheus.CounterVec

	mu    sync.RWMutex
	cells map[string]pullCell
}

type pullCell struct{ manifests, blobs prometheus.Counter }

// NewPulls returns counts of pulls.
func NewPulls() *Pulls {
	p := &Pulls{cells: map[string]pullCell{}, Count: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "slipway_server_pulls_total",
		Help: "Manifests and blobs given to clients by GET, also those they are sent elsewhere for, by kind and namespace: the first part of the repository's name, - for none, * for all beyond the first 64. A blob asked for in parts counts once for each."},
		[]string{"kind", "namespace"})}
	p.cell(noNamespace) // there from the start
	return p
}

// Add counts a request that was answered.
func (p *Pulls) Add(r *oci.Request, method string, status int) {
	if method != http.MethodGet || (r.Kind != oci.KindManifest && r.Kind != oci.KindBlob) {
		return
	}
	switch status {
	case http.StatusOK, http.StatusPartialContent, http.StatusTemporaryRedirect:
	default:
		return
	}
	namespace, _, found := strings.Cut(r.Repo, "/")
	if !found {
		namespace = noNamespace
	}
	c := p.cell(namespace)
	if r.Kind == oci.KindManifest {
		c.manifests.Inc()
	} else {
		c.blobs.Inc()
	}
}

func (p *Pulls) cell(namespace string) pullCell {
	p.mu.RLock()
	c, ok := p.cells[namespace]
	p.mu.RUnlock()
	if ok {
		return c
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.cells[namespace]; !ok && len(p.cells) > maxNamespaces { // one is noNamespace
		namespace = otherNamespaces
	}
	c, ok = p.cells[namespace]
	if !ok {
		c = pullCell{p.Count.WithLabelValues(oci.KindManifest.String(), namespace), p.Count.WithLabelValues(oci.KindBlob.String(), namespace)}
		p.cells[namespace] = c
	}
	return c
}

// Errors counts the errors that were sent to clients, by code.
type Errors map[oci.Code]prometheus.Counter

// otherCode is the label for errors whose code is not in the specification. The answer of
// an upstream may contain such a code.
const otherCode = oci.Code("OTHER")

// NewErrors returns counts of errors, and their metric.
func NewErrors() (Errors, *prometheus.CounterVec) {
	count := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "slipway_server_errors_total",
		Help: "Errors returned to clients, by the code of the distribution specification."}, []string{"code"})
	e := Errors{}
	for _, code := range []oci.Code{oci.CodeBlobUnknown, oci.CodeBlobUploadInvalid, oci.CodeBlobUploadUnknown, oci.CodeDigestInvalid,
		oci.CodeManifestBlobUnknown, oci.CodeManifestInvalid, oci.CodeManifestUnknown, oci.CodeNameInvalid, oci.CodeNameUnknown,
		oci.CodeSizeInvalid, oci.CodeUnauthorized, oci.CodeDenied, oci.CodeUnsupported, oci.CodeTooManyRequests, oci.CodeTagInvalid, oci.CodeTagNewer,
		oci.CodeRangeInvalid, oci.CodePaginationNumber, oci.CodeUnavailable, oci.CodeUnknown, otherCode} {
		e[code] = count.WithLabelValues(string(code)) // there from the start
	}
	return e, count
}

// Add counts an error.
func (e Errors) Add(code oci.Code) {
	c, ok := e[code]
	if !ok {
		c = e[otherCode]
	}
	c.Inc()
}
