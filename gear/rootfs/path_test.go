package rootfs_test

import (
	"path"
	"strings"
	"testing"

	"example.org/slipway/gear/rootfs"
)

func TestCleanPath(t *testing.T) {
	deep := strings.Repeat("d/", 2047) + "f"
	for _, tt := range []struct {
		name, in, want string // an empty want means an error
	}{
		{"plain", "usr/bin/x", "usr/bin/x"},
		{"dot slash", "./usr/bin/x", "usr/bin/x"},
		{"absolute", "/usr/bin/x", "usr/bin/x"},
		{"many slashes", "///usr//bin/", "usr/bin"},
		{"root", "./", "."},
		{"slash", "/", "."},
		{"empty", "", "."},
		{"inner parent", "a/../b", "b"},
		{"inner parent to the root", "a/..", "."},
		{"names with dots", "..a/...", "..a/..."},
		{"not UTF-8", "caf\xe9/\xff", "caf\xe9/\xff"},
		{"newline", "a\nb", "a\nb"},
		{"backslash", `..\x`, `..\x`},
		{"parent", "..", ""},
		{"escape", "../x", ""},
		{"absolute escape", "/../x", ""},
		{"escape from within", "a/../../x", ""},
		{"NUL", "a\x00b", ""},
		{"segment of 255", strings.Repeat("n", 255), strings.Repeat("n", 255)},
		{"segment of 256", strings.Repeat("n", 256), ""},
		{"path of 4095", strings.Repeat(strings.Repeat("n", 127)+"/", 31) + strings.Repeat("n", 127), strings.Repeat(strings.Repeat("n", 127)+"/", 31) + strings.Repeat("n", 127)},
		{"path of 4096", strings.Repeat(strings.Repeat("n", 127)+"/", 31) + strings.Repeat("n", 128), ""},
		{"depth of 2048", deep, deep},
		{"depth of 2049", "d/" + deep, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := rootfs.CleanPath(tt.in)
			if (err != nil) != (tt.want == "") || got != tt.want && err == nil {
				t.Errorf("CleanPath(%.80q): got %.80q, %v; want %.80q", tt.in, got, err, tt.want)
			}
		})
	}
}

func FuzzCleanPath(f *testing.F) {
	for _, s := range []string{"", ".", "/a/./b/../c", "../x", "a/../../b", "\x00", ".wh.x", "//..//a", "\xff/"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		p, err := rootfs.CleanPath(name)
		if err != nil {
			return
		}
		if why := unsafe(p); why != "" {
			t.Fatalf("CleanPath(%q) = %q: %s", name, p, why)
		}
		if again, err := rootfs.CleanPath(p); err != nil || again != p {
			t.Fatalf("CleanPath(%q) = %q, %v; want it unchanged", p, again, err)
		}
		if rooted := path.Clean("/" + name); "/"+strings.TrimPrefix(p, ".") != rooted && "/"+p != rooted {
			t.Fatalf("CleanPath(%q) = %q, which below a root is not %q", name, p, rooted)
		}
	})
}

// unsafe returns what makes p invalid as an Entry.Path.
func unsafe(p string) string {
	switch {
	case p == "":
		return "empty"
	case len(p) > 4095:
		return "too long"
	case strings.HasPrefix(p, "/"):
		return "absolute"
	case strings.ContainsRune(p, 0):
		return "NUL"
	case p == ".":
		return ""
	}
	segs := strings.Split(p, "/")
	for _, seg := range segs {
		if seg == "" || seg == "." || seg == ".." || len(seg) > 255 {
			return "segment " + seg
		}
	}
	return ""
}
