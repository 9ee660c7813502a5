package swiftstore

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha1" // what older clusters sign with
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"
)

const (
	// keyAge is how long a key is used before it is read again from the container. An
	// operator may change the key. If two processes both set the first key, the later one
	// wins.
	keyAge = time.Minute
	// freshKeyAge is keyAge for a key that this process has just set.
	freshKeyAge = 2 * time.Second
)

// tempKey is the key with which temporary addresses are signed.
type tempKey struct {
	given bool // the options gave the key, so the cluster is never asked for it

	mu   sync.Mutex
	key  string // "" if there is none
	ends time.Time
}

// init takes the given key, or finds one, or sets one. A missing key is not an error
// here; then URL fails.
func (k *tempKey) init(ctx context.Context, s *Store, given string) error {
	k.key, k.given = given, given != ""
	if k.given || s.limits.digest == "" {
		return nil
	}
	if err := k.find(ctx, s); err != nil || k.key != "" {
		return err
	}
	_, err := s.c.call(ctx, &request{method: http.MethodPost, path: s.container, header: map[string]string{"X-Container-Meta-Temp-Url-Key": rand.Text()}})
	if st := statusOf(err); st == http.StatusForbidden || st == http.StatusUnauthorized {
		return nil
	}
	if err != nil {
		return fmt.Errorf("swift: set a key for temporary addresses: %w", err)
	}
	err = k.find(ctx, s)
	k.ends = s.c.now().Add(freshKeyAge)
	return err
}

// find reads the key of the container or, if it has none, the key of the account. k.mu is
// held, or k is not shared yet.
func (k *tempKey) find(ctx context.Context, s *Store) error {
	key := ""
	for _, at := range []struct{ path, header string }{
		{s.container, "X-Container-Meta-Temp-Url-Key"},
		{"", "X-Account-Meta-Temp-Url-Key"},
	} {
		h, err := s.c.call(ctx, &request{method: http.MethodHead, path: at.path, last: true})
		if at.path == "" && (statusOf(err) == http.StatusForbidden || statusOf(err) == http.StatusUnauthorized) {
			break // the user has rights only to the container
		}
		if err != nil {
			return fmt.Errorf("swift: read the key for temporary addresses: %w", err)
		}
		if key = h.Get(at.header); key == "" {
			key = h.Get(at.header + "-2")
		}
		if key != "" {
			break
		}
	}
	k.key, k.ends = key, s.c.now().Add(keyAge)
	return nil
}

// get returns the current key, or the last known key if the server cannot be reached.
func (k *tempKey) get(ctx context.Context, s *Store) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.given && !s.c.now().Before(k.ends) {
		if err := k.find(ctx, s); err != nil {
			k.ends = s.c.now().Add(freshKeyAge)
		}
	}
	return k.key
}

// URL returns a temporary address of an object. Until the address expires, whoever has it
// may read the object, whole or in ranges. See [objstore.Redirector]. If there is no key,
// or if the cluster has no temporary addresses, the error is [errors.ErrUnsupported].
func (s *Store) URL(ctx context.Context, key string, valid time.Duration) (string, error) {
	if err := s.beginKey(ctx, key); err != nil {
		return "", err
	}
	if s.limits.digest == "" {
		return "", fmt.Errorf("address of object %s: the cluster has no temporary addresses: %w", key, errors.ErrUnsupported)
	}
	secret := s.temp.get(ctx, s)
	if secret == "" {
		return "", fmt.Errorf("address of object %s: container %s has no key for temporary addresses: %w", key, s.container, errors.ErrUnsupported)
	}
	at := s.c.current.Load().url
	u := *at
	u.Path += "/" + s.path(key)
	// By the server's clock, and at least as long as asked for.
	ends := s.c.now().Unix() + s.c.ahead.Load() + int64((valid+time.Second-1)/time.Second) + 1
	expires := strconv.FormatInt(ends, 10)
	newHash := sha256.New
	if s.limits.digest == "sha1" {
		newHash = func() hash.Hash { return sha1.New() } // the cluster takes nothing else
	}
	mac := hmac.New(newHash, []byte(secret))
	fmt.Fprintf(mac, "GET\n%s\n%s", expires, u.Path)
	u.RawQuery = url.Values{"temp_url_sig": {hex.EncodeToString(mac.Sum(nil))}, "temp_url_expires": {expires}}.Encode()
	return u.String(), nil
}
