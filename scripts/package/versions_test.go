package main

import (
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	released = regexp.MustCompile(`(?m)^## (\d+\.\d+\.\d+) – (\d{4}-\d\d-\d\d)$`)
	// versioned matches where files for users name a release.
	versioned = regexp.MustCompile(`(?m)slipway[-_:](\d+\.\d+\.\d+)|charts/slipway --version (\d+\.\d+\.\d+)|git tag -a v(\d+\.\d+\.\d+)|^(?:appV|v|  v)ersion: (\d+\.\d+\.\d+)$|app\.kubernetes\.io/version: "(\d+\.\d+\.\d+)"`)
)

// TestVersions checks that the chart, the manifests, the documents and the description of the
// interface name the release that is the newest in the changelog.
func TestVersions(t *testing.T) {
	t.Chdir("../..")
	log := string(read(t, "CHANGELOG.md"))
	releases := released.FindAllStringSubmatch(log, -1)
	if len(releases) < 2 || strings.Count(log, "\n## ") != len(releases)+1 {
		t.Fatalf("the changelog has the releases %q, and another heading than these and Unreleased", releases)
	}
	if !slices.IsSortedFunc(releases, func(a, b []string) int { return strings.Compare(b[2], a[2]) }) {
		t.Errorf("the newest release is not the first: %q", releases)
	}
	newest, before := releases[0][1], releases[1][1]
	others := map[string][]string{ // pages that name another release on purpose
		"docs/drill.md":      {before},
		"docs/releasing.md":  {before},
		"docs/kubernetes.md": {newest[:strings.LastIndex(newest, ".")+1] + "1"}, // the next one, to which the page upgrades
	}
	files := 0
	for _, dir := range []string{"README.md", "deploy", "docs"} {
		err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !slices.Contains([]string{".md", ".yaml", ".yml"}, filepath.Ext(name)) {
				return err
			}
			found := versioned.FindAllSubmatch(read(t, name), -1)
			for _, m := range found {
				if v := string(bytes.Join(m[1:], nil)); v != newest && !slices.Contains(others[name], v) {
					t.Errorf("%s: %q names another release than %s", name, m[0], newest)
				}
			}
			if len(found) > 0 {
				files++
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if files < 9 {
		t.Errorf("only %d files name a release", files)
	}
}

// TestRenameModule gives a copy of the sources another module path. Nothing names the old one
// then, and the tools find all packages.
func TestRenameModule(t *testing.T) {
	t.Chdir("../..")
	dir := filepath.Join(t.TempDir(), "slipway")
	list, err := exec.CommandContext(t.Context(), "git", "ls-files", "-co", "--exclude-standard").Output()
	if err != nil {
		t.Skipf("the sources are not in git: %v", err)
	}
	for name := range strings.Lines(string(list)) {
		name = strings.TrimSpace(name)
		info, err := os.Lstat(name)
		if err != nil {
			continue // removed, and not committed yet
		}
		to := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		if !info.Mode().IsRegular() {
			continue // a link within the chart
		}
		if err := os.WriteFile(to, read(t, name), info.Mode().Perm()); err != nil {
			t.Fatal(err)
		}
	}
	rename := func(path string) (string, error) {
		cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "scripts/rename-module.sh"), path)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	old := regexp.MustCompile(`(?m)^module (.+)$`).FindStringSubmatch(string(read(t, "go.mod")))[1]
	for _, path := range []string{"slipway", "https://git.example.com/a/slipway", "git.example.com/a b", old} {
		if out, err := rename(path); err == nil {
			t.Errorf("%q is taken as a path: %s", path, out)
		}
	}
	const path = "git.example.com/some-group/registry"
	if out, err := rename(path); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	err = filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && bytes.Contains(read(t, name), []byte(old)) {
			t.Errorf("%s still has the path %s", name, old)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for module, want := range map[string]string{".": path + "/cmd/slipway", "integration": path + "/integration/browser", "bench": path + "/integration/bench"} {
		cmd := exec.CommandContext(t.Context(), "go", "list", "-buildvcs=false", "./...")
		cmd.Dir = filepath.Join(dir, module)
		out, err := cmd.Output()
		if err != nil || !slices.Contains(strings.Split(string(out), "\n"), want) {
			t.Errorf("the module in %s lacks %s (%v):\n%s", module, want, err, out)
		}
	}
}
