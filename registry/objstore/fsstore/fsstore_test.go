package fsstore_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/objstore/fsstore"
	"example.org/slipway/registry/objstore/objtest"
)

const blobKey = "docker/registry/v2/blobs/sha256/ab/abcdef/data"

func open(t testing.TB, root string) *fsstore.Store {
	t.Helper()
	s, err := fsstore.New(root, nil)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// begin begins an upload with data.
func begin(t testing.TB, s objstore.Store, data []byte) objstore.Upload {
	t.Helper()
	u, err := s.NewUpload(t.Context(), -1)
	must(t, err)
	_, err = u.Write(data)
	must(t, err)
	return u
}

func suspend(t testing.TB, u objstore.Upload) string {
	t.Helper()
	state, err := u.Suspend(t.Context())
	must(t, err)
	return state
}

// read returns an object's bytes.
func read(t testing.TB, s objstore.Store, key string) []byte {
	t.Helper()
	o, err := s.Get(t.Context(), key, 0, -1)
	must(t, err)
	defer o.Close()
	b, err := io.ReadAll(o)
	must(t, err)
	return b
}

// tree lists everything below root, sorted. Directories end with a slash.
func tree(t testing.TB, root string) []string {
	t.Helper()
	var names []string
	must(t, filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if rel, _ := filepath.Rel(root, p); rel != "." && err == nil {
			if d.IsDir() {
				rel += "/"
			}
			names = append(names, rel)
		}
		return err
	}))
	return names
}

func wantTree(t testing.TB, root string, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, tree(t, root)); diff != "" {
		t.Errorf("files of the store: -want +got\n%s", diff)
	}
}

func descriptors(t testing.TB) int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(fds)
}

// TestConformance also checks that no case leaves a descriptor open.
func TestConformance(t *testing.T) {
	for _, walk := range []bool{false, true} {
		t.Run(fmt.Sprintf("walk=%t", walk), func(t *testing.T) {
			before := descriptors(t)
			opts := &objtest.Options{}
			if walk {
				opts.Suspended = 100
			}
			objtest.Run(t, func(t *testing.T) objstore.Store {
				s := open(t, t.TempDir())
				if walk {
					fsstore.WalkPaths(s)
				}
				return s
			}, opts)
			if after := descriptors(t); after > before {
				t.Errorf("descriptors: %d before, %d after", before, after)
			}
		})
	}
}

func BenchmarkStore(b *testing.B) {
	objtest.Bench(b, func(b *testing.B) objstore.Store { return open(b, b.TempDir()) })
}

func TestModes(t *testing.T) {
	old := unix.Umask(0)
	defer unix.Umask(old)
	for _, tt := range []struct {
		opts      *fsstore.Options
		dir, file fs.FileMode
	}{
		{nil, 0o700, 0o600},
		{&fsstore.Options{DirMode: 0o750, FileMode: 0o640}, 0o750, 0o640},
	} {
		root := filepath.Join(t.TempDir(), "deep", "store")
		s, err := fsstore.New(root, tt.opts)
		must(t, err)
		must(t, s.Put(t.Context(), "a/b", nil, false))
		must(t, begin(t, s, []byte("x")).Commit(t.Context(), "a/c"))
		suspend(t, begin(t, s, []byte("x")))
		must(t, s.Close())
		must(t, filepath.WalkDir(filepath.Dir(root), func(p string, d fs.DirEntry, err error) error {
			must(t, err)
			info, err := d.Info()
			must(t, err)
			want := tt.file
			if d.IsDir() {
				want = tt.dir
			}
			if got := info.Mode().Perm(); got != want {
				t.Errorf("%s with %+v: got mode %o, want %o", p, tt.opts, got, want)
			}
			return nil
		}))
	}
}

// TestReservedKeys checks that staging files cannot be reached as objects.
func TestReservedKeys(t *testing.T) {
	root := t.TempDir()
	s := open(t, root)
	state := suspend(t, begin(t, s, []byte("private")))
	must(t, os.MkdirAll(filepath.Join(root, "lost+found/x"), 0o700))
	for _, key := range []string{"_staging", "_staging/" + state, "_staging/a/b", "lost+found", "lost+found/x"} {
		if _, err := s.Get(t.Context(), key, 0, -1); err == nil || errors.Is(err, objstore.ErrNotExist) {
			t.Errorf("Get %s: got error %v, want one about the key", key, err)
		}
		if err := s.Put(t.Context(), key, nil, false); err == nil {
			t.Errorf("Put %s: got no error", key)
		}
		if err := s.Delete(t.Context(), key); err == nil {
			t.Errorf("Delete %s: got no error", key)
		}
	}
	for _, prefix := range []string{"", "_", "_staging", "_staging/", "lost+found/"} {
		for info, err := range s.List(t.Context(), prefix, "") {
			t.Errorf("List(%q): got %+v, %v; want nothing", prefix, info, err)
		}
	}
	wantTree(t, root, "_staging/", "_staging/"+state, "lost+found/", "lost+found/x/")
}

// plant adds foreign entries to the store: links that lead out of it or to another object, and
// special files.
func plant(t *testing.T, root string) (outside string, keys []string) {
	t.Helper()
	outside = t.TempDir()
	must(t, os.WriteFile(filepath.Join(outside, "secret"), []byte("secret"), 0o600))
	must(t, os.MkdirAll(filepath.Join(root, "p/dir/empty"), 0o700))
	must(t, os.WriteFile(filepath.Join(root, "p/object"), []byte("object"), 0o600))
	must(t, os.Symlink(outside, filepath.Join(root, "p/out")))
	must(t, os.Symlink(filepath.Join(outside, "secret"), filepath.Join(root, "p/abs")))
	must(t, os.Symlink("object", filepath.Join(root, "p/rel")))
	must(t, os.Symlink("nowhere", filepath.Join(root, "p/dangling")))
	must(t, os.Symlink(".", filepath.Join(root, "p/self")))
	must(t, unix.Mkfifo(filepath.Join(root, "p/fifo"), 0o600))
	l, err := net.Listen("unix", filepath.Join(root, "p/socket"))
	must(t, err)
	t.Cleanup(func() { l.Close() })
	return outside, []string{"p/out", "p/abs", "p/rel", "p/dangling", "p/self", "p/fifo", "p/socket", "p/dir",
		"p/out/secret", "p/self/object", "p/self/self/object", "p/object/x"}
}

func TestPlanted(t *testing.T) {
	for _, walk := range []bool{false, true} {
		t.Run(fmt.Sprintf("walk=%t", walk), func(t *testing.T) {
			ctx, root := t.Context(), t.TempDir()
			s := open(t, root)
			if walk {
				fsstore.WalkPaths(s)
			}
			outside, keys := plant(t, root)
			before := tree(t, root)
			for _, key := range keys {
				if _, err := s.Stat(ctx, key); !errors.Is(err, objstore.ErrNotExist) {
					t.Errorf("Stat %s: got error %v, want ErrNotExist", key, err)
				}
				if _, err := s.Get(ctx, key, 0, -1); !errors.Is(err, objstore.ErrNotExist) {
					t.Errorf("Get %s: got error %v, want ErrNotExist", key, err)
				}
				must(t, s.Delete(ctx, key))
				if err := s.Put(ctx, key, []byte("x"), true); err == nil || errors.Is(err, objstore.ErrExist) {
					t.Errorf("Put %s if absent: got error %v, want one about the file", key, err)
				}
			}
			for _, key := range []string{"p/out/new", "p/out/new/deep", "p/self/new", "p/object/x"} {
				if err := s.Put(ctx, key, []byte("x"), false); err == nil {
					t.Errorf("Put %s: got no error", key)
				}
				if err := begin(t, s, []byte("x")).Commit(ctx, key); err == nil {
					t.Errorf("Commit %s: got no error", key)
				}
			}
			wantTree(t, root, before...)
			wantTree(t, outside, "secret")
			for _, prefix := range []string{"", "p/", "p/out/", "p/self/", "p/out", "p/object/"} {
				for info, err := range s.List(ctx, prefix, "") {
					must(t, err)
					if info.Key != "p/object" {
						t.Errorf("List(%q): got %+v", prefix, info)
					}
				}
			}
			// A link or special file at the key itself is replaced, not followed.
			for _, key := range []string{"p/abs", "p/out", "p/rel", "p/fifo"} {
				must(t, s.Put(ctx, key, []byte("mine"), false))
				if got := read(t, s, key); string(got) != "mine" {
					t.Errorf("%s: got %q", key, got)
				}
			}
			if got, err := os.ReadFile(filepath.Join(outside, "secret")); string(got) != "secret" || err != nil {
				t.Errorf("file outside: got %q, %v", got, err)
			}
			if got := read(t, s, "p/object"); string(got) != "object" {
				t.Errorf("object that was linked to: got %q", got)
			}
		})
	}
}

// TestPlantedStaging checks that a link as the staging directory is refused, and that links in it
// do not count as uploads.
func TestPlantedStaging(t *testing.T) {
	root, outside := t.TempDir(), t.TempDir()
	must(t, os.Symlink(outside, filepath.Join(root, "_staging")))
	if s, err := fsstore.New(root, nil); err == nil {
		t.Error("New with a link for the staging directory: got no error")
		must(t, s.Close())
	}

	root = t.TempDir()
	s := open(t, root)
	must(t, s.Put(t.Context(), "x", []byte("object"), false))
	for i, target := range []string{"../x", filepath.Join(outside, "file"), "."} {
		must(t, os.WriteFile(filepath.Join(outside, "file"), []byte("file"), 0o600))
		state := strings.Repeat(string(rune('A'+i)), 26)
		must(t, os.Symlink(target, filepath.Join(root, "_staging", state)))
		if _, err := s.Resume(t.Context(), state, 0); !errors.Is(err, objstore.ErrNotExist) {
			t.Errorf("Resume of a link to %s: got error %v, want ErrNotExist", target, err)
		}
	}
	n, _, err := s.SweepUploads(t.Context(), time.Now().Add(time.Hour), func(string) bool { return false })
	if n != 0 || err != nil {
		t.Errorf("SweepUploads of links: got %d, %v; want 0, nil", n, err)
	}
	if got := read(t, s, "x"); string(got) != "object" {
		t.Errorf("object that was linked to: got %q", got)
	}
}

// TestForeignNames checks that files whose names are not keys are not listed.
func TestForeignNames(t *testing.T) {
	root := t.TempDir()
	s := open(t, root)
	must(t, s.Put(t.Context(), "a/b", nil, false))
	for _, name := range []string{"a/b~", "a/sha256:1", "a/ä", "a/with space"} {
		must(t, os.WriteFile(filepath.Join(root, name), nil, 0o600))
	}
	var got []string
	for info, err := range s.List(t.Context(), "", "") {
		must(t, err)
		got = append(got, info.Key)
	}
	if diff := cmp.Diff([]string{"a/b"}, got); diff != "" {
		t.Errorf("List: -want +got\n%s", diff)
	}
}

// TestDirectoryInPlace checks that an object can be stored under a key where a directory is, and
// that the directory's content is not lost.
func TestDirectoryInPlace(t *testing.T) {
	ctx, root := t.Context(), t.TempDir()
	s := open(t, root)
	adopted := filepath.Join(t.TempDir(), "file")
	for name, store := range map[string]func() error{
		"Put":    func() error { return s.Put(ctx, blobKey, []byte("x"), false) },
		"Commit": func() error { return begin(t, s, []byte("x")).Commit(ctx, blobKey) },
		"Move":   func() error { return s.Move(ctx, "other", blobKey) },
		"Adopt":  func() error { return s.AdoptFile(ctx, blobKey, adopted) },
	} {
		for _, in := range []string{"", "file", "directory/file"} {
			must(t, s.Delete(ctx, blobKey))
			must(t, s.Put(ctx, "other", []byte("x"), false))
			must(t, os.WriteFile(adopted, []byte("x"), 0o600))
			must(t, os.MkdirAll(filepath.Join(root, blobKey, filepath.Dir(in)), 0o700))
			if in != "" {
				must(t, os.WriteFile(filepath.Join(root, blobKey, in), []byte(name), 0o600))
			}
			if _, err := s.Stat(ctx, blobKey); !errors.Is(err, objstore.ErrNotExist) {
				t.Errorf("%s, %q: before it Stat: got %v, want ErrNotExist", name, in, err)
			}
			must(t, store())
			if got := read(t, s, blobKey); string(got) != "x" {
				t.Errorf("%s, %q: got %q", name, in, got)
			}
			kept, err := filepath.Glob(filepath.Join(root, blobKey+".aside-*", in))
			must(t, err)
			if in != "" && len(kept) != 1 {
				t.Errorf("%s, %q: %q is kept of the directory", name, in, kept)
			}
			for _, path := range kept {
				must(t, os.RemoveAll(strings.TrimSuffix(path, in)))
			}
		}
	}
}

// TestFileInPlaceOfDirectory checks that a file or link in the place of an object's directory is
// named and refused, and stays as it is.
func TestFileInPlaceOfDirectory(t *testing.T) {
	ctx, root := t.Context(), t.TempDir()
	s := open(t, root)
	must(t, s.Put(ctx, "a/file", []byte("object"), false))
	must(t, os.Symlink(t.TempDir(), filepath.Join(root, "a/link")))
	for _, key := range []string{"a/file/x", "a/file/x/y", "a/link/x", "a/link/x/y"} {
		if err := s.Put(ctx, key, []byte("x"), false); !errors.Is(err, objstore.ErrTaken) {
			t.Errorf("Put %s: got %v, want ErrTaken", key, err)
		}
		if err := begin(t, s, []byte("x")).Commit(ctx, key); !errors.Is(err, objstore.ErrTaken) {
			t.Errorf("Commit %s: got %v, want ErrTaken", key, err)
		}
	}
	if got := read(t, s, "a/file"); string(got) != "object" {
		t.Errorf("the file: got %q", got)
	}
}

// TestTidy checks that a deletion leaves no directory, also when commits and deletions of the same
// object race.

func TestTidy(t *testing.T) {
	ctx, root := t.Context(), t.TempDir()
	s := open(t, root)
	must(t, s.Put(ctx, blobKey, nil, false))
	must(t, s.Put(ctx, "docker/registry/v2/x", nil, false))
	must(t, s.Delete(ctx, blobKey))
	wantTree(t, root, "_staging/", "docker/", "docker/registry/", "docker/registry/v2/", "docker/registry/v2/x")
	must(t, s.Delete(ctx, "docker/registry/v2/x"))
	wantTree(t, root, "_staging/")

	done := make(chan error, 4)
	for i := range cap(done) {
		go func() {
			var err error
			key := fmt.Sprintf("a/b/%d/data", i%2)
			for n := 0; n < 100 && err == nil; n++ {
				if i < 2 {
					err = s.Put(ctx, key, []byte("x"), false)
				} else {
					err = s.Delete(ctx, key)
				}
			}
			done <- err
		}()
	}
	for range cap(done) {
		must(t, <-done)
	}
	must(t, s.Delete(ctx, "a/b/0/data"))
	must(t, s.Delete(ctx, "a/b/1/data"))
	wantTree(t, root, "_staging/")
	if n := fsstore.Directories(s); n != 0 {
		t.Errorf("directories remembered in an empty store: %d", n)
	}
}

// TestDirectoriesAreForgotten checks that the directories of single blobs do not accumulate in
// memory.
func TestDirectoriesAreForgotten(t *testing.T) {
	s := open(t, t.TempDir())
	for i := range 50 {
		must(t, s.Put(t.Context(), fmt.Sprintf("blobs/ab/%d/data", i), nil, false))
	}
	if n := fsstore.Directories(s); n != 2 {
		t.Errorf("directories remembered: %d, want 2 (blobs, blobs/ab)", n)
	}
}

// TestReopen checks that objects and suspended uploads are available in another Store.
func TestReopen(t *testing.T) {
	ctx, root := t.Context(), t.TempDir()
	s := open(t, root)
	must(t, s.Put(ctx, "a/x", []byte("one"), false))
	state := suspend(t, begin(t, s, []byte("half")))
	must(t, s.Close())
	s = open(t, root)
	if got := read(t, s, "a/x"); string(got) != "one" {
		t.Errorf("object: got %q", got)
	}
	u, err := s.Resume(ctx, state, 4)
	must(t, err)
	_, err = u.Write([]byte(" done"))
	must(t, err)
	must(t, u.Commit(ctx, blobKey))
	if got := read(t, s, blobKey); string(got) != "half done" {
		t.Errorf("resumed object: got %q", got)
	}
	if !slices.Contains(tree(t, root), "_staging/") || slices.Contains(tree(t, root), "_staging/"+state) {
		t.Errorf("staging after Commit: %q", tree(t, root))
	}
}

// TestReadTruncated checks that a file that became shorter is an error, never a short object.
func TestReadTruncated(t *testing.T) {
	root := t.TempDir()
	s := open(t, root)
	for _, size := range []int64{1000, 1 << 20, 3 << 20} {
		for name, read := range map[string]func(objstore.Object) error{
			"Read":             func(o objstore.Object) error { _, err := io.Copy(io.Discard, struct{ io.Reader }{o}); return err },
			"WriteTo":          func(o objstore.Object) error { _, err := o.WriteTo(struct{ io.Writer }{io.Discard}); return err },
			"WriteTo ReadFrom": func(o objstore.Object) error { _, err := o.WriteTo(new(bytes.Buffer)); return err },
		} {
			must(t, s.Put(t.Context(), "x", objtest.Content(1, int(size)), false))
			o, err := s.Get(t.Context(), "x", 0, -1)
			must(t, err)
			must(t, os.Truncate(filepath.Join(root, "x"), size/2))
			if err := read(o); !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("%s of %d bytes: got error %v, want unexpected EOF", name, size, err)
			}
			must(t, o.Close())
		}
	}
}

// TestManyReaders runs more large reads at once than there are buffers.
func TestManyReaders(t *testing.T) {
	s := open(t, t.TempDir())
	data := objtest.Content(1, 300_000)
	must(t, s.Put(t.Context(), "x", data, false))
	const readers = 100
	release, ready, done := make(chan struct{}), make(chan struct{}, readers), make(chan error, readers)
	for range readers {
		go func() {
			o, err := s.Get(t.Context(), "x", 0, -1)
			if err == nil {
				w := &slowWriter{ready: ready, release: release}
				_, err = o.WriteTo(w)
				if err == nil && !bytes.Equal(w.got.Bytes(), data) {
					err = errors.New("read other bytes")
				}
				err = errors.Join(err, o.Close())
			}
			done <- err
		}()
	}
	for range readers {
		<-ready
	}
	close(release)
	for range readers {
		must(t, <-done)
	}
}

// slowWriter blocks its first Write until it is released.
type slowWriter struct {
	ready, release chan struct{}
	got            bytes.Buffer
}

func (w *slowWriter) Write(p []byte) (int, error) {
	if w.got.Len() == 0 {
		w.ready <- struct{}{}
		<-w.release
	}
	return w.got.Write(p)
}
