package node

import (
	"context"
	"errors"
	"sync"
	"time"

	"example.org/slipway/oci/volref"
)

// credentials keeps the credentials of volumes. It requests them when they are needed and
// keeps them for half of their lifetime.
type credentials struct {
	m *Manager

	mu  sync.Mutex // never held while anything is waited for
	of  map[string]*credential
	get map[string]getter
}

// getter says how to get the credentials of a volume.
type getter struct {
	img    *volref.Record
	volume string
	get    func(ctx context.Context, clones bool) (volref.Credential, error)
}

// credential is the credential that was received last. mu is held while another one is
// requested, so that others wait for the answer. It is locked before credentials.mu.
type credential struct {
	mu    sync.Mutex
	have  [2]volref.Credential // one without clones, one with clones
	since [2]time.Time         // zero: there is none
}

func newCredentials(m *Manager) *credentials {
	return &credentials{m: m, of: map[string]*credential{}, get: map[string]getter{}}
}

// use remembers how to get the credentials of an image.
func (c *credentials) use(img *Image, volume string) {
	if img.Credential == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.get[credentialKey(&img.Record, volume)] = getter{&img.Record, volume, img.Credential}
}

func credentialKey(img *volref.Record, volume string) string {
	return nameOf(placeKey(img.Place), volume)
}

func (c *credentials) entry(img *volref.Record, volume string) *credential {
	key := credentialKey(img, volume)
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.of[key]
	if k == nil {
		k = &credential{}
		c.of[key] = k
	}
	return k
}

// errNoCredential says that it is not known how to get a credential.
var errNoCredential = errors.New("there is no credential for it; the agent gets one when the image is used the next time")

// forVolume returns a credential that is valid for at least half of its lifetime, and
// since when it is held.
func (c *credentials) forVolume(ctx context.Context, img *volref.Record, volume string, clones bool) (volref.Credential, time.Time, error) {
	k := c.entry(img, volume)
	k.mu.Lock()
	defer k.mu.Unlock()
	i := 0
	if clones {
		i = 1
	}
	if now := time.Now(); !k.since[i].IsZero() && now.Before(halfway(k.since[i], k.have[i].Expires)) {
		return k.have[i], k.since[i], nil
	}
	got, err := c.ask(ctx, img, volume, clones)
	if err != nil {
		return volref.Credential{}, time.Time{}, err
	}
	k.have[i], k.since[i] = got, time.Now()
	return got, k.since[i], nil
}

func (c *credentials) ask(ctx context.Context, img *volref.Record, volume string, clones bool) (cred volref.Credential, err error) {
	c.mu.Lock()
	get := c.get[credentialKey(img, volume)].get
	c.mu.Unlock()
	switch {
	case get != nil:
	case c.m.o.Credential != nil:
		get = func(ctx context.Context, clones bool) (volref.Credential, error) {
			return c.m.o.Credential(ctx, img, volume, clones)
		}
	case img.Place.Driver == "file":
		return volref.Credential{}, nil // see volref.Credential
	default:
		return volref.Credential{}, errNoCredential
	}
	err = c.m.call(ctx, "credential", func(ctx context.Context) error {
		cred, err = get(ctx, clones)
		return err
	})
	return cred, err
}

// toRemove returns a credential with which a clone can be removed. It is the credential
// of the clone's image or, because the image may be gone, of any image in the same place.
// It returns errNoCredential if there is none.
func (c *credentials) toRemove(ctx context.Context, r *record) (volref.Credential, error) {
	cred, _, err := c.forVolume(ctx, &r.Image, r.Volume, true)
	if err == nil {
		return cred, nil
	}
	for _, g := range c.others(r) {
		if cred, _, e := c.forVolume(ctx, g.img, g.volume, true); e == nil {
			return cred, nil
		}
	}
	if !errors.Is(err, errNoCredential) {
		err = errors.Join(errNoCredential, err)
	}
	return cred, err
}

// maxOthers is how many other images are tried. Each may ask a registry.
const maxOthers = 4

// others returns other images in the same place as a record, at most maxOthers. Images
// that were requested in this run come first.
func (c *credentials) others(r *record) (all []getter) {
	add := func(img *volref.Record, volume string) {
		if len(all) < maxOthers && img.Place == r.Image.Place && volume != r.Volume {
			all = append(all, getter{img: img, volume: volume})
		}
	}
	c.mu.Lock()
	for _, g := range c.get {
		add(g.img, g.volume)
	}
	c.mu.Unlock()
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	for _, e := range c.m.entries {
		if e.rec != nil {
			add(&e.rec.Image, e.rec.Volume)
		}
	}
	return all
}

// forget drops a credential that was refused, so that the next one is requested.
func (c *credentials) forget(img *volref.Record, volume string) {
	k := c.entry(img, volume)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.since = [2]time.Time{}
}

// refused drops a credential that has been held since the given time. It does not drop
// one that was received later.
func (c *credentials) refused(img *volref.Record, volume string, since time.Time) {
	k := c.entry(img, volume)
	k.mu.Lock()
	defer k.mu.Unlock()
	for i := range k.since {
		if k.since[i].Equal(since) {
			k.since[i] = time.Time{}
		}
	}
}

// halfway returns when to replace a credential. It is far in the future if the credential
// does not expire.
func halfway(since, expires time.Time) time.Time {
	if expires.IsZero() {
		return time.Now().Add(24 * time.Hour)
	}
	return since.Add(expires.Sub(since) / 2)
}
