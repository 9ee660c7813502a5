package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// inputs prepares a release whose binaries are no programs, in the root of the source tree.
func inputs(t *testing.T) *release {
	t.Helper()
	t.Chdir("../..")
	dir := t.TempDir()
	for _, d := range []string{"man", "completions"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, data := range map[string]string{
		"man/slipway.1": ".TH SLIPWAY 1\n", "completions/slipway.bash": "#\n", "completions/slipway.fish": "#\n",
		"completions/_slipway": "#compdef slipway\n", "licences.txt": "none\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	r := &release{
		version: "1.2.3", revision: "0123abc", epoch: time.Unix(1700000000, 0).UTC(), arches: []string{"amd64", "arm64"},
		binaries: dir, extras: dir, out: filepath.Join(t.TempDir(), "dist"), quick: true,
	}
	for _, arch := range r.arches {
		if err := os.WriteFile(r.binary(arch), bytes.Repeat([]byte(arch), 10000), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// needDpkg skips the test where there is no dpkg.
func needDpkg(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		t.Skipf("not a Debian system: %v", err)
	}
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestReproducible makes a release twice, from inputs in two directories at two times.
func TestReproducible(t *testing.T) {
	needDpkg(t)
	var sums []string
	kinds := []string{"tarball", "deb", "rpm", "image", "sums"}
	var r *release
	for range 2 {
		t.Run("make", func(t *testing.T) {
			r = inputs(t)
			if err := r.make(kinds); err != nil {
				t.Fatal(err)
			}
			sums = append(sums, string(read(t, filepath.Join(r.out, "SHA256SUMS"))))
		})
	}
	if len(sums) != 2 || sums[0] != sums[1] {
		t.Errorf("two releases from the same inputs differ:\n%s", strings.Join(sums, "\n"))
	}
	if n := strings.Count(sums[0], "\n"); n != 7 {
		t.Errorf("%d files are listed, want 7:\n%s", n, sums[0])
	}
}

func TestTarball(t *testing.T) {
	r := inputs(t)
	if err := r.make([]string{"tarball"}); err != nil {
		t.Fatal(err)
	}
	z, err := gzip.NewReader(bytes.NewReader(read(t, filepath.Join(r.out, "slipway-1.2.3-linux-arm64.tar.gz"))))
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]*tar.Header{}
	before := ""
	for tr := tar.NewReader(z); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimPrefix(h.Name, "slipway-1.2.3-linux-arm64/")
		have[name] = h
		if h.Name < before || !h.ModTime.Equal(r.epoch) || h.Uid != 0 || h.Gid != 0 {
			t.Errorf("%s (after %s) of %s, owner %d:%d", h.Name, before, h.ModTime, h.Uid, h.Gid)
		}
		before = h.Name
	}
	for _, name := range []string{"LICENSE", "README.md", "licences.txt", "man/slipway.1", "completions/_slipway", "systemd/slipway.service", "examples/htpasswd.yml", "examples/nginx/nginx.conf"} {
		if have[name] == nil || have[name].Mode != 0o644 {
			t.Errorf("%s: %+v", name, have[name])
		}
	}
	if h := have["slipway"]; h == nil || h.Mode != 0o755 {
		t.Errorf("the program: %+v", h)
	}
}

// TestDocuments checks that every link in the documents of a package leads to something in the
// package, and that the pages are there.
func TestDocuments(t *testing.T) {
	r := inputs(t)
	files, err := r.debianFiles("amd64")
	if err != nil {
		t.Fatal(err)
	}
	const doc = "usr/share/doc/slipway/"
	have := map[string]node{}
	for _, n := range files {
		if name, ok := strings.CutPrefix(n.path, doc); ok {
			have[name] = n
		}
	}
	links, gone := 0, 0
	for name, n := range have {
		if path.Ext(name) != ".md" {
			continue
		}
		for _, m := range regexp.MustCompile(`\]\(([^)\s]+)\)`).FindAllSubmatch(n.data, -1) {
			to, _, _ := strings.Cut(string(m[1]), "#")
			if to == "" || strings.Contains(to, "://") {
				continue
			}
			links++
			if _, ok := have[path.Join(path.Dir(name), to)]; !ok {
				t.Errorf("%s: the link to %s leads nowhere", name, to)
			}
		}
		source := read(t, name)
		gone += bytes.Count(source, []byte("](")) - bytes.Count(n.data, []byte("]("))
	}
	if links < 500 || gone < 20 || gone > links/2 {
		t.Errorf("%d links are there, and %d are not", links, gone)
	}
	for name, text := range map[string]string{"README.md": "](docs/start.md)", "docs/operating.md": "](../examples", "docs/adr/README.md": "](", "docs/img/overview.svg": "<svg"} {
		if !strings.Contains(string(have[name].data), text) {
			t.Errorf("%s lacks %q", name, text)
		}
	}
}

// TestDebianVersion lets dpkg compare the Debian versions that are made of a list of versions:
// each is newer than the one before.
func TestDebianVersion(t *testing.T) {
	at := time.Unix(1700000000, 0).UTC()
	versions := []string{"01fbd0c", "0.1.0-rc.1", "0.1.0-rc.1-3-g0123abc", "0.1.0-rc.2", "0.1.0", "0.1.0-dirty", "0.1.0-2-gabcdef0", "0.1.0-10-gabcdef0", "0.1.1", "0.10.0"}
	needDpkg(t)
	before := "0~20231114221319.fffffff"
	for _, v := range versions {
		got := debianVersion(v, at)
		if out, err := exec.Command("dpkg", "--validate-version", got).CombinedOutput(); err != nil {
			t.Errorf("%s becomes %s: %v\n%s", v, got, err, out)
		}
		if err := exec.Command("dpkg", "--compare-versions", before, "lt", got).Run(); err != nil {
			t.Errorf("%s becomes %s, which is not newer than %s", v, got, before)
		}
		before = got
	}
}

// TestSBOM reads the bill of materials of this test.
func TestSBOM(t *testing.T) {
	r := inputs(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r.arches = []string{"amd64"}
	if err := errors.Join(os.Remove(r.binary("amd64")), os.Symlink(self, r.binary("amd64"))); err != nil {
		t.Fatal(err)
	}
	if err := r.make([]string{"sbom"}); err != nil {
		t.Fatal(err)
	}
	var bom struct {
		BomFormat, SerialNumber string
		Components              []struct{ Name, Version, Purl string }
	}
	if err := json.Unmarshal(read(t, filepath.Join(r.out, "slipway-1.2.3-linux-amd64.cdx.json")), &bom); err != nil {
		t.Fatal(err)
	}
	purls := map[string]string{}
	for _, c := range bom.Components {
		purls[c.Name] = c.Purl
	}
	if bom.BomFormat != "CycloneDX" || bom.SerialNumber != "" || !strings.HasPrefix(purls["std"], "pkg:golang/std@1.") || purls["github.com/opencontainers/image-spec"] == "" {
		t.Errorf("got %+v", bom)
	}
}

// Nothing is left out because it is not there.
func TestMissing(t *testing.T) {
	for _, name := range []string{"licences.txt", "man/slipway.1", "completions/slipway.fish"} {
		t.Run(name, func(t *testing.T) {
			r := inputs(t)
			if err := os.Remove(filepath.Join(r.extras, name)); err != nil {
				t.Fatal(err)
			}
			if err := r.tarball("amd64"); err == nil {
				t.Errorf("a tarball was made without %s", name)
			}
			if _, err := r.debianFiles("amd64"); err == nil {
				t.Errorf("a Debian package was made without %s", name)
			}
		})
	}
	var files tree
	if err := files.matching("", filepath.Join(t.TempDir(), "*.service")); err == nil {
		t.Error("a pattern that matches nothing is fine")
	}
}

// TestReleaseDir checks that only files of releases are ever removed.
func TestReleaseDir(t *testing.T) {
	r := inputs(t)
	for name, test := range map[string]struct {
		files, kinds []string
		says         string
	}{
		"somebody's directory": {[]string{"go.mod", "slipway-1.0.0-linux-amd64.tar.gz"}, []string{"tarball", "sums"}, "go.mod"},
		"programs":             {[]string{"slipway"}, []string{"tarball", "sums"}, "slipway"},
		"sums alone":           {[]string{"slipway-1.0.0-linux-amd64.tar.gz", "SHA256SUMS"}, []string{"sums"}, "name what to build"},
	} {
		dir := t.TempDir()
		for _, f := range test.files {
			if err := os.WriteFile(filepath.Join(dir, f), []byte(f), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		cmd := exec.CommandContext(t.Context(), "scripts/release.sh", test.kinds...)
		cmd.Env = append(os.Environ(), "VERSION=1.2.3", "SOURCE_DATE_EPOCH=1700000000", "RELEASE_DIRTY=1", "RELEASE_QUICK=1", "RELEASE_ARCH=amd64", "RELEASE_BINARIES="+r.binaries, "RELEASE_DIR="+dir)
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), test.says) {
			t.Errorf("%s: got %v, want it refused for %q:\n%s", name, err, test.says, out)
		}
		for _, f := range test.files {
			if got := string(read(t, filepath.Join(dir, f))); got != f {
				t.Errorf("%s: %s holds %q", name, f, got)
			}
		}
	}
}

func TestRefused(t *testing.T) {
	r := inputs(t)
	for version, kinds := range map[string][]string{"": {"sums"}, "../1": {"sums"}, "1.0": {}, "1.1": {"msi"}} {
		r.version = version
		if err := r.make(kinds); err == nil {
			t.Errorf("version %q, kinds %q: no error", version, kinds)
		}
	}
}
