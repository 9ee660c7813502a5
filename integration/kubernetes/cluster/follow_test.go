package cluster

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"example.org/slipway/integration/internal/tool"
)

// root is the module's root.
const root = "../../.."

// block returns the block of a page that contains a text. No other block may contain it.
func block(t *testing.T, page, text string) (found string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, "docs", page))
	if err != nil {
		t.Fatal(err)
	}
	for i, part := range strings.Split("\n"+string(b), "\n```") {
		_, body, _ := strings.Cut(part, "\n") // behind the language
		if i%2 == 0 || !strings.Contains(body, text) {
			continue
		}
		if found != "" {
			t.Fatalf("%s has more than one block with %q", page, text)
		}
		found = body + "\n"
	}
	if found == "" {
		t.Fatalf("%s has no block with %q", page, text)
	}
	return found
}

// follower follows pages like somebody whose registry is called differently, and whose helm has to be
// told that it speaks HTTP.
type follower struct {
	c   *cluster
	env *tool.Env
}

func (c *cluster) follower() *follower {
	c.t.Helper()
	dir := c.t.TempDir()
	f := &follower{c, tool.NewEnv(dir, "KUBECONFIG="+c.plane.Kubeconfig("admin"), "PATH="+dir+"/bin:"+tool.Dir()+":/usr/sbin:/usr/bin:/sbin:/bin",
		"REGISTRY_AUTH_FILE="+dir+"/.docker/config.json")}
	for _, d := range []string{"bin", ".docker", ".config/containers"} {
		c.check(os.MkdirAll(filepath.Join(dir, d), 0o755))
	}
	write := func(name, text string, mode fs.FileMode) {
		c.check(os.WriteFile(filepath.Join(dir, name), []byte(text), mode))
	}
	write("bin/helm", fmt.Sprintf("#!/bin/sh\ncase \" $* \" in *\" oci://\"*) set -- \"$@\" --plain-http ;; esac\nexec %s \"$@\"\n", tool.Built(c.t, "helm")), 0o755)
	write(".config/containers/registries.conf", fmt.Sprintf("[[registry]]\nlocation = %q\ninsecure = true\n", c.registry.Addr), 0o600)
	write(".docker/config.json", fmt.Sprintf(`{"auths": {%q: {"auth": "cm9vdDpzZWNyZXQ="}}}`, c.registry.Addr), 0o600) // root:secret
	return f
}

// follow runs a block of commands, with pairs of texts that a reader would replace, and returns what
// it printed.
func (f *follower) follow(page, text string, replace ...string) string {
	f.c.t.Helper()
	return f.env.Run(f.c.t, "bash", "-euc", f.text(page, text, replace...))
}

// text returns a block as it is for the registry of the cluster.
func (f *follower) text(page, text string, replace ...string) string {
	f.c.t.Helper()
	replace = append(replace, "registry.example.com/", f.c.ref("public/"), "[registry.example.com]", fmt.Sprintf("[%q]", f.c.registry.Addr))
	return strings.NewReplacer(replace...).Replace(block(f.c.t, page, text))
}

func (f *follower) path(name string) string { return filepath.Join(f.env.Dir(), name) }

// These are the versions that the page names: a release and the one after it.
const (
	release = "0.2.0"
	next    = "0.2.1"
)

// charts packs the chart with two versions, and pushes both.
func (f *follower) charts() {
	f.c.t.Helper()
	for _, version := range []string{release, next} {
		f.chart(ownChart(f.c.t), version)
	}
}

// chart packs a chart as a version and pushes it.
func (f *follower) chart(source, version string) {
	t := f.c.t
	t.Helper()
	f.env.Run(t, f.path("bin/helm"), "package", source, "--version", version, "--app-version", version, "--destination", f.env.Dir())
	f.env.Run(t, f.path("bin/helm"), "push", f.path("slipway-"+version+".tgz"), "oci://"+f.c.ref("public/charts"))
}

// ownChart returns the directory of the chart.
func ownChart(t *testing.T) string { return abs(t, filepath.Join(root, "deploy", "helm", "slipway")) }

func abs(t *testing.T, path string) string {
	t.Helper()
	full, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return full
}
