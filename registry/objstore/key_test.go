package objstore_test

import (
	"path"
	"strings"
	"testing"

	"example.org/slipway/registry/objstore"
)

func TestCheckKey(t *testing.T) {
	long := strings.Repeat("a", objstore.MaxSegmentLength)
	for _, tt := range []struct {
		name, key string
		ok        bool
	}{
		{"one segment", "a", true},
		{"blob", "docker/registry/v2/blobs/sha256/ab/abcd/data", true},
		{"every kind of byte", "Az09._=+-", true},
		{"dots inside", "a..b/.c/...", true},
		{"longest segment", long, true},
		{"longest key", long + "/" + long[:254] + "/a", true},
		{"segment too long", long + "a", false},
		{"key too long", long + "/" + long + "/a", false}, // 513 bytes
		{"empty", "", false},
		{"slash", "/", false},
		{"leading slash", "/a", false},
		{"trailing slash", "a/", false},
		{"empty segment", "a//b", false},
		{"dot", ".", false},
		{"dot segment", "a/./b", false},
		{"parent", "..", false},
		{"parent first", "../a", false},
		{"parent last", "a/..", false},
		{"backslash", `a\b`, false},
		{"NUL", "a\x00b", false},
		{"newline", "a\n", false},
		{"colon", "sha256:ab", false},
		{"percent", "a%2fb", false},
		{"not ASCII", "ä", false},
		{"not UTF-8", "\xff", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if err := objstore.CheckKey(tt.key); (err == nil) != tt.ok {
				t.Errorf("CheckKey(%q) = %v, want ok %t", tt.key, err, tt.ok)
			}
		})
	}
}

func FuzzCheckKey(f *testing.F) {
	for _, s := range []string{"a/b", "..", "a/../b", "/a", "a//b", "A-z_0=9+.x", "\x00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, key string) {
		if objstore.CheckKey(key) != nil {
			return
		}
		if len(key) > objstore.MaxKeyLength || strings.Trim(key, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._=+-/") != "" {
			t.Errorf("CheckKey(%q) took a key outside the alphabet or limit", key)
		}
		// Joined to a directory, the key stays unchanged and inside it.
		if got, want := path.Join("/root", key), "/root/"+key; got != want {
			t.Errorf("path.Join(/root, %q) = %q, want %q", key, got, want)
		}
	})
}
