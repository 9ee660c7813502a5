package images

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"example.org/slipway/agent/registries"
	"example.org/slipway/config"
	"example.org/slipway/gear"
	"example.org/slipway/node/gearfs"
	"example.org/slipway/node/snapshotter"
	"example.org/slipway/oci"
)

// claims are chains that also claim the layers of pulls and of mounts.
type claims struct {
	*chains
	choice config.AgentChoice
	plain  choices // of images for which there is no chain
	// quiet says that the trees of claimed images are not prepared.
	quiet bool
}

// Claim implements snapshotter.Lower.
func (c *claims) Claim(ctx context.Context, l snapshotter.Layer) (bool, error) {
	ok, err := c.claim(ctx, l, true)
	c.log.Debug("layer of a pull", "image", l.ImageRef, "layer", l.Digest, "chain", l.ChainID, "claimed", ok, "err", err)
	return ok, err
}

// claim is like Claim, for a snapshot, or for a mount without one. It tries the ways of the
// configuration in order.
func (c *claims) claim(ctx context.Context, l snapshotter.Layer, snapshot bool) (bool, error) {
	if l.ImageRef == "" || l.Manifest == "" || l.Digest == "" {
		return false, nil
	}
	ref, err := registries.Parse(l.ImageRef)
	if err != nil {
		return false, err
	}
	_, ok, err := c.claimBy(ctx, l, ref, snapshot, ways(&c.choice, ref), "")
	return ok, err
}

// claimBy is like claim, with the ways to try. fs is the file system that a volume must have,
// or "" if any will do. It returns what became of each way that it tried.
func (c *claims) claimBy(ctx context.Context, l snapshotter.Layer, ref registries.Reference,
	snapshot bool, use []string, fs string) (why []string, ok bool, err error) {
	reg, err := c.regs.Of(ref)
	if err != nil {
		return nil, false, err
	}
	for _, way := range use {
		if way == config.WayPlain {
			err = nil
			break
		}
		reason := ""
		if way == config.WayVolume {
			reason, err = c.claimVolume(ctx, l, ref, reg, snapshot, fs)
		} else {
			reason, err = c.claimGear(ctx, l, ref, reg, snapshot)
		}
		switch {
		case ctx.Err() != nil:
			return why, false, context.Cause(ctx)
		case err != nil:
			why = append(why, way+": "+err.Error())
		case reason != "":
			why = append(why, way+": "+reason)
		default:
			why = append(why, way+": "+c.used(way))
			err = c.settle(l, way, why, snapshot)
			if len(l.Layers) == 1 {
				if snapshot {
					c.plain.drop(l.ImageRef)
				}
				c.volumes.settled(reg, ref, oci.Digest(l.Manifest), fs)
			}
			return why, true, err
		}
	}
	if !snapshot { // nobody unpacks it; a retry gets the reason that then applies
		c.volumes.settled(reg, ref, oci.Digest(l.Manifest), fs)
		return why, false, err
	}
	if len(use) == 0 || use[0] != config.WayPlain {
		c.log.Info("a layer is unpacked", "image", l.ImageRef, "layer", l.Digest, "why", why)
	}
	c.plain.put(l.ImageRef, append(slices.Clone(why), "plain: used"))
	return why, false, err
}

// used says how a way was taken.
func (c *claims) used(way string) string {
	if way == config.WayGear && c.eager() {
		return "unpacked by the agent, as " + c.whyEager()
	}
	return "used"
}

// whyEager says why images are unpacked.
func (c *claims) whyEager() string {
	return "this machine cannot mount it lazily: " + strings.Join(c.support.Reasons, "; ")
}

// settle records, with the last layer of an image, how containers get the tree of the
// image, and starts to prepare the tree.
func (c *claims) settle(l snapshotter.Layer, way string, why []string, snapshot bool) error {
	if len(l.Layers) != 1 {
		return nil
	}
	c.changing.Lock()
	rec, err := c.records.load(l.ChainID)
	if err == nil && rec.Way == "" && (snapshot || rec.Why == nil) {
		rec.Why = why
		if snapshot {
			rec.Way = way
		}
		err = c.records.update(rec)
	}
	c.changing.Unlock()
	if err == nil && rec.way() == way && !c.quiet {
		c.work.Go(func() { c.prepare(l.ChainID, l.ImageRef) })
	}
	return err
}

// claimVolume claims a layer of an image that is a volume, or returns why it cannot.
func (c *claims) claimVolume(ctx context.Context, l snapshotter.Layer, ref registries.Reference,
	reg *registries.Registry, snapshot bool, fs string) (reason string, err error) {
	var below []string
	if l.Parent != "" {
		parent, err := c.sound(l.Parent)
		if err != nil {
			return "", err
		}
		below = parent.Layers
	}
	if c.volumes == nil && c.eager() {
		return "there are no volumes, as " + c.whyEager(), nil
	}
	r, reason := c.volumes.decide(ctx, reg, ref, l.ImageRef, oci.Digest(l.Manifest), fs)
	if r == nil {
		return reason, nil
	}
	if len(r.Layers) != len(below)+len(l.Layers) {
		return fmt.Sprintf("its record has %d layers, and the image %d", len(r.Layers), len(below)+len(l.Layers)), nil
	}
	v := claimed(r, l.ImageRef, l.Digest, len(l.Layers)-1)
	if v == nil {
		return fmt.Sprintf("its record does not have layer %s where the image has it", l.Digest), nil
	}
	if _, err := c.sound(l.ChainID); err != nil && !errors.Is(err, errNoRecord) {
		return "", err
	}
	sources := reg.Sources(ref, l.Manifest)
	c.changing.Lock()
	defer c.changing.Unlock()
	domain := c.regs.Domain(ref.Host)
	err = c.merge(l.ChainID, domain, sources, snapshot)
	if errors.Is(err, errNoRecord) {
		return "", c.records.create(&chainRecord{Chain: l.ChainID, Parent: l.Parent, Digest: l.Digest, Ref: l.ImageRef, Snapshot: snapshot,
			Domain: domain, Sources: sources, Layers: append(slices.Clone(below), l.Digest), Volume: v}, nil)
	}
	if err != nil {
		return "", err
	}
	rec, err := c.records.load(l.ChainID)
	if err != nil || rec.Volume.usable() || rec.Volume != nil && !v.usable() {
		return "", err
	}
	rec.Volume = v
	return "", c.records.update(rec)
}

// claimGear claims a layer that has an index, or returns why it cannot.
func (c *claims) claimGear(ctx context.Context, l snapshotter.Layer, ref registries.Reference, reg *registries.Registry, snapshot bool) (reason string, err error) {
	if snapshot && c.eager() { // containerd unpacks it
		return c.whyEager(), nil
	}
	if reason := c.regs.Believed(ref.Host); reason != "" {
		return reason, nil
	}
	// Also for a layer that has an index: a record below it may have been lost since.
	if err := c.fill(ctx, l.Parent); err != nil {
		return "", err
	}
	rec, err := c.sound(l.ChainID)
	switch {
	case errors.Is(err, errNoRecord):
		reason, err := c.claimNew(ctx, l, ref, reg, snapshot)
		if reason != "" {
			reason = fmt.Sprintf("layer %s has no index: %s", l.Digest, reason)
		}
		return reason, err
	case err != nil:
		return "", err
	case rec.Domain != c.regs.Domain(ref.Host):
		return "", fmt.Errorf("layer %s: %w", l.Digest, errOtherDomain)
	case rec.Index == "":
		if err := c.fill(ctx, l.ChainID); err != nil {
			return "", err
		}
		p, err := c.pileOf(ctx, l.ChainID)
		if err == nil {
			err = c.files.CheckSet(gearfs.ImageSpec{Domain: rec.Domain, Sources: rec.Sources}, p.files)
		}
		if err != nil {
			return "", err
		}
	}
	return "", c.claimAgain(l.ChainID, c.regs.Domain(ref.Host), reg.Sources(ref, l.Manifest), snapshot)
}

// fill fetches the missing indexes of a chain. These are the indexes of layers whose
// image came as a volume. The chain "" has no layers.
func (c *chains) fill(ctx context.Context, chain string) error {
	if chain == "" {
		return nil
	}
	line, err := c.line(chain)
	if err != nil {
		return err
	}
	for _, rec := range line {
		if rec.Index != "" {
			continue
		}
		if err := c.fetchIndex(ctx, rec); err != nil {
			return fmt.Errorf("layer %s came here as a part of a volume: %w", rec.Digest, err)
		}
	}
	return nil
}

// fetchIndex fetches the index of a layer that is on the node without an index.
func (c *chains) fetchIndex(ctx context.Context, rec *chainRecord) error {
	ref, err := registries.Parse(rec.Ref)
	if err != nil {
		return err
	}
	reg, err := c.regs.Of(ref)
	if err != nil {
		return err
	}
	got, err := c.indexes.Wait(ctx, reg, ref, oci.Digest(rec.Digest))
	if err != nil {
		return err
	}
	if got.Index == nil {
		return fmt.Errorf("%w, and registry %s has none: %s", errNoIndex, reg.Host, got.Why)
	}
	if got.DiffID != "" && chainID(idOf(rec.Parent), got.DiffID) != idOf(rec.Chain) {
		return fmt.Errorf("registry %s gives the index of another layer", reg.Host)
	}
	c.changing.Lock()
	defer c.changing.Unlock()
	now, err := c.records.load(rec.Chain)
	if err != nil || now.Index != "" {
		return err
	}
	return c.records.addIndex(now, got.Bytes)
}

// claimNew fetches the index of a layer and keeps it if its tree can be mounted. If it
// has no index to keep, it returns the reason and makes no record.
func (c *claims) claimNew(ctx context.Context, l snapshotter.Layer, ref registries.Reference, reg *registries.Registry, snapshot bool) (reason string, err error) {
	var below []string
	if l.Parent != "" {
		parent, err := c.sound(l.Parent)
		if err != nil {
			return "", err
		}
		below = parent.Layers
	}
	c.indexes.Ahead(reg, ref, oci.Digest(l.Manifest), l.Layers, !c.quiet) // the layers above are requested at the same time
	got, err := c.indexes.Wait(ctx, reg, ref, oci.Digest(l.Digest))
	if err != nil || got.Index == nil {
		return got.Why, err
	}
	x := got.Index
	if got.DiffID != "" && l.DiffID != "" && got.DiffID != l.DiffID {
		return "", fmt.Errorf("registry %s gives the index of another layer for %s: %w", reg.Host, l.Digest,
			&gear.MismatchError{What: "diff ID", Want: oci.Digest(l.DiffID), Got: oci.Digest(got.DiffID)})
	}
	sources, domain := reg.Sources(ref, l.Manifest), c.regs.Domain(ref.Host)
	if err := c.fits(ctx, l, x, domain, sources); err != nil {
		return "", fmt.Errorf("layer %s, with those below it, cannot be mounted: %w", l.Digest, err)
	}
	c.cache.Room(roomFor(x))
	c.changing.Lock()
	defer c.changing.Unlock()
	if err := c.merge(l.ChainID, domain, sources, snapshot); !errors.Is(err, errNoRecord) {
		return "", err // another claim was faster
	}
	if l.Parent != "" { // it may have been dropped meanwhile
		if _, err := c.records.load(l.Parent); err != nil {
			return "", err
		}
	}
	rec := &chainRecord{Chain: l.ChainID, Parent: l.Parent, Digest: l.Digest, Ref: l.ImageRef, Snapshot: snapshot,
		Domain: domain, Sources: sources, Layers: append(slices.Clone(below), l.Digest)}
	if err := c.records.create(rec, got.Bytes); err != nil {
		return "", fmt.Errorf("keep the index of layer %s: %w", l.Digest, err)
	}
	return "", nil
}

// noLayers is the name of the chain of an image without layers. Its tree is empty.
var noLayers = string(oci.SHA256(nil))

// claimNothing registers the tree of an image without layers, and sets the chain of l to
// its name.
func (c *claims) claimNothing(l *snapshotter.Layer, ref registries.Reference) error {
	domain := c.regs.Domain(ref.Host)
	l.ChainID = c.keyIn(noLayers, domain)
	c.changing.Lock()
	defer c.changing.Unlock()
	err := c.merge(l.ChainID, domain, nil, false)
	if errors.Is(err, errNoRecord) {
		var empty bytes.Buffer
		if err = (&gear.Index{}).Encode(&empty); err == nil {
			err = c.records.create(&chainRecord{Chain: l.ChainID, Ref: l.ImageRef, Domain: domain, Way: config.WayGear}, empty.Bytes())
		}
	}
	return err
}

// claimAgain adds sources of the same domain to a known chain. Errors: errNoRecord,
// errOtherDomain.
func (c *claims) claimAgain(chain, domain string, sources []gearfs.SourceRef, snapshot bool) error {
	c.changing.Lock()
	defer c.changing.Unlock()
	return c.merge(chain, domain, sources, snapshot)
}

// merge is like claimAgain, for a caller that holds changing.
func (c *claims) merge(chain, domain string, sources []gearfs.SourceRef, snapshot bool) error {
	rec, err := c.records.load(chain)
	if err != nil {
		return err
	}
	if rec.Domain != domain {
		return fmt.Errorf("chain %s: %w", chain, errOtherDomain)
	}
	n := len(rec.Sources)
	for _, s := range sources {
		if !slices.Contains(rec.Sources, s) {
			rec.Sources = append(rec.Sources, s)
		}
	}
	if len(rec.Sources) == n && (rec.Snapshot || !snapshot) {
		return nil
	}
	rec.Snapshot = rec.Snapshot || snapshot
	if err := c.records.update(rec); err != nil {
		return err
	}
	if c.files.HasImage(rec.Chain) {
		return c.files.AddImage(gearfs.ImageSpec{Chain: rec.Chain, Sources: sources}, nil)
	}
	return nil
}
