package cachedir_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"example.org/slipway/gear"
	"example.org/slipway/node/cachedir"
)

var background = context.Background()

func ignoreExist(err error) error {
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

func partial(t testing.TB, d *cachedir.Dir, f gear.File) *cachedir.Partial {
	t.Helper()
	p, err := d.Partial(f)
	must(t, err)
	return p
}

func chunk(b []byte, i int) []byte { return b[i*gear.ChunkSize : min((i+1)*gear.ChunkSize, len(b))] }

func TestPartial(t *testing.T) {
	dir := t.TempDir()
	d, err := cachedir.Open(dir, nil)
	must(t, err)
	b := content(1, 6<<20+77)
	clear(b[1<<20 : 3<<20]) // chunks of zeros are holes
	f := fileOf(b)
	p := partial(t, d, f)
	if got := p.Missing(0, f.Size); len(got) != 7 {
		t.Fatalf("missing %v at first", got)
	}
	must(t, p.PutChunk(0, chunk(b, 0)), p.PutChunk(1, chunk(b, 1)), p.PutChunk(6, chunk(b, 6)))
	wrong := bytes.Clone(chunk(b, 3))
	wrong[5]++
	for name, err := range map[string]error{
		"wrong": p.PutChunk(3, wrong), "short": p.PutChunk(3, wrong[1:]), "behind": p.PutChunk(7, nil), "before": p.PutChunk(-1, nil),
	} {
		if !errors.Is(err, gear.ErrContent) {
			t.Errorf("%s chunk: %v, want ErrContent", name, err)
		}
	}
	if diff := cmp.Diff([]int{2, 3, 4, 5}, p.Missing(0, f.Size)); diff != "" {
		t.Errorf("missing (-want +got)\n%s", diff)
	}
	buf := make([]byte, 3<<20)
	if n, err := p.ReadAt(buf, 100); !errors.Is(err, cachedir.ErrMissing) || n != 2<<20-100 || !bytes.Equal(buf[:n], b[100:2<<20]) {
		t.Errorf("read up to a missing chunk: %d bytes, %v", n, err)
	}
	if n, err := p.ReadAt(buf, f.Size-50); !errors.Is(err, io.EOF) || n != 50 || !bytes.Equal(buf[:n], b[f.Size-50:]) {
		t.Errorf("read over the end: %d bytes, %v", n, err)
	}
	if err := p.Complete(background); !errors.Is(err, cachedir.ErrMissing) {
		t.Errorf("complete: %v", err)
	}
	p.Close()
	must(t, d.Close())

	// A restart keeps what is there. A chunk that the disk lost is missing.
	path := filepath.Join(dir, "partial", fmt.Sprintf("%x", f.Name))
	raw, err := os.OpenFile(path, os.O_WRONLY, 0)
	must(t, err)
	_, err = raw.WriteAt([]byte("lost"), 6<<20)
	must(t, err, raw.Close())
	d = open(t, dir, nil)
	if s := d.Stats(); s.Partial != 1 || s.PartialBytes == 0 {
		t.Errorf("stats %+v", s)
	}
	p = partial(t, d, f)
	if diff := cmp.Diff([]int{2, 3, 4, 5, 6}, p.Missing(0, f.Size)); diff != "" {
		t.Errorf("missing after the restart (-want +got)\n%s", diff)
	}
	other := f
	other.Chunks = append([]gear.Name{{1}}, f.Chunks[1:]...)
	if _, err := d.Partial(other); !errors.Is(err, gear.ErrContent) {
		t.Errorf("open with other chunks: %v", err)
	}
	var wg sync.WaitGroup
	for range 4 { // all share it
		wg.Go(func() {
			p, err := d.Partial(f)
			if err != nil {
				t.Error(err)
				return
			}
			defer p.Close()
			for i := range f.Chunks {
				if err := p.PutChunk(i, chunk(b, i)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	must(t, p.Complete(background), p.Complete(background))
	if !bytes.Equal(read(t, d, f), b) {
		t.Error("the whole has other bytes")
	}
	all := make([]byte, len(b))
	if _, err := p.ReadAt(all, 0); err != nil || !bytes.Equal(all, b) {
		t.Errorf("the handle does not go on: %v", err)
	}
	p.Close()
	if _, err := d.Partial(f); !errors.Is(err, fs.ErrExist) {
		t.Errorf("open of the whole as partial: %v", err)
	}
	var st unix.Stat_t
	must(t, unix.Stat(pathOf(d, f), &st))
	if st.Blocks*512 > 5<<20 || st.Mode&0o777 != 0o444 {
		t.Errorf("published with %d bytes, mode %o", st.Blocks*512, st.Mode)
	}
	if s := d.Stats(); s.Partial != 0 || s.PartialBytes != 0 || s.Files != 1 {
		t.Errorf("stats %+v", s)
	}
}

// TestLyingIndex uses an index whose chunks do not match the content it names.
func TestLyingIndex(t *testing.T) {
	d := open(t, t.TempDir(), nil)
	b := content(1, 4<<20)
	f := fileOf(b)
	evil := content(2, 4<<20)
	lie := gear.File{Name: f.Name, Size: f.Size, Chunks: fileOf(evil).Chunks}
	p := partial(t, d, lie)
	for i := range lie.Chunks {
		must(t, p.PutChunk(i, chunk(evil, i)))
	}
	if err := p.Complete(background); !errors.Is(err, gear.ErrContent) {
		t.Errorf("complete: %v, want ErrContent", err)
	}
	if n, err := p.ReadAt(make([]byte, 10), 0); err == nil || n > 0 {
		t.Errorf("read of what is no content: %d bytes, %v", n, err)
	}
	p.Close()
	if d.Has(f.Name) || d.Stats().Partial != 0 {
		t.Errorf("something of it is left: %+v", d.Stats())
	}
	p = partial(t, d, f) // and the true one works
	for i := range f.Chunks {
		must(t, p.PutChunk(i, chunk(b, i)))
	}
	must(t, p.Complete(background))
	p.Close()
	if !bytes.Equal(read(t, d, f), b) {
		t.Error("other bytes")
	}
}
