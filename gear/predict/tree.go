package predict

import (
	"path"
	"slices"
	"strings"
	"sync"

	"example.org/slipway/gear"
	"example.org/slipway/gear/rootfs"
)

// Tree is the tree of an image. It may be used by one goroutine at a time.
type Tree struct {
	x *gear.Index
	// byName has an entry for each content. dirs has the entries of the files in each
	// directory, by the directory's path. loose has the entries of files by their paths
	// without versions.
	byName func() map[gear.Name]int32
	dirs   func() map[string][]int32
	loose  [2]func() map[string][]int32
	// looseDirs has the paths of directories by their paths without versions.
	looseDirs func() map[string][]string
	// wholes has the entries of files by directory and suffix. compiled has the entries
	// of compiled Python modules by directory and module, separated by a slash.
	wholes   func() map[Whole][]int32
	compiled func() map[string]int32
}

// NewTree returns the tree of an image, which must be flat.
func NewTree(x *gear.Index) *Tree {
	t := &Tree{x: x}
	t.byName = sync.OnceValue(func() map[gear.Name]int32 {
		m := make(map[gear.Name]int32, len(x.Files))
		t.each(func(i int, e *gear.Entry) {
			if _, ok := m[x.Files[e.File].Name]; !ok {
				m[x.Files[e.File].Name] = int32(i)
			}
		})
		return m
	})
	t.dirs = sync.OnceValue(func() map[string][]int32 {
		return t.group(func(p string) string { return path.Dir(p) })
	})
	for level, leave := range looseners {
		t.loose[level] = sync.OnceValue(func() map[string][]int32 { return t.group(leave) })
	}
	t.looseDirs = sync.OnceValue(func() map[string][]string {
		m := map[string][]string{}
		for dir := range t.dirs() {
			k := withoutDigits(dir)
			m[k] = append(m[k], dir)
		}
		return m
	})
	t.wholes = sync.OnceValue(func() map[Whole][]int32 {
		m := map[Whole][]int32{}
		t.each(func(i int, e *gear.Entry) {
			m[wholeOf(e.Path)] = append(m[wholeOf(e.Path)], int32(i))
		})
		return m
	})
	t.compiled = sync.OnceValue(func() map[string]int32 {
		m := map[string]int32{}
		t.each(func(i int, e *gear.Entry) {
			dir, ok := strings.CutSuffix(path.Dir(e.Path), "/__pycache__")
			name, version, dotted := strings.Cut(path.Base(e.Path), ".cpython-")
			if ok && dotted && strings.Count(version, ".") == 1 { // the name has more parts for other levels of optimisation
				m[dir+"/"+name] = int32(i)
			}
		})
		return m
	})
	return t
}

// each calls do for every entry that has a content.
func (t *Tree) each(do func(i int, e *gear.Entry)) {
	for i := range t.x.Entries {
		if e := &t.x.Entries[i]; regular(e) {
			do(i, e)
		}
	}
}

// group groups the entries that have a content by what key returns for their paths.
func (t *Tree) group(key func(string) string) map[string][]int32 {
	m := map[string][]int32{}
	t.each(func(i int, e *gear.Entry) {
		k := key(e.Path)
		m[k] = append(m[k], int32(i))
	})
	return m
}

// file returns the content of an entry. It returns false if the entry has none or an
// empty one.
func (t *Tree) file(entry int) (gear.File, bool) {
	e := &t.x.Entries[entry]
	if !regular(e) || t.x.Files[e.File].Size == 0 {
		return gear.File{}, false
	}
	return t.x.Files[e.File], true
}

// maxLinks is how many symbolic links a path is followed through. Linux has the same
// limit.
const maxLinks = 40

// Resolve returns the entry of a path and follows symbolic links. The path starts at the
// root, whether or not it begins with a slash.
func (t *Tree) Resolve(p string) (entry int, ok bool) {
	rest := strings.Split(p, "/")
	var at []string
	links := 0
	for len(rest) > 0 {
		part := rest[0]
		rest = rest[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			at = at[:max(len(at)-1, 0)]
			continue
		}
		at = append(at, part)
		i, ok := t.x.Lookup(strings.Join(at, "/"))
		if !ok || t.x.Entries[i].Type != rootfs.Symlink {
			continue // a directory need not have an entry
		}
		if links++; links > maxLinks {
			return 0, false
		}
		target := t.x.Entries[i].Link
		if at = at[:len(at)-1]; strings.HasPrefix(target, "/") {
			at = nil
		}
		rest = append(strings.Split(target, "/"), rest...)
		if len(rest) > maxParts {
			return 0, false
		}
	}
	return t.x.Lookup(strings.Join(at, "/"))
}

// maxParts bounds how many parts symbolic links may give a path.
const maxParts = 4096

// regularAt returns the entry of the file that a path leads to.
func (t *Tree) regularAt(p string) (int, bool) {
	i, ok := t.Resolve(p)
	return i, ok && regular(&t.x.Entries[i])
}

// looseners remove more and more of the parts of paths that change from one version to
// the next.
var looseners = [...]func(string) string{withoutVersions, withoutDigits}

// merged returns a path below /usr as older distributions have it: there /bin, /sbin and
// the directories of libraries are directories of their own, which newer ones merged into
// /usr. A tree that was merged still has the shorter path, through a symbolic link.
func merged(p string) string {
	rest, ok := strings.CutPrefix(p, "usr/")
	if top, _, _ := strings.Cut(rest, "/"); !ok || !slices.Contains(mergedDirs, top) {
		return p
	}
	return rest
}

var mergedDirs = []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32"}

// withoutVersions replaces dotted numbers, as in libssl.so.1.1 and python3.9. It returns
// the same for paths that differ only by whether /usr was merged.
func withoutVersions(p string) string {
	return replaceRuns(merged(p), func(run string) bool {
		return strings.Contains(strings.Trim(run, "."), ".")
	}, func(c byte) bool { return digit(c) || c == '.' })
}

// withoutDigits replaces all numbers, dotted or not, and runs that look like a hash.
func withoutDigits(p string) string {
	p = replaceRuns(p, func(run string) bool {
		return len(run) >= hashDigits && strings.ContainsAny(run, "0123456789")
	}, func(c byte) bool { return digit(c) || 'a' <= c && c <= 'f' })
	return replaceRuns(withoutVersions(p), func(string) bool { return true }, digit)
}

// hashDigits is the minimum length of a run of hexadecimal digits that is considered a
// hash.
const hashDigits = 8

func digit(c byte) bool { return '0' <= c && c <= '9' }

// replaceRuns replaces each run of bytes of a kind by "#" if match accepts the run. A run does
// not begin or end with a dot.
func replaceRuns(p string, match func(run string) bool, kind func(byte) bool) string {
	var b strings.Builder
	for i := 0; i < len(p); {
		if !kind(p[i]) || p[i] == '.' {
			b.WriteByte(p[i])
			i++
			continue
		}
		end := i
		for end < len(p) && kind(p[end]) {
			end++
		}
		for p[end-1] == '.' {
			end--
		}
		if run := p[i:end]; match(run) {
			b.WriteByte('#')
		} else {
			b.WriteString(run)
		}
		i = end
	}
	return b.String()
}
