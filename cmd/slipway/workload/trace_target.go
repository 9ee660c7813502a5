package workload

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"example.org/slipway/cmd/slipway/command"
	"example.org/slipway/oci/client"
	"example.org/slipway/oci/client/wrongserver"
	"example.org/slipway/oci/wire"
	"example.org/slipway/workload/replay"
)

func (f *replayFlags) setTargets(ctx context.Context) error {
	password, err := command.ReadOptionalSecret(f.passwordFile)
	if err != nil {
		return err
	}
	common := replay.Target{Username: f.user, Password: password, Insecure: f.insecure, HTTP1: f.http1}
	for path, dst := range map[string]*[]byte{f.ca: &common.CA, f.cert: &common.Cert, f.key: &common.Key} {
		if path == "" {
			continue
		}
		if *dst, err = os.ReadFile(path); err != nil {
			return err
		}
	}
	names := map[string]bool{}
	for _, arg := range f.targets {
		t := common
		var named bool
		if t.Name, t.URL, named = strings.Cut(arg, "="); !named || strings.Contains(t.Name, "/") {
			t.URL, t.Name = arg, targetName(arg)
		}
		switch {
		case t.Name == "" || t.Name == "." || t.Name == ".." || strings.Contains(t.Name, "\\"):
			return errors.New("a target has no name, or one that no directory can have: use NAME=URL")
		case names[t.Name]:
			return command.Usagef("two targets have the name %s: use NAME=URL", t.Name)
		}
		names[t.Name] = true
		if err := t.Check(); err != nil {
			return err
		}
		if t.Username == "" && !f.noDocker && !f.dryRun {
			if err := dockerCredential(ctx, &t); err != nil {
				return err
			}
		}
		f.o.Targets = append(f.o.Targets, t)
	}
	if len(f.o.Targets) == 0 && !f.dryRun {
		return command.Usagef("name a registry with --target")
	}
	return nil
}

// reachTime bounds how long a check may take whether a target can be reached.
const reachTime = 10 * time.Second

// reach returns an error if this machine cannot reach a target. It checks nothing if
// there are workers, because then they send the requests. The replay finds all other
// problems.
func (f *replayFlags) reach(ctx context.Context) error {
	if len(f.o.Workers) > 0 {
		return nil
	}
	conf, err := wire.ClientTLS(f.ca, f.cert, f.key)
	if err != nil {
		return err
	}
	o := client.Options{Retries: -1, InsecureSkipVerify: f.insecure, RootCAs: conf.RootCAs, Certificates: conf.Certificates}
	for _, t := range f.o.Targets {
		c, err := client.New(t.URL, &o)
		if err != nil {
			return err
		}
		ask, cancel := context.WithTimeout(ctx, reachTime)
		err = c.Ping(ask)
		cancel()
		_ = c.Close() // no request is in progress
		if wrongserver.Unreachable(err) {
			return fmt.Errorf("target %s cannot be reached: %w", t.Name, err)
		}
	}
	return nil
}

// dockerCredential fills in the credential that Docker's configuration has for a target,
// if any.
func dockerCredential(ctx context.Context, t *replay.Target) error {
	u, err := url.Parse(t.URL)
	if err != nil {
		return err
	}
	ask, err := client.DockerCredential("")
	if err != nil {
		return err
	}
	c, err := ask(ctx, u.Host)
	if err != nil {
		return fmt.Errorf("credentials for target %s: %w; give them by --username and --password-file, or use --no-docker-config", t.Name, err)
	}
	t.Username, t.Password, t.IdentityToken, t.AccessToken = c.Username, c.Password, c.RefreshToken, c.AccessToken
	return nil
}

// targetName returns a name for a target that has none: its host and path. The name omits
// a password in the URL, because names appear in messages.
func targetName(raw string) string {
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" {
		return "without a name"
	}
	return strings.ReplaceAll(strings.TrimRight(u.Host+u.Path, "/"), "/", "_")
}
