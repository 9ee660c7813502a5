// Package node uses volumes on a machine that runs containers. It maps and mounts volumes
// and keeps a record of both. It finds everything again after it was killed or the
// machine was restarted.
//
// An image is used in one of two ways. Local mounts its volume once, read-only, for all
// containers of the machine, each of which puts an overlay over it. Network gives one
// container a writable clone. Both return a directory, and neither needs to know what
// runs the containers.
//
// # What is durable
//
// For each image and each container there is a record in Options.Dir. It is written
// before anything is done, and removed when nothing is left. The process may be killed
// after each of these steps:
//
//	local:   record, map, attach, mount, record of what is mounted
//	network: record, clone, map, attach, (again: check) mount, record of what is mounted
//	commit:  record, clone, map, freeze, copy, thaw, unmap, commit, record
//	drop:    record, unmount, unmap, (network) remove the clone, end of the record
//
// The next Open removes everything that no caller had received yet. It takes over what
// callers had received and is still mounted. What is no longer mounted, for example after
// a restart of the machine, is mounted when it is next requested. A loop device needs no
// record: the kernel detaches it when neither a process nor a mount has it.
//
// # Mounts
//
// No mount has the flags nosuid, nodev or noexec, because the directory may be the root
// of a container, in which programs run and the cgroup decides about devices. That is why
// only root may enter Options.Run: nobody else on the machine can reach a set-user-ID
// program of an image.
package node

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"example.org/slipway/oci/volref"
)

// Options are the options of a Manager.
type Options struct {
	// Dir holds the records. It must survive restarts of the machine. It is created if
	// missing.
	Dir string
	// Run is where volumes are mounted: a directory of this Manager only, accessible to
	// root only. A restart of the machine may empty it. It is created if missing.
	Run string
	// Storage holds the volumes.
	Storage Storage
	// Mapping says how RBD images become devices: "fuse" by Storage, "krbd" and "nbd" by
	// the kernel; "auto" or "" by the first of krbd, nbd and fuse that works. Storage
	// maps all other volumes.
	Mapping string
	// Program maps RBD images in the kernel. Default: "rbd".
	Program string
	// Check is the program that repairs a container's copy that was not cleanly
	// unmounted, before it is mounted again, because it has no journal. Default:
	// "e2fsck".
	Check string
	// Outage is how long the storage may not answer before a device of the kernel fails
	// reads and writes. Default 5 minutes. Storage has its own bound.
	Outage time.Duration
	// Limits bound how long the Manager waits.
	Limits Limits
	// Credential, if set, returns credentials for volumes of which the Manager has only a
	// record, because their image was not requested since a restart.
	Credential func(ctx context.Context, r *volref.Record, volume string, clones bool) (volref.Credential, error)
	// Observe, if set, is called with the duration of each step: "credential", "clone",
	// "map", "attach", "check", "mount", "unmount", "unmap", "remove", "copy" or
	// "commit".
	Observe func(step string, took time.Duration)
	// Log gets what is not returned to any caller. Default: none.
	Log *slog.Logger

	step  func(string)                                          // for tests: called with what was just done
	probe func(ctx context.Context, kind, program string) error // of tests: whether the kernel can map
}

// Limits are the limits of a Manager.
type Limits struct {
	// Call is how long one call of the Storage may take. Default: 1 minute.
	Call time.Duration
	// Late is how long after a call was given up, or its caller killed, the storage may
	// still carry it out. Until then, clones whose fate is unknown are looked for.
	// Default: as long as Call; negative: not at all.
	Late time.Duration
	// Sweep is the interval at which failed removals are retried and credentials are
	// checked. Default: 30 seconds.
	Sweep time.Duration
}

// Image is an image as volumes.
type Image struct {
	Record volref.Record
	// Volume is the volume of the record to use. Default: the volume of the whole image.
	Volume string
	// Credential returns a credential for the image. If clones is set, the credential
	// also permits making clones. It may be called until the Manager is closed. It is nil
	// for storage that needs none.
	Credential func(ctx context.Context, clones bool) (volref.Credential, error)
}

// ErrClosed says that the Manager has been closed.
var ErrClosed = errors.New("volumes of this node are closed")

// Manager manages the volumes that a machine uses. Its methods may run concurrently.
// There is one Manager for a Dir and a Run. A call that waits for storage does not delay
// others.
type Manager struct {
	o       Options
	log     *slog.Logger
	storage Storage
	reasons []string // how the mapping was chosen
	boot    string   // this start of the machine
	creds   *credentials

	ctx  context.Context // of what is under way; ends with Close
	stop context.CancelFunc
	wait sync.WaitGroup // flights and the sweeper

	mu      sync.Mutex
	closed  bool
	entries map[string]*entry // by name of the record
	running map[string]bool   // directories in which something is being mounted
	refused map[string]bool   // mappings whose credential was refused, as of the last sweep
}

// Open returns a Manager that takes over what an earlier one left in Dir and Run. What
// cannot be removed now, because the storage does not answer, is retried later.
func Open(ctx context.Context, o Options) (*Manager, error) {
	o.defaults()
	if o.Storage == nil {
		return nil, errors.New("volumes of a node: Options.Storage is missing")
	}
	for _, dir := range []string{o.Dir, o.Run} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("volumes of a node: %w", err)
		}
		if err := os.Chmod(dir, 0o700); err != nil { // see the package comment
			return nil, fmt.Errorf("volumes of a node: %w", err)
		}
	}
	run, err := filepath.EvalSymlinks(o.Run) // mountinfo has no symbolic links
	if err != nil {
		return nil, fmt.Errorf("volumes of a node: %w", err)
	}
	o.Run = run
	boot, err := bootID()
	if err != nil {
		return nil, fmt.Errorf("volumes of a node: %w", err)
	}
	m := &Manager{o: o, log: o.Log, boot: boot, entries: map[string]*entry{}, running: map[string]bool{}}
	if m.storage, m.reasons, err = chooseMapping(ctx, &o); err != nil {
		return nil, fmt.Errorf("volumes of a node: %w", err)
	}
	m.creds = newCredentials(m)
	m.ctx, m.stop = context.WithCancel(context.WithoutCancel(ctx))
	if err := m.recover(); err != nil {
		m.stop()
		return nil, fmt.Errorf("volumes of a node: %w", err)
	}
	m.sweep(ctx)
	m.wait.Go(m.sweeper)
	return m, nil
}

func (o *Options) defaults() {
	if o.Program == "" {
		o.Program = "rbd"
	}
	if o.Check == "" {
		o.Check = "e2fsck"
	}
	if o.Outage <= 0 {
		o.Outage = 5 * time.Minute
	}
	if o.Limits.Call <= 0 {
		o.Limits.Call = time.Minute
	}
	if o.Limits.Late == 0 {
		o.Limits.Late = o.Limits.Call
	}
	if o.Limits.Sweep <= 0 {
		o.Limits.Sweep = 30 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.probe == nil {
		o.probe = probeDevices
	}
	if o.step == nil {
		o.step = func(string) {}
	}
}

// Close closes the Manager. Mounts stay, for containers and for the next Open. It waits
// some seconds for operations in progress. It leaves what hangs longer in the kernel to
// end on its own, and returns an error.
func (m *Manager) Close() error {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	m.stop()
	done := make(chan struct{})
	go func() { m.wait.Wait(); close(done) }()
	select {
	case <-done:
		return nil
	case <-time.After(endPatience):
		return errors.New("close volumes of the node: a mount still waits for the storage")
	}
}

// Local returns the directory with the tree of an image, read-only. It mounts the tree if
// necessary. All callers get the same directory for a volume until DropLocal, unless it
// has stopped working for good. ctx bounds the wait: a mount that takes longer continues,
// and the next Local finds it.
func (m *Manager) Local(ctx context.Context, img Image) (dir string, err error) {
	volume, err := m.check(&img)
	if err != nil {
		return "", fmt.Errorf("mount volume of image %s: %w", img.Record.Manifest, err)
	}
	name := localPrefix + nameOf(placeKey(img.Record.Place), volume)
	m.creds.use(&img, volume)
	if dir, ok := m.mounted(name); ok {
		return dir, m.open()
	}
	err = m.fly(ctx, name, "mount", func(ctx context.Context, e *entry) error {
		return m.mountLocal(ctx, e, &img.Record, volume)
	})
	if err != nil {
		return "", fmt.Errorf("mount volume %s of image %s: %w", volume, img.Record.Manifest, err)
	}
	dir, ok := m.mounted(name)
	if !ok {
		return "", fmt.Errorf("mount volume %s of image %s: it was dropped meanwhile", volume, img.Record.Manifest)
	}
	return dir, nil
}

// DropLocal ends the use of a volume by Local: it removes the mount and the mapping. It
// succeeds if there are none. Errors: ErrInUse while overlays over it exist. Then the
// volume is hidden, and goes when they are gone, even without another call.
func (m *Manager) DropLocal(ctx context.Context, volume string) error {
	var errs []error
	for _, name := range m.namesOf(func(r *record) bool { return r.Key == "" && r.Volume == volume }) {
		err := m.fly(ctx, name, "drop", m.drop)
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("drop volume %s: %w", volume, err)
	}
	return nil
}

// Network returns the directory with a container's writable copy of an image. It makes
// the copy if necessary. What is written stays until DropNetwork, even over restarts of
// the machine. A copy may have become read-only because its storage failed for too long.
// It is repaired and mounted again if nobody uses it; otherwise Network returns an error.
// ctx bounds the wait as with Local.
func (m *Manager) Network(ctx context.Context, key string, img Image) (dir string, err error) {
	volume, err := m.check(&img)
	if err == nil && img.Record.FS != volref.Ext4 {
		err = fmt.Errorf("file system %s cannot be written; use it locally, with an overlay", img.Record.FS)
	}
	if err == nil && key == "" {
		err = errors.New("the container has no key")
	}
	if err != nil {
		return "", fmt.Errorf("clone image %s for container %s: %w", img.Record.Manifest, key, err)
	}
	name := networkPrefix + nameOf(key)
	m.creds.use(&img, volume)
	if dir, ok := m.mounted(name); ok && !failed(dir) {
		return dir, errors.Join(m.open(), m.sameImage(name, &img.Record, volume))
	}
	err = m.fly(ctx, name, "mount", func(ctx context.Context, e *entry) error {
		return m.mountNetwork(ctx, e, key, &img.Record, volume)
	})
	if err != nil {
		return "", fmt.Errorf("clone image %s for container %s: %w", img.Record.Manifest, key, err)
	}
	dir, ok := m.mounted(name)
	if !ok {
		return "", fmt.Errorf("clone image %s for container %s: it was dropped meanwhile", img.Record.Manifest, key)
	}
	return dir, nil
}

// DropNetwork removes a container's copy with all that was written to it. It succeeds if
// there is none. An error says what stays for now. The removal is retried until it
// succeeds, even without another call.
func (m *Manager) DropNetwork(ctx context.Context, key string) error {
	if err := m.fly(ctx, networkPrefix+nameOf(key), "drop", m.drop); err != nil {
		return fmt.Errorf("drop the volume of container %s: %w", key, err)
	}
	return nil
}

// Commit makes a committed volume id from the present content of a container's copy. The
// container continues to run, but its writes wait while the blocks are copied. Commit
// succeeds if the volume exists. The volume is in the same place as the container's copy,
// so with RBD its name begins with "c-".
func (m *Manager) Commit(ctx context.Context, key, id string) error {
	name := networkPrefix + nameOf(key)
	err := m.fly(ctx, name, "commit "+id, func(ctx context.Context, e *entry) error {
		return m.commit(ctx, e, id)
	})
	if err != nil {
		return fmt.Errorf("commit container %s as volume %s: %w", key, id, err)
	}
	return nil
}

// open returns ErrClosed if the Manager is closed.
func (m *Manager) open() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return ErrClosed
	}
	return nil
}

// check returns the volume that an image means, and refuses one that this node cannot
// use.
func (m *Manager) check(img *Image) (string, error) {
	r := img.Record
	r.Layers = slices.Clone(r.Layers)
	for i := range r.Layers {
		// Records of others have no volumes of containers, but Commit makes such volumes.
		if l := &r.Layers[i]; volref.IsClone(l.Volume) {
			l.Volume = "of-" + l.Volume
		}
	}
	if err := r.Check(); err != nil {
		return "", err
	}
	volume := img.Volume
	if volume == "" {
		volume = img.Record.Volume()
	}
	if !slices.ContainsFunc(img.Record.Layers, func(l volref.RecordLayer) bool { return volume != "" && l.Volume == volume }) {
		return "", fmt.Errorf("its record has no volume %q", volume)
	}
	return volume, nil
}

// random returns a part of a name that nobody has used.
func random() string {
	var b [8]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}
