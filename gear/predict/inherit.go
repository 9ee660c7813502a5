package predict

import "strings"

// Inherit returns the files of a tree that correspond to the files that a donor opened,
// in the donor's order. It does not add what these files load; [Complete] adds that.
func Inherit(t *Tree, d *Donor) []File {
	l := newList(t)
	keys := t.keys()
	done := map[string]bool{} // paths without versions whose files are in the list
	for i := range d.Opened {
		for _, e := range t.counterparts(&d.Opened[i], keys, done) {
			l.add(int(e), Series)
		}
	}
	for _, w := range d.Whole {
		for _, dir := range t.dirsLike(w.Dir) {
			for _, e := range t.wholes()[Whole{dir, w.Suffix}] {
				l.add(int(e), Series)
			}
		}
	}
	return l.files
}

// counterparts returns the entries that replaced a file. If the path exists unchanged,
// its entry is the answer. Next comes the path without versions, which may match several
// files. It is believed only if most of the files that it matched in the donor were
// opened. The last resort is the content, which may have moved. Each path without
// versions is answered once and is then in done.
func (t *Tree) counterparts(o *Opened, keys map[uint64]int32, done map[string]bool) []int32 {
	for _, p := range []string{o.Path, merged(o.Path)} {
		if e, ok := t.regularAt(p); ok {
			return []int32{int32(e)}
		}
	}
	for level, leave := range looseners {
		p := leave(o.Path)
		like := t.loose[level]()[p]
		if len(like) == 0 {
			continue
		}
		alone := len(like) == 1 && o.Alike[level] <= 1
		if !alone && float64(o.AlikeOpened[level]) <= likely*float64(o.Alike[level]) {
			continue
		}
		if done[p] {
			return nil
		}
		done[p] = true
		return like
	}
	if e, ok := keys[o.Key]; ok {
		return []int32{e}
	}
	return nil
}

// dirsLike returns the directories that replaced a directory.
func (t *Tree) dirsLike(dir string) []string {
	for _, p := range []string{dir, merged(dir)} {
		if len(t.dirs()[p]) > 0 {
			return []string{p}
		}
	}
	if e, ok := t.Resolve(dir); ok { // it is a symbolic link now
		if to := t.x.Entries[e].Path; len(t.dirs()[to]) > 0 {
			return []string{to}
		}
	}
	like := t.looseDirs()[withoutDigits(dir)]
	if len(like) != 1 {
		return nil
	}
	return like
}

// changed returns a function that reports whether the donor did not open the content of
// an entry.
func changed(t *Tree, d *Donor) func(entry int) bool {
	known := map[uint64]bool{}
	if d != nil {
		for i := range d.Opened {
			known[d.Opened[i].Key] = true
		}
	}
	return func(entry int) bool {
		f, ok := t.file(entry)
		return ok && !known[keyOf(f.Name)]
	}
}

// inDir returns the path of a name in a directory of the tree.
func inDir(dir, name string) string {
	if dir == "." || dir == "" {
		return name
	}
	return strings.TrimSuffix(dir, "/") + "/" + name
}
