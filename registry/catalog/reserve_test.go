package catalog_test

import (
	"os"
	"path/filepath"
	"testing"

	"example.org/slipway/registry/catalog"
)

// TestReserveBesideFile checks a link that names the catalogue. The reserve is on the disk of the
// linked file, even if that file is only being created.
func TestReserveBesideFile(t *testing.T) {
	link, file := filepath.Join(t.TempDir(), "catalog.db"), filepath.Join(t.TempDir(), "real.db")
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	c, err := catalog.Open(t.Context(), link, &catalog.Options{Reserve: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if st, err := os.Stat(file + "-reserve"); err != nil || st.Size() == 0 {
		t.Errorf("the reserve: %v, %v", st, err)
	}
	if left, err := os.ReadDir(filepath.Dir(link)); err != nil || len(left) != 1 {
		t.Errorf("beside the link: %v, %v", left, err)
	}
}
