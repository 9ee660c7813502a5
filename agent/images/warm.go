package images

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"example.org/slipway/config"
	"example.org/slipway/internal/durable"
	"example.org/slipway/node/gearfs"
)

// ErrUnpacks is returned, wrapped, by Warm if images are unpacked on this machine, because
// then whoever starts them fetches them.
var ErrUnpacks = errors.New("images are unpacked here when they are pulled, and cannot be fetched before")

// warmFile is the record of the images that are kept for orders.
const warmFile = "warm"

// held is an image that is kept for an order of a registry, even if nothing uses it.
type held struct {
	Registry string    `json:"registry"`
	Chain    string    `json:"chain"`
	Until    time.Time `json:"until"`
}

// WarmOrder is an order of a registry that an image is kept until a given time.
type WarmOrder struct {
	Registry, ID string
	Until        time.Time
}

// key identifies the order. One server may have two names, and then both are registries
// with the same orders.
func (o WarmOrder) key() string { return o.Registry + " " + o.ID }

// Warm makes an image ready to start: its indexes, its tree, and the files of its profile
// or, if all is set, all files. It keeps the image for the order. A pull or a mount of the
// same image finds all that. Errors: ErrUnpacks, and those of the registry and of
// gearfs.Warm.
func (m *Set) Warm(ctx context.Context, o WarmOrder, image string, all bool, progress func(gearfs.Warmth)) error {
	if m.chains.eager() {
		return fmt.Errorf("%w: %s", ErrUnpacks, strings.Join(m.chains.support.Reasons, "; "))
	}
	chain, way, err := m.keep(ctx, o, image)
	if err != nil {
		return err
	}
	if _, err := m.chains.Mount(ctx, chain); err != nil || way == config.WayVolume {
		return err // the blocks of a volume stay in its storage
	}
	return m.chains.files.Warm(ctx, chain, all, progress)
}

// keep claims the layers of an image and records for what order they are kept.
func (m *Set) keep(ctx context.Context, o WarmOrder, image string) (chain, way string, err error) {
	m.claiming.RLock()
	defer m.claiming.RUnlock()
	quiet := &claims{chains: m.chains, choice: m.lower.choice, quiet: true}
	_, l, why, err := m.claimWith(ctx, quiet, image, "", nil, "")
	if err != nil {
		return "", "", err
	}
	way, _, _ = strings.Cut(why[len(why)-1], ":")
	return l.ChainID, way, m.hold(o, l.ChainID)
}

// hold records that an image is kept for an order.
func (m *Set) hold(o WarmOrder, chain string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.warm[o.key()] = held{o.Registry, chain, o.Until}
	return m.saveWarm()
}

// saveWarm writes the record of kept images. The caller holds mu.
func (m *Set) saveWarm() error {
	name := filepath.Join(m.dir, warmFile)
	if len(m.warm) == 0 {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	b, err := json.MarshalIndent(m.warm, "", " ")
	if err != nil {
		return err
	}
	return durable.WriteFile(name, append(b, '\n'))
}

// loadWarm reads the record of kept images.
func (m *Set) loadWarm() error {
	b, err := os.ReadFile(filepath.Join(m.dir, warmFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(b, &m.warm)
	}
	if err != nil || m.warm == nil {
		m.chains.log.Warn("the record of images that are kept for orders is damaged", "err", err)
		m.warm = map[string]held{}
	}
	return nil
}

// EndWarm keeps images no longer for orders of a registry that are not wanted, also for
// those that an earlier agent began. The files that nothing else needs stay in the cache
// until it needs the space.
func (m *Set) EndWarm(registry string, wanted map[string]bool) error {
	return m.endWarm(func(key string, h held) bool {
		return h.Registry == registry && !wanted[strings.TrimPrefix(key, registry+" ")]
	})
}

// ExpireWarm does what EndWarm does for all orders whose time is over.
func (m *Set) ExpireWarm(now time.Time) error {
	return m.endWarm(func(_ string, h held) bool { return now.After(h.Until) })
}

func (m *Set) endWarm(ended func(key string, h held) bool) error {
	m.mu.Lock()
	var chains []string
	for key, h := range m.warm {
		if ended(key, h) {
			chains = append(chains, h.Chain)
			delete(m.warm, key)
		}
	}
	var err error
	if len(chains) > 0 {
		err = m.saveWarm()
	}
	m.mu.Unlock()
	if len(chains) == 0 {
		return nil
	}
	m.claiming.Lock()
	defer m.claiming.Unlock()
	for _, chain := range chains {
		err = errors.Join(err, m.release(chain))
	}
	return err
}

// warmed returns the chains that are kept for orders.
func (m *Set) warmed() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var list []string
	for h := range maps.Values(m.warm) {
		list = append(list, h.Chain)
	}
	slices.Sort(list)
	return slices.Compact(list)
}
