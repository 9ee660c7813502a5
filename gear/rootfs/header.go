package rootfs

import (
	"archive/tar"
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"net/url"
	"slices"
	"strings"
)

// These are prefixes of PAX records. libarchive writes its own form next to star's: the
// name is percent-encoded and the value is in base64. Runtimes read only star's form.
const (
	schilyXattr     = "SCHILY.xattr."
	libarchiveXattr = "LIBARCHIVE.xattr."
	sparseMajor     = "GNU.sparse.major"
)

// maxXattrName is Linux's XATTR_NAME_MAX in bytes.
const maxXattrName = 255

// entryOf returns the entry of a header, or nil if the member is to be ignored.
//
// archive/tar does nearly everything that is needed. But it returns global headers as
// members. Each string that it returns keeps the memory of a whole PAX header. It drops
// attributes with an empty value, and does not know libarchive's attributes. It does not
// reject members of an unknown type or sparse version, and it accepts NUL in the names of
// sparse files. entryOf handles these cases.
func entryOf(h *tar.Header, o *Options) (*Entry, error) {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil, nil
	}
	p, kind, err := parsePath(h.Name)
	if err != nil || p == "" {
		return nil, err
	}
	if kind != 0 {
		return &Entry{Path: strings.Clone(p), Type: kind}, nil
	}
	if len(h.PAXRecords) > 0 {
		// The strings of a PAX header are parts of one string of up to 1 MiB. A kept
		// entry must not keep that string alive.
		p, h.Linkname = strings.Clone(p), strings.Clone(h.Linkname)
	}
	e := &Entry{Path: p, Mode: uint32(h.Mode & 0o7777), Sec: h.ModTime.Unix(), Nsec: uint32(h.ModTime.Nanosecond())}
	if e.UID, err = owner("user", h.Uid); err != nil {
		return nil, err
	}
	if e.GID, err = owner("group", h.Gid); err != nil {
		return nil, err
	}
	if err := setType(e, h); err != nil {
		return nil, err
	}
	if e.Path == "." && e.Type != Dir {
		return nil, errors.New("the root is not a directory")
	}
	if e.Xattrs, err = xattrs(h.PAXRecords); err != nil {
		return nil, err
	}
	return e, checkEntry(e, o)
}

func checkEntry(e *Entry, o *Options) error {
	if e.Size > o.MaxFileSize {
		return &LimitError{Limit: "max_file_bytes", Max: o.MaxFileSize}
	}
	if int64(len(e.Xattrs)) > o.MaxXattrs {
		return &LimitError{Limit: "max_xattrs", Max: o.MaxXattrs}
	}
	if xattrBytes(e.Xattrs) > o.MaxXattrBytes {
		return &LimitError{Limit: "max_xattr_bytes", Max: o.MaxXattrBytes}
	}
	return nil
}

// setType sets the type of an entry and what depends on it.
func setType(e *Entry, h *tar.Header) (err error) {
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeCont, tar.TypeGNUSparse:
		if v := h.PAXRecords[sparseMajor]; v != "" && v != "0" && v != "1" {
			// archive/tar would return the map as part of the content.
			return fmt.Errorf("sparse file of the unknown version %.20q", v)
		}
		e.Type, e.Size = File, h.Size
	case tar.TypeDir:
		e.Type = Dir
	case tar.TypeSymlink:
		e.Type, e.Link = Symlink, h.Linkname
		return checkSymlink(h.Linkname)
	case tar.TypeLink:
		e.Type = HardLink
		return setHardLink(e, h.Linkname)
	case tar.TypeFifo:
		e.Type = Fifo
	case tar.TypeChar, tar.TypeBlock:
		e.Type = CharDevice
		if h.Typeflag == tar.TypeBlock {
			e.Type = BlockDevice
		}
		if e.Major, err = device("major", h.Devmajor); err == nil {
			e.Minor, err = device("minor", h.Devminor)
		}
		return err
	default:
		return fmt.Errorf("member of the unknown type %q", h.Typeflag)
	}
	return nil
}

func checkSymlink(target string) error {
	switch {
	case target == "":
		return errors.New("symbolic link without a target")
	case len(target) > maxPath:
		return fmt.Errorf("symbolic link with a target of %d bytes; Linux allows %d", len(target), maxPath)
	case strings.IndexByte(target, 0) >= 0:
		return errors.New("symbolic link with a NUL byte in its target")
	}
	return nil
}

func setHardLink(e *Entry, target string) error {
	link, err := CleanPath(target)
	switch {
	case err != nil:
		return fmt.Errorf("target of the hard link: %w", err)
	case link == ".":
		return errors.New("hard link to the root")
	case link == e.Path:
		return errors.New("hard link to itself")
	}
	e.Link = link
	return nil
}

// owner returns a user or group id in the form of chown(2). Archivers write ids of 2^31
// and more also as negative numbers. -1 tells chown to change nothing, so the owner
// remains root.
func owner(what string, id int) (uint32, error) {
	if int64(id) < math.MinInt32 || int64(id) > math.MaxUint32 {
		return 0, fmt.Errorf("%s id %d is not of 32 bits", what, id)
	}
	if u := uint32(id); u != math.MaxUint32 {
		return u, nil
	}
	return 0, nil
}

func device(what string, n int64) (uint32, error) {
	if n < 0 || n > math.MaxUint32 {
		return 0, fmt.Errorf("%s device number %d is not of 32 bits", what, n)
	}
	return uint32(n), nil
}

// xattrs returns the extended attributes in PAX records, by name. It reads the records
// because archive/tar omits attributes with an empty value from Header.Xattrs.
func xattrs(records map[string]string) ([]Xattr, error) {
	var list []Xattr
	for key, value := range records {
		if name, ok := strings.CutPrefix(key, schilyXattr); ok {
			list = append(list, Xattr{strings.Clone(name), strings.Clone(value)})
			continue
		}
		name, ok := strings.CutPrefix(key, libarchiveXattr)
		if !ok {
			continue
		}
		x, ok := libarchive(name, value)
		if !ok {
			// Runtimes do not look at these records, so a record that cannot be decoded
			// is not an error of the layer. It is kept as it is, under its own name.
			if len(key) <= maxXattrName {
				list = append(list, Xattr{strings.Clone(key), strings.Clone(value)})
			}
			continue
		}
		// star's form takes precedence, as in runtimes, whether or not the name is
		// encoded.
		_, plain := records[schilyXattr+x.Name]
		_, encoded := records[schilyXattr+name]
		if !plain && !encoded {
			list = append(list, x)
		}
	}
	slices.SortFunc(list, func(a, b Xattr) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Value, b.Value))
	})
	// These are two encodings of one name. It is not known which of them came last.
	list = slices.CompactFunc(list, func(a, b Xattr) bool { return a.Name == b.Name })
	for _, x := range list {
		if !validXattrName(x.Name) {
			return nil, fmt.Errorf("extended attribute with the name %.300q", x.Name)
		}
	}
	return list, nil
}

// libarchive decodes an extended attribute in libarchive's form, if possible. Such
// attributes exist with and without padding and in both alphabets.
func libarchive(name, value string) (x Xattr, ok bool) {
	plain, err := url.PathUnescape(name)
	if err != nil || !validXattrName(plain) {
		return Xattr{}, false
	}
	std := strings.NewReplacer("-", "+", "_", "/").Replace(strings.TrimRight(value, "="))
	raw, err := base64.RawStdEncoding.DecodeString(std)
	return Xattr{strings.Clone(plain), string(raw)}, err == nil
}

func validXattrName(name string) bool {
	return name != "" && len(name) <= maxXattrName && strings.IndexByte(name, 0) < 0
}

func xattrBytes(list []Xattr) (n int64) {
	for _, x := range list {
		n += int64(len(x.Name) + len(x.Value))
	}
	return n
}
