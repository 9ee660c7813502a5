package cider

import (
	"archive/tar"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"example.org/slipway/integration/bench/measure"
	"example.org/slipway/integration/internal/ceph"
	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/tool"
)

// shellLayer returns a layer with this machine's shell and what it needs, so that containers can do
// the task of the series debian.
func shellLayer(t testing.TB) imagetest.Layer {
	t.Helper()
	a := new(imagetest.Archive).Dir("./").Dir("bin/").Dir("tmp/")
	files := map[string]string{"bin/sh": "/bin/dash", "bin/sleep": "/bin/sleep", "bin/mkdir": "/bin/mkdir"}
	library := regexp.MustCompile(`/\S+\.so\S*`)
	for _, program := range []string{"/bin/dash", "/bin/sleep", "/bin/mkdir"} {
		out, err := exec.Command("ldd", program).Output()
		if err != nil {
			t.Fatal(err)
		}
		for _, lib := range library.FindAllString(string(out), -1) {
			files[strings.TrimPrefix(lib, "/")] = lib
		}
	}
	dirs := map[string]bool{"bin": true, "tmp": true}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		from := files[name]
		for i, r := range name { // a directory without an entry gets the time of unpacking
			if d := name[:i]; r == '/' && !dirs[d] {
				dirs[d] = true
				a.Dir(d + "/")
			}
		}
		data, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		a.Add(tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o755}, data)
	}
	return a.Layer()
}

// TestScenarios runs the scenarios on two small images and a separate Ceph.
func TestScenarios(t *testing.T) {
	tool.NeedRoot(t)
	if name := ceph.Missing(); name != "" {
		t.Skipf("tool not installed: %s (scripts/setup.sh test installs it)", name)
	}
	for _, name := range []string{"containerd", "ctr", "runc", "crane"} {
		tool.Built(t, name)
	}
	binary := slipway.RBDBinary(t)
	corpus, shell := t.TempDir(), shellLayer(t)
	for v := range 2 {
		own := new(imagetest.Archive).Dir("./").File("version", fmt.Sprint(v)).Layer()
		dir := filepath.Join(corpus, "debian", fmt.Sprint(v+1))
		imagetest.Compose(runtime.GOARCH, map[string]any{"Env": []string{"PATH=/bin"}}, []imagetest.Layer{shell, own}).WriteLayout(t, dir, "v")
	}
	out := filepath.Join(t.TempDir(), "results.json")
	scenarios := os.Getenv("SLIPWAY_CIDERBENCH_SCENARIOS")
	if scenarios == "" {
		scenarios = "equality,node10"
	}
	_, err := Suite().Run(t.Context(), []string{"-bin", binary, "-corpus", corpus, "-quick", "-dir", "/tmp", "-out", out, "-containers", "1,2", "-ways", "plain,local,network", "-scenario", scenarios})
	if err != nil {
		t.Fatal(err)
	}
	r, err := measure.Load[Results](out)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range r.Parts() {
		for _, target := range part.Targets() {
			// Times and bytes of such small images mean nothing; equality does.
			if target.Scenario == "equality" && !target.Met() {
				t.Errorf("%s: %v", target.What, target.Figure)
			}
		}
	}
}
