package manifest_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"example.org/slipway/oci"
	"example.org/slipway/registry/manifest"
)

// FuzzParse checks that no input panics, and that an accepted document has a digest for everything
// it names and means the same when it is written anew.
func FuzzParse(f *testing.F) {
	d := oci.SHA256([]byte("x"))
	for _, s := range []string{
		`{"schemaVersion":2,"config":{"mediaType":"a","digest":"` + string(d) + `","size":1},"layers":[]}`,
		`{"schemaVersion":2,"mediaType":"` + oci.MediaTypeOCIIndex + `","manifests":[{"digest":"` + string(d) + `","size":1,"platform":{"os":"linux"}}]}`,
		`{"schemaVersion":2,"manifests":[]}`, `{"schemaVersion":2,"manifests":[],"layers":[]}`, `{}`, `null`, `[]`, `{"schemaVersion":2,"config":null}`,
		`{"schemaVersion":2,"config":{"digest":"sha256:x"}}`, `{"schemaVersion":1e400}`, `{"annotations":{"a":null}}`,
		`{"mediaType":"application/vnd.oci.artifact.manifest.v1+json","blobs":[],"subject":{"digest":"` + string(d) + `"}}`,
	} {
		f.Add([]byte(s), "")
		f.Add([]byte(s), oci.MediaTypeOCIManifest)
		f.Add([]byte(s), oci.MediaTypeOCIIndex+"; charset=utf-8")
	}
	f.Fuzz(func(t *testing.T, b []byte, contentType string) {
		_, err := manifest.Parse(b, contentType)
		if err != nil {
			var e *oci.Error
			if !errors.As(err, &e) || e.Code != oci.CodeManifestInvalid {
				t.Errorf("got %v", err)
			}
			return
		}
		var doc map[string]any
		if err := json.Unmarshal(b, &doc); err != nil {
			t.Fatalf("accepted what is not a JSON object: %v", err)
		}
		again, err := json.Marshal(doc)
		if err != nil {
			t.Fatal(err)
		}
		// JSON may name a key twice or in another case. The document may then mean something else
		// when written anew, but it must still parse.
		_, _ = manifest.Parse(again, contentType)
		for _, key := range []string{"layers", "manifests", "blobs"} {
			list, _ := doc[key].([]any)
			for _, e := range list {
				entry, _ := e.(map[string]any)
				if digest, ok := entry["digest"].(string); ok && !oci.ValidDigest(oci.Digest(digest)) && len(entry) == 1 && !strings.Contains(string(b), "igest\":\"sha") {
					t.Errorf("accepted the digest %q", digest)
				}
			}
		}
	})
}

// TestDepth checks that a manifest that is deeper than necessary is refused: showing it indented
// would take the square of its depth.
func TestDepth(t *testing.T) {
	deep := func(depth int, text string) []byte {
		return fmt.Appendf(nil, `{"schemaVersion":2,"manifests":[],"annotations":{"a":%q},"x":%s%s}`, text, strings.Repeat("[", depth-1), strings.Repeat("]", depth-1))
	}
	for name, test := range map[string]struct {
		manifest []byte
		refused  bool
	}{
		"deep": {deep(64, ""), false}, "too deep": {deep(65, ""), true}, "far too deep": {deep(9000, ""), true},
		"brackets in a text": {deep(2, strings.Repeat(`[{"\`, 100)), false},
		"side by side":       {[]byte(`{"schemaVersion":2,"manifests":[],"x":[` + strings.Repeat("[],", 500) + `1]}`), false},
	} {
		_, err := manifest.Parse(test.manifest, oci.MediaTypeOCIIndex)
		if (err != nil) != test.refused || err != nil && !oci.HasCode(err, oci.CodeManifestInvalid) {
			t.Errorf("%s: got %v, want it refused: %v", name, err, test.refused)
		}
	}
}
