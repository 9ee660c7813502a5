package cachedir_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"example.org/slipway/gear"
	"example.org/slipway/node/cachedir"
)

// child publishes files, whole and in chunks, until it is killed.
func child(dir string) {
	d, err := cachedir.Open(dir, &cachedir.Options{SyncEvery: time.Millisecond, MaxBytes: 24 << 20})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	v, err := d.View(1)
	for i := uint64(rand.Uint32()); ; i++ {
		if err == nil && i%8 == 0 {
			err = chunks(d, i)
		} else if err == nil {
			b := content(i, 1+int(i%7)*20_000)
			if err = write(d, fileOf(b), b); err == nil && i%2 == 0 {
				err = ignoreNotExist(v.Show(fileOf(b).Name)) // it may have been evicted by now
			}
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(i)
	}
}

// chunks writes a large file in random order.
func chunks(d *cachedir.Dir, seed uint64) error {
	b := content(seed%4, 5<<20+1)
	f := fileOf(b)
	p, err := d.Partial(f)
	if err != nil {
		return ignoreExist(err)
	}
	defer p.Close()
	for _, i := range rand.Perm(len(f.Chunks))[:4] {
		if err := p.PutChunk(i, b[i*gear.ChunkSize:min((i+1)*gear.ChunkSize, len(b))]); err != nil {
			return err
		}
	}
	if len(p.Missing(0, f.Size)) == 0 {
		return p.Complete(background)
	}
	return nil
}

// TestKill kills a process that fills a directory at random moments. Everything in the directory of
// files must be whole at any moment, because the next process may serve it without checking.
func TestKill(t *testing.T) {
	dir := t.TempDir()
	self, err := os.Executable()
	must(t, err)
	rounds := 12
	if testing.Short() {
		rounds = 4
	}
	published := 0
	for round := range rounds {
		cmd := exec.Command(self)
		cmd.Env = append(os.Environ(), "CACHEDIR_TEST_CHILD="+dir)
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		must(t, cmd.Start())
		time.Sleep(time.Duration(50+rand.IntN(250)) * time.Millisecond) // a random moment is the point
		must(t, cmd.Process.Signal(unix.SIGKILL))
		_ = cmd.Wait()
		if errs.Len() > 0 {
			t.Fatalf("round %d: %s", round, errs.String())
		}
		published += bytes.Count(out.Bytes(), []byte("\n"))
		checkWhole(t, filepath.Join(dir, "files"))
		if round%3 == 2 { // as if the power had been cut, too
			state := filepath.Join(dir, "state.json")
			b, err := os.ReadFile(state)
			must(t, ignoreNotExist(err), os.WriteFile(state, bytes.Replace(b, []byte(`"boot":"`), []byte(`"boot":"x`), 1), 0o600))
		}
		view := filepath.Join(dir, "views", cachedir.ViewID(1).String())
		checkWhole(t, view)
		d, err := cachedir.Open(dir, nil)
		must(t, err)
		checkLinks(t, view, d.Files())
		if s := d.Stats(); s.Damaged != 0 {
			t.Fatalf("round %d: %+v", round, s)
		}
		for seed := range uint64(4) {
			checkPartial(t, d, content(seed, 5<<20+1))
		}
		must(t, d.Close())
	}
	if published == 0 {
		t.Error("no child published anything")
	}
	t.Logf("%d files published in %d lives", published, rounds)
}

func ignoreNotExist(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// checkWhole hashes all files.
func checkWhole(t *testing.T, dir string) {
	t.Helper()
	must(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) && path == dir {
			return nil // it was killed that early
		}
		if err != nil || e.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if got := fmt.Sprintf("%x", fileOf(b).Name); got != filepath.Base(filepath.Dir(path))+filepath.Base(path) {
			return fmt.Errorf("%s has the bytes of %s", path, got)
		}
		return nil
	}))
}

// checkLinks wants all files of a view to be links to complete files.
func checkLinks(t *testing.T, view, files string) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(view, "*", "*"))
	must(t, err)
	for _, path := range paths {
		a, err := os.Stat(path)
		must(t, err)
		b, err := os.Stat(filepath.Join(files, strings.TrimPrefix(path, view)))
		must(t, err)
		if !os.SameFile(a, b) {
			t.Fatalf("%s is another file", path)
		}
	}
}

// checkPartial reads the parts of a large file that are recorded as present.
func checkPartial(t *testing.T, d *cachedir.Dir, b []byte) {
	t.Helper()
	f := fileOf(b)
	p, err := d.Partial(f)
	if err != nil {
		must(t, ignoreExist(err))
		return
	}
	defer p.Close()
	missing := map[int]bool{}
	for _, i := range p.Missing(0, f.Size) {
		missing[i] = true
	}
	for i := range f.Chunks {
		if missing[i] {
			continue
		}
		got := make([]byte, gear.ChunkLen(f.Size, i))
		_, err := p.ReadAt(got, int64(i)*gear.ChunkSize)
		must(t, err)
		if !bytes.Equal(got, b[i*gear.ChunkSize:][:len(got)]) {
			t.Fatalf("chunk %d has other bytes", i)
		}
	}
}
