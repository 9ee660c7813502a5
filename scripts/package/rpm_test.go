package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestRPM reads the packages with rpm: what they are, what they install and for whom, and
// which scripts they run.
func TestRPM(t *testing.T) {
	if _, err := exec.LookPath("rpm"); err != nil {
		t.Skipf("rpm is not installed: %v", err)
	}
	r := inputs(t)
	if err := r.make([]string{"rpm"}); err != nil {
		t.Fatal(err)
	}
	for arch, want := range map[string]string{"amd64": "x86_64", "arm64": "aarch64"} {
		file := filepath.Join(r.out, "slipway-1.2.3-1."+want+".rpm")
		rpm := func(args ...string) string {
			t.Helper()
			out, err := exec.Command("rpm", append(args, file)...).CombinedOutput()
			if err != nil {
				t.Fatalf("rpm %v: %v\n%s", args, err, out)
			}
			return string(out)
		}
		if got := rpm("-qp", "--qf", "%{NAME} %{VERSION} %{RELEASE} %{ARCH} %{LICENSE} %{BUILDTIME}"); got != "slipway 1.2.3 1 "+want+" Apache-2.0 1700000000" {
			t.Errorf("rpm says %q", got)
		}
		if got := rpm("-K", "--nosignature"); !strings.Contains(got, "digests OK") {
			t.Errorf("the digests: %s", got)
		}
		dump := rpm("-qp", "--dump")
		for name, fields := range map[string]string{
			"/usr/bin/slipway":        fmt.Sprintf("%x 0100755 root root", sha256.Sum256(read(t, r.binary(arch)))),
			"/etc/slipway/config.yml": "0100640 root slipway 1", "/etc/slipway/agent.yml": "0100600 root root 1", "/etc/slipway": "040750 root slipway",
			"/usr/lib/systemd/system/slipway.service": "0100644 root root 0", "/usr/share/zsh/site-functions/_slipway": "0100644 root root 0",
		} {
			line := ""
			for l := range strings.Lines(dump) {
				if strings.HasPrefix(l, name+" ") {
					line = l
				}
			}
			if !strings.Contains(line, fields) {
				t.Errorf("%s: got %q, want %q in it", name, line, fields)
			}
		}
		for _, foreign := range []string{"\n/usr ", "\n/usr/bin ", "\n/etc ", "lintian"} {
			if strings.Contains("\n"+dump, foreign) {
				t.Errorf("the package has %q", foreign)
			}
		}
		scripts := rpm("-qp", "--scripts")
		for _, kind := range []string{"preinstall", "postinstall", "preuninstall", "postuninstall"} {
			if !strings.Contains(scripts, kind+" scriptlet") {
				t.Errorf("there is no %s script", kind)
			}
		}
		if got := rpm("-qp", "--configfiles"); strings.Count(got, "/etc/slipway/") != 2 {
			t.Errorf("configuration: %s", got)
		}
	}
}

// TestDirectoriesOfOthersStay runs what the packages' scripts do with the server's
// directories. Directories that belong to somebody stay as they are, also behind a link that
// root has made.
func TestDirectoriesOfOthersStay(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can give a directory to somebody else")
	}
	t.Chdir("../..")
	dir := t.TempDir()
	for name, uid := range map[string]int{"mine": 0, "theirs": 12345} {
		if err := errors.Join(os.Mkdir(filepath.Join(dir, name), 0o755), os.Chown(filepath.Join(dir, name), uid, uid),
			os.Symlink(name, filepath.Join(dir, "link-to-"+name))); err != nil {
			t.Fatal(err)
		}
	}
	// Nobody has recorded an override.
	if err := os.WriteFile(filepath.Join(dir, "dpkg-statoverride"), []byte("#!/bin/sh\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, script := range []string{rpmDir + "/postin", debianDir + "/postinst"} {
		text := string(read(t, script))
		_, function, ok := strings.Cut(text, "\nown() {\n")
		function, _, closed := strings.Cut(function, "\n}\n")
		if !ok || !closed {
			t.Fatalf("%s has no function own", script)
		}
		for name, changes := range map[string]bool{"mine": true, "link-to-mine": true, "theirs": false, "link-to-theirs": false} {
			sh := "chown() { echo chown; }\nchmod() { echo chmod; }\nown() {\n" + function + "\n}\nown " + filepath.Join(dir, name) + " 0700 slipway slipway"
			cmd := exec.Command("sh", "-ec", sh)
			cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
			out, err := cmd.CombinedOutput()
			if err != nil || (len(out) > 0) != changes {
				t.Errorf("%s, %s: got %q, %v, want changes: %t", script, name, out, err, changes)
			}
		}
	}
}
