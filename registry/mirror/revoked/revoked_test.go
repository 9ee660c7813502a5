package revoked

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
)

// TestTags compares the file with a map, through restarts and lines that were cut off.
func TestTags(t *testing.T) {
	t.Parallel()
	dir, rnd := t.TempDir(), rand.New(rand.NewPCG(1, 2))
	want := map[tag]bool{}
	r, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	for step := range 20_000 {
		k := tag{fmt.Sprintf("up/app%d", rnd.IntN(5)), fmt.Sprintf("v%d", rnd.IntN(100))}
		refused := rnd.IntN(2) == 0
		if err := r.Set(k.repo, k.name, refused); err != nil {
			t.Fatal(err)
		}
		want[k] = refused
		if step%1000 != 0 {
			continue
		}
		if step%2000 == 0 { // the process was killed while it wrote
			f, err := os.OpenFile(filepath.Join(dir, file), os.O_APPEND|os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(f, "+%s cut", k.repo)
			f.Close()
		}
		if r, err = Open(dir); err != nil {
			t.Fatal(err)
		}
		for k, refused := range want {
			if r.Has(k.repo, k.name) != refused {
				t.Fatalf("step %d: %v: got %v, want %v", step, k, r.Has(k.repo, k.name), refused)
			}
		}
		if r.Has(k.repo, "cut") {
			t.Errorf("step %d: a line that was cut off counts", step)
		}
	}
	if fi, err := os.Stat(filepath.Join(dir, file)); err != nil || fi.Size() > 100_000 {
		t.Errorf("the file of at most 500 tags is %+v, %v", fi, err)
	}
}
