// Package images keeps the images of a node without their blobs. It claims the layers of a
// pull, records them, and mounts their trees: with the help of their indexes, as volumes, or
// unpacked. containerd's snapshotter takes the trees from it, and it mounts them without
// containerd.
package images

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"example.org/slipway/agent/api"
	"example.org/slipway/agent/registries"
	"example.org/slipway/config"
	"example.org/slipway/node/cachedir"
	"example.org/slipway/node/gearfs"
	"example.org/slipway/node/poolfs"
	"example.org/slipway/node/snapshotter"
	"example.org/slipway/node/view"
	"example.org/slipway/oci/volref"
)

// Dirs are the directories of a Set, which exist, and the socket of the volume worker.
type Dirs struct {
	Chains   string // records of layers
	Trees    string // image files
	Views    string // where image files are mounted
	Unpacked string // trees, if none can be mounted lazily
	Mounts   string // records of mounts without containerd
	Pool     string // where the pool is mounted

	VolumeRecords string // records of mounted volumes
	Volumes       string // where the volume worker serves volumes
	VolumeMounts  string // where they are mounted
	VolumeSocket  string
}

// Options say what a Set works with.
type Options struct {
	Dirs       Dirs
	Volumes    bool // somebody serves volumes
	Files      *gearfs.Service
	Cache      *cachedir.Dir
	Registries *registries.Set
	Support    *view.Support // how images are mounted
	// Expect is told of an image that is about to start from a source. It is nil if no files
	// come from other nodes.
	Expect func(gearfs.SourceRef)
	Log    *slog.Logger
}

// Set is the images of a node. It mounts them without containerd itself.
type Set struct {
	dir    string // records of mounts
	chains *chains
	lower  *lower // the same chains, and what claims them

	// claiming is held while chains without a record are claimed, so that they do not look like
	// leftovers.
	claiming sync.RWMutex
	mu       sync.Mutex
	all      map[string]*mountRecord // by directory
	making   map[string]bool         // directories that are about to be mounted
	warm     map[string]held         // images that are kept for orders, by the order
}

// Open takes over the images that an earlier agent left. ctx is for Open alone, and life
// ends with the agent.
func Open(ctx, life context.Context, cfg *config.Agent, o *Options) (*Set, error) {
	if err := cleanUnpacked(o.Dirs.Unpacked); err != nil {
		o.Log.Warn("what a crash left of unpacked images stays for now", "err", err)
	}
	recs := &records{dir: o.Dirs.Chains}
	if err := recs.clean(); err != nil {
		o.Log.Warn("what a crash left of images' records stays for now", "err", err)
	}
	volumes, err := openVolumes(ctx, life, cfg, o, recs)
	if err != nil {
		return nil, err
	}
	c := &chains{
		records: recs, volumes: volumes, trees: o.Dirs.Trees, mounts: o.Dirs.Views, pool: o.Dirs.Pool, unpacked: o.Dirs.Unpacked,
		files: o.Files, cache: o.Cache, regs: o.Registries, support: o.Support, log: o.Log, ctx: life,
		opts:    chainOptions{cfg.Profiles.Record, cfg.Fetch.Background, cfg.Fetch.BackgroundDelay},
		mounted: map[string]mountedTree{}, later: map[string]*time.Timer{},
	}
	c.indexes = registries.NewIndexes(life, c.work.Go, cfg.Fetch.ConvertTimeout, o.Log, o.Files.ObserveLink, func(src gearfs.SourceRef, host string) {
		// A pack is sent whatever the node has. Nodes that start together would each get one
		// from the registry, and nothing from each other.
		if o.Expect != nil {
			o.Expect(src)
		} else if st := o.Cache.Stats(); st.Files+st.Partial == 0 {
			o.Files.Pack(src, o.Registries.Domain(host))
		}
	})
	m := &Set{dir: o.Dirs.Mounts, chains: c, lower: &lower{&claims{chains: c, choice: cfg.Choice}}, all: map[string]*mountRecord{}, making: map[string]bool{},
		warm: map[string]held{}}
	c.inUse = m.uses
	return m, nil
}

// Close waits for what goes on in the background, which ends with the agent. Mounts stay.
func (m *Set) Close() error {
	if m == nil {
		return nil
	}
	m.chains.close()
	return m.chains.volumes.close()
}

// Lower returns what the snapshotter takes the trees of images from.
func (m *Set) Lower() snapshotter.Lower { return m.lower }

// Holders returns what holds files of the cache while no process uses them: the pool and the
// mounts of images.
func (m *Set) Holders(pool *poolfs.Server) cachedir.Holders { return &holders{pool, m.chains} }

// Layers returns how many layers the chain of an image has, and what became of the ways in
// which the image could have come.
func (m *Set) Layers(chain string) (n int, why []string, err error) {
	line, err := m.chains.records.line(chain)
	if err != nil {
		return 0, nil, err
	}
	return len(line), line[len(line)-1].Why, nil
}

// Unpacked reports whether an image was unpacked in the ordinary way, all of it or its
// upper layers, and why.
func (m *Set) Unpacked(ref string) (why []string, ok bool) { return m.lower.plain.get(ref) }

// VolumeStatus returns the state of the node's volumes, or nil if none are configured.
func (m *Set) VolumeStatus(ctx context.Context) *api.VolumesStatus {
	if m == nil {
		return nil
	}
	return m.chains.volumes.status(ctx)
}

// VolumeWork counts what was done with volumes. VolumeStatus brings the counts of bytes up to
// date.
func (m *Set) VolumeWork() VolumeWork {
	if m == nil || m.chains.volumes == nil {
		return newStepTimes().work()
	}
	return m.chains.volumes.steps.work()
}

// Volume is an image that comes to this node as a volume.
type Volume struct {
	Ref, Chain string
	Why        []string // what became of the ways that were tried
	Record     volref.Record
}

// Volume returns a volume by the name of its image, the beginning of its chain ID, a
// container or a directory. It returns nil if there is none.
func (m *Set) Volume(name string) *Volume {
	r := m.volumeOf(name)
	if r == nil {
		return nil
	}
	return &Volume{Ref: r.Ref, Chain: r.Chain, Why: r.Why, Record: r.Volume.Record}
}

func (m *Set) volumeOf(name string) (found *chainRecord) {
	if m.chains.volumes == nil || name == "" {
		return nil
	}
	for _, at := range m.Mounts() {
		if at.Way == config.WayVolume && (at.Dir == name || at.Image == name) {
			return m.volumeChain(at.Chain)
		}
	}
	if chain := m.chains.volumes.chainOf(name); chain != "" {
		return m.volumeChain(chain)
	}
	all, err := m.chains.records.all(func(string, error) {})
	if err != nil {
		return nil
	}
	for _, r := range all {
		if Named(name, r.Ref, r.Chain) && r.Way == config.WayVolume {
			found = r
		}
	}
	return found
}

func (m *Set) volumeChain(chain string) *chainRecord {
	if r, err := m.chains.records.load(chain); err == nil && r.Volume.usable() {
		return r
	}
	return nil
}

// Named reports whether an image is called name: by its reference, by its chain ID, or by the
// beginning of the chain ID's digits.
func Named(name, ref, chain string) bool {
	return name == ref || name == chain || len(name) >= 8 && strings.HasPrefix(strings.TrimPrefix(chain, "sha256:"), name)
}
