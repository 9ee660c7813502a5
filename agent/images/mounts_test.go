package images

import (
	"os"
	"path/filepath"
	"testing"
)

// TestSharesUpper names the upper directory of a mount in several ways.
func TestSharesUpper(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, d := range []string{"upper", "other"} {
		if err := os.Mkdir(at(d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("upper", at("link")); err != nil {
		t.Fatal(err)
	}
	m := &Set{all: map[string]*mountRecord{
		"/first":   {Dir: "/first", Upper: at("upper")},
		"/second":  {Dir: "/second", Upper: at("later")}, // being made
		"/without": {Dir: "/without"},
	}}
	for upper, want := range map[string]string{
		"": "", at("other"): "", at("new"): "", at("upper") + ".work": "",
		at("upper"): "/first", at("link"): "/first", dir + "/./upper/": "/first", at("later"): "/second",
	} {
		if got := m.sharesUpper(upper); got != want {
			t.Errorf("upper directory %q: shared with %q, want %q", upper, got, want)
		}
	}
}
