package rootfs_test

import (
	"archive/tar"
	"bytes"
	"cmp"
	"crypto/sha256"
	"errors"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"example.org/slipway/gear/rootfs"
)

// TestGNUTar compares a real tree with the archives that GNU tar makes of it.
func TestGNUTar(t *testing.T) {
	root := makeTree(t)
	want := walk(t, root)
	for _, tt := range []struct {
		name   string
		args   []string
		second bool // the archive holds times in whole seconds
	}{
		{"gnu", []string{"--format=gnu"}, true},
		{"gnu sparse", []string{"--format=gnu", "--sparse"}, true},
		{"pax", []string{"--format=pax"}, false},
		{"pax sparse 0.0", []string{"--format=pax", "--sparse", "--sparse-version=0.0"}, false},
		{"pax sparse 0.1", []string{"--format=pax", "--sparse", "--sparse-version=0.1"}, false},
		{"pax sparse 1.0", []string{"--format=pax", "--sparse", "--sparse-version=1.0"}, false},
		{"gzip", []string{"--format=pax", "--gzip"}, false},
		{"absolute", []string{"--format=pax", "--transform=s,^\\./,/,"}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			args := append(tt.args, "--numeric-owner", "--sort=name", "-C", root, "-cf", "-", ".")
			layer, err := exec.Command("tar", args...).Output()
			if err != nil {
				t.Fatal(err)
			}
			got, sums := read(t, layer, nil)
			slices.SortFunc(got, func(a, b member) int { return cmp.Compare(a.Path, b.Path) })
			want := slices.Clone(want)
			for i := range want {
				if tt.second {
					want[i].Nsec = 0
				}
			}
			if diff := gocmp.Diff(want, got); diff != "" {
				t.Errorf("entries (-tree +archive):\n%s", diff)
			}
			if sums.Digest != sha256.Sum256(layer) {
				t.Errorf("got digest %x", sums.Digest)
			}
			if sums.Compression == rootfs.Plain {
				compareWithTar(t, layer)
			}
		})
	}
}

// makeTree makes a tree of everything that a test can create without privileges.
func makeTree(t *testing.T) string {
	root := t.TempDir()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	at := func(name string) string { return filepath.Join(root, name) }
	long := strings.Repeat("a long directory name/", 12)
	check(os.MkdirAll(at(long), 0o755))
	check(os.WriteFile(at(long+"file"), []byte("deep"), 0o600))
	check(os.Symlink(long+"nowhere", at("long link")))
	check(os.WriteFile(at("caf\xe9"), []byte(noise(100_000)), 0o644))
	check(os.WriteFile(at("empty"), nil, 0o444))
	check(os.Link(at("caf\xe9"), at("hard link")))
	check(syscall.Mkfifo(at("pipe"), 0o620))
	f, err := os.Create(at("sparse"))
	check(err)
	for i := range int64(40) { // more extents than fit in a GNU header
		_, err = f.WriteAt([]byte(noise(5000)), i<<16)
		check(err)
	}
	check(f.Truncate(41<<16 + 3))
	check(f.Close())
	check(os.Chmod(at("empty"), 0o755|os.ModeSetuid))
	check(filepath.WalkDir(root, func(p string, d os.DirEntry, err error) error {
		if err != nil || d.Type()&os.ModeSymlink != 0 {
			return err
		}
		return os.Chtimes(p, time.Time{}, time.Unix(1234567890, 987654321))
	}))
	check(os.Chtimes(at("empty"), time.Time{}, time.Unix(-5, 250)))
	return root
}

// walk returns the tree as a layer should hold it, sorted by path.
func walk(t *testing.T, root string) []member {
	var list []member
	first := map[uint64]string{} // inode to the first of its names
	err := filepath.WalkDir(root, func(p string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st syscall.Stat_t
		if err := syscall.Lstat(p, &st); err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		m := member{Entry: rootfs.Entry{Path: rel, Mode: st.Mode & 0o7777, UID: st.Uid, GID: st.Gid, Sec: st.Mtim.Sec, Nsec: uint32(st.Mtim.Nsec)}}
		switch st.Mode & syscall.S_IFMT {
		case syscall.S_IFDIR:
			m.Type = rootfs.Dir
		case syscall.S_IFIFO:
			m.Type = rootfs.Fifo
		case syscall.S_IFLNK:
			m.Type = rootfs.Symlink
			m.Link, err = os.Readlink(p)
		default:
			if to, ok := first[st.Ino]; ok {
				m.Type, m.Link = rootfs.HardLink, to
				break
			}
			first[st.Ino] = rel
			m.Type, m.Size = rootfs.File, st.Size
			var b []byte
			b, err = os.ReadFile(p)
			m.Sum = sha256.Sum256(b)
		}
		list = append(list, m)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(list, func(a, b member) int { return cmp.Compare(a.Path, b.Path) })
	return list
}

// compareWithTar reads an archive without whiteouts with archive/tar alone and compares.
func compareWithTar(t *testing.T, layer []byte) {
	t.Helper()
	r := open(t, layer, nil)
	for tr := tar.NewReader(bytes.NewReader(layer)); ; {
		h, err := tr.Next()
		e, got := r.Next()
		if err == io.EOF && got == io.EOF {
			return
		}
		if err := errors.Join(err, got); err != nil {
			t.Fatalf("archive/tar and rootfs differ: %v", err)
		}
		if want := path.Join("/", h.Name); path.Join("/", e.Path) != want || e.Type == rootfs.File && e.Size != h.Size {
			t.Errorf("got %+v, want %+v", e, h)
		}
		want, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(r); err != nil || !bytes.Equal(b, want) {
			t.Errorf("content of %s: %v, got %d bytes, want %d", e.Path, err, len(b), len(want))
		}
	}
}

// TestGNUTarAttributes has GNU tar store the extended attributes that the file system
// lets a test set.
func TestGNUTarAttributes(t *testing.T) {
	root := t.TempDir()
	file := filepath.Join(root, "f")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	want := []rootfs.Xattr{{Name: "user.bin", Value: "\x00\xff\n=\x00"}, {Name: "user.mime_type", Value: "text/plain"}}
	for _, x := range want {
		if err := syscall.Setxattr(file, x.Name, []byte(x.Value), 0); errors.Is(err, syscall.ENOTSUP) {
			t.Skip("the file system of the temporary directory has no user attributes")
		} else if err != nil {
			t.Fatal(err)
		}
	}
	layer, err := exec.Command("tar", "--format=pax", "--xattrs", "-C", root, "-cf", "-", "f").Output()
	if err != nil {
		t.Fatal(err)
	}
	list, _ := read(t, layer, nil)
	if len(list) != 1 {
		t.Fatalf("got %d entries, want 1", len(list))
	}
	if diff := gocmp.Diff(want, list[0].Xattrs); diff != "" {
		t.Errorf("attributes (-want +got):\n%s", diff)
	}
}
