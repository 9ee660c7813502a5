package daemon

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"example.org/slipway/integration/internal/proc"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/tool"
)

const distributionConfig = `version: 0.1
log: {level: error, accesslog: {disabled: true}}
storage:
  filesystem: {rootdirectory: %q}
http: {addr: %q}
`

// StartDistribution starts the Distribution registry that Debian packages as docker-registry, and
// returns its address. This registry does not know Slipway's additions to the protocol.
func StartDistribution(t testing.TB) string {
	t.Helper()
	program := tool.System(t, "docker-registry")
	dir, addr := newDir(t), slipway.FreeAddr(t)
	config := filepath.Join(dir, "config.yml")
	text := fmt.Sprintf(distributionConfig, filepath.Join(dir, "data"), addr)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p := proc.Start(t, exec.Command(program, "serve", config), filepath.Join(dir, "log"))
	proc.Poll(t, startTimeout, "docker-registry to serve", func() bool {
		select {
		case <-p.Exited():
			t.Fatalf("docker-registry ended: %s\n%s", p.State(), p.Log(8192))
		default:
		}
		resp, err := http.Get("http://" + addr + "/v2/")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	return addr
}
