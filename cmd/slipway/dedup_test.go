package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestDedup runs slipway dedup as its users do.
func TestDedup(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Files:               []string{"testdata/dedup.txtar"},
		RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("DOCKER_CONFIG", e.WorkDir) // a directory without credentials
			e.Setenv("GORACE", "atexit_sleep_ms=0")
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits":    exits,
			"oneline":  oneLine,
			"freeport": freePort,
			"ready":    ready,
			"push":     push,
			"isjson":   isJSON,
			"layout":   layout,
			"rmlayer":  removeLayer,
		},
	})
}

// dedupLayer returns an archive with two equal files of 1,000 bytes, which do not
// compress.
func dedupLayer(ts *testscript.TestScript) string {
	content := make([]byte, 1000)
	r := rand.New(rand.NewPCG(1, 0))
	for i := range content {
		content[i] = byte(r.Uint32())
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range []string{"a", "b"} {
		ts.Check(w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content))}))
		_, err := w.Write(content)
		ts.Check(err)
	}
	ts.Check(w.Close())
	return b.String()
}

// layout implements layout DIR: it writes an OCI image layout with one image.
func layout(ts *testscript.TestScript, _ bool, args []string) {
	dir := ts.MkAbs(args[0])
	layer := dedupLayer(ts)
	manifest := manifestOf(layer)
	index := fmt.Sprintf(`{"schemaVersion":2,"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":%q,"size":%d,"platform":{"os":"linux","architecture":"amd64"}}]}`,
		digestOf(manifest), len(manifest))
	for name, text := range map[string]string{
		"oci-layout": `{"imageLayoutVersion":"1.0.0"}`, "index.json": index,
		layoutBlob(layer): layer, layoutBlob(manifest): manifest,
	} {
		path := filepath.Join(dir, name)
		ts.Check(os.MkdirAll(filepath.Dir(path), 0o755))
		ts.Check(os.WriteFile(path, []byte(text), 0o644))
	}
}

// removeLayer implements rmlayer DIR: it removes the layer of a layout.
func removeLayer(ts *testscript.TestScript, _ bool, args []string) {
	ts.Check(os.Remove(filepath.Join(ts.MkAbs(args[0]), layoutBlob(dedupLayer(ts)))))
}

func layoutBlob(content string) string {
	return filepath.Join("blobs", "sha256", digestOf(content)[len("sha256:"):])
}
