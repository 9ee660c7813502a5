package main

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// completions lists the files of extras/completions, and where a Debian system looks for
// each.
var completions = []struct{ file, debian string }{
	{"slipway.bash", "usr/share/bash-completion/completions/slipway"},
	{"slipway.fish", "usr/share/fish/vendor_completions.d/slipway.fish"},
	{"_slipway", "usr/share/zsh/vendor-completions/_slipway"},
}

// examples adds the files of deploy/ that users may copy. Configurations go to dir. Files
// for other programs go to directories with the names of these programs.
func examples(t *tree, dir string) error {
	for from, to := range map[string]string{"examples": "", "nginx": "nginx", "haproxy": "haproxy", "prometheus": "prometheus", "grafana": "grafana"} {
		var patterns []string
		for _, kind := range []string{"*.yml", "*.conf", "*.cfg", "*.json"} {
			patterns = append(patterns, filepath.Join("deploy", from, kind))
		}
		if err := t.matching(filepath.Join(dir, to), patterns...); err != nil {
			return err
		}
	}
	return nil
}

// licences adds the licences of all linked code, because the code may not be distributed
// without them.
func (r *release) licences(t *tree, name string) error {
	return t.copied(name, 0o644, filepath.Join(r.extras, "licences.txt"))
}

// tarball makes the archive for systems without packages.
func (r *release) tarball(arch string) error {
	top := fmt.Sprintf("slipway-%s-linux-%s", r.version, arch)
	var t tree
	for _, f := range []struct {
		name string
		mode int64
		from string
	}{
		{"slipway", 0o755, r.binary(arch)},
		{"LICENSE", 0o644, "LICENSE"},
		{"CHANGELOG.md", 0o644, "CHANGELOG.md"},
	} {
		if err := t.copied(filepath.Join(top, f.name), f.mode, f.from); err != nil {
			return err
		}
	}
	for _, c := range completions {
		if err := t.copied(filepath.Join(top, "completions", c.file), 0o644, filepath.Join(r.extras, "completions", c.file)); err != nil {
			return err
		}
	}
	err := errors.Join(
		r.licences(&t, filepath.Join(top, "licences.txt")),
		t.matching(filepath.Join(top, "systemd"), "deploy/systemd/*.service"),
		t.matching(filepath.Join(top, "man"), filepath.Join(r.extras, "man", "*.1")),
		examples(&t, filepath.Join(top, "examples")),
		t.documents(top),
	)
	if err != nil {
		return err
	}
	archive, err := t.tar(r.epoch)
	if err != nil {
		return err
	}
	if archive, err = r.zipped(archive); err != nil {
		return err
	}
	return r.write(top+".tar.gz", archive)
}

// repackChart sets the times in helm's archive to the time of the release.
func (r *release) repackChart() error {
	data, err := os.ReadFile(r.chart)
	if err != nil {
		return err
	}
	t, err := unzipTar(data)
	if err != nil {
		return fmt.Errorf("%s: %w", r.chart, err)
	}
	if data, err = t.tar(r.epoch); err != nil {
		return err
	}
	if data, err = zipped(data); err != nil {
		return err
	}
	return r.write(filepath.Base(r.chart), data)
}

// sums lists the SHA-256 of everything in the output directory, in the format of
// sha256sum -c.
func (r *release) sums() error {
	const name = "SHA256SUMS"
	entries, err := os.ReadDir(r.out)
	if err != nil {
		return err
	}
	slices.SortFunc(entries, func(a, b os.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	var list bytes.Buffer
	for _, e := range entries {
		if e.Name() == name || !e.Type().IsRegular() {
			continue
		}
		data, err := os.ReadFile(filepath.Join(r.out, e.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&list, "%x  %s\n", sha256.Sum256(data), e.Name())
	}
	return r.write(name, list.Bytes())
}
