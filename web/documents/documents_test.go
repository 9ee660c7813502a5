package documents_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/web/documents"
)

// samples are documents in each format.
var samples = map[string]string{
	"cyclonedx": `{"bomFormat":"CycloneDX","specVersion":"1.5","metadata":{"timestamp":"2026-01-02T03:04:05Z","tools":{"components":[{"name":"syft","version":"1.0"}]}},
		"components":[{"type":"library","bom-ref":"b","name":"zlib","version":"1.3","licenses":[{"license":{"id":"Zlib"}}]},{"type":"library","group":"org.a","name":"core","version":"2","licenses":[{"expression":"MIT OR BSD"}]}],
		"vulnerabilities":[{"id":"CVE-1","description":"bad","ratings":[{"severity":"none"},{"severity":"critical"}],"affects":[{"ref":"b"}]},{"id":"CVE-2","ratings":[{"score":7.5}]}]}`,
	"cyclonedx, older": `{"bomFormat":"CycloneDX","metadata":{"tools":[{"vendor":"x","name":"trivy","version":"0.1"}]},"components":[{"name":"a"}]}`,
	"spdx": `{"spdxVersion":"SPDX-2.3","creationInfo":{"created":"2026-01-02T03:04:05Z","creators":["Organization: x","Tool: syft-1"]},
		"packages":[{"name":"zlib","versionInfo":"1.3","licenseConcluded":"NOASSERTION","licenseDeclared":"Zlib","primaryPackagePurpose":"LIBRARY"}]}`,
	"sarif": `{"version":"2.1.0","runs":[{"tool":{"driver":{"name":"grype","version":"9","rules":[{"id":"CVE-3","shortDescription":{"text":"worse"},"properties":{"security-severity":"9.8"}}]}},
		"results":[{"ruleId":"CVE-3","level":"warning","message":{"text":"m"},"locations":[{"physicalLocation":{"artifactLocation":{"uri":"lib/z"}}}]},{"ruleIndex":7,"level":"error","message":{"text":"other"}}]}]}`,
	"trivy": `{"SchemaVersion":2,"CreatedAt":"2026-01-02","ArtifactName":"x","Results":[{"Vulnerabilities":[
		{"VulnerabilityID":"CVE-5","PkgName":"zlib","InstalledVersion":"1.2","FixedVersion":"1.3","Severity":"LOW","Title":"t"},{"VulnerabilityID":"CVE-4","PkgName":"a","Severity":"HIGH"}]}]}`,
	"trivy, clean": `{"SchemaVersion":2,"ArtifactName":"x"}`,
}

// TestRead checks what each format says. The lists are worked out by hand.
func TestRead(t *testing.T) {
	t.Parallel()
	type want struct {
		format, tool string
		components   []documents.Component
		findings     []documents.Finding
		report       bool
	}
	for name, w := range map[string]want{
		"cyclonedx": {"CycloneDX", "syft 1.0", []documents.Component{{Name: "org.a/core", Version: "2", License: "MIT OR BSD", Kind: "library"}, {Name: "zlib", Version: "1.3", License: "Zlib", Kind: "library"}},
			[]documents.Finding{{ID: "CVE-2", Severity: "high"}, {ID: "CVE-1", Severity: "low", Package: "zlib", Version: "1.3", Title: "bad"}}, true},
		"cyclonedx, older": {"CycloneDX", "trivy 0.1", []documents.Component{{Name: "a"}}, nil, false},
		"spdx":             {"SPDX", "syft-1", []documents.Component{{Name: "zlib", Version: "1.3", License: "Zlib", Kind: "library"}}, nil, false},
		"sarif":            {"SARIF", "grype 9", nil, []documents.Finding{{ID: "CVE-3", Severity: "critical", Package: "lib/z", Title: "worse"}, {Severity: "high", Title: "other"}}, true},
		"trivy": {"Trivy JSON", "Trivy", nil, []documents.Finding{{ID: "CVE-4", Severity: "high", Package: "a"},
			{ID: "CVE-5", Severity: "low", Package: "zlib", Version: "1.2", Fixed: "1.3", Title: "t"}}, true},
		"trivy, clean": {"Trivy JSON", "Trivy", nil, nil, true},
	} {
		for wrap, content := range wrapped(samples[name]) {
			d, err := documents.Read([]byte(content))
			if err != nil {
				t.Errorf("%s %s: %v", name, wrap, err)
				continue
			}
			if d.Format != w.format || d.Tool != w.tool || d.Report != w.report {
				t.Errorf("%s %s is %+v", name, wrap, d)
			}
			if diff := cmp.Diff(w.components, d.Components); diff != "" {
				t.Errorf("%s %s: components (-want +got):\n%s", name, wrap, diff)
			}
			if diff := cmp.Diff(w.findings, d.Findings); diff != "" {
				t.Errorf("%s %s: findings (-want +got):\n%s", name, wrap, diff)
			}
		}
	}
	for _, bad := range []string{"", "null", "[]", "{}", `{"predicate":{}}`, `{"payload":"%"}`, strings.Repeat("[", 1000), `{"runs":7}`, `{"bomFormat":"CycloneDX","components":{}}`,
		strings.Repeat(`{"predicate":`, 9) + samples["spdx"] + strings.Repeat("}", 9), samples["spdx"] + strings.Repeat(" ", documents.MaxBytes)} {
		if d, err := documents.Read([]byte(bad)); err == nil {
			t.Errorf("%.40q is read as %+v", bad, d)
		}
	}
}

// wrapped returns a document as it is and within attestations.
func wrapped(document string) map[string]string {
	statement := `{"_type":"https://in-toto.io/Statement/v1","predicateType":"x","predicate":` + document + `}`
	envelope := `{"payloadType":"application/vnd.in-toto+json","payload":"` + base64.StdEncoding.EncodeToString([]byte(statement)) + `"}`
	return map[string]string{"": document, "in a statement": statement, "in an envelope": envelope, "in a bundle": `{"dsseEnvelope":` + envelope + `}`}
}

// bounded fails the test if a document is larger than a page can show.
func bounded(t *testing.T, d *documents.Document) {
	t.Helper()
	var texts []string
	for _, c := range d.Components {
		texts = append(texts, c.Name, c.Version, c.License, c.Kind)
	}
	n := 0
	for _, f := range d.Findings {
		texts = append(texts, f.ID, f.Package, f.Version, f.Fixed, f.Title)
		if !slices.Contains(documents.Severities, f.Severity) {
			t.Errorf("a severity is %q", f.Severity)
		}
	}
	for _, c := range d.Counts {
		n += c.Findings
	}
	if len(d.Components) > 1000 || len(d.Findings) > 1000 || n != len(d.Findings)+d.MoreFindings {
		t.Errorf("%d components, %d findings of %d", len(d.Components), len(d.Findings), n)
	}
	for _, s := range append(texts, d.Tool, d.Made) {
		if len(s) > 410 || !utf8.ValidString(s) {
			t.Errorf("a text of %d bytes: %.20q", len(s), s)
		}
	}
}

// TestReadBounds checks that long lists and texts are cut, and counted.
func TestReadBounds(t *testing.T) {
	t.Parallel()
	var list []string
	for i := range 2500 {
		list = append(list, fmt.Sprintf(`{"VulnerabilityID":"CVE-%d","PkgName":%q,"Severity":"x"}`, i, strings.Repeat("p", 1000)))
	}
	d, err := documents.Read([]byte(`{"SchemaVersion":2,"Results":[{"Vulnerabilities":[` + strings.Join(list, ",") + `]}]}`))
	if err != nil || d.MoreFindings != 1500 {
		t.Fatalf("%+v, %v", d, err)
	}
	bounded(t, d)
}

func FuzzRead(f *testing.F) {
	for _, s := range samples {
		for _, w := range wrapped(s) {
			f.Add([]byte(w))
		}
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		if d, err := documents.Read(content); err == nil {
			bounded(t, d)
		}
		if c, err := documents.ReadChart(content); err == nil && (len(c.Description) > 410 || len(c.Keywords) > 50) {
			t.Errorf("a chart is %+v", c)
		}
	})
}

// archive packs files as a chart.
func archive(t testing.TB, files ...[2]string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for _, f := range files {
		if err := w.WriteHeader(&tar.Header{Name: f[0], Mode: 0o644, Size: int64(len(f[1])), Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(f[1])); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestReadChart checks the description and the files of a chart, and that an archive that unpacks
// to too much is given up.
func TestReadChart(t *testing.T) {
	t.Parallel()
	c, err := documents.ReadChart([]byte(`{"name":"web","version":"1.0.0","appVersion":"2","description":"d","keywords":["a","b"],"maintainers":[{"name":"M","email":"m@example.org"}],"dependencies":[{"name":"db","version":"1","repository":"oci://x"}],"deprecated":true}`))
	if err != nil || c.Name != "web" || c.AppVersion != "2" || !c.Deprecated || !slices.Equal(c.Maintainers, []string{"M m@example.org"}) || !slices.Equal(c.Dependencies, []string{"db 1 oci://x"}) {
		t.Errorf("the chart is %+v, %v", c, err)
	}
	files := archive(t, [2]string{"web/Chart.yaml", "x"}, [2]string{"web/charts/db/README.md", "another"}, [2]string{"web/values.yaml", "a: 1\n"}, [2]string{"web/README.md", "# Web\xff"})
	f, err := documents.ReadChartFiles(bytes.NewReader(files))
	if err != nil || f.Readme != "# Web\ufffd" || f.Values != "a: 1\n" || f.ReadmeCut {
		t.Errorf("the files are %+v, %v", f, err)
	}
	if f, err = documents.ReadChartFiles(bytes.NewReader(files[:len(files)-20])); err == nil && f.Readme == "" {
		t.Errorf("of a cut archive: %+v, %v", f, err)
	}
	bomb := archive(t, [2]string{"web/values.yaml", "a: 1"}, [2]string{"web/zero", strings.Repeat("\x00", 65<<20)}, [2]string{"web/README.md", "hidden"})
	if f, err = documents.ReadChartFiles(bytes.NewReader(bomb)); err == nil || f.Values == "" || f.Readme != "" {
		t.Errorf("of %d bytes that unpack to 65 MiB: %+v, %v", len(bomb), f, err)
	}
	long := archive(t, [2]string{"web/README.md", strings.Repeat("x", 300<<10)})
	if f, err = documents.ReadChartFiles(bytes.NewReader(long)); err != nil || !f.ReadmeCut || len(f.Readme) != 256<<10 {
		t.Errorf("a long README: %d bytes, cut %v, %v", len(f.Readme), f.ReadmeCut, err)
	}
}

func FuzzReadChartFiles(f *testing.F) {
	f.Add(archive(f, [2]string{"web/README.md", "text"}, [2]string{"web/values.yaml", "a: 1"}))
	f.Fuzz(func(t *testing.T, content []byte) {
		got, _ := documents.ReadChartFiles(bytes.NewReader(content))
		if len(got.Readme) > 800<<10 || !utf8.ValidString(got.Readme+got.Values) {
			t.Errorf("%d bytes", len(got.Readme))
		}
	})
}
