package images

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"example.org/slipway/agent/registries"
	"example.org/slipway/agent/volumeworker"
	"example.org/slipway/oci"
	"example.org/slipway/oci/volref"
	"example.org/slipway/volume/node"
)

// decisionKey is an image as it is pulled.
type decisionKey struct {
	reg      *registries.Registry // one for each credential
	repo     string
	manifest oci.Digest
	fs       string // the required file system; "" if any will do
}

// decision says whether an image comes as a volume.
type decision struct {
	done   chan struct{}  // closed when the other fields are set
	record *volref.Record // nil if the image does not come as a volume
	reason string
	volume string // is kept as long as the decision holds; "" if there is none
}

const (
	// volumeTrial bounds how long a pull waits for the first mount of a volume. After
	// that, the image comes in another way.
	volumeTrial = 20 * time.Second
	// decisionKeep is how long a decision holds for the layers of one pull.
	decisionKeep = time.Minute
)

// decide finds out whether an image comes as a volume by mapping and mounting it. All
// layers of one pull get the same answer.
func (v *volumes) decide(ctx context.Context, reg *registries.Registry, ref registries.Reference, image string, manifest oci.Digest, fs string) (*volref.Record, string) {
	if v == nil {
		return nil, "no storage of volumes is configured on this node"
	}
	key := decisionKey{reg, ref.Repo, manifest, fs}
	v.gate.Lock()
	d := v.decided[key]
	if d == nil {
		d = &decision{done: make(chan struct{})}
		v.decided[key] = d
		v.work.Go(func() { v.try(key, d, image) })
	}
	v.gate.Unlock()
	select {
	case <-d.done:
		return d.record, d.reason
	case <-ctx.Done():
		return nil, context.Cause(ctx).Error()
	}
}

// try makes a decision and keeps it for a while.
func (v *volumes) try(key decisionKey, d *decision, image string) {
	ctx, cancel := context.WithTimeout(v.ctx, volumeTrial)
	defer cancel()
	record, err := v.offered(ctx, key)
	if err == nil {
		d.volume = record.Volume()
		v.gate.Lock()
		v.trying[d.volume]++
		v.gate.Unlock()
		_, err = v.mgr.Local(ctx, node.Image{Record: *record, Credential: v.credential(image, record)})
	}
	if err != nil {
		d.reason = err.Error()
	} else {
		d.record = record
	}
	close(d.done)
	time.AfterFunc(decisionKeep, func() { v.expire(key, d) })
}

// expire ends a decision, unless it has ended. Its volume is dropped if no image uses it.
func (v *volumes) expire(key decisionKey, d *decision) {
	v.gate.Lock()
	if v.decided[key] != d || v.ctx.Err() != nil {
		v.gate.Unlock()
		return
	}
	delete(v.decided, key)
	if v.trying[d.volume]--; v.trying[d.volume] <= 0 {
		delete(v.trying, d.volume)
	}
	v.gate.Unlock()
	if d.volume != "" {
		v.dropUnneeded(d.volume)
	}
}

// settled ends the decision of an image that now has all its layers, or will not get
// them. From then on its volume is dropped together with the image, and not some time
// later.
func (v *volumes) settled(reg *registries.Registry, ref registries.Reference, manifest oci.Digest, fs string) {
	if v == nil {
		return
	}
	key := decisionKey{reg, ref.Repo, manifest, fs}
	v.gate.Lock()
	d := v.decided[key]
	v.gate.Unlock()
	if d == nil {
		return
	}
	select {
	case <-d.done:
		if d.volume == "" { // nothing to drop; dropping may take time
			v.expire(key, d)
			return
		}
		v.work.Go(func() { v.expire(key, d) })
	default: // somebody has just started again
	}
}

// offered asks the registry for the image's record that this node can use.
func (v *volumes) offered(ctx context.Context, key decisionKey) (*volref.Record, error) {
	if why := v.regs.Trusts(key.reg.Host); why != "" {
		return nil, fmt.Errorf("of registry %s: %s", key.reg.Host, why)
	}
	st, err := key.reg.Volumes(ctx, key.repo, key.manifest)
	switch {
	case oci.HasCode(err, oci.CodeUnsupported):
		return nil, errors.New("the registry has no volumes")
	case err != nil:
		return nil, fmt.Errorf("ask the registry: %w", err)
	case len(st.Records) == 0 && st.State != "":
		return nil, fmt.Errorf("no record in the registry: its build is %s%s", st.State, because(st.Reason))
	case len(st.Records) == 0:
		return nil, errors.New("no record in the registry (slipway volume build makes one)")
	}
	return v.pick(st.Records, key)
}

func because(reason string) string {
	if reason == "" {
		return ""
	}
	return ", " + reason
}

// pick returns the record that suits this node best. The records were checked when they
// arrived. It prefers a compact image if nobody writes to it, and otherwise one that can
// be cloned.
func (v *volumes) pick(records []volref.Record, key decisionKey) (*volref.Record, error) {
	want := []string{volref.EROFS, volref.Ext4}
	if key.fs != "" {
		want = []string{key.fs}
	} else if v.cfg.Mode == "network" {
		want = []string{volref.Ext4}
	}
	var errs []error
	for _, fs := range want {
		for i := range records {
			r := &records[i]
			if r.FS != fs {
				continue
			}
			err := volumeworker.Connected(v.cfg, r.Place)
			if err == nil {
				return r, nil
			}
			errs = append(errs, err)
		}
	}
	if len(errs) == 0 {
		return nil, fmt.Errorf("the registry has no record with file system %s", strings.Join(want, " or "))
	}
	return nil, errors.Join(errs...)
}
