package treecmp_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"example.org/slipway/integration/internal/treecmp"
)

// build makes a tree with a bit of everything.
func build(dir string) error {
	in := func(name string) string { return filepath.Join(dir, name) }
	return errors.Join(
		os.MkdirAll(in("dir/sub"), 0o755),
		os.WriteFile(in("dir/file"), []byte(strings.Repeat("content", 50_000)), 0o644),
		os.Link(in("dir/file"), in("dir/link")),
		os.WriteFile(in("lone"), []byte("1234"), 0o644),
		os.Symlink("target", in("sym")),
		unix.Mkfifo(in("fifo"), 0o600),
		unix.Mknod(in("dev"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))),
		os.WriteFile(in("bytes\xff\n"), nil, 0o644),
		unix.Setxattr(in("lone"), "user.one", []byte("1"), 0),
		settle(dir),
	)
}

// settle gives everything the same time.
func settle(dir string) error {
	return filepath.WalkDir(dir, func(p string, _ os.DirEntry, err error) error {
		ts := unix.Timespec{Sec: 1e9, Nsec: 5}
		return errors.Join(err, unix.UtimesNanoAt(unix.AT_FDCWD, p, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW))
	})
}

func TestCompare(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	remake := func(name string, with func() error) error { return errors.Join(os.RemoveAll(name), with()) }
	tests := []struct {
		name   string
		change func(dir string) error
		want   []string
	}{
		{"nothing", func(string) error { return nil }, nil},
		{"content", func(d string) error { return os.WriteFile(d+"/lone", []byte("1294"), 0o644) },
			[]string{`"lone": content differs from byte 2 on`}},
		{"content behind", func(d string) error {
			f, err := os.OpenFile(d+"/dir/file", os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			_, err = f.WriteAt([]byte("?"), 300_000)
			return errors.Join(err, f.Close())
		}, []string{`"dir/file": content differs from byte 300000 on`}},
		{"size", func(d string) error { return os.Truncate(d+"/lone", 3) }, []string{`"lone": size is 4, other 3`}},
		{"mode", func(d string) error { return unix.Chmod(d+"/dir", 0o1755) }, []string{`"dir": mode is 0755, other 01755`}},
		{"owner", func(d string) error { return os.Lchown(d+"/sym", 1, 2) }, []string{`"sym": owner is 0:0, other 1:2`}},
		{"target", func(d string) error {
			return remake(d+"/sym", func() error { return os.Symlink("tarpit", d+"/sym") })
		}, []string{`"sym": target is "target", other "tarpit"`}},
		{"device", func(d string) error {
			return remake(d+"/dev", func() error { return unix.Mknod(d+"/dev", unix.S_IFCHR|0o600, int(unix.Mkdev(1, 5))) })
		}, []string{`"dev": device is 1:3, other 1:5`}},
		{"type", func(d string) error { return remake(d+"/fifo", func() error { return os.Mkdir(d+"/fifo", 0o600) }) },
			[]string{`"fifo": type is fifo, other directory`}},
		{"missing", func(d string) error { return os.Remove(d + "/bytes\xff\n") }, []string{`"bytes\xff\n": missing in the other`}},
		{"more", func(d string) error { return os.Mkdir(d+"/dir/sub/new", 0o755) },
			[]string{`"dir/sub/new": in the other only`}},
		{"link broken", func(d string) error {
			b, err := os.ReadFile(d + "/dir/link")
			return errors.Join(err, remake(d+"/dir/link", func() error { return os.WriteFile(d+"/dir/link", b, 0o644) }))
		}, []string{`"dir/link": links is one with dir/file, other one with dir/link`}},
		{"attributes", func(d string) error {
			return errors.Join(unix.Setxattr(d+"/lone", "user.one", []byte("2"), 0),
				unix.Lsetxattr(d+"/sym", "trusted.two", nil, 0), unix.Removexattr(d+"/lone", "user.none"))
		}, []string{`"lone": user.one is "1", other "2"`, `"sym": trusted.two is not there, other ""`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a, b := t.TempDir(), t.TempDir()
			if err := errors.Join(build(a), build(b)); err != nil {
				t.Fatal(err)
			}
			if err := tt.change(b); err != nil && !errors.Is(err, unix.ENODATA) {
				t.Fatal(err)
			}
			if err := settle(b); err != nil {
				t.Fatal(err)
			}
			got, err := treecmp.Compare(a, b, nil)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("differences (-want +got):\n%s", diff)
			}
		})
	}
}

// TestOptions changes every time, which is more than it needs to change.
func TestOptions(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	for i := range 10 {
		for _, dir := range []string{a, b} {
			if err := os.WriteFile(fmt.Sprintf("%s/%d", dir, i), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := settle(a); err != nil {
		t.Fatal(err)
	}
	got, err := treecmp.Compare(a, b, &treecmp.Options{Max: 3})
	if err != nil || len(got) != 4 || got[3] != "... and so on" {
		t.Errorf("with a bound: %q, %v", got, err)
	}
	if len(got) > 1 && !strings.HasPrefix(got[1], `"0": mtime is 1000000000.000000005, other `) {
		t.Errorf("second difference is %q", got[1])
	}
	if err := os.Remove(a + "/5"); err != nil {
		t.Fatal(err)
	}
	got, err = treecmp.Compare(a, b, &treecmp.Options{Ignore: func(path, aspect string) bool {
		return aspect == "mtime" || path == "5" && aspect == "path"
	}})
	if err != nil || len(got) != 0 {
		t.Errorf("without times: %q, %v", got, err)
	}
	if _, err := treecmp.Compare(a, b+"/none", nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("of a tree that does not exist: %v", err)
	}
}
