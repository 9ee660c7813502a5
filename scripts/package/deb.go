package main

import (
	"bytes"
	"crypto/md5"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// debianDir contains the sources of the Debian package: control and changelog with
// @NAMES@ to fill in, maintainer scripts, copyright, and the configuration below etc.
const debianDir = "deploy/debian"

// maintainerScripts are run by dpkg.
var maintainerScripts = []string{"postinst", "prerm", "postrm"}

// deb makes the Debian package with dpkg-deb. Debian and Go use the same names for the
// architectures that are built.
func (r *release) deb(arch string) error {
	t, err := r.debianFiles(arch)
	if err != nil {
		return err
	}
	if err := r.debianControl(&t, arch); err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "slipway-deb")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	root := filepath.Join(work, "root")
	if err := os.Mkdir(root, 0o755); err != nil {
		return err
	}
	if err := t.writeTo(root, r.epoch); err != nil {
		return err
	}
	name := fmt.Sprintf("slipway_%s_%s.deb", debianVersion(r.version, r.epoch), arch)
	// One thread and a fixed level make the bytes independent of the machine.
	compression := []string{"-Zxz", "-z6"}
	if r.quick {
		compression = []string{"-Znone"}
	}
	args := append([]string{"--root-owner-group", "--uniform-compression", "--threads-max=1"}, compression...)
	cmd := exec.Command("dpkg-deb", append(args, "--build", root, filepath.Join(work, name))...)
	cmd.Env = append(os.Environ(), "SOURCE_DATE_EPOCH="+strconv.FormatInt(r.epoch.Unix(), 10), "LC_ALL=C")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("dpkg-deb: %w\n%s", err, out)
	}
	data, err := os.ReadFile(filepath.Join(work, name))
	if err != nil {
		return err
	}
	return r.write(name, data)
}

// debianFiles returns the files that the package installs.
func (r *release) debianFiles(arch string) (tree, error) {
	const doc = "usr/share/doc/slipway"
	var t tree
	for _, f := range []struct {
		name string
		mode int64
		from string
	}{
		{"usr/bin/slipway", 0o755, r.binary(arch)},
		{"etc/slipway/config.yml", 0o640, debianDir + "/etc/config.yml"},
		{"etc/slipway/agent.yml", 0o600, debianDir + "/etc/agent.yml"},
		{doc + "/copyright", 0o644, debianDir + "/copyright"},
		{"usr/share/lintian/overrides/slipway", 0o644, debianDir + "/lintian-overrides"},
	} {
		if err := t.copied(f.name, f.mode, f.from); err != nil {
			return nil, err
		}
	}
	changelog, err := os.ReadFile(debianDir + "/changelog")
	if err != nil {
		return nil, err
	}
	if err := errors.Join(
		t.zippedFile(doc+"/changelog.gz", r.fill(changelog, arch, 0)),
		t.zippedCopies(doc, "CHANGELOG.md"),
		t.zippedCopies("usr/share/man/man1", filepath.Join(r.extras, "man", "*.1")),
		r.licences(&t, doc+"/licences.txt"),
		r.units(&t),
		examples(&t, doc+"/examples"),
		t.documents(doc),
	); err != nil {
		return nil, err
	}
	for _, c := range completions {
		if err := t.copied(c.debian, 0o644, filepath.Join(r.extras, "completions", c.file)); err != nil {
			return nil, err
		}
	}
	return t.complete(), nil
}

func (t *tree) zippedFile(name string, data []byte) error {
	z, err := zipped(data)
	if err != nil {
		return err
	}
	t.file(name, 0o644, z)
	return nil
}

// zippedCopies adds the files that match a pattern, compressed, as Debian requires for
// manuals.
func (t *tree) zippedCopies(dir, pattern string) error {
	names, err := matched(pattern)
	if err != nil {
		return err
	}
	for _, from := range names {
		data, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		if err := t.zippedFile(path.Join(dir, filepath.Base(from)+".gz"), data); err != nil {
			return err
		}
	}
	return nil
}

// headOfUnit matches the comment that says how to install a unit by hand.
var headOfUnit = regexp.MustCompile(`\A(#.*\n)+`)

// units adds the systemd units, with the paths of the package.
func (r *release) units(t *tree) error {
	for _, name := range []string{"slipway.service", "slipway-agent.service"} {
		data, err := os.ReadFile(filepath.Join("deploy", "systemd", name))
		if err != nil {
			return err
		}
		data = headOfUnit.ReplaceAll(data, nil)
		data = bytes.ReplaceAll(data, []byte("/usr/local/bin/slipway"), []byte("/usr/bin/slipway"))
		t.file("usr/lib/systemd/system/"+name, 0o644, data)
	}
	return nil
}

// debianControl adds the directory DEBIAN to a complete tree.
func (r *release) debianControl(t *tree, arch string) error {
	var bytesInstalled int64
	var conffiles bytes.Buffer
	for _, n := range *t {
		bytesInstalled += int64(len(n.data)+4095) &^ 4095
		if !n.dir && strings.HasPrefix(n.path, "etc/") {
			fmt.Fprintf(&conffiles, "/%s\n", n.path)
		}
	}
	control, err := os.ReadFile(debianDir + "/control")
	if err != nil {
		return err
	}
	sums := t.md5sums()
	t.file("DEBIAN/control", 0o644, r.fill(control, arch, bytesInstalled))
	t.file("DEBIAN/conffiles", 0o644, conffiles.Bytes())
	t.file("DEBIAN/md5sums", 0o644, sums)
	for _, name := range maintainerScripts {
		if err := t.copied("DEBIAN/"+name, 0o755, filepath.Join(debianDir, name)); err != nil {
			return err
		}
	}
	return nil
}

// fill replaces the @NAMES@ in a file of debianDir.
func (r *release) fill(data []byte, arch string, bytesInstalled int64) []byte {
	return []byte(strings.NewReplacer(
		"@VERSION@", debianVersion(r.version, r.epoch),
		"@UPSTREAM@", r.version,
		"@ARCH@", arch,
		"@SIZE_KIB@", strconv.FormatInt(bytesInstalled>>10, 10),
		"@DATE@", r.epoch.Format(time.RFC1123Z),
	).Replace(string(data)))
}

var (
	described  = regexp.MustCompile(`^([0-9][^-]*(?:-(?:alpha|beta|rc)[^-]*)?)-([0-9]+)-(g[0-9a-f]+)(-dirty)?$`)
	prerelease = regexp.MustCompile(`^([0-9][^-]*)-(alpha|beta|rc)`)
)

// debianVersion converts a version so that dpkg orders it correctly: a candidate comes
// before its release, and commits come after the tag that they follow. A version that
// follows no tag comes before all others; such versions are ordered by time.
func debianVersion(version string, at time.Time) string {
	dirty := strings.HasSuffix(version, "-dirty")
	version = strings.TrimSuffix(version, "-dirty")
	changed := "+0.dirty"
	if m := described.FindStringSubmatch(version); m != nil {
		version, changed = m[1]+"+"+m[2]+"."+m[3], ".dirty"
	}
	version = prerelease.ReplaceAllString(version, "$1~$2")
	if version[0] < '0' || version[0] > '9' || !strings.Contains(version, ".") { // only a commit, or a word
		version = "0~" + at.Format("20060102150405") + "." + version
	}
	version = strings.ReplaceAll(version, "-", ".") // a hyphen would begin a Debian revision
	if dirty {
		version += changed
	}
	return version
}

// md5sums returns the list with which dpkg --verify finds changed files. The list omits
// configuration, because users may change it.
func (t tree) md5sums() []byte {
	var list bytes.Buffer
	for _, n := range t {
		if !n.dir && !strings.HasPrefix(n.path, "etc/") {
			fmt.Fprintf(&list, "%x  %s\n", md5.Sum(n.data), n.path) // the format of dpkg, which is not for security
		}
	}
	return list.Bytes()
}
