// Package documents reads documents about images for the web page: bills of materials
// (CycloneDX, SPDX), vulnerability reports (SARIF, Trivy's JSON) and Helm charts.
//
// All documents are untrusted, because the user who pushed them chose them. The callers
// bound the sizes of what they pass; this package bounds what comes out. Nothing here
// scans or verifies anything.
package documents

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"unicode/utf8"

	"example.org/slipway/oci"
)

const (
	// MaxBytes is how many bytes of a document are worth reading. Reading takes some 10 ms
	// for a megabyte.
	MaxBytes = 8 << 20
	// maxRows bounds each list.
	maxRows = 1000
	// maxText bounds a text in a list, in bytes.
	maxText = 400
	// maxDepth bounds how deep JSON may be.
	maxDepth = 64
	// maxWrapped is how many envelopes may be around a document.
	maxWrapped = 3
)

// Component is a row of a bill of materials.
type Component struct{ Name, Version, License, Kind string }

// Finding is a row of a vulnerability report.
type Finding struct {
	// ID is the name of the vulnerability, such as CVE-2024-1.
	ID string
	// Severity is one of Severities.
	Severity string
	// Package is what is vulnerable, in its Version. Fixed is the first version without
	// the vulnerability, if there is one.
	Package, Version, Fixed string
	Title                   string
}

// Severities are the severities, the worst first.
var Severities = []string{"critical", "high", "medium", "low", "unknown"}

// Count is how many findings have a severity.
type Count struct {
	Severity string
	Findings int
}

// Document is what a document says.
type Document struct {
	// Format names the format. Tool is the program that made the document, and Made is
	// when, as the document says it.
	Format, Tool, Made string
	// Components are sorted by name, and MoreComponents is how many are left out.
	Components     []Component
	MoreComponents int
	// Findings are sorted by severity, and MoreFindings is how many are left out. Counts
	// counts all, in the order of Severities. Report says that the document is a report,
	// which may have no findings.
	Report       bool
	Findings     []Finding
	MoreFindings int
	Counts       []Count
}

// ErrUnknown says that a document has none of the formats that can be read.
var ErrUnknown = errors.New("the document has no known format")

// shape is what distinguishes the formats.
type shape struct {
	BOMFormat     string          `json:"bomFormat"`
	SPDXVersion   string          `json:"spdxVersion"`
	Runs          json.RawMessage `json:"runs"`
	SchemaVersion json.RawMessage `json:"SchemaVersion"`
	Results       json.RawMessage `json:"Results"`
	ArtifactName  json.RawMessage `json:"ArtifactName"`
	Predicate     json.RawMessage `json:"predicate"`
	Payload       string          `json:"payload"`
	// Envelope is in a Sigstore bundle.
	Envelope json.RawMessage `json:"dsseEnvelope"`
}

// Read reads a document. It also reads documents within attestations: in-toto statements,
// DSSE envelopes and Sigstore bundles. Nothing verifies their signatures.
func Read(content []byte) (*Document, error) {
	for range maxWrapped + 1 {
		if len(content) > MaxBytes {
			return nil, ErrUnknown
		}
		if _, deepest := oci.JSONShape(content); deepest > maxDepth {
			return nil, ErrUnknown
		}
		var s shape
		if json.Unmarshal(content, &s) != nil {
			return nil, ErrUnknown
		}
		var d *Document
		var err error
		switch {
		case s.BOMFormat == "CycloneDX":
			d, err = cycloneDX(content)
		case strings.HasPrefix(s.SPDXVersion, "SPDX-"):
			d, err = spdx(content)
		case s.Runs != nil:
			d, err = sarif(content)
		case s.SchemaVersion != nil && (s.Results != nil || s.ArtifactName != nil):
			d, err = trivy(content)
		case s.Envelope != nil:
			content = s.Envelope
			continue
		case s.Predicate != nil:
			content = s.Predicate
			continue
		case s.Payload != "":
			if content, err = base64.StdEncoding.DecodeString(s.Payload); err != nil {
				return nil, ErrUnknown
			}
			continue
		}
		if d == nil || err != nil {
			return nil, ErrUnknown
		}
		d.finish()
		return d, nil
	}
	return nil, ErrUnknown
}

// finish sorts, counts and bounds the lists.
func (d *Document) finish() {
	slices.SortStableFunc(d.Components, func(a, b Component) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Version, b.Version))
	})
	d.Components = slices.Compact(d.Components)
	rank := map[string]int{}
	for i, s := range Severities {
		rank[s] = i
		d.Counts = append(d.Counts, Count{Severity: s})
	}
	for _, f := range d.Findings {
		d.Counts[rank[f.Severity]].Findings++
	}
	slices.SortStableFunc(d.Findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(rank[a.Severity], rank[b.Severity]), cmp.Compare(a.Package, b.Package), cmp.Compare(a.ID, b.ID))
	})
	if n := len(d.Components) - maxRows; n > 0 {
		d.Components, d.MoreComponents = d.Components[:maxRows:maxRows], n
	}
	if n := len(d.Findings) - maxRows; n > 0 {
		d.Findings, d.MoreFindings = d.Findings[:maxRows:maxRows], n
	}
	d.Tool, d.Made = clip(d.Tool), clip(d.Made)
	for i := range d.Components {
		c := &d.Components[i]
		c.Name, c.Version, c.License, c.Kind = clip(c.Name), clip(c.Version), clip(c.License), clip(c.Kind)
	}
	for i := range d.Findings {
		f := &d.Findings[i]
		f.ID, f.Package, f.Version, f.Fixed, f.Title = clip(f.ID), clip(f.Package), clip(f.Version), clip(f.Fixed), clip(f.Title)
	}
}

// clip shortens a text, and replaces invalid UTF-8.
func clip(s string) string {
	s = strings.TrimSpace(s)
	if len(s) > maxText {
		s = s[:maxText] + "…"
	}
	if !utf8.ValidString(s) {
		s = strings.ToValidUTF8(s, "")
	}
	return s
}

// severity returns the severity that a word means.
func severity(word string) string {
	switch w := strings.ToLower(strings.TrimSpace(word)); w {
	case "critical", "high", "medium", "low":
		return w
	case "moderate":
		return "medium"
	case "negligible", "info", "informational", "none":
		return "low"
	}
	return "unknown"
}

// scored returns the severity of a CVSS score.
func scored(score float64) string {
	switch {
	case score >= 9: // CVSS 3.1 section 5, table 14
		return "critical"
	case score >= 7:
		return "high"
	case score >= 4:
		return "medium"
	case score > 0:
		return "low"
	}
	return "unknown"
}

func decode(content []byte, v any) error {
	return json.NewDecoder(bytes.NewReader(content)).Decode(v)
}
