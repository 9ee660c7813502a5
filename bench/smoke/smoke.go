// Package smoke makes what a run of a suite on the smallest scale needs.
package smoke

import (
	"fmt"
	"path/filepath"
	"runtime"
	"testing"

	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/tool"
)

// Corpus makes a corpus of two versions of an image with a shell, in which containers can
// do the first task of the series debian. It skips the test if containers cannot run.
func Corpus(t testing.TB) string {
	t.Helper()
	tool.NeedRoot(t)
	for _, name := range []string{"containerd", "ctr", "runc", "crane"} {
		tool.Built(t, name)
	}
	corpus, base := t.TempDir(), shell(t)
	for v := range 2 {
		own := new(imagetest.Archive).Dir("./").File("version", fmt.Sprint(v)).Layer()
		dir := filepath.Join(corpus, "debian", fmt.Sprint(v+1))
		imagetest.Compose(runtime.GOARCH, map[string]any{"Env": []string{"PATH=/bin"}}, []imagetest.Layer{base, own}).WriteLayout(t, dir, "v")
	}
	return corpus
}

// shell returns a layer with this machine's shell and what it needs.
func shell(t testing.TB) imagetest.Layer {
	t.Helper()
	a := new(imagetest.Archive).Dir("./").Dir("bin/").Dir("tmp/")
	if err := a.Programs(map[string]string{"bin/sh": "/bin/dash", "bin/sleep": "/bin/sleep", "bin/mkdir": "/bin/mkdir"}); err != nil {
		t.Fatal(err)
	}
	return a.Layer()
}
