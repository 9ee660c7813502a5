package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"example.org/slipway/internal/backendtest"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"slipway": main})
}

// TestScripts runs the command as its users do. The table adds commands to those of
// testscript.
func TestScripts(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireUniqueNames:  true,
		RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("DOCKER_CONFIG", e.WorkDir)    // a directory without credentials
			e.Setenv("GORACE", "atexit_sleep_ms=0") // otherwise each command takes a second more under -race
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits":    exits,
			"oneline":  oneLine,
			"freeport": freePort,
			"ready":    ready,
			"waitfor":  waitFor,
			"push":     push,
			"pushdirs": pushDirs,
			"pull":     pull,
			"damage":   damage,
			"disttree": distTree,
			"isjson":   isJSON,
			"capture":  capture,
		},
	})
}

// exits implements exits STATUS COMMAND...: it runs a command that must end with the
// status.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		got = exit.ExitCode()
	case err != nil:
		ts.Fatalf("%v", err)
	}
	if got != want {
		ts.Fatalf("%v ended with status %d, want %d", args[1:], got, want)
	}
}

// oneLine implements oneline: standard error must be one line of slipway's, without a
// stack trace.
func oneLine(ts *testscript.TestScript, neg bool, _ []string) {
	text := ts.ReadFile("stderr")
	if !strings.HasPrefix(text, "slipway: ") || strings.Count(text, "\n") != 1 {
		ts.Fatalf("standard error is not one line of slipway's:\n%s", text)
	}
}

// freePort implements freeport VARIABLE...: it sets each variable to an address on which
// nothing listens.
func freePort(ts *testscript.TestScript, neg bool, args []string) {
	for _, name := range args {
		port, err := backendtest.FreePort()
		ts.Check(err)
		ts.Setenv(name, fmt.Sprintf("127.0.0.1:%d", port))
	}
}

// ready implements ready ADDR, which waits until a server answers there, and ! ready
// ADDR, which waits until none does.
func ready(ts *testscript.TestScript, neg bool, args []string) {
	for deadline := time.Now().Add(30 * time.Second); ; <-time.After(10 * time.Millisecond) {
		resp, err := http.Get("http://" + args[0] + "/v2/")
		if err == nil {
			resp.Body.Close()
		}
		if (err != nil) == neg {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("%s: waited in vain; the last answer was %v", args[0], err)
		}
	}
}

// waitFor implements waitfor COMMAND...: it runs a command until it succeeds.
func waitFor(ts *testscript.TestScript, neg bool, args []string) {
	for deadline := time.Now().Add(60 * time.Second); ; <-time.After(100 * time.Millisecond) {
		if err := ts.Exec(args[0], args[1:]...); err == nil {
			return
		} else if time.Now().After(deadline) {
			ts.Fatalf("%v: waited in vain: %v", args, err)
		}
	}
}

func digestOf(content string) string {
	sum := sha256.Sum256([]byte(content))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// layerOf returns a layer that is too large to be kept in the catalogue.
func layerOf(word string) string { return strings.Repeat(word+"\n", 32<<10/len(word)) }

func manifestOf(layer string) string {
	d := digestOf(layer)
	return fmt.Sprintf(`{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":%q,"size":%d},"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":%q,"size":%d}]}`,
		d, len(layer), d, len(layer))
}

func send(ts *testscript.TestScript, method, url, contentType, body string) (int, string) {
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	ts.Check(err)
	req.Header.Set("Content-Type", contentType)
	resp, err := http.DefaultClient.Do(req)
	ts.Check(err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	ts.Check(err)
	return resp.StatusCode, string(b)
}

// push implements push ADDR REPOSITORY TAG WORD: it pushes an image whose layer is made
// of the word.
func push(ts *testscript.TestScript, neg bool, args []string) {
	layer := layerOf(args[3])
	base := "http://" + args[0] + "/v2/" + args[1]
	if status, body := send(ts, "POST", base+"/blobs/uploads/?digest="+digestOf(layer), "application/octet-stream", layer); status != http.StatusCreated {
		ts.Fatalf("push the layer: status %d %s", status, body)
	}
	if status, body := send(ts, "PUT", base+"/manifests/"+args[2], "application/vnd.oci.image.manifest.v1+json", manifestOf(layer)); status != http.StatusCreated {
		ts.Fatalf("push the manifest: status %d %s", status, body)
	}
}

// pull implements pull ADDR REPOSITORY TAG WORD, which expects the image that push
// pushes, and ! pull, which expects that it cannot be pulled.
func pull(ts *testscript.TestScript, neg bool, args []string) {
	layer := layerOf(args[3])
	base := "http://" + args[0] + "/v2/" + args[1]
	status, manifest := send(ts, "GET", base+"/manifests/"+args[2], "", "")
	got := ""
	if status == http.StatusOK {
		status, got = send(ts, "GET", base+"/blobs/"+digestOf(layer), "", "")
	}
	whole := status == http.StatusOK && manifest == manifestOf(layer) && got == layer
	if whole == neg {
		ts.Fatalf("pull %v: got status %d, manifest %s and %d bytes", args, status, manifest, len(got))
	}
}

// damage implements damage ROOT WORD: it flips a bit of a layer on disk.
func damage(ts *testscript.TestScript, neg bool, args []string) {
	hexDigest := strings.TrimPrefix(digestOf(layerOf(args[1])), "sha256:")
	path := filepath.Join(ts.MkAbs(args[0]), "docker/registry/v2/blobs/sha256", hexDigest[:2], hexDigest, "data")
	b, err := os.ReadFile(path)
	ts.Check(err)
	b[len(b)/2] ^= 1
	ts.Check(os.Chmod(path, 0o600))
	ts.Check(os.WriteFile(path, b, 0o600))
}

// distTree implements disttree DIR REPOSITORY TAG WORD: it writes the storage of a
// Distribution registry that has one image.
func distTree(ts *testscript.TestScript, neg bool, args []string) {
	top := filepath.Join(ts.MkAbs(args[0]), "docker/registry/v2")
	repo := filepath.Join(top, "repositories", args[1])
	layer := layerOf(args[3])
	manifest := manifestOf(layer)
	write := func(path, content string) {
		ts.Check(os.MkdirAll(filepath.Dir(path), 0o755))
		ts.Check(os.WriteFile(path, []byte(content), 0o644))
	}
	for _, content := range []string{layer, manifest} {
		hexDigest := strings.TrimPrefix(digestOf(content), "sha256:")
		write(filepath.Join(top, "blobs/sha256", hexDigest[:2], hexDigest, "data"), content)
	}
	link := func(dir, content string) {
		d := digestOf(content)
		write(filepath.Join(repo, dir, strings.Replace(d, ":", "/", 1), "link"), d)
	}
	link("_layers", layer)
	link("_manifests/revisions", manifest)
	link("_manifests/tags/"+args[2]+"/index", manifest)
	write(filepath.Join(repo, "_manifests/tags", args[2], "current/link"), digestOf(manifest))
}

// capture implements capture VARIABLE REGEXP: it sets the variable to the first match in
// standard output.
func capture(ts *testscript.TestScript, neg bool, args []string) {
	found := regexp.MustCompile(args[1]).FindString(ts.ReadFile("stdout"))
	if found == "" {
		ts.Fatalf("nothing in standard output matches %s", args[1])
	}
	ts.Setenv(args[0], found)
}

// isJSON implements isjson: standard output must be one JSON value.
func isJSON(ts *testscript.TestScript, neg bool, _ []string) {
	if text := ts.ReadFile("stdout"); !json.Valid([]byte(text)) {
		ts.Fatalf("standard output is not JSON:\n%s", text)
	}
}
