// Package predict predicts which files a container will open first in an image that
// nobody has started yet.
//
// A donor is an image that was started, with the files that it opened. A [Donor] holds
// only what predictions need, so that it outlives the image's manifest. The tree is the
// tree of the image that is to be started. [Inherit] finds the donor's files in the tree:
// by path, through symbolic links, without version numbers, and by content. [Complete]
// adds what these files load: shared libraries, interpreters and imported modules. If
// there is no donor, [Static] begins with the command of the image.
//
// A prediction names only files of the tree, each once, and at most [MaxFiles]. So
// whatever a donor says, it can cost an image no more than fetching some of its own
// files. Trees, donors and contents come from strangers. None of them can make the
// package panic or run for long.
//
// The package does not decide who may read what, or how reports become donors.
package predict

import (
	"slices"

	"example.org/slipway/gear"
	"example.org/slipway/gear/rootfs"
)

// MaxFiles is the maximum number of files in a prediction, as many as in a profile.
const MaxFiles = 20_000

// Origin says why a file is expected to be opened.
type Origin byte

// These are the origins. Profiles store them as these letters.
const (
	// Own: containers of this very image opened the file.
	Own Origin = 'o'
	// Series: containers of another version of the image opened the file's counterpart.
	Series Origin = 's'
	// Closure: the command of the image, or another file of the list, loads the file.
	Closure Origin = 'c'
	// Vote: containers of unrelated images that have the same content opened the file.
	Vote Origin = 'v'
)

// String returns the origin in words.
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

// Valid reports whether the origin is known.
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
	// at has the entry for which each file was added.
	at  []int32
	had map[gear.Name]bool
}

func newList(t *Tree) *list { return &list{t: t, had: map[gear.Name]bool{}} }

// add adds the content of an entry, and reports whether it is new. Empty files need no
// prediction, because nobody ever fetches them.
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

// Votes adds to a prediction the files that other images voted for, the best first. Each
// has at most maxVoteFile bytes and all together at most maxVoteBytes. Strangers cast the
// votes. Two strangers who cooperate must not be able to cost more than that.
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
	// Two owners who vote together make others fetch 17 to 30 MB in vain without these
	// bounds, and 3 MB at most with them.
	maxVoteFile  = 1 << 20
	maxVoteBytes = 4 << 20
)

// Names returns the names of files, in order.
func Names(files []File) []gear.Name {
	out := make([]gear.Name, len(files))
	for i := range files {
		out[i] = files[i].Name
	}
	return out
}

// Origins returns the letters of the origins of files, in order.
func Origins(files []File) string {
	out := make([]byte, len(files))
	for i := range files {
		out[i] = byte(files[i].From)
	}
	return string(out)
}

// Files combines names and the letters of their origins. If the letters are missing or
// unknown, a file counts as opened by the image itself.
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

// Inferred reports whether the prediction has files that containers of the image were not
// seen to open.
func Inferred(files []File) bool {
	return slices.ContainsFunc(files, func(f File) bool { return f.From != Own })
}

// regular reports whether an entry has a content.
func regular(e *gear.Entry) bool {
	return e.File >= 0 && (e.Type == rootfs.File || e.Type == rootfs.HardLink)
}
