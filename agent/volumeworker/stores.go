package volumeworker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"example.org/slipway/config"
	"example.org/slipway/oci/volref"
	"example.org/slipway/volume/block"
	"example.org/slipway/volume/file"
	"example.org/slipway/volume/rbd"
)

// stores opens the volume storage that a node is connected to. A store stays open
// while anything in it is open, and some time longer: credentials differ and change, and
// connecting takes time.
type stores struct {
	cfg *config.AgentVolumes
	log *slog.Logger

	mu  sync.Mutex
	all map[storeKey]*openStore
}

// storeKey is a place together with a credential.
type storeKey struct {
	place volref.Place
	user  string
	key   string
	// clones is the namespace that may be written.
	clones string
}

// openStore is a store and the number of its users. users is guarded by stores.mu.
type openStore struct {
	ready chan struct{} // closed when store and err are set
	store block.Store
	err   error
	users int
	idle  *time.Timer // closes the store
}

// storeIdle is how long a store that nobody uses stays open.
const storeIdle = time.Minute

func newStores(cfg *config.AgentVolumes, log *slog.Logger) *stores {
	return &stores{cfg: cfg, log: log, all: map[storeKey]*openStore{}}
}

// errNotConnected says that this node has no way to a place.
var errNotConnected = errors.New("this node is not connected to that storage")

// Connected returns an error that says why the configuration does not let this node reach
// a place, or nil if it lets it. It does not contact the place.
func Connected(cfg *config.AgentVolumes, p volref.Place) error {
	switch {
	case p.Driver == "file" && cfg.File.Dir == "":
		return fmt.Errorf("%w: the volumes lie in a shared directory (set volumes.file.dir)", errNotConnected)
	case p.Driver == rbd.Driver && !rbd.Available:
		return fmt.Errorf("%w: the volumes lie in Ceph, and this program was built without it (make build-ceph)", errNotConnected)
	case p.Driver == rbd.Driver && cfg.RBD.Conf == "":
		return fmt.Errorf("%w: the volumes lie in Ceph cluster %s (set volumes.rbd.conf)", errNotConnected, p.Cluster)
	case p.Driver != "file" && p.Driver != rbd.Driver:
		return fmt.Errorf("%w: driver %q is not known here", errNotConnected, p.Driver)
	}
	return nil
}

// use returns the store of a place, and a function that releases it. The store keeps the
// credential with which it was opened.
func (s *stores) use(ctx context.Context, p volref.Place, c volref.Credential) (block.Store, func(), error) {
	if err := Connected(s.cfg, p); err != nil {
		return nil, nil, err
	}
	key := storeKey{p, c.User, c.Key, c.Clones}
	s.mu.Lock()
	o := s.all[key]
	if o == nil {
		o = &openStore{ready: make(chan struct{})}
		s.all[key] = o
		go s.open(context.WithoutCancel(ctx), key, o, c)
	}
	o.users++
	if o.idle != nil {
		o.idle.Stop()
		o.idle = nil
	}
	s.mu.Unlock()
	give := sync.OnceFunc(func() { s.giveBack(key, o) })
	select {
	case <-o.ready:
	case <-ctx.Done():
		give()
		return nil, nil, fmt.Errorf("connect to the storage of volumes: %w: %w", block.ErrAway, context.Cause(ctx))
	}
	if o.err != nil {
		give()
		return nil, nil, o.err
	}
	return o.store, give, nil
}

// open connects to a place, and verifies that it is the expected one.
func (s *stores) open(ctx context.Context, key storeKey, o *openStore, c volref.Credential) {
	defer close(o.ready)
	store, err := s.connect(ctx, key.place, c)
	if err == nil && store.Place() != key.place {
		err = errors.Join(fmt.Errorf("%w: volumes of %s %s are meant, and it has %s", errNotConnected, key.place.Driver, key.place.Cluster, store.Place().Cluster), store.Close())
	}
	if err == nil {
		o.store = store
		return
	}
	o.err = fmt.Errorf("connect to the storage of volumes: %w", err)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all[key] == o { // the next caller tries again
		delete(s.all, key)
	}
}

func (s *stores) connect(ctx context.Context, p volref.Place, c volref.Credential) (block.Store, error) {
	if p.Driver == "file" {
		return file.Open(s.cfg.File.Dir, nil)
	}
	o := rbd.Connect(p, c)
	o.Conf, o.Log = s.cfg.RBD.Conf, s.log
	return rbd.Open(ctx, o)
}

func (s *stores) giveBack(key storeKey, o *openStore) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o.users--; o.users > 0 || s.all[key] != o {
		return
	}
	o.idle = time.AfterFunc(storeIdle, func() {
		s.mu.Lock()
		if o.users > 0 || s.all[key] != o {
			s.mu.Unlock()
			return
		}
		delete(s.all, key)
		s.mu.Unlock()
		<-o.ready
		if o.store != nil {
			_ = o.store.Close() // nothing in it is open
		}
	})
}

// close closes the stores. Everything open in them must be closed before.
func (s *stores) close() error {
	s.mu.Lock()
	all := s.all
	s.all = map[storeKey]*openStore{}
	s.mu.Unlock()
	var errs []error
	for _, o := range all {
		<-o.ready
		if o.store != nil {
			errs = append(errs, o.store.Close())
		}
	}
	return errors.Join(errs...)
}

// volume opens a volume for a mapping.
func (s *stores) volume(ctx context.Context, m block.Mapping) (block.Volume, error) {
	store, give, err := s.use(ctx, m.Place, m.Credential)
	if err != nil {
		return nil, err
	}
	open := store.Open
	if m.Writable {
		open = store.OpenWriter
	}
	v, err := open(ctx, m.ID)
	if err != nil {
		give()
		return nil, err
	}
	return &storeVolume{v, give}, nil
}

// storeVolume is a volume that keeps its store open.
type storeVolume struct {
	block.Volume
	give func()
}

// Close implements block.Volume.
func (v *storeVolume) Close() error {
	defer v.give()
	return v.Volume.Close()
}
