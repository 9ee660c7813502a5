package objtest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"example.org/slipway/registry/objstore"
)

// adopter returns the store's Adopter. A store without one has nothing to check.
func (t *suite) adopter() (objstore.Adopter, bool) {
	t.Helper()
	a, ok := objstore.As[objstore.Adopter](t.s)
	if !ok {
		t.Log("the store is no Adopter")
	}
	return a, ok
}

// file writes data to a file and returns its path.
func (t *suite) file(data []byte) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "file")
	t.must(os.WriteFile(path, data, 0o600), "make a file")
	return path
}

func (t *suite) adopt() {
	a, ok := t.adopter()
	if !ok {
		return
	}
	ctx := t.Context()
	for i, size := range []int{0, 1, 4096, 100_000, t.opts.LargeSize} {
		key, data := fmt.Sprintf("ad/opt/%d", i), Content(uint64(20+i), size)
		// The store may have kept what was read. It must not serve that now.
		t.mustPut(key, []byte("before"))
		t.wantObject(key, []byte("before"))
		path := t.file(data)
		open, err := os.Open(path)
		t.must(err, "open the file")
		t.must(a.AdoptFile(ctx, key, path), "AdoptFile")
		t.wantObject(key, data)
		got, err := io.ReadAll(open)
		if err != nil || !bytes.Equal(got, data) {
			t.Errorf("read the open file: got %d bytes, %v; want the %d it had", len(got), err, size)
		}
		t.must(open.Close(), "close the file")
		// The object must be independent of the file at the path.
		t.must(os.WriteFile(path, []byte("after"), 0o600), "write to the path")
		t.wantObject(key, data)
	}
}

func (t *suite) adoptFails() {
	a, ok := t.adopter()
	if !ok {
		return
	}
	ctx := t.Context()
	dir := t.TempDir()
	t.must(os.Symlink(t.file([]byte("elsewhere")), filepath.Join(dir, "link")), "make a link")
	for _, path := range []string{filepath.Join(dir, "nothing"), filepath.Join(dir, "no/directory"), dir, filepath.Join(dir, "link")} {
		if err := a.AdoptFile(ctx, "ad/fails", path); err == nil {
			t.Errorf("AdoptFile of %s: got no error", path)
		}
	}
	for _, key := range []string{"", "../x", "a//b"} {
		path := t.file([]byte("stays"))
		if err := a.AdoptFile(ctx, key, path); err == nil {
			t.Errorf("AdoptFile as %q: got no error", key)
		}
		if _, err := os.Stat(path); err != nil {
			t.Errorf("the file after a refused key: %v", err)
		}
	}
	_, err := t.s.Stat(ctx, "ad/fails")
	t.wantErr(err, objstore.ErrNotExist, "Stat")
}

// adoptRace runs many adoptions and deletions under one key.
func (t *suite) adoptRace() {
	a, ok := t.adopter()
	if !ok {
		return
	}
	ctx := t.Context()
	data := Content(30, 70_000)
	paths := make([]string, 20*t.opts.Racers)
	for i := range paths {
		paths[i] = t.file(data)
	}
	var racers sync.WaitGroup
	for r := range t.opts.Racers {
		racers.Go(func() {
			for i := range 20 {
				if err := a.AdoptFile(ctx, "ad/race/x", paths[20*r+i]); err != nil {
					t.Errorf("AdoptFile: %v", err)
				}
				if r%2 == 0 {
					if err := t.s.Delete(ctx, "ad/race/x"); err != nil {
						t.Errorf("Delete: %v", err)
					}
				}
			}
		})
	}
	racers.Wait()
	path := t.file(data)
	t.must(a.AdoptFile(ctx, "ad/race/x", path), "AdoptFile")
	t.wantObject("ad/race/x", data)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("remove the file: %v", err)
	}
}
