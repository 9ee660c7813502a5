package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/credentials"

	"example.org/slipway/oci/wire"
)

// Credential is what a client shows to a registry or its token service. The zero value
// means none. A RefreshToken is exchanged for access tokens (OAuth2). An AccessToken is
// sent to the registry as it is.
type Credential struct {
	Username, Password string
	RefreshToken       string
	AccessToken        string
}

// CredentialFunc returns the credential for a registry, which is named host[:port]. It
// may be called concurrently.
type CredentialFunc func(ctx context.Context, host string) (Credential, error)

// credential returns the source of credentials that the options choose. nil means
// anonymous.
func credential(host string, o *Options) (auth.CredentialFunc, error) {
	ask := o.Credential
	switch {
	case ask != nil:
	case o.Username != "" || o.Password != "":
		ask = StaticCredential(host, o.Username, o.Password)
	case o.DockerConfig:
		var err error
		if ask, err = DockerCredential(""); err != nil {
			return nil, err
		}
	default:
		return nil, nil
	}
	return func(ctx context.Context, host string) (auth.Credential, error) {
		cr, err := ask(ctx, host)
		return auth.Credential(cr), err
	}, nil
}

// StaticCredential returns a CredentialFunc with a user name and password for one
// host[:port], and nothing for any other host. The host docker.io stands for
// registry-1.docker.io.
func StaticCredential(host, username, password string) CredentialFunc {
	host = APIHost(host)
	return func(_ context.Context, asked string) (Credential, error) {
		if !strings.EqualFold(asked, host) {
			return Credential{}, nil
		}
		return Credential{Username: username, Password: password}, nil
	}
}

// DockerCredential returns a CredentialFunc that takes credentials from Docker's
// configuration and the credential helpers that it names. file is the path of the
// configuration; "" means config.json in $DOCKER_CONFIG or ~/.docker. If the file changes
// it is read again. A file that is missing has no credentials.
func DockerCredential(file string) (CredentialFunc, error) {
	if file == "" {
		dir := os.Getenv("DOCKER_CONFIG")
		if dir == "" {
			home, err := os.UserHomeDir()
			if err != nil {
				return nil, fmt.Errorf("read docker credentials: %w", err)
			}
			dir = filepath.Join(home, ".docker")
		}
		file = filepath.Join(dir, "config.json")
	}
	d := &dockerConfig{file: file}
	if _, err := d.current(); err != nil {
		return nil, err
	}
	return d.credential, nil
}

// dockerConfig is a configuration file of Docker.
type dockerConfig struct {
	file string

	mu  sync.Mutex // guards what follows
	ask auth.CredentialFunc
	// changed and size are those of the file when it was read. They are zero if it was
	// missing.
	changed time.Time
	size    int64
}

func (d *dockerConfig) credential(ctx context.Context, host string) (Credential, error) {
	ask, err := d.current()
	if err != nil {
		return Credential{}, err
	}
	cr, err := ask(ctx, APIHost(host))
	return Credential(cr), err
}

// current returns the credentials of the file. It reads the file again if it has changed.
func (d *dockerConfig) current() (auth.CredentialFunc, error) {
	var changed time.Time
	var size int64
	if fi, err := os.Stat(d.file); err == nil {
		changed, size = fi.ModTime(), fi.Size()
	} else if !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("read docker credentials: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ask != nil && changed.Equal(d.changed) && size == d.size {
		return d.ask, nil
	}
	store, err := credentials.NewStore(d.file, credentials.StoreOptions{})
	if err != nil {
		return nil, fmt.Errorf("read docker credentials: %w", err)
	}
	d.ask, d.changed, d.size = credentials.Credential(store), changed, size
	return d.ask, nil
}

// CommandOptions say how a command gives a credential.
type CommandOptions struct {
	// Command is a program and its arguments. No shell is involved. The program gets the
	// host and a newline on its standard input, as Docker's credential helpers do
	// ("docker-credential-ecr-login get"). It writes the credential to its standard
	// output. That is the JSON object of those helpers, with Username and Secret, or only
	// the password, on one line ("aws ecr get-login-password").
	Command []string
	// Username is the user name for a password that comes without one, such as AWS.
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
	defaultCommandEvery   = 6 * time.Hour
	defaultCommandTimeout = 30 * time.Second
	// maxCommandOutput bounds how many bytes a command may write.
	maxCommandOutput = 64 << 10
	// commandPause is the pause after a failed run of the command if an earlier run gave
	// a credential. commandFailed is the pause if there is no credential.
	commandPause  = time.Minute
	commandFailed = 5 * time.Second
)

// CommandCredential returns a CredentialFunc with the credential that a command prints
// for one host[:port], and nothing for any other host. The command is run when the
// credential is first needed, and again after o.Every. If a later run fails, the earlier
// credential is still used, and the command is tried again a minute later. The command's
// standard output never gets into errors or logs, but its standard error does. All
// callers that come during a run share it. The run goes on, up to its timeout, even if no
// caller waits any longer.
func CommandCredential(host string, o CommandOptions) (CredentialFunc, error) {
	if len(o.Command) == 0 || o.Command[0] == "" {
		return nil, errors.New("the credential command is empty")
	}
	o.Every = orDefault(o.Every, defaultCommandEvery)
	o.Timeout = orDefault(o.Timeout, defaultCommandTimeout)
	if o.Clock == nil {
		o.Clock = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	c := &credentialCommand{host: host, o: o}
	return c.credential, nil
}

// credentialCommand is a command together with the result of its last run.
type credentialCommand struct {
	host string
	o    CommandOptions

	mu    sync.Mutex // guards what follows
	last  Credential
	err   error         // error of the last run, if there is no credential
	again time.Time     // when to run the command again
	ended chan struct{} // closed when the run under way ends; nil if none is
}

func (c *credentialCommand) credential(ctx context.Context, host string) (Credential, error) {
	if !strings.EqualFold(host, c.host) {
		return Credential{}, nil
	}
	c.mu.Lock()
	if c.ended == nil {
		if c.o.Clock().Before(c.again) {
			defer c.mu.Unlock()
			return c.last, c.err
		}
		if err := ctx.Err(); err != nil {
			c.mu.Unlock()
			return Credential{}, err
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
			return Credential{}, fmt.Errorf("credential command %s for %s has not ended yet", c.o.Command[0], c.host)
		}
		return Credential{}, ctx.Err()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last, c.err
}

// refresh runs the command and notes the result.
func (c *credentialCommand) refresh(ctx context.Context) {
	cr, err := c.run(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.ended)
	c.ended = nil
	switch now := c.o.Clock(); {
	case err == nil:
		c.last, c.err, c.again = cr, nil, now.Add(c.o.Every)
	case c.last != Credential{}:
		c.again = now.Add(commandPause)
		c.o.Logger.WarnContext(ctx, "credential command failed; the credential of its last run is used", "host", c.host, "err", err)
	default:
		c.err, c.again = err, now.Add(commandFailed)
	}
}

// run runs the command.
func (c *credentialCommand) run(ctx context.Context) (Credential, error) {
	ctx, cancel := context.WithTimeout(ctx, c.o.Timeout)
	defer cancel()
	out, stderr := &limitedBuffer{limit: maxCommandOutput}, &limitedBuffer{limit: 500}
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
		return Credential{}, fmt.Errorf("run credential command %s for %s: %w: %s", c.o.Command[0], c.host, err, said)
	}
	cr, err := parseCredential(out.kept, c.o.Username)
	if err != nil {
		return Credential{}, fmt.Errorf("credential command %s for %s: %w", c.o.Command[0], c.host, err)
	}
	return cr, nil
}

// parseCredential parses the output of a command. Its errors do not quote the output.
func parseCredential(b []byte, username string) (Credential, error) {
	b = bytes.TrimSpace(b)
	if len(b) == 0 {
		return Credential{}, errors.New("it printed nothing")
	}
	if b[0] != '{' {
		if bytes.ContainsAny(b, "\r\n\x00") {
			return Credential{}, errors.New("it printed more than one line")
		}
		if username == "" {
			return Credential{}, errors.New("it printed a password, and no user name is configured")
		}
		return Credential{Username: username, Password: string(b)}, nil
	}
	var helper struct{ Username, Secret string }
	if json.Unmarshal(b, &helper) != nil || helper.Secret == "" {
		return Credential{}, errors.New(`it printed no JSON object with "Username" and "Secret"`)
	}
	switch {
	case helper.Username == "<token>": // Docker's mark of an identity token
		return Credential{RefreshToken: helper.Secret}, nil
	case helper.Username != "":
		username = helper.Username
	case username == "":
		return Credential{}, errors.New("it printed no user name, and none is configured")
	}
	return Credential{Username: username, Password: helper.Secret}, nil
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
