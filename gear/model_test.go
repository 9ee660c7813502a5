package gear_test

import (
	"errors"
	"maps"
	"slices"
	"sort"
	"strings"

	"example.org/slipway/gear"
	"example.org/slipway/gear/rootfs"
)

// ino is a file of the model. Two paths with the same pointer are hard links.
type ino struct {
	e    rootfs.Entry // Path is empty
	link string       // target of a hard link that is still missing
}

// tree is a file system as a map. The tests compare it with what the package makes of
// layers. It is slow: it does one thing after the other, as a runtime would.
type tree map[string]*ino

func dirOf(p string) string {
	if i := strings.LastIndexByte(p, '/'); i >= 0 {
		return p[:i]
	}
	return ""
}

func removeBelow[V any](t map[string]V, p string) {
	for q := range t {
		if strings.HasPrefix(q, p+"/") {
			delete(t, q)
		}
	}
}

var errModel = errors.New("conflict")

// upper is one layer as it is unpacked into an empty directory.
type upper struct {
	files           tree
	opaque, removed map[string]bool
}

// resolve follows the symbolic links that the layer has in the directory p.
func (u *upper) resolve(p string) (string, error) {
	for hops := 0; ; hops++ {
		if hops > 100 {
			return "", errModel
		}
		again := false
		segs := strings.Split(p, "/")
		for i := range segs {
			at := strings.Join(segs[:i+1], "/")
			n := u.files[at]
			if n == nil || n.e.Type == rootfs.Dir {
				continue
			}
			if n.e.Type != rootfs.Symlink {
				return "", errModel
			}
			target := n.e.Link
			if target[0] != '/' {
				target = strings.Join(segs[:i], "/") + "/" + target
			}
			p = strings.Join(cleanRooted(target+"/"+strings.Join(segs[i+1:], "/")), "/")
			again = true
			break
		}
		if !again {
			return p, nil
		}
	}
}

// cleanRooted splits a path and resolves "..", which has no effect at the root.
func cleanRooted(p string) (out []string) {
	for s := range strings.SplitSeq(p, "/") {
		switch s {
		case "", ".":
		case "..":
			out = out[:max(len(out)-1, 0)]
		default:
			out = append(out, s)
		}
	}
	return out
}

func (u *upper) at(p string) (string, error) {
	d, err := u.resolve(dirOf(p))
	if err != nil {
		return "", err
	}
	return strings.TrimPrefix(d+"/"+p[strings.LastIndexByte(p, '/')+1:], "/"), nil
}

func (u *upper) add(e rootfs.Entry) error {
	p, err := u.at(e.Path)
	if err != nil {
		return err
	}
	e.Path = ""
	switch e.Type {
	case rootfs.Whiteout:
		u.removed[p] = true
		return nil
	case rootfs.Opaque:
		if n := u.files[p]; n != nil && n.e.Type != rootfs.Dir {
			return errModel
		}
		u.opaque[p] = true
		return nil
	}
	n := &ino{e: e}
	if e.Type == rootfs.HardLink {
		if n, err = u.linkTarget(p, e); err != nil {
			return err
		}
	}
	old := u.files[p]
	switch {
	case e.Type != rootfs.Dir:
		removeBelow(u.files, p)
		removeBelow(u.opaque, p)
		removeBelow(u.removed, p)
		delete(u.opaque, p)
	case old != nil && old.e.Type == rootfs.Dir:
		n.e.Xattrs = union(old.e.Xattrs, e.Xattrs)
	}
	u.files[p] = n
	return nil
}

func (u *upper) linkTarget(p string, e rootfs.Entry) (*ino, error) {
	to, err := u.at(e.Link)
	if err != nil {
		return nil, err
	}
	t := u.files[to]
	if to == p || t != nil && (t.e.Type == rootfs.Dir || t.link == p) {
		return nil, errModel
	}
	if t == nil {
		return &ino{link: to}, nil
	}
	if t.link == "" {
		link, kind, size, x := t.e.Link, t.e.Type, t.e.Size, t.e.Xattrs
		major, minor := t.e.Major, t.e.Minor
		t.e = e
		t.e.Link, t.e.Type, t.e.Size, t.e.Xattrs, t.e.Major, t.e.Minor = link, kind, size, union(x, e.Xattrs), major, minor
		t.e.Path = ""
	}
	return t, nil
}

func union(a, b []rootfs.Xattr) []rootfs.Xattr {
	m := map[string]string{}
	for _, x := range slices.Concat(a, b) {
		m[x.Name] = x.Value
	}
	var out []rootfs.Xattr
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, rootfs.Xattr{Name: k, Value: m[k]})
	}
	return out
}

// finish resolves the hard links whose targets came later in the layer.
func (u *upper) finish() error {
	for hops := 0; hops < 50; hops++ {
		again := false
		for _, p := range slices.Sorted(maps.Keys(u.files)) {
			n := u.files[p]
			if n.link == "" {
				continue
			}
			t := u.files[n.link]
			switch {
			case t == nil:
			case t == n || t.e.Type == rootfs.Dir:
				return errModel
			default:
				for q := range u.files {
					if u.files[q] == n {
						u.files[q] = t
					}
				}
				again = true
			}
		}
		if !again {
			return nil
		}
	}
	return errModel
}

// apply puts the layer over t, as an overlay does.
func (u *upper) apply(t tree) error {
	below := maps.Clone(t)
	for p := range u.removed {
		removeBelow(t, p)
		delete(t, p)
	}
	for p := range u.opaque {
		removeBelow(t, p)
	}
	paths := map[string]bool{}
	for p := range u.files {
		paths[p] = true
	}
	need := map[string]bool{} // directories
	for _, m := range []map[string]bool{u.removed, u.opaque, paths} {
		for p := range m {
			for d := dirOf(p); d != ""; d = dirOf(d) {
				need[d] = true
			}
		}
	}
	for p := range u.opaque {
		need[p] = true
	}
	for p := range need {
		paths[p] = true
	}
	for _, p := range slices.Sorted(maps.Keys(paths)) {
		n := u.files[p]
		isDir := n != nil && n.e.Type == rootfs.Dir
		if n != nil && n.link != "" {
			to := below[n.link]
			if to == nil || to.e.Type == rootfs.Dir {
				return errModel
			}
			n = to
		}
		if old := t[p]; !isDir && n != nil || old != nil && old.e.Type != rootfs.Dir {
			removeBelow(t, p)
			delete(t, p)
		}
		switch {
		case n != nil:
			t[p] = n
		case t[p] == nil:
			t[p] = &ino{e: rootfs.Entry{Type: rootfs.Dir, Mode: 0o755}}
		}
	}
	return nil
}

// entries returns the tree in the order and form of an index.
func (t tree) entries() (out []rootfs.Entry) {
	paths := slices.Collect(maps.Keys(t))
	sort.Slice(paths, func(i, j int) bool {
		return slices.Compare(strings.Split(paths[i], "/"), strings.Split(paths[j], "/")) < 0
	})
	first := map[*ino]string{}
	for _, p := range paths {
		n := t[p]
		if f, ok := first[n]; ok {
			out = append(out, rootfs.Entry{Path: p, Type: rootfs.HardLink, Link: f})
			continue
		}
		first[n] = p
		e := n.e
		e.Path = p
		out = append(out, e)
	}
	return out
}

func plain(x *gear.Index) (out []rootfs.Entry) {
	for _, e := range x.Entries {
		out = append(out, e.Entry)
	}
	return out
}
