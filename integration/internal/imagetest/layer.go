package imagetest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"example.org/slipway/integration/internal/wire"
)

// File is an entry of a layer. It is a directory if its name ends in a slash.
type File struct {
	Name string
	// Mode is the permission; 0 means 0644, or 0755 for a directory.
	Mode int64
	Data []byte
}

// Layer is one layer of an image in its two forms.
type Layer struct {
	Tar  []byte
	Gzip []byte
}

// DiffID returns the digest of the uncompressed layer.
func (l Layer) DiffID() string { return wire.Digest(l.Tar) }

// NewLayer returns a layer of the files, in the given order. The same files give the same bytes:
// there are no times, no owners, and no platform-dependent headers. Without files it returns the
// empty layer, a tar archive with nothing but its end marker.
func NewLayer(files ...File) Layer {
	var raw bytes.Buffer
	w := tar.NewWriter(&raw)
	for _, f := range files {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: f.Name, Mode: f.Mode, Size: int64(len(f.Data)), Format: tar.FormatUSTAR}
		if f.Name[len(f.Name)-1] == '/' {
			h.Typeflag = tar.TypeDir
			h.Mode = 0o755
		}
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		must(w.WriteHeader(h))
		_, err := w.Write(f.Data)
		must(err)
	}
	must(w.Close())
	return Layer{Tar: raw.Bytes(), Gzip: compress(raw.Bytes())}
}

func compress(b []byte) []byte {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, err := w.Write(b)
	must(err)
	must(w.Close())
	return out.Bytes()
}

// must panics on an error that cannot happen: a failed write to memory, or a wrong header
// made above.
func must(err error) {
	if err != nil {
		panic(fmt.Sprintf("imagetest: %v", err))
	}
}

// helloSource is the program of the test images. It lists the directory /data
// that other layers made, so that its output reports whether all layers arrived
// and were applied in order.
const helloSource = `package main

import "os"

func main() {
	out := "slipway-ok"
	entries, err := os.ReadDir("/data")
	if err != nil {
		out += " " + err.Error()
	}
	for _, e := range entries {
		b, err := os.ReadFile("/data/" + e.Name())
		if err != nil {
			b = []byte(err.Error())
		}
		out += " " + e.Name() + "=" + string(b)
	}
	os.Stdout.WriteString(out + "\n")
}
`

// hello builds the program once per test process.
var hello = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "slipway-hello")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(helloSource), 0o600); err != nil {
		return nil, err
	}
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", "hello", "main.go")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GO111MODULE=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the image's program: %w\n%s", err, out)
	}
	return os.ReadFile(filepath.Join(dir, "hello"))
})

// HelloProgram returns a static executable for this machine that prints
// "slipway-ok" and the files below /data with their contents.
func HelloProgram(t testing.TB) []byte {
	t.Helper()
	b, err := hello()
	if err != nil {
		t.Fatal(err)
	}
	return b
}
