// Package command gets a registry's credential from a command, such as a command of a
// cloud provider.
package command

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"strings"
	"sync"
	"time"

	"example.org/slipway/oci/client"
	"example.org/slipway/oci/wire"
)

// Options say how a command gives a credential.
type Options struct {
	// Command is a program and its arguments. No shell is involved. The program gets the
	// host and a newline on its standard input, as Docker's credential helpers do
	// ("docker-credential-ecr-login get"). It writes the credential to its standard
	// output. The credential is either the JSON object of those helpers, with Username
	// and Secret, or only the password, on one line ("aws ecr get-login-password").
	Command []string
	// Username is the user name for a command that prints only a password, such as that
	// of AWS.
	Username string
	// Every is how long a credential is used before the command is run again. 0 means 6
	// h. The tokens of cloud registries are valid for 1 to 12 h.
	Every time.Duration
	// Timeout bounds a run of the command. 0 means 30 s.
	Timeout time.Duration
	// Clock returns the time. nil means time.Now.
	Clock func() time.Time
	// Logger gets the failures of the command after which an older credential is used.
	// nil discards them.
	Logger *slog.Logger
}

const (
	defaultEvery   = 6 * time.Hour
	defaultTimeout = 30 * time.Second
	// maxOutput bounds how many bytes a command may write.
	maxOutput = 64 << 10
	// pause is the pause after a failed run of the command if an earlier run gave
	// a credential. failedPause is the pause if there is no credential.
	pause       = time.Minute
	failedPause = 5 * time.Second
)

// Credential returns a client.CredentialFunc with the credential that a command prints
// for one host[:port], and nothing for any other host. The command is run when the
// credential is first needed, and again after o.Every. If a later run fails, the earlier
// credential is still used, and the command is tried again a minute later. The command's
// standard output never gets into errors or logs, but its standard error does. All
// callers that need the credential during a run share that run. The run goes on, up to
// its timeout, even if no caller waits any longer.
func Credential(host string, o Options) (client.CredentialFunc, error) {
	if len(o.Command) == 0 || o.Command[0] == "" {
		return nil, errors.New("the credential command is empty")
	}
	o.Every = cmp.Or(o.Every, defaultEvery)
	o.Timeout = cmp.Or(o.Timeout, defaultTimeout)
	if o.Clock == nil {
		o.Clock = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	c := &source{host: host, o: o}
	return c.credential, nil
}

// source is a command together with the result of its last run.
type source struct {
	host string
	o    Options

	mu    sync.Mutex // guards what follows
	last  client.Credential
	err   error         // error of the last run, if there is no credential
	again time.Time     // when to run the command again
	ended chan struct{} // closed when the run under way ends; nil if none is
}

func (c *source) credential(ctx context.Context, host string) (client.Credential, error) {
	if !strings.EqualFold(host, c.host) {
		return client.Credential{}, nil
	}
	c.mu.Lock()
	if c.ended == nil {
		if c.o.Clock().Before(c.again) {
			defer c.mu.Unlock()
			return c.last, c.err
		}
		if err := ctx.Err(); err != nil {
			c.mu.Unlock()
			return client.Credential{}, err
		}
		c.ended = make(chan struct{})
		go c.refresh(context.WithoutCancel(ctx))
	}
	ended := c.ended
	c.mu.Unlock()
	select {
	case <-ended:
	case <-ctx.Done():
		if context.Cause(ctx) == wire.ErrStalled { // the command has stalled, not the registry
			return client.Credential{}, fmt.Errorf("credential command %s for %s has not ended yet", c.o.Command[0], c.host)
		}
		return client.Credential{}, ctx.Err()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last, c.err
}

// refresh runs the command and notes the result.
func (c *source) refresh(ctx context.Context) {
	cr, err := c.run(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.ended)
	c.ended = nil
	switch now := c.o.Clock(); {
	case err == nil:
		c.last, c.err, c.again = cr, nil, now.Add(c.o.Every)
	case c.last != client.Credential{}:
		c.again = now.Add(pause)
		c.o.Logger.WarnContext(ctx, "credential command failed; the credential of its last run is used", "host", c.host, "err", err)
	default:
		c.err, c.again = err, now.Add(failedPause)
	}
}

// run runs the command.
func (c *source) run(ctx context.Context) (client.Credential, error) {
	ctx, cancel := context.WithTimeout(ctx, c.o.Timeout)
	defer cancel()
	out, stderr := &limitedBuffer{limit: maxOutput}, &limitedBuffer{limit: 500}
	cmd := exec.CommandContext(ctx, c.o.Command[0], c.o.Command[1:]...)
	cmd.Stdin = strings.NewReader(c.host + "\n")
	cmd.Stdout, cmd.Stderr = out, stderr
	cmd.WaitDelay = time.Second // a child may hold the pipes open
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		said := strings.TrimSpace(string(stderr.kept))
		if said == "" {
			said = "it wrote nothing to its standard error"
		}
		return client.Credential{}, fmt.Errorf("run credential command %s for %s: %w: %s", c.o.Command[0], c.host, err, said)
	}
	cr, err := parseCredential(out.kept, c.o.Username)
	if err != nil {
		return client.Credential{}, fmt.Errorf("credential command %s for %s: %w", c.o.Command[0], c.host, err)
	}
	return cr, nil
}

// parseCredential parses the output of a command. Its errors do not quote the output.
func parseCredential(b []byte, username string) (client.Credential, error) {
	b = bytes.TrimSpace(b)
	if len(b) == 0 {
		return client.Credential{}, errors.New("it printed nothing")
	}
	if b[0] != '{' {
		if bytes.ContainsAny(b, "\r\n\x00") {
			return client.Credential{}, errors.New("it printed more than one line")
		}
		if username == "" {
			return client.Credential{}, errors.New("it printed a password, and no user name is configured")
		}
		return client.Credential{Username: username, Password: string(b)}, nil
	}
	var helper struct{ Username, Secret string }
	if json.Unmarshal(b, &helper) != nil || helper.Secret == "" {
		return client.Credential{}, errors.New(`it printed no JSON object with "Username" and "Secret"`)
	}
	switch {
	case helper.Username == "<token>": // Docker's mark of an identity token
		return client.Credential{RefreshToken: helper.Secret}, nil
	case helper.Username != "":
		username = helper.Username
	case username == "":
		return client.Credential{}, errors.New("it printed no user name, and none is configured")
	}
	return client.Credential{Username: username, Password: helper.Secret}, nil
}

// limitedBuffer keeps the first bytes that are written to it. It does not embed a
// bytes.Buffer, because the ReadFrom of a bytes.Buffer would ignore the limit.
type limitedBuffer struct {
	kept  []byte
	limit int
}

// Write implements io.Writer.
func (b *limitedBuffer) Write(p []byte) (int, error) {
	b.kept = append(b.kept, p[:min(len(p), b.limit-len(b.kept))]...)
	return len(p), nil
}
