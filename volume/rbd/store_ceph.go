//go:build ceph

package rbd

import (
	"context"
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/ceph/go-ceph/rados"
	"github.com/ceph/go-ceph/rbd"

	"example.org/slipway/oci/volref"
	"example.org/slipway/volume/block"
)

// Available reports whether this binary can use Ceph.
const Available = true

// Store is one connection to a cluster.
type Store struct {
	o       Options
	conn    *rados.Conn
	cluster string
	self    process
	order   uint64 // of the object size

	// volumes, clones (nil if there are none) and leases are the namespaces.
	volumes, clones, leases *rados.IOContext

	mu     sync.Mutex
	closed bool
	open   map[*volume]struct{}
	calls  sync.WaitGroup // calls into librbd that have not come back
}

var (
	_ block.Store = (*Store)(nil)
	_ Issuer      = (*Store)(nil)
)

// Open connects to the cluster.
func Open(ctx context.Context, o Options) (block.Store, error) {
	if err := o.normalize(); err != nil {
		return nil, fmt.Errorf("volumes in Ceph: %w", err)
	}
	self, err := thisProcess()
	if err != nil {
		return nil, fmt.Errorf("volumes in Ceph: %w", err)
	}
	s := &Store{o: o, self: self, open: map[*volume]struct{}{}, order: uint64(bits.TrailingZeros64(uint64(o.ObjectSize)))}
	_, err = run(ctx, s, 2*o.Timeout, func() (struct{}, error) { return struct{}{}, s.connect() },
		func(struct{}) { s.disconnect() })
	if err != nil {
		return nil, fmt.Errorf("connect to Ceph as client.%s: %w", o.User, err)
	}
	o.Log.Info("connected to Ceph", "cluster", s.cluster, "user", o.User, "client", s.conn.GetInstanceID())
	return s, nil
}

// connect leaves nothing behind if it fails.
func (s *Store) connect() (err error) {
	if s.conn, err = rados.NewConnWithUser(s.o.User); err != nil {
		return translate(err)
	}
	defer func() {
		if err != nil {
			s.disconnect()
		}
	}()
	if s.o.Conf != "" {
		if err := s.conn.ReadConfigFile(s.o.Conf); err != nil {
			return fmt.Errorf("read %s: %w", s.o.Conf, err)
		}
	}
	if err := s.configure(); err != nil {
		return err
	}
	if err := s.conn.Connect(); err != nil {
		return translate(err)
	}
	if s.cluster, err = s.conn.GetFSID(); err != nil {
		return translate(err)
	}
	if s.o.Cluster != "" && s.o.Cluster != s.cluster {
		return fmt.Errorf("the monitors are of cluster %s, the volumes are in cluster %s", s.cluster, s.o.Cluster)
	}
	return s.openNamespaces()
}

func (s *Store) configure() error {
	seconds := strconv.Itoa(int((s.o.Timeout + time.Second - 1) / time.Second)) // fractions are refused
	sixth := strconv.FormatFloat(max(s.o.Timeout.Seconds()/6, 0.1), 'f', 3, 64)
	for _, set := range []struct{ name, value string }{
		// A client waits for ever by default.
		{"rados_osd_op_timeout", seconds}, {"rados_mon_op_timeout", seconds}, {"client_mount_timeout", seconds},
		// A client that was idle while an OSD restarted has an old map. It asks at the
		// old address in vain, and asks for a newer map only after this time: by default
		// 10 s, checked every 5 s, which is as long as our timeout.
		{"objecter_timeout", sixth}, {"objecter_tick_interval", sixth},
		// An acknowledged write must not be in this process only, because a node's worker
		// may be killed while the file system above lives on.
		{"rbd_cache", "false"},
		// A discard of whole blocks must not be skipped.
		{"rbd_discard_granularity_bytes", strconv.Itoa(blockSize)}, {"rbd_skip_partial_discard", "false"},
		{"log_to_stderr", "false"}, {"err_to_stderr", "false"}, {"log_file", ""}, {"admin_socket", ""},
		{"mon_host", s.o.Monitors}, {"key", s.o.Key}, {"keyring", s.o.Keyring},
	} {
		switch set.name {
		case "mon_host", "key", "keyring":
			if set.value == "" {
				continue
			}
		}
		if err := s.conn.SetConfigOption(set.name, set.value); err != nil {
			return fmt.Errorf("set %s: %w", set.name, err)
		}
	}
	return nil
}

func (s *Store) openNamespaces() error {
	pool, err := s.openPool("")
	if err != nil {
		return err
	}
	defer pool.Destroy()
	for _, set := range []struct {
		at   **rados.IOContext
		name string
		rbd  bool
	}{{&s.volumes, s.o.Namespace, true}, {&s.clones, s.o.Clones, true}, {&s.leases, LeaseNamespace(s.o.Namespace), false}} {
		if set.name == "" {
			continue
		}
		if set.rbd {
			if err := ensureNamespace(pool, set.name); err != nil {
				return err
			}
		}
		if *set.at, err = s.openPool(set.name); err != nil {
			return err
		}
		if set.rbd {
			// Otherwise librbd creates it during the first removal, which a full cluster
			// refuses. A user who may not create it will not remove anything.
			_ = (*set.at).Create("rbd_trash", rados.CreateIdempotent)
		}
	}
	return nil
}

func (s *Store) openPool(namespace string) (*rados.IOContext, error) {
	c, err := s.conn.OpenIOContext(s.o.Pool)
	if err != nil {
		return nil, fmt.Errorf("pool %s: %w", s.o.Pool, translate(err))
	}
	c.SetNamespace(namespace)
	// A full pool is an error and not a reason to wait.
	if err := c.SetPoolFullTry(); err != nil {
		c.Destroy()
		return nil, fmt.Errorf("pool %s: %w", s.o.Pool, translate(err))
	}
	return c, nil
}

func ensureNamespace(pool *rados.IOContext, name string) error {
	there, err := rbd.NamespaceExists(pool, name)
	switch {
	case isDenied(err):
		return nil // a node's user cannot list namespaces; being let in proves that its namespace exists
	case err != nil:
		return fmt.Errorf("look for namespace %s: %w", name, translate(err))
	case there:
		return nil
	}
	if err := rbd.NamespaceCreate(pool, name); err != nil && errno(err) != eExist {
		return fmt.Errorf("make namespace %s: %w", name, translate(err))
	}
	return nil
}

func (s *Store) disconnect() {
	for _, c := range []*rados.IOContext{s.volumes, s.clones, s.leases} {
		if c != nil {
			c.Destroy()
		}
	}
	s.conn.Shutdown()
}

// Place implements block.Store.
func (s *Store) Place() volref.Place {
	return volref.Place{Driver: Driver, Cluster: s.cluster, Pool: s.o.Pool, Namespace: s.o.Namespace}
}

// Close implements block.Store. It waits for calls that the cluster has not answered yet.
// If they do not end, it leaves the connection to them.
func (s *Store) Close() error {
	s.mu.Lock()
	was := s.closed
	s.closed = true
	s.mu.Unlock()
	if was {
		return nil
	}
	back := make(chan struct{})
	go func() {
		s.calls.Wait()
		s.closeAll()
		s.disconnect()
		close(back)
	}()
	select {
	case <-back:
		return nil
	case <-time.After(closeLimit + 3*s.o.Timeout):
		return fmt.Errorf("disconnect from Ceph: %w", block.ErrAway)
	}
}

// closeAll closes what should have been closed before, because librados must outlive open
// images.
func (s *Store) closeAll() {
	s.mu.Lock()
	all := slices.Collect(maps.Keys(s.open))
	s.mu.Unlock()
	for _, v := range all {
		_ = v.close()
	}
}

// note keeps track of an open volume.
func (s *Store) note(v *volume, open bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if open {
		s.open[v] = struct{}{}
	} else {
		delete(s.open, v)
	}
}

// begin counts a call into librbd. After a success the caller calls s.calls.Done.
func (s *Store) begin() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errClosed
	}
	s.calls.Add(1)
	return nil
}

// run calls f, which cannot be interrupted, and returns its result. It returns sooner if
// ctx ends, and with ErrAway after limit. If f succeeds later, drop gets its result.
func run[T any](ctx context.Context, s *Store, limit time.Duration, f func() (T, error), drop func(T)) (T, error) {
	type result struct {
		v   T
		err error
	}
	var none T
	if err := ctx.Err(); err != nil {
		return none, err
	}
	if err := s.begin(); err != nil {
		return none, err
	}
	back := make(chan result) // unbuffered: what is sent has been received
	gone := make(chan struct{})
	go func() {
		defer s.calls.Done()
		v, err := f()
		select {
		case <-gone:
			if err == nil && drop != nil {
				drop(v)
			}
		case back <- result{v, err}:
		}
	}()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	var late error
	select {
	case r := <-back:
		return r.v, r.err
	case <-ctx.Done():
		late = ctx.Err()
	case <-timer.C:
		late = fmt.Errorf("%w for %s", block.ErrAway, limit)
	}
	close(gone)
	return none, late
}

// do is like run, for a function without a result, with the limit of a few operations.
func (s *Store) do(ctx context.Context, f func() error) error {
	_, err := run(ctx, s, 2*s.o.Timeout, func() (struct{}, error) { return struct{}{}, f() }, nil)
	return err
}

// in returns the namespace that holds a volume of that name.
func (s *Store) in(id string) (*rados.IOContext, error) {
	if err := volref.CheckName(id); err != nil {
		return nil, err
	}
	if !volref.IsClone(id) {
		return s.volumes, nil
	}
	if s.clones == nil {
		return nil, fmt.Errorf("volume %s is a clone, and this store was opened without a namespace for them", id)
	}
	return s.clones, nil
}
