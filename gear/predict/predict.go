// Package predict tells which files a container will open first of an image that nobody
// has started yet.
//
// Terms: a donor is an image that was started, with the files that it opened (a [Donor]
// holds just what is needed of it, so that it outlives its manifest); the tree is that of
// the image to be started. [Inherit] finds the donor's files again in the tree, by path,
// through symbolic links, with version numbers left out, and by content. [Complete] adds
// what these files load: shared libraries, interpreters, imported modules. Without a donor
// [Static] begins with the command of the image.
//
// What it promises: a prediction names files of the tree only, each once, and never more
// than [MaxFiles]. So whatever a donor says, it can cost an image no more than some of its
// own files. Trees, donors and contents come from strangers; none of them makes it panic
// or run for long.
//
// It leaves to others who may read what, and how reports become donors.
package predict

import (
	"slices"

	"example.org/slipway/gear"
	"example.org/slipway/gear/rootfs"
)

// MaxFiles is how many files a prediction has at most, as many as a profile.
const MaxFiles = 20_000

// Origin is why a file is expected to be opened.
type Origin byte

// The origins, as the letters that stand for them in profiles.
const (
	// Own: containers of this very image opened it.
	Own Origin = 'o'
	// Series: containers of another version of the image opened its counterpart.
	Series Origin = 's'
	// Closure: the command of the image, or another file of the list, loads it.
	Closure Origin = 'c'
	// Vote: containers of unrelated images that have the same content opened it.
	Vote Origin = 'v'
)

// String is the origin in words.
func (o Origin) String() string {
	switch o {
	case Own:
		return "own"
	case Series:
		return "series"
	case Closure:
		return "closure"
	case Vote:
		return "vote"
	}
	return "unknown"
}

// Valid reports whether the origin is one of those above.
func (o Origin) Valid() bool { return o.String() != "unknown" }

// File is a file that is expected to be opened.
type File struct {
	Name gear.Name
	From Origin
}

// list collects files of a tree, each content once.
type list struct {
	t     *Tree
	files []File
	// at is the entry by which each file came in.
	at  []int32
	had map[gear.Name]bool
}

func newList(t *Tree) *list { return &list{t: t, had: map[gear.Name]bool{}} }

// add takes in the content of an entry, and reports whether it is new. Empty files need
// no prediction: nobody ever fetches them.
func (l *list) add(entry int, from Origin) bool {
	f, ok := l.t.file(entry)
	if !ok || l.had[f.Name] || len(l.files) >= MaxFiles {
		return false
	}
	l.had[f.Name] = true
	l.files = append(l.files, File{f.Name, from})
	l.at = append(l.at, int32(entry))
	return true
}

// Votes adds to a prediction the files for which other images spoke, the best first, as
// long as each has at most maxVoteFile and all have at most maxVoteBytes. Votes are cast by
// strangers: two of them together must not be able to spend more than that.
func Votes(t *Tree, files []File, voted []gear.Name) []File {
	had := make(map[gear.Name]bool, len(files))
	for _, f := range files {
		had[f.Name] = true
	}
	left := int64(maxVoteBytes)
	for _, n := range voted {
		e, ok := t.byName()[n]
		if !ok || had[n] || len(files) >= MaxFiles {
			continue
		}
		f, ok := t.file(int(e))
		if !ok || f.Size > maxVoteFile || f.Size > left {
			continue
		}
		had[n] = true
		left -= f.Size
		files = append(files, File{n, Vote})
	}
	return files
}

const (
	// Without these bounds two owners who vote together make others fetch 17 to 30 MB in
	// vain, with them 3 MB at most.
	maxVoteFile  = 1 << 20
	maxVoteBytes = 4 << 20
)

// Names are the names of files, in order.
func Names(files []File) []gear.Name {
	out := make([]gear.Name, len(files))
	for i := range files {
		out[i] = files[i].Name
	}
	return out
}

// Origins are the letters of the origins of files, in order.
func Origins(files []File) string {
	out := make([]byte, len(files))
	for i := range files {
		out[i] = byte(files[i].From)
	}
	return string(out)
}

// Files puts names and the letters of their origins together. Without letters, and with one
// that is not known, a file counts as one that the image itself opened.
func Files(names []gear.Name, origins string) []File {
	out := make([]File, len(names))
	for i, n := range names {
		out[i] = File{n, Own}
		if i < len(origins) && Origin(origins[i]).Valid() {
			out[i].From = Origin(origins[i])
		}
	}
	return out
}

// Inferred reports whether files were predicted that containers of the image were not seen
// to open.
func Inferred(files []File) bool {
	return slices.ContainsFunc(files, func(f File) bool { return f.From != Own })
}

// regular reports whether an entry has a content.
func regular(e *gear.Entry) bool {
	return e.File >= 0 && (e.Type == rootfs.File || e.Type == rootfs.HardLink)
}
