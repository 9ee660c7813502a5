package gear

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"sort"
	"strings"

	"example.org/slipway/gear/rootfs"
)

var (
	// ErrVersion is returned, wrapped, for an index of a version that this code does not
	// know.
	ErrVersion = errors.New("unknown version of the gear index format")
	// ErrInvalid is returned, wrapped, for bytes that are not an index, and for an index
	// whose entries contradict each other.
	ErrInvalid = errors.New("invalid gear index")
	// ErrTooLarge is returned, wrapped, for an index that exceeds the limits.
	ErrTooLarge = errors.New("gear index is too large")
)

// Entry is a member of an index.
type Entry struct {
	rootfs.Entry
	// File is the content. For a File it is an index into Index.Files. For a HardLink to
	// a File of the same index it is that File's value. Otherwise it is -1.
	File int32
}

// Index is the tree of a layer, or of a whole image, in canonical form:
//
//   - Entries are in the order of [ComparePaths]. Each path occurs once, except that a
//     directory may be followed by the Opaque of its path. Directories that no archive
//     entry describes are left out. Nothing is below an entry that is not a directory.
//   - Fields that have no meaning for the type are zero. In a HardLink, all fields but
//     Path and Link are zero, because its target has them.
//   - If a file has several names, the first in order is the file. Each other name is a
//     HardLink whose Link is that first name. A HardLink whose Link is not an entry, or is
//     a Whiteout, leads to a file of a layer below.
//   - Files are in the order in which Entries first mention them. Each is mentioned.
//
// The same tree is therefore always the same Index, however it was archived. Entries may
// share Xattrs and Chunks, so nobody may change them.
type Index struct {
	Entries []Entry
	Files   []File
}

// Empty returns the content of empty files. It is in Files like any other content, but it
// is never stored, and a [Sink] is never asked about it.
func Empty() File { return File{Name: sha256.Sum256(nil)} }

// Lookup returns the index in Entries of the first entry with a path, or the index where
// it would be.
func (x *Index) Lookup(path string) (int, bool) {
	i := sort.Search(len(x.Entries), func(i int) bool { return ComparePaths(x.Entries[i].Path, path) >= 0 })
	return i, i < len(x.Entries) && x.Entries[i].Path == path
}

// Flat reports whether the index describes a whole tree, as the index of an image does.
// Such an index has no whiteouts and no links to layers below.
func (x *Index) Flat() bool {
	for i := range x.Entries {
		switch e := &x.Entries[i]; e.Type {
		case rootfs.Whiteout, rootfs.Opaque:
			return false
		case rootfs.HardLink:
			if _, ok := x.target(e.Link); !ok {
				return false
			}
		}
	}
	return true
}

// chunksOf returns how many chunks the table of a file of size bytes has.
func chunksOf(size int64) int64 {
	if size < LargeFile {
		return 0
	}
	return (size-1)/ChunkSize + 1
}

// check returns an error unless the index is in canonical form.
func (x *Index) check() error {
	for i := range x.Files {
		f := &x.Files[i]
		switch {
		case f.Size < 0 || f.Size > MaxFile || int64(len(f.Chunks)) != chunksOf(f.Size):
			return fmt.Errorf("%w: file %d has %d bytes and %d chunks", ErrInvalid, i, f.Size, len(f.Chunks))
		case f.Size == 0 && f.Name != Empty().Name:
			return fmt.Errorf("%w: file %d is empty but has another name", ErrInvalid, i)
		}
	}
	var before *Entry
	seen := int32(0) // files mentioned so far
	for i := range x.Entries {
		e := &x.Entries[i]
		err := checkOrder(before, e)
		if err == nil {
			err = checkFields(&e.Entry)
		}
		if err == nil {
			err = x.checkFile(i, &seen)
		}
		if err != nil {
			return fmt.Errorf("%w: entry %d, %q: %w", ErrInvalid, i, e.Path, err)
		}
		before = e
	}
	if int(seen) != len(x.Files) {
		return fmt.Errorf("%w: %d of %d files are mentioned", ErrInvalid, seen, len(x.Files))
	}
	return nil
}

func checkOrder(before, e *Entry) error {
	if err := validPath(e.Path); err != nil {
		return err
	}
	if before == nil {
		return nil
	}
	switch c := ComparePaths(before.Path, e.Path); {
	case c > 0, c == 0 && (before.Type != rootfs.Dir || e.Type != rootfs.Opaque):
		return fmt.Errorf("comes behind %q", before.Path)
	case before.Type != rootfs.Dir && before.Type != rootfs.Opaque && within(e.Path, before.Path):
		return errors.New("lies in what is no directory")
	}
	return nil
}

// checkFields returns an error unless an entry has exactly the fields of its type.
func checkFields(e *rootfs.Entry) error {
	if e.Type < rootfs.Dir || e.Type > rootfs.Opaque {
		return fmt.Errorf("has unknown type %d", e.Type)
	}
	if e.Path == "." && e.Type != rootfs.Dir && e.Type != rootfs.Opaque {
		return errors.New("the root is not a directory")
	}
	described := e.Mode != 0 || e.UID != 0 || e.GID != 0 || e.Sec != 0 || e.Nsec != 0 || len(e.Xattrs) != 0
	switch {
	case described && !hasMetadata(e.Type):
		return fmt.Errorf("has metadata, which type %d has not", e.Type)
	case e.Size != 0 && e.Type != rootfs.File:
		return errors.New("has a size but is no file")
	case (e.Link != "") != (e.Type == rootfs.Symlink || e.Type == rootfs.HardLink):
		return errors.New("has a link target but is no link, or the reverse")
	case len(e.Link) > maxPath || strings.IndexByte(e.Link, 0) >= 0:
		return errors.New("has a link target that is too long or has a NUL")
	case (e.Major != 0 || e.Minor != 0) && e.Type != rootfs.CharDevice && e.Type != rootfs.BlockDevice:
		return errors.New("has a device number but is no device")
	case e.Mode > 0o7777 || e.Nsec >= 1e9 || e.Size < 0:
		return errors.New("has a mode, size or time out of range")
	}
	for i := range e.Xattrs {
		if e.Xattrs[i].Name == "" || i > 0 && e.Xattrs[i-1].Name >= e.Xattrs[i].Name {
			return errors.New("has extended attributes that are out of order")
		}
	}
	return nil
}

// hasMetadata reports whether entries of a type have mode, owner, time and
// extended attributes.
func hasMetadata(t rootfs.Type) bool {
	return t != rootfs.HardLink && t != rootfs.Whiteout && t != rootfs.Opaque
}

// checkFile checks what an entry says about its content. seen counts the files that the
// entries before it mention.
func (x *Index) checkFile(i int, seen *int32) error {
	e := &x.Entries[i]
	switch e.Type {
	case rootfs.File:
		switch {
		case e.File < 0 || e.File > *seen || int(e.File) >= len(x.Files):
			return fmt.Errorf("its content %d is not in the table or out of order", e.File)
		case e.Size != x.Files[e.File].Size:
			return fmt.Errorf("has %d bytes, its content %d", e.Size, x.Files[e.File].Size)
		case e.File == *seen:
			*seen++
		}
		return nil
	case rootfs.HardLink:
		return x.checkLink(i)
	}
	if e.File != -1 {
		return errors.New("has content but is no file")
	}
	return nil
}

func (x *Index) checkLink(i int) error {
	e := &x.Entries[i]
	if err := validPath(e.Link); err != nil || e.Link == "." || e.Link == e.Path {
		return fmt.Errorf("links to %q, which cannot be", e.Link)
	}
	file := int32(-1)
	if t, ok := x.target(e.Link); ok {
		if t > i || !Linkable(x.Entries[t].Type) {
			return fmt.Errorf("links to %q, which is a link or behind it", e.Link)
		}
		file = x.Entries[t].File
	}
	if e.File != file {
		return fmt.Errorf("its content is %d, that of its target %d", e.File, file)
	}
	return nil
}

// target returns the index of the entry that a hard link leads to, if it is in x.
func (x *Index) target(link string) (int, bool) {
	t, ok := x.Lookup(link)
	if !ok {
		return 0, false
	}
	switch x.Entries[t].Type {
	case rootfs.Dir, rootfs.Whiteout, rootfs.Opaque:
		return 0, false
	}
	return t, true
}

// Linkable reports whether a hard link in canonical form may lead to an entry of type t.
func Linkable(t rootfs.Type) bool {
	return t != rootfs.Dir && t != rootfs.HardLink && t != rootfs.Whiteout && t != rootfs.Opaque
}
