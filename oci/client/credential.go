package client

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/credentials"
)

// Credential is what a client shows to a registry or its token service. The zero value means
// none. A RefreshToken is exchanged for access tokens (OAuth2). An AccessToken is sent as it is.
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

// DockerCredential returns a CredentialFunc that takes credentials from Docker's configuration
// and the credential helpers that it names. file is its path; "" means config.json in
// $DOCKER_CONFIG or ~/.docker, and for registries that have no credential there, the files of
// podman and skopeo. Changed files are read again. Files that are missing have no credentials.
func DockerCredential(file string) (CredentialFunc, error) {
	files := []string{file}
	if file == "" {
		docker, err := dockerFile("")
		if err != nil {
			return nil, err
		}
		files = []string{docker}
		files = append(files, podmanFiles()...)
	}
	var all []*dockerConfig
	for _, file := range files {
		d := &dockerConfig{file: file}
		if _, err := d.current(); err != nil {
			return nil, err
		}
		all = append(all, d)
	}
	return func(ctx context.Context, host string) (cr Credential, err error) {
		for _, d := range all {
			if cr, err = d.credential(ctx, host); err != nil || cr != (Credential{}) {
				break
			}
		}
		return cr, err
	}, nil
}

// podmanFiles returns the files in which podman and skopeo keep credentials, until the next
// boot and for longer; see containers-auth.json(5).
func podmanFiles() []string {
	if file := os.Getenv("REGISTRY_AUTH_FILE"); file != "" {
		return []string{file}
	}
	files := []string{fmt.Sprintf("/run/containers/%d/auth.json", os.Getuid())}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		files[0] = filepath.Join(dir, "containers", "auth.json")
	}
	if dir, err := os.UserConfigDir(); err == nil {
		files = append(files, filepath.Join(dir, "containers", "auth.json"))
	}
	// After su, $XDG_RUNTIME_DIR may be that of another user.
	return slices.DeleteFunc(files, func(f string) bool { _, err := os.Stat(f); return errors.Is(err, os.ErrPermission) })
}

// dockerFile returns the path of Docker's configuration, unless another one is named.
func dockerFile(file string) (string, error) {
	if file != "" {
		return file, nil
	}
	dir := os.Getenv("DOCKER_CONFIG")
	if dir == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("find docker's credentials: %w", err)
		}
		dir = filepath.Join(home, ".docker")
	}
	return filepath.Join(dir, "config.json"), nil
}

// DockerLogin keeps a credential for a registry, named host[:port], where
// DockerCredential finds it: in the credential helper that the file names, or in the file
// itself. file is as in DockerCredential. It returns the path of the file.
func DockerLogin(ctx context.Context, file, host string, cr Credential) (string, error) {
	return changeDocker(file, func(s credentials.Store) error { return s.Put(ctx, dockerServer(host), auth.Credential(cr)) })
}

// DockerLogout removes the credential for a registry. It is no error if there is none.
func DockerLogout(ctx context.Context, file, host string) (string, error) {
	return changeDocker(file, func(s credentials.Store) error { return s.Delete(ctx, dockerServer(host)) })
}

func changeDocker(file string, change func(credentials.Store) error) (string, error) {
	file, err := dockerFile(file)
	if err != nil {
		return "", err
	}
	store, err := credentials.NewStore(file, credentials.StoreOptions{AllowPlaintextPut: true})
	if err == nil {
		err = change(store)
	}
	if err != nil {
		return "", fmt.Errorf("change docker's credentials: %w", err)
	}
	return file, nil
}

// dockerServer returns the name that Docker's configuration has for a registry.
func dockerServer(host string) string { return credentials.ServerAddressFromHostname(APIHost(host)) }

// dockerConfig is a configuration file of Docker.
type dockerConfig struct {
	file string

	mu  sync.Mutex // guards what follows
	ask auth.CredentialFunc
	// changed is the modification time of the file when it was read, and size is its
	// size. They are zero if the file was missing.
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
