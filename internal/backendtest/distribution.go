package backendtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Distribution starts Distribution's registry, as packaged by Debian, on an empty
// directory and returns its address, HOST:PORT. more is added to its configuration.
func Distribution(t testing.TB, more string) string {
	t.Helper()
	path := tool(t, "docker-registry")
	dir := shortDir(t)
	addr := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	config := fmt.Sprintf("version: 0.1\nlog:\n  level: error\nstorage:\n  delete:\n    enabled: true\n  filesystem:\n    rootdirectory: %s\nhttp:\n  addr: %s\n%s",
		filepath.Join(dir, "data"), addr, more)
	file := filepath.Join(dir, "config.yml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	start(t, dir, func() *exec.Cmd { return exec.Command(path, "serve", file) }, answers("tcp", addr))
	return addr
}
