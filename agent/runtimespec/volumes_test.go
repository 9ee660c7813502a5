package runtimespec

import (
	"os"
	"path/filepath"
	"testing"
)

// TestMakeVolumes names volumes that are there, that are not, and that lie behind links.
func TestMakeVolumes(t *testing.T) {
	dir := t.TempDir()
	root, outside := filepath.Join(dir, "root"), filepath.Join(dir, "outside")
	for _, d := range []string{filepath.Join(root, "run"), filepath.Join(root, "var"), filepath.Join(root, "kept"), outside} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for name, target := range map[string]string{"var/run": "/run", "away": "../outside"} {
		if err := os.Symlink(target, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := MakeVolumes([]byte(`{"config":{"Volumes":{"/data":{},"/a/b/c/":{},"rel":{},"/kept":{},"/var/run/x":{},"/":{}}}}`), root); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"data", "a/b/c", "rel", "kept", "run/x"} {
		if st, err := os.Stat(filepath.Join(root, d)); err != nil || !st.IsDir() {
			t.Errorf("no directory %s: %v", d, err)
		}
	}
	if st, err := os.Stat(filepath.Join(root, "kept")); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("the directory that was there has changed: %v, %v", st, err)
	}
	if err := MakeVolumes([]byte(`{"config":{"Volumes":{"/away/x":{}}}}`), root); err == nil {
		t.Error("a volume behind a link that leads nowhere in the tree: got no error")
	}
	if list, err := os.ReadDir(outside); err != nil || len(list) != 0 {
		t.Errorf("a link led out of the tree: %v, %v", list, err)
	}
	for _, bad := range []string{"/file/x", "/file"} {
		if err := os.WriteFile(filepath.Join(root, "file"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		err := MakeVolumes([]byte(`{"config":{"Volumes":{"`+bad+`":{}}}}`), root)
		if (err == nil) != (bad == "/file") {
			t.Errorf("volume %s at a file: error %v", bad, err)
		}
	}
}
