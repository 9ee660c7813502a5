package images

import (
	"encoding/json"
	"strings"
	"testing"

	"example.org/slipway/oci"
)

// TestInstruction checks that the history that builders write is shown like a Dockerfile.
func TestInstruction(t *testing.T) {
	for by, want := range map[string][2]string{
		"/bin/sh -c #(nop)  CMD [\"bash\"]":     {"CMD", `["bash"]`},
		"/bin/sh -c make && make install":       {"RUN", "make \\\n && make install"},
		"RUN /bin/sh -c make # buildkit":        {"RUN", "make"},
		"|1 V=2 /bin/sh -c make":                {"RUN", "make  # with V=2"},
		"RUN |1 V=2 /bin/sh -c make # buildkit": {"RUN", "make  # with V=2"},
		"COPY a b # buildkit":                   {"COPY", "a b"},
		"bazel build ...":                       {"", "bazel build ..."},
		"":                                      {"", ""},
		"|":                                     {"", "|"},
		"/bin/sh -c #(nop) ADD file:1 in / ":    {"ADD", "file:1 in /"},
		"RUN set -e\nmake && make install # buildkit": {"RUN", "set -e\nmake && make install"},
	} {
		if k, text := instruction(by); k != want[0] || text != want[1] {
			t.Errorf("%q becomes %q %q", by, k, text)
		}
	}
}

// TestBuild checks that steps and layers are matched, and that the unmatched ones of both
// are shown.
func TestBuild(t *testing.T) {
	layers := []oci.Descriptor{{Size: 10}, {Size: 40}}
	got := build([]historyEntry{{CreatedBy: "ADD a"}, {CreatedBy: "ENV b", Empty: true}}, layers)
	if len(got) != 3 || got[0].Layer != 1 || got[0].Share != 0.25 || got[1].Layer != 0 || got[2].Layer != 2 || got[2].Text != "" {
		t.Errorf("got %+v", got)
	}
	if got = build([]historyEntry{{}, {}, {}}, layers); len(got) != 3 || got[2].Layer != 0 {
		t.Errorf("got %+v", got)
	}
}

func TestKindOf(t *testing.T) {
	with := func(config string, layers ...string) manifest {
		m := manifest{Config: &oci.Descriptor{MediaType: config}}
		for _, l := range layers {
			m.Layers = append(m.Layers, oci.Descriptor{MediaType: l})
		}
		return m
	}
	for _, c := range []struct {
		artifact string
		m        manifest
		want     string
	}{{"", with(typeOCIConfig), "image"}, {"", with(typeDockerConf), "image"}, {"", with(typeHelmConfig), "Helm chart"}, {"", manifest{}, "artifact"},
		{"", with(typeOCIConfig, "application/vnd.dev.cosign.simplesigning.v1+json"), "signature"}, {"application/spdx+json", with(typeEmpty), "SBOM"},
		{"", with(typeOCIConfig, "application/vnd.in-toto+json"), "attestation"}, {"application/x", with(typeOCIConfig), "artifact"}} {
		c.m.ArtifactType = c.artifact
		if got := kindOf(oci.MediaTypeOCIManifest, c.artifact, c.m).Name; got != c.want {
			t.Errorf("%+v is a %s, want %s", c, got, c.want)
		}
	}
}

// FuzzImage checks that invented manifests and configs break nothing.
func FuzzImage(f *testing.F) {
	f.Add([]byte(`{"manifests":[{"platform":{"os":"linux"}}]}`), []byte(`{"history":[{"created_by":"|1 a"}],"config":{"Cmd":["\ud800"]}}`))
	f.Fuzz(func(t *testing.T, content, config []byte) {
		m := readManifest(content)
		kindOf(oci.MediaTypeOCIIndex, "", m)
		kindOf(oci.MediaTypeOCIManifest, m.ArtifactType, m)
		d := &imageData{Repo: "a"}
		d.parts(m)
		pretty(content)
		var c imageConfig
		if json.Unmarshal(config, &c) == nil {
			for _, v := range configFacts(&c) {
				if strings.TrimSpace(v.Name) == "" {
					t.Error("a fact without a name")
				}
			}
			if n := len(build(c.History, m.Layers)); n < len(c.History) || n < len(m.Layers) {
				t.Error("a step or a layer is lost")
			}
		}
	})
}

// TestPrettyDepth checks that a manifest is indented, unless it is so deep that indenting
// would multiply its size.
func TestPrettyDepth(t *testing.T) {
	nested := func(n int) []byte {
		return []byte(`{"a":` + strings.Repeat("[", n-1) + strings.Repeat("]", n-1) + `}`)
	}
	for name, test := range map[string]struct {
		content  []byte
		indented bool
	}{
		"usual": {[]byte(`{"a":{"b":[1]}}`), true}, "deep": {nested(maxIndented), true}, "too deep": {nested(maxIndented + 1), false}, "as deep as Go reads": {nested(9000), false},
		"brackets in a text": {[]byte(`{"a":"` + strings.Repeat(`[\"`, 500) + `"}`), true}, "side by side": {[]byte(`[` + strings.Repeat("[],", 500) + `1]`), true},
	} {
		text, cut := pretty(test.content)
		if cut || strings.Contains(text, "\n") != test.indented || len(text) > 40*len(test.content) {
			t.Errorf("%s: %d bytes became %d, cut %v, want it indented: %v", name, len(test.content), len(text), cut, test.indented)
		}
	}
}

// FuzzRef checks that a reference is written as it was read.
func FuzzRef(f *testing.F) {
	f.Add("lib/app:v1")
	f.Add("lib/app@sha256:" + strings.Repeat("a", 64))
	f.Fuzz(func(t *testing.T, s string) {
		if r, ok := ParseRef(s); ok && r.String() != s {
			t.Errorf("%q is read as %q", s, r)
		}
	})
}

// TestLinks checks that what is no digest or tag has no link.
func TestLinks(t *testing.T) {
	if got := DigestLink("a/b", "sha256:x"); got != "" {
		t.Errorf("a link %q to no digest", got)
	}
	if got := TagLink("a/b", "a/b"); got != "" {
		t.Errorf("a link %q to no tag", got)
	}
}
