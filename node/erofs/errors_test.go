package erofs_test

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"example.org/slipway/node/erofs"
)

func TestErrors(t *testing.T) {
	root := erofs.Node{Mode: erofs.Dir | 0o755}
	dir := erofs.Node{Name: "dir", Mode: erofs.Dir | 0o755}
	file := erofs.Node{Name: "file", Mode: erofs.File | 0o644}
	with := func(change func(n *erofs.Node)) []erofs.Node {
		n := erofs.Node{Name: "x", Parent: 1, Mode: erofs.File}
		change(&n)
		return []erofs.Node{root, dir, file, n}
	}
	xattr := func(name, value string) []erofs.Node {
		return with(func(n *erofs.Node) { n.Xattrs = []erofs.Xattr{{Name: name, Value: value}} })
	}
	for name, test := range map[string]struct {
		nodes      []erofs.Node
		path, want string
	}{
		"nothing":           {nil, "", "without a root"},
		"root is a file":    {[]erofs.Node{file}, ".", "no directory"},
		"root is a link":    {[]erofs.Node{{Mode: erofs.Dir, Link: 1}}, ".", "no directory"},
		"in itself":         {with(func(n *erofs.Node) { n.Parent = 3 }), "x", "not before it"},
		"in nothing":        {with(func(n *erofs.Node) { n.Parent = -1 }), "x", "not before it"},
		"in a file":         {with(func(n *erofs.Node) { n.Parent = 2 }), "file/x", "not a directory"},
		"no name":           {with(func(n *erofs.Node) { n.Name = "" }), "dir/", "name"},
		"dot":               {with(func(n *erofs.Node) { n.Name = "." }), "dir/.", "name"},
		"dots":              {with(func(n *erofs.Node) { n.Name = ".." }), "dir/..", "name"},
		"slash":             {with(func(n *erofs.Node) { n.Name = "a/b" }), "dir/a/b", "name"},
		"NUL":               {with(func(n *erofs.Node) { n.Name = "a\x00" }), "dir/a\x00", "name"},
		"long name":         {with(func(n *erofs.Node) { n.Name = strings.Repeat("n", 256) }), "dir/" + strings.Repeat("n", 256), "256 bytes"},
		"twice":             {with(func(n *erofs.Node) { n.Name, n.Parent = "file", 0 }), "file", "twice"},
		"link to directory": {with(func(n *erofs.Node) { n.Link = 1 }), "dir/x", "directory"},
		"link to itself":    {with(func(n *erofs.Node) { n.Link = 3 }), "dir/x", "not before it"},
		"link back":         {with(func(n *erofs.Node) { n.Link = -1 }), "dir/x", "not before it"},
		"link to link":      {append(with(func(n *erofs.Node) { n.Link = 2 }), erofs.Node{Name: "y", Link: 3}), "y", "further name"},
		"no type":           {with(func(n *erofs.Node) { n.Mode = 0o644 }), "dir/x", "no known type"},
		"mode":              {with(func(n *erofs.Node) { n.Mode |= 1 << 16 }), "dir/x", "unknown bits"},
		"time":              {with(func(n *erofs.Node) { n.Nsec = 1e9 }), "dir/x", "ns"},
		"size":              {with(func(n *erofs.Node) { n.Size = -1 }), "dir/x", "size"},
		"large":             {with(func(n *erofs.Node) { n.Size = erofs.MaxSize + 1 }), "dir/x", "size"},
		"no target":         {with(func(n *erofs.Node) { n.Mode = erofs.Symlink }), "dir/x", "empty"},
		"NUL in target":     {with(func(n *erofs.Node) { n.Mode, n.Target = erofs.Symlink, "\x00" }), "dir/x", "NUL"},
		"long target":       {with(func(n *erofs.Node) { n.Mode, n.Target = erofs.Symlink, strings.Repeat("t", 4096) }), "dir/x", "4096 bytes"},
		"major":             {with(func(n *erofs.Node) { n.Mode, n.Major = erofs.Char, 4096 }), "dir/x", "4096:0"},
		"minor":             {with(func(n *erofs.Node) { n.Mode, n.Minor = erofs.Block, 1<<20 }), "dir/x", "0:1048576"},
		"unknown attribute": {xattr("system.nfs4_acl", "v"), "dir/x", "system.nfs4_acl"},
		"no prefix":         {xattr("user", "v"), "dir/x", `"user"`},
		"only prefix":       {xattr("trusted.", "v"), "dir/x", `"trusted."`},
		"long attribute":    {xattr("user."+strings.Repeat("x", 251), "v"), "dir/x", "255 bytes"},
		"NUL in attribute":  {xattr("user.\x00", "v"), "dir/x", "NUL"},
		"long value":        {xattr("user.x", strings.Repeat("v", 65536)), "dir/x", "65536 bytes"},
		"default ACL":       {xattr("system.posix_acl_default", "v"), "dir/x", "cannot have"},
		"user on fifo": {with(func(n *erofs.Node) {
			n.Mode, n.Xattrs = erofs.Fifo, []erofs.Xattr{{Name: "user.x"}}
		}), "dir/x", "cannot have"},
		"ACL on link": {with(func(n *erofs.Node) {
			n.Mode, n.Target, n.Xattrs = erofs.Symlink, "t", []erofs.Xattr{{Name: "system.posix_acl_access"}}
		}), "dir/x", "cannot have"},
		"attribute twice": {with(func(n *erofs.Node) { n.Xattrs = []erofs.Xattr{{Name: "user.x"}, {Name: "user.y"}, {Name: "user.x"}} }), "dir/x", "twice"},
		"attribute of many twice": {with(func(n *erofs.Node) {
			for _, c := range "abcdefghijka" {
				n.Xattrs = append(n.Xattrs, erofs.Xattr{Name: "user." + string(c)})
			}
		}), "dir/x", "twice"},
		"attributes": {with(func(n *erofs.Node) {
			for _, c := range "abcde" {
				n.Xattrs = append(n.Xattrs, erofs.Xattr{Name: "user." + string(c), Value: strings.Repeat("v", 65535)})
			}
		}), "dir/x", "attributes of"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			_, err := erofs.Write(&out, test.nodes, nil)
			var e *erofs.Error
			if err == nil || test.path != "" && (!errors.As(err, &e) || e.Path != test.path) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want one for %q with %q", err, test.path, test.want)
			}
			if out.Len() > 0 {
				t.Errorf("%d bytes were written", out.Len())
			}
		})
	}
}

// full accepts some bytes and then fails.
type full struct{ left int }

var errFull = errors.New("full")

func (f *full) Write(b []byte) (int, error) {
	n := min(f.left, len(b))
	f.left -= n
	if n < len(b) {
		return n, errFull
	}
	return n, nil
}

func TestWriterFails(t *testing.T) {
	nodes := large(2000)
	size, err := erofs.Write(io.Discard, nodes, nil)
	if err != nil {
		t.Fatal(err)
	}
	for left := 0; left < int(size); left += 50_000 {
		if _, err := erofs.Write(&full{left}, nodes, nil); !errors.Is(err, errFull) {
			t.Errorf("after %d of %d bytes: %v", left, size, err)
		}
	}
}
