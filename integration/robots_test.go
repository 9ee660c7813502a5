package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"example.org/slipway/integration/internal/daemon"
	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/tool"
)

// robotBed starts a server where everybody may pull public/**, with the built-in token
// service, and returns the token of a robot that may pull and push team/**. run runs a
// command of administration.
func robotBed(t *testing.T) (s *slipway.Server, token string, run func(args ...string) string) {
	t.Helper()
	dir := t.TempDir()
	root := filepath.Join(dir, "root")
	config := fmt.Sprintf(`version: 0.1
storage: {filesystem: {rootdirectory: %q}}
log: {audit: {file: %q}}
auth:
  robots: true
  access: [{repositories: ["public/**"], subjects: [anonymous], actions: [pull]}]
`, root, filepath.Join(dir, "audit.log"))
	file := filepath.Join(dir, "config.yml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	s = slipway.Start(t, root, &slipway.Options{Config: config})
	run = func(args ...string) string {
		t.Helper()
		out, err := slipway.Command(t, append(args, "--config", file)...)
		if err != nil {
			t.Fatalf("slipway %v: %v\n%s", args, err, out)
		}
		return out
	}
	for line := range strings.Lines(run("token", "create", "ci", "--allow", "team/**=pull,push")) {
		if strings.HasPrefix(line, "slipway_") {
			token = strings.TrimSpace(line)
		}
	}
	if token == "" {
		t.Fatal("slipway token create printed no token")
	}
	return s, token, run
}

// TestRobotsOfClients logs robots in with clients that people use, and revokes their token.
func TestRobotsOfClients(t *testing.T) {
	im := imagetest.Hello(t)
	for name, login := range map[string]func(t *testing.T, addr, token string) (push, pull func(repo string) error){
		"skopeo": func(t *testing.T, addr, token string) (push, pull func(string) error) {
			k := newSkopeo(t)
			k.env.Run(t, k.path, "login", "--tls-verify=false", "-u", "ci", "-p", token, addr)
			layout := "oci:" + writeImage(t, &im.Bundle) + ":t"
			try := func(from, to string) error {
				_, err := k.env.Try(t.Context(), k.path, k.copyArgs(from, to)...)
				return err
			}
			return func(repo string) error { return try(layout, "docker://"+addr+"/"+repo) },
				func(repo string) error {
					return try("docker://"+addr+"/"+repo, "oci:"+filepath.Join(t.TempDir(), "l")+":t")
				}
		},
		"crane": func(t *testing.T, addr, token string) (push, pull func(string) error) {
			crane, env := tool.Built(t, "crane"), tool.NewEnv(t.TempDir())
			env.Run(t, crane, "auth", "login", "-u", "ci", "-p", token, addr)
			layout := writeImage(t, &im.Bundle)
			try := func(args ...string) error {
				_, err := env.Try(t.Context(), crane, append([]string{"--insecure"}, args...)...)
				return err
			}
			return func(repo string) error { return try("push", layout, addr+"/"+repo) },
				func(repo string) error { return try("validate", "--remote", addr+"/"+repo) }
		},
		"docker": func(t *testing.T, addr, token string) (push, pull func(string) error) {
			d := daemon.StartDocker(t)
			d.Run(t, "login", "-u", "ci", "-p", token, addr)
			archive := filepath.Join(t.TempDir(), "image.tar")
			im.WriteDockerArchive(t, archive, "hello:1")
			d.Run(t, "load", "-i", archive)
			try := func(args ...string) error {
				_, err := d.Try(t.Context(), args...)
				return err
			}
			return func(repo string) error {
					d.Run(t, "tag", "hello:1", addr+"/"+repo)
					return try("push", "-q", addr+"/"+repo)
				}, func(repo string) error {
					return try("pull", "-q", addr+"/"+repo)
				}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, token, run := robotBed(t)
			push, pull := login(t, s.Addr, token)
			if err := push("team/app:1"); err != nil {
				t.Errorf("push what the token permits: %v", err)
			}
			if err := pull("team/app:1"); err != nil {
				t.Errorf("pull what the token permits: %v", err)
			}
			if err := push("other/app:1"); err == nil {
				t.Error("pushed what the token does not permit")
			}
			run("token", "revoke", "ci")
			if err := pull("team/app:1"); err == nil {
				t.Error("pulled with a token that was revoked")
			}
		})
	}
}
