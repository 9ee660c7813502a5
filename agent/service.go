package agent

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"example.org/slipway/agent/api"
	"example.org/slipway/agent/images"
	"example.org/slipway/gear"
	"example.org/slipway/node/gearfs"
	"example.org/slipway/node/poolfs"
)

var _ api.Service = (*Agent)(nil)

// Status implements api.Service.
func (a *Agent) Status(ctx context.Context) api.Status {
	return api.Status{PID: os.Getpid(), Started: a.began, Root: a.cfg.Root, Tier: a.support.Tier.String(), Reasons: a.support.Reasons,
		Snapshotter: a.cfg.Address, Pool: a.poolStats(), Volumes: a.images.VolumeStatus(ctx), Mounts: a.images.Mounts(), Status: a.files.Status()}
}

// poolStats returns the counters of the pool; they are zero without a pool.
func (a *Agent) poolStats() (s poolfs.Stats) {
	if a.pool != nil {
		s = a.pool.Stats()
	}
	return s
}

// Mount implements api.Service.
func (a *Agent) Mount(ctx context.Context, req api.MountRequest) (*api.MountAnswer, error) {
	return a.images.Mount(ctx, req)
}

// Umount implements api.Service.
func (a *Agent) Umount(dir string) error { return a.images.Umount(dir) }

// MapVolume implements api.Service.
func (a *Agent) MapVolume(ctx context.Context, req api.MapRequest) (*api.MapAnswer, error) {
	return a.images.MapVolume(ctx, req)
}

// UnmapVolume implements api.Service.
func (a *Agent) UnmapVolume(image string) error { return a.images.UnmapVolume(image) }

// Profile implements api.Service.
func (a *Agent) Profile(image string) (*api.ProfileAnswer, error) {
	img, err := a.find(image)
	if err != nil {
		return nil, err
	}
	p, err := a.files.Profile(img.Chain)
	if err != nil {
		return nil, err
	}
	x, err := a.files.Index(img.Chain)
	if err != nil {
		return nil, err
	}
	paths := make(map[gear.Name]string, len(x.Files))
	sizes := make(map[gear.Name]int64, len(x.Files))
	for i := range x.Entries {
		if e := &x.Entries[i]; e.File >= 0 {
			f := &x.Files[e.File]
			if _, ok := paths[f.Name]; !ok {
				paths[f.Name], sizes[f.Name] = e.Path, f.Size
			}
		}
	}
	out := &api.ProfileAnswer{Image: img.Ref, Chain: img.Chain, Files: []api.ProfileEntry{}, Donor: p.Donor}
	for _, f := range p.Files {
		out.Files = append(out.Files, api.ProfileEntry{Name: fmt.Sprintf("sha256:%x", f.Name), Path: paths[f.Name], Size: sizes[f.Name], From: f.From.String()})
		out.Bytes += sizes[f.Name]
	}
	return out, nil
}

// DropProfile implements api.Service.
func (a *Agent) DropProfile(image string) error {
	img, err := a.find(image)
	if err != nil {
		return err
	}
	return a.files.SetProfile(img.Chain, nil)
}

// Verify implements api.Service.
func (a *Agent) Verify(ctx context.Context) (v api.VerifyAnswer, err error) {
	v.Files, v.Damaged, err = a.cache.Verify(ctx, nil)
	return v, err
}

// find returns an image by its name, by the beginning of its chain ID, or by a container.
// If a tag has moved, it returns the image that was pulled last.
func (a *Agent) find(name string) (gearfs.ImageStatus, error) {
	st, _ := a.files.Summary()
	for _, c := range st.Containers {
		if name != "" && (c.ID == name || strings.HasSuffix(c.ID, "/"+name) || c.ID == "mount:"+name) {
			name = c.Chain
		}
	}
	last := newest(st.Images, name)
	for _, m := range a.images.Mounts() {
		if last == nil && m.Image == name { // known by the name of another image with the same layers
			last = newest(st.Images, m.Chain)
		}
	}
	if last == nil {
		return gearfs.ImageStatus{}, notHere(name, st.Images)
	}
	return a.files.Image(last.Chain)
}

// newest returns the image with a name that was added last, or nil.
func newest(all []gearfs.ImageStatus, name string) (last *gearfs.ImageStatus) {
	for i := range all {
		img := &all[i]
		if images.Named(name, img.Ref, img.Chain) && (last == nil || img.Added.After(last.Added)) {
			last = img
		}
	}
	return last
}

// notHere returns an error that says that an image is not on this node, and how to name
// the images that are.
func notHere(name string, images []gearfs.ImageStatus) error {
	here := "none is here now"
	if len(images) > 0 {
		var refs []string
		for i := range images {
			refs = append(refs, cmp.Or(images[i].Ref, images[i].Chain))
		}
		slices.Sort(refs)
		refs = slices.Compact(refs)
		more := ""
		if n := len(refs) - mostNamed; n > 0 {
			refs, more = refs[:mostNamed], fmt.Sprintf(" and %d more", n)
		}
		here = "here are " + strings.Join(refs, ", ") + more
	}
	return fmt.Errorf("no image or container %q is on this node: an image is here while containerd has it or it is mounted, and is named as it was pulled or mounted, with its registry and tag, or by its chain ID or container; %s: %w",
		name, here, fs.ErrNotExist)
}

// mostNamed is how many images an error lists.
const mostNamed = 20
