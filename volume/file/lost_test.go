package file

import (
	"errors"
	"testing"
)

// TestLost checks that nobody can commit a volume after a failed flush, and that it can be removed.
func TestLost(t *testing.T) {
	t.Parallel()
	s, err := Open(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	v, err := s.Create(t.Context(), "v", "", 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := v.WriteAt([]byte("bytes"), 0); err != nil {
		t.Fatal(err)
	}
	_ = v.(*volume).w.data.Close() // the file behind it fails from here on
	for range 2 {
		if err := v.Flush(); !errors.Is(err, errLost) {
			t.Errorf("Flush: got error %v", err)
		}
	}
	_ = v.Close() // some file of it is closed
	for range 2 {
		if err := s.Commit(t.Context(), "v"); !errors.Is(err, errLost) {
			t.Errorf("Commit: got error %v", err)
		}
	}
	if err := s.Remove(t.Context(), "v"); err != nil {
		t.Errorf("Remove: %v", err)
	}
}
