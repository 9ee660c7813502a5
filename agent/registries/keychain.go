package registries

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"

	"example.org/slipway/internal/durable"
	"example.org/slipway/oci/client"
)

// maxKeys bounds how many credentials are kept. Each belongs to one repository.
const maxKeys = 4096

// Keychain holds, by repository, the credentials that images were pulled with.
// containerd's callers supply them. They are kept in a file that only root can read, so that an
// agent that restarts continues to fetch. If the file is on a tmpfs, a reboot forgets them.
type Keychain struct {
	file string

	mu    sync.Mutex
	keys  map[string]client.Credential
	order []string // the oldest first
}

// keyFile is the format of the file.
type keyFile struct {
	Keys []keyEntry `json:"keys"`
}

type keyEntry struct {
	Repo       string            `json:"repository"`
	Credential client.Credential `json:"credential"`
}

// OpenKeychain reads file, which need not exist. It ignores a damaged file; images are
// then fetched as if nobody had logged in.
func OpenKeychain(file string) (*Keychain, error) {
	k := &Keychain{file: file, keys: map[string]client.Credential{}}
	b, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return k, nil
	}
	if err != nil {
		return k, fmt.Errorf("read credentials of images: %w", err)
	}
	var f keyFile
	if err := json.Unmarshal(b, &f); err != nil {
		return k, fmt.Errorf("%s is damaged, and images must be pulled again to log in", file) // err might quote a secret
	}
	for _, e := range f.Keys[:min(len(f.Keys), maxKeys)] {
		k.put(e.Repo, e.Credential)
	}
	return k, nil
}

// MoveKeychain moves the file of a keychain to where it is from now on, unless there is one already.
// None stays behind.
func MoveKeychain(from, to string) error {
	b, err := os.ReadFile(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		if _, err = os.Stat(to); errors.Is(err, fs.ErrNotExist) {
			err = durable.WriteFile(to, b)
		}
	}
	if err == nil {
		err = os.Remove(from)
	}
	if err != nil {
		return fmt.Errorf("move the credentials of images: %w", err)
	}
	return nil
}

// Credential returns the credential for an image, and reports whether there is one.
func (k *Keychain) Credential(ref Reference) (client.Credential, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	c, ok := k.keys[ref.Name()]
	return c, ok
}

// Try keeps the credential of a pull that may be refused. If it is, back restores the earlier
// credential. Otherwise a user who pulls an image without permission would take away the
// credential with which other users' containers fetch their files.
func (k *Keychain) Try(ref Reference, c client.Credential) (back func() error, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	repo := ref.Name()
	old, had := k.keys[repo]
	if had && old == c {
		return func() error { return nil }, nil
	}
	k.put(repo, c)
	return func() error {
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.keys[repo] != c { // somebody has pulled it since
			return nil
		}
		if had {
			k.put(repo, old)
		} else {
			delete(k.keys, repo)
			k.order = slices.DeleteFunc(k.order, func(r string) bool { return r == repo })
		}
		return k.save()
	}, k.save()
}

func (k *Keychain) put(repo string, c client.Credential) {
	if _, ok := k.keys[repo]; !ok {
		if len(k.order) >= maxKeys {
			delete(k.keys, k.order[0])
			k.order = k.order[1:]
		}
		k.order = append(k.order, repo)
	}
	k.keys[repo] = c
}

func (k *Keychain) save() error {
	var f keyFile
	for _, repo := range k.order {
		f.Keys = append(f.Keys, keyEntry{repo, k.keys[repo]})
	}
	b, err := json.Marshal(f)
	if err != nil {
		return fmt.Errorf("keep the credential of an image: %w", err)
	}
	if err := durable.WriteFile(k.file, b); err != nil {
		return fmt.Errorf("keep the credential of an image: %w", err)
	}
	return nil
}
