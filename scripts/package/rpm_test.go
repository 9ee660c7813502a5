package main

import (
	"crypto/sha256"
	"fmt"
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
