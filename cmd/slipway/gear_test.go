package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
)

// tarOf returns a layer of the files of a directory, at its top level.
func tarOf(ts *testscript.TestScript, dir string) string {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	names, err := os.ReadDir(ts.MkAbs(dir))
	ts.Check(err)
	for _, n := range names {
		data := ts.ReadFile(filepath.Join(dir, n.Name()))
		ts.Check(w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: n.Name(), Mode: 0o644, Size: int64(len(data)), Format: tar.FormatUSTAR}))
		_, err := w.Write([]byte(data))
		ts.Check(err)
	}
	ts.Check(w.Close())
	return b.String()
}

// pushDirs implements pushdirs ADDR REPOSITORY TAG DIR...: it pushes an image with a
// layer for each directory. The image runs sh on Linux and on this machine's kind of
// processor.
func pushDirs(ts *testscript.TestScript, neg bool, args []string) {
	base := "http://" + args[0] + "/v2/" + args[1]
	blob := func(mediaType, content string) string {
		d := digestOf(content)
		if status, body := send(ts, "POST", base+"/blobs/uploads/?digest="+d, "application/octet-stream", content); status != http.StatusCreated {
			ts.Fatalf("push a blob: status %d %s", status, body)
		}
		return fmt.Sprintf(`{"mediaType":%q,"digest":%q,"size":%d}`, mediaType, d, len(content))
	}
	var layers, diffs []string
	for _, dir := range args[3:] {
		layer := tarOf(ts, dir)
		layers = append(layers, blob("application/vnd.oci.image.layer.v1.tar", layer))
		diffs = append(diffs, `"`+digestOf(layer)+`"`)
	}
	config := blob("application/vnd.oci.image.config.v1+json",
		`{"os":"linux","architecture":"amd64","config":{"Cmd":["sh"]},"rootfs":{"type":"layers","diff_ids":[`+strings.Join(diffs, ",")+`]}}`)
	manifest := `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":` + config + `,"layers":[` + strings.Join(layers, ",") + `]}`
	if status, body := send(ts, "PUT", base+"/manifests/"+args[2], "application/vnd.oci.image.manifest.v1+json", manifest); status != http.StatusCreated {
		ts.Fatalf("push the manifest: status %d %s", status, body)
	}
}
