package docs

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/tool"
)

// pageTimeout bounds the time of all blocks of a page. The drill starts servers a dozen times.
const pageTimeout = 4 * time.Minute

// atOnce is the number of pages that run at the same time. They mostly wait for servers, so it
// helps to run more than there are processors.
const atOnce = "3"

func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", atOnce); err != nil {
		panic(err)
	}
	m.Run()
}

// TestBlocks runs the shell blocks of each page as one script: what a block starts and sets is
// there for the next one. It lists the blocks that are not run, with their reasons.
func TestBlocks(t *testing.T) {
	tool.NeedRoot(t)
	for _, name := range []string{"unshare", "ip", "podman", "skopeo", "curl", "busybox", "htpasswd", "docker-registry", "runc", "python3", "openssl", "slapd", "ldapadd"} {
		tool.System(t, name)
	}
	binary := slipway.Binary(t)
	list, run, not := pages(t), 0, 0
	for _, p := range list {
		n, m := p.count()
		run, not = run+n, not+m
	}
	t.Logf("%d blocks of shell are run, %d are not", run, not)
	for _, p := range list {
		if n, m := p.count(); n+m > 0 {
			t.Run(strings.TrimSuffix(p.name, ".md"), func(t *testing.T) {
				p.tellNotRun(t)
				if n == 0 {
					return
				}
				t.Parallel()
				if err := p.run(t.Context(), tool.ShortTempDir(t), binary); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// tellNotRun logs the blocks that are not run.
func (p *page) tellNotRun(t *testing.T) {
	for _, b := range p.blocks {
		if why := b.notRun(); b.lang == "sh" && why != "" {
			t.Logf("%s:%d: not run: %s", p.name, b.line, why)
		}
	}
}

// run runs the shell blocks without a mark, in a sandbox in dir. An error means that the page is
// wrong.
func (p *page) run(ctx context.Context, dir, binary string) error {
	var run []block
	for _, b := range p.blocks {
		if b.lang == "sh" && b.notRun() == "" {
			run = append(run, b)
		}
	}
	script := filepath.Join(dir, "script")
	if err := os.Mkdir(script, 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(script, "page.sh"), []byte(pageScript(run)), 0o600); err != nil {
		return err
	}
	sandbox, err := filepath.Abs("sandbox.sh")
	if err != nil {
		return err
	}
	out, err := os.Create(filepath.Join(script, "out"))
	if err != nil {
		return err
	}
	defer out.Close()
	ctx, cancel := context.WithTimeout(ctx, pageTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "unshare", "--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "--kill-child",
		"bash", sandbox, dir, binary, tool.Dir())
	cmd.Stdout, cmd.Stderr = out, out // a file, so that no process that is left over keeps Run from returning
	if err = cmd.Run(); ctx.Err() != nil {
		err = fmt.Errorf("it took longer than %v: %w", pageTimeout, err)
	}
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", p.name, err, failure(script, p, run))
	}
	return nil
}

// pageScript makes one script from the blocks. Each block records that it has begun, and prints to
// its own file.
func pageScript(run []block) string {
	var s strings.Builder
	s.WriteString("set -eo pipefail\n")
	for i, b := range run {
		fmt.Fprintf(&s, "echo %d > /script/begun; exec > /script/block%d 2>&1\n%s", i, i, b.text)
	}
	return s.String()
}

// failure says which block failed, and what it printed.
func failure(script string, p *page, run []block) string {
	begun, err := os.ReadFile(filepath.Join(script, "begun"))
	i, _ := strconv.Atoi(strings.TrimSpace(string(begun)))
	if err != nil || i >= len(run) {
		out, _ := os.ReadFile(filepath.Join(script, "out"))
		return "no block was begun: " + string(out)
	}
	out, _ := os.ReadFile(filepath.Join(script, fmt.Sprintf("block%d", i)))
	return fmt.Sprintf("the block at %s:%d failed; mend it, or say above it why it is not run: <!-- not run: REASON -->\n%s\nIt printed:\n%s",
		p.name, run[i].line, run[i].text, tail(out))
}

// tail returns the end of a block's output.
func tail(b []byte) []byte {
	const most = 4 << 10
	if len(b) > most {
		b = b[len(b)-most:]
	}
	return b
}
