package fsstore_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/objstore/fsstore"
	"example.org/slipway/registry/objstore/objtest"
)

// TestSuspendedHoldNoDescriptors checks that only uploads that were written to and are in use hold
// descriptors.
func TestSuspendedHoldNoDescriptors(t *testing.T) {
	s := open(t, t.TempDir())
	before := descriptors(t)
	var fresh []objstore.Upload
	for range 50 {
		suspend(t, begin(t, s, []byte("x")))
		u, err := s.NewUpload(t.Context(), 1<<30)
		must(t, err)
		fresh = append(fresh, u)
	}
	if after := descriptors(t); after != before {
		t.Errorf("descriptors: %d before, %d with 50 suspended and %d fresh uploads", before, after, len(fresh))
	}
	u := begin(t, s, []byte("x"))
	if after := descriptors(t); after != before+1 {
		t.Errorf("descriptors: %d before, %d with one upload in use; want one more", before, after)
	}
	must(t, u.Cancel(t.Context()))
	for _, end := range []func(objstore.Upload) error{
		func(u objstore.Upload) error { return u.Commit(t.Context(), "a/b") },
		func(u objstore.Upload) error { return expectError(u.Commit(t.Context(), "../b")) },
		func(u objstore.Upload) error { return expectError(u.Commit(t.Context(), "a/b/c")) },
		func(u objstore.Upload) error { return u.Cancel(t.Context()) },
	} {
		must(t, end(begin(t, s, []byte("x"))))
	}
	if after := descriptors(t); after != before {
		t.Errorf("descriptors: %d before, %d after the end of all uploads", before, after)
	}
}

func expectError(err error) error {
	if err == nil {
		return errors.New("got no error")
	}
	return nil
}

// TestSweepAfterKill sweeps what a killed process leaves: a staging file without a lock that nobody
// knows.
func TestSweepAfterKill(t *testing.T) {
	ctx, root := t.Context(), t.TempDir()
	staging := filepath.Join(root, "_staging")
	s := open(t, root)
	old := time.Now().Add(-48 * time.Hour)
	leave := func(name string, n int) {
		t.Helper()
		must(t, os.WriteFile(filepath.Join(staging, name), make([]byte, n), 0o600))
		must(t, os.Chtimes(filepath.Join(staging, name), old, old))
	}
	leave("AAAAAAAAAAAAAAAAAAAAAAAAAA", 100)
	leave("BBBBBBBBBBBBBBBBBBBBBBBBBB", 20)
	leave("not-ours", 7)
	young := suspend(t, begin(t, s, []byte("young")))
	claimed := suspend(t, begin(t, s, []byte("claimed")))
	must(t, os.Chtimes(filepath.Join(staging, claimed), old, old))
	// The upload is in use by another Store, as by another process, and has stalled for long.
	other := open(t, root)
	paused := suspend(t, begin(t, other, []byte("in use")))
	inUse, err := other.Resume(ctx, paused, 6)
	must(t, err)
	must(t, os.Chtimes(filepath.Join(staging, paused), old, old))

	n, size, err := s.SweepUploads(ctx, time.Now().Add(-24*time.Hour), func(state string) bool { return state == claimed })
	if n != 2 || size != 120 || err != nil {
		t.Errorf("SweepUploads: got %d, %d bytes, %v; want 2, 120, nil", n, size, err)
	}
	for _, name := range []string{"not-ours", young, claimed, paused} {
		if _, err := os.Lstat(filepath.Join(staging, name)); err != nil {
			t.Errorf("SweepUploads removed %s: %v", name, err)
		}
	}
	must(t, inUse.Commit(ctx, "x"))
	if got := read(t, s, "x"); string(got) != "in use" {
		t.Errorf("committed object: got %q", got)
	}
}

// TestResumeInUse checks that an upload has one writer. Two would write into each other's object.
func TestResumeInUse(t *testing.T) {
	ctx, root := t.Context(), t.TempDir()
	s, other := open(t, root), open(t, root)
	state := suspend(t, begin(t, s, []byte("12345")))
	u, err := s.Resume(ctx, state, 5)
	must(t, err)
	for name, s := range map[string]*fsstore.Store{"same store": s, "another": other} {
		if _, err := s.Resume(ctx, state, 1); err == nil || errors.Is(err, objstore.ErrNotExist) {
			t.Errorf("Resume of an upload in use by the %s: got error %v, want one that it is in use", name, err)
		}
	}
	must(t, u.Commit(ctx, "x"))
	if got := read(t, s, "x"); string(got) != "12345" {
		t.Errorf("committed object: got %q", got)
	}
	if _, err := other.Resume(ctx, state, 1); !errors.Is(err, objstore.ErrNotExist) {
		t.Errorf("Resume after Commit: got error %v, want ErrNotExist", err)
	}
}

// TestCommitSwept commits an upload whose staging file somebody else removed.
func TestCommitSwept(t *testing.T) {
	root := t.TempDir()
	s := open(t, root)
	u := begin(t, s, []byte("x"))
	files, err := filepath.Glob(filepath.Join(root, "_staging", "*"))
	must(t, err)
	if len(files) != 1 {
		t.Fatalf("staging files: %q, want one", files)
	}
	must(t, os.Remove(files[0]))
	if err := u.Commit(t.Context(), "a/b"); !errors.Is(err, objstore.ErrNotExist) {
		t.Errorf("Commit: got error %v, want ErrNotExist", err)
	}
	wantTree(t, root, "_staging/")
}

// TestReservedSpaceIsReturned checks that an object takes no more disk space than its bytes,
// however large it was announced.
func TestReservedSpaceIsReturned(t *testing.T) {
	root := t.TempDir()
	s := open(t, root)
	blocks := func(name string) int64 {
		t.Helper()
		var st unix.Stat_t
		must(t, unix.Stat(filepath.Join(root, name), &st))
		return st.Blocks * 512
	}
	u, err := s.NewUpload(t.Context(), 8<<20)
	must(t, err)
	_, err = u.Write(objtest.Content(1, 4096))
	must(t, err)
	files, err := filepath.Glob(filepath.Join(root, "_staging", "*"))
	must(t, err)
	if n := blocks("_staging/" + filepath.Base(files[0])); n < 8<<20 {
		t.Logf("the file system reserves nothing: %d bytes for 8 MiB announced", n)
	}
	must(t, u.Commit(t.Context(), "x"))
	if n := blocks("x"); n > 64<<10 {
		t.Errorf("object of 4096 bytes takes %d of the disk", n)
	}
}

// TestReservationFollows checks that an announced size reserves no more disk space than the arrived
// bytes warrant while the upload is open, and even less when it is not.
func TestReservationFollows(t *testing.T) {
	const slack = 64 << 10
	ctx, root := t.Context(), t.TempDir()
	s := open(t, root)
	u, err := s.NewUpload(ctx, 1<<30)
	must(t, err)
	check := func(when string, limit int64) {
		t.Helper()
		files, err := filepath.Glob(filepath.Join(root, "_staging", "*"))
		must(t, err)
		if len(files) != 1 {
			t.Fatalf("staging files: %q, want one", files)
		}
		var st unix.Stat_t
		must(t, unix.Stat(files[0], &st))
		if n := st.Blocks * 512; n > limit+slack {
			t.Errorf("%s: %d bytes of the disk are held, want at most %d", when, n, limit)
		}
	}
	write := func(data []byte) {
		t.Helper()
		_, err := u.Write(data)
		must(t, err)
	}
	write([]byte("x"))
	check("open with one byte", 8<<20)
	data := objtest.Content(1, 1<<20)
	for range 20 {
		write(data)
		check("open", max(u.Size()+8<<20, 2*u.Size()))
	}
	size := u.Size()
	state := suspend(t, u)
	check("suspended", size)
	u, err = s.Resume(ctx, state, 1)
	must(t, err)
	write(data)
	must(t, u.Commit(ctx, "x"))
	if got := read(t, s, "x"); !bytes.Equal(got, append([]byte("x"), data...)) {
		t.Error("upload that was suspended with a reservation has other bytes")
	}
}

// smallDisk mounts a tmpfs of the given bytes.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skipf("cannot mount a tmpfs, which needs root: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	return dir
}

func TestNoSpace(t *testing.T) {
	ctx, dir := t.Context(), smallDisk(t, "8m")
	s, err := fsstore.New(dir, nil)
	must(t, err)
	defer s.Close()
	ballast := objtest.Content(1, 5<<20)
	must(t, s.Put(ctx, "ballast", ballast, false))
	data := objtest.Content(2, 6<<20)

	// With a hint, the first byte shows the lack of room.
	u, err := s.NewUpload(ctx, int64(len(data)))
	must(t, err)
	n, err := u.Write(data[:10])
	if !errors.Is(err, objstore.ErrNoSpace) || n != 0 || u.Size() != 0 {
		t.Errorf("first Write of a too large upload: got %d, size %d, %v; want 0, 0, ErrNoSpace", n, u.Size(), err)
	}
	// The space of the attempt is returned.
	must(t, s.Put(ctx, "other", make([]byte, 2<<20), false))
	must(t, s.Delete(ctx, "other"))

	// Without a hint, some Write is cut short.
	v := begin(t, s, nil)
	for err = nil; err == nil && v.Size() < int64(len(data)); {
		before := v.Size()
		n, err = v.Write(data[before:min(before+100_000, int64(len(data)))])
		if v.Size() != before+int64(n) || err == nil && n == 0 {
			t.Fatalf("Write at %d: got %d, size %d, %v", before, n, v.Size(), err)
		}
	}
	if !errors.Is(err, objstore.ErrNoSpace) || v.Size() < 2<<20 {
		t.Fatalf("Write on a full disk: got size %d, %v; want about 3 MiB, ErrNoSpace", v.Size(), err)
	}
	if err := s.Put(ctx, "y", objtest.Content(3, 100_000), false); !errors.Is(err, objstore.ErrNoSpace) {
		t.Errorf("Put on a full disk: got error %v, want ErrNoSpace", err)
	}
	if got := read(t, s, "ballast"); !bytes.Equal(got, ballast) {
		t.Error("full disk harmed an object")
	}

	// Once there is room, both continue where they were.
	must(t, s.Delete(ctx, "ballast"))
	_, err = v.Write(data[v.Size():])
	must(t, err)
	must(t, v.Commit(ctx, "v"))
	if got := read(t, s, "v"); !bytes.Equal(got, data) {
		t.Error("upload that met a full disk has other bytes")
	}
	must(t, s.Delete(ctx, "v"))
	_, err = u.Write(data)
	must(t, err)
	must(t, u.Commit(ctx, "u"))
	if got := read(t, s, "u"); !bytes.Equal(got, data) {
		t.Error("upload that met a full disk at its first byte has other bytes")
	}
	wantTree(t, dir, "_staging/", "u")
}
