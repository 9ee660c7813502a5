package workload

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/workload/load"
)

// TestLoadNames reads results of one registry from files in different directories, some
// with equal names.
func TestLoadNames(t *testing.T) {
	dir := t.TempDir()
	var paths []string
	for _, name := range []string{"a", "b", "c", "c", "c"} {
		path := filepath.Join(dir, name, "x.json")
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		err := writeReport(path, func(w *os.File) error {
			return (&load.Result{Version: 1, Name: "host:5000"}).WriteJSON(w)
		})
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	results, err := readLoads(paths)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range results {
		got = append(got, r.Name)
	}
	c := filepath.Join(dir, "c", "x")
	if diff := cmp.Diff([]string{"host:5000", "x", c, c + " (2)", c + " (3)"}, got); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
}
