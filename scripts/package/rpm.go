package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/rpmpack"
)

// rpmDir contains the scripts that rpm runs.
const rpmDir = "deploy/rpm"

// rpmArches maps Go's names of architectures to those of rpm.
var rpmArches = map[string]string{"amd64": "x86_64", "arm64": "aarch64"}

// rpm makes the package for Fedora, Red Hat Enterprise Linux and their relatives. It has
// the files of the Debian package at the places of these systems.
func (r *release) rpm(arch string) error {
	compressor := "zstd"
	if r.quick {
		compressor = "gzip:1"
	}
	version := debianVersion(r.version, r.epoch) // rpm orders these versions in the same way
	m := rpmpack.RPMMetaData{Name: "slipway", Version: version, Release: "1", Arch: rpmArches[arch], OS: "linux", Epoch: 0,
		Summary: "Container registry, and lazy start of containers", Licence: "Apache-2.0", URL: "https://slipway.example.org",
		Packager: "Slipway maintainers <maintainers@slipway.example.org>", BuildHost: "slipway.example.org", BuildTime: r.epoch, Compressor: compressor,
		Description: "Slipway is a container registry in one static program, and a node agent that starts\ncontainers before their image is there. Neither is enabled by the installation."}
	for _, needed := range []string{"/usr/sbin/groupadd", "/usr/sbin/useradd"} {
		if err := m.Requires.Set(needed); err != nil {
			return err
		}
	}
	pkg, err := rpmpack.NewRPM(m)
	if err != nil {
		return err
	}
	if err := r.rpmFiles(pkg, arch); err != nil {
		return err
	}
	for name, add := range map[string]func(string){"prein": pkg.AddPrein, "postin": pkg.AddPostin, "preun": pkg.AddPreun, "postun": pkg.AddPostun} {
		script, err := os.ReadFile(filepath.Join(rpmDir, name))
		if err != nil {
			return err
		}
		add(string(script))
	}
	var out bytes.Buffer
	if err := pkg.Write(&out); err != nil {
		return err
	}
	return r.write(fmt.Sprintf("slipway-%s-1.%s.rpm", version, rpmArches[arch]), out.Bytes())
}

// rpmFiles adds the files. Of the directories it adds those that only this package has.
func (r *release) rpmFiles(pkg *rpmpack.RPM, arch string) error {
	t, err := r.debianFiles(arch)
	if err != nil {
		return err
	}
	const doc, zsh = "usr/share/doc/slipway", "usr/share/zsh/vendor-completions/"
	for _, n := range t {
		name := n.path
		switch {
		case strings.HasPrefix(name, "usr/share/lintian"), name == doc+"/copyright", name == doc+"/changelog.gz":
			continue // Debian's rules ask for these
		case strings.HasPrefix(name, zsh):
			name = "usr/share/zsh/site-functions/" + strings.TrimPrefix(name, zsh)
		}
		own := strings.HasPrefix(name, doc) || strings.HasPrefix(name, "etc/slipway")
		if n.dir && !own {
			continue
		}
		f := rpmpack.RPMFile{Name: "/" + name, Body: n.data, Mode: uint(n.mode), Owner: "root", Group: "root", MTime: uint32(r.epoch.Unix())}
		switch {
		case n.dir:
			f.Mode |= 0o40000
		case strings.HasPrefix(name, "etc/"):
			f.Type = rpmpack.ConfigFile | rpmpack.NoReplaceFile
		case own && strings.HasSuffix(name, "licences.txt"):
			f.Type = rpmpack.LicenceFile
		case own:
			f.Type = rpmpack.DocFile
		}
		if name == "etc/slipway" || name == "etc/slipway/config.yml" {
			f.Group = "slipway" // only the server and root may read it
			if n.dir {
				f.Mode = 0o40750
			}
		}
		pkg.AddFile(f)
	}
	return nil
}
