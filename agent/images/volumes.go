package images

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"example.org/slipway/agent/api"
	"example.org/slipway/agent/registries"
	"example.org/slipway/agent/volumeworker"
	"example.org/slipway/config"
	"example.org/slipway/oci/volref"
	"example.org/slipway/volume/block"
	"example.org/slipway/volume/node"
)

// volumes are the images that come to this node as volumes. A nil *volumes is valid and
// empty.
type volumes struct {
	cfg     *config.AgentVolumes
	storage *volumeworker.Storage
	mgr     *node.Manager
	regs    *registries.Set
	records *records
	steps   *stepTimes
	log     *slog.Logger

	ctx  context.Context // ends with the agent
	work sync.WaitGroup

	// gate is held while the agent checks whether a volume is needed, and while the need
	// for a volume begins.
	gate    sync.Mutex
	trying  map[string]int // volumes of images that are being pulled
	decided map[decisionKey]*decision

	mu         sync.Mutex
	containers map[string]volumeContainer // by key
}

// volumeContainer is a container on a volume.
type volumeContainer struct {
	chain   string
	started time.Time
}

// volumeRecord is the record of a chain that can come as a volume.
type volumeRecord struct {
	// Record belongs to the image with which the chain was claimed. It is cut to the
	// chain.
	Record volref.Record `json:"record"`
	// Ref is the reference of that image.
	Ref string `json:"ref"`
	// Own reports whether the volume was made from a container on this node. It is
	// deleted with the chain.
	Own bool `json:"own,omitempty"`
}

// usable reports whether there is a volume that holds the tree of this very chain.
func (r *volumeRecord) usable() bool { return r != nil && r.Record.Volume() != "" }

// openVolumes takes over what an earlier agent mounted.
func openVolumes(ctx, life context.Context, cfg *config.Agent, o *Options, recs *records) (*volumes, error) {
	if !o.Volumes || !cfg.Volumes.Configured() {
		return nil, nil
	}
	lay := &o.Dirs
	v := &volumes{cfg: &cfg.Volumes, storage: volumeworker.NewStorage(lay.VolumeSocket, lay.Volumes), regs: o.Registries, records: recs,
		steps: newStepTimes(), log: o.Log, ctx: life,
		trying: map[string]int{}, decided: map[decisionKey]*decision{}, containers: map[string]volumeContainer{}}
	var err error
	v.mgr, err = node.Open(ctx, node.Options{Dir: lay.VolumeRecords, Run: lay.VolumeMounts, Storage: v.storage, Mapping: cfg.Volumes.Mapping,
		Outage: cfg.Volumes.Outage, Limits: node.Limits{Sweep: sweepOf(cfg.Volumes.Outage)}, Credential: v.credentialOf, Observe: v.steps.observe, Log: o.Log})
	if err != nil {
		return nil, err
	}
	return v, nil
}

// sweepOf returns how often volumes are checked. That is often enough that a volume whose
// credential is refused gets a new one before waiting requests fail.
func sweepOf(outage time.Duration) time.Duration {
	return min(30*time.Second, max(outage/2, 500*time.Millisecond))
}

// begin drops volumes that no image needs. It is called once mounts without containerd
// are known again.
func (v *volumes) begin() {
	if v == nil {
		return
	}
	v.work.Go(func() {
		s, err := v.mgr.Status(v.ctx)
		if err != nil {
			return
		}
		for i := range s.Volumes {
			if s.Volumes[i].Container == "" {
				v.dropUnneeded(s.Volumes[i].Volume)
			}
		}
	})
}

// close ends the use of volumes. Mounts stay.
func (v *volumes) close() error {
	if v == nil {
		return nil
	}
	v.work.Wait()
	err := v.mgr.Close()
	v.storage.Close()
	return err
}

// claimed cuts the record of an image to the chain of one of its layers: all layers
// except the last above ones. It returns nil if the layer is not in the record.
func claimed(r *volref.Record, image, digest string, above int) *volumeRecord {
	n := len(r.Layers) - above
	if n < 1 || string(r.Layers[n-1].Digest) != digest {
		return nil
	}
	cut := *r
	cut.Layers = slices.Clone(r.Layers[:n])
	return &volumeRecord{Record: cut, Ref: image}
}

// heldCredential is the last credential of an image, and the time since when it is held.
type heldCredential struct {
	volref.Credential
	since time.Time
}

// refused returns the user of a credential that the storage does not accept, or "". A
// refusal is the only reason to ask for another credential in the first half of its
// lifetime.
func (h *heldCredential) refused(now time.Time) string {
	if h.since.IsZero() || !now.Before(h.since.Add(h.Expires.Sub(h.since)/2)) {
		return ""
	}
	return h.User
}

// credential returns a function that gets a credential for an image.
func (v *volumes) credential(image string, r *volref.Record) func(context.Context, bool) (volref.Credential, error) {
	if r.Place.Driver == "file" {
		return nil // the place is a directory, which needs no credential
	}
	manifest := r.Manifest
	var mu sync.Mutex
	held := map[bool]*heldCredential{false: {}, true: {}} // by whether it includes clones
	return func(ctx context.Context, clones bool) (c volref.Credential, err error) {
		mu.Lock()
		defer mu.Unlock()
		last := held[clones]
		ref, err := registries.Parse(image)
		if err != nil {
			return c, err
		}
		reg, err := v.regs.Of(ref)
		if err != nil {
			return c, err
		}
		if why := v.regs.Trusts(reg.Host); why != "" {
			return c, fmt.Errorf("of registry %s: %s", reg.Host, why)
		}
		c, err = reg.VolumeCredential(ctx, ref.Repo, manifest, clones, last.refused(time.Now()))
		if err == nil {
			*last = heldCredential{c, time.Now()}
		}
		return c, err
	}
}

// credentialOf gets a credential for a volume of an image that was pulled before this
// agent started.
func (v *volumes) credentialOf(ctx context.Context, r *volref.Record, volume string, clones bool) (volref.Credential, error) {
	if r.Place.Driver == "file" {
		return volref.Credential{}, nil
	}
	all, err := v.records.all(func(string, error) {})
	if err != nil {
		return volref.Credential{}, err
	}
	var other *volumeRecord // of the same storage, whose credential is valid for all of it
	for _, rec := range all {
		o := rec.Volume
		if o == nil || o.Record.Place != r.Place {
			continue
		}
		if other = o; o.Record.Manifest == r.Manifest {
			break
		}
	}
	if other == nil {
		return volref.Credential{}, fmt.Errorf("no image here is in the storage of volume %s any more", volume)
	}
	return v.credential(other.Ref, &other.Record)(ctx, clones || strings.HasPrefix(volume, "c-"))
}

func (v *volumes) image(r *volumeRecord) node.Image {
	get := v.credential(r.Ref, &r.Record)
	if get == nil || !r.Own {
		return node.Image{Record: r.Record, Credential: get}
	}
	// A volume that was committed on this node is among the clones.
	return node.Image{Record: r.Record, Credential: func(ctx context.Context, _ bool) (volref.Credential, error) { return get(ctx, true) }}
}

// errNoVolumes says that an image is on the node as a volume, but volumes are off.
var errNoVolumes = errors.New("the image was pulled as a volume, and the agent has no volumes: its configuration has no storage of them any more, or there is no FUSE; mend that, or remove the image and pull it again")

// local mounts a volume for all containers of the node.
func (v *volumes) local(ctx context.Context, r *volumeRecord) (string, error) {
	if v == nil {
		return "", errNoVolumes
	}
	dir, err := v.mgr.Local(ctx, v.image(r))
	if err != nil {
		return "", fmt.Errorf("%w%s", err, wayOut(err))
	}
	return dir, nil
}

// network mounts a clone for a container.
func (v *volumes) network(ctx context.Context, key string, r *volumeRecord) (string, error) {
	if v == nil {
		return "", errNoVolumes
	}
	dir, err := v.mgr.Network(ctx, key, v.image(r))
	if err != nil {
		return "", fmt.Errorf("%w%s", err, wayOut(err))
	}
	return dir, nil
}

// wayOut says what can be done about an error of the storage.
func wayOut(err error) string {
	switch {
	case errors.Is(err, block.ErrNotFound):
		return "; the volume was removed: remove the image here and pull it again"
	case errors.Is(err, block.ErrAway), errors.Is(err, context.DeadlineExceeded):
		return "; the container can be started when the storage answers again"
	case errors.Is(err, block.ErrDenied):
		return "; the registry must give out a new credential: is it reached, and may this node pull the image?"
	case errors.Is(err, block.ErrFull):
		return "; make room in the storage, or set volumes.mode: local"
	}
	return "; it is tried again when the container is started again"
}

// dropWait bounds how long to wait for the removal of a volume.
const dropWait = 5 * time.Second

// dropUnneeded ends the use of a volume unless an image or a pull needs it.
func (v *volumes) dropUnneeded(volume string) {
	v.gate.Lock()
	defer v.gate.Unlock()
	if v.trying[volume] > 0 {
		return
	}
	all, err := v.records.all(func(string, error) {})
	if err != nil || slices.ContainsFunc(all, func(r *chainRecord) bool { return r.Volume.usable() && r.Volume.Record.Volume() == volume }) {
		return
	}
	// Pulls wait for the gate and must not wait for the storage. Work that takes longer
	// continues in the background.
	ctx, cancel := context.WithTimeout(v.ctx, dropWait)
	defer cancel()
	if err := v.mgr.DropLocal(ctx, volume); err != nil && v.ctx.Err() == nil {
		v.log.Info("a volume stays mounted for now", "volume", volume, "err", err)
	}
}

// release notes that a chain that had a volume is gone.
func (v *volumes) release(r *volumeRecord) {
	if v == nil || !r.usable() {
		return
	}
	v.work.Go(func() { v.dropUnneeded(r.Record.Volume()) })
}

// remove deletes the volume of a chain that was made on this node.
func (v *volumes) remove(ctx context.Context, r *volumeRecord) error {
	if v == nil {
		return errNoVolumes
	}
	volume := r.Record.Volume()
	if err := v.mgr.DropLocal(ctx, volume); err != nil {
		return err
	}
	var c volref.Credential
	if get := v.credential(r.Ref, &r.Record); get != nil {
		var err error
		if c, err = get(ctx, true); err != nil {
			return err
		}
	}
	return v.storage.Remove(ctx, r.Record.Place, c, volume)
}

// started notes a container on a volume.
func (v *volumes) started(key, chain string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if _, ok := v.containers[key]; !ok {
		v.containers[key] = volumeContainer{chain, time.Now()}
	}
}

func (v *volumes) stopped(key string) {
	if v == nil {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.containers, key)
}

// chainOf returns the chain of a container, by its key or by the last part of the key. It
// returns "" if there is none.
func (v *volumes) chainOf(container string) string {
	v.mu.Lock()
	defer v.mu.Unlock()
	for key, c := range v.containers {
		if key == container || strings.HasSuffix(key, "/"+container) {
			return c.chain
		}
	}
	return ""
}

// statusWait bounds how long to wait for the state of the volume worker.
const statusWait = 2 * time.Second

func (v *volumes) status(ctx context.Context) *api.VolumesStatus {
	if v == nil {
		return nil
	}
	s, err := v.mgr.Status(ctx)
	out := &api.VolumesStatus{Mode: v.cfg.Mode, Mapping: s.Mapping, Volumes: []api.VolumeUse{}}
	ctx, cancel := context.WithTimeout(ctx, statusWait)
	defer cancel()
	list, lerr := v.storage.List(ctx)
	if err = cmp.Or(err, lerr); err != nil {
		out.Problem = err.Error()
	} else {
		v.steps.count(list)
	}
	for i := range s.Volumes {
		u := api.VolumeUse{VolumeStatus: s.Volumes[i]}
		for k := range list {
			if l := &list[k]; l.Mapping.Name == u.Name {
				u.ReadBytes, u.WrittenBytes, u.Errors, u.LastError = l.ReadBytes, l.WrittenBytes, l.Errors, l.LastError
			}
		}
		out.Volumes = append(out.Volumes, u)
	}
	return out
}
