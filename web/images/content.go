package images

import (
	"bytes"
	"strings"

	"example.org/slipway/oci"
	"example.org/slipway/web/documents"
)

// content reads what a chart, an SBOM or a report says. A document that is too large, not
// here, or of no known form is left out: its page lists it all the same.
func (q *request) content(d *imageData, m manifest) error {
	switch {
	case d.Kind.Image || d.Kind.Index:
		return nil
	case d.Kind.Chart:
		return q.chart(d, m)
	}
	for _, l := range m.Layers[:min(len(m.Layers), 4)] {
		t := strings.ToLower(l.MediaType)
		if !strings.Contains(t, "json") && !strings.Contains(t, "sarif") && !strings.Contains(t, "spdx") && !strings.Contains(t, "cyclonedx") {
			continue
		}
		content, err := q.part(d.Repo, l, documents.MaxBytes)
		if err != nil {
			return err
		}
		if doc, err := documents.Read(content); err == nil {
			d.Document = doc
			return nil
		}
	}
	return nil
}

// chart reads the description of a chart and the files of it that people read.
func (q *request) chart(d *imageData, m manifest) error {
	if m.Config == nil {
		return nil
	}
	config, err := q.part(d.Repo, *m.Config, maxShownConfig)
	if err != nil {
		return err
	}
	if c, err := documents.ReadChart(config); err == nil {
		d.Chart = c
	}
	for _, l := range m.Layers[:min(len(m.Layers), 4)] {
		if !strings.Contains(l.MediaType, "helm.chart.content") {
			continue
		}
		archive, err := q.part(d.Repo, l, documents.MaxChartBytes)
		if err != nil {
			return err
		}
		files, err := documents.ReadChartFiles(bytes.NewReader(archive))
		if err != nil {
			q.log.Info("the files of a chart cannot all be shown", "repository", d.Repo, "digest", l.Digest, "err", err)
		}
		d.ChartFiles = files
		return nil
	}
	return nil
}

// part reads a content that a manifest names. It is empty if it cannot be shown.
func (q *request) part(repo string, l oci.Descriptor, most int64) ([]byte, error) {
	if !oci.ValidDigest(l.Digest) {
		return nil, nil
	}
	content, err := q.opts.Browse.Content(q.ctx(), repo, l.Digest, most)
	if err != nil && q.ctx().Err() != nil {
		return nil, err
	}
	if err != nil {
		return nil, nil // it is absent, too large, or cannot be read, and the page says what is here
	}
	return content, nil
}
