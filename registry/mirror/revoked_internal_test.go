package mirror

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
)

// TestRevocations compares the file with a map, through restarts and lines that were cut off.
func TestRevocations(t *testing.T) {
	t.Parallel()
	dir, rnd := t.TempDir(), rand.New(rand.NewPCG(1, 2))
	want := map[contentKey]bool{}
	var r revocations
	if err := r.init(dir); err != nil {
		t.Fatal(err)
	}
	for step := range 20_000 {
		k := contentKey{fmt.Sprintf("up/app%d", rnd.IntN(5)), fmt.Sprintf("v%d", rnd.IntN(100))}
		refused := rnd.IntN(2) == 0
		if err := r.set(k, refused); err != nil {
			t.Fatal(err)
		}
		want[k] = refused
		if step%1000 != 0 {
			continue
		}
		if step%2000 == 0 { // the process was killed while it wrote
			file, err := os.OpenFile(filepath.Join(dir, revokedFile), os.O_APPEND|os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(file, "+%s cut", k.repo)
			file.Close()
		}
		r = revocations{}
		if err := r.init(dir); err != nil {
			t.Fatal(err)
		}
		for k, refused := range want {
			if r.has(k) != refused {
				t.Fatalf("step %d: %v: got %v, want %v", step, k, r.has(k), refused)
			}
		}
		if r.has(contentKey{k.repo, "cut"}) {
			t.Errorf("step %d: a line that was cut off counts", step)
		}
	}
	if fi, err := os.Stat(filepath.Join(dir, revokedFile)); err != nil || fi.Size() > 100_000 {
		t.Errorf("the file of at most 500 tags is %+v, %v", fi, err)
	}
}
