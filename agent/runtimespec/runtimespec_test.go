package runtimespec

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// imageRoot makes the tree of an image with the given files in etc.
func imageRoot(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(root, "etc", name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestUser(t *testing.T) {
	root := imageRoot(t, map[string]string{
		"passwd": "root:x:0:0:root:/root:/bin/sh\n\nbroken\nwww:x:33:34::/:\nodd:x:many:0::/:\n",
		"group":  "root:x:0:\nstaff:x:50:www\nother:x:51:wwwx,xwww\nlast:x:52:odd,www\n",
	})
	// As docker run does: without a group, or with an empty one, the user has all of its groups.
	www := specs.User{UID: 33, GID: 34, AdditionalGids: []uint32{50, 52}}
	for in, want := range map[string]specs.User{
		"": {}, ":": {}, "0": {}, "www": www, "33": www, "www:": www, "33:": www, "1000": {UID: 1000}, "1000:": {UID: 1000}, ":staff": {GID: 50}, ":77": {GID: 77}, "www:staff": {UID: 33, GID: 50}, "1000:77": {UID: 1000, GID: 77},
	} {
		if got, err := userOf(root, in); err != nil || cmp.Diff(want, got) != "" {
			t.Errorf("user %q is %+v, error %v, want %+v", in, got, err, want)
		}
	}
	for _, in := range []string{"nobody", "www:wheel", "odd", "-1", "4294967296", ":wheel", "nobody:"} {
		if got, err := userOf(root, in); err == nil {
			t.Errorf("user %q is %+v", in, got)
		}
	}
	if got, err := userOf(t.TempDir(), "12:13"); err != nil || got.UID != 12 || got.GID != 13 {
		t.Errorf("numbers in an image without /etc are %+v, error %v", got, err)
	}
}

// TestUserStaysInside uses an image whose passwd is not a regular file of the image.
func TestUserStaysInside(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "passwd")
	if err := os.WriteFile(outside, []byte("evil:x:0:0::/:\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"absolute": outside, "relative": "../../../../../../../.." + outside, "proc": "/proc/self/root" + outside, "itself": "passwd"} {
		root := imageRoot(t, nil)
		if err := os.Symlink(target, filepath.Join(root, "etc", "passwd")); err != nil {
			t.Fatal(err)
		}
		if got, err := userOf(root, "evil"); err == nil {
			t.Errorf("%s link: the user of another file is taken: %+v", name, got)
		}
	}
	root := imageRoot(t, map[string]string{"real": "www:x:33:34::/:\n"})
	if err := os.Symlink("/etc/real", filepath.Join(root, "etc", "passwd")); err != nil {
		t.Fatal(err)
	}
	if got, err := userOf(root, "www"); err != nil || got.UID != 33 {
		t.Errorf("a link within the image: %+v, error %v", got, err)
	}
	root = imageRoot(t, nil)
	if err := os.Mkdir(filepath.Join(root, "etc", "passwd"), 0o755); err != nil {
		t.Fatal(err)
	}
	if got, err := userOf(root, "www"); err == nil {
		t.Errorf("a directory for a passwd: %+v", got)
	}
}

func TestRuntimeSpec(t *testing.T) {
	root := imageRoot(t, map[string]string{"passwd": "www:x:33:34::/:\n"})
	image := []byte(`{"config":{"Entrypoint":["/bin/app"],"Cmd":["serve"],"Env":["A=1"],"User":"www","WorkingDir":"/srv"}}`)
	s, err := New(image, Options{Root: root, Env: []string{"B=2"}})
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(s.Process.Args, " "); got != "/bin/app serve" || s.Process.Cwd != "/srv" || s.Process.User.UID != 33 || s.Process.NoNewPrivileges {
		t.Errorf("process %+v", s.Process)
	}
	if got := strings.Join(s.Process.Env[1:], " "); got != "A=1 B=2" {
		t.Errorf("environment %q", s.Process.Env)
	}
	network := func(s *specs.Spec) bool {
		for _, n := range s.Linux.Namespaces {
			if n.Type == specs.NetworkNamespace {
				return true
			}
		}
		return false
	}
	if !network(s) {
		t.Error("the container has the machine's network unasked")
	}
	s, err = New(image, Options{Root: root, Command: []string{"other"}, WorkingDir: "/w", HostNetwork: true})
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(s.Process.Args, " "); got != "/bin/app other" || s.Process.Cwd != "/w" || network(s) {
		t.Errorf("process %+v", s.Process)
	}
	for dir, want := range map[string]string{"": "/", "srv/app": "/srv/app", "./srv": "/srv", "../srv/../x": "/x", "/a//b/": "/a/b"} {
		s, err := New(fmt.Appendf(nil, `{"config":{"Cmd":["x"],"WorkingDir":%q}}`, dir), Options{Root: root})
		if err != nil || s.Process.Cwd != want {
			t.Errorf("the working directory %q is %q, want %q: %v", dir, s.Process.Cwd, want, err)
		}
	}
	for _, bad := range []string{"", "{", `{}`, `{"config":{"Cmd":["x"],"User":"nobody"}}`} {
		if _, err := New([]byte(bad), Options{Root: root}); err == nil {
			t.Errorf("configuration %q is accepted", bad)
		}
	}
}
