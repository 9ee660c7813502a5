package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/google/licensecheck"
)

// build is a way to build slipway.
type build struct {
	goarch, tags string
	cgo          bool
	listed       bool // the list names what this build links
}

// module is one module that is linked, or the standard library.
type module struct {
	path, version, dir string
	listed             bool
	dirs               map[string]bool // directories of the linked packages
	licences           []string        // SPDX identifiers, sorted
	texts              []text
}

// text is a file that holds a licence, or something that must accompany a licence.
type text struct {
	name    string // relative to the module
	content string
}

// allowed are the licences that may be linked into a binary under Apache-2.0. They are
// permissive licences and MPL-2.0. MPL-2.0 requires only the sources of its own files,
// which are unchanged here.
var allowed = []string{"0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT", "MPL-2.0", "public domain", "Unlicense", "Zlib"}

// byHand lists files that licensecheck cannot know, as a person read them, with the licences that
// they give the linked code. The list is empty for a file about code that is not linked.
var byHand = map[string][]string{
	"github.com/opencontainers/go-digest/LICENSE.docs": nil,                                                               // of its documentation
	"modernc.org/libc/LICENSE-3RD-PARTY.md":            {"BSD-3-Clause", "MIT"},                                           // Go, musl, go-netdb, nixpkgs
	"modernc.org/memory/LICENSE-LOGO":                  nil,                                                               // of a picture
	"modernc.org/sqlite/LICENSE-3RD-PARTY.md":          {"Apache-2.0", "BSD-3-Clause", "MIT", "MPL-2.0", "public domain"}, // of all it names, linked or not
	"modernc.org/sqlite/LICENSE-SQLITE":                {"public domain"},
}

// files matches the names of licence files. along matches the names of files that
// accompany them.
var (
	files = regexp.MustCompile(`(?i)^(un)?(licen[cs]e|copying)s?([-._].*)?$|^(apache|mit)-licen[cs]e$`)
	along = regexp.MustCompile(`(?i)^(notice|copyright|patents|authors)([-._].*)?$`)
	code  = regexp.MustCompile(`(?i)\.(go|sh|py|json|ya?ml)$`)
)

// enough is the percentage of a file's words that must belong to known licences. Projects often add
// a line or two of their own above or below.
const enough = 75

// linked lists what the builds link, by path. The product itself is not in the list.
func linked(root string, builds []build) ([]*module, error) {
	found := map[string]*module{}
	for _, b := range builds {
		if err := b.list(root, found); err != nil {
			return nil, err
		}
	}
	return slices.SortedFunc(maps.Values(found), func(a, b *module) int { return cmp.Compare(a.path, b.path) }), nil
}

// list adds what one build links.
func (b build) list(root string, found map[string]*module) error {
	cgo := "CGO_ENABLED=0"
	if b.cgo {
		cgo = "CGO_ENABLED=1"
	}
	cmd := exec.Command("go", "list", "-deps", "-tags", b.tags, "-json=Dir,Standard,ImportPath,Module", "./cmd/slipway")
	cmd.Dir, cmd.Stderr = root, os.Stderr
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH="+b.goarch, cgo)
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("go list in %s: %w", root, err)
	}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct {
			Dir, ImportPath string
			Standard        bool
			Module          *struct {
				Path, Version, Dir, GoVersion string
				Main                          bool
			}
		}
		if err := d.Decode(&p); err == io.EOF {
			return nil
		} else if err != nil {
			return fmt.Errorf("go list in %s: %w", root, err)
		}
		m := &module{dirs: map[string]bool{}}
		switch {
		case p.Standard && !b.listed || p.Module != nil && p.Module.Main:
			continue
		case p.Standard:
			if m.path = "std"; found[m.path] == nil {
				if m.version, m.dir, err = toolchain(root); err != nil {
					return err
				}
			}
		case p.Module == nil:
			return fmt.Errorf("package %s belongs to no module", p.ImportPath)
		default:
			m.path, m.version, m.dir = p.Module.Path, p.Module.Version, p.Module.Dir
		}
		if known := found[m.path]; known != nil {
			m = known
		}
		found[m.path] = m
		m.listed = m.listed || b.listed
		if !p.Standard { // the standard library has one licence, at its root
			m.dirs[p.Dir] = true
		}
	}
}

// toolchain returns the version and the directory of the Go toolchain that builds root.
func toolchain(root string) (version, dir string, err error) {
	cmd := exec.Command("go", "env", "GOVERSION", "GOROOT")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		return "", "", fmt.Errorf("go env: %w", err)
	}
	version, dir, _ = strings.Cut(strings.TrimSpace(string(out)), "\n")
	return version, dir, nil
}

// read finds the licences of a module. It looks at the module's root, and in and above
// the directories of the linked packages, because some of these hold code of others under
// its own licence.
func (m *module) read() error {
	dirs := map[string]bool{m.dir: true}
	for d := range m.dirs {
		for ; strings.HasPrefix(d, m.dir+string(filepath.Separator)); d = filepath.Dir(d) {
			dirs[d] = true
		}
	}
	ids := map[string]bool{}
	for _, d := range slices.Sorted(maps.Keys(dirs)) {
		entries, err := os.ReadDir(d)
		if err != nil {
			return fmt.Errorf("module %s: %w", m.path, err)
		}
		for _, e := range entries {
			is := files.MatchString(e.Name())
			if !e.Type().IsRegular() || code.MatchString(e.Name()) || !is && !along.MatchString(e.Name()) {
				continue
			}
			b, err := os.ReadFile(filepath.Join(d, e.Name()))
			if err != nil {
				return fmt.Errorf("module %s: %w", m.path, err)
			}
			name, err := filepath.Rel(m.dir, filepath.Join(d, e.Name()))
			if err != nil {
				return err
			}
			m.texts = append(m.texts, text{name, strings.ReplaceAll(string(b), "\r\n", "\n")})
			if !is {
				continue // accompanies a licence, but is not a licence
			}
			found, read := byHand[m.path+"/"+filepath.ToSlash(name)]
			if !read {
				found = recognise(b)
			}
			for _, id := range found {
				ids[id] = true
			}
		}
	}
	m.licences = slices.Sorted(maps.Keys(ids))
	return nil
}

// unknown stands for a licence that is not recognised.
const unknown = "unknown"

// recognise returns the licences in a text.
func recognise(b []byte) []string {
	cov := licensecheck.Scan(b)
	if cov.Percent < enough {
		return []string{unknown}
	}
	var ids []string
	for _, m := range cov.Match {
		if !m.IsURL {
			ids = append(ids, m.ID)
		}
	}
	return ids
}

// check refuses modules without a licence, or with one that is not allowed.
func check(modules []*module) error {
	var errs []error
	for _, m := range modules {
		if len(m.licences) == 0 {
			errs = append(errs, fmt.Errorf("module %s %s has no licence in %s", m.path, m.version, m.dir))
		}
		for _, id := range m.licences {
			if !slices.Contains(allowed, id) {
				errs = append(errs, fmt.Errorf("module %s %s: licence %s is not one of %s; see %s", m.path, m.version, id, strings.Join(allowed, ", "), m.dir))
			}
		}
	}
	return errors.Join(errs...)
}
