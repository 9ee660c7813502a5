package images

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"example.org/slipway/agent/api"
	"example.org/slipway/agent/registries"
	"example.org/slipway/config"
	gearclient "example.org/slipway/gear/client"
	"example.org/slipway/internal/durable"
	"example.org/slipway/node/snapshotter"
	"example.org/slipway/node/view"
	"example.org/slipway/oci"
)

// mountRecord is the record of a mount without containerd.
type mountRecord api.MountStatus

// there reports whether the mount of the record still exists.
func (r *mountRecord) there() bool {
	if r.Mapped {
		return true
	}
	mnt, there, err := view.Mounted(r.Dir)
	// A read-only volume is mounted directly, without an overlay.
	return err == nil && there && (mnt.Type == "overlay" || r.Way == config.WayVolume && r.Upper == "")
}

// key returns the container name of a mount.
func (r *mountRecord) key() string { return "mount:" + r.Dir }

// Resume reads the records of mounts. It forgets the volumes that are no longer mounted,
// and drops volumes that no image needs.
func (m *Set) Resume() error {
	c := m.chains
	entries, err := os.ReadDir(m.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := filepath.Join(m.dir, e.Name())
		if filepath.Ext(name) != ".json" {
			continue
		}
		b, err := os.ReadFile(name)
		var r mountRecord
		if err == nil {
			err = json.Unmarshal(b, &r)
		}
		if err != nil || m.file(r.Dir) != name {
			c.log.Warn("record of a mount is damaged", "file", name, "err", err)
			continue
		}
		if r.there() {
			m.all[r.Dir] = &r
			if err := c.adopt(&r); err != nil {
				c.log.Warn("a mount is found again, but its image is not", "dir", r.Dir, "err", err)
			}
			continue
		}
		m.letGo(&r)
	}
	c.volumes.begin()
	return m.loadWarm()
}

// letGo forgets a mount that somebody else unmounted.
func (m *Set) letGo(r *mountRecord) {
	c := m.chains
	if r.Clone {
		if err := m.lower.DropRoot(c.ctx, r.key()); err != nil {
			c.log.Warn("the clone of a mount that is gone stays for now", "dir", r.Dir, "err", err)
		}
	}
	if err := m.forget(r); err != nil {
		c.log.Warn("a mount that is gone is not forgotten", "dir", r.Dir, "err", err)
	}
}

// sweep forgets mounts that no longer exist, usually because of umount(8).
func (m *Set) sweep(ctx context.Context) {
	m.mu.Lock()
	var gone []*mountRecord
	for dir, r := range m.all {
		if !m.making[dir] && !r.there() {
			gone = append(gone, r)
			delete(m.all, dir)
		}
	}
	m.mu.Unlock()
	for _, r := range gone {
		if err := m.chains.Stopped(ctx, r.key()); err != nil {
			m.chains.log.Warn("a mount that is gone counts as running", "dir", r.Dir, "err", err)
		}
		m.letGo(r)
	}
}

func (m *Set) file(dir string) string {
	sum := sha256.Sum256([]byte(dir))
	return filepath.Join(m.dir, hex.EncodeToString(sum[:16])+".json")
}

// Mount mounts an image at a directory.
func (m *Set) Mount(ctx context.Context, req api.MountRequest) (*api.MountAnswer, error) {
	if err := checkMount(&req); err != nil {
		return nil, err
	}
	m.sweep(ctx)
	use, fs, err := m.modeOf(&req)
	if err != nil {
		return nil, err
	}
	img, why, r, err := m.reserve(ctx, &req, use, fs)
	if err != nil {
		return nil, err
	}
	if req.Mode == api.ModeNetwork {
		r.Clone = true
		err = m.clone(ctx, r, attributesOf(&req))
	} else {
		err = m.overlay(ctx, r, &req)
	}
	m.mu.Lock()
	delete(m.making, r.Dir)
	if err != nil {
		delete(m.all, r.Dir)
	}
	m.mu.Unlock()
	if err != nil {
		return nil, errors.Join(err, m.forget(r))
	}
	return &api.MountAnswer{Image: req.Image, Manifest: img.Manifest.Digest, Chain: r.Chain, Config: img.Config, Why: why}, nil
}

// reserve claims the layers of an image and records that they are for a directory.
func (m *Set) reserve(ctx context.Context, req *api.MountRequest, use []string, fs string) (*gearclient.Image, []string, *mountRecord, error) {
	m.claiming.RLock()
	defer m.claiming.RUnlock()
	img, l, why, err := m.claim(ctx, req.Image, req.Platform, use, fs)
	if err != nil {
		return nil, nil, nil, err
	}
	way, _, _ := strings.Cut(why[len(why)-1], ":")
	r := &mountRecord{Image: req.Image, Dir: req.Dir, Upper: req.Upper, Chain: l.ChainID, Way: way}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.all[r.Dir] != nil {
		return nil, nil, nil, fmt.Errorf("something is being mounted at %s already", r.Dir)
	}
	if other := m.sharesUpper(r.Upper); other != "" {
		return nil, nil, nil, fmt.Errorf("%s takes the changes of the mount at %s; two mounts that write to one directory would damage it", r.Upper, other)
	}
	m.all[r.Dir], m.making[r.Dir] = r, true
	return img, why, r, nil
}

// sharesUpper returns the directory of a mount whose changes go to upper, or "". The
// kernel allows a second such mount, and says that what then happens is not defined. m.mu
// is held.
func (m *Set) sharesUpper(upper string) string {
	if upper == "" {
		return ""
	}
	have, err := os.Stat(upper)
	for dir, r := range m.all {
		if r.Upper == "" {
			continue
		}
		if filepath.Clean(r.Upper) == filepath.Clean(upper) {
			return dir
		}
		if err != nil { // it does not exist yet, so no mount uses it under another name
			continue
		}
		if other, oerr := os.Stat(r.Upper); oerr == nil && os.SameFile(have, other) {
			return dir
		}
	}
	return ""
}

func checkMount(req *api.MountRequest) error {
	if !filepath.IsAbs(req.Dir) || req.Upper != "" && !filepath.IsAbs(req.Upper) {
		return errors.New("directories must be absolute paths")
	}
	dir, err := filepath.EvalSymlinks(req.Dir)
	if err != nil {
		return err
	}
	req.Dir = dir // the name by which the kernel knows it
	st, err := os.Stat(req.Dir)
	if err != nil {
		return err
	}
	if !st.IsDir() {
		return fmt.Errorf("%s is not a directory", req.Dir)
	}
	if mnt, there, err := view.Mounted(req.Dir); err != nil {
		return err
	} else if there {
		return fmt.Errorf("%s is mounted at %s already (slipway umount takes it away)", mnt.Source, req.Dir)
	}
	return nil
}

// claim makes the layers of an image available in one of the ways. It says what became of
// each way that it tried.
func (m *Set) claim(ctx context.Context, image, platform string, use []string, fs string) (*gearclient.Image, *snapshotter.Layer, []string, error) {
	return m.claimWith(ctx, m.lower.claims, image, platform, use, fs)
}

func (m *Set) claimWith(ctx context.Context, c *claims, image, platform string, use []string, fs string) (*gearclient.Image, *snapshotter.Layer, []string, error) {
	ref, err := registries.Parse(image)
	if err != nil {
		return nil, nil, nil, err
	}
	img, err := m.resolve(ctx, ref, platform)
	if err != nil {
		return nil, nil, nil, err
	}
	if use == nil {
		use = slices.DeleteFunc(slices.Clone(ways(&c.choice, ref)), func(w string) bool { return w == config.WayPlain })
	}
	if len(use) == 0 {
		return nil, nil, nil, fmt.Errorf("the configuration has %s unpacked in the ordinary way, which takes containerd; name another with --mode, or write the tree with slipway export", image)
	}
	if len(img.Layers) == 0 {
		l := &snapshotter.Layer{Manifest: string(img.Manifest.Digest), ImageRef: image}
		err := c.claimNothing(l, ref)
		return img, l, []string{config.WayGear + ": used"}, err
	}
	var digests, why []string
	for _, d := range img.Layers {
		digests = append(digests, string(d.Digest))
	}
	l := &snapshotter.Layer{Manifest: string(img.Manifest.Digest), ImageRef: image}
	for i, d := range digests {
		l.Parent, l.Digest, l.DiffID, l.Layers = l.ChainID, d, string(img.DiffIDs[i]), digests[i:]
		l.ChainID = c.keyIn(chainID(idOf(l.Parent), l.DiffID), m.chains.regs.Domain(ref.Host))
		var ok bool
		why, ok, err = c.claimBy(ctx, *l, ref, false, use, fs)
		if err != nil && len(use) == 1 {
			return nil, nil, nil, err
		}
		if err != nil || !ok {
			return nil, nil, nil, fmt.Errorf("the agent cannot mount %s: %s", image, strings.Join(why, "; "))
		}
	}
	return img, l, why, nil
}

// resolve looks an image up in the registry.
func (m *Set) resolve(ctx context.Context, ref registries.Reference, platform string) (*gearclient.Image, error) {
	reg, err := m.chains.regs.Of(ref)
	if err != nil {
		return nil, err
	}
	var p *oci.Platform
	if platform != "" {
		parsed, err := oci.ParsePlatform(platform)
		if err != nil {
			return nil, err
		}
		p = &parsed
	}
	img, err := reg.Image(ctx, ref, p)
	if err != nil {
		return nil, err
	}
	if len(img.Layers) != len(img.DiffIDs) {
		return nil, fmt.Errorf("%s/%s has %d layers, and its configuration lists %d", ref.Host, ref.Repo, len(img.Layers), len(img.DiffIDs))
	}
	return img, nil
}

// chainID names a layer together with the layers below it, as the image specification
// defines it.
func chainID(parent, diffID string) string {
	if parent == "" {
		return diffID
	}
	return string(oci.SHA256([]byte(parent + " " + diffID)))
}

// overlay mounts the tree of a record with the attributes that were requested.
func (m *Set) overlay(ctx context.Context, r *mountRecord, req *api.MountRequest) error {
	layers, err := m.chains.mountWay(ctx, r.Chain, r.Way)
	if err != nil {
		return err
	}
	o := view.OverlayOptions{Lower: layers.Lower, Data: layers.Data, Metacopy: layers.Metacopy, NoSuid: !req.Suid, NoDev: !req.Dev}
	if r.Upper != "" {
		o.Upper, o.Work = r.Upper, r.Upper+".work"
		if err := view.PrepareUpper(layers.Lower[0], o.Upper, o.Work); err != nil {
			return err
		}
	}
	if err := m.save(r); err != nil {
		return err
	}
	if r.Upper == "" && len(o.Lower) == 1 && len(o.Data) == 0 {
		err = bindTo(o.Lower[0], r.Dir, attributesOf(req))
	} else {
		err = view.Overlay(r.Dir, o)
	}
	if err != nil {
		return err
	}
	err = m.chains.startedBy(ctx, snapshotter.Container{Key: r.key(), Chain: r.Chain, Mount: r.Dir}, r.Way)
	if err != nil {
		_, uerr := view.Unmount(r.Dir)
		return errors.Join(err, uerr)
	}
	return nil
}

// save writes a record durably.
func (m *Set) save(r *mountRecord) error {
	b, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	return durable.WriteFile(m.file(r.Dir), append(b, '\n'))
}

// at returns the mount at a directory. The path may contain links.
func (m *Set) at(dir string) *mountRecord {
	real, err := filepath.EvalSymlinks(dir)
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.all[filepath.Clean(dir)]; r != nil || err != nil {
		return r
	}
	return m.all[real]
}

// absent says that something is not here.
type absent string

// Error implements error.
func (e absent) Error() string { return string(e) }

// Unwrap implements what errors.Is needs.
func (e absent) Unwrap() error { return fs.ErrNotExist }

// Umount unmounts a mount, and removes what was only kept for it. The upper directory and
// the files stay.
func (m *Set) Umount(dir string) error {
	r := m.at(dir)
	if r == nil || r.Mapped {
		return absent("no image is mounted at " + dir + " by this agent")
	}
	// Opens that are not reported yet hold the mount.
	if err := m.chains.Stopped(context.Background(), r.key()); err != nil {
		return err
	}
	lazy, err := m.unmount(r)
	if err != nil {
		return errors.Join(fmt.Errorf("unmount %s: %w", r.Dir, err), m.chains.adopt(r))
	}
	if lazy {
		m.chains.log.Info("a mount is still in use and goes when it is not", "dir", r.Dir)
	}
	if r.Clone {
		if err := m.lower.DropRoot(context.Background(), r.key()); err != nil {
			m.chains.log.Info("the clone of a mount stays for now", "dir", r.Dir, "err", err)
		}
	}
	m.mu.Lock()
	delete(m.all, r.Dir)
	m.mu.Unlock()
	return m.forget(r)
}

// unmount unmounts a mount, lazily if it is in use. An unpacked tree is deleted when its
// last mount goes, so a mount of such a tree stays while it is in use.
func (m *Set) unmount(r *mountRecord) (lazy bool, err error) {
	if !m.chains.eager() || r.Way == config.WayVolume {
		return view.Unmount(r.Dir)
	}
	err = unix.Unmount(r.Dir, unix.UMOUNT_NOFOLLOW)
	if errors.Is(err, unix.EINVAL) { // nothing is mounted
		err = nil
	}
	return false, err
}

// forget removes the record of a mount. It also removes the chain and the chains below if
// nothing needs them any more.
func (m *Set) forget(r *mountRecord) error {
	m.claiming.Lock()
	defer m.claiming.Unlock()
	if err := os.Remove(m.file(r.Dir)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return m.release(r.Chain)
}

// release removes a chain and the chains below it if nothing needs them. The caller holds
// claiming.
func (m *Set) release(chain string) error {
	line, err := m.chains.records.line(chain)
	if err != nil {
		return nil //nolint:nilerr // an unknown chain needs no removal
	}
	slices.Reverse(line)
	for _, rec := range line {
		dropped, err := m.chains.dropUnless(rec.Chain, func() bool {
			return slices.Contains(m.warmed(), rec.Chain) ||
				slices.ContainsFunc(m.Mounts(), func(o api.MountStatus) bool { return o.Chain == rec.Chain })
		})
		if !dropped || err != nil {
			return err
		}
	}
	return nil
}

// uses reports whether a chain is part of a mount, or of an image that is kept for an
// order.
func (m *Set) uses(chain string) bool {
	tops := m.warmed()
	for _, r := range m.Mounts() {
		tops = append(tops, r.Chain)
	}
	for _, top := range tops {
		line, err := m.chains.records.line(top)
		if err != nil || slices.ContainsFunc(line, func(rec *chainRecord) bool { return rec.Chain == chain }) {
			return true // or unknown
		}
	}
	return false
}

// Mounts returns what is mounted without containerd, sorted by directory.
func (m *Set) Mounts() []api.MountStatus {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []api.MountStatus
	for _, r := range m.all {
		out = append(out, api.MountStatus(*r))
	}
	slices.SortFunc(out, func(a, b api.MountStatus) int { return strings.Compare(a.Dir, b.Dir) })
	return out
}
